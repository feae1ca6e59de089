"""Many iterations at once: when they may be, and what they cost."""

import pytest

from shared.core.batching import Batching, BatchingConfig, Request
from shared.core.step_law import INSTANT, PRESETS, StepLaw


def batching(law: StepLaw = INSTANT, *, blocks: int = 1000, slots: int = 4) -> Batching:
    return Batching(BatchingConfig(blocks=blocks, block_tokens=4, slots=slots, tokens_per_step=32), law)


def request(key: str, prompt: int = 8, output: int = 100, content: int = 0) -> Request:
    return Request(key, prompt, output, range(content * 1000, content * 1000 + 1000))


def decoding(model: Batching, *requests: Request) -> None:
    for each in requests:
        assert model.submit(each) is None
    model.step()


def iterations(model: Batching) -> int:
    """How far the model could stride from here."""
    stride = model.stride()
    return 0 if stride is None else stride.iterations


def test_a_stride_reaches_to_the_first_end() -> None:
    model = batching()
    decoding(model, request("a", output=30), request("b", output=20))
    stride = model.stride()
    assert stride is not None
    step = model.advance(stride, stride.iterations)
    assert (step.iterations, [each.key for each in step.finished], model.running) == (19, ["b"], 1)


def test_nothing_strides_while_something_prefills_or_may_be_admitted() -> None:
    model = batching(slots=2)
    assert iterations(model) == 0
    decoding(model, request("a"))
    assert iterations(model) == 99
    model.submit(request("long", prompt=80, content=1))
    assert iterations(model) == 0  # it may be admitted
    model.step()
    assert iterations(model) == 0  # it prefills
    model.step()
    model.step()
    model.submit(request("third", content=2))
    assert iterations(model) == 96  # it waits for a slot


def test_a_stride_ends_before_a_block_is_short() -> None:
    model = batching(blocks=8)
    decoding(model, request("old", prompt=4, output=28), request("young", prompt=4, output=28, content=1))
    assert iterations(model) == 12  # 8 blocks of 4 tokens, two of prompts; then one must go
    stride = model.stride()
    assert stride is not None
    model.advance(stride, 12)
    assert iterations(model) == 0
    assert [each.key for each in model.step().retracted] == ["young"]


def test_a_plan_is_refused_once_something_else_has_happened() -> None:
    model = batching()
    decoding(model, request("a"), request("b", content=1))
    stride = model.stride()
    assert stride is not None
    model.submit(request("c"))
    with pytest.raises(AssertionError, match="something has happened"):
        model.advance(stride, 1)


@pytest.mark.parametrize("wrong", [0, 100])
def test_a_stride_is_no_longer_than_planned(wrong: int) -> None:
    model = batching()
    decoding(model, request("a"))
    stride = model.stride()
    assert stride is not None
    with pytest.raises(AssertionError, match="of a stride of 99"):
        model.advance(stride, wrong)


def test_without_any_duration_all_begins_at_once() -> None:
    model = batching()
    decoding(model, request("a"))
    stride = model.stride()
    assert stride is not None
    assert (stride.begun(0), stride.begun(1), stride.ns(99)) == (0, 99, 0)


def test_its_work_is_that_of_all_its_iterations() -> None:
    ways = batching(PRESETS["8b-h100"]), batching(PRESETS["8b-h100"])
    for model in ways:
        decoding(model, request("a"), request("b", content=1))
    stride = ways[0].stride()
    assert stride is not None
    works = [ways[1].step().work for _ in range(50)]
    work = ways[0].advance(stride, 50).work
    assert work.new_tokens == sum(each.new_tokens for each in works)
    assert work.context_tokens == sum(each.context_tokens for each in works)
    assert work.attended_pairs == sum(each.attended_pairs for each in works)
    assert work.requests == sum(each.requests for each in works)
