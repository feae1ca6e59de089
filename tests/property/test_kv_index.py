"""What a match says of each worker, named or not, is what the worker holds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from services.kv_registry.index import OTHERS_FROM, Index, add, join, leave, match
from shared.contracts.ids import WorkerId

PROMPT = [11, 12, 13, 14]
depths = st.one_of(st.just(2), st.integers(0, 5))  # leading blocks; of most workers the same


def fleets(least: int) -> st.SearchStrategy[list[tuple[int, bool]]]:
    """Of each worker its depth, and whether it has left again."""
    return st.lists(st.tuples(depths, st.sampled_from([False] * 9 + [True])), min_size=least, max_size=2 * OTHERS_FROM)


@settings(max_examples=200, deadline=None)
@given(st.one_of(fleets(1), fleets(OTHERS_FROM + 8)))
def test_each_worker_is_said_to_hold_what_it_holds(fleet: list[tuple[int, bool]]) -> None:
    index, truth = Index(), {}
    for number, (depth, leaves) in enumerate(fleet):
        worker = WorkerId(f"w{number}")
        bit = join(index, worker)
        held: dict[int, None] = {}
        if leaves:
            leave(index, bit)  # its place is for the next one
        else:
            truth[worker] = min(depth, len(PROMPT))
            add(index, bit, held, PROMPT[:depth])
            add(index, bit, held, PROMPT[depth + 1 :])
    found = match(index, PROMPT)
    assert {worker: found.blocks.get(worker, found.others) for worker in truth} == truth
    assert set(found.blocks) <= set(truth)
    if len(truth) >= OTHERS_FROM:
        most = max(map(list(truth.values()).count, truth.values()))
        assert len(found.blocks) <= len(truth) - most * (2 * most > len(truth) and found.others > 0)
