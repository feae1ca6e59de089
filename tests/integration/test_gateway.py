"""The gateway over real HTTP and a real nats-server, with OpenAI's own client. A small responder plays the fleet on the bus."""

import asyncio
import gzip
import hashlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import msgspec
import openai
import pytest
from nats.aio.msg import Msg
from openai import AsyncOpenAI

from services.gateway.service import run
from shared.contracts import subjects
from shared.contracts.fleet import Capacity, ModelCard, WorkerGone, WorkerRegistered, WorkerState
from shared.contracts.ids import CellId, ModelName, StepId, WorkerId
from shared.contracts.outcomes import FinishReason, Problem, Reason, Status, Usage
from shared.contracts.output import End, Output, TokenLogprob, TopLogprob
from shared.contracts.steps import CancelRequested, Submission
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.clock import now_ns
from shared.runtime.ids import new_id, new_trace
from shared.runtime.lifecycle import Context, Options
from shared.runtime.telemetry import Telemetry, TelemetryConfig

LIMIT_S = 20.0
WORDS = ["Every ", "note ", "is ", "kept", "."]
USAGE = Usage(prompt_tokens=7, cached_tokens=4, output_tokens=len(WORDS))
HELLO = [{"role": "user", "content": "Hello"}]


class Fleet:
    """Takes submissions as they are published and answers on the bus as the model's name says."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.submissions: dict[StepId, Submission] = {}
        self.headers: dict[StepId, dict[str, str]] = {}
        self.cancelled: asyncio.Queue[CancelRequested] = asyncio.Queue(100)
        self.submitted: asyncio.Queue[StepId] = asyncio.Queue(100)
        self.go_on = asyncio.Event()

    async def start(self) -> None:
        await self.bus.subscribe(subjects.SUBMIT, self._on_submission)
        await self.bus.subscribe(subjects.CANCEL, self._on_cancel)

    async def say(self, step: StepId, output: Output) -> None:
        await (await self.bus.store(subjects.out(step), msgspec.json.encode(output)))

    async def end(self, step: StepId, status: Status, problem: Problem | None = None, offset: int = 0) -> None:
        finish = FinishReason.STOP if status is Status.SUCCEEDED else FinishReason.ERROR
        end = End(status=status, finish_reason=finish, usage=USAGE, problem=problem)
        await self.say(step, Output(attempt=1 if offset else 0, offset=offset, end=end))

    async def _on_cancel(self, msg: Msg) -> None:
        self.cancelled.put_nowait(msgspec.json.decode(msg.data, type=CancelRequested))

    async def _on_submission(self, msg: Msg) -> None:
        step = subjects.step_of(msg.subject)
        submission = msgspec.json.decode(msg.data, type=Submission)
        self.submissions[step], self.headers[step] = submission, dict(msg.headers or {})
        self.submitted.put_nowait(step)
        answer: Callable[[StepId], Awaitable[None]] | None = getattr(self, f"_{submission.model.replace('-', '_')}", None)
        if answer is not None:
            await answer(step)
        elif submission.model in list(Reason):
            problem = Problem(reason=Reason(submission.model), message="because", param="model", retry_after_ms=1_500)
            await self.end(step, Status.REFUSED, problem)

    async def _words(self, step: StepId) -> None:
        asked = self.submissions[step].sampling.logprobs
        for number, word in enumerate(WORDS):
            top = [TopLogprob(token=number + each, text=word, logprob=-0.5 - each) for each in range(asked or 0)]
            logprobs = [] if asked is None else [TokenLogprob(token=number, text=word, logprob=-0.5, top=top)]
            await self.say(step, Output(attempt=1, offset=number, tokens=[number], text=word, logprobs=logprobs))
        await self.end(step, Status.SUCCEEDED, offset=len(WORDS))

    async def _silent(self, step: StepId) -> None:
        """Never answers."""

    async def _one_word(self, step: StepId) -> None:
        await self.say(step, Output(attempt=1, tokens=[0], text=WORDS[0]))

    async def _breaks(self, step: StepId) -> None:
        await self._one_word(step)
        await self.end(step, Status.FAILED, Problem(reason=Reason.ATTEMPTS_EXHAUSTED, message="three workers died"), offset=1)

    async def _floods(self, step: StepId) -> None:
        for number in range(2_000):
            await self.bus.publish(subjects.out(step), msgspec.json.encode(Output(attempt=1, offset=number, tokens=[7], text="x" * 8_000)))


class Place:
    """A running gateway, the fleet behind it, and ways to talk to it."""

    def __init__(self, fleet: Fleet, context: Context, url: str, http: aiohttp.ClientSession) -> None:
        self.fleet = fleet
        self.context = context
        self.url = url
        self.http = http
        self.client = AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-secret", max_retries=0, timeout=LIMIT_S)

    async def submitted(self) -> StepId:
        return await asyncio.wait_for(self.fleet.submitted.get(), LIMIT_S)

    async def cancelled(self) -> CancelRequested:
        return await asyncio.wait_for(self.fleet.cancelled.get(), LIMIT_S)

    async def post(self, body: object, path: str = "chat/completions", **headers: str) -> tuple[int, dict[str, str], bytes]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.http.post(f"{self.url}/v1/{path}", data=data, headers=headers) as response:
            return response.status, dict(response.headers), await response.read()


@asynccontextmanager
async def gateway(nats_url: str, *overrides: str) -> AsyncIterator[Place]:
    """A gateway on a free port, with settings of its own."""
    async with AsyncExitStack() as stack:
        bus = await Bus.connect(BusConfig(url=nats_url), "test-gateway")
        stack.push_async_callback(bus.close)
        await bus.ensure_streams()
        fleet = Fleet(await Bus.connect(BusConfig(url=nats_url), "test-fleet"))
        stack.push_async_callback(fleet.bus.close)
        await fleet.start()
        await fleet.bus.client.flush()
        settings = [f"gateway.{text}" for text in ("port=0", "drain_timeout_ms=2000", *overrides)]
        context = Context(
            options=Options(service="gateway", overrides=settings, env={}),
            instance="gateway-test",
            bus=bus,
            telemetry=Telemetry("gateway", "gateway-test", TelemetryConfig()),
            stop=asyncio.Event(),
            ready=asyncio.Event(),
        )
        http = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(LIMIT_S)))
        running = asyncio.create_task(run(context))
        await asyncio.wait_for(context.ready.wait(), LIMIT_S)
        place = Place(fleet, context, str(context.status["address"]), http)
        try:
            async with place.client:
                yield place
        finally:
            context.stop.set()
            await asyncio.wait_for(running, LIMIT_S)


@pytest.fixture(scope="module")
async def shared_place(nats_url: str) -> AsyncIterator[Place]:
    async with gateway(nats_url) as place:
        yield place


@pytest.fixture
async def place(shared_place: Place) -> Place:
    """The shared gateway, with nothing left over in the fleet's queues."""
    fleet = shared_place.fleet
    fleet.submitted, fleet.cancelled = asyncio.Queue(100), asyncio.Queue(100)
    return shared_place


