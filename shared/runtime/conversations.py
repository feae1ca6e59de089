"""Conversations by reference: stored part by part by whoever submits, put together again by whoever reads. The rules are pure, and lie in
shared/core/sent.py and shared/core/conversation.py.
"""

import asyncio
import logging
from collections import OrderedDict

import msgspec

from shared.contracts import subjects
from shared.contracts.ids import ConversationId
from shared.contracts.outcomes import Problem
from shared.contracts.steps import ChatMessage, Submission
from shared.contracts.streams import TURNS
from shared.core.conversation import Part, Walk, chain, pieces_of, read_turn, turn, unknown
from shared.core.inputs import differences
from shared.core.machine import ENCODER
from shared.core.sent import Known, Sent
from shared.runtime.bus import Bus
from shared.runtime.clock import monotonic_s
from shared.runtime.publisher import StoreError

log = logging.getLogger(__name__)

LONG_BYTES = 4_096  # of a submission: shorter ones are always sent whole, which is quicker
IDS_MAX = 16_384  # conversations that a sender remembers, about 250 bytes each
KEPT_NS = int(TURNS.max_age_s * 1e9) // 2  # that a part may be old when it is referred to
STORE_TIMEOUT_S = 2.0  # for a part to be acknowledged; then the submission goes whole
PAUSE_S = 30.0  # and so do all for so long: NATS is away, or has no such stream, or does not let us
WAITING_BYTES_MAX = 64 * 2**20  # of submissions that are kept, because they may have to be sent whole
PARTS_BYTES_MAX = 64 * 2**20  # that a reader keeps in memory
ENVELOPE_BYTES = 64  # of a part, besides its messages
COMPARED_BYTES_MAX = 64 * 2**20  # of a conversation that is read to say what differs; a fleet takes less
MESSAGE_BYTES = 256  # that one takes there, besides its text


class Reference:
    """A submission that refers to what is stored. Ends with `done` once the fleet has begun to answer, or with `lost`."""

    def __init__(self, sender: "Sender", submission: Submission, whole: bytes) -> None:
        self.data = ENCODER.encode(submission)
        self._conversation = submission.history
        self._sender = sender
        self._whole = whole

    def done(self) -> None:
        """The submission need not be kept any longer. Harmless when done twice."""
        self._sender.waiting_bytes -= len(self._whole)
        self._whole = b""

    def lost(self) -> bytes:
        """The fleet does not know the conversation (any more): the submission with all of it, to be sent as a new step."""
        whole = self._whole
        self.done()
        self._sender.forget(self._conversation)
        return whole


class Sender:
    """Of one process: `refer` before each submission."""

    def __init__(self, bus: Bus, ids_max: int = IDS_MAX) -> None:
        self.waiting_bytes = 0
        self._bus = bus
        self._sent = Sent(ids_max, KEPT_NS)
        self._not_before_s = 0.0

    async def refer(self, submission: Submission, whole: bytes) -> Reference | None:
        """What to send in place of `whole`, the encoded submission, once its conversation is stored; None: send `whole`."""
        if submission.messages is None or len(whole) < LONG_BYTES:
            return None
        if self.waiting_bytes + len(whole) > WAITING_BYTES_MAX or monotonic_s() < self._not_before_s:
            return None
        if (
            len(whole) + ENVELOPE_BYTES > self._bus.publisher.message_bytes_max
        ):  # refused, however it is sent: the limit is one on conversations
            return None
        pieces = pieces_of(submission.messages)
        ids = chain(pieces, submission.key)
        missing = self._sent.missing(ids, int(monotonic_s() * 1e9))
        if missing is None:
            self._sent.remember(ids[-1], Known(int(monotonic_s() * 1e9), 0))
            return None
        self.waiting_bytes += len(whole)
        try:
            parts = {
                ids[each.stop - 1]: turn(pieces[each.start : each.stop], ids[each.start - 1] if each.start else "") for each in missing
            }
            if not await self._store(parts):
                self.waiting_bytes -= len(whole)
                return None
        except BaseException:
            self.waiting_bytes -= len(whole)
            raise
        for each in missing:
            self._sent.remember(ids[each.stop - 1], each.known)
        return Reference(self, msgspec.structs.replace(submission, messages=None, history=ids[-1]), whole)

    def forget(self, conversation: ConversationId) -> None:
        """It is no longer stored."""
        self._sent.forget(conversation)

    async def _store(self, parts: dict[ConversationId, bytes]) -> bool:
        """Whether they are stored. They have no message ids: a second copy takes the place of the first, and says the same."""
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                await self._bus.publisher.store_all([await self._bus.store(subjects.turn(each), parts[each]) for each in parts])
        except (StoreError, TimeoutError) as error:
            log.warning("conversations are sent whole for a while, their parts are not stored", extra={"error": str(error) or "no answer"})
            self._not_before_s = monotonic_s() + PAUSE_S
            return False
        return True


