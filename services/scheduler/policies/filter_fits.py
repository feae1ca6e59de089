"""Which workers have room for a step.

Rule: a free slot, and free KV blocks for what the placement sets aside (reserve.py); prompt and planned output must fit the worker's whole
cache, too. Steps go to a worker only when they can start there: those who wait here can still go wherever room appears first, and a
higher priority can still pass them. Where steps may wait in engines (`queueing`), a place there is enough.
Inputs: the job, the worker's free slots and blocks after what was placed and what it reports. Constants: none.
"""

from services.scheduler.load import Load
from services.scheduler.policies.reserve import blocks_in_all, blocks_needed
from shared.contracts.steps import Job


def fits(job: Job, load: Load, cached_tokens: int) -> bool:
    """Whether the step can start on the worker now, or may wait there."""
    may_wait = load.places > load.slots
    return (
        load.busy < load.places
        and (may_wait or blocks_needed(job, load.block_tokens, cached_tokens) <= load.free_blocks)
        and could_ever_fit(job, load.block_tokens, load.capacity_blocks)
    )


def could_ever_fit(job: Job, block_tokens: int, capacity_blocks: int) -> bool:
    """Whether the worker, when empty, has room for the step."""
    return blocks_in_all(job, block_tokens) <= capacity_blocks
