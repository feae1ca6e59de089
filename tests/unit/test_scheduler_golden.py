"""With its defaults the scheduler decides as it always has, to the byte."""

import hashlib
import random

import msgspec

from shared.contracts.envelope import Message
from shared.contracts.fleet import WorkerState
from shared.contracts.outcomes import Status
from shared.contracts.steps import StepDispatched
from tests.scheduler_world import MS, World, beat, cancel, ended, gone, matched, only, registered, routed

WORKERS = ["a", "b", "c", "d", "e"]
# It changes only with a rule that is meant to change what is decided; last with when prompts ahead are computed (score_finish.py).
DECIDED = "e5606ae059f0d08e9f5975112277f067e1c135058b5b9475e91858e3a90dbb60"


def everything_that_happens(seed: int, inputs: int) -> list[Message]:
    """A fleet in all kinds of trouble: what the scheduler makes of it."""
    world, draw = World(queue_max=12), random.Random(seed)
    outputs: list[Message] = []
    sent: list[StepDispatched] = []

    def joins(worker: str) -> list[Message]:
        rates = {"prefill_tokens_per_s": draw.uniform(500, 5_000), "decode_tokens_per_s": draw.uniform(20, 80)}
        return world.take(registered(worker, slots=draw.randint(1, 4), blocks=draw.randint(20, 90), **rates))

    for worker in WORKERS:
        outputs += joins(worker)
    for number in range(inputs):
        worker, kind = draw.choice(WORKERS), draw.random()
        if kind < 0.35:
            deadline_ns = world.now_ns + draw.randint(1, 30) * 500 * MS if draw.random() < 0.5 else 0
            step = routed(f"s{number}", priority=draw.choice([0, 0, 0, 20, -20]), prompt=draw.randint(1, 500), deadline_ns=deadline_ns)
            got = world.take(step)
        elif kind < 0.5:
            got = world.take(matched(f"s{max(0, number - draw.randint(0, 3))}", **{worker: draw.randint(1, 20)}))
        elif kind < 0.65 and sent:
            last = sent.pop(draw.randrange(len(sent)))
            status = draw.choice([Status.SUCCEEDED, Status.SUCCEEDED, Status.FAILED])
            got = world.take(ended(last.step, last.attempt, last.worker, status, retryable=status is Status.FAILED))
        elif kind < 0.9:
            known = world.state.workers.get(worker)  # type: ignore[call-overload]
            state = WorkerState.DRAINING if draw.random() < 0.02 else WorkerState.READY
            got = world.take(beat(worker, *(known.placed.items() if known else ()), state=state, blocks_used=draw.randint(0, 9)))
        elif kind < 0.92:
            got = world.take(cancel(f"s{max(0, number - draw.randint(0, 20))}"))
        elif kind < 0.93:
            got = world.take(gone(worker)) + joins(worker)
        else:
            got = world.wait(draw.choice([1, 10, 100, 400]))
        sent += only(StepDispatched, got)
        outputs += got
    return outputs + world.wait(30_000)


def test_the_defaults_decide_as_before() -> None:
    digest, dispatched = hashlib.sha256(), 0
    for seed in range(10):
        for output in everything_that_happens(seed, 300):
            digest.update(msgspec.json.encode(output))
            dispatched += isinstance(output, StepDispatched)
    assert dispatched > 500
    assert digest.hexdigest() == DECIDED
