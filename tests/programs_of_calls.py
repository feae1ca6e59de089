"""Programs of calls on an engine that runs a few at once: who waits for how long, by an order alone."""

from bisect import insort

from services.scheduler import ordering
from services.scheduler.book import Step
from services.scheduler.ordering import Ledger
from services.scheduler.policies.order import QueueKey
from shared.contracts.envelope import Message
from shared.contracts.ids import StepId, TenantId, WorkflowId
from tests.candidates import job
from tests.scheduler_world import World

SECOND_NS = 1_000_000_000


def step(name: str, arrival: int, workflow: str = "", tenant: str = "") -> Step:
    return Step(
        id=StepId(name),
        job=job(1),
        workflow=WorkflowId(workflow),
        tenant=TenantId(tenant),
        trace="",
        arrival=arrival,
        routed_ns=0,
    )


def live(world: World, ms: int) -> list[Message]:
    """Time passes while all workers report what they have every half second."""
    outputs: list[Message] = []
    for _ in range(ms // 500):
        outputs += world.wait(500)
        for worker in list(world.state.workers.values()):
            outputs += world.beat(worker.id, *worker.placed.items(), epoch=worker.epoch)
    return outputs


def waits_s(order: str, programs: dict[str, list[int]], slots: int) -> dict[str, int]:
    """How long the calls of each program waited in all. `programs`: by name, the seconds that each of its calls runs. All begin at once; a
    call comes when the one before has ended; what ends and comes at the same time does so before the next ones begin."""
    ledger = Ledger(order=order)
    queue: list[QueueKey] = []
    calls: dict[str, Step] = {}
    came: dict[str, int] = {}
    running: dict[str, int] = {}  # until when
    waited = dict.fromkeys(programs, 0)
    left = {name: list(lengths) for name, lengths in programs.items()}
    coming, now_s, arrivals = list(programs), 0, 0
    while coming or running or queue:
        for program in coming:
            arrivals += 1
            calls[program], came[program] = step(program, arrivals, workflow=program), now_s
            ordering.join(ledger, calls[program], now_s * SECOND_NS)
            insort(queue, ordering.key_of(calls[program]))
        while queue and len(running) < slots:
            program = queue.pop(0)[2]
            ordering.leave(ledger, calls[program], now_s * SECOND_NS)
            waited[program] += now_s - came[program]
            running[program] = now_s + left[program][0]
        now_s = min(running.values())
        over = [program for program, until in running.items() if until == now_s]
        for program in over:
            del running[program]
            ordering.completed(ledger, calls[program], left[program].pop(0) * SECOND_NS)
        coming = [program for program in over if left[program]]
    return waited
