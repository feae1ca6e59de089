"""Placement "random": any worker, each as likely as another.

Rule: the worker whose draw is the highest. A draw is a hash of the step's id and the worker's, so that the same step in the same fleet
goes to the same worker however often it is decided: no randomness that a replay would lack. When a worker comes or goes, only the steps
that draw it are placed otherwise.
Inputs: the step's id, the workers with room. Constants: none.
Source: highest random weight, or rendezvous, hashing (Thaler and Ravishankar, IEEE/ACM Transactions on Networking, 1998).
"""

from hashlib import blake2b

from services.scheduler.candidate import Candidate
from shared.contracts.ids import StepId, WorkerId

DRAW_BYTES = 8


def draw(step: StepId, worker: WorkerId) -> bytes:
    """Evenly spread, and the same everywhere."""
    return blake2b(f"{step} {worker}".encode(), digest_size=DRAW_BYTES).digest()


def highest_draw(step: StepId, candidates: list[Candidate]) -> Candidate:
    """`candidates`: at least one."""
    return max(candidates, key=lambda each: (draw(step, each.load.id), each.load.id))
