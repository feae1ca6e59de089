"""Prompts by what is new of them. A conversation that grows brings all of its blocks with each step; what the journal keeps of a prompt are
those behind the longest one that was seen before, and the state knows the rest.

The same rules run twice: in the machine's state, and on its way in (service.py), where `shortened` says what is new. The latter begins
empty with each process. So it knows no path that the state does not know: what the state has besides is older than all that both know,
and goes first.

Bounded: BLOCKS_MAX blocks in all, and half of that for one prompt. What was used longest ago goes, ends before beginnings.
"""

from collections import OrderedDict

import msgspec

BLOCKS_MAX = 262_144  # of all prompts; about 5 MB of a snapshot


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """The blocks of a prompt behind another one's last block `after`; None: from its beginning."""

    after: int | None
    blocks: list[int]


class Paths(msgspec.Struct):
    """`stretches`: by their last block, which (being a hash of all before it) names the whole path. `size`: blocks in all."""

    stretches: dict[int, Stretch] = {}
    size: int = 0

    def __post_init__(self) -> None:
        self.stretches = OrderedDict(self.stretches)  # which finds its first at once; a dict looks past all that are gone


def shortened(paths: Paths, blocks: list[int]) -> Stretch:
    """A prompt as what is behind the longest path that is known."""
    for index in range(len(blocks), 0, -1):
        if blocks[index - 1] in paths.stretches and _before(paths, blocks[index - 1]) is not None:
            return Stretch(blocks[index - 1], blocks[index:])
    return Stretch(None, blocks)


def whole(paths: Paths, stretch: Stretch) -> list[int]:
    """All blocks of a prompt; none where the path before it is not known."""
    before = _before(paths, stretch.after)
    if before is None:
        return []
    return [block for each in reversed(before) for block in paths.stretches[each].blocks] + stretch.blocks


def learn(paths: Paths, stretch: Stretch, blocks_max: int = BLOCKS_MAX) -> None:
    """Know the path of a prompt from now on."""
    before = _before(paths, stretch.after)
    if before is None:
        return
    length = sum(len(paths.stretches[each].blocks) for each in before) + len(stretch.blocks)
    if stretch.blocks and 2 * length <= blocks_max:
        _forget(paths, stretch.blocks[-1])
        paths.stretches[stretch.blocks[-1]] = stretch
        paths.size += len(stretch.blocks)
    for each in before:
        paths.stretches[each] = paths.stretches.pop(each)
    while paths.size > blocks_max:
        _forget(paths, next(iter(paths.stretches)))


def _forget(paths: Paths, last: int) -> None:
    stretch = paths.stretches.pop(last, None)
    if stretch is not None:
        paths.size -= len(stretch.blocks)


def _before(paths: Paths, last: int | None) -> list[int] | None:
    """The stretches up to that block, the last one first, by their own last blocks; None where one is not known."""
    found: list[int] = []
    while last is not None:
        stretch = paths.stretches.get(last)
        if stretch is None or len(found) > len(paths.stretches):  # hashes of 64 bits: a circle is unlikely, not impossible
            return None
        found.append(last)
        last = stretch.after
    return found
