"""The parser that belongs to a request and a model. Pure."""

from collections.abc import Collection

from shared.core.parsing.calls import ARRAY, HERMES, LLAMA3, MISTRAL, Calls, Format
from shared.core.parsing.deltas import Delta, Parsed
from shared.core.parsing.reasoning import Reasoning

TOOL_PARSERS: dict[str, Format] = {"hermes": HERMES, "llama3_json": LLAMA3, "mistral": MISTRAL}
REASONING_PARSERS = {"deepseek_r1": True, "qwen3": False}  # whether the text begins in thought, also without a marker
FORCED = "forced"  # in place of a model's parser: an array of calls, which a grammar has made sure of (shared/core/tools.py)
NAMED = "named:"  # and the name of a function: the whole text is its arguments


class Named:
    """The whole text is the arguments of one function."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._begun = False

    def push(self, text: str) -> list[Delta]:
        if not text:
            return []
        begun, self._begun = self._begun, True
        return [*([] if begun else [Delta(call=0, name=self._name)]), Delta(call=0, arguments=text)]

    def end(self) -> list[Delta]:
        return []


class Reader:
    """Thought first, then calls within the answer. `tools`: a name of TOOL_PARSERS, FORCED or NAMED, empty: no calls are looked for.
    `reasoning`: a name of REASONING_PARSERS, or empty. `calls_max`: further calls are not told. Raises KeyError for other names."""

    def __init__(self, tools: str = "", reasoning: str = "", *, names: Collection[str] | None = None, calls_max: int | None = None) -> None:
        self._reasoning = Reasoning(begun=REASONING_PARSERS[reasoning]) if reasoning else None
        self._calls = _calls(tools, frozenset(names) if names is not None else None) if tools else None
        self._calls_max = calls_max

    def push(self, text: str) -> list[Delta]:
        """What the next piece of the text makes certain."""
        if self._reasoning is None:
            return self._answered([Delta(content=text)] if text else [])
        return self._answered(self._reasoning.push(text))

    def end(self) -> list[Delta]:
        """What was held back, now that nothing follows."""
        told = self._answered(self._reasoning.end()) if self._reasoning is not None else []
        return told + (self._within(self._calls.end()) if self._calls is not None else [])

    def _answered(self, deltas: list[Delta]) -> list[Delta]:
        if self._calls is None:
            return deltas
        told: list[Delta] = []
        for delta in deltas:
            told += [delta] if delta.reasoning else self._within(self._calls.push(delta.content))
        return told

    def _within(self, deltas: list[Delta]) -> list[Delta]:
        most = self._calls_max
        return deltas if most is None else [each for each in deltas if each.call is None or each.call < most]


def parse(text: str, reader: Reader) -> Parsed:
    """A whole text."""
    parsed = Parsed()
    parsed.add(reader.push(text))
    parsed.add(reader.end())
    return parsed


def _calls(tools: str, names: frozenset[str] | None) -> Calls | Named:
    if tools.startswith(NAMED):
        return Named(tools.removeprefix(NAMED))
    return Calls(ARRAY if tools == FORCED else TOOL_PARSERS[tools], names)
