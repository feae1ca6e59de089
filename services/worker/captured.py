"""What a step's reader has already received: where the next attempt goes on from."""

import logging
from dataclasses import dataclass, field

import msgspec

from shared.contracts import subjects
from shared.contracts.ids import StepId
from shared.contracts.output import End, Output
from shared.contracts.streams import OUT
from shared.core.errors import LegatoError
from shared.core.reading import NoMessage
from shared.core.reading import read as read_message
from shared.runtime.bus import Bus

log = logging.getLogger(__name__)

_DECODER = msgspec.json.Decoder(Output)


class CapturedError(LegatoError):
    """The stored output lacks a part: nobody can go on from it."""


@dataclass
class Captured:
    """The stored output of a step: tokens and text in order, last stream sequence (0: none), highest attempt, the end if there is one."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    last_seq: int = 0
    attempt: int = 0
    end: End | None = None

    def fold(self, seq: int, output: Output) -> None:
        """Take the next output of the stream. Writers are fenced, so that there is no gap. Raises CapturedError where there is one."""
        if output.tokens and output.offset != len(self.tokens):
            raise CapturedError(f"{len(self.tokens)} tokens of the output are stored where the next ones start at {output.offset}")
        self.tokens += output.tokens
        self.text += output.text
        self.last_seq, self.attempt = seq, max(self.attempt, output.attempt)
        self.end = self.end or output.end


async def read(bus: Bus, step: StepId, captured: Captured | None = None) -> Captured:
    """All that OUT holds of a step; given what is known of it, only the rest is asked for. Raises BusError, CapturedError."""
    captured = captured or Captured()
    async for record in bus.history(OUT.name, subjects.out(step), captured.last_seq):
        try:
            captured.fold(record.seq, read_message(_DECODER, record.data))
        except NoMessage as error:  # readers drop it, too
            log.warning("unreadable output passed over", extra={"step": step, "error": str(error)})
            captured.last_seq = record.seq
    return captured
