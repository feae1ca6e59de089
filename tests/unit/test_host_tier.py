"""The tier in the host's memory: what it has, what a copy costs."""

from shared.contracts.kv import BlocksStored
from shared.core.batching import Batching, BatchingConfig, Request, Step
from shared.core.host_tier import HostTier
from shared.core.step_law import INSTANT, PRESETS, StepLaw, step_ns

BLOCK_NS = 1_000


def batching(law: StepLaw = INSTANT, *, blocks: int = 8, host_blocks: int = 100) -> Batching:
    config = BatchingConfig(blocks=blocks, block_tokens=4, tokens_per_step=64, host_blocks=host_blocks, host_block_ns=BLOCK_NS)
    return Batching(config, law)


def served(model: Batching, content: int, prompt: int) -> tuple[Request, Step]:
    """A request of one token, and its last iteration."""
    request = Request(content, prompt, 1, range(content * 1000, content * 1000 + 1000))
    assert model.submit(request) is None
    step = model.step()
    while not model.idle:
        step = model.step()
    return request, step


def test_what_was_evicted_comes_back_as_a_copy_and_is_counted_apart() -> None:
    model = batching()
    served(model, 1, 20)
    served(model, 2, 24)  # three of five blocks must go
    again, step = served(model, 1, 21)
    assert (again.cached_tokens, again.host_cached_tokens) == (8, 12)
    assert (step.copied_blocks, step.duration_ns) == (3, 3 * BLOCK_NS)
    assert step.work.new_tokens == 1
    assert BlocksStored(hashes=[1002, 1003, 1004]) in step.kv_events


def test_without_a_tier_it_is_computed_again() -> None:
    model = batching(host_blocks=0)
    served(model, 1, 20)
    served(model, 2, 24)
    again, step = served(model, 1, 21)
    assert (again.cached_tokens, again.host_cached_tokens, step.copied_blocks) == (8, 0, 0)
    assert step.work.new_tokens == 13


def test_a_copy_hides_behind_the_computation_of_its_iteration() -> None:
    model = batching(PRESETS["8b-h100"])
    served(model, 1, 20)
    _, alone = served(model, 2, 24)
    _, step = served(model, 1, 21)
    assert step.copied_blocks == 3
    assert step.duration_ns == step_ns(PRESETS["8b-h100"], step.work) > 3 * BLOCK_NS
    assert step.duration_ns < alone.duration_ns


def test_the_tier_forgets_the_least_recently_used() -> None:
    tier = HostTier(2)
    for block in (1, 2):
        tier.put(block)
    tier.use([1])
    tier.put(3)
    assert tier.hashes() == [1, 3]


def test_a_chain_is_used_from_its_end_so_that_its_beginning_stays_longest() -> None:
    tier = HostTier(3)
    for block in (3, 2, 1):
        tier.put(block)
    tier.use([1, 2, 3])
    tier.put(4)
    assert tier.hashes() == [2, 1, 4]


def test_a_block_that_is_evicted_once_more_counts_as_just_used() -> None:
    tier = HostTier(3)
    for block in (2, 1, 3, 1, 4):
        tier.put(block)
    assert tier.hashes() == [3, 1, 4]


def test_what_is_copied_back_is_not_pushed_out_by_what_makes_room_for_it() -> None:
    model = batching(blocks=6, host_blocks=9)
    for content in (1, 2, 3):
        served(model, content, 20)
    again, _ = served(model, 1, 20)
    assert again.host_cached_tokens == 16
    assert {1000, 1001, 1002, 1003} <= set(model.cache.host.hashes())
