"""The paged prefix cache: sharing, eviction and events."""

import pytest

from shared.contracts.kv import BlocksRemoved, BlocksStored
from shared.core.kv_cache import Holding, KvCache


def sealed(cache: KvCache, hashes: list[int]) -> Holding:
    """A request that computed these blocks."""
    matched = cache.match(hashes, len(hashes))
    holding = cache.hold(hashes, matched)
    assert cache.grow(holding, len(hashes) - matched)
    for block_hash in hashes[matched:]:
        cache.seal(holding, block_hash)
    return holding


def test_a_new_cache_is_free_and_matches_nothing() -> None:
    cache = KvCache(4)
    assert (cache.used, cache.cached, cache.free) == (0, 0, 4)
    assert cache.match([1, 2], 2) == 0


def test_released_blocks_stay_cached_and_are_found_again() -> None:
    cache = KvCache(4)
    cache.release(sealed(cache, [1, 2, 3]))
    assert (cache.used, cache.cached, cache.free) == (0, 3, 1)
    assert cache.match([1, 2, 9], 3) == 2


def test_two_requests_share_a_prefix_and_it_counts_once() -> None:
    cache = KvCache(8)
    first = sealed(cache, [1, 2, 3])
    second = sealed(cache, [1, 2, 4])
    assert cache.used == 4
    cache.release(first)
    assert (cache.used, cache.cached) == (3, 1)
    cache.release(second)
    assert (cache.used, cache.cached) == (0, 4)


def test_a_match_looks_no_further_than_its_limit() -> None:
    cache = KvCache(4)
    sealed(cache, [1, 2, 3])
    assert cache.match([1, 2, 3], 2) == 2


def test_the_least_recently_used_leaf_goes_first() -> None:
    cache = KvCache(4)
    cache.release(sealed(cache, [1, 2]))
    cache.release(sealed(cache, [3, 4]))
    cache.release(cache.hold([1], 1))  # 1 was used again; its child 2 was not
    cache.take_events()
    assert cache.grow(Holding(), 2)
    assert cache.take_events() == [BlocksRemoved(hashes=[2, 4])]
    assert cache.match([1], 1) == 1
    assert cache.match([3], 1) == 1


def test_what_does_not_fit_changes_nothing() -> None:
    cache = KvCache(4)
    holding = sealed(cache, [1, 2, 3])
    cache.release(sealed(cache, [9]))
    cache.take_events()
    assert not cache.grow(holding, 2)
    assert (cache.used, cache.cached, cache.free) == (3, 1, 0)
    assert cache.take_events() == []


def test_blocks_in_use_are_never_evicted() -> None:
    cache = KvCache(3)
    sealed(cache, [1, 2])
    assert not cache.grow(Holding(), 2)
    assert cache.match([1, 2], 2) == 2


def test_a_block_that_another_request_sealed_meanwhile_is_shared() -> None:
    cache = KvCache(4)
    first, second = Holding(), Holding()
    assert cache.grow(first, 1)
    assert cache.grow(second, 1)
    cache.seal(first, 7)
    cache.seal(second, 7)
    assert (cache.used, cache.free) == (1, 3)
    assert cache.take_events() == [BlocksStored(hashes=[7])]


def test_events_tell_the_changes_in_order_and_only_once() -> None:
    cache = KvCache(2)
    cache.release(sealed(cache, [1, 2]))
    sealed(cache, [3])
    assert cache.take_events() == [BlocksStored(hashes=[1, 2]), BlocksRemoved(hashes=[2]), BlocksStored(hashes=[3])]
    assert cache.take_events() == []
    assert sorted(cache.hashes()) == [1, 3]


def test_a_block_that_is_not_held_cannot_be_sealed() -> None:
    with pytest.raises(AssertionError, match="open block"):
        KvCache(1).seal(Holding(), 1)
