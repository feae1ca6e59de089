"""A scheduler's machine in a test's hand: its clock, and workers and steps made of plain messages."""

from typing import Any, TypeVar

import msgspec

from services.scheduler.config import SchedulerConfig
from services.scheduler.decide import MACHINE
from shared.contracts.envelope import Message, Tick
from shared.contracts.fleet import Capacity, ModelCard, RunningStep, WorkerBeat, WorkerGone, WorkerRegistered, WorkerState
from shared.contracts.ids import CellId, ModelName, StepId, TenantId, WorkerId, WorkflowId
from shared.contracts.kv import PrefixMatched
from shared.contracts.outcomes import Problem, Reason, Status, Usage
from shared.contracts.steps import AttemptEnded, CancelRequested, Job, StepDispatched, StepRouted
from shared.core.machine import step as take

MS = 1_000_000
CELL = CellId("local")
MODEL = ModelName("m")
CARD = ModelCard(name=MODEL, tokenizer="t", vocab_size=100, context_tokens=8192, block_tokens=16)

MessageT = TypeVar("MessageT", bound=Message)


class World:
    """`take` gives the machine one input and returns what it decides; `wait` lets time pass with all the ticks that it asks for."""

    def __init__(self, **config: Any) -> None:
        self.config = SchedulerConfig(**config)
        self.state = MACHINE.start(self.config)
        self.now_ns = 1_000_000 * MS
        self.beats: dict[str, WorkerBeat] = {}

    def take(self, event: Message) -> list[Message]:
        return take(MACHINE, self.state, event, self.now_ns, self.config)

    def wait(self, ms: float) -> list[Message]:
        """Only time passes. What was decided meanwhile; raises AssertionError when the machine asks for ticks without end."""
        end, outputs, ticks = self.now_ns + int(ms * MS), [], 0
        while (wake := MACHINE.wake_ns(self.state, self.config)) is not None and wake <= end:
            self.now_ns = max(wake, self.now_ns)
            outputs += self.take(Tick())
            ticks += 1
            assert ticks < 100 + ms, "the machine never sleeps"
        self.now_ns = end
        return outputs

    def live(self, ms: int, *silent: str) -> list[Message]:
        """Time passes while all workers but the `silent` repeat their last heartbeat every 500 ms."""
        outputs = []
        for _ in range(ms // 500):
            outputs += self.wait(500)
            for worker, beat in list(self.beats.items()):
                if worker not in silent:
                    outputs += self.take(beat)
        return outputs + self.wait(ms % 500)

    def join(self, worker: str, **about: Any) -> list[Message]:
        """A worker registers and beats."""
        return self.take(registered(worker, **about)) + self.beat(worker, epoch=about.get("epoch", 1))

    def beat(self, worker: str, *running: tuple[str, int], **about: Any) -> list[Message]:
        self.beats[worker] = beat(worker, *running, **about)
        return self.take(self.beats[worker])

    def route(self, step: str, **about: Any) -> list[Message]:
        return self.take(routed(step, **about))

    def leave(self, worker: str, in_s: float = 30.0, **about: Any) -> list[Message]:
        """The worker drains, and hands back what it has after so long."""
        leaves_ns = self.now_ns + int(in_s * 1e9)
        return self.take(registered(worker, state=WorkerState.DRAINING, leaves_ns=leaves_ns, **about))

    def end(self, dispatched: StepDispatched, status: Status = Status.SUCCEEDED, **about: Any) -> list[Message]:
        return self.take(ended(dispatched.step, dispatched.attempt, dispatched.worker, status, **about))

    def reload(self) -> None:
        """As a restart does: the state goes through its encoding."""
        copy = msgspec.json.decode(msgspec.json.encode(self.state), type=MACHINE.state)
        assert copy == self.state
        self.state = copy


def only(kind: type[MessageT], outputs: list[Message]) -> list[MessageT]:
    return [output for output in outputs if type(output) is kind]  # type: ignore[misc]


def one(kind: type[MessageT], outputs: list[Message]) -> MessageT:
    [output] = only(kind, outputs)
    return output


def routed(
    step: str,
    *,
    model: str = MODEL,
    prompt: int = 100,
    output: int = 10,
    priority: int = 0,
    deadline_ns: int = 0,
    workflow: str = "w",
    tenant: str = "t",
) -> StepRouted:
    job = Job(model=ModelName(model), prompt_tokens=prompt, max_tokens=output, priority=priority, deadline_ns=deadline_ns)
    return StepRouted(step=StepId(step), workflow=WorkflowId(workflow), tenant=TenantId(tenant), trace="00-trace", job=job, cell=CELL)


def registered(
    worker: str,
    *,
    epoch: int = 1,
    slots: int = 4,
    blocks: int = 1000,
    state: WorkerState = WorkerState.READY,
    leaves_ns: int = 0,
    **capacity: float,
) -> WorkerRegistered:
    return WorkerRegistered(
        worker=WorkerId(worker),
        cell=CELL,
        pool="p",
        epoch=epoch,
        state=state,
        card=CARD,
        capacity=Capacity(blocks=blocks, slots=slots, **capacity),
        leaves_ns=leaves_ns,
    )


def beat(worker: str, *running: tuple[str, int], epoch: int = 1, state: WorkerState = WorkerState.READY, **about: int) -> WorkerBeat:
    return WorkerBeat(
        worker=WorkerId(worker),
        cell=CELL,
        epoch=epoch,
        state=state,
        running=[RunningStep(StepId(step), attempt, 1) for step, attempt in running],
        slots_used=about.pop("slots_used", len(running)),
        **about,
    )


def gone(worker: str, epoch: int = 1) -> WorkerGone:
    return WorkerGone(worker=WorkerId(worker), cell=CELL, epoch=epoch)


def matched(step: str, **blocks: int) -> PrefixMatched:
    cached = {WorkerId(worker): number for worker, number in blocks.items()}
    return PrefixMatched(step=StepId(step), cell=CELL, model=MODEL, blocks=cached, block_tokens=16)


def cancel(step: str) -> CancelRequested:
    return CancelRequested(step=StepId(step))


def ended(
    step: str,
    attempt: int,
    worker: str,
    status: Status = Status.SUCCEEDED,
    *,
    retryable: bool = False,
    reason: Reason = Reason.ENGINE_REJECTED,
    output_tokens: int = 0,
) -> AttemptEnded:
    problem = Problem(reason=reason, message="the engine refused") if status is Status.FAILED else None
    return AttemptEnded(
        step=StepId(step),
        cell=CELL,
        worker=WorkerId(worker),
        attempt=attempt,
        status=status,
        problem=problem,
        retryable=retryable,
        usage=Usage(output_tokens=output_tokens),
    )
