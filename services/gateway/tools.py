"""Tools of a request: what the model is told of them, and what must come of them. Pure.

`none`: the model is told of no tools. `auto`: it may call; the calls are found in its text, as its card says how it writes them.
`required`, or a function: a grammar sees to it that nothing but calls comes, or that function's arguments (shared/core/tools.py).
"""

from collections.abc import Sequence

import msgspec

from services.gateway.shapes import ChatBody, ChosenTool, RequestTool
from shared.contracts.fleet import ModelCard
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.steps import GRAMMARS, Sampling, Tool, ToolFunction
from shared.core.parsing.reader import FORCED, NAMED, REASONING_PARSERS, TOOL_PARSERS, Reader
from shared.core.tools import NoForm, arguments_form, calls_form, repeated
from shared.core.workflows import Unfit

AUTO = "auto"


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """How calls are found in the text: `by` is AUTO (by the model's parser), FORCED, or NAMED with a name; empty: there are none."""

    by: str = ""
    names: tuple[str, ...] = ()
    several: bool = True

    @property
    def demanded(self) -> bool:
        """Whether the output must consist of calls."""
        return self.by not in ("", AUTO)


def read_tools(body: ChatBody, sampling: Sampling) -> tuple[list[Tool] | None, ToolUse, Sampling]:
    """What the model is told, how calls are found, and the sampling with their form. Raises Unfit."""
    given, choice = body.tools or [], body.tool_choice
    if not given or choice == "none":
        if not given and choice not in (None, "none", AUTO):
            raise Unfit("tool_choice demands a call: give tools", "tool_choice")
        return None, ToolUse(), sampling
    tools = [_tool(each, index) for index, each in enumerate(given)]
    if twice := repeated(tools):
        raise Unfit(f"there are two tools named {twice[:64]}", "tools")
    if any(getattr(sampling, name) is not None for name in GRAMMARS):
        raise Unfit("tools and a form of the output (response_format and the like) exclude each other, but with tool_choice none", "tools")
    use = ToolUse(by=AUTO, names=tuple(tool.function.name for tool in tools), several=body.parallel_tool_calls is not False)
    if choice is None or choice == AUTO:
        _refuse_strict(given)
        return tools, use, sampling
    by, form = _demanded(choice, tools, use)
    return tools, msgspec.structs.replace(use, by=by), msgspec.structs.replace(sampling, json_schema=form)


def _demanded(choice: str | ChosenTool, tools: Sequence[Tool], use: ToolUse) -> tuple[str, str]:
    if isinstance(choice, ChosenTool):
        name = choice.function.name
        if name not in use.names:
            raise Unfit(f"there is no tool named {name[:64]!r}", "tool_choice.function.name")
        return NAMED + name, arguments_form(tools[use.names.index(name)])
    try:
        return FORCED, calls_form(tools, several=use.several)
    except NoForm as error:
        raise Unfit(f"tools[{error.at}].function.parameters: {error}", f"tools[{error.at}].function.parameters") from error


def _tool(given: RequestTool, index: int) -> Tool:
    function = given.function
    kind = (function.parameters or {}).get("type", "object")
    if kind != "object":
        param = f"tools[{index}].function.parameters"
        raise Unfit(f"{param} should be the schema of an object: arguments have names", param)
    return Tool(
        type="function", function=ToolFunction(name=function.name, description=function.description, parameters=function.parameters)
    )


def _refuse_strict(given: Sequence[RequestTool]) -> None:
    for index, tool in enumerate(given):
        if tool.function.strict:
            param = f"tools[{index}].function.strict"
            error = Unfit(
                f"{param} can be kept where a call is demanded (tool_choice required, or a function); with auto leave it out", param
            )
            error.problem = msgspec.structs.replace(error.problem, reason=Reason.UNSUPPORTED)
            raise error


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """How a chat's text is read; both empty: as it is."""

    tools: str = ""
    reasoning: str = ""
    names: tuple[str, ...] = ()
    several: bool = True

    def reader(self) -> Reader | None:
        """For one choice."""
        if not self.tools and not self.reasoning:
            return None
        return Reader(self.tools, self.reasoning, names=self.names, calls_max=None if self.several else 1)


def reading_of(use: ToolUse, sampling: Sampling, card: ModelCard | None, model: str) -> Reading | Problem:
    """By what the model's card says (None: nobody serves it). An output with a form of its own has no thought in it."""
    formed = any(getattr(sampling, name) is not None for name in GRAMMARS)
    reasoning = "" if card is None or formed else card.reasoning_parser
    if reasoning and reasoning not in REASONING_PARSERS:
        return Problem(
            reason=Reason.INTERNAL, message=f"this gateway does not know the reasoning parser of {model[:256]}: {reasoning[:64]}"
        )
    tools = use.by
    if tools == AUTO:
        if card is None:
            return Problem(reason=Reason.MODEL_NOT_FOUND, message=f"no worker serves a model {model[:256]!r} now", param="model")
        tools = card.tool_parser
        if tools not in TOOL_PARSERS:
            why = (
                "its workers do not say how it writes calls (`tool_parser` of their engine)"
                if not tools
                else f"this gateway does not know {tools}"
            )
            instead = "leave tools out" if "json_schema" in card.unsupported else "tool_choice can demand a call"
            message = f"{model[:256]} cannot be left to call tools of its own accord: {why}; {instead}"
            return Problem(reason=Reason.UNSUPPORTED, message=message, param="tools")
    return Reading(tools=tools, reasoning=reasoning, names=use.names, several=use.several)
