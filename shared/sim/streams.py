"""One JetStream stream as a model: what is stored, under which sequence, and what is refused. Pure."""

from bisect import bisect_right
from collections import OrderedDict
from functools import lru_cache
from typing import NamedTuple

from shared.contracts.streams import Stream
from shared.contracts.subjects import OUTBOX, stored_as


class Stored(NamedTuple):
    """One message. `before`: the sequence of its subject's message before it, 0: none."""

    seq: int
    subject: str
    data: bytes
    headers: bytes
    msg_id: str
    time_ns: int
    before: int


class Kept(NamedTuple):
    """What became of a publish. `refused`: the expectation was missed."""

    seq: int
    duplicate: bool = False
    refused: bool = False


class StreamModel:
    """As nats-server 2.12 has it: the expected last sequence is looked at before copies are. Limits are by message per subject only; a
    simulated world is too short for those of age and size."""

    def __init__(self, config: Stream) -> None:
        self.name = config.name
        self.config = config
        self.last_seq = 0
        self.first_seq = 1
        self.messages: dict[int, Stored] = {}
        self.by_subject: dict[str, list[int]] = {}
        self._ids: OrderedDict[str, tuple[int, int]] = OrderedDict()  # sequence and time by message id, oldest first

    def takes(self, subject: str) -> bool:
        return any(matches(pattern, subject) for pattern in self.config.subjects)

    def store(self, published: str, data: bytes, headers: bytes, about: dict[str, str], now_ns: int) -> Kept:
        """`about`: the headers by name."""
        subject = stored_as(published) if self.config.stored_as and matches(OUTBOX, published) else published
        held = self.by_subject.get(subject)
        last = held[-1] if held else 0
        expected = about.get("Nats-Expected-Last-Subject-Sequence")
        if expected is not None and int(expected) != last:
            return Kept(last, refused=True)
        msg_id = about.get("Nats-Msg-Id", "")
        if msg_id:
            self._forget_ids(now_ns)
            known = self._ids.get(msg_id)
            if known is not None:
                return Kept(known[0], duplicate=True)
        self.last_seq += 1
        if msg_id:
            self._ids[msg_id] = (self.last_seq, now_ns)
        self.messages[self.last_seq] = Stored(self.last_seq, subject, data, headers, msg_id, now_ns, last)
        self.by_subject.setdefault(subject, []).append(self.last_seq)
        self._trim(subject)
        return Kept(self.last_seq)

    def last(self, pattern: str) -> Stored | None:
        """Of a subject or pattern."""
        if "*" not in pattern and ">" not in pattern:
            held = self.by_subject.get(pattern)
            return self.messages[held[-1]] if held else None
        seqs = [held[-1] for subject, held in self.by_subject.items() if held and matches(pattern, subject)]
        return self.messages[max(seqs)] if seqs else None

    def next_from(self, seq: int, patterns: tuple[str, ...]) -> Stored | None:
        """The first message at or behind `seq` of one of the patterns."""
        if len(patterns) == 1 and "*" not in patterns[0] and ">" not in patterns[0]:
            held = self.by_subject.get(patterns[0], [])
            place = bisect_right(held, seq - 1)
            return self.messages[held[place]] if place < len(held) else None
        for number in range(max(seq, self.first_seq), self.last_seq + 1):
            message = self.messages.get(number)
            if message is not None and any(matches(pattern, message.subject) for pattern in patterns):
                return message
        return None

    def latest(self, patterns: tuple[str, ...]) -> list[Stored]:
        """The last message of each subject, in the order of the stream."""
        seqs = [held[-1] for name, held in self.by_subject.items() if held and any(matches(each, name) for each in patterns)]
        return [self.messages[seq] for seq in sorted(seqs)]

    def purge(self, before: int) -> None:
        """Remove all with a lower sequence."""
        for seq in [seq for seq in self.messages if seq < before]:
            self._remove(seq)
        self.first_seq = max(self.first_seq, before)

    def _trim(self, subject: str) -> None:
        most = self.config.max_msgs_per_subject
        held = self.by_subject[subject]
        if most > 0 and len(held) > most:
            self._remove(held[0])

    def _remove(self, seq: int) -> None:
        message = self.messages.pop(seq)
        held = self.by_subject[message.subject]
        held.remove(seq)
        if not held:
            del self.by_subject[message.subject]

    def _forget_ids(self, now_ns: int) -> None:
        window_ns = int(self.config.duplicate_window_s * 1e9)
        while self._ids and now_ns - self._ids[first := next(iter(self._ids))][1] > window_ns:
            del self._ids[first]


@lru_cache(maxsize=1 << 16)
def matches(pattern: str, subject: str) -> bool:
    """Whether a subject is one of a pattern's."""
    wanted, given = pattern.split("."), subject.split(".")
    for index, token in enumerate(wanted):
        if token == ">":
            return len(given) > index
        if index >= len(given) or token not in ("*", given[index]):
            return False
    return len(wanted) == len(given)
