"""The live driver: NATS in, NATS out, one machine, one partition.

Inputs are taken one at a time, in the order of their arrival, which the journal records. What a machine decides is published at once;
the input counts as handled when its outputs are stored and its journal entry is too. After a crash the state is rebuilt from snapshot and
journal, and reading goes on behind the last journalled position: an input in between is taken again, and message ids keep second copies
of what may happen once out of the streams.
"""

import asyncio
import logging
from typing import Generic

import msgspec

from shared.contracts.envelope import Message, Tick
from shared.contracts.journal import Entry
from shared.core.errors import LegatoError
from shared.core.machine import ENCODER, ConfigT, Machine, StateT, take
from shared.drivers.inputs import Arrived, Inputs, Wiring
from shared.drivers.journal import Due, Reader, Snapshot, Writer, advance, entry_bytes
from shared.drivers.sending import send
from shared.runtime.bus import Bus, BusError
from shared.runtime.clock import now_ns
from shared.runtime.lease import Lease
from shared.runtime.publisher import Ack, TooLarge
from shared.runtime.tasks import end
from shared.runtime.telemetry import Telemetry

log = logging.getLogger(__name__)

UNJOURNALLED_MAX = 4096  # inputs decided and not yet journalled: beyond it, no input is taken
DRAIN_TIMEOUT_S = 10.0
JOURNAL_TIMEOUT_S = 120.0  # as long as the publisher tries


