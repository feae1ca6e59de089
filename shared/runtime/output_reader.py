"""Reads one step's output as one stream without gap or repeat, whatever attempts, connections and servers do meanwhile.

Rule: the stream OUT is the record, and sends on what it has stored, with its sequence and the one before it in the same output. What
follows on what was taken is taken at once; what is not above it was taken before; anything else shows a gap, which is read from the
stream. Silence makes the reader look there as well, so a message that was lost on the way is found again. What nobody stored is not heard.
"""

import asyncio
import logging
from collections import deque

import msgspec
import nats.errors
from nats.aio.subscription import Subscription

from shared.contracts import subjects
from shared.contracts.ids import StepId
from shared.contracts.outcomes import Status
from shared.contracts.output import Output
from shared.contracts.streams import OUT
from shared.core.errors import LegatoError
from shared.core.reading import NoMessage, read
from shared.runtime.bus import Bus, BusError
from shared.runtime.cursor import CursorError
from shared.runtime.nats_client import read_headers

log = logging.getLogger(__name__)

QUEUE_MAX = 1024  # messages received and not taken; more are dropped and read from the stream later
DOUBT_S = 0.01  # until the stream is read again when it did not yet have what was announced: another server of a cluster may lag behind
SILENCE_S = 0.5  # until the stream is asked whether something was missed; doubles with each time that nothing was
SILENCE_MAX_S = 2.0
CLOSE_TIMEOUT_S = 2.0

_DECODER = msgspec.json.Decoder(Output)


class OutputError(LegatoError):
    """The step's output can no longer be read as one stream: the record has a hole."""


class OutputReader:
    """Use as: `reader = OutputReader(bus, step)`, `await reader.open()` before the step is submitted, `async for output in reader`, and
    `await reader.close()`. The iteration ends after the output with `end`; the offsets of what it yields follow on without gap. It waits
    for ever: the caller sets the time limit, and may cancel a `take` and take again."""

    def __init__(self, bus: Bus, step: StepId) -> None:
        self._bus = bus
        self._subject = subjects.out(step)
        self._subscription: Subscription | None = None
        self._live: deque[tuple[bytes, bytes]] = deque()  # data and headers
        self._ready: deque[Output] = deque()  # bounded by the step's own length
        self._arrived = asyncio.Event()
        self._doubt = False  # the stream must be read before anything else is taken
        self._wait_s = SILENCE_S
        self._seq = 0  # of the stream: all of the output up to here was taken
        self._offset = 0  # tokens taken
        self._ended = False

    async def open(self, *, joining: bool = False) -> None:
        """Subscribe. `joining`: the step may have output already, read it first. Raises BusError."""
        try:
            self._subscription = await self._bus.listen(self._subject, self._on_message)
        except nats.errors.Error as error:
            raise BusError(f"cannot listen on {self._subject}: {error}") from error
        self._doubt = joining

    async def take(self) -> list[Output]:
        """The next outputs, at least one; all that are there. Empty only after the end. Raises OutputError."""
        while not self._ready and not self._ended:
            if not self._live and not self._doubt:
                await self._listen()
            self._read_live()
            if self._doubt:
                await self._consult()
        taken = list(self._ready)
        self._ready.clear()
        return taken

    def __aiter__(self) -> "OutputReader":
        return self

    async def __anext__(self) -> Output:
        if not self._ready:
            self._ready.extend(await self.take())
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.popleft()

    async def close(self) -> None:
        """Stop listening. Harmless when done twice."""
        subscription, self._subscription = self._subscription, None
        if subscription is None or self._bus.client.is_closed:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await subscription.unsubscribe()
        except (nats.errors.Error, TimeoutError) as error:
            log.debug("subscription left to the server", extra={"subject": self._subject, "error": str(error)})

    # --- the live subscription -----------------------------------------------------------------------------------------------

    def _on_message(self, _: str, __: str, data: bytes, headers: bytes) -> None:
        if len(self._live) < QUEUE_MAX:
            self._live.append((data, headers))
        else:
            self._doubt = True
        self._arrived.set()

    async def _listen(self) -> None:
        self._arrived.clear()
        try:
            async with asyncio.timeout(self._wait_s):
                await self._arrived.wait()
        except TimeoutError:
            self._doubt = True

    def _read_live(self) -> None:
        while self._live and not self._ended and not self._doubt:
            data, headers = self._live.popleft()
            place = _place(headers)
            if place is None:
                log.warning("output that no stream sent was passed over", extra={"subject": self._subject})
                continue
            before, seq = place
            if seq <= self._seq:
                continue
            if before <= self._seq:
                self._take_in(seq, data)
                self._wait_s = SILENCE_S
            else:
                self._doubt = True
                self._wait_s = DOUBT_S

    # --- the record ----------------------------------------------------------------------------------------------------------

    async def _consult(self) -> None:
        """Read what the stream has beyond what was taken. Where that was nothing, wait longer before the next look."""
        reached = self._seq
        self._doubt = False
        try:
            await self._read_stream()
        except asyncio.CancelledError:
            self._doubt = True
            raise
        except (BusError, CursorError, nats.errors.Error, TimeoutError) as error:
            if self._bus.client.is_closed:
                raise BusError(f"the connection was closed while {self._subject} was read") from error
            log.debug("output not readable now", extra={"subject": self._subject, "error": str(error)})
        self._wait_s = SILENCE_S if self._seq > reached else min(2 * self._wait_s, SILENCE_MAX_S)

    async def _read_stream(self) -> None:
        last = await self._bus.last(OUT.name, self._subject)
        if last is None or last.seq <= self._seq:
            return
        for record in [record async for record in self._bus.history(OUT.name, self._subject, self._seq)]:
            if not self._ended:
                self._take_in(record.seq, record.data)

    # --- both ----------------------------------------------------------------------------------------------------------------

    def _take_in(self, seq: int, data: bytes) -> None:
        """The next message of the record. Raises OutputError."""
        self._seq = seq
        try:
            output = read(_DECODER, data)
        except NoMessage as error:
            log.warning("unreadable output dropped", extra={"subject": self._subject, "error": str(error)})
            return
        if output.offset != self._offset:
            if output.end is None and output.offset + len(output.tokens) <= self._offset:
                return  # a second copy
            if not _closes(output):
                kind = "has other tokens" if output.offset < self._offset else "lacks tokens"
                raise OutputError(f"the record of {self._subject} {kind} from offset {min(output.offset, self._offset)}")
            output = msgspec.structs.replace(output, offset=self._offset)
        self._offset += len(output.tokens)
        self._ended = output.end is not None
        self._ready.append(output)


def _place(headers: bytes) -> tuple[int, int] | None:
    """The sequence of the output's message before this one (0: none is stored), and its own; None where no stream sent it."""
    named = read_headers(headers) if headers else {}
    try:
        return int(named["Nats-Last-Sequence"]), int(named["Nats-Sequence"])
    except (KeyError, ValueError):
        return None


def _closes(output: Output) -> bool:
    """An end that may come from somebody who did not see the tokens (expired, shed, cancelled): it stands where the tokens stopped."""
    return output.end is not None and output.end.status is not Status.SUCCEEDED and not output.tokens
