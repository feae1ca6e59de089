"""Random loads on small engines: everything ends, nothing is said twice, nothing is left behind."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shared.core.batching import Batching, BatchingConfig, Request
from shared.core.step_law import PRESETS

REQUESTS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 20), st.integers(0, 3), st.integers(-1, 1), st.integers(0, 5)), min_size=1, max_size=25
)


OPTIONS = st.fixed_dictionaries(
    {"eviction": st.sampled_from(["lru", "priority"]), "host_blocks": st.integers(0, 30), "adapters_max": st.integers(0, 2)}
)


@given(blocks=st.integers(15, 40), slots=st.integers(1, 6), tokens_per_step=st.integers(6, 64), options=OPTIONS, requests=REQUESTS)
def test_every_request_says_exactly_its_tokens(
    blocks: int, slots: int, tokens_per_step: int, options: dict[str, Any], requests: list[tuple[int, int, int, int, int]]
) -> None:
    config = BatchingConfig(blocks=blocks, block_tokens=4, slots=slots, tokens_per_step=tokens_per_step, **options)
    model = Batching(config, PRESETS["8b-h100"])
    said = [0] * len(requests)
    finished: list[object] = []
    waiting = list(enumerate(requests))
    steps = 0
    while waiting or not model.idle:
        while waiting and waiting[0][1][4] <= steps:
            index, (prompt, output, content, priority, _) = waiting.pop(0)
            request = Request(index, prompt, output, range(content * 1000, content * 1000 + 100), priority)
            request.adapter = f"adapter {content}" if config.adapters_max and content else ""
            assert model.submit(request) is None
        steps += 1
        if model.idle:
            continue
        step = model.step()
        assert step.produced or step.duration_ns > 0
        assert model.running <= slots
        assert model.adapters.loaded <= config.adapters_max
        for request in step.produced:
            said[int(str(request.key))] += 1
            assert request.produced == said[int(str(request.key))]
        finished += [request.key for request in step.finished]
        assert steps < 5000, "locked up"
    assert said == [output for _, output, _, _, _ in requests]
    assert sorted(map(str, finished)) == sorted(map(str, range(len(requests))))
    assert model.cache.used == 0
