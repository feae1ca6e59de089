"""What a storm and `python -m bench.pauses` say of tokens that were computed again."""

import pytest

from bench.chaos.again import Cause, Work, again
from shared.contracts.ids import StepId
from shared.contracts.outcomes import Reason


def work(context: int = 100, computed: int | None = 100, reason: str = "") -> Work:
    return Work(context_tokens=context, computed_tokens=computed, reason=reason)


def counts(*attempts: Work) -> dict[Cause, tuple[int, int, int, int]]:
    rows = again({(StepId("a"), number): each for number, each in enumerate(attempts, 1)})
    return {row.cause: (row.attempts, row.context_tokens, row.computed_tokens, row.unknown) for row in rows if row.attempts or row.unknown}


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        (Reason.HANDED_OVER, Cause.HANDED_OVER),
        (Reason.NO_CAPACITY, Cause.HANDED_BACK),
        (Reason.PREEMPTED, Cause.PREEMPTED),
        (Reason.INTERNAL, Cause.LOST),
        ("", Cause.LOST),
    ],
)
def test_an_attempt_counts_by_how_the_one_before_it_ended(reason: str, cause: Cause) -> None:
    assert counts(work(reason=reason), work(context=120, computed=20)) == {cause: (1, 120, 20, 0)}


def test_the_first_attempt_computes_nothing_again() -> None:
    assert counts(work()) == {}


def test_an_attempt_that_was_lost_itself_is_told_apart() -> None:
    assert counts(work(reason=Reason.HANDED_OVER), work(context=0, computed=None), work(120, 120)) == {
        Cause.HANDED_OVER: (0, 0, 0, 1),
        Cause.LOST: (1, 120, 120, 0),
    }


def test_an_attempt_that_no_engine_began_is_left_out() -> None:
    assert counts(work(reason=Reason.HANDED_OVER), work(computed=0, reason=Reason.NO_CAPACITY), work(130, 30)) == {
        Cause.HANDED_BACK: (1, 130, 30, 0)
    }


def test_shares_are_those_of_single_attempts() -> None:
    steps = [(StepId(str(number)), context, computed) for number, (context, computed) in enumerate([(100, 10), (1_000, 20), (200, 200)])]
    works = {(step, 1): work(reason=Reason.HANDED_OVER) for step, _, _ in steps}
    row = again(works | {(step, 2): work(context, computed) for step, context, computed in steps})[0]
    assert (row.share, row.share_p50, row.share_p99) == (pytest.approx(230 / 1_300), 0.1, 1.0)
    assert (row.computed_p50, row.computed_p99) == (20, 200)
