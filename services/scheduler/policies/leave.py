"""Whether a worker that leaves finishes a step itself.

Rule: if the longest output that the step may have ends, at the worker's pace, within SHARE of the time that is left: moving it would cost a
prefill elsewhere and a pause for its reader. All others move, the earlier the better: while the old worker decodes, the reader
notices nothing of the next one's prefill.
Inputs: output tokens still allowed, the worker's decode rate and use, seconds until it hands back what it has.
Constant: SHARE, own assumption: the pace is a prediction, and what does not fit must still have the time to move.
"""

from services.scheduler.book import Step
from services.scheduler.load import Load
from services.scheduler.policies.score_finish import decode_s

SHARE = 0.5


def stays(step: Step, load: Load, left_s: float) -> bool:
    """Whether the step is left where it is."""
    return decode_s(step.job.max_tokens - step.produced, load) <= left_s * SHARE
