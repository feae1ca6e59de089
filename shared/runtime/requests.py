"""Requests and their answers: one inbox and one sweep for all of a connection. A subscription's task and a timer for each would cost more
than the request itself."""

import asyncio
from dataclasses import dataclass

import nats.errors

from shared.runtime.clock import monotonic_s
from shared.runtime.nats_client import NatsClient, read_headers
from shared.runtime.tasks import end

TIMEOUT_S = 5.0  # for an answer
SWEEP_S = 0.25


@dataclass(slots=True, frozen=True)
class Answer:
    """What somebody, or nats-server, answered."""

    data: bytes
    headers: dict[str, str]
    raw_headers: bytes


class Requests:
    """Call `start` once; `ask` thereafter. As many may wait as callers ask at once."""

    def __init__(self, client: NatsClient) -> None:
        self._client = client
        self._prefix = client.new_inbox()
        self._open: dict[str, tuple[asyncio.Future[Answer], float]] = {}  # and when it is given up
        self._count = 0
        self._sweeper: asyncio.Task[None] | None = None
        self._stopped = False

    async def start(self) -> None:
        await self._client.listen(f"{self._prefix}.*", self._on_answer)
        self._sweeper = asyncio.create_task(self._sweep(), name="requests-sweep")

    async def stop(self) -> None:
        """Whoever still waits, and whoever asks from now on, gets TimeoutError."""
        self._stopped = True
        if self._sweeper is not None:
            await end([self._sweeper])
        self._give_up(float("inf"))

    async def ask(self, subject: str, data: bytes) -> Answer:
        """The answer. Raises TimeoutError after TIMEOUT_S or a little later, nats.errors.NoRespondersError, nats.errors.Error."""
        if self._stopped:
            raise TimeoutError("the connection is being closed")
        self._count += 1
        reply = f"{self._prefix}.{self._count}"
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[reply] = (future, monotonic_s() + TIMEOUT_S)
        try:
            await self._client.publish(subject, data, reply)
            return await future
        finally:
            self._open.pop(reply, None)

    def _on_answer(self, subject: str, _: str, data: bytes, raw_headers: bytes) -> None:
        waiting = self._open.get(subject)
        if waiting is None or waiting[0].done():
            return
        headers = read_headers(raw_headers) if raw_headers else {}
        if headers.get("Status") == "503":
            waiting[0].set_exception(nats.errors.NoRespondersError())
        else:
            waiting[0].set_result(Answer(data, headers, raw_headers))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._give_up(monotonic_s())

    def _give_up(self, now: float) -> None:
        for future, until in list(self._open.values()):
            if now >= until and not future.done():
                future.set_exception(TimeoutError())
