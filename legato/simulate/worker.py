"""One worker of a thought fleet: the engine model on the world's clock, and what a worker says of itself.

The rules are those of services/worker, told again without I/O: an attempt resumes behind what is stored, a fence lets only the newest one
write, a take-over warms its cache first and then asks the other to stop. What is not played: detokenising, writing behind.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, cast

from legato.simulate.bus import Bus
from legato.simulate.engine import Engine
from legato.simulate.keeping import Keeping
from legato.simulate.steps import Step
from services.worker.meter import Meter
from shared.contracts.fleet import Capacity, Hardware, ModelCard, RunningStep, WorkerBeat, WorkerGone, WorkerRegistered, WorkerState
from shared.contracts.ids import CellId, StepId, WorkerId
from shared.contracts.kv import KvChanged, KvEvent, KvSnapshot
from shared.contracts.outcomes import FinishReason, Problem, Reason, Status, Usage
from shared.contracts.steps import AttemptEnded, StepDispatched, StepRevoked
from shared.core.batching import Batching, BatchingConfig, Refusal, Request
from shared.core.step_law import StepLaw

CELL = CellId("local")
WARMED_TOKENS_MAX = 32  # as services/worker/takeover.py: so few tokens are computed behind the seam
WARMINGS_MAX = 4
ENDS = {Reason.CANCELLED: Status.CANCELLED, Reason.DEADLINE_PASSED: Status.EXPIRED}


class Counts:
    """Of all workers, from the beginning. `prompt_tokens` of attempts that began to answer; `cached_tokens` of these."""

    def __init__(self) -> None:
        self.output_tokens = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.retractions = 0
        self.wasted_gpu_s = 0.0


class Fleet(Protocol):
    """What a worker must know of the others."""

    steps: dict[StepId, Step]
    workers: dict[WorkerId, "Worker"]
    counts: Counts


class Kind(NamedTuple):
    """What the workers of a pool have in common."""

    pool: str
    card: ModelCard
    hardware: Hardware
    capacity: Capacity
    engine: tuple[BatchingConfig, StepLaw]
    keeping: Keeping


class Attempt:
    """One attempt in a worker's hands. `warming`: how often the cache was warmed so far; 0: it decodes."""

    __slots__ = ("begun_ns", "dispatch", "first_ns", "mark", "request", "resumed", "step", "used_s", "warmings", "written")

    def __init__(self, dispatch: StepDispatched, step: Step, begun_ns: int) -> None:
        self.dispatch = dispatch
        self.step = step
        self.begun_ns = begun_ns
        self.first_ns = 0
        self.resumed = 0
        self.mark = 0.0
        self.used_s = 0.0  # of the engine's time, once it has ended
        self.warmings = 0
        self.written = 0  # tokens of the output that there are behind what it has written
        self.request: Request | None = None


