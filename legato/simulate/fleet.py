"""The workers of a scenario: launched, loaded, beating, drained, killed, taken away, paid for; more or fewer as the autoscaler says."""

import math
from collections.abc import Callable
from random import Random
from typing import cast

from legato.simulate.bus import Bus, Inbox
from legato.simulate.keeping import Keeping
from legato.simulate.scenario import Pool, Scenario
from legato.simulate.steps import Step
from legato.simulate.worker import Counts, Kind, Worker
from shared.contracts.envelope import Message
from shared.contracts.fleet import Capacity, Hardware, ModelCard, ScaleTargetSet, WorkerState
from shared.contracts.ids import ModelName, StepId, WorkerId
from shared.contracts.kv import KvResyncRequested
from shared.contracts.steps import StepDispatched, StepRevoked
from shared.core.batching import BatchingConfig
from shared.core.eviction import Eviction
from shared.core.shipped_laws import law_called, named_engine
from shared.core.step_law import PRESETS, decode_ns, prefill_ns

DRAIN_S = 30.0  # a worker's drain_timeout_s
REGISTER_S = 10.0
PRESET_TOKENS = 131_072  # KV of a preset, which has no GPU to fill: 8,192 blocks of 16 tokens, as the simulated engine's default
PRESET_TOKEN_BYTES = 131_072.0  # of Llama 3 8B: two vectors of 8 heads of 128, 2 bytes each, in 32 layers


