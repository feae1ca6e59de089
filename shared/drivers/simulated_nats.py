"""A process's connection to a simulated nats-server, in place of shared/runtime/nats_client.py: the same verbs, over a network that has
latency, loses what it may lose, and breaks.

The bus, the publisher, cursors, requests and leases above it are the real ones. What is sent takes a latency of its own and never
overtakes what the same connection sent before; what is on its way when the connection breaks is lost, and what is sent while it is
broken goes out with the next one, as with nats-py.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import nats.errors
from nats.js.errors import KeyNotFoundError, KeyWrongLastSequenceError, ObjectNotFoundError

from shared.drivers.simulate import Process, VirtualLoop
from shared.runtime.bus import LEASE_TTL_S, Bus, BusConfig
from shared.runtime.nats_client import Take, read_headers
from shared.sim.nats_server import NatsServer

ANSWER_S = 5.0
_WORLD = Context()  # of what happens to no process in particular
MAX_PAYLOAD = 8 * 2**20

Point = Callable[[Process, str, str], bool]  # whether the process dies here: (process, point, subject)


@dataclass
class Network:
    """What all connections share. `latency_s`: of the next message; `reconnect_s`: until a client tries again; `dies`: see `Point`."""

    loop: VirtualLoop
    server: NatsServer
    latency_s: Callable[[], float]
    reconnect_s: Callable[[], float]
    dies: Point = lambda process, point, subject: False
    clients: "list[SimulatedClient]" = field(default_factory=list)


class SimulatedClient:
    """See shared/runtime/nats_client.py."""

    def __init__(self, network: Network, process: Process) -> None:
        self.process = process
        self.stats = {"reconnects": 0}
        self.is_connected = False
        self.is_closed = self.is_draining = False
        self.max_payload = MAX_PAYLOAD
        self.reconnected: Callable[[], None] = lambda: None
        self.held_until_s = 0.0  # nothing arrives before, either way: a network that is silent for a while
        self.cut_until_s = 0.0  # no connection is made before
        self._network = network
        self._loop = network.loop
        self._numbers = 0
        self._takes: dict[int, tuple[str, Take]] = {}
        self._unsent: list[tuple[str, bytes, str, bytes]] = []
        self._up_s = self._down_s = 0.0  # arrival of the last message each way
        self._life = 0  # of the connection
        network.clients.append(self)

    # --- the connection ------------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Returns once it stands."""
        if not self._try():
            await asyncio.sleep(self._network.reconnect_s())
            await self.connect()

    def _try(self) -> bool:
        if not self._network.server.up or self._loop.time() < self.cut_until_s:
            return False
        self.is_connected = True
        self._life += 1
        for number, (pattern, _) in self._takes.items():
            self._network.server.subscribe(self, number, pattern)
        unsent, self._unsent = self._unsent, []
        for message in unsent:
            self._carry(*message)
        return True

    def disconnect(self) -> None:
        """It breaks. The process notices at once, and tries again after a while."""
        self.vanish()
        if self.is_connected and not self.is_closed:
            self.is_connected = False
            self._loop.call_later(self._network.reconnect_s(), self._again, context=self.process.context)

    def die(self) -> None:
        """Its process was killed. What it had sent is with the kernel, and arrives."""
        self.is_closed, self.is_connected = True, False
        self._network.server.drop(self)

    def vanish(self) -> None:
        """The server's end is gone, and what is on its way; the process has not noticed."""
        self._network.server.drop(self)
        self._life += 1

    def _again(self) -> None:
        if self.is_closed or self.is_connected:
            return
        if self._try():
            self.stats["reconnects"] += 1
            self.reconnected()
        else:
            self._loop.call_later(self._network.reconnect_s(), self._again, context=self.process.context)

    async def close(self) -> None:
        self.is_closed, self.is_connected = True, False
        self.vanish()

    async def drain(self) -> None:
        """What was sent arrives."""
        await asyncio.sleep(max(0.0, self._up_s - self._loop.time()))
        await self.close()

    # --- sending -------------------------------------------------------------------------------------------------------------

    async def publish(self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None) -> None:
        await self.send(subject, payload, reply)

    async def send(self, subject: str, payload: bytes, reply: str = "", headers: bytes = b"") -> None:
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        if self._network.dies(self.process, "sending", subject):
            await self.process.stop_here()
        if self.is_connected:
            self._carry(subject, payload, reply, headers)
        else:
            self._unsent.append((subject, payload, reply, headers))
        if self._network.dies(self.process, "sent", subject):
            await self.process.stop_here()

    def _carry(self, subject: str, payload: bytes, reply: str, headers: bytes) -> None:
        self._up_s = max(self._up_s, self.held_until_s, self._loop.time() + self._network.latency_s())
        self._loop.call_at(self._up_s, self._arrive, self._life, subject, payload, reply, headers, context=_WORLD)

    def _arrive(self, life: int, subject: str, payload: bytes, reply: str, headers: bytes) -> None:
        if life == self._life and self._network.server.up:
            self._network.server.publish(subject, payload, reply, headers)

    # --- receiving -----------------------------------------------------------------------------------------------------------

    def new_inbox(self) -> str:
        self._numbers += 1
        return f"_INBOX.{self.process.name}-{id_of(self)}-{self._numbers}"

    async def listen(self, subject: str, take: Take) -> "Subscription":
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        self._numbers += 1
        self._takes[self._numbers] = (subject, take)
        if self.is_connected:
            self._network.server.subscribe(self, self._numbers, subject)
        return Subscription(self, self._numbers)

    async def subscribe(
        self, subject: str, queue: str = "", cb: Callable[[Any], Awaitable[None]] | None = None, **_: int
    ) -> "Subscription":
        """Each message in a task of its own."""

        def take(name: str, reply: str, data: bytes, __: bytes) -> None:
            assert cb is not None
            self._loop.create_task(_run(cb(SimpleNamespace(subject=name, reply=reply, data=data))))

        return await self.listen(subject, take)

    async def unsubscribe(self, number: int) -> None:
        self._takes.pop(number, None)
        self._network.server.unsubscribe(self, number)

    def deliver(self, subscription: int, subject: str, reply: str, data: bytes, headers: bytes) -> None:
        """What the server sends to this connection."""
        self._down_s = max(self._down_s, self.held_until_s, self._loop.time() + self._network.latency_s())
        given = (subject, reply, data, headers)
        self._loop.call_at(self._down_s, self._take, self._life, subscription, *given, context=self.process.context)

    def _take(self, life: int, number: int, subject: str, *rest: Any) -> None:
        listening = self._takes.get(number)
        if life != self._life or listening is None:
            return
        if self._network.dies(self.process, "received", subject):
            self.process.kill()
            return
        listening[1](subject, *rest)

    async def request(self, subject: str, payload: bytes = b"", timeout: float = ANSWER_S) -> SimpleNamespace:
        """One answer. Raises TimeoutError."""
        inbox, answer = self.new_inbox(), self._loop.create_future()
        subscription = await self.listen(inbox, lambda *said: None if answer.done() else answer.set_result(said))
        try:
            await self.send(subject, payload, inbox)
            async with asyncio.timeout(timeout):
                _, _, data, headers = await answer
        finally:
            self._takes.pop(subscription.number, None)
        return SimpleNamespace(data=data, headers=read_headers(headers) if headers else {})

    # --- JetStream -----------------------------------------------------------------------------------------------------------

    def jetstream(self, timeout: float = ANSWER_S) -> "JetStream":
        return JetStream(self, self._network)

    def jsm(self) -> "JetStream":
        return JetStream(self, self._network)

    async def ask(self, what: Callable[[], Any]) -> Any:
        """Have the server do something, there and back. Raises nats.errors.TimeoutError when it or its answer does not arrive."""
        life = self._life
        await asyncio.sleep(self._trip_s())
        if not self._reaches(life):
            await asyncio.sleep(ANSWER_S)
            raise nats.errors.TimeoutError
        done = what()
        await asyncio.sleep(self._trip_s())
        if not self._reaches(life):
            await asyncio.sleep(ANSWER_S)
            raise nats.errors.TimeoutError
        return done

    def _trip_s(self) -> float:
        return max(self._network.latency_s(), self.held_until_s - self._loop.time())

    def _reaches(self, life: int) -> bool:
        return self.is_connected and life == self._life and self._network.server.up


