"""One worker takes a step over from another that still runs it: the reader sees one stream."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from nats.errors import NoRespondersError
from worker_rig import LIMIT_S, Rig, expected, listed, working

from services.worker.takeover import WARMINGS_MAX
from shared.contracts import subjects
from shared.contracts.ids import StepId
from shared.contracts.outcomes import Reason, Status
from shared.contracts.output import Output
from shared.contracts.steps import AttemptEnded, HandedOver, HandOverAsked
from shared.contracts.streams import OUT, STEPS
from shared.core.machine import ENCODER
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.cursor import Source

PROMPT = list(b"What do violas do while the violins sleep?")
LONG = PROMPT * 20
BLOCK = 16  # what is cached of a context is whole blocks
TOKENS = 400
SLOW = "simulated.law=8b-h100"  # real time: some 150 tokens a second


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(BusConfig(url=nats_url), "test")
    await bus.ensure_streams()
    yield bus
    await bus.close()


async def produced(bus: Bus, step: StepId, tokens: int) -> None:
    """Until the reader has so many."""
    cursor = await bus.read(Source(stream=OUT.name, subjects=(subjects.out(step),)))
    try:
        async with asyncio.timeout(LIMIT_S):
            count = 0
            while count < tokens:
                count += sum(len(msgspec.json.decode(record.data, type=Output).tokens) for record in await cursor.take(100))
    finally:
        await cursor.close()


async def reports(bus: Bus, step: StepId, count: int) -> dict[int, AttemptEnded]:
    """The ends of the step's first `count` attempts that end, by attempt."""
    cursor = await bus.read(Source(stream=STEPS.name, subjects=(subjects.step_event(step, "ended.local"),)))
    found: dict[int, AttemptEnded] = {}
    try:
        async with asyncio.timeout(LIMIT_S):
            while len(found) < count:
                for record in await cursor.take(10):
                    report = msgspec.json.decode(record.data, type=AttemptEnded)
                    found[report.attempt] = report
    finally:
        await cursor.close()
    return found


def without_seam(outputs: list[Output], tokens: list[int]) -> bool:
    """Whether the outputs are these tokens, in order, each once."""
    offsets = [output.offset for output in outputs if output.tokens]
    lengths = [len(output.tokens) for output in outputs if output.tokens]
    contiguous = offsets == [sum(lengths[:index]) for index in range(len(lengths))]
    return contiguous and [token for output in outputs for token in output.tokens] == tokens


async def test_a_running_step_goes_over_without_gap_or_repeat(bus: Bus) -> None:
    async with working(bus, SLOW) as old, working(bus, SLOW) as new:
        step = await old.prompt(PROMPT)
        await old.dispatch(step, max_tokens=TOKENS)
        await produced(bus, step, 20)
        await new.dispatch(step, attempt=2, max_tokens=TOKENS, relieves=old.worker)
        ended = await reports(bus, step, 2)
        outputs = await old.outputs(step)
    assert without_seam(outputs, expected(PROMPT, TOKENS))
    assert "".join(output.text for output in outputs) == ended[2].text == bytes(expected(PROMPT, TOKENS)).decode(errors="replace")
    assert {output.attempt for output in outputs} == {1, 2}
    assert (ended[2].status, ended[2].usage.output_tokens, ended[2].worker) == (Status.SUCCEEDED, TOKENS, new.worker)
    assert ended[1].problem is not None
    assert (ended[1].status, ended[1].problem.reason, ended[1].retryable) == (Status.FAILED, Reason.HANDED_OVER, True)
    assert ended[2].resumed_tokens == ended[1].usage.output_tokens >= 20
    assert ended[2].usage.cached_tokens > len(PROMPT) // 2, "the next one had it in its cache before it went on"
    context = len(PROMPT) + ended[2].resumed_tokens
    assert context <= (ended[2].computed_tokens or 0) <= context + WARMINGS_MAX * BLOCK, "because it had computed it itself"


async def test_of_a_prompt_that_the_next_worker_has_only_the_output_is_computed(bus: Bus) -> None:
    async with working(bus, SLOW) as old, working(bus, SLOW) as new:
        await new.dispatch(await new.prompt(LONG), max_tokens=1)
        step = await old.prompt(LONG)
        await old.dispatch(step, max_tokens=TOKENS)
        await produced(bus, step, 20)
        await new.dispatch(step, attempt=2, max_tokens=TOKENS, relieves=old.worker)
        ended = await reports(bus, step, 2)
    assert ended[1].computed_tokens == len(LONG)
    assert ended[2].resumed_tokens <= (ended[2].computed_tokens or 0) <= ended[2].resumed_tokens + (WARMINGS_MAX + 1) * BLOCK


async def test_the_text_of_a_step_with_stop_strings_goes_over_as_well(bus: Bus) -> None:
    text = bytes(expected(PROMPT, TOKENS)).decode(errors="replace")
    stop = text[300:320]  # somewhere behind the seam
    async with working(bus, SLOW) as old, working(bus, SLOW) as new:
        step = await old.prompt(PROMPT)
        await old.dispatch(step, max_tokens=TOKENS, stop=[stop])
        await produced(bus, step, 20)
        await new.dispatch(step, attempt=2, max_tokens=TOKENS, relieves=old.worker, stop=[stop])
        ended = await reports(bus, step, 2)
        outputs = await old.outputs(step)
    assert ended[2].status is Status.SUCCEEDED
    assert "".join(output.text for output in outputs) == text[: text.index(stop)]


