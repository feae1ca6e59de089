"""Configuration: one frozen struct per section, from a TOML file, the environment and the command line, each over the one before.

    legato.toml   [scheduler]                      environment   LEGATO_SCHEDULER_QUEUE_MAX=10
                  queue_max = 10                   command line  --set queue_max=10

A key that nobody knows is an error that names it and the nearest one that exists, wherever it stands; so is a value of the wrong type. In
the environment and on the command line, whole lists, tables and structs are written as JSON or as TOML.
"""

import contextlib
import difflib
import json
import tomllib
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, Union, get_args, get_origin

import msgspec

from shared.core.choices import choices_at
from shared.core.errors import LegatoError

Config = TypeVar("Config", bound=msgspec.Struct)

PREFIX = "LEGATO_"
# All sections there are. They keep apart LEGATO_KV_REGISTRY_X (key x of kv_registry) and key registry_x of a section kv.
SECTIONS = (
    *("admission", "autoscaler", "gateway", "kv_registry", "router", "scheduler", "worker", "workflow"),
    *("admin", "bus", "log", "models", "postgres", "sglang", "simulated", "telemetry", "up"),
)


class ConfigError(LegatoError):
    """The configuration cannot be read or does not fit. The message names the place, the key and what would be right."""


def load(
    config_type: type[Config],
    section: str,
    path: Path | None = None,
    env: Mapping[str, str] | None = None,
    overrides: Iterable[str] = (),
) -> Config:
    """The section's struct. `overrides` are `key=value`, where `key` may reach into nested structs and tables by dots.

    A `path` of None, or a file without the section, leaves the defaults. A nested struct that is given in part has its own type's defaults
    for the rest. Raises ConfigError.
    """
    values: dict[str, Any] = _read_section(path, section) if path else {}
    origins = dict.fromkeys(values, f"{path} [{section}]")
    for key, text, origin in _from_env(config_type, section, env or {}):
        values[key] = _parse(text, _type_at(config_type, [key], origin), origin)
        origins[key] = origin
    for override in overrides:
        _apply_override(config_type, values, origins, section, override)
    for key, value in values.items():
        _check_keys(_type_at(config_type, [key], origins[key]), value, f"{origins[key]} {key}")
    return _convert(config_type, values, origins, section)


def checked(config_type: type[Config], values: Mapping[str, Any], origin: str) -> Config:
    """The struct of values that were read elsewhere, from `origin`. Raises ConfigError."""
    for key, value in values.items():
        _check_keys(_type_at(config_type, [key], origin), value, f"{origin}: {key}")
    try:
        return msgspec.convert(values, config_type)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{origin}: {_said(error, config_type)}") from error


def check_setting(setting: str) -> None:
    """Raises ConfigError unless it is `section.field=value`, of a section that there is."""
    section, dot, rest = setting.partition(".")
    if not dot or "=" not in rest:
        raise ConfigError(f"{setting!r} is no setting; write section.field=value")
    if section not in SECTIONS:
        _refuse(f"--set {setting}", f"section {section}", section, SECTIONS)


def _read_section(path: Path, section: str) -> dict[str, Any]:
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # the second: no path can be like that
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', error)}") from error
    try:
        document = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    for name in document:
        if name not in SECTIONS and name != section:
            _refuse(str(path), f"section [{name}]", name, [*SECTIONS, section])
    values = document.get(section, {})
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: {section} should be a section, [{section}]")
    return values


