"""A nats-server as a model: connections, subscriptions, streams, pull consumers, leases, objects. Pure: whoever runs it has the clock.

What is real: who gets what, in which order, what is stored, what is refused, what is answered when nobody listens, and what a connection
takes along when it breaks. Messages of one connection keep their order; those of different ones do not. Files survive an outage; consumers
in memory do not. Not modelled: limits by size and age, accounts, and clusters that lag behind.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import msgspec

from shared.contracts.streams import STREAMS
from shared.sim.streams import Kept, Stored, StreamModel, matches

NO_RESPONDERS = b"NATS/1.0 503\r\n\r\n"
NOT_FOUND = b"NATS/1.0 404 Message Not Found\r\n\r\n"
HEARTBEAT = b"NATS/1.0 100 Idle Heartbeat\r\n\r\n"
API = "$JS.API."

Later = Callable[[float, Callable[[], None]], None]  # after seconds


class Peer(Protocol):
    """The server's end of a connection."""

    def deliver(self, subscription: int, subject: str, reply: str, data: bytes, headers: bytes) -> None: ...


@dataclass(slots=True)
class Listener:
    """A subscription."""

    peer: Peer
    number: int
    pattern: str


@dataclass(slots=True)
class Pull:
    """One request of a consumer for messages."""

    inbox: str
    left: int
    heartbeat_s: float
    heard_s: float
    end_s: float


@dataclass(slots=True)
class Consumer:
    """A cursor's."""

    name: str
    stream: StreamModel
    patterns: tuple[str, ...]
    next_seq: int
    latest: list[Stored] = field(default_factory=list)  # to be given first
    delivered: int = 0
    pull: Pull | None = None


class _Next(msgspec.Struct):
    batch: int = 1
    expires: int = 0
    idle_heartbeat: int = 0


class _Direct(msgspec.Struct):
    last_by_subj: str = ""
    next_by_subj: str = ""
    seq: int = 0