async def test_where_the_old_worker_is_gone_what_is_stored_counts(bus: Bus) -> None:
    async with working(bus) as new:
        step = await new.prompt(PROMPT)
        begun = Output(step=step, attempt=1, offset=0, tokens=expected(PROMPT, 11), text=bytes(expected(PROMPT, 11)).decode())
        await (await bus.store(subjects.outbox(step), ENCODER.encode(begun)))
        await new.dispatch(step, attempt=2, max_tokens=TOKENS, relieves="nobody")
        ended = await reports(bus, step, 1)
        assert without_seam(await new.outputs(step), expected(PROMPT, TOKENS))
    assert (ended[2].status, ended[2].resumed_tokens) == (Status.SUCCEEDED, 11)


async def test_a_step_that_has_ended_meanwhile_is_only_reported(bus: Bus) -> None:
    async with working(bus) as old, working(bus) as new:
        step = await old.prompt(PROMPT)
        await old.dispatch(step)
        await reports(bus, step, 1)
        await new.dispatch(step, attempt=2, relieves=old.worker)
        ended = await reports(bus, step, 2)
        assert without_seam(await new.outputs(step), expected(PROMPT, 40))
    assert ended[1].status is ended[2].status is Status.SUCCEEDED
    assert ended[2].tokens == ended[1].tokens


async def test_an_attempt_that_is_revoked_before_it_takes_over_leaves_the_old_one_alone(bus: Bus) -> None:
    async with working(bus, SLOW) as old, working(bus, SLOW, "simulated.time_scale=100") as new:
        step = await old.prompt(PROMPT)
        await old.dispatch(step, max_tokens=TOKENS)
        await produced(bus, step, 20)
        await new.dispatch(step, attempt=2, max_tokens=TOKENS, relieves=old.worker)
        await listed(new, step, True)
        await new.revoke(step, Reason.SUPERSEDED, attempt=2)
        await listed(new, step, False)
        ended = await reports(bus, step, 1)
        outputs = await old.outputs(step)
    assert list(ended) == [1]
    assert ended[1].status is Status.SUCCEEDED
    assert without_seam(outputs, expected(PROMPT, TOKENS))
    assert {output.attempt for output in outputs} == {1}


async def ask(bus: Bus, rig: Rig, step: StepId, attempt: int) -> HandedOver:
    answer = await bus.requests.ask(subjects.handover(rig.worker), ENCODER.encode(HandOverAsked(step=step, attempt=attempt)))
    return msgspec.json.decode(answer.data, type=HandedOver)


async def test_a_worker_stops_only_for_a_newer_attempt(bus: Bus) -> None:
    async with working(bus, SLOW) as old:
        step = await old.prompt(PROMPT)
        await old.dispatch(step, attempt=2, max_tokens=TOKENS)
        await produced(bus, step, 20)
        assert await ask(bus, old, step, 2) == HandedOver()
        assert await ask(bus, old, StepId("unknown"), 9) == HandedOver()
        await bus.publish(subjects.handover(old.worker), b"{nonsense")
        await bus.publish(subjects.handover(old.worker), ENCODER.encode(HandOverAsked(step=step, attempt=3)))  # nobody waits for the answer
        handed = await ask(bus, old, step, 3)
        outputs = await old.outputs(step)
    assert handed.tokens == [token for output in outputs for token in output.tokens]
    assert handed.text == "".join(output.text for output in outputs)
    assert 20 <= len(handed.tokens) < TOKENS


async def test_a_worker_that_has_left_keeps_nobody_waiting(bus: Bus) -> None:
    async with working(bus) as old:
        pass
    with pytest.raises(NoRespondersError):
        await ask(bus, old, StepId("any"), 2)


async def test_a_step_goes_over_twice_when_the_next_worker_leaves_before_it_has_gone_on(bus: Bus) -> None:
    slow = "simulated.time_scale=100"
    async with working(bus, SLOW) as old, working(bus, SLOW, slow) as next_one, working(bus, SLOW) as last:
        step = await old.prompt(PROMPT)
        await old.dispatch(step, max_tokens=TOKENS)
        await produced(bus, step, 20)
        await next_one.dispatch(step, attempt=2, max_tokens=TOKENS, relieves=old.worker)
        await listed(next_one, step, True)
        await next_one.revoke(step, Reason.HANDED_OVER, attempt=2)
        await last.dispatch(step, attempt=3, max_tokens=TOKENS, relieves=old.worker)
        ended = await reports(bus, step, 3)
        assert without_seam(await old.outputs(step), expected(PROMPT, TOKENS))
    assert ended[3].status is Status.SUCCEEDED
    assert {ended[1].problem.reason, ended[2].problem.reason} == {Reason.HANDED_OVER}  # type: ignore[union-attr]
