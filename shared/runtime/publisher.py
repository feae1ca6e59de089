"""Publishing to JetStream with acknowledgement, many messages in flight at once.

One inbox serves all acknowledgements of a connection, and one sweep re-sends what has not been acknowledged: after a broken connection
or a restart of the server nothing is lost, and the message id keeps a second copy out of the stream. nats-server looks at `expect_last`
before it looks for copies, though: a refused message may be the copy of one that was stored, and whose acknowledgement was lost.
"""

import asyncio
import logging
from dataclasses import dataclass

import msgspec
import nats.errors

from shared.contracts.subjects import stored_as
from shared.core.errors import LegatoError
from shared.runtime.clock import monotonic_s
from shared.runtime.nats_client import NatsClient, write_headers
from shared.runtime.tasks import end

log = logging.getLogger(__name__)

IN_FLIGHT_MAX = 8192
RESEND_AFTER_S = 2.0  # doubles with each time, so that a server which is merely slow is not given more and more to do
RESEND_DOUBLINGS_MAX = 3
GIVE_UP_AFTER_S = 120.0  # equals the streams' duplicate window: later, a copy would no longer be noticed
SWEEP_S = 0.25
HEADERS_MAX_BYTES = 4_096  # room for them below the server's limit on a message, at which it closes the connection for good
CHECK_TIMEOUT_S = 2.0
MSG_ID = "Nats-Msg-Id"
_WRONG_LAST_SEQUENCE = (10071, 10164)  # nats-server's error codes: another writer was there first


class StoreError(LegatoError):
    """JetStream refused a message, or nobody acknowledged it in time."""


class WrongLastSequence(StoreError):
    """The subject has moved on: somebody else wrote to it since `expect_last` was read."""


class TooLarge(StoreError):
    """The message is over the server's limit (`max_payload`): it can never be stored."""


class StreamAbsent(StoreError):
    """No stream listens on that subject."""


