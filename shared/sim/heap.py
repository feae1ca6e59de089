"""A world's time: what is to happen, and when. What falls on the same moment happens in the order in which it was said."""

import heapq
from collections.abc import Callable
from typing import Any

SECOND_NS = 1_000_000_000


class Heap:
    """`now_ns` is the time of what happens now. Nothing may be said for the past."""

    __slots__ = ("_entries", "_said", "now_ns")

    def __init__(self) -> None:
        self.now_ns = 0
        self._entries: list[tuple[int, int, Callable[[Any], None], Any]] = []
        self._said = 0

    @property
    def now_s(self) -> float:
        return self.now_ns / SECOND_NS

    def at(self, at_ns: int, act: Callable[[Any], None], argument: Any = None) -> None:
        """`act(argument)` happens at that time; now, if that is past."""
        self._said += 1
        heapq.heappush(self._entries, (max(at_ns, self.now_ns), self._said, act, argument))

    def after(self, wait_s: float, act: Callable[[Any], None], argument: Any = None) -> None:
        """So many seconds from now."""
        self.at(self.now_ns + round(wait_s * SECOND_NS), act, argument)

    def run(self, until_ns: int, over: Callable[[], bool]) -> None:
        """Let happen what is due before `until_ns`, until `over` says so."""
        entries, pop = self._entries, heapq.heappop
        while entries and entries[0][0] < until_ns and not over():
            self.now_ns, _, act, argument = pop(entries)
            act(argument)
