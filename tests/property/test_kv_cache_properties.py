"""The cache against a simple model, under random requests."""

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


def start(cache: KvCache, chain: list[int]) -> Holding | None:
    matched = cache.match(chain, len(chain))
    holding = cache.hold(chain, matched)
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
