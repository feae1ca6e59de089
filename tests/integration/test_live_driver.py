"""The live driver with a small machine of its own: what it promises to every deciding service."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from shared.contracts import subjects
from shared.contracts.envelope import Message, Tick
from shared.contracts.ids import StepId
from shared.contracts.journal import DeadLetter, JournalBatch
from shared.contracts.outcomes import Status
from shared.contracts.output import End, Output
from shared.contracts.steps import CancelRequested
from shared.contracts.streams import DEAD, JOURNAL, LEASES_BUCKET, OUT, SNAPSHOTS_BUCKET, STEPS
from shared.core.machine import ENCODER, Machine
from shared.drivers.inputs import LIVE_LETTERS_PER_S, PREPARING_MAX, Wiring
from shared.drivers.journal import Reader, Snapshot
from shared.drivers.live import LiveDriver
from shared.drivers.replay import Replay
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.cursor import Record, Source
from shared.runtime.embedded import EmbeddedNats
from shared.runtime.lease import LeaseLost
from shared.runtime.publisher import StoreError
from shared.runtime.telemetry import Telemetry, TelemetryConfig


class Counted(msgspec.Struct):
    seen: int = 0
    ticks: int = 0


class Limit(msgspec.Struct, frozen=True):
    greeting: str = "hello"


def apply(state: Counted, event: Message, now_ns: int) -> None:
    if isinstance(event, CancelRequested):
        state.seen += 1
    elif isinstance(event, Tick):
        state.ticks += 1


def decide(state: Counted, event: Message, now_ns: int, config: Limit) -> list[Message]:
    if not isinstance(event, CancelRequested):
        return []
    if event.why == "bug":
        raise ZeroDivisionError("planted")
    if event.why == "large":
        return [Output(step=event.step, text="x" * 9_000_000)]
    return [Output(step=event.step, text=f"{config.greeting} {state.seen}", end=End(status=Status.SUCCEEDED))]


MACHINE = Machine(
    name="counter",
    state=Counted,
    config=Limit,
    inputs=CancelRequested | Tick,
    start=lambda config: Counted(),
    apply=apply,
    decide=decide,
    wake_ns=lambda state, config: None,
)


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(BusConfig(url=nats_url), "test")
    await bus.ensure_streams()
    for name in (STEPS.name, OUT.name, DEAD.name):
        await bus.js.purge_stream(name)
    yield bus
    await bus.close()


_PARTITIONS = iter(range(1_000_000))


@pytest.fixture
def partition() -> str:
    """A partition of its own per test: journals are kept for good."""
    return f"p{next(_PARTITIONS)}"


@asynccontextmanager
async def driven(
    bus: Bus, partition: str, machine: Machine[Counted, Limit] = MACHINE, instance: str = "one", wiring: Wiring | None = None
) -> AsyncIterator[LiveDriver[Counted, Limit]]:
    """A running driver; leaving the block is a kill (no drain)."""
    wiring = wiring or Wiring(sources=[Source(stream=STEPS.name, subjects=("legato.cancel.*",))])
    driver = LiveDriver(machine, Limit(), bus, wiring, Telemetry("counter", instance, TelemetryConfig()))
    task = asyncio.create_task(driver.run(partition, instance, asyncio.Event()))
    waiting = asyncio.create_task(driver.ready.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED, timeout=20)
    try:
        yield driver
    finally:
        task.cancel()
        waiting.cancel()
        await asyncio.gather(task, waiting, return_exceptions=True)


async def send(bus: Bus, step: str, why: str = "") -> None:
    await (await bus.store(subjects.cancel(StepId(step)), ENCODER.encode(CancelRequested(step=StepId(step), why=why))))


async def answers(bus: Bus, step: str, count: int = 1) -> list[Output]:
    """The stored outputs of a step, once there are `count`."""
    found: list[Output] = []
    cursor = await bus.read(Source(stream=OUT.name, subjects=(subjects.out(StepId(step)),)))
    async with asyncio.timeout(15):
        while len(found) < count:
            found += [msgspec.json.decode(record.data, type=Output) for record in await cursor.take(10)]
    await cursor.close()
    return found


async def journalled(driver: LiveDriver[Counted, Limit]) -> None:
    await asyncio.wait_for(driver._writer.empty.wait(), 15)


async def test_each_input_is_decided_once_and_in_order(bus: Bus, partition: str) -> None:
    async with driven(bus, partition) as driver:
        for number in range(50):
            await send(bus, f"{partition}s{number}")
        texts = [(await answers(bus, f"{partition}s{number}"))[0].text for number in (0, 25, 49)]
        await journalled(driver)
    assert texts == ["hello 1", "hello 26", "hello 50"]


async def test_a_killed_driver_goes_on_where_its_journal_ends(bus: Bus, partition: str) -> None:
    async with driven(bus, partition) as driver:
        await send(bus, f"{partition}a")
        await answers(bus, f"{partition}a")
        await journalled(driver)
    await send(bus, f"{partition}b")
    async with driven(bus, partition) as driver:
        [second] = await answers(bus, f"{partition}b")
        assert driver.state.seen == 2
    assert second.text == "hello 2"
    assert [o.text for o in await answers(bus, f"{partition}a")] == ["hello 1"]


async def test_an_input_that_meets_a_bug_is_parked_and_the_next_one_is_served(bus: Bus, partition: str) -> None:
    async with driven(bus, partition) as driver:
        await send(bus, f"{partition}a")
        await send(bus, f"{partition}b", why="bug")
        await send(bus, f"{partition}c")
        [third] = await answers(bus, f"{partition}c")
        await journalled(driver)
    assert third.text == "hello 2", "the state must not hold the input that failed"
    letter = await bus.last(DEAD.name, subjects.dead("counter"))
    assert letter is not None
    assert "ZeroDivisionError: planted" in msgspec.json.decode(letter.data, type=DeadLetter).error


async def test_inputs_that_take_time_to_prepare_are_decided_in_their_order_with_those_that_do_not(bus: Bus, partition: str) -> None:
    decoder, gate, begun = msgspec.json.Decoder(CancelRequested), asyncio.Event(), 0

    async def slowly(event: CancelRequested) -> CancelRequested:
        nonlocal begun
        begun += 1
        await gate.wait()
        return event

    def prepare(record: Record) -> CancelRequested | Awaitable[CancelRequested]:
        event = decoder.decode(record.data)
        return slowly(event) if event.why == "slow" else event

    wiring = Wiring(sources=[Source(stream=STEPS.name, subjects=("legato.cancel.*",))], prepare=prepare)
    async with driven(bus, partition, wiring=wiring):
        for number in range(3 * PREPARING_MAX):
            await send(bus, f"{partition}s{number}", why="slow" if number % 2 else "")
        assert (await answers(bus, f"{partition}s0"))[0].text == "hello 1"
        async with asyncio.timeout(15):
            while begun < PREPARING_MAX // 2:  # noqa: ASYNC110  it is counted elsewhere
                await asyncio.sleep(0)
        gate.set()
        last = 3 * PREPARING_MAX - 1
        texts = [(await answers(bus, f"{partition}s{number}"))[0].text for number in (1, 2, last // 2, last)]
    assert texts == ["hello 2", "hello 3", f"hello {last // 2 + 1}", f"hello {last + 1}"]


async def test_noise_on_live_subjects_holds_nobody_up_and_is_parked_in_part(bus: Bus, partition: str) -> None:
    wiring = Wiring(sources=[Source(stream=STEPS.name, subjects=("legato.cancel.*",))], live=[f"noise.{partition}"])
    async with driven(bus, partition, wiring=wiring):
        for _ in range(5_000):
            await bus.publish(f"noise.{partition}", b"garbage")
        await send(bus, f"{partition}a")
        assert (await answers(bus, f"{partition}a"))[0].text == "hello 1"
    letters = (await bus.js.stream_info(DEAD.name)).state.messages
    assert 1 <= letters <= 4 * LIVE_LETTERS_PER_S


async def test_what_cannot_be_read_is_parked_with_the_reason(bus: Bus, partition: str) -> None:
    async with driven(bus, partition):
        await (await bus.store("legato.cancel.x", b'{"type":"step.cancel","why":7}'))
        await send(bus, f"{partition}a")
        await answers(bus, f"{partition}a")
    letter = await bus.last(DEAD.name, subjects.dead("counter"))
    assert letter is not None
    assert "why" in msgspec.json.decode(letter.data, type=DeadLetter).error


async def test_the_journal_holds_what_a_replay_needs(bus: Bus, partition: str) -> None:
    async with driven(bus, partition) as driver:
        await send(bus, f"{partition}a")
        await answers(bus, f"{partition}a")
        await journalled(driver)
    reader = Reader(bus, MACHINE, partition)
    batches = [record async for _, record in reader.records() if isinstance(record, JournalBatch)]
    entries = [entry for batch in batches for entry in batch.entries if entry.outputs]
    [entry] = entries
    assert reader.input(entry).step == f"{partition}a"
    assert reader.outputs(entry)[0].text == "hello 1"  # type: ignore[attr-defined]
    stored = await bus.last(OUT.name, subjects.out(StepId(f"{partition}a")))
    assert stored is not None
    assert bytes(entry.outputs[0]) == stored.data


async def test_a_restart_with_the_same_name_takes_over_and_stops_the_old_one(bus: Bus, partition: str) -> None:
    wiring = Wiring(sources=[Source(stream=STEPS.name, subjects=("legato.cancel.*",))])
    old = LiveDriver(MACHINE, Limit(), bus, wiring, Telemetry("counter", "one", TelemetryConfig()))
    running = asyncio.create_task(old.run(partition, "one", asyncio.Event()))
    await asyncio.wait_for(old.ready.wait(), 15)
    async with driven(bus, partition):
        await send(bus, f"{partition}a")
        await answers(bus, f"{partition}a")
        with pytest.raises((LeaseLost, StoreError)):
            await asyncio.wait_for(running, 15)
        assert len(await answers(bus, f"{partition}a")) >= 1


async def test_a_second_process_stands_by_until_the_first_one_leaves(bus: Bus, partition: str) -> None:
    wiring = Wiring(sources=[Source(stream=STEPS.name, subjects=("legato.cancel.*",))])
    stop = asyncio.Event()
    first = LiveDriver(MACHINE, Limit(), bus, wiring, Telemetry("counter", "one", TelemetryConfig()))
    running = asyncio.create_task(first.run(partition, "one", stop))
    await asyncio.wait_for(first.ready.wait(), 15)
    second = LiveDriver(MACHINE, Limit(), bus, wiring, Telemetry("counter", "two", TelemetryConfig()))
    standing_by = asyncio.create_task(second.run(partition, "two", asyncio.Event()))
    await send(bus, f"{partition}a")
    await answers(bus, f"{partition}a")
    assert not second.ready.is_set()
    stop.set()
    await asyncio.wait_for(running, 15)
    await asyncio.wait_for(second.ready.wait(), 15)
    assert second.state.seen == first.state.seen
    standing_by.cancel()
    await asyncio.gather(standing_by, return_exceptions=True)


async def test_a_drain_leaves_a_snapshot_that_recovery_starts_from(bus: Bus, partition: str) -> None:
    wiring = Wiring(sources=[Source(stream=STEPS.name, subjects=("legato.cancel.*",))])
    stop = asyncio.Event()
    driver = LiveDriver(MACHINE, Limit(), bus, wiring, Telemetry("counter", "one", TelemetryConfig()))
    running = asyncio.create_task(driver.run(partition, "one", stop))
    await asyncio.wait_for(driver.ready.wait(), 15)
    await send(bus, f"{partition}a")
    await answers(bus, f"{partition}a")
    stop.set()
    await asyncio.wait_for(running, 15)
    snapshot = await Reader(bus, MACHINE, partition).snapshot()
    assert snapshot is not None
    assert msgspec.json.decode(snapshot.state, type=Counted).seen == driver.state.seen
    assert snapshot.number >= 1


async def test_a_changed_machine_is_free_to_decide_differently_from_now_on(bus: Bus, partition: str) -> None:
    async with driven(bus, partition) as driver:
        await send(bus, f"{partition}a")
        await answers(bus, f"{partition}a")
        await journalled(driver)
    loud = replace(MACHINE, decide=lambda s, e, n, c: [Output(step=e.step, text="LOUD")] if isinstance(e, CancelRequested) else [])
    async with driven(bus, partition, loud):
        await send(bus, f"{partition}b")
        [answer] = await answers(bus, f"{partition}b")
    assert answer.text == "LOUD"


# --- what is left of a journal -------------------------------------------------------------------------------------------------------


async def drained(bus: Bus, partition: str, *steps: str) -> Counted:
    """A driver that took these steps and left with a snapshot; its state."""
    stop = asyncio.Event()
    wiring = Wiring(sources=[Source(stream=STEPS.name, subjects=("legato.cancel.*",))])
    driver = LiveDriver(MACHINE, Limit(), bus, wiring, Telemetry("counter", "one", TelemetryConfig()))
    running = asyncio.create_task(driver.run(partition, "one", stop))
    await asyncio.wait_for(driver.ready.wait(), 15)
    for step in steps:
        await send(bus, step)
        await answers(bus, step)
    stop.set()
    await asyncio.wait_for(running, 15)
    return driver.state


async def test_a_snapshot_is_enough_to_go_on_when_the_journal_has_aged_out(bus: Bus, partition: str) -> None:
    before = await drained(bus, partition, f"{partition}a")
    await bus.js.purge_stream(JOURNAL.name, subject=subjects.journal("counter", partition))
    async with driven(bus, partition) as driver:
        await send(bus, f"{partition}b")
        await answers(bus, f"{partition}b")
        await journalled(driver)
        assert driver.state.seen == before.seen + 1


async def test_a_journal_with_a_hole_behind_the_snapshot_leads_to_a_fresh_state_at_its_end(bus: Bus, partition: str) -> None:
    await drained(bus, partition, f"{partition}a")
    async with driven(bus, partition) as driver:
        await send(bus, f"{partition}b")
        await answers(bus, f"{partition}b")
        await journalled(driver)
        lost = driver._writer.seq
        await send(bus, f"{partition}c")
        await answers(bus, f"{partition}c")
        await journalled(driver)
    await bus.js.purge_stream(JOURNAL.name, subject=subjects.journal("counter", partition), seq=lost + 1)
    await send(bus, f"{partition}d")
    async with driven(bus, partition) as driver:
        assert (await answers(bus, f"{partition}d"))[0].text == "hello 1", "the state starts afresh, behind what was journalled"
        await journalled(driver)
    report = await Replay(bus, MACHINE, partition).verify()
    assert report.differing == 0


async def test_where_snapshots_cannot_be_kept_the_work_goes_on(bus: Bus, partition: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.drivers.journal.SNAPSHOT_EVERY", 1)
    async with driven(bus, partition):
        await bus.js.delete_object_store(SNAPSHOTS_BUCKET)
        try:
            for name in "abc":
                await send(bus, f"{partition}{name}")
                await answers(bus, f"{partition}{name}")
        finally:
            await bus.ensure_streams()


async def test_the_lease_is_kept_during_a_long_recovery(bus: Bus, partition: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.runtime.lease.RENEW_S", 0.05)
    recover = Reader.recover

    async def slowly(reader: Reader[Counted, Limit], config: Limit) -> tuple[Counted, Snapshot]:
        bucket = await bus.js.key_value(LEASES_BUCKET)
        first = (await bucket.get(f"counter.{partition}")).revision
        while (await bucket.get(f"counter.{partition}")).revision == first:  # noqa: ASYNC110  it can only be asked
            await asyncio.sleep(0.01)
        return await recover(reader, config)

    monkeypatch.setattr(Reader, "recover", slowly)
    async with driven(bus, partition) as driver:
        assert driver.ready.is_set()


async def test_a_decision_too_large_for_any_message_is_parked_and_the_next_one_is_served(bus: Bus, partition: str) -> None:
    async with driven(bus, partition) as driver:
        await send(bus, f"{partition}a", why="large")
        await send(bus, f"{partition}b")
        assert (await answers(bus, f"{partition}b"))[0].text == "hello 1"
        await journalled(driver)
    letter = await bus.last(DEAD.name, subjects.dead("counter"))
    assert letter is not None
    assert "TooLarge" in msgspec.json.decode(letter.data, type=DeadLetter).error


async def test_the_journal_fits_a_server_that_takes_small_messages_only(server_directory: Path, partition: str) -> None:
    server = EmbeddedNats(server_directory / "nats", max_payload=64 * 1024)
    await server.start()
    bus = await Bus.connect(BusConfig(url=server.url), "test")
    await bus.ensure_streams()
    for number in range(300):
        await send(bus, f"{partition}s{number}", why="x" * 1_000)
    async with driven(bus, partition) as driver:
        await answers(bus, f"{partition}s299")
        await journalled(driver)
        assert driver.state.seen == 300
    await bus.close()
    await server.stop()
