"""In which order the idle blocks of a cache are given up (kv_cache.py): a slot with two orders, and blocks that are kept for a time.

- `lru`: the least recently used goes first, as in vLLM's free queue (Kwon et al., SOSP 2023) and SGLang's default.
- `priority`: lower priority first, then the least recently used, as SGLang's `--radix-eviction-policy priority`. A block has the highest
  priority of all requests that have held it since it was stored.
- Kept blocks, in either, go after all others, those whose time ends first before the rest. When it is over they count as just used: as if
  they had been released then. Source: Continuum (Li et al., 2025, arXiv:2511.02230), where the KV of an agent's turn has a time-to-live
  for the length of its tool call; TensorRT-LLM's KvCacheRetentionConfig has such durations too.

Leaf first, always: a child is given up before its parent. In the order of use a block becomes idle before its parent does. Whoever held the
child held the parent, so the parent's priority is no lower. Chains are kept from their first block on, so the parent is kept no shorter.
Pure: time is what the cache was told.
"""

from bisect import insort
from collections import OrderedDict
from typing import Literal, Protocol

Eviction = Literal["lru", "priority"]


class Order(Protocol):
    """Idle blocks that are not kept."""

    def __len__(self) -> int: ...

    def add(self, blocks: list[int]) -> None:
        """They are idle now, and just used, in that order."""

    def remove(self, block: int) -> None:
        """It is held, or kept, now."""

    def first(self) -> int:
        """The one to give up; it is removed. There is at least one."""


class LeastRecent:
    """`lru`."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, blocks: list[int]) -> None:
        self._blocks.update(dict.fromkeys(blocks))

    def remove(self, block: int) -> None:
        del self._blocks[block]

    def first(self) -> int:
        return self._blocks.popitem(last=False)[0]


class LowestPriority:
    """`priority`. Costs O(different priorities) for each block given up."""

    def __init__(self) -> None:
        self._priorities: dict[int, int] = {}  # of each block in the cache
        self._orders: dict[int, LeastRecent] = {}
        self._levels: list[int] = []  # sorted
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, blocks: list[int]) -> None:
        for block in blocks:
            self._orders[self._priorities[block]].add([block])
        self._count += len(blocks)

    def remove(self, block: int) -> None:
        self._orders[self._priorities[block]].remove(block)
        self._count -= 1

    def first(self) -> int:
        self._count -= 1
        return next(self._orders[level] for level in self._levels if self._orders[level]).first()

    def rank(self, block: int, priority: int) -> None:
        """A request of that priority holds the block, which is not idle."""
        if priority not in self._orders:
            self._orders[priority] = LeastRecent()
            insort(self._levels, priority)
        self._priorities[block] = max(priority, self._priorities.get(block, priority))

    def forget(self, block: int) -> None:
        """It is no longer in the cache."""
        del self._priorities[block]


class _Group:
    """Blocks that are kept until the same time."""

    __slots__ = ("blocks", "idle")

    def __init__(self) -> None:
        self.blocks: dict[int, None] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()


class Kept:
    """At most `most` blocks that are kept, held or idle. Costs O(times kept until) for each block given up."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.until: dict[int, int] = {}  # of each
        self._groups: dict[int, _Group] = {}
        self._ends: list[int] = []  # sorted

    def keep(self, block: int, until_ns: int, idle: bool) -> None:
        """No shorter than before. Of a chain, its end comes first."""
        until_ns = max(until_ns, self.until.get(block, until_ns))
        self._leave(block)
        if until_ns not in self._groups:
            self._groups[until_ns] = _Group()
            insort(self._ends, until_ns)
        self.until[block] = until_ns
        self._groups[until_ns].blocks[block] = None
        if idle:
            self.add(block)

    def add(self, block: int) -> None:
        """It is idle now."""
        self._groups[self.until[block]].idle[block] = None

    def remove(self, block: int) -> None:
        """It is held now."""
        del self._groups[self.until[block]].idle[block]

    def first(self) -> int:
        """The idle one to give up; it is kept no longer. There is at least one."""
        group = next(self._groups[end] for end in self._ends if self._groups[end].idle)
        block = next(iter(group.idle))
        self._leave(block)
        return block

    def expire(self, now_ns: int) -> list[int]:
        """Forget those whose time is over; the idle ones of them, children before parents."""
        idle: list[int] = []
        while self._ends and self._ends[0] <= now_ns:
            group = self._groups.pop(self._ends.pop(0))
            idle += group.idle
            for block in group.blocks:
                del self.until[block]
        return idle

    def _leave(self, block: int) -> None:
        until_ns = self.until.pop(block, None)
        if until_ns is None:
            return
        group = self._groups[until_ns]
        del group.blocks[block]
        group.idle.pop(block, None)
        if not group.blocks:
            del self._groups[until_ns]
            self._ends.remove(until_ns)