@dataclass(frozen=True)
class Subscription:
    """What `listen` gives."""

    client: SimulatedClient
    number: int

    async def unsubscribe(self) -> None:
        await self.client.unsubscribe(self.number)


class JetStream:
    """What Legato uses of nats-py's JetStreamContext and JetStreamManager."""

    def __init__(self, client: SimulatedClient, network: Network) -> None:
        self._client = client
        self._server = network.server

    async def stream_info(self, name: str, subjects_filter: str = "") -> Any:
        def look() -> Any:
            info = self._server.info(name)
            return SimpleNamespace(created="then", state=SimpleNamespace(**info["state"]))

        return await self._client.ask(look)

    async def purge_stream(self, name: str, seq: int) -> None:
        await self._client.ask(lambda: self._server.streams[name].purge(seq))

    async def add_consumer(self, stream: str, config: Any) -> Any:
        start, patterns = config.opt_start_seq, tuple(config.filter_subjects)
        name = await self._client.ask(lambda: self._server.add_consumer(stream, patterns, start or 1, start is None))
        return SimpleNamespace(name=name)

    async def delete_consumer(self, stream: str, name: str) -> None:
        await self._client.ask(lambda: self._server.delete_consumer(name))

    async def key_value(self, bucket: str) -> "JetStream":
        return self

    async def get(self, key: str) -> Any:
        """A lease, or an object's content."""
        found = await self._client.ask(lambda: self._server.lease(key, LEASE_TTL_S))
        if found is None:
            held = self._server.leases.get(key)
            marker = SimpleNamespace(revision=held[0]) if held is not None and not held[1] else None
            raise KeyNotFoundError(entry=marker)
        return SimpleNamespace(revision=found[0], value=found[1])

    async def update(self, key: str, value: bytes, last: int) -> int:
        revision = await self._client.ask(lambda: self._server.write_lease(key, value, last, LEASE_TTL_S))
        if revision is None:
            raise KeyWrongLastSequenceError(description="wrong last sequence")
        return int(revision)

    async def delete(self, key: str, last: int = 0) -> None:
        await self.update(key, b"", last)

    async def object_store(self, bucket: str) -> "Objects":
        return Objects(self._client, self._server.objects.setdefault(bucket, {}))


