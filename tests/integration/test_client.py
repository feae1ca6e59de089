"""The client on a real NATS. The fleet's side is spoken by the test, message by message, as docs/nats-api.md has it."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import msgspec
import pytest
from nats.aio.msg import Msg

import legato
from legato.request import NOT_SENT, StepRequest
from shared.contracts import subjects
from shared.contracts.fleet import Capacity, ModelCard, WorkerGone, WorkerRegistered, WorkerState
from shared.contracts.ids import CellId, ModelName, StepId, WorkerId
from shared.contracts.output import End, Output
from shared.contracts.steps import Sampling, StepRecord, StepState, Submission
from shared.contracts.streams import FLEET, STEPS
from shared.core.machine import ENCODER
from shared.runtime.bus import Bus, BusConfig, BusError
from shared.runtime.clock import now_ns
from shared.runtime.embedded import EmbeddedNats

DONE = End(status=legato.Status.SUCCEEDED, usage=legato.Usage(prompt_tokens=3, output_tokens=3))


@pytest.fixture
async def bus(nats_url: str) -> AsyncIterator[Bus]:
    bus = await Bus.connect(BusConfig(url=nats_url), "test-fleet")
    await bus.ensure_streams()
    await bus.js.purge_stream(FLEET.name)
    yield bus
    await bus.close()


@pytest.fixture
async def client(bus: Bus, nats_url: str) -> AsyncIterator[legato.Client]:
    async with legato.Client(nats_url, api_key="secret") as client:
        yield client


async def say(bus: Bus, step: str, *outputs: Output) -> None:
    for output in outputs:
        await (await bus.store(subjects.outbox(StepId(step)), ENCODER.encode(output)))


def words(*texts: str, attempt: int = 1, start: int = 0) -> list[Output]:
    return [Output(attempt=attempt, offset=start + index, tokens=[start + index], text=text) for index, text in enumerate(texts)]


def ending(offset: int, end: End = DONE, attempt: int = 1) -> Output:
    return Output(attempt=attempt, offset=offset, end=end)


async def submission(bus: Bus, step: str) -> tuple[Submission, dict[str, str]]:
    record = await bus.last(STEPS.name, subjects.submit(StepId(step)))
    assert record is not None
    return msgspec.json.decode(record.data, type=Submission), record.headers


async def test_a_submission_carries_what_was_asked_and_never_the_key(bus: Bus, client: legato.Client) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    step = await client.submit(model="m", messages=messages, max_tokens=5, temperature=0, stop="END", timeout_ms=900, priority=3)
    sent, headers = await submission(bus, step.id)
    assert sent.messages is not None
    assert (sent.model, sent.messages[0].content, sent.timeout_ms, sent.priority) == ("m", "Hello", 900, 3)
    assert sent.sampling == Sampling(max_tokens=5, temperature=0.0, stop=["END"])
    assert sent.key == f"sha256:{hashlib.sha256(b'secret').hexdigest()}"
    assert headers["traceparent"].startswith("00-")
    await step.close()


async def test_text_comes_as_it_is_produced_and_the_result_is_the_whole(bus: Bus, client: legato.Client) -> None:
    step = await client.submit(model="m", prompt="Hi")
    await say(bus, step.id, *words("one ", "two "))
    text = step.text()
    assert await anext(text) == "one "
    await say(bus, step.id, *words("three", start=2), ending(3))
    assert [piece async for piece in text] == ["two ", "three"]
    result = await step.result(5)
    assert (result.text, result.tokens, result.usage.output_tokens) == ("one two three", [0, 1, 2], 3)
    assert (result.status, result.finish_reason) == (legato.Status.SUCCEEDED, legato.FinishReason.STOP)


async def test_a_second_attempt_goes_on_without_a_seam(bus: Bus, client: legato.Client) -> None:
    step = await client.submit(model="m", prompt="Hi")
    await say(bus, step.id, *words("a", "b"), *words("c", attempt=2, start=2), *words("X", attempt=1, start=2), ending(3, attempt=2))
    assert (await step.result(5)).text == "abc"


async def test_a_refusal_carries_the_problem(bus: Bus, client: legato.Client) -> None:
    step = await client.submit(model="nope", prompt="Hi")
    problem = legato.Problem(reason=legato.Reason.MODEL_NOT_FOUND, message="there is no model nope", param="model")
    await say(bus, step.id, Output(end=End(status=legato.Status.REFUSED, problem=problem)))
    with pytest.raises(legato.Refused, match="no model nope") as caught:
        await step.result(5)
    assert caught.value.problem == problem


async def test_a_failure_carries_what_had_arrived(bus: Bus, client: legato.Client) -> None:
    step = await client.submit(model="m", prompt="Hi")
    problem = legato.Problem(reason=legato.Reason.DEADLINE_PASSED, message="too late")
    await say(bus, step.id, *words("half"), ending(1, End(status=legato.Status.EXPIRED, problem=problem)))
    with pytest.raises(legato.Failed) as caught:
        await step.result(5)
    assert (caught.value.result.text, caught.value.result.status) == ("half", legato.Status.EXPIRED)


async def test_a_cancel_is_stored_and_a_cancelled_step_gives_what_there_is(bus: Bus, client: legato.Client) -> None:
    step = await client.submit(model="m", prompt="Hi")
    await step.cancel("enough")
    record = await bus.last(STEPS.name, subjects.cancel(step.id))
    assert record is not None
    assert msgspec.json.decode(record.data)["why"] == "enough"
    await say(bus, step.id, *words("some"), ending(1, End(status=legato.Status.CANCELLED, finish_reason=legato.FinishReason.CANCELLED)))
    result = await step.result(5)
    assert (result.text, result.status) == ("some", legato.Status.CANCELLED)


async def test_leaving_a_stream_early_cancels_the_step(bus: Bus, client: legato.Client) -> None:
    step_id = StepId(f"left-{now_ns()}")

    async def answer(_: Msg) -> None:
        await say(bus, step_id, *words("one", "two"))

    await bus.subscribe(subjects.submit(step_id), answer)
    await bus.client.flush()
    async with asyncio.timeout(5), aclosing(client.stream(model="m", prompt="Hi", step_id=step_id)) as texts:
        assert await anext(texts) == "one"
    assert await bus.last(STEPS.name, subjects.cancel(step_id)) is not None


async def test_a_finished_step_can_be_read_again_by_anybody_who_knows_its_id(bus: Bus, client: legato.Client, nats_url: str) -> None:
    step = await client.submit(model="m", prompt="Hi")
    await say(bus, step.id, *words("a", "b"), ending(2))
    async with legato.Client(nats_url) as other:
        assert (await other.result(step.id, 5)).text == "ab"


async def test_submitting_an_id_again_stores_nothing_and_joins_the_step(bus: Bus, client: legato.Client) -> None:
    step_id = f"again-{now_ns()}"
    first = await client.submit(model="m", prompt="Hi", step_id=step_id)
    await say(bus, step_id, *words("a"))
    second = await client.submit(model="m", prompt="Hi", step_id=step_id)
    await say(bus, step_id, *words("b", start=1), ending(2))
    assert [(await step.result(5)).text for step in (first, second)] == ["ab", "ab"]
    records = [record async for record in bus.history(STEPS.name, subjects.submit(StepId(step_id)))]
    assert len(records) == 1


async def test_a_step_that_does_not_end_in_time_says_that_it_goes_on(client: legato.Client) -> None:
    step = await client.submit(model="m", prompt="Hi")
    with pytest.raises(legato.NotEnded, match=step.id):
        await step.result(0.05)
    await step.close()


async def test_a_step_that_nobody_answers_is_given_up_behind_its_own_time_limit(
    client: legato.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legato.client.GRACE_S", 0.05)
    async with asyncio.timeout(10):
        step = await client.submit(model="m", prompt="Hi", timeout_ms=1)
        with pytest.raises(legato.NotEnded, match=f"legato status.*legato timeline {step.id}"):
            await step.result()
    await step.close()


async def test_whoever_joins_a_step_that_nobody_answers_waits_no_longer_than_who_submitted_it(
    client: legato.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legato.client.GRACE_S", 0.05)
    async with asyncio.timeout(10):
        step = await client.submit(model="m", prompt="Hi", timeout_ms=1)
        with pytest.raises(legato.NotEnded, match="legato status"):
            await client.result(step.id)
    await step.close()


async def test_what_comes_behind_the_time_limit_is_still_read(bus: Bus, client: legato.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legato.client.GRACE_S", 5.0)
    step = await client.submit(model="m", prompt="Hi", timeout_ms=1)
    await say(bus, step.id, *words("late "), *words("but", start=1), ending(2))
    assert (await step.result()).text == "late but"


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        ({"prompt": "x", "temperature": 9}, "temperature"),
        ({"prompt": "x", "step_id": "a.b"}, "step_id"),
        ({"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "messages"),
        ({}, "messages"),
        ({"messages": [{"role": "user", "wat": 1}]}, "messages[0]"),
        ({"prompt": "x", "tempreature": 1}, ""),
    ],
)
async def test_what_cannot_be_is_refused_before_it_is_sent(client: legato.Client, request_: StepRequest, param: str) -> None:
    with pytest.raises(legato.Refused) as caught:
        await client.submit(model="m", **request_)  # type: ignore[misc]
    assert caught.value.problem.reason is legato.Reason.INVALID
    assert caught.value.problem.param == param


def test_a_request_can_say_all_that_a_submission_can() -> None:
    fields = {*Sampling.__struct_fields__, *Submission.__struct_fields__, *NOT_SENT} - {
        "sampling",
        "key",
        "history",
    }  # the client refers by itself
    assert set(StepRequest.__annotations__) == fields


async def test_the_served_models_are_those_of_workers_that_are_there(bus: Bus, client: legato.Client) -> None:
    def card(name: str) -> ModelCard:
        return ModelCard(name=ModelName(name), tokenizer="t", vocab_size=10, context_tokens=2048, block_tokens=16)

    def worker(name: str, model: str, state: WorkerState = WorkerState.READY, age_s: float = 0) -> WorkerRegistered:
        where = {"worker": WorkerId(name), "cell": CellId("local")}
        times = {"epoch": 1, "time_ns": now_ns() - int(age_s * 1e9)}
        return WorkerRegistered(pool="p", state=state, card=card(model), capacity=Capacity(blocks=9, slots=4), engine="e", **where, **times)  # type: ignore[arg-type]

    gone = WorkerGone(worker=WorkerId("d"), cell=CellId("local"), epoch=1)
    loading = worker("b", "small", WorkerState.LOADING)
    for each in (worker("a", "small"), loading, worker("c", "lost", age_s=3600), worker("d", "left"), gone):
        await (await bus.store(subjects.worker(each.worker), ENCODER.encode(each)))
    [served] = await client.models()
    assert (served.name, served.workers, served.not_ready, served.slots, served.chat) == ("small", ["a"], ["b"], 4, False)


async def test_a_client_that_is_not_connected_says_how_to_connect() -> None:
    with pytest.raises(legato.LegatoError, match="async with"):
        await legato.Client().submit(model="m", prompt="x")


async def test_a_client_can_be_left_while_nats_is_away(fresh_nats: EmbeddedNats) -> None:
    async with legato.Client(fresh_nats.url) as client:
        lost = asyncio.Event()
        client.bus.client._disconnected_cb = _setting(lost)  # nothing public tells of it
        await fresh_nats.stop()
        await asyncio.wait_for(lost.wait(), 10)
    with pytest.raises(legato.LegatoError, match="not connected"):
        await client.models()


def _setting(event: asyncio.Event) -> Callable[[], Awaitable[None]]:
    async def call() -> None:
        event.set()

    return call


async def test_an_address_without_a_server_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.runtime.bus.CONNECT_TIMEOUT_S", 0.3)
    with pytest.raises(BusError, match=r"127\.0\.0\.1:1"):
        async with legato.Client("nats://127.0.0.1:1"):
            pass


# --- steps whose output is no longer in the stream ---------------------------------------------------------------------------


async def answer_queries(bus: Bus, record: StepRecord) -> None:
    """Stand where the workflow service stands."""

    async def answer(msg: Msg) -> None:
        await bus.publish(msg.reply, ENCODER.encode(record))

    await bus.subscribe(subjects.query_step(record.step), answer)
    await bus.client.flush()


async def test_an_old_step_is_answered_from_the_record(bus: Bus, client: legato.Client) -> None:
    step = StepId(f"old-{now_ns()}")
    usage = legato.Usage(prompt_tokens=1, output_tokens=2)
    await answer_queries(bus, StepRecord(step=step, status=StepState.SUCCEEDED, tokens=[7, 8], text="ab", usage=usage))
    result = await client.result(step, 5)
    assert (result.id, result.text, result.tokens, result.usage) == (step, "ab", [7, 8], usage)


async def test_an_old_step_that_failed_still_says_why(bus: Bus, client: legato.Client) -> None:
    step = StepId(f"old-{now_ns()}")
    problem = legato.Problem(reason=legato.Reason.QUEUE_FULL, message="the queue was full")
    await answer_queries(bus, StepRecord(step=step, status=StepState.SHED, problem=problem))
    with pytest.raises(legato.Failed, match="queue was full") as caught:
        await client.result(step, 5)
    assert caught.value.result.status is legato.Status.SHED


async def test_without_a_workflow_service_a_record_is_unknown_and_the_stream_is_waited_for(client: legato.Client) -> None:
    step = f"new-{now_ns()}"
    assert (await client.record(step)).status is StepState.UNKNOWN
    with pytest.raises(legato.NotEnded):
        await client.result(step, 0.05)
