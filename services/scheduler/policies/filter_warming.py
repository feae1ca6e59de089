"""Which workers can warm up one more step that moves.

Rule: one that has no prefill to do, or that can do all it has and this one within WARMING_S. When many workers leave at once, their steps
move a few at a time: a survivor that prefills everything together would stop the streams that it has, and warm none in time.
Inputs: the worker's prefill placed and not done, its prefill rate, the step's context. What is warm is known with the next heartbeat.
Constant: WARMING_S, twice the default distance of heartbeats: less would leave survivors idle between them.
"""

from services.scheduler.book import Step
from services.scheduler.load import Load
from services.scheduler.policies.score_finish import prefill_s

WARMING_S = 1.0


def has_warmed(load: Load) -> bool:
    """Whether the worker may be given anything now."""
    return _in_time(1, load)


def can_warm(step: Step, load: Load) -> bool:
    """Whether the worker may be given the step now."""
    return _in_time(step.job.prompt_tokens + step.produced, load)


def _in_time(tokens: int, load: Load) -> bool:
    return load.backlog_tokens == 0 or prefill_s(load.backlog_tokens + tokens, load.prefill_tokens_per_s) <= WARMING_S
