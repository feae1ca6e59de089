"""Which workers have room for a step.

Rule: a free slot, and free KV blocks for what the placement sets aside (reserve.py); prompt and planned output must fit the worker's whole
cache, too. Steps go to a worker only when they can start there: those who wait here can still go wherever room appears first, and a
higher priority can still pass them. Where steps may wait in engines (`queueing`), a place there is enough.
Inputs: the job, the worker's free slots and blocks after what was placed and what it reports. Constants: none.
"""

from collections.abc import Callable

from services.scheduler.load import Load
from services.scheduler.policies.reserve import blocks_in_all
from shared.contracts.steps import Job


def fits(job: Job, load: Load, cached_tokens: int) -> bool:
    """Whether the step can start on the worker now, or may wait there."""
    return fitting(job)(load, cached_tokens)


def fitting(job: Job) -> Callable[[Load, int], bool]:
    """`fits` of one job, to ask about many workers."""
    in_all: dict[int, int] = {}  # by block size: mostly one

    def has_room(load: Load, cached_tokens: int) -> bool:
        blocks = in_all.get(load.block_tokens)
        if blocks is None:
            blocks = in_all[load.block_tokens] = blocks_in_all(job, load.block_tokens)
        if load.busy >= load.places or blocks > load.capacity_blocks:
            return False
        may_wait = load.places > load.slots
        return may_wait or max(0, blocks - cached_tokens // load.block_tokens) <= load.free_blocks

    return has_room


def could_ever_fit(job: Job, block_tokens: int, capacity_blocks: int) -> bool:
    """Whether the worker, when empty, has room for the step."""
    return blocks_in_all(job, block_tokens) <= capacity_blocks
