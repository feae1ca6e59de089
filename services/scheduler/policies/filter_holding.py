"""Where a step moves to, first of all: workers that hold nearly all of its prompt.

Rule: of the workers that can warm a step that moves, those that hold at least HELD of its prompt are asked first, the others only where
none of these has room. Nobody waits for the next worker while the old one decodes, so a later finish costs its reader nothing; what counts
is what is computed a second time, and those who stay when many leave have no prefill to spare.
Inputs: prompt tokens in the workers' caches, as of the registry's answer when the step came.
Constant: HELD: the rest is at most a tenth of the context, which is what a hand-over may compute again.
"""

from collections.abc import Sequence

from services.scheduler.book import Step
from services.scheduler.load import Load

HELD = 0.9


def holding(step: Step, loads: Sequence[Load]) -> list[Load]:
    """Those that hold it. The answer is in whole blocks: an incomplete last one counts as held."""
    needed = HELD * step.job.prompt_tokens
    return [load for load in loads if (held := step.cached_on(load.id)) and held + load.block_tokens > needed]
