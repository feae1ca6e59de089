"""What a worker says of itself: card, state, heartbeats."""

import asyncio
import logging

import msgspec
from tokenizers import Tokenizer

from services.worker.attempt import Attempt, Served
from services.worker.config import WorkerConfig
from services.worker.engines.base import EngineLoad
from services.worker.kv_relay import KvRelay
from services.worker.meter import Meter
from shared.contracts import subjects
from shared.contracts.fleet import Capacity, RunningStep, WorkerBeat, WorkerGone, WorkerRegistered, WorkerState
from shared.contracts.ids import StepId
from shared.contracts.streams import FLEET, MODELS_BUCKET
from shared.core.errors import LegatoError
from shared.core.machine import ENCODER
from shared.core.reading import NoMessage, read
from shared.runtime.bus import BusError
from shared.runtime.clock import now_ns

log = logging.getLogger(__name__)

GOOD_BYE_S = 5.0
PUBLISH_AGAIN_S = 1.0

_SAID: msgspec.json.Decoder[WorkerRegistered | WorkerGone] = msgspec.json.Decoder(WorkerRegistered | WorkerGone)
_IDLE = EngineLoad(blocks_used=0, slots_used=0, waiting=0)


class Presence:
    """Keeps the fleet informed. `load` first; `run` beside the work."""

    def __init__(self, relay: KvRelay, config: WorkerConfig, attempts: dict[StepId, Attempt]) -> None:
        self.state = WorkerState.LOADING
        self.served: Served | None = None
        self.epoch = 0
        self._relay = relay
        self._bus = relay.bus
        self._worker = relay.worker
        self._config = config
        self._engine = relay.engine
        self._attempts = attempts
        self._capacity = Capacity(blocks=0, slots=0)
        self._leaves_ns = 0

    async def recall(self) -> None:
        """Begin behind the last epoch that the fleet has heard of this worker: its clock may have been set back since."""
        try:
            record = await self._bus.last(FLEET.name, subjects.worker(self._worker))
            if record is not None:
                self.epoch = max(self.epoch, read(_SAID, record.data).epoch)
        except (BusError, NoMessage) as error:
            log.warning("the last epoch is not known", extra={"error": str(error)})

    async def load(self) -> None:
        """Start the engine and publish the files of its card. Raises LegatoError when it does not start."""
        self.served = None
        card, capacity, files = await self._engine.load()
        for name, content in files.items():
            await self._publish(name, content)
        tokenizer = Tokenizer.from_buffer(files[card.tokenizer])
        self._capacity = capacity
        self.served = Served(
            engine=self._engine,
            card=card,
            tokenizer=tokenizer,
            output_gap_s=self._config.output_gap_ms / 1e3,
            meter=Meter(),
            hardware=self._config.hardware,
        )

    async def _publish(self, name: str, content: bytes) -> None:
        """However long NATS is away: the engine is loaded, and must not be for that reason once more."""
        while True:
            try:
                if not await self._bus.has_object(MODELS_BUCKET, name):
                    await self._bus.put_object(MODELS_BUCKET, name, content)
            except BusError as error:
                log.warning("the model's files are not published yet", extra={"file": name, "error": str(error)})
                await asyncio.sleep(PUBLISH_AGAIN_S)
            else:
                return

    async def enter(self, state: WorkerState) -> None:
        """Change state and tell the fleet at once. With LOADING a new epoch begins: what this worker had before is lost, and the fleet
        knows it from the first heartbeat on."""
        if self.state is WorkerState.DRAINING:
            return
        self.state = state
        if state is WorkerState.LOADING:
            self.epoch, self._relay.seq = max(now_ns() // 1_000_000, self.epoch + 1), 0
        await self._tell()

    async def leave(self, leaves_ns: int) -> None:
        """Drain, for good; `leaves_ns`: when what is left will be handed back. It may be said again, for an earlier time."""
        self._leaves_ns = min(leaves_ns, self._leaves_ns or leaves_ns)
        self.state = WorkerState.DRAINING
        await self._tell()

    async def _tell(self) -> None:
        log.info("worker is %s", self.state)
        try:
            await self._register()
            await self._beat()
        except LegatoError as error:  # the next heartbeat says it again
            log.warning("state not told", extra={"state": self.state, "error": str(error)})

    async def run(self) -> None:
        """Beat for ever; register again at intervals, for listeners that came late."""
        loop = asyncio.get_running_loop()
        registered = loop.time()
        while True:
            await asyncio.sleep(self._config.beat_ms / 1e3)
            try:
                await self._beat()
                if loop.time() - registered > self._config.register_ms / 1e3:
                    registered = loop.time()
                    await self._register()
            except LegatoError as error:
                log.warning("heartbeat not sent", extra={"error": str(error)})

    async def good_bye(self) -> None:
        """The drain is complete."""
        gone = WorkerGone(worker=self._worker, cell=self._config.cell, epoch=self.epoch, time_ns=now_ns())
        try:
            async with asyncio.timeout(GOOD_BYE_S):
                await (await self._bus.store(subjects.worker(self._worker), ENCODER.encode(gone)))
        except (LegatoError, TimeoutError) as error:  # then the fleet learns it from the silence
            log.warning("left without good-bye", extra={"error": repr(error)})

    async def _register(self) -> None:
        if self.served is None:
            return
        registered = WorkerRegistered(
            time_ns=now_ns(),
            worker=self._worker,
            cell=self._config.cell,
            pool=self._config.pool,
            epoch=self.epoch,
            state=self.state,
            card=self.served.card,
            hardware=self._config.hardware,
            capacity=self._capacity,
            engine=self._config.engine,
            leaves_ns=self._leaves_ns,
        )
        await self._bus.store(subjects.worker(self._worker), ENCODER.encode(registered))

    async def _beat(self) -> None:
        load = await self._stats()
        beat = WorkerBeat(
            time_ns=now_ns(),
            worker=self._worker,
            cell=self._config.cell,
            epoch=self.epoch,
            state=self.state,
            blocks_used=load.blocks_used,
            slots_used=load.slots_used,
            waiting=load.waiting,
            running=[RunningStep(step, each.dispatch.attempt, each.output_tokens) for step, each in self._attempts.items()],
            kv_seq=self._relay.seq,
        )
        await self._bus.publish(subjects.beat(self._worker), ENCODER.encode(beat))

    async def _stats(self) -> EngineLoad:
        """The engine's load; a busy engine that answers late must not silence the heartbeat."""
        if self.state in (WorkerState.LOADING, WorkerState.DOWN):
            return _IDLE
        try:
            async with asyncio.timeout(self._config.beat_ms / 1e3):
                self._load = await self._engine.stats()
        except (LegatoError, TimeoutError) as error:
            log.info("engine load not known", extra={"error": str(error)})
        return self._load

    _load = _IDLE
