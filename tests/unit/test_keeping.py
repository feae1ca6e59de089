"""For how long simulated workers keep a program's KV: a fixed time, or what their own programs have shown to be worth it."""

from legato.simulate.keeping import PROGRAMS_MAX, SEEN_MAX, Keeping
from shared.contracts.ids import CellId, ModelName, StepId, WorkerId, WorkflowId
from shared.contracts.steps import Job, StepDispatched
from shared.core.time_to_live import SEEN_MIN

PAUSE_S = 2.0
PROMPT_TOKENS = 40_000
TOKENS_PER_S = 4_000.0  # so that a context takes ten seconds


def dispatch(workflow: str, accepted_s: float = 0.0) -> StepDispatched:
    job = Job(model=ModelName("m"), prompt_tokens=PROMPT_TOKENS, max_tokens=10, accepted_ns=round(accepted_s * 1e9))
    return StepDispatched(
        step=StepId("s"), workflow=WorkflowId(workflow), job=job, cell=CellId("c"), worker=WorkerId("w"), attempt=1, cached_tokens=0
    )


def taught(keeping: Keeping, programs: int) -> None:
    """Programs of two steps with a pause between them, one after the other."""
    for number in range(programs):
        at_s = number * 10.0
        keeping.seconds(dispatch(f"w{number}"), at_s, last=False)
        keeping.begun(dispatch(f"w{number}", at_s + PAUSE_S), at_s + PAUSE_S)
        keeping.seconds(dispatch(f"w{number}"), at_s + 5.0, last=True)


def test_a_fixed_time_is_the_same_for_all_but_the_last_step() -> None:
    keeping = Keeping(30.0, learns=False, tokens_per_s=TOKENS_PER_S)
    assert keeping.seconds(dispatch("w"), 0.0, last=False) == 30.0
    assert keeping.seconds(dispatch("w"), 0.0, last=True) == 0.0


def test_what_is_learned_covers_the_pauses_that_were_seen_where_computing_again_takes_longer() -> None:
    keeping = Keeping(0.0, learns=True, tokens_per_s=TOKENS_PER_S)
    taught(keeping, SEEN_MIN + 1)
    assert keeping.seconds(dispatch("next"), 10_000.0, last=False) == PAUSE_S


def test_nothing_is_kept_where_computing_again_is_quicker_than_the_pauses() -> None:
    keeping = Keeping(0.0, learns=True, tokens_per_s=PROMPT_TOKENS * 10.0)
    taught(keeping, SEEN_MIN + 1)
    assert keeping.seconds(dispatch("next"), 10_000.0, last=False) == 0.0


def test_what_is_seen_is_bounded() -> None:
    keeping = Keeping(0.0, learns=True, tokens_per_s=TOKENS_PER_S)
    taught(keeping, SEEN_MAX + 100)
    assert len(keeping._pauses) == len(keeping._lengths) == SEEN_MAX


def test_programs_that_never_come_back_make_room_for_new_ones() -> None:
    keeping = Keeping(0.0, learns=True, tokens_per_s=TOKENS_PER_S)
    for number in range(PROGRAMS_MAX + 10):
        keeping.seconds(dispatch(f"w{number}"), 0.0, last=False)
    assert len(keeping._paused) == PROGRAMS_MAX
    assert WorkflowId(f"w{PROGRAMS_MAX + 9}") in keeping._paused


def test_without_either_nothing_is_on() -> None:
    assert not Keeping(0.0, learns=False, tokens_per_s=TOKENS_PER_S).on
