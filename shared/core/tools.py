"""The form of an output that must consist of calls: a JSON Schema, for the engine's grammar. Pure.

    one function      the object of its arguments
    any of several    [{"name": …, "parameters": {…}}, …], at least one (as SGLang has it)

So such an output is JSON whatever the model, and is read without knowing how that model writes calls of its own accord.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from shared.contracts.steps import Tool
from shared.core.errors import LegatoError

ANY_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}  # of a function that names none
_DEFINITIONS = ("$defs", "definitions")


class NoForm(LegatoError):
    """A schema that cannot stand among others. `at`: which tool's."""

    def __init__(self, message: str, at: int) -> None:
        super().__init__(message)
        self.at = at


def repeated(tools: Sequence[Tool]) -> str:
    """The name of the first function that is there twice; empty: there is none."""
    names = [tool.function.name for tool in tools]
    return next((name for index, name in enumerate(names) if name in names[:index]), "")


def arguments_form(tool: Tool) -> str:
    """The schema of an output that is the arguments of this function."""
    return msgspec.json.encode(tool.function.parameters or ANY_ARGUMENTS).decode()


def calls_form(tools: Sequence[Tool], *, several: bool) -> str:
    """The schema of an output that is an array of calls; `several`: of more than one. Raises NoForm."""
    definitions: dict[str, Any] = {}
    kinds = [_kind(tool, index, definitions) for index, tool in enumerate(tools)]
    form: dict[str, Any] = {"type": "array", "minItems": 1, "items": kinds[0] if len(kinds) == 1 else {"anyOf": kinds}}
    if not several:
        form["maxItems"] = 1
    if definitions:
        form["$defs"] = definitions
    return msgspec.json.encode(form).decode()


def _kind(tool: Tool, index: int, definitions: dict[str, Any]) -> dict[str, Any]:
    parameters = dict(tool.function.parameters or ANY_ARGUMENTS)
    for place in _DEFINITIONS:
        found = parameters.pop(place, {})
        for name, definition in found.items() if isinstance(found, dict) else ():
            definitions[_renamed(index, place, name)] = _moved(definition, index)
    return {
        "type": "object",
        "properties": {"name": {"enum": [tool.function.name]}, "parameters": _moved(parameters, index)},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _moved(schema: Any, index: int) -> Any:
    """With its references where its definitions are now: beside those of other tools. Raises NoForm."""
    if isinstance(schema, list):
        return [_moved(each, index) for each in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {name: _moved(value, index) for name, value in schema.items()}
    target = schema.get("$ref")
    if isinstance(target, str):
        parts = target.split("/")
        if len(parts) != 3 or parts[0] != "#" or parts[1] not in _DEFINITIONS:
            raise NoForm(f"a $ref may point to #/$defs/<name>, not to {target[:64]!r}", index)
        moved["$ref"] = f"#/$defs/{_renamed(index, parts[1], parts[2])}"
    return moved


def _renamed(index: int, place: str, name: str) -> str:
    return f"{index}-{place.removeprefix('$')}-{name}"
