"""A worker with the simulated engine on a real bus: what it owes to the scheduler and to the reader."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from nats.aio.msg import Msg
from worker_rig import LIMIT_S, beat_of, expected, first, listed, working

from services.worker import captured
from shared.contracts import subjects
from shared.contracts.fleet import WorkerBeat, WorkerGone, WorkerRegistered, WorkerState
from shared.contracts.ids import CellId, StepId, WorkerId
from shared.contracts.kv import KvChanged, KvSnapshot
from shared.contracts.outcomes import FinishReason, Problem, Reason, Status
from shared.contracts.output import Output
from shared.contracts.steps import AttemptEnded
from shared.contracts.streams import FLEET, OUT, STEPS
from shared.core.blocks import block_hashes
from shared.core.machine import ENCODER
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.clock import now_ns
from shared.runtime.ids import new_id


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(BusConfig(url=nats_url), "test")
    await bus.ensure_streams()
    yield bus
    await bus.close()


async def test_a_dispatched_step_is_generated_once_and_reported(bus: Bus) -> None:
    prompt = list(b"What do violins do all night?")
    async with working(bus) as rig:
        step = await rig.prompt(prompt)
        await rig.dispatch(step)
        await rig.dispatch(step)  # a second copy is nothing new
        report = await rig.ended(step)
        outputs = await rig.outputs(step)
    assert report.status is Status.SUCCEEDED
    assert report.tokens == expected(prompt, 40) == [token for output in outputs for token in output.tokens]
    assert report.text == "".join(output.text for output in outputs)
    assert report.usage.prompt_tokens == len(prompt)
    assert report.usage.output_tokens == 40
    assert [output.end is not None for output in outputs] == [False] * (len(outputs) - 1) + [True]
    assert outputs[-1].end is not None
    assert outputs[-1].end.finish_reason is FinishReason.LENGTH
    offset = 0
    for output in outputs:
        assert output.offset == offset
        offset += len(output.tokens)


async def test_the_next_attempt_goes_on_behind_what_the_reader_has(bus: Bus) -> None:
    prompt = list(b"And what do cellos do in the morning?")
    async with working(bus) as rig:
        step = await rig.prompt(prompt)
        begun = Output(step=step, attempt=1, offset=0, tokens=expected(prompt, 11), text=bytes(expected(prompt, 11)).decode())
        await (await bus.store(subjects.outbox(step), ENCODER.encode(begun)))
        await rig.dispatch(step, attempt=2)
        report = await rig.ended(step)
        outputs = await rig.outputs(step)
    assert outputs[1].attempt == 2
    assert outputs[1].offset == 11
    assert report.tokens == expected(prompt, 40)
    assert report.text == "".join(output.text for output in outputs) == bytes(expected(prompt, 40)).decode(errors="replace")
    assert report.usage.output_tokens == 40


async def test_an_attempt_that_was_overtaken_cannot_write_and_is_void(bus: Bus) -> None:
    async with working(bus) as rig:
        step = await rig.prompt(list(b"Who plays first?"))
        later = Output(step=step, attempt=2, offset=0, tokens=[1, 2, 3], text="abc")
        await (await bus.store(subjects.outbox(step), ENCODER.encode(later)))
        await rig.dispatch(step, attempt=1)
        await listed(rig, step, False)
        assert await rig.outputs(step) == [later]
    assert await bus.last(STEPS.name, subjects.step_event(step, "ended.local")) is None


async def test_two_workers_with_the_same_attempt_do_not_pass_for_one(bus: Bus) -> None:
    """As after a crash of the scheduler, whose second decision reaches a worker although the stream keeps the first."""
    prompt = list(b"Who plays the first violin?")
    async with working(bus, "simulated.law=8b-h100") as one, working(bus, "simulated.law=8b-h100", "worker.output_gap_ms=35") as two:
        step = await one.prompt(prompt)
        await asyncio.gather(one.dispatch(step, max_tokens=150), two.dispatch(step, max_tokens=150))
        report = await one.ended(step)
        outputs = await one.outputs(step)
        await listed(one, step, False)
        await listed(two, step, False)
    assert report.tokens == [token for output in outputs for token in output.tokens] == expected(prompt, 150)
    assert [output.offset for output in outputs] == [sum(len(o.tokens) for o in outputs[:index]) for index in range(len(outputs))]
    reports = [r async for r in bus.history(STEPS.name, subjects.step_event(step, "ended.local"))]
    assert len(reports) == 1


async def test_long_outputs_with_many_logprobs_fit_the_bus(bus: Bus) -> None:
    prompt = list(b"Play the whole cycle.")
    async with working(bus, "simulated.law=instant") as rig:
        step = await rig.prompt(prompt)
        await rig.dispatch(step, max_tokens=3_000, logprobs=20)
        report = await rig.ended(step)
        records = [record async for record in bus.history(OUT.name, subjects.out(step))]
    outputs = [msgspec.json.decode(record.data, type=Output) for record in records]
    assert report.status is Status.SUCCEEDED
    assert report.tokens == [token for output in outputs for token in output.tokens] == expected(prompt, 3_000)
    assert [len(output.logprobs) for output in outputs] == [len(output.tokens) for output in outputs]
    assert report.text == "".join(output.text for output in outputs)
    assert max(len(record.data) for record in records) < 2**20


async def test_an_output_that_lost_its_beginning_is_not_gone_on_from(bus: Bus) -> None:
    async with working(bus) as rig:
        step = await rig.prompt(list(b"The first page is missing."))
        rest = Output(step=step, attempt=1, offset=7, tokens=[1, 2, 3], text="abc")
        await (await bus.store(subjects.outbox(step), ENCODER.encode(rest)))
        await rig.dispatch(step, attempt=2)
        report = await rig.ended(step)
    assert (report.status, report.retryable) == (Status.FAILED, False)


async def test_a_worker_that_loads_says_that_what_it_had_is_lost(bus: Bus) -> None:
    beats: list[WorkerBeat] = []

    async def take(msg: Msg) -> None:
        beats.append(msgspec.json.decode(msg.data, type=WorkerBeat))

    subscription = await bus.subscribe(subjects.BEATS, take)
    async with working(bus, "simulated.load_s=0.3") as rig:
        ready = await first(bus, FLEET.name, subjects.worker(rig.worker), WorkerRegistered)
    await subscription.unsubscribe()
    loading = next(beat for beat in beats if beat.worker == rig.worker)
    assert loading.state is WorkerState.LOADING
    assert loading.epoch == ready.epoch > 0


async def test_a_worker_whose_clock_was_set_back_still_counts_as_the_newest(bus: Bus) -> None:
    name, ahead = f"worker-{new_id()}", now_ns() // 1_000_000 + 3_600_000
    gone = WorkerGone(worker=WorkerId(name), cell=CellId("local"), epoch=ahead)
    await (await bus.store(subjects.worker(gone.worker), ENCODER.encode(gone)))
    async with working(bus, name=name) as rig:
        assert (await beat_of(rig)).epoch == ahead + 1


async def test_a_step_whose_end_is_stored_is_reported_and_not_generated_again(bus: Bus) -> None:
    prompt = list(b"How long is a rest?")
    async with working(bus) as rig:
        step = await rig.prompt(prompt)
        await rig.dispatch(step)
        await rig.ended(step)
        before = await rig.outputs(step)
        await rig.dispatch(step, attempt=2)
        async with asyncio.timeout(LIMIT_S):
            while True:
                reports = [r async for r in bus.history(STEPS.name, subjects.step_event(step, "ended.local"))]
                if len(reports) == 2:
                    break
        after = await rig.outputs(step)
    assert before == after
    again = msgspec.json.decode(reports[1].data, type=AttemptEnded)
    assert (again.attempt, again.status, again.tokens) == (2, Status.SUCCEEDED, expected(prompt, 40))


async def test_a_cancelled_step_ends_for_its_reader_and_leaves_the_engine(bus: Bus) -> None:
    async with working(bus, "simulated.law=8b-h100") as rig:
        step = await rig.prompt(list(b"Play for ever."))
        await rig.dispatch(step, max_tokens=20_000)
        await first(bus, OUT.name, subjects.out(step), Output)
        await rig.revoke(step, Reason.CANCELLED)
        report = await rig.ended(step)
        outputs = await rig.outputs(step)
    assert report.status is Status.CANCELLED
    assert outputs[-1].end is not None
    assert outputs[-1].end.status is Status.CANCELLED
    assert 0 < report.usage.output_tokens < 20_000


async def test_a_revocation_for_any_other_reason_is_silent(bus: Bus) -> None:
    async with working(bus, "simulated.law=8b-h100") as rig:
        step = await rig.prompt(list(b"Play for ever."))
        await rig.dispatch(step, max_tokens=20_000)
        await first(bus, OUT.name, subjects.out(step), Output)
        await rig.revoke(step, Reason.INTERNAL)
        while (await beat_of(rig)).running:
            pass
        assert (await captured.read(bus, step)).end is None
        assert await bus.last(STEPS.name, subjects.step_event(step, "ended.local")) is None


async def test_a_preempted_attempt_sends_its_bill_and_leaves_its_output_to_the_next(bus: Bus) -> None:
    async with working(bus, "simulated.law=8b-h100") as rig:
        step = await rig.prompt(list(b"Play for ever."))
        await rig.dispatch(step, max_tokens=20_000)
        await first(bus, OUT.name, subjects.out(step), Output)
        await rig.revoke(step, Reason.PREEMPTED)
        report = await rig.ended(step)
        stored = await captured.read(bus, step)
    assert report.problem is not None
    assert (report.status, report.problem.reason, report.retryable) == (Status.FAILED, Reason.PREEMPTED, True)
    assert report.gpu_s > 0
    assert stored.end is None
    assert len(stored.tokens) == report.usage.output_tokens


async def test_a_draining_worker_hands_back_what_it_cannot_finish(bus: Bus) -> None:
    async with working(bus, "simulated.law=8b-h100", "worker.drain_timeout_s=0.1") as rig:
        step = await rig.prompt(list(b"Play for ever."))
        await rig.dispatch(step, max_tokens=20_000)
        await first(bus, OUT.name, subjects.out(step), Output)
        rig.stop.set()
        report = await rig.ended(step)
    assert report.status is Status.FAILED
    assert report.retryable
    assert (await captured.read(bus, step)).end is None
    gone = await bus.last(FLEET.name, subjects.worker(rig.worker))
    assert gone is not None
    assert msgspec.json.decode(gone.data, type=WorkerGone).worker == rig.worker


async def test_a_worker_whose_machine_is_to_go_leaves_before_it_and_stays_away(bus: Bus, tmp_path: Path) -> None:
    notice = tmp_path / "notice"
    told: asyncio.Queue[WorkerRegistered] = asyncio.Queue()

    async def take(msg: Msg) -> None:
        message = msgspec.json.decode(msg.data, type=WorkerRegistered | WorkerGone)
        if isinstance(message, WorkerRegistered) and message.state is WorkerState.DRAINING:
            told.put_nowait(message)

    settings = ("simulated.law=8b-h100", f"worker.notices.file={notice}", "worker.notices.poll_ms=50")
    async with working(bus, *settings) as rig:
        subscription = await bus.subscribe(subjects.worker(rig.worker), take)
        step = await rig.prompt(list(b"Play for ever."))
        await rig.dispatch(step, max_tokens=20_000)
        await first(bus, OUT.name, subjects.out(step), Output)
        assert rig.ready.is_set()
        before_ns = now_ns()
        notice.write_text('{"seconds": 1, "why": "the rack is moved"}')
        registered = await asyncio.wait_for(told.get(), LIMIT_S)
        assert before_ns < registered.leaves_ns < before_ns + 1_000_000_000
        report = await rig.ended(step)
        assert (report.status, report.retryable) == (Status.FAILED, True)
        assert (await beat_of(rig)).state is WorkerState.DRAINING, "it still says what it is, and is not gone"
        assert not rig.ready.is_set(), "it can do no work any more"
        late = await rig.prompt(list(b"Too late."))
        await rig.dispatch(late)
        assert (await rig.ended(late)).problem == Problem(reason=Reason.NO_CAPACITY, message="the worker is draining")
    await subscription.unsubscribe()
    gone = await bus.last(FLEET.name, subjects.worker(rig.worker))
    assert gone is not None
    assert msgspec.json.decode(gone.data, type=WorkerGone).worker == rig.worker


async def test_a_worker_says_what_it_serves_and_keeps_its_tokenizer_for_admission(bus: Bus) -> None:
    async with working(bus) as rig:
        registered = await first(bus, FLEET.name, subjects.worker(rig.worker), WorkerRegistered)
        beat = await beat_of(rig)
        assert await bus.get_object("legato_models", registered.card.tokenizer)
    assert registered.state is WorkerState.READY
    assert registered.card.name == "sim-small"
    assert beat.epoch == registered.epoch


async def test_a_lost_prompt_is_a_failure_that_no_retry_mends(bus: Bus) -> None:
    async with working(bus) as rig:
        step = StepId(new_id())
        await rig.dispatch(step)
        report = await rig.ended(step)
    assert report.problem is not None
    assert (report.problem.reason, report.retryable) == (Reason.PROMPT_LOST, False)


async def test_cache_changes_are_numbered_and_a_resync_gives_all_blocks(bus: Bus) -> None:
    prompt = list(b"Sixteen bytes and sixteen more of them, and then some.")
    heard: asyncio.Queue[KvChanged | KvSnapshot] = asyncio.Queue()

    async def take(msg: object) -> None:
        heard.put_nowait(msgspec.json.decode(msg.data, type=KvChanged | KvSnapshot))  # type: ignore[attr-defined]

    async with working(bus) as rig:
        subscription = await bus.subscribe(subjects.kv(rig.worker), take)
        step = await rig.prompt(prompt)
        await rig.dispatch(step)
        await rig.ended(step)
        stored: set[int] = set()
        seqs = []
        async with asyncio.timeout(LIMIT_S):
            while not set(block_hashes(prompt, 16)) <= stored:
                changed = await heard.get()
                assert isinstance(changed, KvChanged)
                seqs.append(changed.seq)
                stored |= {h for event in changed.events for h in getattr(event, "hashes", [])}
        await bus.publish(subjects.kv_resync(rig.worker), b"{}")
        async with asyncio.timeout(LIMIT_S):
            while not isinstance(snapshot := await heard.get(), KvSnapshot):
                seqs.append(snapshot.seq)
        await subscription.unsubscribe()
    assert seqs == list(range(1, len(seqs) + 1))
    assert set(block_hashes(prompt, 16)) <= set(snapshot.hashes)
