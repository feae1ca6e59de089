"""What the text of an output means, piece by piece. Pure.

A parser's answers depend on the text so far and never on how it was cut into pieces, so that seams, attempts and resubmissions change
nothing: all that was told of a text, put together, is what was told of the whole text at once.
"""

from collections.abc import Iterable
from typing import Protocol

import msgspec


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of one thing: of what is shown, of what was thought, or of the call number `call` (from 0), whose name comes first, in one
    piece, and then its arguments, a JSON text."""

    content: str = ""
    reasoning: str = ""
    call: int | None = None
    name: str = ""
    arguments: str = ""


class Call(msgspec.Struct, kw_only=True):
    """A call of a function. `arguments`: as the model wrote it: JSON, if the output was not cut and the model made no mistake."""

    name: str
    arguments: str = ""


class Parsed(msgspec.Struct, kw_only=True):
    """All of a text."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = []

    def add(self, deltas: Iterable[Delta]) -> None:
        """Take what came next."""
        for delta in deltas:
            self.content += delta.content
            self.reasoning += delta.reasoning
            if delta.call is not None and delta.call == len(self.calls):
                self.calls.append(Call(name=delta.name))
            if delta.call is not None:
                self.calls[delta.call].arguments += delta.arguments


class Parser(Protocol):
    """Of one text."""

    def push(self, text: str) -> list[Delta]:
        """What the next piece of the text makes certain."""

    def end(self) -> list[Delta]:
        """What was held back, now that nothing follows."""


def undecided(text: str, marker: str) -> int:
    """How long the longest end of `text` is that begins, and is not all of, `marker`."""
    return next((size for size in range(min(len(marker) - 1, len(text)), 0, -1) if text.endswith(marker[:size])), 0)
