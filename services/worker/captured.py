"""What a step's reader has already received: where the next attempt goes on from."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from shared.contracts import subjects
from shared.contracts.ids import StepId
from shared.contracts.output import End, Output
from shared.contracts.streams import OUT
from shared.core.reading import NoMessage
from shared.core.reading import read as read_message
from shared.runtime.bus import Bus

log = logging.getLogger(__name__)

_DECODER = msgspec.json.Decoder(Output)


@dataclass
class Captured:
    """The stored output of a step: tokens and text in order, last stream sequence (0: none), highest attempt, the end if there is one."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    last_seq: int = 0
    attempt: int = 0
    end: End | None = None

    def fold(self, outputs: Iterable[tuple[int, Output]]) -> None:
        """Take outputs in stream order. Because writers are fenced, they are contiguous."""
        for seq, output in outputs:
            self.tokens = self.tokens[: output.offset] + output.tokens if output.tokens else self.tokens
            self.text += output.text
            self.last_seq, self.attempt = seq, max(self.attempt, output.attempt)
            self.end = self.end or output.end


async def read(bus: Bus, step: StepId) -> Captured:
    """All that OUT holds of a step."""
    captured = Captured()
    async for record in bus.history(OUT.name, subjects.out(step)):
        try:
            captured.fold([(record.seq, read_message(_DECODER, record.data))])
        except NoMessage as error:  # readers drop it, too
            log.warning("unreadable output passed over", extra={"step": step, "error": str(error)})
            captured.last_seq = record.seq
    return captured
