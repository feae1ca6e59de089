"""Strides against single iterations, under random loads: the same to the block, and as long up to rounding."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shared.contracts.kv import AllCleared, BlocksStored, KvEvent
from shared.core.batching import Batching, BatchingConfig, Request, Step
from shared.core.step_law import PRESETS

# prompt, output, content, priority, the iteration that it comes before, and after how many more it is aborted (0: never)
REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 40),
        st.integers(1, 60),
        st.integers(0, 3),
        st.integers(-1, 1),
        st.integers(0, 40),
        st.sampled_from([0, 0, 0, 1, 7, 25]),
    ),
    min_size=1,
    max_size=20,
)


class Played:
    """What one way of running a load has led to."""

    def __init__(self) -> None:
        self.said: Counter[object] = Counter()
        self.finished: dict[object, int] = {}  # after how many iterations
        self.changes: list[tuple[str, int]] = []
        self.iterations = self.calls = self.duration_ns = 0
        self.marks: dict[int, tuple[int, ...]] = {}  # counts of the cache, at iterations where both ways stop

    def note(self, step: Step) -> None:
        self.calls += 1
        self.iterations += step.iterations
        self.duration_ns += step.duration_ns
        for request in step.produced:
            self.said[request.key] += step.iterations
            assert request.produced == self.said[request.key]
        self.finished.update({request.key: self.iterations for request in step.finished})
        self.changes += [change for event in step.kv_events for change in flat(event)]


def flat(event: KvEvent) -> list[tuple[str, int]]:
    assert not isinstance(event, AllCleared)
    return [("stored" if isinstance(event, BlocksStored) else "removed", block) for block in event.hashes]


def play(config: BatchingConfig, load: list[tuple[int, int, int, int, int, int]], longest: int) -> Played:
    """`longest` 0: by single iterations; else by strides of at most so many."""
    model, played = Batching(config, PRESETS["8b-h100"]), Played()
    requests = [Request(n, p, o, range(c * 1000, c * 1000 + 100), priority) for n, (p, o, c, priority, _, _) in enumerate(load)]
    for request, (_, _, content, *_) in zip(requests, load, strict=True):
        request.adapter = f"adapter {content}" if config.adapters_max and content else ""
    moments = sorted(
        [(comes, 0, n) for n, (*_, comes, _) in enumerate(load)]
        + [(comes + after, 1, n) for n, (*_, comes, after) in enumerate(load) if after]
    )
    while moments or not model.idle:
        while moments and (moments[0][0] <= played.iterations or model.idle):
            _, aborts, number = moments.pop(0)
            if aborts:
                model.abort(requests[number])
            else:
                assert model.submit(requests[number]) is None
            played.marks[played.iterations] = (model.cache.used, model.cache.cached, model.running, model.waiting)
        if model.idle:
            continue
        stride = model.stride() if longest else None
        if stride is None:
            played.note(model.step())
        else:
            until = moments[0][0] - played.iterations if moments else stride.iterations
            played.note(model.advance(stride, min(stride.iterations, until, longest)))
        assert played.iterations < 20_000, "locked up"
    played.marks[played.iterations] = (model.cache.used, *model.cache.hashes(), *model.cache.host.hashes())
    return played


@given(
    blocks=st.integers(25, 80),
    block_tokens=st.sampled_from([4, 5, 16]),
    slots=st.integers(1, 6),
    tokens_per_step=st.integers(6, 64),
    eviction=st.sampled_from(["lru", "priority"]),
    host_blocks=st.sampled_from([0, 10, 1000]),
    adapters_max=st.sampled_from([0, 1]),
    load=REQUESTS,
    longest=st.sampled_from([1, 3, 1000]),
)
def test_strides_do_what_single_iterations_do(load: list[tuple[int, int, int, int, int, int]], longest: int, **limits: Any) -> None:
    config = BatchingConfig(**limits)
    single, strides = play(config, load, 0), play(config, load, longest)
    assert strides.said == single.said
    assert strides.finished == single.finished
    assert strides.changes == single.changes
    assert strides.marks == single.marks
    assert strides.iterations == single.iterations
    assert abs(strides.duration_ns - single.duration_ns) <= single.iterations / 2 + strides.calls


@given(output=st.integers(2, 3000), elapsed=st.floats(0, 1.1))
def test_what_comes_within_a_stride_waits_for_the_iteration_that_has_begun(output: int, elapsed: float) -> None:
    model = Batching(BatchingConfig(blocks=1000), PRESETS["8b-h100"])
    model.submit(Request("a", 100, output, range(1000)))
    model.step()
    stride = model.stride()
    assert stride is not None
    assert stride.iterations == output - 1
    at = round(stride.ns(stride.iterations) * elapsed)
    begun = stride.begun(at)
    assert all(stride.ns(number) < at for number in range(begun))
    assert begun == stride.iterations or stride.ns(begun) >= at
