"""Malformed input for every door: what to send, and a wire to NATS on which nothing is too odd to be sent."""

import asyncio
import io
import json
import re
import sys
import uuid
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any
from unittest import mock

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from legato.cli import main

LIMIT_S = 20.0

# The fleet is one for all examples, on purpose: what one leaves behind, the next must bear.
FUZZ = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)

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

PROMPT: dict[str, Any] = {"model": "sim-small", "prompt": [72, 105], "sampling": {"max_tokens": 3}}


ODD_TEXTS = ["\0", "\ud800", "\ufeff\u202e", "x" * 1_000_000, "é" * 20_000, "\x1b[2J", "{{ 7 * 7 }}", "'; DROP TABLE steps; --"]


def with_text(field: str, text: str) -> dict[str, Any]:
    """A submission that has the text there."""
    message = {"role": "user", "content": "Hello"}
    body: dict[str, Any] = {"model": "sim-small", "messages": [message], "sampling": {"max_tokens": 3}}
    match field:
        case "prompt":
            return {**PROMPT, "prompt": text}
        case "content" | "name" | "role":
            return {**body, "messages": [{**message, field: text}]}
        case "stop":
            return {**body, "sampling": {"max_tokens": 3, "stop": [text]}}
        case "bias":
            return {**body, "sampling": {"max_tokens": 3, "logit_bias": {text: 1.0}}}
    return {**body, field: text}


CHAT: dict[str, Any] = {
    "model": "sim-small",
    "messages": [{"role": "user", "content": "Hello"}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    "max_tokens": 3,
    "temperature": 0.5,
    "stop": ["x"],
    "logit_bias": {"5": 1.0},
    "logprobs": True,
    "top_logprobs": 1,
    "n": 1,
    "tools": [],
    "stream": True,
    "stream_options": {"include_usage": True},
}
COMPLETION: dict[str, Any] = {"model": "sim-small", "prompt": "Hello", "max_tokens": 3, "logprobs": 1, "stop": "x", "echo": False}

# A submission with every field.
GOOD: dict[str, Any] = {
    "model": "sim-small",
    "messages": [{"role": "user", "content": "Hello", "name": "ada"}],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
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


def document(message: msgspec.Struct) -> dict[str, Any]:
    """As JSON has it."""
    return dict(json.loads(msgspec.json.encode(message)))


def bodies(*valid: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """Random bytes, random JSON, and valid documents with one value replaced."""
    return st.one_of(st.binary(max_size=64), JSON.map(encoded), *(replaced(each).map(encoded) for each in valid))


def is_token(subject: bytes) -> bool:
    """Whether nats-server takes it for one token of a subject."""
    return not set(subject) & set(b" \t\r\n.") and subject != b""


def is_id(name: bytes) -> bool:
    """Whether it may name a step."""
    return name.isascii() and name.replace(b"-", b"a").replace(b"_", b"a").isalnum() and len(name) <= 128


def run_command(words: list[str]) -> tuple[int | str | None, str, str]:
    """Exit status, output and errors of the command line, in this process; what it does not catch is raised."""
    output, error = io.StringIO(), io.StringIO()
    with mock.patch.object(sys, "argv", ["legato", *words]), redirect_stdout(output), redirect_stderr(error):
        try:
            main()
        except SystemExit as end:
            return end.code, output.getvalue(), error.getvalue()
    return 0, output.getvalue(), error.getvalue()


def told(status: int | str | None, output: str, error: str) -> bool:
    """Whether a command did what it was asked, or said in one line why not."""
    if status == 1:
        return error.count("legato:") == 1 or bool(output)  # `replay` prints differences
    return status in (0, None) or (status == 2 and "Error" in error)


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
