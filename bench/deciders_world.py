"""A fleet that serves agents, as its deciders hear of it: a stream of inputs from a seed, for bench/deciders.py.

One model. Each program (workflow) asks step after step, with a prompt that grows; programs of one kind share their first SHARED_TOKENS. A
worker's cache is the simulated engine's (shared/core/kv_cache.py); how long a step runs is drawn, not computed, so that the load is what it
is meant to be. Messages arrive at once, but for the registry's answer, which comes a millisecond later.
"""

import heapq
import random
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from services.kv_registry.paths import Paths, learn, shortened
from services.kv_registry.state import PromptSeen
from shared.contracts.envelope import Message
from shared.contracts.fleet import (
    Capacity,
    Hardware,
    ModelCard,
    QueueReported,
    RunningStep,
    WorkerBeat,
    WorkerRegistered,
    WorkerState,
)
from shared.contracts.ids import CellId, ModelName, StepId, TenantId, WorkerId, WorkflowId
from shared.contracts.kv import KvChanged, PrefixMatched
from shared.contracts.outcomes import FinishReason, Status, Usage
from shared.contracts.steps import (
    AttemptEnded,
    Job,
    Reservation,
    StepAdmitted,
    StepDispatched,
    StepRevoked,
    StepRouted,
    StepSettled,
    SubmissionRead,
)
from shared.core.kv_cache import Holding, KvCache

CELL, MODEL = CellId("local"), ModelName("m")
SECOND_NS = 1_000_000_000
RATE_PER_WORKER = 0.2  # steps a second
BEAT_NS, REGISTER_NS = 2 * SECOND_NS, 10 * SECOND_NS
SLOTS, BLOCK_TOKENS = 64, 64
KINDS, SHARED_TOKENS, TURN_TOKENS, CONTEXT_MAX = 8, 1_024, 256, 6_144
OUTPUT_TOKENS = 2_048  # at most
CARD = ModelCard(name=MODEL, tokenizer="t", vocab_size=128_000, context_tokens=131_072, block_tokens=BLOCK_TOKENS)


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """How loaded the fleet is."""

    name: str
    running: float  # share of all slots, at the beginning; as many steps end as come
    waiting: float = 0.0  # steps per worker that wait already
    urgent: float = 0.0  # share of the steps whose priority is 10
    blocks: int = 16_384  # of each worker's cache


class Decider(Protocol):
    """What takes the inputs."""

    wake_ns: int | None

    def fold(self, event: Message, now_ns: int) -> None: ...
    def take(self, event: Message, now_ns: int) -> list[Message]: ...
    def tick(self, now_ns: int) -> list[Message]: ...


