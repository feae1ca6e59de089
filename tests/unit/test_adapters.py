"""LoRA adapters: places, and what a swap costs."""

from shared.core.adapters import Adapters
from shared.core.batching import Batching, BatchingConfig, Refusal, Request, Step
from shared.core.step_law import INSTANT

LOAD_NS = 1_000_000


def batching(adapters_max: int = 2, slots: int = 8) -> Batching:
    config = BatchingConfig(blocks=100, block_tokens=4, slots=slots, adapters_max=adapters_max, adapter_load_ns=LOAD_NS)
    return Batching(config, INSTANT)


def submitted(model: Batching, adapter: str, output: int = 1) -> Request:
    request = Request(adapter, 8, output, [hash((adapter, index)) for index in range(100)])
    request.adapter = adapter
    assert model.submit(request) is None
    return request


def finished(step: Step) -> list[object]:
    return [request.key for request in step.finished]


def test_a_swap_is_paid_before_the_first_iteration_and_not_again() -> None:
    model = batching()
    submitted(model, "a", output=2)
    assert [model.step().duration_ns for _ in range(2)] == [LOAD_NS, 0]
    submitted(model, "a")
    assert model.step().adapters_loaded == 0
    submitted(model, "b")
    submitted(model, "")
    step = model.step()
    assert (step.adapters_loaded, step.duration_ns) == (1, LOAD_NS)


def test_who_finds_no_place_waits_and_those_behind_go_on() -> None:
    model = batching(adapters_max=1)
    for adapter, output in (("a", 3), ("b", 1), ("a", 1), ("", 1)):
        submitted(model, adapter, output)
    steps = [model.step() for _ in range(4)]
    assert [finished(step) for step in steps] == [["a", ""], [], ["a"], ["b"]]
    assert [step.adapters_loaded for step in steps] == [1, 0, 0, 1]


def test_the_least_recently_used_goes_and_none_that_is_used() -> None:
    adapters = Adapters(2)
    for name in ("a", "b", "a"):
        adapters.hold(name)
    assert not adapters.has_room("c")
    adapters.release("b")
    adapters.release("a")
    assert adapters.hold("c")
    assert sorted(adapters.names()) == ["a", "c"]
    adapters.release("a")
    adapters.release("c")
    assert adapters.hold("d")
    assert sorted(adapters.names()) == ["c", "d"]


def test_an_engine_without_places_refuses_a_request_that_names_one() -> None:
    request = Request("a", 8, 1, range(100))
    request.adapter = "a"
    assert batching(adapters_max=0).submit(request) is Refusal.NO_ADAPTERS


def test_an_aborted_request_leaves_its_place() -> None:
    model = batching(adapters_max=1)
    first = submitted(model, "a", output=50)
    submitted(model, "b")
    model.step()
    model.abort(first)
    assert finished(model.step()) == ["b"]
