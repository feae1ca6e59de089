"""Continuous batching, iteration by iteration."""

import pytest

from shared.contracts.kv import BlocksStored
from shared.core.batching import Batching, BatchingConfig, Refusal, Request, Step
from shared.core.step_law import INSTANT, PRESETS, StepLaw


def batching(law: StepLaw = INSTANT, *, blocks: int = 100, slots: int = 4, queue_max: int = 100, tokens_per_step: int = 32) -> Batching:
    config = BatchingConfig(blocks=blocks, block_tokens=4, slots=slots, queue_max=queue_max, tokens_per_step=tokens_per_step)
    return Batching(config, law)


def request(key: str, prompt: int = 8, output: int = 4, *, chain: int = 0, priority: int = 0) -> Request:
    """`chain` numbers the content: requests with the same number have the same tokens."""
    return Request(key, prompt, output, [(chain or id(key)) * 1000 + index for index in range(1000)], priority)


def keys(requests: list[Request]) -> list[object]:
    return [each.key for each in requests]


def run(model: Batching) -> list[Step]:
    steps = []
    while not model.idle:
        steps.append(model.step())
        assert len(steps) < 10_000, "the model does not come to an end"
    return steps


def test_a_request_produces_its_first_token_with_its_prefill_and_then_one_per_iteration() -> None:
    model = batching()
    assert model.submit(request("a", output=3)) is None
    steps = run(model)
    assert [keys(step.produced) for step in steps] == [["a"], ["a"], ["a"]]
    assert [keys(step.finished) for step in steps] == [[], [], ["a"]]


def test_a_long_prompt_is_prefilled_in_chunks_while_others_go_on_decoding() -> None:
    model = batching()
    model.submit(request("short", prompt=4, output=10))
    model.step()
    model.submit(request("long", prompt=80, output=1))
    produced = [keys(model.step().produced) for _ in range(3)]
    assert produced == [["short"], ["short"], ["short", "long"]]  # 31 + 31 + 18 tokens beside one decode each


def test_requests_run_together_up_to_the_slots() -> None:
    model = batching(slots=2)
    for key in "abc":
        model.submit(request(key))
    model.step()
    assert (model.running, model.waiting) == (2, 1)


def test_higher_priority_is_admitted_first_and_then_arrival() -> None:
    model = batching(slots=1)
    for key, priority in (("a", 0), ("b", 0), ("urgent", 5), ("idle", -5)):
        model.submit(request(key, output=1, priority=priority))
    assert [keys(step.finished) for step in run(model)] == [["urgent"], ["a"], ["b"], ["idle"]]


def test_a_full_queue_refuses() -> None:
    model = batching(slots=1, queue_max=1)
    assert [model.submit(request(key)) for key in "abc"] == [None, None, Refusal.QUEUE_FULL]


def test_a_request_that_could_never_fit_is_refused() -> None:
    model = batching(blocks=4)
    assert model.submit(request("a", prompt=14, output=3)) is Refusal.TOO_LONG
    assert model.submit(request("b", prompt=14, output=2)) is None


def test_a_known_prefix_is_not_computed_again() -> None:
    model = batching(PRESETS["8b-h100"], blocks=700, tokens_per_step=4096)
    model.submit(request("first", prompt=2400, output=1, chain=7))
    cold = run(model)[0]
    again = request("again", prompt=2403, output=1, chain=7)
    model.submit(again)
    warm = run(model)[0]
    assert again.cached_tokens == 2400
    assert warm.duration_ns < cold.duration_ns / 5


def test_a_prompt_that_is_known_in_full_still_computes_its_last_token() -> None:
    model = batching()
    for key in ("first", "again"):
        last = request(key, prompt=24, output=1, chain=7)
        model.submit(last)
        run(model)
    assert last.cached_tokens == 20


def test_the_next_turn_finds_the_output_of_the_last_one() -> None:
    model = batching()
    model.submit(request("turn 1", prompt=8, output=9, chain=7))
    run(model)
    turn = request("turn 2", prompt=24, output=1, chain=7)
    model.submit(turn)
    run(model)
    assert turn.cached_tokens == 16  # the 17th token was said, but its KV never computed


def test_cache_events_tell_what_an_iteration_stored() -> None:
    model = batching()
    model.submit(request("a", prompt=9, output=2, chain=7))
    assert model.step().kv_events == [BlocksStored(hashes=[7000, 7001])]


def test_out_of_blocks_the_youngest_is_retracted_and_says_nothing_twice() -> None:
    model = batching(blocks=6)
    old, young = request("old", prompt=8, output=12), request("young", prompt=4, output=12)
    model.submit(old)
    model.submit(young)
    steps = run(model)
    retracted = [key for step in steps for key in keys(step.retracted)]
    assert set(retracted) == {"young"}
    said = [key for step in steps for key in keys(step.produced)]
    assert (said.count("old"), said.count("young")) == (12, 12)
    assert steps[11].finished == [old]


def test_a_lower_priority_is_retracted_before_a_younger_request() -> None:
    model = batching(blocks=6)
    model.submit(request("background", prompt=8, output=12, priority=-1))
    model.step()
    model.submit(request("urgent", prompt=4, output=12, priority=1))
    assert {key for step in run(model) for key in keys(step.retracted)} == {"background"}


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_aborted_request_leaves_nothing_behind(steps: int) -> None:
    model = batching(slots=1)
    first, second = request("a", output=20), request("b", output=20)
    model.submit(first)
    model.submit(second)
    for _ in range(steps):
        model.step()
    model.abort(second)
    model.abort(first)
    model.abort(first)
    assert model.idle
    assert model.cache.used == 0


def test_a_request_of_an_earlier_model_is_not_confused_with_one_of_this() -> None:
    before, now = batching(), batching()
    stale, current = request("stale"), request("current")
    before.submit(stale)
    now.submit(current)
    now.step()
    now.abort(stale)
    assert now.running == 1


def test_a_head_that_does_not_fit_is_admitted_once_room_is_made() -> None:
    model = batching(blocks=6)
    model.submit(request("a", prompt=12, output=5))
    model.submit(request("b", prompt=12, output=5))
    model.step()
    assert (model.running, model.waiting) == (1, 1)
    assert [key for step in run(model) for key in keys(step.finished)] == ["a", "b"]
