"""The cache against a simple model, under random requests."""

from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from shared.contracts.kv import AllCleared, BlocksStored, KvEvent
from shared.core.kv_cache import Holding, KvCache

# A chain is a path in a small tree; the hash of a block names the path up to it, so equal prefixes have equal hashes.
PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=6)
OPERATIONS = st.lists(st.one_of(st.tuples(st.just("run"), PATHS), st.tuples(st.just("end"), st.integers(0, 7))), max_size=60)


def chain_of(path: list[int]) -> list[int]:
    return [sum((branch + 1) * 4**depth for depth, branch in enumerate(path[: length + 1])) for length in range(len(path))]


def parent_of(block: int) -> int:
    """The same path without its last branch, 0 at the root."""
    top = 1
    while top * 4 <= block:
        top *= 4
    return block % top


def follow(held: set[int], events: list[KvEvent]) -> None:
    """What a registry knows that hears the events."""
    for event in events:
        assert not isinstance(event, AllCleared)
        if isinstance(event, BlocksStored):
            assert held.isdisjoint(event.hashes)
            held.update(event.hashes)
        else:
            assert held.issuperset(event.hashes)
            held.difference_update(event.hashes)


def start(cache: KvCache, chain: list[int], priority: int = 0) -> Holding | None:
    matched = cache.match(chain, len(chain))
    holding = cache.hold(chain, matched, priority)
    if not cache.grow(holding, len(chain) - matched):
        cache.release(holding)
        return None
    for block in chain[matched:]:
        cache.seal(holding, block)
    return holding


@given(blocks=st.integers(1, 12), operations=OPERATIONS)
def test_counts_add_up_events_tell_all_and_what_is_cached_is_closed_under_prefixes(
    blocks: int, operations: list[tuple[str, list[int] | int]]
) -> None:
    cache = KvCache(blocks)
    running: list[Holding] = []
    told: set[int] = set()
    for _, argument in operations:
        if isinstance(argument, list):
            holding = start(cache, chain_of(argument))
            if holding is not None:
                assert holding.sealed == chain_of(argument)
                running.append(holding)
        elif running:
            cache.release(running.pop(argument % len(running)))
        follow(told, cache.take_events())
        assert told == set(cache.hashes())
        assert cache.used + cache.cached + cache.free == blocks
        assert cache.used == len({block for each in running for block in each.sealed})
        assert min(cache.used, cache.cached, cache.free) >= 0
        assert all(parent_of(block) == 0 or parent_of(block) in told for block in told)


@given(blocks=st.integers(1, 12), path=PATHS, others=st.lists(PATHS, max_size=20))
def test_a_chain_that_is_held_is_always_matched_in_full(blocks: int, path: list[int], others: list[list[int]]) -> None:
    cache = KvCache(blocks)
    holding = start(cache, chain_of(path))
    for other in others:
        another = start(cache, chain_of(other))
        if another is not None:
            cache.release(another)
        if holding is not None:
            assert cache.match(chain_of(path), len(path)) == len(path)


class Seen:
    """What a watcher knows of each block: until when it is kept, and the highest priority that held it."""

    def __init__(self, cache: KvCache) -> None:
        self.cache = cache
        self.running: list[Holding] = []
        self.told: set[int] = set()
        self.until: dict[int, int] = {}
        self.priority: dict[int, int] = {}

    def held(self, holding: Holding) -> None:
        self.running.append(holding)
        for block in holding.sealed:
            self.priority[block] = max(holding.priority, self.priority.get(block, -9))

    def check(self, now_ns: int, ranked: bool) -> None:
        """What went must have been the right one to go."""
        before = set(self.told)
        follow(self.told, self.cache.take_events())
        idle = self.told - {block for each in self.running for block in each.sealed}
        kept = {block for block, until in self.until.items() if until > now_ns}
        for block in before - self.told:
            if block in kept:
                assert idle <= kept
            elif ranked:
                assert all(self.priority[other] >= self.priority[block] for other in idle - kept)
            self.until.pop(block, None)
            self.priority.pop(block)
        assert self.cache.kept == len([block for block in self.until if self.until[block] > now_ns])
        assert self.cache.used + self.cache.cached + self.cache.free == self.cache.blocks
        assert self.cache.cached == len(idle)
        assert self.told == set(self.cache.hashes())
        assert all(parent_of(block) == 0 or parent_of(block) in self.told for block in self.told)


