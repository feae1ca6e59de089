"""The paged prefix cache of an engine: a fixed number of KV blocks, found again by the chained hash of all tokens up to their end.

A block is in one of these states:
- free: holds nothing.
- open: belongs to one request and is not full yet, so it has no hash.
- sealed: full and known by its hash; shared by all requests that hold it (reference counted).
- idle: sealed, and no request holds it any more; there for its content, and evicted when a block is needed, in an order to choose
  (eviction.py).

Rule: a request holds its blocks as a chain from the first one, so who holds a block holds all before it. A chain is released from its
end; therefore a block always became idle before its parent did, the order of eviction is leaf first, and what is cached is always
closed under prefixes. Every operation costs O(blocks it names); nothing scans the cache. Pure: no clock (`expire` says what time it is), no
I/O.

Source: vLLM's paged KV cache (Kwon et al., SOSP 2023) and SGLang's radix cache (Zheng et al., 2024), as a model of both.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from shared.contracts.kv import BlocksRemoved, BlocksStored, KvEvent
from shared.core.eviction import Eviction, Kept, LeastRecent, LowestPriority, Order
from shared.core.host_tier import HostTier


class Chain(Protocol):
    """Hash of the n-th full block of a token sequence, from 0. A list of hashes is one."""

    def __getitem__(self, index: int, /) -> int: ...


class Holding:
    """The blocks of one request: `sealed`, in chain order, then `open_blocks` without a hash."""

    __slots__ = ("open_blocks", "priority", "sealed")

    def __init__(self, priority: int = 0) -> None:
        self.priority = priority
        self.sealed: list[int] = []
        self.open_blocks = 0

    @property
    def blocks(self) -> int:
        return len(self.sealed) + self.open_blocks


class KvCache:
    """`used + cached + free == blocks`, always. `kept_max`: blocks that `keep` may keep at once. `host_blocks`: of a second tier
    (host_tier.py)."""

    def __init__(self, blocks: int, *, eviction: Eviction = "lru", kept_max: int = 0, host_blocks: int = 0) -> None:
        if blocks < 1:
            raise AssertionError(f"a cache needs at least one block, not {blocks}")
        self.blocks = blocks
        self.host = HostTier(host_blocks)
        self._references: dict[int, int] = {}  # of every sealed and idle block
        self._idle = 0  # those with no references: each either in _order or in _kept
        self._ranked = LowestPriority() if eviction == "priority" else None
        self._order: Order = LeastRecent() if self._ranked is None else self._ranked
        self._kept = Kept(kept_max)
        self._now_ns = 0
        self._open = 0
        self._events: list[BlocksStored | BlocksRemoved] = []

    @property
    def used(self) -> int:
        """Blocks that requests hold."""
        return self._open + len(self._references) - self._idle

    @property
    def cached(self) -> int:
        """Idle blocks: evictable."""
        return self._idle

    @property
    def kept(self) -> int:
        """Blocks that are kept, held or idle."""
        return len(self._kept.until)

    @property
    def free(self) -> int:
        return self.blocks - self._open - len(self._references)

    def match(self, chain: Chain, limit: int) -> int:
        """How many of the first `limit` blocks of `chain` are here."""
        for index in range(limit):
            if chain[index] not in self._references:
                return index
        return limit

    def match_host(self, chain: Chain, matched: int, limit: int) -> int:
        """How many blocks behind the first `matched` ones of `chain`, up to `limit`, are in the host's tier."""
        if self.host.blocks == 0:
            return 0
        index = matched
        while index < limit and chain[index] in self.host:
            index += 1
        return index - matched

    def hold(self, chain: Chain, matched: int, priority: int = 0) -> Holding:
        """Hold the first `matched` blocks of `chain`, as `match` found them, for a request of that priority."""
        holding = Holding(priority)
        for index in range(matched):
            self._reference(holding, chain[index])
        return holding

    def grow(self, holding: Holding, blocks: int) -> bool:
        """Add open blocks, evicting idle ones as needed. False, and nothing changed, when they do not fit."""
        missing = blocks - self.free
        if missing > self._idle:
            return False
        self._evict(missing)
        holding.open_blocks += blocks
        self._open += blocks
        return True

    def restore(self, holding: Holding, chain: Chain, blocks: int, copied: int) -> bool:
        """`grow` by `blocks`, the first `copied` of which are full: `match_host` found them. False, and nothing changed: not all fit."""
        if blocks > self.free + self._idle:
            return False
        start = len(holding.sealed)
        hashes = [chain[index] for index in range(start, start + copied)]
        self.host.use(hashes)  # first: what is evicted now must not push them out
        self.grow(holding, blocks)
        self.seal_all((holding, block_hash) for block_hash in hashes)
        return True

    def seal(self, holding: Holding, block_hash: int) -> None:
        """The first open block of `holding` is full. If the same content is here already, that block is shared and this one freed."""
        self.seal_all([(holding, block_hash)])

    def seal_all(self, full: Iterable[tuple[Holding, int]]) -> None:
        """`seal` all these, in order."""
        references, ranked = self._references, self._ranked
        stored: list[int] = []
        for holding, block_hash in full:
            if holding.open_blocks < 1:
                raise AssertionError("only an open block can be sealed")
            holding.open_blocks -= 1
            self._open -= 1
            if block_hash in references:
                self._reference(holding, block_hash)
                continue
            references[block_hash] = 1
            holding.sealed.append(block_hash)
            stored.append(block_hash)
            if ranked is not None:
                ranked.rank(block_hash, holding.priority)
        self._stored(stored)

    def grow_each(self, holdings: Sequence[Holding]) -> bool:
        """`grow` each of them by one block. False, and nothing changed, when they do not fit all."""
        missing = len(holdings) - self.free
        if missing > self._idle:
            return False
        self._evict(missing)
        for holding in holdings:
            holding.open_blocks += 1
        self._open += len(holdings)
        return True

    def release(self, holding: Holding) -> None:
        """Let all blocks of `holding` go; sealed ones stay cached until they are evicted."""
        idle: list[int] = []
        for block_hash in reversed(holding.sealed):
            count = self._references[block_hash] - 1
            if count < 0:
                raise AssertionError(f"block {block_hash} released more often than held")
            self._references[block_hash] = count
            if count == 0:
                idle.append(block_hash)
        self._add(idle)
        self._idle += len(idle)
        self._open -= holding.open_blocks
        holding.sealed = []
        holding.open_blocks = 0

    def keep(self, chain: Chain, blocks: int, until_ns: int) -> int:
        """Evict the first `blocks` blocks of `chain`, held or idle, only after all that are not kept, until `expire` is told `until_ns`.
        Returns how many are kept: those before the first that is not here or has no room among `kept_max`. Kept longer stays longer."""
        found: list[int] = []
        room = self._kept.most - len(self._kept.until)
        for index in range(blocks if until_ns > self._now_ns else 0):
            block_hash = chain[index]
            room -= block_hash not in self._kept.until
            if room < 0 or block_hash not in self._references:
                break
            found.append(block_hash)
        for block_hash in reversed(found):
            idle = self._references[block_hash] == 0
            if idle and block_hash not in self._kept.until:
                self._order.remove(block_hash)
            self._kept.keep(block_hash, until_ns, idle)
        return len(found)

    def expire(self, now_ns: int) -> None:
        """It is `now_ns`, by the clock of `keep`: what was kept until then or before counts as just used. Told before an iteration."""
        self._now_ns = max(now_ns, self._now_ns)
        self._order.add(self._kept.expire(self._now_ns))

    def hashes(self) -> list[int]:
        """All blocks that can be matched now."""
        return list(self._references)

    def take_events(self) -> list[KvEvent]:
        """What was stored and removed since the last call, in order."""
        events: list[KvEvent] = [*self._events]
        self._events = []
        return events

    def _reference(self, holding: Holding, block_hash: int) -> None:
        count = self._references[block_hash]
        self._references[block_hash] = count + 1
        if count == 0:
            self._idle -= 1
            (self._kept if block_hash in self._kept.until else self._order).remove(block_hash)
        if self._ranked is not None:
            self._ranked.rank(block_hash, holding.priority)
        holding.sealed.append(block_hash)

    def _add(self, idle: list[int]) -> None:
        """Children before parents."""
        until = self._kept.until
        if until:
            for block_hash in idle:
                if block_hash in until:
                    self._kept.add(block_hash)
            idle = [block_hash for block_hash in idle if block_hash not in until]
        self._order.add(idle)

    def _evict(self, blocks: int) -> None:
        if blocks < 1:
            return
        removed: list[int] = []
        for _ in range(blocks):
            block_hash = self._order.first() if len(self._order) else self._kept.first()
            removed.append(block_hash)
            if self._references.pop(block_hash) != 0:
                raise AssertionError(f"block {block_hash} was idle and held")
            if self._ranked is not None:
                self._ranked.forget(block_hash)
            if self.host.blocks:
                self.host.put(block_hash)
        self._idle -= blocks
        if self._events and isinstance(self._events[-1], BlocksRemoved):
            self._events[-1].hashes.extend(removed)
        else:
            self._events.append(BlocksRemoved(hashes=removed))

    def _stored(self, hashes: list[int]) -> None:
        if self._events and isinstance(self._events[-1], BlocksStored):
            self._events[-1].hashes.extend(hashes)
        elif hashes:
            self._events.append(BlocksStored(hashes=hashes))