class NatsServer:
    """`observe` is called for whatever is stored: (stream, message)."""

    def __init__(self, now_ns: Callable[[], int], later: Later, observe: Callable[[str, Stored], None]) -> None:
        self.up = True
        self.streams = {config.name: StreamModel(config) for config in STREAMS}
        self._streams_of = {_bucket(pattern): stream for stream in self.streams.values() for pattern in stream.config.subjects}
        self.leases: dict[str, tuple[int, bytes, int]] = {}  # revision, value, when it was written
        self.objects: dict[str, dict[str, bytes]] = {}
        self.lose: Callable[[str], bool] = lambda subject: False  # whether a listener misses an unstored message
        self._revision = 0
        self._now_ns = now_ns
        self._later = later
        self._observe = observe
        self._listeners: dict[str, list[Listener]] = {}  # by the first two tokens of the pattern
        self._consumers: dict[str, Consumer] = {}
        self._names = 0

    # --- connections ---------------------------------------------------------------------------------------------------------

    def subscribe(self, peer: Peer, number: int, pattern: str) -> None:
        self._listeners.setdefault(_bucket(pattern), []).append(Listener(peer, number, pattern))

    def unsubscribe(self, peer: Peer, number: int) -> None:
        for held in self._listeners.values():
            held[:] = [each for each in held if not (each.peer is peer and each.number == number)]

    def drop(self, peer: Peer) -> None:
        """A connection is gone."""
        for held in self._listeners.values():
            held[:] = [each for each in held if each.peer is not peer]

    def stop(self) -> None:
        """Consumers in memory are gone; whoever was connected is not."""
        self.up = False
        self._consumers.clear()
        self._listeners.clear()

    def publish(self, subject: str, data: bytes, reply: str, headers: bytes) -> None:
        """What somebody has sent."""
        if subject.startswith(API):
            self._answer(subject, data, reply)
            return
        heard = self._spread(subject, reply, data, headers, lossy=True)
        stream = self._streams_of.get(_bucket(subject))
        if stream is not None and stream.takes(subject):
            self._store(stream, subject, data, reply, headers)
        elif not heard and reply:
            self._spread(reply, "", b"", NO_RESPONDERS)

    def _store(self, stream: StreamModel, subject: str, data: bytes, reply: str, headers: bytes) -> None:
        kept = stream.store(subject, data, headers, named(headers), self._now_ns())
        if reply:
            self._spread(reply, "", _ack(stream.name, kept), b"")
        if kept.refused or kept.duplicate:
            return
        message = stream.messages[kept.seq]
        self._observe(stream.name, message)
        if stream.config.stored_as:
            self._spread(message.subject, "", data, _placed(stream.name, message), lossy=True)
        for consumer in list(self._consumers.values()):
            if consumer.stream is stream and consumer.pull is not None:
                self._serve(consumer)

    def _spread(self, subject: str, reply: str, data: bytes, headers: bytes, *, lossy: bool = False) -> int:
        """To all that listen; how many do."""
        found = [each for each in self._listeners.get(_bucket(subject), ()) if matches(each.pattern, subject)]
        for each in found:
            if not (lossy and self.lose(subject)):
                each.peer.deliver(each.number, subject, reply, data, headers)
        return len(found)

    # --- JetStream's requests ------------------------------------------------------------------------------------------------

    def _answer(self, subject: str, data: bytes, reply: str) -> None:
        words = subject.removeprefix(API).split(".")
        if words[:2] == ["DIRECT", "GET"]:
            found = self._direct(self.streams[words[2]], msgspec.json.decode(data, type=_Direct))
            if found is None:
                self._spread(reply, "", b"", NOT_FOUND)
            else:
                self._spread(reply, "", found.data, _placed(words[2], found, at=stamp(found.time_ns)))
        elif words[:3] == ["CONSUMER", "MSG", "NEXT"]:
            self._ask(words[4], msgspec.json.decode(data, type=_Next), reply)
        elif words[:2] == ["STREAM", "INFO"]:
            self._spread(reply, "", msgspec.json.encode(self.info(words[2])), b"")
        else:
            raise AssertionError(f"no model of {subject}")

    def _direct(self, stream: StreamModel, asked: _Direct) -> Stored | None:
        if asked.last_by_subj:
            return stream.last(asked.last_by_subj)
        return stream.next_from(max(1, asked.seq), (asked.next_by_subj,))

    def info(self, name: str) -> dict[str, Any]:
        """What a stream holds, as its state is told."""
        stream = self.streams[name]
        times = [stream.messages[seq].time_ns for seq in (min(stream.messages), max(stream.messages))] if stream.messages else [0, 0]
        state = {
            "messages": len(stream.messages),
            "first_seq": min(stream.messages, default=stream.last_seq + 1),
            "last_seq": stream.last_seq,
            "first_ts": stamp(times[0]),
            "last_ts": stamp(times[1]),
        }
        return {"ts": stamp(self._now_ns()), "state": state}

    # --- pull consumers ------------------------------------------------------------------------------------------------------

    def add_consumer(self, name: str, patterns: tuple[str, ...], start: int, latest: bool) -> str:
        """Its name."""
        stream = self.streams[name]
        self._names += 1
        consumer = Consumer(f"c{self._names}", stream, patterns, stream.last_seq + 1 if latest else start)
        if latest:
            consumer.latest = stream.latest(patterns)
        self._consumers[consumer.name] = consumer
        return consumer.name

    def delete_consumer(self, name: str) -> None:
        self._consumers.pop(name, None)

    def _ask(self, name: str, asked: _Next, inbox: str) -> None:
        consumer = self._consumers.get(name)
        if consumer is None:
            self._spread(inbox, "", b"", NO_RESPONDERS)
            return
        now_s = self._now_ns() / 1e9
        left = asked.batch + (consumer.pull.left if consumer.pull is not None else 0)
        beating = consumer.pull is not None
        consumer.pull = Pull(inbox, left, asked.idle_heartbeat / 1e9, now_s, now_s + asked.expires / 1e9)
        self._serve(consumer)
        if not beating and consumer.pull is not None:
            self._later(consumer.pull.heartbeat_s, lambda: self._beat(consumer))

    def _serve(self, consumer: Consumer) -> None:
        while (pull := consumer.pull) is not None:
            if not self._listens(pull.inbox):
                consumer.pull = None
                return
            message = self._take(consumer)
            if message is None:
                return
            consumer.delivered += 1
            pull.left -= 1
            pull.heard_s = self._now_ns() / 1e9
            place = f"$JS.ACK.{consumer.stream.name}.{consumer.name}.1.{message.seq}.{consumer.delivered}.{message.time_ns}.0"
            self._give(pull.inbox, message, place)
            if pull.left <= 0:
                consumer.pull = None

    def _take(self, consumer: Consumer) -> Stored | None:
        if consumer.latest:
            return consumer.latest.pop(0)
        message = consumer.stream.next_from(consumer.next_seq, consumer.patterns)
        consumer.next_seq = consumer.stream.last_seq + 1 if message is None else message.seq + 1
        return message

    def _listens(self, inbox: str) -> list[Listener]:
        return [each for each in self._listeners.get(_bucket(inbox), ()) if matches(each.pattern, inbox)]

    def _give(self, inbox: str, message: Stored, place: str) -> None:
        """On the inbox's subscription, under the message's own subject."""
        for each in self._listens(inbox):
            each.peer.deliver(each.number, message.subject, place, message.data, message.headers)

    def _beat(self, consumer: Consumer) -> None:
        """An idle request says that it lives, and ends after its time."""
        pull, now_s = consumer.pull, self._now_ns() / 1e9
        if pull is None or self._consumers.get(consumer.name) is not consumer:
            return
        if now_s >= pull.end_s:
            consumer.pull = None
            left = f"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: {pull.left}\r\n\r\n"
            self._spread(pull.inbox, "", b"", left.encode())
            return
        if now_s - pull.heard_s >= pull.heartbeat_s - 1e-6:
            self._spread(pull.inbox, "", b"", HEARTBEAT)
        self._later(pull.heartbeat_s, lambda: self._beat(consumer))

    # --- leases: a key-value bucket whose entries expire ---------------------------------------------------------------------

    def lease(self, key: str, ttl_s: float) -> tuple[int, bytes] | None:
        """Revision and value; None: there is none (any more)."""
        held = self.leases.get(key)
        if held is None or not held[1] or self._now_ns() - held[2] > ttl_s * 1e9:
            return None
        return held[0], held[1]

    def write_lease(self, key: str, value: bytes, last: int, ttl_s: float) -> int | None:
        """The new revision; None where `last` is not the key's. An empty value removes it, and leaves its revision for `last`."""
        held = self.leases.get(key)
        present = held is not None and (not held[1] or self.lease(key, ttl_s) is not None)
        if (held[0] if held is not None and present else 0) != last:
            return None
        self._revision += 1
        self.leases[key] = (self._revision, value, self._now_ns())
        return self._revision