class Program:
    """An agent between two steps. `tokens`: what has been said so far."""

    def __init__(self, number: int, kind: int, tokens: int) -> None:
        self.number = number
        self.kind = kind
        self.tokens = tokens

    def next_prompt(self) -> tuple[int, list[int]]:
        """Tokens and blocks of its next step."""
        self.tokens += TURN_TOKENS
        blocks = range(self.tokens // BLOCK_TOKENS)
        return self.tokens, [hash((self.kind if block < SHARED_TOKENS // BLOCK_TOKENS else -self.number, block)) for block in blocks]


class Engine:
    """One worker: what it runs and what it has cached."""

    def __init__(self, number: int, blocks: int, service_s: float) -> None:
        self.id = WorkerId(f"w{number:04d}")
        self.capacity = Capacity(blocks=blocks, slots=SLOTS, prefill_tokens_per_s=8_000.0, decode_tokens_per_s=20.0)
        self.cache = KvCache(blocks)
        self._tokens_per_s = OUTPUT_TOKENS / 2 / service_s
        self.running: dict[StepId, tuple[int, int, Holding]] = {}  # attempt, since when, its blocks
        self.seq = 0

    def hold(self, blocks: list[int]) -> Holding:
        matched = self.cache.match(blocks, len(blocks))
        holding = self.cache.hold(blocks, matched)
        if self.cache.grow(holding, len(blocks) - matched):
            for block in blocks[matched:]:
                self.cache.seal(holding, block)
        return holding

    def beat(self, now_ns: int) -> WorkerBeat:
        running = [
            RunningStep(step, attempt, min(OUTPUT_TOKENS - 1, int((now_ns - since_ns) / SECOND_NS * self._tokens_per_s)))
            for step, (attempt, since_ns, _) in self.running.items()
        ]
        return WorkerBeat(
            worker=self.id,
            cell=CELL,
            epoch=1,
            state=WorkerState.READY,
            blocks_used=self.cache.used,
            slots_used=len(running),
            running=running,
            kv_seq=self.seq,
        )

    def registration(self) -> WorkerRegistered:
        hardware = Hardware(kind="H100-SXM", usd_per_hour=2.5)
        return WorkerRegistered(
            worker=self.id,
            cell=CELL,
            pool="default",
            epoch=1,
            state=WorkerState.READY,
            card=CARD,
            capacity=self.capacity,
            hardware=hardware,
        )


class World:
    """`fill`, then `run`."""

    def __init__(self, workers: int, scenario: Scenario, deciders: dict[str, Any]) -> None:
        self._draw = random.Random(7)
        self._scenario = scenario
        self._deciders: dict[str, Decider] = deciders
        self._rate = RATE_PER_WORKER * workers
        self._service_s = scenario.running * SLOTS / RATE_PER_WORKER
        engines = [Engine(number, scenario.blocks, self._service_s) for number in range(workers)]
        self._engines = {engine.id: engine for engine in engines}
        self._programs: list[Program] = []
        self._born = self._steps = 0
        self._prompts: dict[StepId, tuple[Program, int, list[int]]] = {}  # of steps that have not ended
        self._paths = Paths()
        self._now_ns = 1_800_000_000 * SECOND_NS
        self._order = 0
        self._due: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []

    def fill(self) -> None:
        """Workers, what they run, and what waits: as facts that were decided before."""
        for engine in self._engines.values():
            self._register(engine)
            self._at(self._draw.uniform(0, BEAT_NS), self._beat, engine)
            self._tell(engine.beat(self._now_ns), "scheduler", "kv_registry", "autoscaler")
        for _ in range(int(SLOTS * self._scenario.running)):
            for engine in self._engines.values():
                routed = self._folded()
                dispatched = StepDispatched(step=routed.step, job=routed.job, cell=CELL, worker=engine.id, attempt=1)
                self._deciders["scheduler"].fold(dispatched, self._now_ns)
                self._start(routed.step, 1, engine)
        for _ in range(int(len(self._engines) * self._scenario.waiting)):
            self._folded()
        self._at(0, self._arrive)

    def run(self, steps: int) -> None:
        """Until so many more steps have come."""
        last = self._steps + steps
        while self._steps < last:
            wake_ns, name = min((decider.wake_ns or self._due[0][0], name) for name, decider in self._deciders.items())
            if wake_ns < self._due[0][0]:
                self._now_ns = max(self._now_ns, wake_ns)
                self._follow(self._deciders[name].tick(self._now_ns))
                continue
            self._now_ns, _, action, about = heapq.heappop(self._due)
            action(*about)

    def _at(self, after_ns: float, action: Callable[..., None], *about: Any) -> None:
        self._order += 1
        heapq.heappush(self._due, (self._now_ns + int(after_ns), self._order, action, about))

    def _tell(self, event: Message, *names: str) -> None:
        for name in names:
            self._follow(self._deciders[name].take(event, self._now_ns))

    def _follow(self, outputs: list[Message]) -> None:
        """What was decided goes to whom it concerns."""
        for output in outputs:
            if isinstance(output, StepAdmitted):
                self._tell(output, "router")
            elif isinstance(output, StepRouted):
                self._tell(output, "scheduler")
                self._tell(self._seen(output), "kv_registry")
            elif isinstance(output, PrefixMatched):
                self._at(1e6, self._tell, output, "scheduler")
            elif isinstance(output, QueueReported):
                self._tell(output, "admission", "router", "autoscaler")
            elif isinstance(output, StepDispatched):
                self._start(output.step, output.attempt, self._engines[output.worker])
            elif isinstance(output, StepRevoked):
                self._stop(self._engines[output.worker], output.step)

    # --- steps ---------------------------------------------------------------------------------------------------------------

    def _next(self) -> tuple[StepId, Program, int]:
        """One more step of a program that has none now."""
        if len(self._programs) < 32:
            for _ in range(64):
                self._born += 1
                self._programs.append(Program(self._born, self._born % KINDS, self._draw.randrange(SHARED_TOKENS, CONTEXT_MAX // 2)))
        index = self._draw.randrange(len(self._programs))
        self._programs[index], self._programs[-1] = self._programs[-1], self._programs[index]
        program = self._programs.pop()
        self._steps += 1
        step = StepId(f"s{self._steps:08d}")
        tokens, blocks = program.next_prompt()
        self._prompts[step] = program, tokens, blocks
        return step, program, tokens

    def _job(self, tokens: int) -> Job:
        return Job(model=MODEL, prompt_tokens=tokens, max_tokens=OUTPUT_TOKENS, deadline_ns=self._now_ns + 3_600 * SECOND_NS)

    def _folded(self) -> StepRouted:
        """A step that is in the queue already."""
        step, program, tokens = self._next()
        job, workflow, tenant = self._job(tokens), WorkflowId(f"w{program.number}"), TenantId("default")
        reservation = Reservation(tokens=tokens + job.max_tokens)
        admitted = StepAdmitted(step=step, workflow=workflow, tenant=tenant, job=job, reservation=reservation)
        routed = StepRouted(step=step, workflow=workflow, tenant=tenant, job=job, cell=CELL)
        self._deciders["admission"].fold(admitted, self._now_ns)
        self._deciders["scheduler"].fold(routed, self._now_ns)
        self._deciders["kv_registry"].fold(self._seen(routed), self._now_ns)
        return routed

    def _seen(self, routed: StepRouted) -> PromptSeen:
        new = shortened(self._paths, self._prompts[routed.step][2])
        learn(self._paths, new)
        return PromptSeen(step=routed.step, model=MODEL, blocks=new.blocks, after=new.after, block_tokens=BLOCK_TOKENS)

    def _arrive(self) -> None:
        step, program, tokens = self._next()
        urgent = self._draw.random() < self._scenario.urgent
        read = SubmissionRead(
            step=step,
            workflow=WorkflowId(f"w{program.number}"),
            model=MODEL,
            prompt_tokens=tokens,
            context_tokens=CARD.context_tokens,
            priority=10 if urgent else 0,
            timeout_ms=3_600_000,
        )
        self._tell(read, "admission")
        self._at(self._draw.expovariate(self._rate) * SECOND_NS, self._arrive)

    def _start(self, step: StepId, attempt: int, engine: Engine) -> None:
        engine.running[step] = attempt, self._now_ns, engine.hold(self._prompts[step][2])
        self._changed(engine)
        self._at(self._draw.expovariate(1 / self._service_s) * SECOND_NS, self._end, engine, step, attempt)

    def _stop(self, engine: Engine, step: StepId) -> None:
        running = engine.running.pop(step, None)
        if running is not None:
            engine.cache.release(running[2])
            self._changed(engine)

    def _end(self, engine: Engine, step: StepId, attempt: int) -> None:
        if step not in engine.running or engine.running[step][0] != attempt:
            return  # it was preempted
        self._stop(engine, step)
        program, tokens, _ = self._prompts.pop(step)
        if program.tokens < CONTEXT_MAX:
            self._programs.append(program)
        usage = Usage(prompt_tokens=tokens, output_tokens=200)
        ended = AttemptEnded(
            step=step,
            cell=CELL,
            worker=engine.id,
            attempt=attempt,
            status=Status.SUCCEEDED,
            finish_reason=FinishReason.STOP,
            usage=usage,
            total_ms=10_000.0,
            ttft_ms=300.0,
            usd=0.001,
        )
        self._tell(ended, "scheduler", "router", "admission")
        self._tell(StepSettled(step=step, status=Status.SUCCEEDED, attempt=attempt, usage=usage, usd=0.001), "admission")

    # --- workers -------------------------------------------------------------------------------------------------------------

    def _register(self, engine: Engine) -> None:
        self._tell(engine.registration(), "scheduler", "kv_registry", "router", "admission", "autoscaler")
        self._at(REGISTER_NS, self._register, engine)

    def _beat(self, engine: Engine) -> None:
        self._tell(engine.beat(self._now_ns), "scheduler", "kv_registry", "autoscaler")
        self._at(BEAT_NS, self._beat, engine)

    def _changed(self, engine: Engine) -> None:
        if events := engine.cache.take_events():
            engine.seq += 1
            self._tell(KvChanged(worker=engine.id, cell=CELL, epoch=1, seq=engine.seq, events=events), "kv_registry")
