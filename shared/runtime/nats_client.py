"""nats-py's client, made to read on behind whatever anybody publishes, and to hand messages over without a queue where they are many.

nats-py parses a message's headers, makes an object of it and puts that into a queue, from which a task of the subscription calls back.
With `listen`, a function is called as soon as the message is read, with its headers as they came. Both keep the order of arrival.
See docs/decisions/0007-nats-py-with-a-short-cut.md.
"""

import re
from collections.abc import Callable
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.protocol import parser

# In nats-py, \v and \f end a subject, too. For nats-server they are part of it, so such a message broke the connection, again and again.
parser.MSG_RE = re.compile(rb"\AMSG[ \t]+([^ \t\r\n]+)[ \t]+(\d+)[ \t]+(([^ \t\r\n]+)[ \t]+)?(\d+)\r\n")
parser.HMSG_RE = re.compile(rb"\AHMSG[ \t]+([^ \t\r\n]+)[ \t]+(\d+)[ \t]+(([^ \t\r\n]+)[ \t]+)?(\d+)[ \t]+(\d+)\r\n")

Take = Callable[[str, str, bytes, bytes], None]  # subject, reply, data, headers as they came (empty: none)


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


class Listening(Subscription):
    """A subscription whose messages are handed over."""

    def __init__(self, client: Client, number: int, subject: str, take: Take) -> None:
        super().__init__(client, number, subject)
        self.take = take


class NatsClient(Client):
    """nats-py 2.16 stops reading for good, and says nothing, at a message whose subject or reply is no UTF-8, or whose headers are none.
    JetStream would give such a message to every process that comes after."""

    async def listen(self, subject: str, take: Take) -> Subscription:
        """Subscribe. `take` must be quick, and keep what it takes within bounds: no limit of nats-py counts. What it raises is reported as
        an error of the connection. Raises nats.errors.ConnectionClosedError."""
        if self.is_closed or self.is_draining:
            raise nats.errors.ConnectionClosedError
        self._sid += 1
        listening = self._subs[self._sid] = Listening(self, self._sid, subject, take)
        await self._send_subscribe(listening)
        return listening

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
