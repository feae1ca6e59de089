"""A running gateway for tests, with a small responder on the bus that plays the fleet."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from nats.aio.msg import Msg
from openai import AsyncOpenAI

from services.gateway.service import run
from shared.contracts import subjects
from shared.contracts.ids import StepId, WorkflowId
from shared.contracts.outcomes import FinishReason, Problem, Reason, Status, Usage
from shared.contracts.output import End, Output, TokenLogprob, TopLogprob
from shared.contracts.steps import CancelRequested, StepRecord, StepState, Submission
from shared.contracts.workflows import WorkflowRecord, WorkflowState
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.lifecycle import Context, Options
from shared.runtime.telemetry import Telemetry, TelemetryConfig

LIMIT_S = 20.0
WORDS = ["Every ", "note ", "is ", "kept", "."]
USAGE = Usage(prompt_tokens=7, cached_tokens=4, output_tokens=len(WORDS))
ABSENT = Problem(reason=Reason.INVALID, message="there is none")
HELLO: Any = [{"role": "user", "content": "Hello"}]


class Fleet:
    """Takes submissions as they are published and answers on the bus as the model's name says."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.submissions: dict[StepId, Submission] = {}
        self.headers: dict[StepId, dict[str, str]] = {}
        self.cancelled: asyncio.Queue[CancelRequested] = asyncio.Queue(100)
        self.submitted: asyncio.Queue[StepId] = asyncio.Queue(100)
        self.records: dict[str, WorkflowRecord] = {}  # what Postgres would have
        self.steps: dict[str, StepRecord] = {}
        self.away: Problem | None = None  # why it cannot be read
        self.script: list[str] = []  # what the model `scripted` says, piece by piece

    async def start(self) -> None:
        await self.bus.subscribe(subjects.SUBMIT, self._on_submission)
        await self.bus.subscribe(subjects.CANCEL, self._on_cancel)
        await self.bus.subscribe(subjects.QUERY_WORKFLOW, self._on_workflow)
        await self.bus.subscribe(subjects.QUERY_STEP, self._on_step)

    async def say(self, step: StepId, output: Output) -> None:
        await (await self.bus.store(subjects.outbox(step), msgspec.json.encode(output)))

    async def end(self, step: StepId, status: Status, problem: Problem | None = None, offset: int = 0) -> None:
        finish = FinishReason.STOP if status is Status.SUCCEEDED else FinishReason.ERROR
        end = End(status=status, finish_reason=finish, usage=USAGE, problem=problem)
        await self.say(step, Output(attempt=1 if offset else 0, offset=offset, end=end))

    async def _on_cancel(self, msg: Msg) -> None:
        self.cancelled.put_nowait(msgspec.json.decode(msg.data, type=CancelRequested))

    async def _on_workflow(self, msg: Msg) -> None:
        workflow = WorkflowId(msg.subject.rpartition(".")[2])
        absent = WorkflowRecord(workflow=workflow, state=WorkflowState.UNKNOWN, problem=self.away or ABSENT)
        await self.bus.publish(msg.reply, msgspec.json.encode(absent if self.away else self.records.get(workflow, absent)))

    async def _on_step(self, msg: Msg) -> None:
        step = StepId(msg.subject.rpartition(".")[2])
        absent = StepRecord(step=step, status=StepState.UNKNOWN, problem=self.away or ABSENT)
        await self.bus.publish(msg.reply, msgspec.json.encode(absent if self.away else self.steps.get(step, absent)))

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

    async def _scripted(self, step: StepId) -> None:
        for number, piece in enumerate(self.script):
            await self.say(step, Output(attempt=1, offset=number, tokens=[number], text=piece))
        await self.end(step, Status.SUCCEEDED, offset=len(self.script))

    async def _silent(self, step: StepId) -> None:
        """Never answers."""

    async def _one_word(self, step: StepId) -> None:
        await self.say(step, Output(attempt=1, tokens=[0], text=WORDS[0]))

    async def _breaks(self, step: StepId) -> None:
        await self._one_word(step)
        await self.end(step, Status.FAILED, Problem(reason=Reason.ATTEMPTS_EXHAUSTED, message="three workers died"), offset=1)

    async def _floods(self, step: StepId) -> None:
        for number in range(2_000):
            await self.bus.store(subjects.outbox(step), msgspec.json.encode(Output(attempt=1, offset=number, tokens=[7], text="x" * 8_000)))


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
