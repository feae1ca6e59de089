"""Replay of real journals: written by the live driver, or by its writer where a long or damaged one is needed."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec
import pytest

from shared.contracts import subjects
from shared.contracts.envelope import Message, Tick
from shared.contracts.ids import MessageId, StepId
from shared.contracts.journal import Entry
from shared.contracts.output import Output
from shared.contracts.steps import CancelRequested
from shared.contracts.streams import JOURNAL, OUT, STEPS
from shared.core.machine import ENCODER, Machine, stamp, step
from shared.drivers.inputs import Wiring
from shared.drivers.journal import Snapshot, Writer
from shared.drivers.live import LiveDriver
from shared.drivers.refold import ReplayError
from shared.drivers.replay import Replay
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.cursor import Source
from shared.runtime.ids import new_id
from shared.runtime.telemetry import Telemetry, TelemetryConfig


class Sum(msgspec.Struct):
    total: int = 0


class Threshold(msgspec.Struct, frozen=True, kw_only=True):
    at_least: int = 2


def apply(state: Sum, event: Message, now_ns: int) -> None:
    if isinstance(event, CancelRequested):
        state.total += len(event.why)


def decide(state: Sum, event: Message, now_ns: int, config: Threshold) -> list[Message]:
    if isinstance(event, CancelRequested) and len(event.why) >= config.at_least:
        return [Output(step=event.step, attempt=state.total, text=f"{state.total} at {now_ns}")]  # an attempt ends once
    return []


MACHINE: Machine[Sum, Threshold] = Machine(
    name="adder",
    state=Sum,
    config=Threshold,
    inputs=CancelRequested | Tick,
    start=lambda config: Sum(),
    apply=apply,
    decide=decide,
    wake_ns=lambda state, config: None,
)


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(BusConfig(url=nats_url), "test")
    await bus.ensure_streams()
    yield bus
    await bus.close()


@pytest.fixture
def partition() -> str:
    return new_id()


# --- journals of the live driver ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def driven(bus: Bus, partition: str, config: Threshold) -> AsyncIterator[None]:
    """The machine at work on what is sent to steps of this partition; leaving drains it."""
    stop = asyncio.Event()
    wiring = Wiring(sources=[Source(stream=STEPS.name, subjects=(f"legato.cancel.{partition}",))])
    driver = LiveDriver(MACHINE, config, bus, wiring, Telemetry("adder", "one", TelemetryConfig()))
    async with asyncio.TaskGroup() as group:
        group.create_task(driver.run(partition, "one", stop))
        await asyncio.wait_for(driver.ready.wait(), 20)
        yield
        stop.set()


async def send(bus: Bus, partition: str, whys: Sequence[str]) -> None:
    """Send inputs, and wait until the last one, which must be answered, was."""
    step_id = StepId(partition)
    before = await bus.last(OUT.name, subjects.out(step_id))
    for why in whys:
        await (await bus.store(subjects.cancel(step_id), ENCODER.encode(CancelRequested(step=step_id, why=why))))
    cursor = await bus.read(Source(stream=OUT.name, subjects=(subjects.out(step_id),)), before.seq if before else 0)
    expected = sum(len(why) >= 2 for why in whys)
    async with asyncio.timeout(20):
        while expected > 0:
            expected -= len(await cursor.take(100))
    await cursor.close()


async def test_a_run_with_restarts_and_another_configuration_replays_without_a_difference(bus: Bus, partition: str) -> None:
    async with driven(bus, partition, Threshold()):
        await send(bus, partition, ["a", "bb", "ccc"] * 20)
    async with driven(bus, partition, Threshold(at_least=1)):
        await send(bus, partition, ["dd"] * 10)
    report = await Replay(bus, MACHINE, partition).verify()
    assert (report.inputs, report.outputs, report.differing, report.missing) == (70, 50, 0, 0)
    assert (report.first, report.last, report.snapshot) == (1, 70, 0)


async def test_a_changed_rule_is_reported_where_it_first_parts(bus: Bus, partition: str) -> None:
    async with driven(bus, partition, Threshold()):
        await send(bus, partition, ["a", "bb", "ccc", "dddd"])
    changed = replace(
        MACHINE, decide=lambda s, e, n, c: [Output(step=e.step, attempt=s.total, text="?")] if s.total > 3 else decide(s, e, n, c)
    )
    report = await Replay(bus, changed, partition).verify()
    assert (report.inputs, report.differing) == (4, 2)
    assert report.differences[0].number == 3
    assert report.differences[0].fields[0].path == "text"


async def test_another_setting_shows_what_it_would_have_changed(bus: Bus, partition: str) -> None:
    async with driven(bus, partition, Threshold()):
        await send(bus, partition, ["a", "bb", "ccc"])
    report = await Replay(bus, MACHINE, partition, ["at_least=3"]).verify()
    assert [(each.number, each.replayed) for each in report.differences] == [(2, "")]


async def test_a_moment_shows_the_state_before_and_what_was_decided(bus: Bus, partition: str) -> None:
    async with driven(bus, partition, Threshold()):
        await send(bus, partition, ["a", "bb", "ccc"])
    moment = await Replay(bus, MACHINE, partition).at(3)
    assert msgspec.json.decode(moment.state) == {"total": 3}
    assert msgspec.json.decode(moment.input)["why"] == "ccc"
    assert msgspec.json.decode(moment.recorded[0])["text"].startswith("6 at")
    assert moment.differences == []
    with pytest.raises(ReplayError, match="no entry 4 yet"):
        await Replay(bus, MACHINE, partition).at(4)


# --- longer journals, from the writer ----------------------------------------------------------------------------------------


async def write(bus: Bus, partition: str, epoch: int, numbers: range, state: Sum) -> Writer:
    """Journal entries of one epoch whose configuration is `at_least=epoch`."""
    last = await bus.last(JOURNAL.name, subjects.journal("adder", partition))
    writer = Writer(bus, "adder", partition, epoch, last.seq if last else 0)
    config = Threshold(at_least=epoch)
    await writer.open(numbers.start - 1, config)
    for number in numbers:
        event = CancelRequested(id=MessageId(f"c{number}"), step=StepId(f"s{number}"), why="x" * (number % 5))
        outputs = stamp(step(MACHINE, state, event, number, config), event, f"adder.{partition}.{epoch}.{number}", number)
        raws = [msgspec.Raw(data) for data in outputs]
        writer.add(Entry(number=number, now_ns=number, input=msgspec.Raw(ENCODER.encode(event)), outputs=raws), [])
    writing = asyncio.create_task(writer.run())
    await asyncio.wait_for(writer.empty.wait(), 30)
    writing.cancel()
    await asyncio.gather(writing, return_exceptions=True)
    return writer


async def save(writer: Writer, state: Sum, number: int) -> None:
    await writer.save(Snapshot(number=number, journal_seq=writer.seq, positions={}, state=msgspec.Raw(ENCODER.encode(state))))


async def test_thousands_of_decisions_replay_with_progress(bus: Bus, partition: str) -> None:
    await write(bus, partition, 2, range(1, 6_001), Sum())
    seen: list[tuple[int, int]] = []
    report = await Replay(bus, MACHINE, partition).verify(progress=lambda number, end: seen.append((number, end)))
    assert (report.inputs, report.differing) == (6_000, 0)
    assert seen[-1] == (6_000, 6_000)
    assert seen == sorted(seen)


async def test_a_part_starts_from_the_snapshot_before_it_under_the_configuration_of_its_epoch(bus: Bus, partition: str) -> None:
    state = Sum()
    await write(bus, partition, 2, range(1, 501), state)
    writer = await write(bus, partition, 3, range(501, 801), state)
    await save(writer, state, 800)
    for number in (801, 802):  # the same epoch goes on behind the snapshot, without opening the journal again
        event = CancelRequested(step=StepId("s"), why="xxxx")
        outputs = stamp(step(MACHINE, state, event, 1, Threshold(at_least=3)), event, f"adder.{partition}.3.{number}", 1)
        raws = [msgspec.Raw(data) for data in outputs]
        writer.add(Entry(number=number, now_ns=1, input=msgspec.Raw(ENCODER.encode(event)), outputs=raws), [])
        await writer._write(writer._take())
    report = await Replay(bus, MACHINE, partition).verify(first=802)
    assert (report.snapshot, report.first, report.last, report.differing) == (800, 802, 802, 0)
    assert report.notes == []
    middle = await Replay(bus, MACHINE, partition).verify(first=400, last=600)
    assert (middle.snapshot, middle.inputs, middle.differing) == (0, 201, 0)


async def test_a_snapshot_that_is_ahead_of_the_batch_that_it_names_is_followed_on(bus: Bus, partition: str) -> None:
    """As the live driver takes it: the state has inputs whose batch is still under way."""
    state, behind = Sum(), Sum()
    writer = await write(bus, partition, 2, range(1, 101), state)
    seq = writer.seq
    await write(bus, partition, 3, range(101, 151), state)
    await writer.save(Snapshot(number=150, journal_seq=seq, positions={}, state=msgspec.Raw(ENCODER.encode(state))))
    behind.total = state.total
    await write(bus, partition, 4, range(151, 201), state)
    report = await Replay(bus, MACHINE, partition).verify(first=180)
    assert (report.snapshot, report.first, report.last, report.differing) == (150, 180, 200, 0)
    moment = await Replay(bus, MACHINE, partition).at(151)
    assert msgspec.json.decode(moment.state) == {"total": behind.total}


@pytest.mark.parametrize("garbage", [b"hello", b"", b"\xff", b'{"type": "tick"}', b"[" * 50_000], ids=range(5))
async def test_what_somebody_else_published_on_the_journal_is_passed_over(bus: Bus, partition: str, garbage: bytes) -> None:
    async def publish_garbage() -> None:
        await (await bus.store(subjects.journal("adder", partition), garbage))

    await publish_garbage()
    async with driven(bus, partition, Threshold()):
        await send(bus, partition, ["a", "bb"])
    await publish_garbage()
    async with driven(bus, partition, Threshold()):
        await send(bus, partition, ["ccc"])
    await publish_garbage()
    report = await Replay(bus, MACHINE, partition).verify()
    assert (report.inputs, report.outputs, report.differing, report.missing) == (3, 2, 0, 0)
    moment = await Replay(bus, MACHINE, partition).at(3)
    assert msgspec.json.decode(moment.state) == {"total": 3}


async def trimmed(bus: Bus, partition: str, records: int) -> None:
    """A journal of epochs 2 and 3 with a snapshot between them, at entry 300; epoch 2 and the first `records` of epoch 3 are gone."""
    state = Sum()
    writer = await write(bus, partition, 2, range(1, 301), state)
    await save(writer, state, 300)
    await write(bus, partition, 3, range(301, 601), state)
    await bus.js.purge_stream(JOURNAL.name, seq=writer.seq + 1 + records)


async def test_what_is_missing_of_a_trimmed_log_is_counted(fresh_nats_bus: Bus, partition: str) -> None:
    await trimmed(fresh_nats_bus, partition, 0)
    report = await Replay(fresh_nats_bus, MACHINE, partition).verify()
    assert (report.missing, report.first, report.inputs, report.differing) == (300, 301, 300, 0)
    assert report.notes == []
    with pytest.raises(ReplayError, match="no longer in the log"):
        await Replay(fresh_nats_bus, MACHINE, partition).at(12)


async def test_a_configuration_that_was_trimmed_away_is_taken_from_the_defaults_with_a_note(fresh_nats_bus: Bus, partition: str) -> None:
    await trimmed(fresh_nats_bus, partition, 1)
    report = await Replay(fresh_nats_bus, MACHINE, partition, ["at_least=3"]).verify()
    assert (report.inputs, report.differing) == (300, 0)
    assert "epoch 3" in report.notes[0]


async def test_a_log_that_no_snapshot_leads_to_is_refused(fresh_nats_bus: Bus, partition: str) -> None:
    await trimmed(fresh_nats_bus, partition, 2)
    with pytest.raises(ReplayError, match="no snapshot leads there"):
        await Replay(fresh_nats_bus, MACHINE, partition).verify()


async def test_a_service_that_never_ran_is_an_error_that_says_so(bus: Bus, partition: str) -> None:
    with pytest.raises(ReplayError, match="no journal of adder"):
        await Replay(bus, MACHINE, partition).verify()


@pytest.fixture
async def fresh_nats_bus(fresh_nats: object) -> AsyncIterator[Bus]:
    bus = await Bus.connect(BusConfig(url=fresh_nats.url), "test")  # type: ignore[attr-defined]
    await bus.ensure_streams()
    yield bus
    await bus.close()
