"""Prompts on their way to attempts.

With a dispatch, the scheduler has the server send the stored prompt here (`Wiring.handed` in services/scheduler/service.py): it arrives
with the dispatch, no service copies it, and no attempt has to ask. What does not arrive is fetched.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from shared.contracts import subjects
from shared.contracts.ids import StepId, WorkerId
from shared.contracts.steps import StepDispatched
from shared.contracts.streams import PROMPTS
from shared.runtime.bus import Bus
from shared.runtime.clock import now_ns
from shared.runtime.nats_client import read_headers

ARRIVAL_S = 0.05  # what is not here so long after its dispatch is fetched
DUE_NS = 30_000_000_000  # from a step's acceptance until its prompt must be stored
FETCH_AGAIN_S = 0.1
KEPT_MAX = 1_024  # that nobody has asked for: their dispatch was lost, or the attempt ended first
KEPT_BYTES_MAX = 64 * 2**20


class _Tokens(msgspec.Struct):
    """The part of a Prompt that a worker needs."""

    tokens: list[int]


_DECODER = msgspec.json.Decoder(_Tokens)


class Prompts:
    """`open` once; then `tokens` for each attempt."""

    def __init__(self, bus: Bus, worker: WorkerId) -> None:
        self._bus = bus
        self._worker = worker
        self._kept: OrderedDict[StepId, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._awaited: dict[StepId, asyncio.Future[bytes]] = {}

    async def open(self) -> None:
        """Raises BusError."""
        await self._bus.listen(subjects.handed_to(self._worker, StepId("*")), self._on_prompt)

    async def tokens(self, dispatch: StepDispatched, stopped: Callable[[], bool]) -> list[int] | None:
        """The prompt's tokens, None when they are lost, [] once the attempt is `stopped`. They may be stored a little after the admission,
        when its sender had to repeat. Raises BusError; may be called again then."""
        handed = _tokens(self._take(dispatch.step) or await self._arrival(dispatch.step))
        if handed and len(handed) == (dispatch.job.prompt_tokens or len(handed)):
            return handed
        while True:
            record = await self._bus.last(PROMPTS.name, subjects.prompt(dispatch.step))
            if record is not None:
                return _tokens(record.data)
            if now_ns() > dispatch.job.accepted_ns + DUE_NS:
                return None
            if stopped():
                return []
            await asyncio.sleep(FETCH_AGAIN_S)

    async def _arrival(self, step: StepId) -> bytes:
        """What the server sends; empty when it does not come, or not in time."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._awaited[step] = future
        timer = asyncio.get_running_loop().call_later(ARRIVAL_S, _give_up, future)
        try:
            return await future
        finally:
            timer.cancel()
            if self._awaited.get(step) is future:
                del self._awaited[step]

    def _on_prompt(self, subject: str, _: str, data: bytes, headers: bytes) -> None:
        step, about = StepId(subject.rpartition(".")[2]), read_headers(headers)
        sent_by_the_stream = about.get("Nats-Stream") == PROMPTS.name and about.get("Nats-Subject") == subjects.prompt(step)
        stored = data if sent_by_the_stream else b""  # not: there is none, or somebody else sent it
        future = self._awaited.get(step)
        if future is not None:
            if not future.done():
                future.set_result(stored)
        elif stored:
            self._keep(step, stored)

    def _keep(self, step: StepId, data: bytes) -> None:
        self._take(step)
        self._kept[step] = data
        self._kept_bytes += len(data)
        while len(self._kept) > KEPT_MAX or self._kept_bytes > KEPT_BYTES_MAX:
            self._take(next(iter(self._kept)))

    def _take(self, step: StepId) -> bytes:
        data = self._kept.pop(step, b"")
        self._kept_bytes -= len(data)
        return data


def _tokens(data: bytes) -> list[int] | None:
    """None where the bytes are no prompt: that is for the stream to say."""
    try:
        return _DECODER.decode(data).tokens if data else None
    except (msgspec.DecodeError, RecursionError):
        return None


def _give_up(future: asyncio.Future[bytes]) -> None:
    if not future.done():
        future.set_result(b"")
