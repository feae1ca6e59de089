"""What a sender remembers of the conversations that it has sent, and which part of the next one is still to be stored. Pure.

Rules:
- A conversation that nothing is known of goes whole with its submission, as a single question would: storing it apart would only cost time.
- One that goes on from a conversation that was sent before is stored, from behind the longest part that is stored already, and referred to.
  It is cut where the one before ended, so that others that go on from there find that part.
- What is stored counts until its oldest part is `kept_ns` old, which is half of the time that the stream keeps it: a submission may wait
  that long until somebody reads it.
- A conversation of PARTS_MAX parts is stored anew as one.

Bounded: at most `ids_max` ids; what was used longest ago goes.
"""

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from shared.contracts.ids import ConversationId
from shared.core.conversation import PARTS_MAX


class Known(msgspec.Struct, frozen=True):
    """A conversation that was sent. `parts`: in how many it is stored; 0: it went whole with its submission."""

    oldest_ns: int  # when the oldest part was stored
    parts: int


class Missing(msgspec.Struct, frozen=True):
    """A part that is to be stored: the messages from `start` up to, not including, `stop`."""

    start: int
    stop: int
    known: Known  # of the conversation up to `stop`, once it is stored


class Sent:
    """`missing` first; then `remember` what was done."""

    def __init__(self, ids_max: int, kept_ns: int) -> None:
        self._ids_max = ids_max
        self._kept_ns = kept_ns
        self._known: OrderedDict[ConversationId, Known] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def missing(self, ids: Sequence[ConversationId], now_ns: int) -> list[Missing] | None:
        """What must be stored before the conversation with these ids can be referred to, perhaps nothing; None: it goes whole."""
        sent, start, base = 0, 0, Known(now_ns, 0)
        for index in range(len(ids), 0, -1):
            known = self._known.get(ids[index - 1])
            if known is None or now_ns - known.oldest_ns > self._kept_ns:
                continue
            self._known.move_to_end(ids[index - 1])
            if known.parts:
                start, base = index, known
                break
            sent = sent or index
        if start < len(ids) and base.parts > PARTS_MAX - 2:
            return [Missing(0, len(ids), Known(now_ns, 1))]
        return _cut(start, sent, len(ids), base) if start or sent else None

    def remember(self, conversation: ConversationId, known: Known) -> None:
        """It was stored, or (`parts` 0) sent whole."""
        self._known.pop(conversation, None)
        self._known[conversation] = known
        if len(self._known) > self._ids_max:
            self._known.popitem(last=False)

    def forget(self, conversation: ConversationId) -> None:
        """The fleet no longer has it, nor then what is older: the stream lets go of the oldest first."""
        lost = self._known.get(conversation)
        if lost is not None:
            self._known = OrderedDict((each, known) for each, known in self._known.items() if known.oldest_ns > lost.oldest_ns)


def _cut(start: int, middle: int, stop: int, base: Known) -> list[Missing]:
    """What is behind `start`, where a part ends (`base`), in two parts where `middle` lies within."""
    missing = []
    for end in (middle, stop):
        if end > start:
            base = Known(base.oldest_ns, base.parts + 1)
            missing.append(Missing(start, end, base))
            start = end
    return missing