def _from_env(config_type: type[msgspec.Struct], section: str, env: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """(key, text, where it came from) of every variable of the section."""
    found: list[tuple[str, str, str]] = []
    prefix = f"{PREFIX}{section.upper()}_"
    longer = tuple(f"{PREFIX}{other.upper()}_" for other in SECTIONS if len(other) > len(section))
    for variable in sorted(env):
        if variable.startswith(prefix) and not variable.startswith(longer):
            key = variable.removeprefix(prefix).lower()
            if key not in config_type.__struct_fields__:
                known = [prefix + field.upper() for field in config_type.__struct_fields__]
                _refuse("environment", f"variable {variable}", variable, known)
            found.append((key, env[variable], f"environment: {variable}"))
    return found


def _apply_override(
    config_type: type[msgspec.Struct], values: dict[str, Any], origins: dict[str, str], section: str, override: str
) -> None:
    origin = f"--set {section}.{override}"
    dotted, equals, text = override.partition("=")
    if not equals:
        raise ConfigError(f"{origin}: should be key=value")
    keys = dotted.strip().split(".")
    value = _parse(text, _type_at(config_type, keys, origin), origin)
    table = values
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{origin}: {key} is no table here")
    table[keys[-1]] = value
    origins[keys[0]] = origin


def _parse(text: str, value_type: Any, origin: str) -> Any:
    """The text as it is where the type takes one, else a number, a truth value, or a JSON or TOML literal."""
    try:
        return msgspec.to_builtins(msgspec.convert(text, value_type, strict=False))
    except UnicodeEncodeError as error:  # bytes that are no UTF-8 come as lone surrogates
        raise ConfigError(f"{origin}: {text!r} is no text") from error
    except msgspec.ValidationError as error:
        for value in _literals(text):
            if not isinstance(value, str):  # a quoted "7" is no number either
                return value
        choices = choices_at(value_type, _path(error))
        said = f"{text!r} is not allowed; {_listed(choices)}" if choices else f"{_sentence(error)}, {text!r}"
        raise ConfigError(f"{origin}: {said}") from error


def _literals(text: str) -> Iterator[Any]:
    """What the text means as JSON and as TOML, as far as it is either."""
    with contextlib.suppress(ValueError, RecursionError):
        yield json.loads(text)
    with contextlib.suppress(ValueError, RecursionError):
        yield tomllib.loads(f"value = {text}")["value"]


def _members(value_type: Any) -> Sequence[Any]:
    """The members of a union; of any other type, itself."""
    if get_origin(value_type) is Annotated:
        value_type = get_args(value_type)[0]
    return get_args(value_type) if get_origin(value_type) in (Union, types.UnionType) else (value_type,)


def _fields(value_type: Any) -> dict[str, Any] | None:
    """The keys, with their types, that a value of the type may have; None if it may have any, or none at all."""
    structs = [member for member in _members(value_type) if isinstance(member, type) and issubclass(member, msgspec.Struct)]
    if len(structs) != 1:  # of several, the tag decides, and msgspec checks it
        return None
    return {field.encode_name: field.type for field in msgspec.structs.fields(structs[0])}


def _item_type(value_type: Any) -> Any:
    """The type of what a list or table of the type holds."""
    for member in _members(value_type):
        if get_origin(member) in (dict, list, tuple):
            return get_args(member)[-1 if get_origin(member) is dict else 0]
    return Any


def _type_at(value_type: Any, keys: Sequence[str], origin: str) -> Any:
    """The declared type at the end of the keys. Raises ConfigError for a key that does not exist."""
    for key in keys:
        fields = _fields(value_type)
        if fields is None:
            value_type = _item_type(value_type)
        elif key in fields:
            value_type = fields[key]
        else:
            _refuse(origin, f"key {key}", key, fields)
    return value_type


def _check_keys(value_type: Any, value: Any, origin: str) -> None:
    """Refuse unknown keys at any depth. Types are checked by the conversion."""
    if isinstance(value, dict):
        for key, item in value.items():
            _check_keys(_type_at(value_type, [key], origin), item, f"{origin}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_keys(_item_type(value_type), item, f"{origin}[{index}]")


def _convert(config_type: type[Config], values: dict[str, Any], origins: dict[str, str], section: str) -> Config:
    try:
        return msgspec.convert(values, config_type)
    except msgspec.ValidationError as error:
        key = _path(error).removeprefix("$.")
        origin = origins.get(key.split(".")[0].split("[")[0]) or _whole(section, origins)
        named = origin.startswith(f"--set {section}.{key}=")
        choices = choices_at(config_type, key)
        said = f"{_sentence(error)}; {_listed(choices)}" if choices else _sentence(error)
        raise ConfigError((origin if named else f"{origin} {key}".rstrip()) + f": {said}") from error


def _said(error: msgspec.ValidationError, config_type: Any) -> str:
    """Where it is in the value, what is wrong there, and what may stand there."""
    key = _path(error).removeprefix("$.")
    choices = choices_at(config_type, key)
    return (f"{key}: " if key else "") + _sentence(error) + (f"; {_listed(choices)}" if choices else "")


def _whole(section: str, origins: dict[str, str]) -> str:
    """What contradicts itself as a whole, and where all that was given came from."""
    given = ", ".join(dict.fromkeys(origins.values()))
    return f"section [{section}]" + (f" ({given})" if given else "")


def _path(error: msgspec.ValidationError) -> str:
    """Where in the value, as msgspec has it."""
    return str(error).partition(" - at `")[2].rstrip("`")


def _listed(known: Iterable[str]) -> str:
    return f"there are: {', '.join(sorted(known))}"


def _sentence(error: msgspec.ValidationError) -> str:
    """msgspec's message without the path at its end."""
    text = str(error).partition(" - at `")[0].replace("`", "").replace("Object missing required field", "missing key")
    return text[:1].lower() + text[1:]


def _refuse(origin: str, what: str, name: str, known: Iterable[str]) -> NoReturn:
    near = difflib.get_close_matches(name, list(known), n=1)
    hint = f"did you mean {near[0]}?" if near else _listed(known)
    raise ConfigError(f"{origin}: unknown {what}; {hint}")
