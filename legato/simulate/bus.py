"""The way of messages between services in a thought fleet, and services on it: the real machines, each with one inbox.

A message reaches each service that takes its kind after a hop with some jitter, in the order in which it was sent to that service, as a
stream hands it out. Nothing is lost: what comes while a service is away waits for it, as in JetStream. Loss, repetition and crash points
are played by the other simulation, which runs the drivers as well (docs/simulation.md).
"""

import hashlib
from collections.abc import Callable
from random import Random
from typing import Any, get_args

import msgspec

from legato.simulate.scenario import Network
from shared.contracts.envelope import Message, Tick
from shared.contracts.steps import StepDispatched
from shared.core.machine import Machine, step
from shared.sim.heap import Heap

TICK = Tick()
HASHED_AT_ONCE = 4_096


class Inbox:
    """Whoever takes messages. `take` is called with each, in order."""

    def __init__(self, take: Callable[[Message], None]) -> None:
        self.take = take
        self.last_ns = 0  # when the last message that was sent arrives


class Bus:
    """All inboxes by the kinds that they take; and the log, as a hash."""

    def __init__(self, heap: Heap, network: Network, draw: Random) -> None:
        self.heap = heap
        self.messages = 0
        self._inboxes: dict[type[Message], list[Inbox]] = {}
        self._watchers: dict[type[Message], Callable[[Any], None]] = {}
        self._hop_ns = network.hop_ms * 1e6
        self._jitter_ns = network.hop_ms * 1e6 * network.jitter
        self._draw = draw.random
        self._digest = hashlib.sha256()
        self._log: list[str] = []

    def join(self, inbox: Inbox, kinds: Any) -> None:
        """From now on `inbox` takes messages of these kinds: one, or a union."""
        for kind in get_args(kinds) or (kinds,):
            self._inboxes.setdefault(kind, []).append(inbox)

    def watch(self, kind: type[Message], look: Callable[[Any], None]) -> None:
        """`look` at each message of a kind when it is sent. One watcher for each kind."""
        self._watchers[kind] = look

    def publish(self, message: Message, sender: Inbox | None = None) -> None:
        """To all but the sender."""
        heap = self.heap
        self._record(message)
        watcher = self._watchers.get(type(message))
        if watcher is not None:
            watcher(message)
        for inbox in self._inboxes.get(type(message), ()):
            if inbox is not sender:
                self.messages += 1
                at_ns = heap.now_ns + int(self._hop_ns + self._jitter_ns * self._draw())
                inbox.last_ns = at_ns = max(at_ns, inbox.last_ns)
                heap.at(at_ns, inbox.take, message)

    def hop_ns(self) -> int:
        """Of something that is no message of the bus: tokens on their way to a reader."""
        return int(self._hop_ns + self._jitter_ns * self._draw())

    def hash(self) -> str:
        """Of all messages so far: what, about which step, when, to whom."""
        self._digest.update("\n".join(self._log).encode())
        self._log.clear()
        return self._digest.hexdigest()[:16]

    def _record(self, message: Message) -> None:
        where = f"{message.worker} {message.attempt}" if type(message) is StepDispatched else ""
        self._log.append(f"{self.heap.now_ns} {type(message).__name__} {message.step} {where}")
        if len(self._log) >= HASHED_AT_ONCE:
            self.hash()


class Service(Inbox):
    """One machine with its state, woken when it wants to be."""

    def __init__(self, bus: Bus, machine: Machine[Any, Any], config: Any) -> None:
        super().__init__(self._arrived)
        self.machine = machine
        self.config = config
        self.state = machine.start(config)
        self._bus = bus
        self._heap = bus.heap
        self._away: list[Message] | None = None
        self._armed_ns: int | None = None  # the next look at the clock that is under way
        kinds = [kind for kind in get_args(machine.inputs) if kind is not Tick]
        for kind in kinds:
            bus.join(self, kind)

    def stop(self) -> None:
        """The process is gone; what comes waits for the next one."""
        self._away = self._away if self._away is not None else []

    def start(self) -> None:
        """Another process, with the state as a snapshot and the journal give it back."""
        waiting, self._away = self._away or [], None
        encoded = msgspec.json.encode(self.state)
        self.state = msgspec.json.decode(encoded, type=self.machine.state)
        for message in waiting:
            self._decide(message)
        self._arm()

    def _arrived(self, message: Message) -> None:
        if self._away is not None:
            self._away.append(message)
        else:
            self._decide(message)

    def _decide(self, event: Message) -> None:
        for output in step(self.machine, self.state, event, self._heap.now_ns, self.config):
            self._bus.publish(output, self)
        self._arm()

    def _arm(self) -> None:
        """See to it that the clock is looked at no later than the machine wants. An earlier look only finds that it is too early."""
        wake_ns = self.machine.wake_ns(self.state, self.config)
        if wake_ns is not None and (self._armed_ns is None or wake_ns < self._armed_ns):
            self._armed_ns = wake_ns
            self._heap.at(wake_ns, self._looked, wake_ns)

    def _looked(self, armed_ns: int) -> None:
        if armed_ns != self._armed_ns:  # an earlier look took its place
            return
        self._armed_ns = None
        if self._away is not None:
            return
        wake_ns = self.machine.wake_ns(self.state, self.config)
        if wake_ns is not None and wake_ns <= self._heap.now_ns:
            self._decide(TICK)
        else:
            self._arm()