class Conversations:
    """Puts conversations together. What was read is kept for the next turn; `offer` what is seen on its way into the stream."""

    def __init__(self, bus: Bus, kept_bytes_max: int = PARTS_BYTES_MAX) -> None:
        self._bus = bus
        self._kept_bytes_max = kept_bytes_max
        self._kept: OrderedDict[ConversationId, Part | bytes] = OrderedDict()  # bytes: nobody has looked at them yet
        self.kept_bytes = 0

    @property
    def message_bytes_max(self) -> int:
        """What a message on the bus may hold, be it a part of a conversation or a prompt."""
        return self._bus.publisher.message_bytes_max

    async def follow(self) -> None:
        """Hear of parts as they are stored, so that few must be fetched. Raises BusError."""
        await self._bus.listen(subjects.TURN, self._on_turn)

    def at_hand(self, walk: Walk, key: str) -> list[ChatMessage] | Problem | None:
        """Go on with a walk as far as memory has it; None where the next part must be fetched."""
        while walk.at:
            part = self._look(walk.at, key)
            if part is None:
                return None
            problem = part if isinstance(part, Problem) else walk.take(part)
            if problem is not None:
                return problem
        return walk.messages

    async def read(self, walk: Walk, key: str) -> list[ChatMessage] | Problem:
        """Go on with a walk to its end; one direct request for each part that is not in memory. Raises BusError."""
        while (found := self.at_hand(walk, key)) is None:
            part = await self._fetch(walk.at, key)
            problem = part if isinstance(part, Problem) else walk.take(part)
            if problem is not None:
                return problem
        return found

    async def _fetch(self, conversation: ConversationId, key: str) -> Part | Problem:
        record = await self._bus.last(TURNS.name, subjects.turn(conversation))
        if record is None:
            return unknown(conversation)
        part = read_turn(record.data, conversation, key)
        if isinstance(part, Part):
            self._keep(conversation, part)
        return part

    def _look(self, conversation: ConversationId, key: str) -> Part | Problem | None:
        kept = self._kept.get(conversation)
        if isinstance(kept, bytes):
            read = read_turn(kept, conversation, key)
            if isinstance(read, Problem):  # the stream may have better
                self._drop(conversation)
                return None
            kept = read
        if kept is None:
            return None
        if not kept.after and kept.key != key:
            return unknown(conversation)
        self._keep(conversation, kept)
        return kept

    def _on_turn(self, subject: str, _: str, data: bytes, __: bytes) -> None:
        conversation = ConversationId(subject.rpartition(".")[2])
        if not isinstance(self._kept.get(conversation), Part):  # what is verified does not change
            self._keep(conversation, data)

    def _keep(self, conversation: ConversationId, part: Part | bytes) -> None:
        self._drop(conversation)
        self._kept[conversation] = part
        self.kept_bytes += _size(part)
        while self.kept_bytes > self._kept_bytes_max:
            self._drop(next(iter(self._kept)))

    def _drop(self, conversation: ConversationId) -> None:
        part = self._kept.pop(conversation, None)
        if part is not None:
            self.kept_bytes -= _size(part)


def _size(part: Part | bytes) -> int:
    return len(part) + MESSAGE_BYTES if isinstance(part, bytes) else part.size + MESSAGE_BYTES * (1 + len(part.messages))


async def changed_parts(bus: Bus, first: Submission, second: Submission) -> list[str]:
    """Which parts of what is asked differ, by name, however the first was sent. Of a conversation that is no longer stored only whether
    it is the same is known. Raises BusError."""
    if first.history and second.messages is not None:
        if chain(pieces_of(second.messages), first.key)[-1] == first.history:
            first = msgspec.structs.replace(first, history="", messages=second.messages)
        else:
            found = await Conversations(bus).read(Walk(first.history, COMPARED_BYTES_MAX), first.key)
            if not isinstance(found, Problem):
                first = msgspec.structs.replace(first, history="", messages=found)
    return differences(first, second)