@dataclass(frozen=True)
class Objects:
    """What Legato uses of nats-py's ObjectStore."""

    client: SimulatedClient
    held: dict[str, bytes]

    async def put(self, name: str, content: bytes) -> None:
        await self.client.ask(lambda: self.held.__setitem__(name, content))

    async def get(self, name: str) -> Any:
        content = await self.client.ask(lambda: self.held.get(name))
        if content is None:
            raise ObjectNotFoundError
        return SimpleNamespace(data=content)

    async def get_info(self, name: str) -> Any:
        return await self.get(name)

    async def list(self) -> Any:
        return await self.client.ask(lambda: [SimpleNamespace(name=name, deleted=False) for name in self.held])

    async def delete(self, name: str) -> None:
        await self.client.ask(lambda: self.held.pop(name, None))


async def connect(network: Network, process: Process) -> Bus:
    """The real bus on a simulated connection. Call it in the process."""
    client = SimulatedClient(network, process)
    await client.connect()
    bus = Bus(client, BusConfig())  # type: ignore[arg-type]
    client.reconnected = bus.publisher.resend_soon
    await bus.publisher.start()
    await bus.requests.start()
    return bus


def id_of(client: SimulatedClient) -> int:
    """Its number in the world."""
    return client._network.clients.index(client)


async def _run(work: Awaitable[None]) -> None:
    await work