class Worker:
    """Alive from its making until `die` or the end of its drain. `gone`: told then."""

    def __init__(self, name: WorkerId, kind: Kind, bus: Bus, fleet: Fleet, gone: Callable[["Worker"], None]) -> None:
        self.id = name
        self.kind = kind
        self.state = WorkerState.LOADING
        self.epoch = 0
        self.leaves_ns = 0
        self.attempts: dict[StepId, Attempt] = {}
        self._bus = bus
        self._heap = bus.heap
        self._fleet = fleet
        self._gone = gone
        self._life = 0  # what was said for an earlier life does not happen
        self._kv_seq = 0
        self._meter = Meter()
        self._engine = self._new()

    @property
    def batching(self) -> Batching:
        return self._engine.batching

    def _new(self) -> Engine:
        return Engine(self._heap, self.kind.engine, self._produced, self._stored)

    def _retire(self) -> None:
        """The engine is gone."""
        self._engine.stop()
        self._fleet.counts.retractions += self._engine.retractions
        self._engine.retractions = 0

    # --- what it says of itself --------------------------------------------------------------------------------------------------

    def enter(self, state: WorkerState) -> None:
        """Change state and tell everybody. With LOADING a new life begins."""
        self.state = state
        if state is WorkerState.LOADING:
            self.epoch += 1
            self._kv_seq = 0
            self._retire()
            self._engine = self._new()
        self.register()
        self.beat()

    def register(self) -> None:
        """Say what it is."""
        kind = self.kind
        self._bus.publish(
            WorkerRegistered(
                worker=self.id,
                cell=CELL,
                pool=kind.pool,
                epoch=self.epoch,
                state=self.state,
                card=kind.card,
                hardware=kind.hardware,
                capacity=kind.capacity,
                engine="simulated",
                leaves_ns=self.leaves_ns,
            )
        )

    def beat(self) -> None:
        """Say how it is."""
        self._engine.settle()
        batching = self.batching
        self._bus.publish(
            WorkerBeat(
                worker=self.id,
                cell=CELL,
                epoch=self.epoch,
                state=self.state,
                blocks_used=batching.cache.used,
                slots_used=batching.running,
                waiting=batching.waiting,
                running=[RunningStep(step, each.dispatch.attempt, each.step.tokens) for step, each in self.attempts.items()],
                kv_seq=self._kv_seq,
            )
        )

    def drain(self, leaves_ns: int) -> None:
        """Take no more, hand over what there is, be gone by `leaves_ns`."""
        self.leaves_ns = min(leaves_ns, self.leaves_ns or leaves_ns)
        self.enter(WorkerState.DRAINING)
        self._heap.at(self.leaves_ns, self._leave, self._life)
        self._leave_if_empty()

    def die(self) -> None:
        """Everything is lost, without a word."""
        self._engine.settle()
        self._life += 1
        self._retire()
        self.state = WorkerState.DOWN
        for attempt in self.attempts.values():
            self._lost(attempt)
        self.attempts.clear()

    def told_resync(self) -> None:
        """The registry has missed something."""
        self._bus.publish(KvSnapshot(worker=self.id, cell=CELL, epoch=self.epoch, seq=self._kv_seq, hashes=self.batching.cache.hashes()))

    # --- attempts ----------------------------------------------------------------------------------------------------------------

    def dispatched(self, dispatch: StepDispatched) -> None:
        """Begin an attempt, or say why not."""
        step = self._fleet.steps.get(dispatch.step)
        if step is None:
            return
        attempt = Attempt(dispatch, step, self._heap.now_ns)
        if self.state is not WorkerState.READY:
            self._failed(attempt, Reason.NO_CAPACITY, f"the worker is {self.state}")
        elif step.status is not None:
            self._report(attempt, step.status, step.problem)
        else:
            step.attempts += 1
            self.kind.keeping.begun(dispatch, self._heap.now_s)
            attempt.mark = self._meter.enter(self._heap.now_s)
            self.attempts[dispatch.step] = attempt
            self._ask(attempt, warm=bool(dispatch.relieves))

    def revoked(self, event: StepRevoked) -> None:
        """Stop an attempt because the scheduler says so."""
        self._engine.settle()
        attempt = self.attempts.get(event.step)
        if attempt is None or attempt.dispatch.attempt != event.attempt:
            return
        status = ENDS.get(event.reason)
        self._stop(attempt)
        if status is not None:
            problem = Problem(reason=event.reason, message=f"the step was {status}")
            self._report(attempt, status, problem)
            attempt.step.end(status, problem)
        elif event.reason in (Reason.PREEMPTED, Reason.HANDED_OVER):
            self._failed(attempt, event.reason, "another worker goes on")
        else:
            self._waste(attempt)
        self._leave_if_empty()

    def asked_to_stop(self, step: StepId) -> None:
        """Another worker goes on with the step."""
        self._engine.settle()
        attempt = self.attempts.get(step)
        if attempt is not None:
            self._stop(attempt)
            self._failed(attempt, Reason.HANDED_OVER, "another worker goes on")
            self._leave_if_empty()

    def _ask(self, attempt: Attempt, warm: bool) -> None:
        """Give the engine the attempt as far as it is known, or, to warm the cache, its context alone."""
        step = attempt.step
        context = step.call.prompt_tokens + step.tokens
        attempt.warmings += warm
        attempt.resumed = attempt.written = step.tokens
        output = 1 if warm else max(1, step.wanted - step.tokens)
        attempt.request = Request(attempt, context, output, step.chain, attempt.dispatch.job.priority)
        refusal = self._engine.submit(attempt.request)
        if refusal is not None:
            self._stop(attempt)
            reason = Reason.QUEUE_FULL if refusal is Refusal.QUEUE_FULL else Reason.CONTEXT_TOO_LONG
            self._failed(attempt, reason, "the engine does not take it", retryable=refusal is Refusal.QUEUE_FULL)

    def _warmed(self, attempt: Attempt) -> None:
        """The cache has the context that was asked for; what came meanwhile is little, or is warmed as well."""
        step = attempt.step
        if step.tokens - attempt.resumed > WARMED_TOKENS_MAX and attempt.warmings < WARMINGS_MAX:
            self._ask(attempt, warm=True)
            return
        other = self._fleet.workers.get(attempt.dispatch.relieves)
        if other is not None:
            other.asked_to_stop(step.id)
        attempt.warmings = 0
        if step.status is None:
            self._ask(attempt, warm=False)
        else:
            self._stop(attempt)
            self._report(attempt, step.status, step.problem)

    def _stop(self, attempt: Attempt) -> None:
        """Out of the engine and of the books."""
        if attempt.request is not None:
            self._engine.abort(attempt.request)
        self.attempts.pop(attempt.step.id, None)
        self._charge(attempt)

    def _lost(self, attempt: Attempt) -> None:
        self._charge(attempt)
        self._waste(attempt)

    def _waste(self, attempt: Attempt) -> None:
        self._fleet.counts.wasted_gpu_s += attempt.used_s * self.kind.hardware.count

    def _charge(self, attempt: Attempt) -> None:
        step, hardware = attempt.step, self.kind.hardware
        attempt.used_s = self._meter.leave(attempt.mark, self._heap.now_s)
        step.gpu_s += attempt.used_s * hardware.count
        step.usd += attempt.used_s * hardware.usd_per_hour / 3600
        if attempt.request is not None and attempt.request.cached_tokens >= 0:
            step.computed_tokens += attempt.request.prompt_tokens - found(attempt.request)

    def _failed(self, attempt: Attempt, reason: Reason, message: str, retryable: bool = True) -> None:
        self._report(attempt, Status.FAILED, Problem(reason=reason, message=message), retryable=retryable)

    def _report(self, attempt: Attempt, status: Status, problem: Problem | None, retryable: bool = False) -> None:
        dispatch, step, hardware = attempt.dispatch, attempt.step, self.kind.hardware
        cached = found(attempt.request)
        self._bus.publish(
            AttemptEnded(
                step=dispatch.step,
                workflow=dispatch.workflow,
                tenant=dispatch.tenant,
                cell=CELL,
                worker=self.id,
                attempt=dispatch.attempt,
                status=status,
                finish_reason=FinishReason.LENGTH if status is Status.SUCCEEDED else FinishReason.ERROR,
                usage=Usage(prompt_tokens=step.call.prompt_tokens, cached_tokens=cached, output_tokens=step.tokens),
                problem=problem,
                retryable=retryable,
                ttft_ms=(attempt.first_ns - attempt.begun_ns) / 1e6 if attempt.first_ns else 0.0,
                total_ms=(self._heap.now_ns - attempt.begun_ns) / 1e6,
                resumed_tokens=attempt.resumed,
                gpu_s=attempt.used_s * hardware.count,
                usd=attempt.used_s * hardware.usd_per_hour / 3600,
            )
        )
        attempt.request = None  # which knows the attempt: a circle for each call would keep the garbage collector busy

    # --- what the engine says ----------------------------------------------------------------------------------------------------

    def _stored(self, events: list[KvEvent]) -> None:
        self._kv_seq += 1
        self._bus.publish(KvChanged(worker=self.id, cell=CELL, epoch=self.epoch, seq=self._kv_seq, events=events))

    def _produced(self, request: Request, tokens: int, first_ns: int, last_ns: int) -> None:
        attempt = cast(Attempt, request.key)
        if attempt.request is not request or self.attempts.get(attempt.step.id) is not attempt:
            return
        if attempt.warmings:
            self._warmed(attempt)
        else:
            self._wrote(attempt, tokens, first_ns, last_ns)
        self._leave_if_empty()

    def _wrote(self, attempt: Attempt, tokens: int, first_ns: int, last_ns: int) -> None:
        step = attempt.step
        offset, attempt.written = attempt.written, attempt.written + tokens
        if not step.write(attempt.dispatch.attempt, offset, tokens, (first_ns, last_ns)):  # fenced: whoever wrote goes on
            self._stop(attempt)
            self._waste(attempt)
            return
        counts = self._fleet.counts
        counts.output_tokens += tokens
        if not attempt.first_ns:
            attempt.first_ns = first_ns
            step.cached_tokens = min(found(attempt.request), step.call.prompt_tokens)
            counts.prompt_tokens += step.call.prompt_tokens
            counts.cached_tokens += step.cached_tokens
        if step.tokens >= step.wanted:
            self._stop(attempt)
            self._keep(attempt)
            self._report(attempt, Status.SUCCEEDED, None)
            step.end(Status.SUCCEEDED, None)

    def _keep(self, attempt: Attempt) -> None:
        """Its KV, for the next step of its program."""
        keeping, dispatch, step = self.kind.keeping, attempt.dispatch, attempt.step
        if keeping.on and dispatch.workflow and attempt.request is not None:
            seconds = keeping.seconds(dispatch, self._heap.now_s, step.call is step.program.calls[-1])
            self.batching.keep(attempt.request, self._heap.now_ns + round(seconds * 1e9))

    # --- its end -----------------------------------------------------------------------------------------------------------------

    def _leave_if_empty(self) -> None:
        if self.state is WorkerState.DRAINING and not self.attempts:
            self._leave(self._life)

    def _leave(self, life: int) -> None:
        """Hand back what is left, and say good-bye."""
        if life != self._life or self.state is not WorkerState.DRAINING:
            return
        for attempt in list(self.attempts.values()):
            self._stop(attempt)
            self._failed(attempt, Reason.NO_CAPACITY, "the worker leaves")
        self._life += 1
        self._retire()
        self.state = WorkerState.DOWN
        self._bus.publish(WorkerGone(worker=self.id, cell=CELL, epoch=self.epoch))
        self._gone(self)


def found(request: Request | None) -> int:
    """Tokens of its context that it did not compute: they were in the engine's cache, or in the host's tier."""
    return max(0, request.cached_tokens) + request.host_cached_tokens if request is not None else 0
