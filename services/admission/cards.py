"""The model cards, beside the machine: submissions are tokenised before it sees them."""

import logging

import msgspec

from shared.contracts.fleet import ModelCard, WorkerGone, WorkerRegistered
from shared.contracts.ids import ModelName
from shared.contracts.streams import FLEET
from shared.contracts.subjects import WORKERS
from shared.core import catalogue
from shared.core.catalogue import Catalogue
from shared.core.reading import NoMessage, read
from shared.runtime.bus import Bus
from shared.runtime.clock import now_ns
from shared.runtime.cursor import Source

log = logging.getLogger(__name__)

_DECODER: msgspec.json.Decoder[WorkerRegistered | WorkerGone] = msgspec.json.Decoder(WorkerRegistered | WorkerGone)


class Cards:
    """`load` first, so that the models that are there are known; then `follow` for ever."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._fleet = Catalogue()
        self._swept_ns = 0

    def get(self, model: ModelName) -> ModelCard | None:
        known = self._fleet.models.get(model)
        return known.card if known else None

    @property
    def names(self) -> list[ModelName]:
        """The known models, sorted."""
        return sorted(self._fleet.models)

    async def load(self) -> None:
        async for record in self._bus.history(FLEET.name, WORKERS):
            self._fold(record.data)

    async def follow(self) -> None:
        cursor = await self._bus.read(Source(stream=FLEET.name, subjects=(WORKERS,), latest=True))
        try:
            while True:
                for record in await cursor.take(64):
                    self._fold(record.data)
        finally:
            await cursor.close()

    def _fold(self, data: bytes) -> None:
        try:
            event = read(_DECODER, data)
        except NoMessage as error:  # the machine reads it too, and parks it
            log.warning("registration not understood", extra={"error": str(error)})
            return
        now = now_ns()
        catalogue.fold(self._fleet, event, now)
        if now - self._swept_ns > catalogue.KEPT_NS // 60:
            self._swept_ns = now
            catalogue.expire(self._fleet, now)
