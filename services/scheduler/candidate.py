"""A worker that has room for a step: what placements choose from."""

from typing import NamedTuple

from services.scheduler.load import Load


class Candidate(NamedTuple):
    """`cached_tokens`: of the step's prompt, in the worker's cache as far as known."""

    load: Load
    cached_tokens: int


def used_blocks(load: Load) -> int:
    """KV blocks that are taken: set aside for what was placed there, or reported beyond that."""
    return load.capacity_blocks - load.free_blocks


def waiting(load: Load) -> int:
    """Steps in the worker's hands for which it has no slot."""
    return max(0, load.busy - load.slots)
