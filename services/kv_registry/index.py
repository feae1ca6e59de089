"""Which workers of one model hold which block: a bit per worker, so that one `and` per block finds the longest prefix of them all."""

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

import msgspec

from shared.contracts.ids import WorkerId

NAMED_MAX = 64  # sets of holders whose names are kept at hand
OTHERS_FROM = 32  # workers of a model, from which on those that hold what most hold are not named


class Held(NamedTuple):
    """Leading blocks by worker; a worker that is not named holds `others`."""

    blocks: dict[WorkerId, int]
    others: int


class Index(msgspec.Struct, dict=True):
    """`holders`: block hash to the bits of its holders, never 0. `members`: who has which bit."""

    holders: dict[int, int] = {}
    members: dict[int, WorkerId] = {}

    @cached_property
    def named(self) -> dict[int, list[WorkerId]]:
        """The names behind bits, in order: not in snapshots. Who holds the beginning of all prompts changes seldom."""
        return {}

    @cached_property
    def everybody(self) -> int:
        """The bits of all members: not in snapshots."""
        return sum(1 << bit for bit in self.members)


def join(index: Index, worker: WorkerId) -> int:
    """Give a worker the lowest free bit."""
    bit = 0
    while bit in index.members:
        bit += 1
    index.members[bit] = worker
    vars(index).pop("everybody", None)
    return bit


def leave(index: Index, bit: int) -> None:
    """Its worker holds nothing, and is gone."""
    del index.members[bit]
    vars(index).pop("everybody", None)
    index.named.clear()


def add(index: Index, bit: int, held: dict[int, None], hashes: Iterable[int]) -> None:
    """The worker with that bit holds these too. `held` is what the worker holds; it is kept in step."""
    holders, mask = index.holders, 1 << bit
    for block in hashes:
        if block not in held:
            held[block] = None
            others = holders.get(block)
            holders[block] = mask if others is None else others | mask  # one number for all that it holds alone


def remove(index: Index, bit: int, held: dict[int, None], hashes: Iterable[int]) -> None:
    """The worker with that bit no longer holds these."""
    holders, mask = index.holders, 1 << bit
    for block in hashes:
        if block in held:
            del held[block]
            others = holders[block] ^ mask
            if others:
                holders[block] = others
            else:
                del holders[block]


def clear(index: Index, bit: int, held: dict[int, None]) -> None:
    """The worker with that bit holds nothing."""
    remove(index, bit, held, list(held))


def match(index: Index, blocks: list[int]) -> Held:
    """How many leading `blocks` each worker holds. Takes as long as the longest match."""
    holders = index.holders
    left = holders.get(blocks[0], 0) if blocks else 0
    depth, groups = 0, []
    for block in blocks:
        still = left & holders.get(block, 0)
        if still != left:
            groups.append((left ^ still, depth))
            left = still
        if not left:
            break
        depth += 1
    if left:
        groups.append((left, depth))
    most = max(groups, key=_size, default=(0, 0))
    others = 0
    if len(index.members) >= OTHERS_FROM and 2 * _size(most) > len(index.members):
        others = most[1]
        groups.append((index.everybody ^ sum(mask for mask, _ in groups), 0))  # a worker is in one group at most
        groups.remove(most)
        most = max(groups, key=_size)
    held = dict.fromkeys(_named(index, sum(mask for mask, _ in groups)), most[1])
    for mask, depth in groups:
        if mask != most[0]:
            held |= dict.fromkeys(_workers(index, mask), depth)
    return Held(held, others)


def _size(group: tuple[int, int]) -> int:
    return group[0].bit_count()


def _named(index: Index, mask: int) -> list[WorkerId]:
    """Sorted."""
    workers = index.named.get(mask)
    if workers is None:
        if len(index.named) >= NAMED_MAX:
            index.named.clear()
        workers = index.named[mask] = sorted(_workers(index, mask))
    return workers


def _workers(index: Index, mask: int) -> list[WorkerId]:
    workers = []
    while mask:
        lowest = mask & -mask
        workers.append(index.members[lowest.bit_length() - 1])
        mask ^= lowest
    return workers
