"""Which workers of one model hold which block: a bit per worker, so that one `and` per block finds the longest prefix of them all."""

from collections.abc import Iterable

import msgspec

from shared.contracts.ids import WorkerId


class Index(msgspec.Struct):
    """`holders`: block hash to the bits of its holders, never 0. `members`: who has which bit."""

    holders: dict[int, int] = {}
    members: dict[int, WorkerId] = {}


def join(index: Index, worker: WorkerId) -> int:
    """Give a worker the lowest free bit."""
    bit = 0
    while bit in index.members:
        bit += 1
    index.members[bit] = worker
    return bit


def add(index: Index, bit: int, held: dict[int, None], hashes: Iterable[int]) -> None:
    """The worker with that bit holds these too. `held` is what the worker holds; it is kept in step."""
    holders, mask = index.holders, 1 << bit
    for block in hashes:
        if block not in held:
            held[block] = None
            holders[block] = holders.get(block, 0) | mask


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


def match(index: Index, blocks: list[int]) -> dict[WorkerId, int]:
    """How many leading `blocks` each worker holds, by worker id; those with none are left out. Takes as long as the longest match."""
    found: list[tuple[WorkerId, int]] = []
    left = index.holders.get(blocks[0], 0) if blocks else 0
    depth = 0
    for block in blocks:
        still = left & index.holders.get(block, 0)
        if still != left:
            found += [(worker, depth) for worker in _named(index, left ^ still)]
            left = still
        if not left:
            break
        depth += 1
    found += [(worker, depth) for worker in _named(index, left)]
    return dict(sorted(found))


def _named(index: Index, mask: int) -> list[WorkerId]:
    workers = []
    while mask:
        lowest = mask & -mask
        workers.append(index.members[lowest.bit_length() - 1])
        mask ^= lowest
    return workers
