"""Calls of tools and thought, for who reads a model's own text: what `Result.text` means, and the form of an answer that must be a call.

    served = {each.name: each for each in await client.models()}["qwen3-8b"]
    step = await client.submit(model=served.name, messages=messages, tools=tools)
    parsed = legato.parse((await step.result()).text, tool_parser=served.tool_parser, reasoning_parser=served.reasoning_parser)
    for call in parsed.calls: ...

A demanded call is JSON whatever the model: `json_schema=legato.call_form(tools)`, then `legato.parse(text, tool_parser=legato.DEMANDED)`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from legato.request import refusal
from shared.contracts.steps import Tool
from shared.core.parsing.deltas import Call, Parsed
from shared.core.parsing.reader import FORCED, REASONING_PARSERS, TOOL_PARSERS, Reader
from shared.core.parsing.reader import parse as _parse
from shared.core.tools import NoForm, calls_form

__all__ = ["DEMANDED", "Call", "Parsed", "call_form", "parse"]

DEMANDED = FORCED  # in place of a model's parser: the text has the form of `call_form`


def parse(text: str, *, tool_parser: str = "", reasoning_parser: str = "") -> Parsed:
    """What a text says, what was thought, and the calls in it. It may be cut anywhere. The names of parsers are those of the model's card
    (`Served`); empty: there is nothing of the kind. Raises Refused for others."""
    if not isinstance(text, str):
        raise refusal(f"a text is read, not {text!r:.50}", "text")
    for name, given, known in (
        ("tool_parser", tool_parser, ["", DEMANDED, *TOOL_PARSERS]),
        ("reasoning_parser", reasoning_parser, ["", *REASONING_PARSERS]),
    ):
        if given not in known:
            raise refusal(f"there is no {name} {given!r}; there are: {', '.join(known[1:])}", name)
    return _parse(text, Reader(tool_parser, reasoning_parser))


def call_form(tools: Sequence[Mapping[str, Any]], *, several: bool = True) -> str:
    """The JSON Schema of an answer that is an array of calls of these functions, at least one; `several`: also of more. Raises Refused."""
    if not tools:
        raise refusal("tools: without any there is nothing to call", "tools")
    try:
        return calls_form(msgspec.convert(list(tools), list[Tool]), several=several)
    except (msgspec.ValidationError, NoForm) as error:
        raise refusal(f"tools: {error}", "tools") from error
