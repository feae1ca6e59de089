"""Placement "round_robin": one worker after the other.

Rule: the next worker by id behind the one that was given a step of this model last, and behind the last one the first again. A worker
without room is passed over.
Inputs: the workers with room, who was last. Constants: none.
Source: the `round_robin` policies of SGLang's model gateway (2025) and of NVIDIA Dynamo's router (2025), which count requests modulo
workers: the same while workers neither come, go nor fill up.
"""

from services.scheduler.candidate import Candidate
from shared.contracts.ids import WorkerId


def next_in_turn(candidates: list[Candidate], last: WorkerId) -> Candidate:
    """`candidates`: at least one. `last`: empty where nobody was."""
    return min(candidates, key=lambda each: (each.load.id <= last, each.load.id))
