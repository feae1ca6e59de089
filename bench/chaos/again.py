"""What is computed again when a step goes on elsewhere: of its prompt and the output so far, what the next worker's engine did not find in
its cache. Apart for moves that were planned and for losses. Pure.

Of a hand-over the warming is what counts: what it computes while the former worker still decodes, and the few tokens behind the seam. Of
attempts that were lost themselves nobody knows what they computed; and where the lost attempt had not begun, what the next one computes is
counted here, though it is computed for the first time.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from bench.ranks import rank
from shared.contracts.ids import StepId
from shared.contracts.outcomes import Reason


class Cause(StrEnum):
    """Why a step went on with another attempt: how the one before ended."""

    HANDED_OVER = "handed over"
    HANDED_BACK = "handed back, or not taken, by a worker that left"
    PREEMPTED = "gave way to a more urgent one"
    LOST = "lost"  # with its worker or its engine, or for the scheduler


PLANNED = {Reason.HANDED_OVER: Cause.HANDED_OVER, Reason.NO_CAPACITY: Cause.HANDED_BACK, Reason.PREEMPTED: Cause.PREEMPTED}


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Of one attempt. `context_tokens`: prompt and output so far, with which it began. `computed_tokens`: None where nobody said. `reason`:
    why it ended without success, if it said so."""

    context_tokens: int
    computed_tokens: int | None
    reason: str = ""


class Again(msgspec.Struct, frozen=True, kw_only=True):
    """All attempts of one cause: sums of tokens, and percentiles over attempts. `unknown`: how many more there were that did not report."""

    cause: Cause
    attempts: int
    context_tokens: int
    computed_tokens: int
    context_p50: int
    computed_p50: int
    computed_p99: int
    share_p50: float
    share_p99: float
    unknown: int

    @property
    def share(self) -> float:
        """Of all contexts together, what was computed again: 0 to 1."""
        return self.computed_tokens / self.context_tokens if self.context_tokens else 0.0


def cause_of(before: Work | None) -> Cause:
    """Why the step went on, by the attempt before; None: it is in no record."""
    return PLANNED.get(Reason(before.reason), Cause.LOST) if before is not None and before.reason else Cause.LOST


def again(attempts: Mapping[tuple[StepId, int], Work]) -> list[Again]:
    """One row per cause. Attempts whose engine never began (it refused them, or they found the step at its end) are left out."""
    found: dict[Cause, list[Work]] = {cause: [] for cause in Cause}
    for (step, number), work in attempts.items():
        if number > 1 and work.computed_tokens != 0:
            found[cause_of(attempts.get((step, number - 1)))].append(work)
    return [_row(cause, works) for cause, works in found.items()]


def _row(cause: Cause, works: Iterable[Work]) -> Again:
    known = [(work.context_tokens, work.computed_tokens) for work in works if work.computed_tokens is not None]
    contexts, computed = sorted(context for context, _ in known), sorted(tokens for _, tokens in known)
    shares = sorted(tokens / context for context, tokens in known if context)
    return Again(
        cause=cause,
        attempts=len(known),
        context_tokens=sum(contexts),
        computed_tokens=sum(computed),
        context_p50=rank(contexts, 0.5),
        computed_p50=rank(computed, 0.5),
        computed_p99=rank(computed, 0.99),
        share_p50=rank(shares, 0.5),
        share_p99=rank(shares, 0.99),
        unknown=sum(work.computed_tokens is None for work in works),
    )
