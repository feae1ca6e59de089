"""Not again where it has just failed.

Rule: the worker on which a step's last attempt failed or was lost is left out while another worker is ready, even if that one is full now.
When it is the only one, it is tried again; after a failure that it reported, not before its next heartbeat: an engine that dies fails
whatever comes faster than its worker can say so, and would use up all of a step's attempts.
Inputs: the worker and the time of the last failure, when that worker was heard, how many workers are ready. Constants: none.
"""

from services.scheduler.book import Step
from services.scheduler.load import Load


def is_spared(load: Load, step: Step, ready: int) -> bool:
    """Whether the worker must be left out for this step."""
    return load.id == step.failed_on and (ready > 1 or load.heard_ns < step.failed_ns)
