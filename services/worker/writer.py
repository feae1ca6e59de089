"""Writes one attempt's output to `legato.outbox.<step>`: one message in flight, the tokens that come meanwhile go together in the next, as
far as a message of JetStream takes them.

Messages of one attempt keep a small distance in time (`worker.output_gap_ms`), the first and the last excepted: no reader sees more than a
hundred a second apart, and a fast engine does not cost the bus a message per token.

Each message is stored with the expectation that the subject's last message is the one that this attempt knows. An attempt that was
replaced without noticing it (a paused process, a broken network) is refused by JetStream: it is fenced. Readers hear nothing of what is
refused: JetStream sends them what it has stored, on `legato.out.<step>`. Message ids are the writer's own: two workers that were given the
same attempt must not pass for one, whose messages JetStream would take from either.
"""

import asyncio
from collections import deque

from services.worker.captured import Captured
from services.worker.output import Piece
from shared.contracts import subjects
from shared.contracts.ids import MessageId
from shared.contracts.output import End, Output
from shared.contracts.steps import StepDispatched
from shared.core.errors import LegatoError
from shared.core.machine import ENCODER
from shared.runtime.bus import Bus
from shared.runtime.clock import now_ns
from shared.runtime.ids import new_id
from shared.runtime.publisher import WrongLastSequence

PENDING_MAX = 65_536  # not yet stored, by `weight`; an engine that is faster waits
MESSAGE_MAX = 4_096  # of one message, by `weight`: below 1 MiB, which is what nats-server takes where nobody has raised it
LOGPROBS_WEIGHT = 16  # of a token with its alternatives, which takes up to 3 KB


class Fenced(LegatoError):
    """Another attempt, or whoever ended the step, has written to its output: this attempt is void."""


class OutputWriter:
    """`add` what the engine gave, and `finish`; `run` beside it stores, and returns when all is stored. `landing` keeps whoever adds from
    asking the engine for single tokens that would wait here: what comes while a message is in flight is asked for together."""

    def __init__(self, bus: Bus, dispatch: StepDispatched, before: Captured, gap_s: float) -> None:
        self.end: End | None = None
        self.last_seq = before.last_seq  # of the output in OUT
        self._bus = bus
        self._dispatch = dispatch
        self._subject = subjects.outbox(dispatch.step)
        self._offset = len(before.tokens)
        self._gap_s = gap_s
        self._count = 0
        self._life = new_id()
        self._pieces: deque[Piece] = deque()
        self._weight = 0  # of the pieces
        self._finished = False
        self._resting = False  # between two messages
        self._failure: Exception | None = None
        self._wake = asyncio.Event()
        self._due = asyncio.Event()
        self._room = asyncio.Event()
        self._landed = asyncio.Event()
        self._landed.set()

    async def add(self, piece: Piece) -> None:
        """Take output; waits only while too much is not yet stored. Raises what `run` raised."""
        while self._weight >= PENDING_MAX and self._failure is None:
            self._room.clear()
            await self._room.wait()
        if self._failure is not None:
            raise self._failure
        self._pieces.append(piece)
        self._weight += weight(piece)
        if not self._resting:
            self._landed.clear()
        self._wake.set()

    async def landing(self) -> None:
        """Wait until no message is in flight."""
        await self._landed.wait()

    def finish(self, end: End | None) -> None:
        """Nothing follows. With an `end`, the last message carries it; without, another attempt may go on from here."""
        self.end = end
        self._finished = True
        self._wake.set()
        self._due.set()

    async def run(self) -> None:
        """Raises Fenced, or StoreError when JetStream stays away."""
        try:
            await self._run()
        except Exception as error:
            self._failure = error
            raise
        finally:
            self._landed.set()
            self._room.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            last = self._finished
            while self._weight > MESSAGE_MAX:
                await self._store(self._take(None))
            if self._pieces or (last and self.end is not None):
                await self._store(self._take(self.end if last else None))
            if last:
                return
            await self._keep_distance()

    async def _keep_distance(self) -> None:
        """Wait for the gap to pass, or for the end."""
        self._resting = True
        self._landed.set()
        self._due.clear()
        if not self._finished:
            timer = asyncio.get_running_loop().call_later(self._gap_s, self._due.set)
            await self._due.wait()
            timer.cancel()
        self._resting = False

    def _take(self, end: End | None) -> Output:
        """The next message: whole pieces, at least one if there is any, because a text belongs to its tokens."""
        pieces: list[Piece] = []
        room = MESSAGE_MAX
        while self._pieces and (not pieces or weight(self._pieces[0]) <= room):
            pieces.append(self._pieces.popleft())
            room -= weight(pieces[-1])
        self._weight += room - MESSAGE_MAX
        self._room.set()
        dispatch = self._dispatch
        message = Output(
            id=MessageId(f"{dispatch.step}.out.{dispatch.attempt}.{self._life}.{self._count}"),
            step=dispatch.step,
            time_ns=now_ns(),
            attempt=dispatch.attempt,
            offset=self._offset,
            tokens=[token for piece in pieces for token in piece.tokens],
            text="".join(piece.text for piece in pieces),
            logprobs=[logprob for piece in pieces for logprob in piece.logprobs],
            end=end,
        )
        self._count += 1
        self._offset += len(message.tokens)
        return message

    async def _store(self, message: Output) -> None:
        stored = await self._bus.store(self._subject, ENCODER.encode(message), msg_id=message.id, expect_last=self.last_seq)
        try:
            self.last_seq = (await stored).seq
        except WrongLastSequence as error:
            raise Fenced(f"attempt {self._dispatch.attempt} of {self._dispatch.step} is void: {error}") from error


def weight(piece: Piece) -> int:
    """Of a piece, in tokens without log-probabilities; at least 1."""
    return 1 + len(piece.tokens) + LOGPROBS_WEIGHT * len(piece.logprobs)
