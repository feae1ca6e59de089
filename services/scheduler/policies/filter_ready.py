"""Which workers may get new steps at all.

Rule: a worker that says READY and was heard within its lease, in the life (epoch) that it has now. A registration alone is not enough: the
stream hands out the last one of workers that died long ago, so a heartbeat must confirm it. Draining workers finish what they have.
Inputs: worker, when it was heard, the lease. Constants: configuration.
"""

from services.scheduler.book import Worker
from shared.contracts.fleet import WorkerState


def is_ready(worker: Worker, heard_ns: int, now_ns: int, lease_ns: int) -> bool:
    """Whether the worker takes new steps now."""
    return worker.state is WorkerState.READY and worker.beaten and now_ns - heard_ns < lease_ns