DEEDS = st.one_of(
    st.tuples(st.just("run"), PATHS, st.integers(-1, 1)),
    st.tuples(st.just("end"), PATHS, st.integers(0, 7)),
    st.tuples(st.just("keep"), PATHS, st.integers(0, 20)),
    st.tuples(st.just("wait"), PATHS, st.integers(1, 8)),
)


@given(
    blocks=st.integers(1, 12), kept_max=st.integers(0, 6), eviction=st.sampled_from(["lru", "priority"]), deeds=st.lists(DEEDS, max_size=60)
)
def test_whatever_the_order_parents_stay_and_only_the_first_in_order_goes(
    blocks: int, kept_max: int, eviction: Literal["lru", "priority"], deeds: list[tuple[str, list[int], int]]
) -> None:
    seen = Seen(KvCache(blocks, eviction=eviction, kept_max=kept_max))
    now_ns = 0
    for verb, path, number in deeds:
        chain = chain_of(path)
        if verb == "run":
            holding = start(seen.cache, chain, number)
            for block in chain[: len(chain) if holding else seen.cache.match(chain, len(chain))]:
                seen.priority[block] = max(number, seen.priority.get(block, -9))
            if holding is not None:
                seen.held(holding)
        elif verb == "end" and seen.running:
            seen.cache.release(seen.running.pop(number % len(seen.running)))
        elif verb == "keep":
            kept = seen.cache.keep(chain, len(chain), now_ns + number)
            assert kept <= seen.cache.match(chain, len(chain))
            for block in chain[:kept]:
                seen.until[block] = max(now_ns + number, seen.until.get(block, 0))
        elif verb == "wait":
            now_ns += number
            seen.cache.expire(now_ns)
            seen.until = {block: until for block, until in seen.until.items() if until > now_ns}
        seen.check(now_ns, eviction == "priority")
        assert seen.cache.kept <= kept_max


@given(
    blocks=st.integers(1, 10),
    host_blocks=st.integers(0, 10),
    eviction=st.sampled_from(["lru", "priority"]),
    deeds=st.lists(DEEDS, max_size=60),
)
def test_gpu_and_host_together_are_closed_under_prefixes_and_nothing_that_fits_is_lost(
    blocks: int, host_blocks: int, eviction: Literal["lru", "priority"], deeds: list[tuple[str, list[int], int]]
) -> None:
    cache = KvCache(blocks, eviction=eviction, kept_max=blocks // 2, host_blocks=host_blocks)
    running: list[Holding] = []
    before: set[int] = set()
    for verb, path, number in deeds:
        chain = chain_of(path)
        if verb == "run":
            matched = cache.match(chain, len(chain))
            copied = cache.match_host(chain, matched, len(chain))
            assert {*cache.host.hashes()} >= {*chain[matched : matched + copied]}
            holding = cache.hold(chain, matched, number)
            if cache.restore(holding, chain, len(chain) - matched, copied):
                assert holding.sealed == chain[: matched + copied]
                for block in chain[matched + copied :]:
                    cache.seal(holding, block)
                running.append(holding)
            else:
                cache.release(holding)
        elif verb == "end" and running:
            cache.release(running.pop(number % len(running)))
        elif verb == "keep":
            cache.keep(chain, len(chain), number)
        here, host = {*cache.hashes()}, {*cache.host.hashes()}
        assert len(host) <= host_blocks
        assert len(host) == host_blocks or before <= here | host
        assert all(parent_of(block) == 0 or parent_of(block) in here | host for block in here | host)
        assert cache.used + cache.cached + cache.free == blocks
        before = here | host
