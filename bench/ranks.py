"""Percentiles, by nearest rank. Pure."""

from collections.abc import Sequence
from typing import TypeVar

NumberT = TypeVar("NumberT", int, float)


def rank(ordered: Sequence[NumberT], share: float) -> NumberT:
    """The value below which `share` of them lie; 0 where there are none. `ordered`: the least first."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0
