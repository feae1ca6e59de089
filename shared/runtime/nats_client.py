"""nats-py's client, made to read on behind whatever anybody publishes."""

import re
from typing import Any

from nats.aio.client import Client
from nats.protocol import parser

# In nats-py, \v and \f end a subject, too. For nats-server they are part of it, so such a message broke the connection, again and again.
parser.MSG_RE = re.compile(rb"\AMSG[ \t]+([^ \t\r\n]+)[ \t]+(\d+)[ \t]+(([^ \t\r\n]+)[ \t]+)?(\d+)\r\n")
parser.HMSG_RE = re.compile(rb"\AHMSG[ \t]+([^ \t\r\n]+)[ \t]+(\d+)[ \t]+(([^ \t\r\n]+)[ \t]+)?(\d+)[ \t]+(\d+)\r\n")


class NatsClient(Client):
    """nats-py 2.16 stops reading for good, and says nothing, at a message whose subject or reply is no UTF-8, or whose headers are none.
    JetStream would give such a message to every process that comes after."""

    def _build_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None) -> Any:
        return super()._build_message(sid, _readable(subject), _readable(reply), data, headers)

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        try:
            return await super()._process_headers(headers)
        except (IndexError, UnicodeDecodeError):
            return None


def _readable(subject: bytes) -> bytes:
    """With U+FFFD, which no id of ours has, for what is no UTF-8."""
    return subject if subject.isascii() else subject.decode(errors="replace").encode()
