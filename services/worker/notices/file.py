"""A file that somebody puts where the worker looks, when no cloud tells: a script, an operator, a node agent. Pure.

It is empty, or `{"seconds": 30, "why": "the rack is moved"}`: so long after it was written, the machine is gone. Either may be left out.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from services.worker.notices.notice import SECOND_NS, Notice, Unreadable, quoted, told

CONTENT_BYTES_MAX = 4_096
_EXAMPLE = '{"seconds": 30, "why": "the rack is moved"}, or empty'


class _Said(msgspec.Struct, forbid_unknown_fields=True):
    seconds: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    why: Annotated[str, Meta(max_length=200)] = ""


def announced(content: bytes, written_ns: int, grace_s: float) -> Notice:
    """What the file says, that was written then. Raises Unreadable."""
    said = _Said()
    if content.strip():
        try:
            said = msgspec.json.decode(content, type=_Said)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"the notice is {quoted(content)} ({told(error)}); it should be like {_EXAMPLE}") from error
    seconds = grace_s if said.seconds is None else said.seconds
    why = " ".join("".join(char if char.isprintable() else " " for char in said.why).split())
    return Notice(why or "the notice file", written_ns + int(seconds * SECOND_NS))
