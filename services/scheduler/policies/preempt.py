"""Which running step gives way to a waiting one that is more urgent and finds no room.

Rule: one whose priority is lower by at least `preempt_gap`, and whose leaving makes room on its worker. Not one whose longest rest is over
within SHORT_S, nor one that has given way PREEMPTIONS_MAX times. Of several the least urgent; among equals the one whose context is
the shortest, because that is what is computed again (or found in a cache) when it goes on. Its output stays: it waits in its old place in
the queue and goes on from there.
Inputs: the waiting job, what runs on the ready workers, their rates. Constants, own assumptions: SHORT_S, about what giving way costs in
prefill; PREEMPTIONS_MAX, so that nobody is put off for ever.
"""

from collections.abc import Iterable

from services.scheduler.book import Step, Worker
from services.scheduler.load import Load
from services.scheduler.policies.reserve import blocks_needed
from services.scheduler.policies.score_finish import decode_s
from shared.contracts.steps import Job

Rank = tuple[int, int, str]
SHORT_S = 2.0
PREEMPTIONS_MAX = 2


def rank(step: Step) -> Rank:
    """The least gives way first."""
    return step.job.priority, step.job.prompt_tokens + step.produced, step.id


def gives_way(job: Job, running: Iterable[tuple[Step, Worker]], gap: int) -> Step | None:
    """The step to stop, or None. `running`: steps with their workers, all of which serve the job's model."""
    best: Rank | None = None
    victim = None
    for step, worker in running:
        mine = rank(step)
        urgent = step.job.priority > job.priority - gap or step.preemptions >= PREEMPTIONS_MAX
        if urgent or (best is not None and mine >= best):
            continue
        load = Load(worker)
        room = load.busy <= load.slots and blocks_needed(job, load.block_tokens, 0) <= load.free_blocks + step.blocks
        if room and decode_s(step.job.max_tokens - step.produced, load) > SHORT_S:
            best, victim = mine, step
    return victim
