"""nats-py's client, made to read on behind whatever anybody publishes, and to hand messages over without a queue where they are many.

nats-py parses a message's headers, makes an object of it and puts that into a queue, from which a task of the subscription calls back.
With `listen`, a function is called as soon as the message is read, with its headers as they came. Both keep the order of arrival.
nats-py waits with asyncio.wait_for, which before Python 3.12 loses a cancellation that comes in the turn of the event loop in which what it
waits for is done (https://github.com/python/cpython/issues/96764); here it waits as Python 3.12 does.
See docs/decisions/0007-nats-py-with-a-short-cut.md.
"""

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import nats.errors
from nats.aio import client, subscription, transport
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.js import client as js_client
from nats.js import kv, object_store
from nats.protocol import parser

from shared.core.errors import LegatoError

ResultT = TypeVar("ResultT")

# In nats-py, \v and \f end a subject, too. For nats-server they are part of it, so such a message broke the connection, again and again.
parser.MSG_RE = re.compile(rb"\AMSG[ \t]+([^ \t\r\n]+)[ \t]+(\d+)[ \t]+(([^ \t\r\n]+)[ \t]+)?(\d+)\r\n")
parser.HMSG_RE = re.compile(rb"\AHMSG[ \t]+([^ \t\r\n]+)[ \t]+(\d+)[ \t]+(([^ \t\r\n]+)[ \t]+)?(\d+)[ \t]+(\d+)\r\n")


async def _wait_for(awaitable: Awaitable[ResultT], timeout: float | None) -> ResultT:
    async with asyncio.timeout(timeout):
        return await awaitable


WAITING = (client, subscription, transport, js_client, kv, object_store)  # nats-py's modules that call asyncio.wait_for
if sys.version_info < (3, 12):
    _asyncio = SimpleNamespace(**{**vars(asyncio), "wait_for": _wait_for})
    for module in WAITING:
        setattr(module, "asyncio", _asyncio)  # noqa: B010  mypy takes no namespace for a module

SCHEMES = ("nats", "tls", "ws", "wss")
BUFFERED_MAX = 2**20  # bytes in the socket's buffer, beyond which the client waits for the server

_LINE_ENDS = {ord("\r"): " ", ord("\n"): " "}

Take = Callable[[str, str, bytes, bytes], None]  # subject, reply, data, headers as they came (empty: none)


def check_scheme(url: str) -> None:
    """Raise LegatoError for addresses, separated by commas, that NATS is never reached at; nats-py would try for half a minute."""
    for each in url.split(","):
        scheme, separator, _ = each.strip().partition("://")
        if separator and scheme.lower() not in SCHEMES:
            raise LegatoError(f"NATS is not reached by {scheme[:40]!r}: write nats://HOST:PORT (or {', '.join(SCHEMES[1:])})")


def read_headers(raw: bytes) -> dict[str, str]:
    """Headers of a message by name, and `Status` and `Description` of what the server says itself. What is no header is passed over."""
    headers: dict[str, str] = {}
    lines = raw.decode(errors="replace").split("\r\n")
    status = lines[0][8:].strip()  # behind "NATS/1.0"
    if status:
        headers["Status"], _, description = status.partition(" ")
        if description:
            headers["Description"] = description
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name] = value.strip()
    return headers


def write_headers(headers: dict[str, str]) -> bytes:
    """What goes over the wire. Names are ours; line ends in values, which would end a header, become blanks."""
    lines = [f"{name}: {value.translate(_LINE_ENDS)}\r\n" for name, value in headers.items()]
    return f"NATS/1.0\r\n{''.join(lines)}\r\n".encode() if lines else b""


class Listening(Subscription):
    """A subscription whose messages are handed over."""

    def __init__(self, client: Client, number: int, subject: str, take: Take) -> None:
        super().__init__(client, number, subject)
        self.take = take


class NatsClient(Client):
    """nats-py 2.16 stops reading for good, and says nothing, at a message whose subject or reply is no UTF-8, or whose headers are none.
    JetStream would give such a message to every process that comes after."""

    def __init__(self) -> None:
        super().__init__()
        self._writing = False  # what is pending goes out at the end of this turn of the event loop

    async def listen(self, subject: str, take: Take) -> Subscription:
        """Subscribe. `take` must be quick, and keep what it takes within bounds: no limit of nats-py counts. What it raises is reported as
        an error of the connection. Raises nats.errors.ConnectionClosedError."""
        if self.is_closed or self.is_draining:
            raise nats.errors.ConnectionClosedError
        self._sid += 1
        listening = self._subs[self._sid] = Listening(self, self._sid, subject, take)
        await self._send_subscribe(listening)
        return listening

    async def send(self, subject: str, payload: bytes, reply: str = "", headers: bytes = b"") -> None:
        """As `publish`, with headers as `write_headers` gives them. Raises what that raises."""
        if not headers:
            await self.publish(subject, payload, reply)
            return
        size = len(payload)
        if self.is_closed or self.is_draining_pubs:
            raise nats.errors.ConnectionClosedError
        if not self.is_connected and size + self._pending_data_size > self._max_pending_size:
            raise nats.errors.OutboundBufferLimitError
        if size + len(headers) > self._max_payload:
            raise nats.errors.MaxPayloadError
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += size
        head = f"HPUB {subject} {reply} {len(headers)} {len(headers) + size}\r\n".encode()
        await self._send_command(b"%b%b%b\r\n" % (head, headers, payload))
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        """All that one turn of the event loop sends goes out at its end, without a task in between. When the socket takes no more, the
        flusher of nats-py waits for it, and whoever sends waits for that."""
        writer = getattr(self._transport, "_io_writer", None)
        if force_flush or writer is None or not self.is_connected or writer.transport.get_write_buffer_size() > BUFFERED_MAX:
            return await self._wait_for_socket(force_flush)
        if not self._writing:
            self._writing = True
            asyncio.get_running_loop().call_soon(self._write_pending)
        return None

    async def _wait_for_socket(self, force_flush: bool) -> Any:
        """As nats-py does, which passes over a cancellation meanwhile: here it counts."""
        task = asyncio.current_task()
        before = task.cancelling() if task is not None else 0
        flushed = await super()._flush_pending(force_flush)
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError
        return flushed

    def _write_pending(self) -> None:
        self._writing = False
        if self._pending and self.is_connected and self._transport is not None:
            try:
                self._transport.writelines(self._pending)
            except (OSError, RuntimeError):  # the connection broke: the read loop notices it, and what is pending goes out on the next one
                return
            self._pending, self._pending_data_size = [], 0

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        listening = self._subs.get(sid)
        if not isinstance(listening, Listening):
            await super()._process_msg(sid, subject, reply, data, headers)  # type: ignore[arg-type]
            return
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        try:
            listening.take(subject.decode(errors="replace"), reply.decode(errors="replace"), data, headers or b"")
        except Exception as error:  # as for a callback: the connection must go on
            await self._error_cb(error)

    def _build_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None) -> Any:
        return super()._build_message(sid, _readable(subject), _readable(reply), data, headers)

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        return (read_headers(headers) or None) if headers else None


def _readable(subject: bytes) -> bytes:
    """With U+FFFD, which no id of ours has, for what is no UTF-8."""
    return subject if subject.isascii() else subject.decode(errors="replace").encode()