# --- chat and completions ----------------------------------------------------------------------------------------------------


async def test_a_chat_comes_back_whole(place: Place) -> None:
    reply = await place.client.chat.completions.create(model="words", messages=HELLO, max_tokens=9, temperature=0, seed=3)
    step = await place.submitted()
    assert reply.choices[0].message.content == "".join(WORDS)
    assert reply.choices[0].finish_reason == "stop"
    assert (reply.id, reply.model, reply.object) == (f"chatcmpl-{step}", "words", "chat.completion")
    usage = reply.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (7, 5, 12)
    assert usage.prompt_tokens_details.cached_tokens == 4
    sampling = place.fleet.submissions[step].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed) == (9, 0.0, 3)


async def test_a_chat_streams(place: Place) -> None:
    stream = await place.client.chat.completions.create(model="words", messages=HELLO, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "".join(WORDS)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices] == [None] * len(WORDS) + ["stop"]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(WORDS) + 1) + [True]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len(WORDS)


async def test_a_completion_comes_back_whole_and_streams(place: Place) -> None:
    reply = await place.client.completions.create(model="words", prompt="Once")
    assert reply.choices[0].text == "".join(WORDS)
    stream = await place.client.completions.create(model="words", prompt=[1, 2, 3], stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "".join(WORDS)
    await place.submitted()
    assert place.fleet.submissions[await place.submitted()].prompt == [1, 2, 3]


async def test_logprobs_come_in_both_dialects(place: Place) -> None:
    chat = await place.client.chat.completions.create(model="words", messages=HELLO, logprobs=True, top_logprobs=2)
    content = chat.choices[0].logprobs.content if chat.choices[0].logprobs else None
    assert content is not None
    assert [token.token for token in content] == WORDS
    assert [each.logprob for each in content[0].top_logprobs] == [-0.5, -1.5]
    assert content[0].bytes == list(b"Every ")
    stream = await place.client.chat.completions.create(model="words", messages=HELLO, logprobs=True, stream=True)
    chunks = [chunk.choices[0].logprobs async for chunk in stream]
    assert [token.token for each in chunks if each and each.content for token in each.content] == WORDS
    completion = await place.client.completions.create(model="words", prompt="Once", logprobs=1)
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == WORDS
    assert logprobs.text_offset == [0, 6, 11, 14, 18]
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] == {"Every ": -0.5}


