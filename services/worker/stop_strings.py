"""Finds stop strings in a text that arrives in pieces, and holds back what may still become one. Pure.

The match that is complete first wins (of two that end together, the one that starts first), so the result does not depend on the pieces.
"""

from collections.abc import Sequence


class StopStrings:
    """Nothing held back is ever longer than the longest stop string less one character."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = list(stops)
        self._longest = max([len(stop) for stop in stops], default=0)
        self.held = ""  # the end of the text so far that begins a stop string
        self.matched = False

    def push(self, text: str) -> str:
        """The text that may be shown now. Once `matched`, it ends before the stop string, and nothing follows."""
        if not text or self.matched:
            return ""
        text = self.held + text
        start = self._first_match(text)
        self.matched = start is not None
        shown = start if start is not None else len(text) - self._undecided(text)
        self.held = "" if self.matched else text[shown:]
        return text[:shown]

    def flush(self) -> str:
        """The text held back: no more will come."""
        held, self.held = self.held, ""
        return held

    def _first_match(self, text: str) -> int | None:
        matches = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(matches)[1] if matches else None

    def _undecided(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
