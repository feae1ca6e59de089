"""Not again where it has just failed.

Rule: the worker on which a step's last attempt failed or was lost is left out while another worker is ready, even if that one is full now;
when it is the only one, it is tried again.
Inputs: the worker of the last failure, how many workers are ready. Constants: none.
"""

from shared.contracts.ids import WorkerId


def is_spared(worker: WorkerId, failed_on: WorkerId, ready: int) -> bool:
    """Whether `worker` must be left out for this step."""
    return worker == failed_on and ready > 1