async def test_the_key_crosses_the_bus_only_as_its_hash(place: Place) -> None:
    await place.client.chat.completions.create(model="words", messages=HELLO)
    step = await place.submitted()
    assert place.fleet.submissions[step].key == f"sha256:{hashlib.sha256(b'sk-secret').hexdigest()}"
    status, _, _ = await place.post({"model": "words", "messages": HELLO})
    assert status == 200
    assert place.fleet.submissions[await place.submitted()].key == ""


async def test_step_trace_and_limits_travel_in_headers(place: Place) -> None:
    trace = str(new_trace())
    headers = {"traceparent": trace, "X-Legato-Timeout-Ms": "5000", "X-Legato-Priority": "-3", "X-Legato-Workflow": "trip"}
    _, answer, _ = await place.post({"model": "words", "messages": HELLO}, **headers)
    step = await place.submitted()
    assert answer["X-Legato-Step"] == step
    assert place.fleet.headers[step]["traceparent"] == trace
    assert place.fleet.headers[step]["Nats-Msg-Id"] == step
    submission = place.fleet.submissions[step]
    assert (submission.timeout_ms, submission.priority, submission.workflow) == (5000, -3, "trip")


# --- refusals ----------------------------------------------------------------------------------------------------------------

CLASSES = {
    Reason.UNAUTHENTICATED: openai.AuthenticationError,
    Reason.MODEL_NOT_FOUND: openai.NotFoundError,
    Reason.CONTEXT_TOO_LONG: openai.BadRequestError,
    Reason.UNSUPPORTED: openai.BadRequestError,
    Reason.RATE_LIMITED: openai.RateLimitError,
    Reason.QUEUE_FULL: openai.RateLimitError,
    Reason.DEADLINE_UNREACHABLE: openai.RateLimitError,
    Reason.NO_CAPACITY: openai.InternalServerError,
    Reason.DEADLINE_PASSED: openai.InternalServerError,
    Reason.INTERNAL: openai.InternalServerError,
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("reason", list(CLASSES))
async def test_a_refusal_by_the_fleet_is_an_error_of_the_clients_class(place: Place, reason: Reason, stream: bool) -> None:
    with pytest.raises(CLASSES[reason]) as caught:
        await place.client.chat.completions.create(model=reason.value, messages=HELLO, stream=stream)
    assert isinstance(caught.value, openai.APIStatusError)
    assert caught.value.code == reason.value
    assert caught.value.param == "model"
    if caught.value.status_code in (429, 503):
        assert caught.value.response.headers["Retry-After"] == "2"
    await place.submitted()
    assert place.fleet.cancelled.empty()


async def test_an_unsupported_parameter_is_refused_by_name_and_reaches_nobody(place: Place) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await place.client.chat.completions.create(model="words", messages=HELLO, n=2)
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "n")
    with pytest.raises(openai.BadRequestError) as caught:
        await place.client.chat.completions.create(model="words", messages=HELLO, extra_body={"guided_regex": "a*"})
    assert caught.value.param == "guided_regex"
    assert place.fleet.submitted.empty()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model": "words"}', b"[" * 100_000])
async def test_a_malformed_body_is_a_bad_request(place: Place, body: bytes) -> None:
    status, _, answer = await place.post(body)
    assert status == 400
    assert json.loads(answer)["error"]["type"] == "invalid_request_error"


async def test_a_body_that_cannot_be_unpacked_is_a_bad_request(place: Place) -> None:
    status, _, answer = await place.post(b"not gzip", **{"Content-Encoding": "gzip"})
    assert status == 400
    assert b"error" in answer


async def test_a_body_over_the_limit_is_refused_announced_or_not_packed_or_not(nats_url: str) -> None:
    async with gateway(nats_url, "body_bytes_max=2000") as place:
        long = {"model": "words", "messages": [{"role": "user", "content": "x" * 4000}]}
        status, _, answer = await place.post(long)
        assert (status, json.loads(answer)["error"]["code"]) == (413, "request_too_large")

        async def pieces() -> AsyncIterator[bytes]:
            yield json.dumps(long).encode()

        async with place.http.post(f"{place.url}/v1/chat/completions", data=pieces()) as response:
            assert response.status == 413
        packed = gzip.compress(json.dumps(long).encode())
        assert len(packed) < 2000
        status, _, _ = await place.post(packed, **{"Content-Encoding": "gzip"})
        assert status == 413
        assert place.fleet.submitted.empty()


async def test_unknown_paths_are_told_so_in_the_same_shape(place: Place) -> None:
    status, _, answer = await place.post({}, path="embeddings")
    assert (status, json.loads(answer)["error"]["code"]) == (404, "unknown_url")


async def test_what_is_over_the_number_of_requests_is_sent_away(nats_url: str) -> None:
    async with gateway(nats_url, "requests_max=1") as place:
        first = asyncio.create_task(place.client.chat.completions.create(model="silent", messages=HELLO))
        step = await place.submitted()
        with pytest.raises(openai.InternalServerError) as caught:
            await place.client.chat.completions.create(model="words", messages=HELLO)
        assert caught.value.status_code == 503
        assert caught.value.response.headers["Retry-After"] == "1"
        await place.fleet.end(step, Status.SUCCEEDED)
        await first
        await place.client.chat.completions.create(model="words", messages=HELLO)


# --- ends that are no success ------------------------------------------------------------------------------------------------


async def test_a_problem_after_the_first_token_is_an_event_and_no_done_follows(place: Place) -> None:
    _, _, answer = await place.post({"model": "breaks", "messages": HELLO, "stream": True})
    events = [event.removeprefix(b"data: ") for event in answer.strip().split(b"\n\n")]
    assert json.loads(events[0])["choices"][0]["delta"]["content"] == WORDS[0]
    assert json.loads(events[1])["error"]["code"] == "attempts_exhausted"
    assert len(events) == 2
    stream = await place.client.chat.completions.create(model="breaks", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError, match="three workers died"):
        [chunk async for chunk in stream]


async def test_a_problem_before_anything_was_sent_is_the_status_of_a_whole_reply(place: Place) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        await place.client.chat.completions.create(model="breaks", messages=HELLO)
    assert caught.value.status_code == 503


async def test_a_step_that_nobody_ends_is_given_up_and_cancelled(nats_url: str) -> None:
    async with gateway(nats_url, "idle_timeout_ms=50") as place:
        with pytest.raises(openai.InternalServerError) as caught:
            await place.client.chat.completions.create(model="silent", messages=HELLO)
        assert (caught.value.status_code, caught.value.code) == (504, "deadline_passed")
        assert (await place.cancelled()).step == await place.submitted()


async def test_a_long_silence_is_bridged_with_comments(nats_url: str) -> None:
    async with gateway(nats_url, "keep_alive_comment_ms=20") as place:
        body = {"model": "silent", "messages": HELLO, "stream": True}
        async with place.http.post(f"{place.url}/v1/chat/completions", json=body) as response:
            assert response.status == 200
            assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
            step = await place.submitted()
            await place.fleet.end(step, Status.REFUSED, Problem(reason=Reason.QUEUE_FULL, message="full"))
            rest = await response.content.read()
            assert json.loads(rest.replace(b": keep-alive\n\n", b"").removeprefix(b"data: "))["error"]["code"] == "queue_full"


# --- clients that go ---------------------------------------------------------------------------------------------------------


async def test_a_client_that_leaves_a_stream_cancels_its_step(place: Place) -> None:
    stream = await place.client.chat.completions.create(model="one-word", messages=HELLO, stream=True)
    async for chunk in stream:
        assert chunk.choices[0].delta.content == WORDS[0]
        break
    await stream.close()
    assert (await place.cancelled()).step == await place.submitted()


async def test_a_client_that_leaves_before_the_first_token_cancels_its_step(place: Place) -> None:
    for stream in (False, True):
        waiting = asyncio.create_task(place.client.chat.completions.create(model="silent", messages=HELLO, stream=stream))
        step = await place.submitted()
        waiting.cancel()
        cancelled = await place.cancelled()
        assert cancelled.step == step
        stored = await place.fleet.bus.last("LEGATO_STEPS", subjects.cancel(step))
        assert stored is not None
        assert stored.headers["Nats-Msg-Id"] == f"{step}.cancel"


async def test_a_client_that_does_not_read_cancels_its_step(nats_url: str) -> None:
    async with gateway(nats_url, "write_timeout_ms=200") as place:
        host, port = place.url.removeprefix("http://").split(":")
        connection = socket.create_connection((host, int(port)))
        body = json.dumps({"model": "floods", "messages": HELLO, "stream": True}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        connection.sendall(head + body)
        assert (await place.cancelled()).step == await place.submitted()
        connection.close()


async def test_a_client_that_leaves_in_mid_body_leaves_nothing_behind(place: Place) -> None:
    host, port = place.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    await place.client.chat.completions.create(model="words", messages=HELLO)
    await place.submitted()
    assert place.fleet.submitted.empty()


async def test_a_client_that_has_its_answer_cancels_nothing(place: Place) -> None:
    async with AsyncOpenAI(base_url=f"{place.url}/v1", api_key="sk-secret", max_retries=0, timeout=LIMIT_S) as client:
        await client.chat.completions.create(model="words", messages=HELLO)
        async with await client.chat.completions.create(model="words", messages=HELLO, stream=True) as stream:
            [chunk async for chunk in stream]
    await place.client.models.list()
    await place.fleet.bus.client.flush()
    assert place.fleet.cancelled.empty()


async def test_stopping_lets_requests_finish_and_cancels_those_that_do_not(nats_url: str) -> None:
    async with gateway(nats_url, "drain_timeout_ms=300") as place:
        finishing = asyncio.create_task(place.client.chat.completions.create(model="one-word", messages=HELLO))
        first = await place.submitted()
        hanging = asyncio.create_task(place.client.chat.completions.create(model="silent", messages=HELLO))
        second = await place.submitted()
        place.context.stop.set()
        await place.fleet.end(first, Status.SUCCEEDED, offset=1)
        assert (await finishing).choices[0].message.content == WORDS[0]
        with pytest.raises(openai.APIConnectionError):
            await hanging
        assert (await place.cancelled()).step == second


# --- models and health -------------------------------------------------------------------------------------------------------


def worker(model: str, state: WorkerState, *, age_s: int = 0) -> WorkerRegistered:
    card = ModelCard(name=ModelName(model), tokenizer="t", vocab_size=9, context_tokens=9, block_tokens=4)
    return WorkerRegistered(
        time_ns=now_ns() - age_s * 10**9,
        worker=WorkerId(f"worker-{model}"),
        cell=CellId("local"),
        pool="default",
        epoch=1,
        state=state,
        card=card,
        capacity=Capacity(blocks=1, slots=1),
    )


async def test_models_are_those_of_ready_workers(place: Place) -> None:
    bus = place.fleet.bus
    names = [f"{name}/{new_id()}" for name in ("ready", "loading", "gone", "silent")]
    cards = [worker(names[0], WorkerState.READY), worker(names[1], WorkerState.LOADING), worker(names[2], WorkerState.READY)]
    cards.append(worker(names[3], WorkerState.READY, age_s=600))
    messages: list[WorkerRegistered | WorkerGone] = [*cards, WorkerGone(worker=cards[2].worker, cell=CellId("local"), epoch=1)]
    messages.append(worker("last", WorkerState.READY))
    for message in messages:
        subject = subjects.worker(WorkerId(message.worker.replace("/", "-")))
        await (await bus.store(subject, msgspec.json.encode(message)))
    async with asyncio.timeout(LIMIT_S):
        listed: list[str] = []
        while "last" not in listed:
            listed = [model.id async for model in place.client.models.list()]
    assert [name for name in listed if name in names] == [names[0]]
    found = await place.client.models.retrieve(names[0])
    assert (found.id, found.owned_by, found.object) == (names[0], "legato", "model")
    with pytest.raises(openai.NotFoundError) as caught:
        await place.client.models.retrieve(names[1])
    assert caught.value.code == "model_not_found"


async def test_health_and_readiness_are_told(place: Place) -> None:
    for path in ("health", "ready"):
        async with place.http.get(f"{place.url}/{path}") as response:
            assert response.status == 200
