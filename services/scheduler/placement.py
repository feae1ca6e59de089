"""Where a step goes: filter, score, pick."""

from typing import NamedTuple

from services.scheduler.book import Step
from services.scheduler.load import Load
from services.scheduler.policies.filter_failed import is_spared
from services.scheduler.policies.filter_fits import fits
from services.scheduler.policies.reserve import expected_output_tokens, uncached_tokens
from services.scheduler.policies.score_finish import finish_s


class Choice(NamedTuple):
    """A worker for a step. Ordered by predicted finish, then by worker id."""

    finish_s: float
    worker: str
    load: Load
    cached_tokens: int

    def why(self, ready: int) -> str:
        """The reasons, for people. Of the loads before the step was placed."""
        return (
            f"least finish of {ready}: {self.finish_s * 1e3:.0f} ms, "
            f"{self.cached_tokens} tokens cached, {self.load.backlog_tokens} ahead, {self.load.busy}/{self.load.slots} slots"
        )


def choose(step: Step, loads: list[Load], ready: int) -> Choice | None:
    """The worker with the least predicted finish, or None: nobody has room. `loads`: those of the `ready` workers that have a free slot."""
    best: Choice | None = None
    for load in loads:
        cached = cached_tokens(step, load)
        if is_spared(load, step, ready) or not fits(step.job, load, cached):
            continue
        score = finish_s(uncached_tokens(step.job, cached), expected_output_tokens(step.job), load)
        if best is None or (score, load.id) < best[:2]:
            best = Choice(score, load.id, load, cached)
    return best


def cached_tokens(step: Step, load: Load) -> int:
    """Prompt tokens that the worker's cache holds, as far as known; the last one is computed in any case."""
    return min(step.cached.get(load.id, 0), step.job.prompt_tokens - 1) if step.cached else 0