def named(headers: bytes) -> dict[str, str]:
    """Headers by name."""
    found = {}
    for line in headers.decode().split("\r\n")[1:]:
        name, colon, value = line.partition(": ")
        if colon:
            found[name] = value
    return found


def stamp(at_ns: int) -> str:
    """A time, as `unix_ns` of shared/runtime/clock.py reads it."""
    return f"{datetime.fromtimestamp(at_ns // 10**9, UTC):%Y-%m-%dT%H:%M:%S}.{at_ns % 10**9:09d}Z"


def _bucket(subject: str) -> str:
    first, _, rest = subject.partition(".")
    return f"{first}.{rest.partition('.')[0]}"


def _ack(stream: str, kept: Kept) -> bytes:
    if kept.refused:
        error = {"code": 400, "err_code": 10071, "description": f"wrong last sequence: {kept.seq}"}
        return msgspec.json.encode({"stream": stream, "seq": 0, "error": error})
    return msgspec.json.encode({"stream": stream, "seq": kept.seq, "duplicate": kept.duplicate})


def _placed(stream: str, message: Stored, at: str = "") -> bytes:
    """A message's headers, and where it stands."""
    said = message.headers.removeprefix(b"NATS/1.0\r\n").removesuffix(b"\r\n") if message.headers else b""
    place = f"Nats-Stream: {stream}\r\nNats-Subject: {message.subject}\r\nNats-Sequence: {message.seq}\r\n"
    behind = f"Nats-Time-Stamp: {at}\r\n" if at else f"Nats-Last-Sequence: {message.before}\r\n"
    return b"NATS/1.0\r\n" + said + f"{place}{behind}\r\n".encode()
