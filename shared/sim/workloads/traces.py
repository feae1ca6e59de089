"""What loaders of recorded traffic have in common: where the file is, its lines, and how fast and how often it is played."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, TypeVar

from msgspec import Meta

from shared.core.errors import LegatoError
from shared.sim.workloads.settings import Clients

Item = TypeVar("Item")
PathText = Annotated[str, Meta(min_length=1, max_length=1_000)]


class Trace(Clients, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`path`: from the folder of public data, or absolute. `rate`: how many times as fast as it was recorded. `repeat`: from the beginning
    again when it is over, with texts of its own each time."""

    path: PathText
    rate: Annotated[float, Meta(ge=0.001, le=1_000)] = 1.0
    repeat: bool = False


def found(data: Path, path: str, origin: str, folder: bool = False) -> Path:
    """Where that file or folder is. Raises LegatoError if it is not there, with the `origin` that it can be had from."""
    whole = data / path
    try:
        there = whole.is_dir() if folder else whole.is_file()
    except OSError:  # no name can be like that
        there = False
    if not there:
        where = "say with --data which folder it is in, or with `path` where it is"
        raise LegatoError(f"{whole} is not there: get it from {origin}, and {where}; generators need no files")
    return whole


def parsed(path: Path, parse: Callable[[str], Item], header: str = "") -> Iterator[Item]:
    """One item for each line that is not empty, after the header if there is one. Raises LegatoError that names the line which is none."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            text = line.strip()
            if number == 1 and header:
                if text != header:
                    raise LegatoError(f"{path} begins with {text[:80]!r}, and should with {header!r}")
            elif text:
                try:
                    item = parse(text)
                except (ValueError, LookupError, TypeError, ArithmeticError) as error:  # msgspec's errors are ValueErrors
                    raise LegatoError(f"{path}, line {number}: {error}; got {text[:80]!r}") from error
                yield item


def played(settings: Trace, seconds: float, read: Callable[[int], Iterable[tuple[float, Item]]]) -> Iterator[tuple[float, int, Item]]:
    """What begins within `seconds`, when, and how many times the trace was over before that. `read` gives seconds since the trace's
    beginning, with what is asked then, for the n-th time. The first one again follows the last one after a mean gap. Raises LegatoError
    where they are not in order."""
    offset_s = 0.0
    for again in itertools.count():
        last_s, items = 0.0, 0
        for at_s, item in read(again):
            if at_s < last_s:
                raise LegatoError(f"{settings.path} is not in order of time: {at_s:g} s comes after {last_s:g} s")
            last_s = at_s
            begins_s = (offset_s + last_s) / settings.rate
            if begins_s >= seconds:
                return
            yield begins_s, again, item
            items += 1
        if not settings.repeat or not items:
            return
        offset_s += last_s + max(last_s / items, 0.001)