def kind_of(name: str, pool: Pool, block_tokens: int) -> Kind:
    """What the workers of a pool are. Raises LegatoError for an unknown law."""
    law = law_called(pool.law)
    named = None if pool.law in PRESETS else named_engine(pool.law)
    tokens, token_bytes = (named.blocks * 16, named.token_bytes) if named else (PRESET_TOKENS, PRESET_TOKEN_BYTES)
    blocks = pool.blocks or max(1, tokens // block_tokens)
    prefill, decode = prefill_ns(law, pool.tokens_per_step), decode_ns(law, 1, block_tokens)
    batching = BatchingConfig(
        blocks=blocks,
        block_tokens=block_tokens,
        slots=pool.slots,
        queue_max=pool.queue_max,
        tokens_per_step=max(pool.slots, pool.tokens_per_step),
        eviction=cast(Eviction, pool.eviction),
        host_blocks=pool.host_blocks,
        host_block_ns=round(token_bytes * block_tokens / pool.host_gb_per_s),
    )
    return Kind(
        pool=name,
        card=ModelCard(
            name=ModelName(pool.model), tokenizer="", vocab_size=1, context_tokens=blocks * block_tokens, block_tokens=block_tokens
        ),
        hardware=Hardware(kind=pool.law, usd_per_hour=pool.usd_per_hour, spot=pool.spot is not None),
        capacity=Capacity(
            blocks=blocks,
            slots=pool.slots,
            prefill_tokens_per_s=pool.tokens_per_step * 1e9 / prefill if prefill else 0.0,
            decode_tokens_per_s=1e9 / decode if decode else 0.0,
        ),
        engine=(batching, law),
        keeping=Keeping(pool.keep_s, pool.keep == "continuum", pool.tokens_per_step * 1e9 / prefill if prefill else 0.0),
    )


class Crew:
    """All workers, by pool. Also what dispatches and revocations reach them through."""

    def __init__(self, bus: Bus, scenario: Scenario, steps: dict[StepId, Step], draw: Random) -> None:
        self.steps = steps
        self.workers: dict[WorkerId, Worker] = {}
        self.paid: dict[WorkerId, float] = {}  # since when, in seconds
        self._spans: list[tuple[str, float, float]] = []  # pool, since when and until when, of those that are gone
        self.counts = Counts()
        self.arrived: Callable[[Worker], None] = lambda worker: None  # told of each worker when it is ready
        self._bus = bus
        self._heap = bus.heap
        self._scenario = scenario
        self._draw = draw
        self._kinds = {name: kind_of(name, pool, scenario.block_tokens) for name, pool in scenario.pools.items()}
        self._coming: dict[str, dict[WorkerId, None]] = {name: {} for name in scenario.pools}
        self._launched = dict.fromkeys(scenario.pools, 0)
        inbox = Inbox(self._told)
        bus.join(inbox, StepDispatched | StepRevoked | KvResyncRequested | ScaleTargetSet)

    def start(self) -> None:
        """Those that the scenario begins with are ready."""
        for name, pool in self._scenario.pools.items():
            for _ in range(pool.count):
                self._ready(self._named(name))

    def staying(self, pool: str) -> list[Worker]:
        """Workers of a pool that are not leaving, oldest first."""
        return [each for each in self.workers.values() if each.kind.pool == pool and each.state is not WorkerState.DRAINING]

    def coming(self) -> int:
        """Workers that were launched or are loading."""
        loading = sum(each.state in (WorkerState.LOADING, WorkerState.DOWN) for each in self.workers.values())
        return loading + sum(map(len, self._coming.values()))

    def usd_per_hour(self) -> float:
        """What all that are paid for cost now."""
        return sum(self._scenario.pools[name.rsplit("-", 1)[0]].usd_per_hour for name in self.paid)

    # --- messages ----------------------------------------------------------------------------------------------------------------

    def _told(self, message: Message) -> None:
        match message:
            case ScaleTargetSet():
                self.reach(message.pool, message.workers)
            case StepDispatched() if worker := self._up(message.worker):
                worker.dispatched(message)
            case StepRevoked() if worker := self._up(message.worker):
                worker.revoked(message)
            case KvResyncRequested() if worker := self._up(message.worker):
                worker.told_resync()

    def _up(self, name: WorkerId) -> Worker | None:
        """Who is there to hear; what a dead process was told is lost, as live."""
        worker = self.workers.get(name)
        return worker if worker is not None and worker.state is not WorkerState.DOWN else None

    # --- more and fewer ----------------------------------------------------------------------------------------------------------

    def reach(self, pool: str, target: int) -> None:
        """Make so many of a pool. Those that are on their way are given up first, then the youngest drain."""
        if pool not in self._kinds:
            return
        coming, staying = self._coming[pool], self.staying(pool)
        for _ in range(target - len(staying) - len(coming)):
            self.launch(pool)
        self.recall(pool, len(staying) + len(coming) - target)
        for worker in staying[max(0, target) :]:
            worker.drain(self._heap.now_ns + round(DRAIN_S * 1e9))

    def recall(self, pool: str, number: int) -> None:
        """Give up so many that are on their way, if there are, the youngest first."""
        coming = self._coming[pool]
        for _ in range(min(len(coming), number)):
            name, _ = coming.popitem()
            self._unpaid(name)

    def _named(self, pool: str) -> WorkerId:
        self._launched[pool] += 1
        return WorkerId(f"{pool}-{self._launched[pool]:05d}")

    def launch(self, pool: str) -> None:
        """One more, when its machine is there and its weights are loaded."""
        name = self._named(pool)
        self._coming[pool][name] = None
        self._heap.after(self._scenario.pools[pool].cold.provision_s, self._there, (pool, name))

    def _there(self, what: tuple[str, WorkerId]) -> None:
        """The machine is there, and paid for from now on."""
        pool, name = what
        if name in self._coming[pool]:
            cold = self._scenario.pools[pool].cold
            self.paid[name] = self._heap.now_s
            self._heap.after(cold.seconds - cold.provision_s, self._loaded, what)

    def _loaded(self, what: tuple[str, WorkerId]) -> None:
        pool, name = what
        if name in self._coming[pool]:
            del self._coming[pool][name]
            self._ready(name)

    def _ready(self, name: WorkerId) -> None:
        pool = name.rsplit("-", 1)[0]
        worker = Worker(name, self._kinds[pool], self._bus, self, self.gone)
        self.workers[name] = worker
        self.paid.setdefault(name, self._heap.now_s)
        worker.enter(WorkerState.LOADING)
        worker.enter(WorkerState.READY)
        first_s = self._draw.random() * self._scenario.beat_ms / 1e3
        self._heap.after(first_s, self._beat, (worker, self._heap.now_s))
        self.arrived(worker)

    def _beat(self, what: tuple[Worker, float]) -> None:
        """For as long as it is there; and its registration now and then."""
        worker, registered_s = what
        if self.workers.get(worker.id) is not worker:
            return
        if worker.state is not WorkerState.DOWN:
            worker.beat()
            if self._heap.now_s - registered_s >= REGISTER_S:
                worker.register()
                registered_s = self._heap.now_s
        self._heap.after(self._scenario.beat_ms / 1e3, self._beat, (worker, registered_s))

    # --- the end of a worker -----------------------------------------------------------------------------------------------------

    def gone(self, worker: Worker) -> None:
        """Its machine is given back."""
        self.workers.pop(worker.id, None)
        self._unpaid(worker.id)

    def _unpaid(self, name: WorkerId, at_s: float | None = None) -> None:
        since_s = self.paid.pop(name, math.nan)
        if not math.isnan(since_s):
            self._spans.append((name.rsplit("-", 1)[0], since_s, self._heap.now_s if at_s is None else at_s))

    def close(self, at_s: float) -> None:
        """The end of the run was then: all that are there are paid up to it, or to the end of the load where that is later."""
        for name in list(self.paid):
            self._unpaid(name, max(at_s, self._scenario.seconds))
        for worker in list(self.workers.values()):
            self.gone(worker)

    def paid_between(self, begin_s: float, end_s: float) -> tuple[float, float]:
        """Dollars and seconds of all workers within that time, once the run is closed."""
        usd = seconds = 0.0
        for pool, since_s, until_s in self._spans:
            within_s = max(0.0, min(until_s, end_s) - max(since_s, begin_s))
            seconds += within_s
            usd += within_s / 3600 * self._scenario.pools[pool].usd_per_hour
        return usd, seconds
