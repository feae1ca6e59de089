"""What may stand at a place, where only some words may: msgspec says that another one is none of them, and not which they are. Pure."""

import enum
import re
import types
from collections.abc import Sequence
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

_PLACES = re.compile(r"\[[^\]]*\]|[^.\[\]$]+")


def choices_at(kind: Any, path: str) -> list[str]:
    """The words allowed at `path`, as msgspec writes it (`$.messages[...].role`), in a value of the type; empty where any may stand."""
    kinds = [kind]
    for place in _PLACES.findall(path):
        kinds = [inner for each in kinds for member in _members(each) for inner in _inside(member, place)]
    return [word for each in kinds for member in _members(each) for word in _words(member)]


def _members(kind: Any) -> Sequence[Any]:
    """The members of a union; of any other type, itself."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _inside(kind: Any, place: str) -> list[Any]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [field.type for field in msgspec.structs.fields(kind) if field.encode_name == place]
    if get_origin(kind) in (list, tuple, dict):
        return [get_args(kind)[-1 if get_origin(kind) is dict else 0]]
    return []


def _words(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [str(word) for word in get_args(kind)]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return [str(member.value) for member in kind]
    return []
