"""Conversations as chains: each message is hashed together with all before it, so that an id names what was said up to there. Pure.

    id of message i = SHA-256(id of message i-1, a line end, the JSON of message i), its first 32 hexadecimal digits
    in place of the id before the first message stands `key <the submission's key>`, with nothing behind the blank where there is none

The JSON counts as it is sent, byte by byte: nobody has to agree on a canonical form, and the same words in another form are another
conversation. Since an id covers all before it, a conversation may be stored in parts, cut anywhere: a part is right when its messages,
hashed on from what it comes after, give the id that it is stored under. Since a chain begins with the key, nobody can refer to, or find
out about, what somebody with another key has stored.

128 bits are enough: to find other words for an id that is there takes about 2^128 tries, and to make two conversations of one's own with
the same id 2^64 (birthday bound; the same for the chain as for one hash, Merkle and Damgård, 1989), each with as many hashes as bytes need.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from shared.contracts.ids import ConversationId
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.steps import MESSAGES_MAX, ChatMessage
from shared.core.machine import ENCODER

DIGITS = 32  # hexadecimal, of a SHA-256
PARTS_MAX = 512  # of a conversation: whoever has nothing of one asks for them one after the other
PARAM = "history"
ERROR_CHARS_MAX = 300


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A stored part that is what its id says."""

    after: ConversationId
    key: str  # that the chain begins with; known of a first part only
    messages: list[ChatMessage]
    size: int  # bytes of its messages, as a submission would hold them


class _Raw(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Turn, its messages as they stand there."""

    messages: list[msgspec.Raw]
    after: str = ""


_RAW = msgspec.json.Decoder(_Raw)
_MESSAGES = msgspec.json.Decoder(list[ChatMessage])


def pieces_of(messages: Sequence[ChatMessage]) -> list[bytes]:
    """The JSON of each message. Raises UnicodeEncodeError for lone surrogates."""
    return [ENCODER.encode(message) for message in messages]


def chain(pieces: Sequence[bytes], key: str, after: str = "") -> list[ConversationId]:
    """The id up to each message, going on from `after`."""
    ids: list[ConversationId] = []
    before = after or f"key {key}"
    for piece in pieces:
        before = hashlib.sha256(b"%s\n%s" % (before.encode(errors="surrogatepass"), piece)).hexdigest()[:DIGITS]
        ids.append(ConversationId(before))
    return ids


def turn(pieces: Sequence[bytes], after: str = "") -> bytes:
    """A part as it is stored."""
    return b'{"after":"%s","messages":[%s]}' % (after.encode(), b",".join(pieces))


def read_turn(data: bytes, conversation: ConversationId, key: str) -> Part | Problem:
    """A stored part, if it is what the id says and holds messages. `key`: of the submission that refers to it."""
    try:
        raw = _RAW.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return unknown(conversation)
    pieces = [bytes(piece) for piece in raw.messages]
    if not pieces or chain(pieces, key, raw.after)[-1] != conversation:
        return unknown(conversation)
    try:
        messages = _MESSAGES.decode(b"[" + b",".join(pieces) + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = str(error)[:ERROR_CHARS_MAX].replace("`", "").replace("$", "messages")
        return Problem(reason=Reason.INVALID, message=f"turn {conversation} holds no messages: {why}", param=PARAM)
    after = ConversationId(raw.after)
    return Part(after=after, key="" if after else key, messages=messages, size=sum(len(piece) + 1 for piece in pieces))


def unknown(conversation: ConversationId) -> Problem:
    """What is said of an id under which nothing is stored, or what does not belong there."""
    message = f"no conversation {conversation} is stored (any more) for this key: send all of its messages, as a new step"
    return Problem(reason=Reason.HISTORY_UNKNOWN, message=message, param=PARAM)


class Walk:
    """From the last part of a conversation to its first: `take` the part named by `at`, until that is empty."""

    def __init__(self, conversation: ConversationId, bytes_max: int, size: int = 0) -> None:
        """`bytes_max`: of all messages, and of the `size` that is there besides."""
        self.at = conversation
        self.size = size
        self._bytes_max = bytes_max
        self._parts: list[Part] = []
        self._count = 0

    def take(self, part: Part) -> Problem | None:
        """Why the walk ends here, if it does."""
        self._parts.append(part)
        self.size += part.size
        self._count += len(part.messages)
        if self.size > self._bytes_max:
            message = f"with its conversation the submission is longer than {self._bytes_max} bytes; at most so many are taken"
            return Problem(reason=Reason.TOO_LARGE, message=message, param=PARAM)
        if self._count > MESSAGES_MAX:
            return Problem(reason=Reason.INVALID, message=f"the conversation has more than {MESSAGES_MAX} messages", param=PARAM)
        self.at = part.after
        if self.at and len(self._parts) >= PARTS_MAX:
            message = f"the conversation is stored in more than {PARTS_MAX} parts: store it anew, in fewer"
            return Problem(reason=Reason.INVALID, message=message, param=PARAM)
        return None

    @property
    def messages(self) -> list[ChatMessage]:
        """All of them, in order, once the walk is at its end."""
        return [message for part in reversed(self._parts) for message in part.messages]
