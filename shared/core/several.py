"""Several choices of one request: each is a step of its own, so that it is settled, fenced and resumed like any other. Pure.

Choice 0 is what the request would be alone. Further ones have a seed that follows from the request's (where it names none, each step gets
one that follows from its id) and, in a workflow, a name of their own: `key#1`, `key#2`, …
"""

import hashlib

import msgspec

from shared.contracts.ids import StepId
from shared.contracts.steps import Submission

SEED_BITS = 31  # what engines hold in 32 bits


def choice(submission: Submission, index: int) -> Submission:
    """The submission of one choice, counted from 0."""
    if index == 0:
        return submission
    seed = submission.sampling.seed
    sampling = submission.sampling if seed is None else msgspec.structs.replace(submission.sampling, seed=choice_seed(seed, index))
    return msgspec.structs.replace(submission, sampling=sampling, step_key=choice_key(submission.step_key, index))


def choice_seed(seed: int, index: int) -> int:
    """The seed of one choice: neighbouring seeds of requests share none."""
    if index == 0:
        return seed
    digest = hashlib.sha256(f"{seed}#{index}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> (32 - SEED_BITS)


def choice_key(name: str, index: int) -> str:
    """The name within its workflow of one choice; a nameless step stays so."""
    return f"{name}#{index}" if name and index else name


def choice_id(step: StepId, index: int) -> StepId:
    """The id of one choice of a request whose first is `step`."""
    return StepId(f"{step}-{index}") if index else step
