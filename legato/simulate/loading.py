"""Scenario files: found, read, and changed from the command line (docs/scenarios.md). variants.py makes scenarios of them."""

import copy
import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from legato.machines import DECIDERS
from legato.simulate.scenario import Scenario
from shared.runtime.config import ConfigError

DEFAULT = "default"  # the policy that changes nothing
FIELDS = Scenario.__struct_fields__


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario file as it stands. `origin`: how messages call it."""

    origin: str
    values: dict[str, Any]


class Shipped(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario of the package."""

    name: str
    question: str
    policies: list[str]


def shipped() -> list[Shipped]:
    """All scenarios of the package, by name."""
    documents = {name: read(name).values for name in _names()}
    return [
        Shipped(name=name, question=values.get("question", ""), policies=list(values.get("policies", {})) or [DEFAULT])
        for name, values in documents.items()
    ]


def read(source: str) -> Document:
    """A file, or a scenario of the package by its name. Raises ConfigError."""
    path = Path(source)
    try:
        text = path.read_text()
    except FileNotFoundError as error:
        if source in _names():
            return _document(files("legato.simulate.scenarios").joinpath(f"{source}.toml").read_text(), source)
        if path.suffix == ".toml":
            raise ConfigError(f"cannot read {source}: {error.strerror}") from error
        near = difflib.get_close_matches(source, _names(), n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(_names())}"
        raise ConfigError(f"there is no file {source}, and no scenario of that name is shipped; {hint}") from error
    except (OSError, ValueError) as error:  # the second: it is no UTF-8, or no path can be like that
        raise ConfigError(f"cannot read {source}: {getattr(error, 'strerror', None) or 'it is no text in UTF-8'}") from error
    return _document(text, source)


def changed(document: Document, overrides: Sequence[str]) -> Document:
    """With `key=value` of the command line set: a key of the file by dots (`pools.h100.count`, `workload.0.with.rate`), or a setting of
    a service for all policies (`scheduler.queue_max`). Only a document without pools gets new ones so. Raises ConfigError."""
    values = copy.deepcopy(document.values)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {override}: should be key=value")
        if document.values.get("pools"):
            check_pool(values.get("pools"), key.strip(), f"--set {override}")
        set_key(values, key.strip(), value_of(text), f"--set {override}")
    return Document(origin=document.origin, values=values)


def check_pool(pools: Any, key: str, origin: str) -> None:
    """Raises ConfigError for a key of a pool that is not among `pools`: on the command line that is a slip, and would add one."""
    first, *names = key.removeprefix("autoscaler.").split(".")
    if first == "pools" and names and isinstance(pools, dict) and names[0] not in pools:
        refuse(origin, f"pool {names[0]}", names[0], pools)


def set_key(values: dict[str, Any], key: str, value: Any, origin: str) -> None:
    """Set it at its place in a document. Types and names are checked with the whole."""
    first, *rest = key.split(".")
    if first in DECIDERS:
        services = values.setdefault("services", {})
        if isinstance(services, dict):
            values["services"] = dict(flat(services)) | {key: value}
        return
    if first not in FIELDS:
        refuse(origin, f"key {first}", first, [*FIELDS, *DECIDERS])
    place: Any = values
    for part, following in zip([first, *rest], rest, strict=False):
        place = _inside(place, part, origin)
        if isinstance(place, list) and not following.isdigit():
            raise ConfigError(f"{origin}: {part} is a list; write {part}.0 for its first one")
    last = key.split(".")[-1]
    if isinstance(place, list):
        _inside(place, last, origin)
        place[int(last)] = value
    else:
        place[last] = value


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested tables as pairs of a whole key and a value: TOML has `scheduler.placement = 1` as a table in a table."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def value_of(text: str) -> Any:
    """What a text of the command line means in TOML; a text, where it means nothing there."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def refuse(origin: str, what: str, name: str, known: Sequence[str] | Mapping[str, Any]) -> NoReturn:
    """Raises ConfigError that names the nearest one there is."""
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
    raise ConfigError(f"{origin}: unknown {what}; {hint}")


def _names() -> list[str]:
    folder = files("legato.simulate.scenarios")
    return sorted(each.name.removesuffix(".toml") for each in folder.iterdir() if each.name.endswith(".toml"))


def _document(text: str, origin: str) -> Document:
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{origin} is not TOML: {error}") from error
    values.setdefault("name", Path(origin).stem)
    return Document(origin=origin, values=values)


def _inside(place: Any, part: str, origin: str) -> Any:
    """What is at that key or number, made if it is not there. Raises ConfigError where there can be none."""
    if isinstance(place, list):
        if not part.isdigit() or int(part) >= len(place):
            raise ConfigError(f"{origin}: there is no {part}; the list has {len(place)}, from 0")
        return place[int(part)]
    found = place.setdefault(part, {})
    if not isinstance(found, dict | list):
        raise ConfigError(f"{origin}: {part} is no table")
    return found