class _Error(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class Ack(msgspec.Struct):
    """JetStream's acknowledgement."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    error: _Error | None = None


@dataclass(slots=True)
class _Pending:
    subject: str
    data: bytes
    msg_id: str
    headers: bytes  # as they go over the wire
    future: asyncio.Future[Ack]
    first: float
    sent: float = 0.0  # 0: again at once
    times: int = 0

    @property
    def due(self) -> float:
        """When it must go out again."""
        return self.sent + RESEND_AFTER_S * 2 ** min(self.times - 1, RESEND_DOUBLINGS_MAX) if self.sent else 0.0

    def again_soon(self) -> None:
        self.sent, self.times = monotonic_s() - RESEND_AFTER_S + SWEEP_S, 1


class Publisher:
    """All JetStream publishing of one connection. Call `start` once; `store` thereafter."""

    def __init__(self, client: NatsClient) -> None:
        self._client = client
        self._pending: dict[str, _Pending] = {}
        self._count = 0
        self._prefix = client.new_inbox()
        self._decoder = msgspec.json.Decoder(Ack)
        self._sweeper: asyncio.Task[None] | None = None
        self._checks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Event()
        self._room.set()

    async def start(self) -> None:
        await self._client.listen(f"{self._prefix}.*", self._on_ack)
        self._sweeper = asyncio.create_task(self._sweep(), name="publisher-sweep")

    async def stop(self) -> None:
        """Stop re-sending; what is still pending fails with StoreError."""
        await end([*self._checks, *([self._sweeper] if self._sweeper is not None else [])])
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_exception(StoreError(f"closed before {pending.subject} was acknowledged"))
                pending.future.exception()  # whoever waits sees it; nobody else need be warned
        self._pending.clear()

    @property
    def message_bytes_max(self) -> int:
        """What one message may hold on this server."""
        return self._client.max_payload - HEADERS_MAX_BYTES

    async def store(
        self, subject: str, data: bytes, *, msg_id: str = "", trace: str = "", expect_last: int | None = None
    ) -> asyncio.Future[Ack]:
        """Send one message; the returned future gives the acknowledgement, or raises StoreError.

        Waits only while `IN_FLIGHT_MAX` messages are unacknowledged, and raises StoreError when that does not change; raises TooLarge.
        `expect_last` is the stream sequence that must be the subject's last (0: none yet), else the future raises WrongLastSequence.
        """
        if len(data) > self.message_bytes_max:
            raise TooLarge(f"message of {len(data)} bytes on {subject} is over the server's limit")
        if len(self._pending) >= IN_FLIGHT_MAX:
            await self._wait_for_room(subject)
        headers: dict[str, str] = {}
        if msg_id:
            headers[MSG_ID] = msg_id
        if trace:
            headers["traceparent"] = trace
        if expect_last is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(expect_last)
        self._count += 1
        token = str(self._count)
        future: asyncio.Future[Ack] = asyncio.get_running_loop().create_future()
        pending = _Pending(subject, data, msg_id, write_headers(headers), future, monotonic_s())
        self._pending[token] = pending
        await self._send(token, pending)
        return future

    async def store_all(self, futures: list[asyncio.Future[Ack]]) -> None:
        """Wait for acknowledgements; raises the first StoreError."""
        for future in futures:
            await future

    def resend_soon(self) -> None:
        """After a reconnect: whatever is pending goes out again with the next sweep."""
        for pending in self._pending.values():
            pending.sent, pending.times = 0.0, 0

    async def _wait_for_room(self, subject: str) -> None:
        try:
            async with asyncio.timeout(GIVE_UP_AFTER_S):
                while len(self._pending) >= IN_FLIGHT_MAX:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError as error:
            raise StoreError(f"{IN_FLIGHT_MAX} messages wait for their acknowledgement, none was taken on {subject}") from error

    async def _send(self, token: str, pending: _Pending) -> None:
        pending.sent, pending.times = monotonic_s(), pending.times + 1
        try:
            await self._client.send(pending.subject, pending.data, f"{self._prefix}.{token}", pending.headers)
        except nats.errors.OutboundBufferLimitError:
            log.debug("outbound buffer full, will send again", extra={"subject": pending.subject})
        except nats.errors.Error as error:
            self._finish(token, StoreError(f"cannot publish on {pending.subject}: {error}"))

    def _finish(self, token: str, outcome: Ack | StoreError) -> None:
        pending = self._pending.pop(token, None)
        if len(self._pending) < IN_FLIGHT_MAX:
            self._room.set()
        if pending is None or pending.future.done():  # answered already, or whoever waited has gone
            return
        if isinstance(outcome, Ack):
            pending.future.set_result(outcome)
        else:
            pending.future.set_exception(outcome)
            pending.future.exception()  # marks it as seen: some futures are waited for much later

    def _on_ack(self, subject: str, _: str, data: bytes, __: bytes) -> None:
        token = subject.rpartition(".")[2]
        pending = self._pending.get(token)
        if pending is None:
            return
        if not data:  # 503: no stream listens; after a server's restart that passes
            if monotonic_s() - pending.first > RESEND_AFTER_S * 5:
                self._finish(token, StreamAbsent(f"no stream takes messages on {pending.subject}"))
            else:
                pending.again_soon()
            return
        ack = self._decoder.decode(data)
        if ack.error is None:
            self._finish(token, ack)
        elif ack.error.err_code in _WRONG_LAST_SEQUENCE:
            checking = asyncio.create_task(self._check_refusal(token, pending, ack), name="publisher-check")
            self._checks.add(checking)
            checking.add_done_callback(self._checks.discard)
        elif ack.error.code == 503:
            pending.again_soon()
        else:
            self._finish(token, StoreError(f"JetStream refused {pending.subject}: {ack.error.description}"))

    async def _check_refusal(self, token: str, pending: _Pending, refusal: Ack) -> None:
        """Whether the subject's last message, which the expectation missed, is this one. Where that cannot be told now, it is sent again
        and refused again."""
        try:
            request = msgspec.json.encode({"last_by_subj": stored_as(pending.subject)})
            last = await self._client.request(f"$JS.API.DIRECT.GET.{refusal.stream}", request, timeout=CHECK_TIMEOUT_S)
        except (nats.errors.Error, TimeoutError) as error:
            log.info("refusal not understood yet", extra={"subject": pending.subject, "error": repr(error)})
            pending.again_soon()
            return
        stored, mine = last.headers or {}, pending.msg_id
        if mine and stored.get(MSG_ID) == mine:
            self._finish(token, Ack(stream=refusal.stream, seq=int(stored["Nats-Sequence"]), duplicate=True))
        else:
            described = refusal.error.description if refusal.error is not None else ""
            self._finish(token, WrongLastSequence(f"{pending.subject}: {described}"))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await self._send_again()
            except Exception:  # without the sweep, whoever waits would wait for ever
                log.exception("a sweep failed")

    async def _send_again(self) -> None:
        now = monotonic_s()
        for token, pending in list(self._pending.items()):
            if now - pending.first > GIVE_UP_AFTER_S:  # wherever NATS is
                self._finish(token, StoreError(f"no acknowledgement on {pending.subject} for {GIVE_UP_AFTER_S:.0f} s"))
            elif self._client.is_connected and now > pending.due:
                await self._send(token, pending)