class LiveDriver(Generic[StateT, ConfigT]):
    """Runs one partition until cancelled or until `stop` is set; then drains and leaves a snapshot."""

    def __init__(self, machine: Machine[StateT, ConfigT], config: ConfigT, bus: Bus, wiring: Wiring, telemetry: Telemetry) -> None:
        self.machine = machine
        self.config = config
        self.ready = asyncio.Event()
        self._bus = bus
        self._wiring = wiring
        self._telemetry = telemetry
        self._inputs = Inputs(machine.name, machine.inputs, bus, wiring, telemetry)
        self._positions: dict[str, int] = {}
        self._number = 0
        self._prefix = self._partition = ""
        self._snapshots = Due(0)
        self._copies: asyncio.Queue[Snapshot] = asyncio.Queue(1)
        self.state: StateT

    async def run(self, partition: str, instance: str, stop: asyncio.Event) -> None:
        """Take the lease, recover, work. Raises LeaseLost or StoreError when this process must not go on."""
        lease = await Lease.acquire(self._bus, f"{self.machine.name}.{partition}", instance, stop)
        if lease is None:
            return
        keeping = asyncio.create_task(lease.keep(), name="lease")  # from now on: a recovery may take longer than a lease
        driving = asyncio.create_task(self._drive(partition, lease.epoch, stop), name="driver")
        try:
            done, _ = await asyncio.wait((keeping, driving), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # raises what ended it
        finally:
            await end((keeping, driving))
        await lease.release()

    async def _drive(self, partition: str, epoch: int, stop: asyncio.Event) -> None:
        await self._recover(partition, epoch)
        writing = asyncio.create_task(self._writer.run(), name="journal")
        stopping = asyncio.create_task(stop.wait())
        await self._inputs.open(self._positions)
        work = asyncio.create_task(self._work(), name="decisions")
        keeping = asyncio.create_task(self._keep_copies(), name="snapshots")
        self.ready.set()
        try:
            done, _ = await asyncio.wait((writing, work, keeping, stopping), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await end((work, keeping))
            await self._leave()
        finally:
            self.ready.clear()
            await end((work, keeping, stopping, writing))
            await self._inputs.close()

    async def _recover(self, partition: str, epoch: int) -> None:
        reader = Reader(self._bus, self.machine, partition)
        self.state, recovered = await reader.recover(self.config)
        self._positions, self._number = recovered.positions, recovered.number
        self._snapshots = Due(self._number)
        self._prefix, self._partition = f"{self.machine.name}.{partition}.{epoch}", partition
        self._writer = Writer(self._bus, self.machine.name, partition, epoch, recovered.journal_seq)
        await self._writer.open(self._number, self.config)
        log.info("recovered", extra={"inputs": self._number, "epoch": epoch})
        if not reader.whole:  # so that recovery and replay have a state to start from
            await self._keep(self._copy())

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                await self._writer.empty.wait()
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                await self._keep(self._copy())
        except (TimeoutError, LegatoError) as error:
            log.warning("left without a snapshot", extra={"error": repr(error)})

    # --- decisions -----------------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            wake_ns = self.machine.wake_ns(self.state, self.config)
            batch = await self._inputs.take(wake_ns)
            for arrived in batch:
                await self._take(arrived)
            if not batch and wake_ns is not None and (now := now_ns()) >= wake_ns:
                tick = Tick(time_ns=now)
                await self._take(Arrived("", tick, ENCODER.encode(tick)))
            if len(self._writer) > UNJOURNALLED_MAX:
                await self._all_journalled()
            if self._copies.empty() and self._snapshots.due(self._number, clock()):
                self._copies.put_nowait(self._copy())

    async def _take(self, arrived: Arrived) -> None:
        started = now_ns()
        try:
            prefix = f"{self._prefix}.{self._number + 1}"
            outputs, encoded = take(self.machine, self.state, arrived.event, started, self.config, prefix)
            messages = self._with_attached(outputs, encoded)
            self._check_sizes(arrived, encoded, messages)
        except Exception as error:
            log.exception("a decision failed")
            await self._poisoned(arrived, error)
            return
        self._number += 1
        stored: list[asyncio.Future[Ack]] = []
        for message, data in messages:
            if self._wiring.handed is not None and (handed := self._wiring.handed(message)) is not None:
                await self._bus.hand_last(*handed)
            stored += await send(self._bus, message, data)
        advance(self._positions, arrived.source)
        entry = Entry(
            number=self._number,
            now_ns=started,
            source=arrived.source,
            input=msgspec.Raw(arrived.raw),
            outputs=[msgspec.Raw(data) for data in encoded],
        )
        self._writer.add(entry, stored)
        self._telemetry.decision(arrived.event, outputs, started)

    def _with_attached(self, outputs: list[Message], encoded: list[bytes]) -> list[tuple[Message, bytes]]:
        """All that is to be sent, in order."""
        attach = self._wiring.attach
        messages: list[tuple[Message, bytes]] = []
        for message, data in zip(outputs, encoded, strict=True):
            messages += [(extra, ENCODER.encode(extra)) for extra in (attach(message) if attach is not None else ())]
            messages.append((message, data))
        return messages

    def _check_sizes(self, arrived: Arrived, encoded: list[bytes], messages: list[tuple[Message, bytes]]) -> None:
        """Raises TooLarge before anything is sent: a decision that can never be stored would else end every process that takes it."""
        largest = max([entry_bytes(arrived.raw, encoded), *(len(data) for _, data in messages)])
        if largest > self._bus.publisher.message_bytes_max:
            raise TooLarge(f"what was decided takes {largest} bytes, which no message may have")

    async def _poisoned(self, arrived: Arrived, error: Exception) -> None:
        """A bug met this input, and may have left the state half changed: park the input, rebuild the state, go on behind it."""
        if isinstance(arrived.event, Tick):
            raise error  # time cannot be parked: stop, and let the supervisor start afresh
        await self._inputs.park(str(arrived.event.__struct_config__.tag), arrived.source, arrived.raw, f"{type(error).__name__}: {error}")
        await self._all_journalled()
        self.state, _ = await Reader(self._bus, self.machine, self._partition).recover(self.config)
        tick = Tick(time_ns=now_ns())
        await self._take(Arrived(arrived.source, tick, ENCODER.encode(tick)))

    async def _all_journalled(self) -> None:
        async with asyncio.timeout(JOURNAL_TIMEOUT_S):
            await self._writer.empty.wait()

    # --- snapshots -----------------------------------------------------------------------------------------------------------

    def _copy(self) -> Snapshot:
        """The state as it is now. Encoding it is all that decisions wait for; keeping it goes on beside them."""
        now_s = asyncio.get_running_loop().time()
        self._snapshots.taken(self._number, now_s, now_s)
        return Snapshot(
            number=self._number,
            journal_seq=self._writer.seq,
            positions=dict(self._positions),
            state=msgspec.Raw(ENCODER.encode(self.state)),
        )

    async def _keep_copies(self) -> None:
        while True:
            await self._keep(await self._copies.get())

    async def _keep(self, copy: Snapshot) -> None:
        """Keep a copy, once the journal has all that it holds. What fails now is tried again after as many inputs more."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            await self._writer.reached(copy.number)
            await self._writer.save(copy)
        except BusError as error:
            log.warning("snapshot not kept", extra={"partition": self._partition, "error": str(error)})
        self._snapshots.taken(copy.number, started, loop.time())
