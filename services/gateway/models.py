"""Which models the fleet serves now, as its workers say: a small copy of their newest cards."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import msgspec
import nats.errors

from shared.contracts import subjects
from shared.contracts.fleet import ModelCard, WorkerGone, WorkerRegistered, WorkerState
from shared.contracts.ids import ModelName, WorkerId
from shared.contracts.streams import FLEET
from shared.core.catalogue import resolve
from shared.core.errors import LegatoError
from shared.core.reading import NoMessage, read
from shared.runtime.bus import Bus
from shared.runtime.clock import now_ns
from shared.runtime.cursor import Source

log = logging.getLogger(__name__)

OWNER = "legato"
RETRY_S = 1.0
LOAD_TIMEOUT_S = 2.0
CARDS_MAX = 1_024  # models whose card is kept; the one that was heard of longest ago goes

_DECODER: "msgspec.json.Decoder[WorkerRegistered | WorkerGone]" = msgspec.json.Decoder(WorkerRegistered | WorkerGone)


class _Known(msgspec.Struct, frozen=True):
    card: WorkerRegistered
    since_ns: int


class Models:
    """`follow` beside the work; `listing` at any time. A worker counts while it is ready and has repeated its card within `silent_ms`."""

    def __init__(self, bus: Bus, silent_ms: int, aliases: dict[str, str], clock: Callable[[], int] = now_ns) -> None:
        self._bus = bus
        self._aliases = aliases
        self._silent_ns = silent_ms * 1_000_000
        self._clock = clock
        self._known: dict[WorkerId, _Known] = {}
        self._cards: dict[ModelName, ModelCard] = {}  # the newest of each model, whoever serves it now
        self._loaded = asyncio.Event()

    async def card(self, model: str) -> ModelCard | None:
        """The newest card of a model, or of what an alias stands for; None: there is none. Waits for a moment at the beginning, when the
        cards are not read yet."""
        if not self._loaded.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOAD_TIMEOUT_S):
                    await self._loaded.wait()
        return self._cards.get(resolve(self._aliases, model))

    async def follow(self) -> None:
        """Read cards for ever, whatever NATS does meanwhile: the gateway works without them, only its list grows old."""
        while True:
            try:
                await self._follow()
            except (LegatoError, nats.errors.Error, TimeoutError) as error:
                log.warning("models not known now", extra={"error": str(error) or "no answer"})
                await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        async for record in self._bus.history(FLEET.name, subjects.WORKERS):
            self.take(record.data)
        self._loaded.set()
        cursor = await self._bus.read(Source(stream=FLEET.name, subjects=(subjects.WORKERS,), latest=True))
        try:
            while True:
                for record in await cursor.take(256):
                    self.take(record.data)
        finally:
            await cursor.close()

    def take(self, data: bytes) -> None:
        """One message of the fleet."""
        try:
            message = read(_DECODER, data)
        except NoMessage as error:
            log.warning("unreadable card skipped", extra={"error": str(error)})
            return
        known = self._known.get(message.worker)
        if known is not None and known.card.epoch > message.epoch:
            return
        if isinstance(message, WorkerRegistered):
            self._cards.pop(message.card.name, None)
            self._cards[message.card.name] = message.card
            if len(self._cards) > CARDS_MAX:
                del self._cards[next(iter(self._cards))]
            self._known[message.worker] = _Known(card=message, since_ns=known.since_ns if known else message.time_ns)
        else:
            self._known.pop(message.worker, None)

    def listing(self) -> list[dict[str, Any]]:
        """OpenAI's model objects, by name, aliases included. `created`, in seconds: when the first of its workers was heard of here."""
        oldest_ns = self._clock() - self._silent_ns
        self._known = {worker: known for worker, known in self._known.items() if known.card.time_ns >= oldest_ns}
        since: dict[str, int] = {}
        for known in self._known.values():
            if known.card.state is WorkerState.READY:
                name = known.card.card.name
                since[name] = min(known.since_ns // 10**9, since.get(name, known.since_ns // 10**9))
        since |= {alias: since[name] for alias, name in self._aliases.items() if name in since}
        return [{"id": name, "object": "model", "created": since[name], "owned_by": OWNER} for name in sorted(since)]
