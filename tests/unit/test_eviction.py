"""Which idle blocks go first, and what is kept."""

from typing import Literal

import pytest

from shared.contracts.kv import BlocksRemoved
from shared.core.batching import Batching, BatchingConfig, Request
from shared.core.kv_cache import Holding, KvCache
from shared.core.step_law import INSTANT


def used(cache: KvCache, hashes: list[int], priority: int = 0) -> None:
    """A request of that priority came and went."""
    matched = cache.match(hashes, len(hashes))
    holding = cache.hold(hashes, matched, priority)
    assert cache.grow(holding, len(hashes) - matched)
    for block_hash in hashes[matched:]:
        cache.seal(holding, block_hash)
    cache.release(holding)
    cache.take_events()


def evicted(cache: KvCache, blocks: int) -> list[int]:
    """What goes when so many blocks are needed."""
    holding = Holding()
    assert cache.grow(holding, cache.free + blocks)
    cache.release(holding)
    return [block for event in cache.take_events() if isinstance(event, BlocksRemoved) for block in event.hashes]


@pytest.mark.parametrize(("eviction", "order"), [("lru", [2, 1, 4, 3]), ("priority", [4, 3, 2, 1])])
def test_lower_priority_goes_first_where_priority_counts(eviction: Literal["lru", "priority"], order: list[int]) -> None:
    cache = KvCache(4, eviction=eviction)
    used(cache, [1, 2], priority=1)
    used(cache, [3, 4], priority=-1)
    assert evicted(cache, 4) == order


def test_a_shared_prefix_has_the_highest_priority_of_those_that_used_it() -> None:
    cache = KvCache(4, eviction="priority")
    used(cache, [1, 2], priority=5)
    used(cache, [1, 3], priority=-5)
    used(cache, [4], priority=0)
    assert evicted(cache, 4) == [3, 4, 2, 1]


def test_a_block_that_was_evicted_has_lost_its_priority() -> None:
    cache = KvCache(2, eviction="priority")
    used(cache, [1], priority=5)
    evicted(cache, 1)
    used(cache, [1], priority=-5)
    used(cache, [2], priority=0)
    assert evicted(cache, 1) == [1]


@pytest.mark.parametrize("eviction", ["lru", "priority"])
def test_what_is_kept_goes_last_and_the_soonest_end_first(eviction: Literal["lru", "priority"]) -> None:
    cache = KvCache(6, eviction=eviction, kept_max=6)
    for first, until_ns in ((1, 200), (3, 100)):
        used(cache, [first, first + 1])
        assert cache.keep([first, first + 1], 2, until_ns) == 2
    used(cache, [5, 6], priority=9)
    assert evicted(cache, 6) == [6, 5, 4, 3, 2, 1]
    assert cache.kept == 0


def test_what_is_kept_while_it_is_held_stays_kept_when_it_is_let_go() -> None:
    cache = KvCache(3, kept_max=3)
    holding = Holding()
    cache.grow(holding, 2)
    cache.seal(holding, 1)
    cache.seal(holding, 2)
    assert cache.keep([1, 2], 2, 100) == 2
    cache.release(holding)
    used(cache, [9])
    assert evicted(cache, 2) == [9, 2]


def test_once_its_time_is_over_a_block_counts_as_just_used() -> None:
    cache = KvCache(5, kept_max=5)
    used(cache, [1, 2])
    cache.keep([1, 2], 2, 100)
    used(cache, [3])
    cache.expire(99)
    assert cache.kept == 2
    cache.expire(100)
    assert cache.kept == 0
    used(cache, [4])
    assert evicted(cache, 4) == [3, 2, 1, 4]


def test_a_time_that_is_over_keeps_nothing() -> None:
    cache = KvCache(5, kept_max=5)
    used(cache, [1, 2])
    cache.expire(100)
    assert cache.keep([1, 2], 2, 100) == 0


def test_only_a_share_is_kept_and_of_a_chain_its_beginning() -> None:
    cache = KvCache(5, kept_max=2)
    used(cache, [1, 2, 3])
    assert cache.keep([1, 2, 3], 3, 100) == 2
    assert cache.keep([1, 2], 2, 300) == 2  # needs no more room
    used(cache, [4])
    assert cache.keep([4], 1, 200) == 0
    assert evicted(cache, 4) == [3, 4, 2, 1]


def test_what_is_not_here_is_not_kept() -> None:
    cache = KvCache(5, kept_max=5)
    used(cache, [1])
    assert cache.keep([1, 2], 2, 100) == 1


def test_kept_longer_stays_longer() -> None:
    cache = KvCache(4, kept_max=4)
    used(cache, [1, 2])
    cache.keep([1, 2], 2, 100)
    cache.keep([1], 1, 50)
    cache.expire(60)
    assert cache.kept == 2


def test_a_turn_of_a_program_is_kept_over_its_tool_call() -> None:
    model = Batching(BatchingConfig(blocks=8, block_tokens=4), INSTANT)

    def run(content: int, prompt: int) -> Request:
        request = Request(content, prompt, 1, range(content * 100, content * 100 + 100))
        assert model.submit(request) is None
        while not model.idle:
            model.step()
        return request

    assert model.keep(run(1, 16), 10) == 4
    for content in range(2, 6):
        run(content, 16)
    assert run(1, 17).cached_tokens == 16
    model.cache.expire(10)
    for content in range(2, 6):
        run(content, 16)
    assert run(1, 17).cached_tokens == 0
