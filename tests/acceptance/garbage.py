"""Malformed input for every door: what to send, and a wire to NATS on which nothing is too odd to be sent."""

import asyncio
import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

LIMIT_S = 20.0

# The fleet is one for all examples, on purpose: what one leaves behind, the next must bear.
FUZZ = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)

DEEP = b'{"x": ' + b"[" * 50_000 + b"]" * 50_000 + b', "type": "tick"}'
# Bytes that are no message to anybody, each for another reason.
NO_MESSAGES = [
    b"",
    b"\xff\xfe\x00",
    b"{",
    b"null",
    b"[]",
    b"{}",
    b'{"type": "nobody.knows"}',
    b'{"type": 7}',
    b'{"type": "' + b"x" * 1_500_000 + b'"}',
    b'{"type": "tick", "time_ns": 1e999}',
    b'{"type": "tick", "step": "\\ud800"}',
    b'{"type": "tick", "step": "\xff"}',
    b"\xef\xbb\xbf{}",
    DEEP,
]

# A submission with every field.
GOOD: dict[str, Any] = {
    "model": "sim-small",
    "messages": [{"role": "user", "content": "Hello", "name": "ada"}],
    "sampling": {
        "max_tokens": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "min_p": 0.1,
        "seed": 7,
        "stop": ["x"],
        "stop_token_ids": [2],
        "min_tokens": 0,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.1,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": 1.0},
        "logprobs": 1,
        "ignore_eos": True,
    },
    "key": "sha256:00",
    "workflow": "w",
    "priority": 0,
    "timeout_ms": 20_000,
    "user": "ada",
}


def places(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value within a document."""
    pairs = document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    for key, value in pairs:
        yield (*at, key)
        yield from places(value, (*at, key))


def replaced(document: dict[str, Any], value: st.SearchStrategy[Any] = JSON) -> st.SearchStrategy[dict[str, Any]]:
    """The document with one of its values, at any depth, replaced."""

    def replace(drawn: tuple[tuple[Any, ...], Any]) -> dict[str, Any]:
        path, new = drawn
        copy: dict[str, Any] = json.loads(json.dumps(document))
        inner: Any = copy
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = new
        return copy

    return st.tuples(st.sampled_from(list(places(document))), value).map(replace)


def encoded(document: Any) -> bytes:
    return json.dumps(document).encode()


def bodies(*valid: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """Random bytes, random JSON, and valid documents with one value replaced."""
    return st.one_of(st.binary(max_size=64), JSON.map(encoded), *(replaced(each).map(encoded) for each in valid))


class Wire:
    """A bare connection to nats-server: subjects and headers are sent as they are."""

    def __init__(self, url: str) -> None:
        self._host, _, self._port = url.removeprefix("nats://").partition(":")
        self._inbox = uuid.uuid4().hex.encode()

    async def __aenter__(self) -> "Wire":
        self._reader, self._writer = await asyncio.open_connection(self._host, int(self._port))
        self._writer.write(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB %s 1\r\n' % self._inbox)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def store(self, subject: bytes, data: bytes, headers: bytes = b"") -> int:
        """Publish; the sequence under which a stream keeps it. 0: none does."""
        self._writer.write(_pub(subject, self._inbox, headers, data))
        async with asyncio.timeout(LIMIT_S):
            while not (line := await self._reader.readline()).startswith((b"MSG", b"HMSG")):
                if line.startswith(b"-ERR") or not line:
                    return 0
            answer = await self._reader.readexactly(int(line.split()[-1]) + 2)
        found = re.search(rb'"seq": ?(\d+)', answer)
        return int(found[1]) if found and b'"error"' not in answer else 0

    async def publish(self, subject: bytes, data: bytes, headers: bytes = b"", reply: bytes = b"") -> None:
        """Publish where nobody answers; returns once the server has it."""
        self._writer.write(_pub(subject, reply, headers, data) + b"PING\r\n")
        async with asyncio.timeout(LIMIT_S):
            while (line := await self._reader.readline()) and not line.startswith(b"PONG"):
                pass


def _pub(subject: bytes, reply: bytes, headers: bytes, data: bytes) -> bytes:
    lengths = b"%d %d" % (len(headers), len(headers) + len(data)) if headers else b"%d" % len(data)
    return b"%s %s %s %s\r\n%s%s\r\n" % (b"HPUB" if headers else b"PUB", subject, reply, lengths, headers, data)
