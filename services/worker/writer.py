"""Writes one attempt's output to `legato.out.<step>`: one message in flight, the tokens that come meanwhile go together in the next.

Messages of one attempt keep a small distance in time (`worker.output_gap_ms`), the first and the last excepted: no reader sees more than a
hundred a second apart, and a fast engine does not cost the bus a message per token.

Each message is stored with the expectation that the subject's last message is the one that this attempt knows. An attempt that was
replaced without noticing it (a paused process, a broken network) is refused by JetStream: it is fenced.
"""

import asyncio

from services.worker.captured import Captured
from services.worker.output import Piece
from shared.contracts import subjects
from shared.contracts.ids import MessageId
from shared.contracts.output import End, Output, TokenLogprob
from shared.contracts.steps import StepDispatched
from shared.core.errors import LegatoError
from shared.core.machine import ENCODER
from shared.runtime.bus import Bus
from shared.runtime.clock import now_ns
from shared.runtime.publisher import WrongLastSequence

PENDING_TOKENS_MAX = 65_536  # not yet stored; an engine that is faster waits


class Fenced(LegatoError):
    """Another attempt, or whoever ended the step, has written to its output: this attempt is void."""


class OutputWriter:
    """`add` what the engine gave and `finish`; `run` beside it stores, and returns when all is stored."""

    def __init__(self, bus: Bus, dispatch: StepDispatched, before: Captured, gap_s: float) -> None:
        self.end: End | None = None
        self._bus = bus
        self._dispatch = dispatch
        self._subject = subjects.out(dispatch.step)
        self._offset = len(before.tokens)
        self._last_seq = before.last_seq
        self._gap_s = gap_s
        self._count = 0
        self._tokens: list[int] = []
        self._text: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._finished = False
        self._wake = asyncio.Event()
        self._due = asyncio.Event()
        self._room = asyncio.Event()

    async def add(self, piece: Piece) -> None:
        """Take output; waits only while too much is not yet stored."""
        while len(self._tokens) >= PENDING_TOKENS_MAX:
            self._room.clear()
            await self._room.wait()
        self._tokens += piece.tokens
        self._text.append(piece.text)
        self._logprobs += piece.logprobs
        self._wake.set()

    def finish(self, end: End | None) -> None:
        """Nothing follows. With an `end`, the last message carries it; without, another attempt may go on from here."""
        self.end = end
        self._finished = True
        self._wake.set()
        self._due.set()

    async def run(self) -> None:
        """Raises Fenced, or StoreError when JetStream stays away."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            last = self._finished
            if self._tokens or self._text or (last and self.end is not None):
                await self._store(self._take(self.end if last else None))
            if last:
                return
            await self._keep_distance()

    async def _keep_distance(self) -> None:
        """Wait for the gap to pass, or for the end."""
        self._due.clear()
        if not self._finished:
            timer = asyncio.get_running_loop().call_later(self._gap_s, self._due.set)
            await self._due.wait()
            timer.cancel()

    def _take(self, end: End | None) -> Output:
        dispatch = self._dispatch
        message = Output(
            id=MessageId(f"{dispatch.step}.out.{dispatch.attempt}.{self._count}"),
            step=dispatch.step,
            time_ns=now_ns(),
            attempt=dispatch.attempt,
            offset=self._offset,
            tokens=self._tokens,
            text="".join(self._text),
            logprobs=self._logprobs,
            end=end,
        )
        self._count += 1
        self._offset += len(self._tokens)
        self._tokens, self._text, self._logprobs = [], [], []
        self._room.set()
        return message

    async def _store(self, message: Output) -> None:
        stored = await self._bus.store(self._subject, ENCODER.encode(message), msg_id=message.id, expect_last=self._last_seq)
        try:
            self._last_seq = (await stored).seq
        except WrongLastSequence as error:
            raise Fenced(f"attempt {self._dispatch.attempt} of {self._dispatch.step} is void: {error}") from error
