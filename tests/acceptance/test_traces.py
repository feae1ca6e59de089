"""One request, one trace: every service's spans carry the trace id that the client sent, and the engine is told it, too."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2 as httpx
import msgspec
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from legato import Client
from legato.fleet import Fleet
from services.worker.engines.base import EngineRequest
from services.worker.engines.sglang_config import SglangConfig
from services.worker.engines.sglang_run import Flight, SglangRun
from shared.contracts.envelope import Message
from shared.contracts.ids import StepId
from shared.contracts.outcomes import FinishReason
from shared.contracts.steps import Sampling
from shared.runtime.clock import now_ns
from shared.runtime.ids import TraceContext, new_trace
from shared.runtime.server_directory import free_port
from shared.runtime.telemetry import Telemetry, TelemetryConfig
from tests.acceptance.conftest import running_fleet

LIMIT_S = 20.0
SPANS = {
    "legato-gateway": {"http.chat"},
    "legato-admission": {"step.admitted"},
    "legato-router": {"step.routed"},
    "legato-scheduler": {"step.dispatched"},
    "legato-kv_registry": {"prefix.matched"},
    "legato-worker": {"worker.attempt"},
    "legato-workflow": {"step.settled"},
}
BODY = {"model": "sim-small", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}


class Span(msgspec.Struct, frozen=True):
    service: str
    name: str
    parent: str
    step: str
    start_ns: int
    end_ns: int


class Collector:
    """Takes spans by OTLP/HTTP, as an OpenTelemetry collector does."""

    def __init__(self) -> None:
        self.spans: dict[str, list[Span]] = {}  # by trace id
        self._arrived = asyncio.Event()

    async def take(self, request: web.Request) -> web.Response:
        for resource in ExportTraceServiceRequest.FromString(await request.read()).resource_spans:
            service = next(each.value.string_value for each in resource.resource.attributes if each.key == "service.name")
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                step = next(each.value.string_value for each in span.attributes if each.key == "legato.step")
                taken = Span(service, span.name, span.parent_span_id.hex(), step, span.start_time_unix_nano, span.end_time_unix_nano)
                self.spans.setdefault(span.trace_id.hex(), []).append(taken)
        self._arrived.set()
        return web.Response(content_type="application/x-protobuf")

    async def until_all_told(self, trace: TraceContext, services: set[str]) -> list[Span]:
        """The spans of a trace, once each of these services has sent some."""
        async with asyncio.timeout(LIMIT_S):
            while {span.service for span in self.spans.get(trace.trace_id, [])} < services:
                self._arrived.clear()
                await self._arrived.wait()
        return self.spans[trace.trace_id]


async def serve(path: str, handler: object, port: int = 0) -> tuple[web.AppRunner, int]:
    app = web.Application()
    app.router.add_post(path, handler)  # type: ignore[arg-type]
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    return runner, int(runner.addresses[0][1])


@pytest.fixture(scope="module")
async def collector() -> Collector:
    return Collector()


@pytest.fixture(scope="module")
async def traced_fleet(collector: Collector) -> AsyncIterator[Fleet]:
    runner, port = await serve("/v1/traces", collector.take)
    settings = (f"telemetry.otlp_endpoint=http://127.0.0.1:{port}/v1/traces",)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")  # ms between two batches; 5 s are usual
        async with running_fleet(workers=1, settings=settings) as fleet:
            yield fleet
    await runner.cleanup()


async def ask(fleet: Fleet, headers: dict[str, str]) -> str:
    """One chat by HTTP; its step's id."""
    async with httpx.AsyncClient(timeout=LIMIT_S) as client:
        answer = await client.post(f"{fleet.running.http}/v1/chat/completions", json=BODY, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.headers["X-Legato-Step"]


async def test_the_spans_of_all_services_belong_to_the_clients_trace(traced_fleet: Fleet, collector: Collector) -> None:
    trace = new_trace()
    step = await ask(traced_fleet, {"traceparent": str(trace)})
    spans = await collector.until_all_told(trace, set(SPANS))
    assert {service: {span.name for span in spans if span.service == service} for service in SPANS} == SPANS
    assert {span.service for span in spans} == set(SPANS)
    assert {span.step for span in spans} == {step}
    assert {span.parent for span in spans} == {trace.span_id}
    assert all(span.start_ns <= span.end_ns for span in spans)


async def test_the_trace_of_a_step_by_nats_is_followed_as_well(traced_fleet: Fleet, collector: Collector) -> None:
    trace = new_trace()
    async with Client(traced_fleet.running.nats) as client:
        step = await client.submit(model="sim-small", prompt="Hello", max_tokens=5, trace=str(trace))
        await step.result(LIMIT_S)
    spans = await collector.until_all_told(trace, set(SPANS) - {"legato-gateway"})
    assert {span.step for span in spans} == {step.id}


async def test_a_refusal_is_part_of_the_trace(traced_fleet: Fleet, collector: Collector) -> None:
    trace = new_trace()
    async with httpx.AsyncClient(timeout=LIMIT_S) as client:
        url = f"{traced_fleet.running.http}/v1/chat/completions"
        answer = await client.post(url, json={**BODY, "model": "nobody"}, headers={"traceparent": str(trace)})
    assert answer.status_code == 404
    spans = await collector.until_all_told(trace, {"legato-gateway", "legato-admission"})
    assert {span.name for span in spans} == {"http.chat", "step.refused", "output"}


async def test_what_is_not_to_be_sampled_is_not(traced_fleet: Fleet, collector: Collector) -> None:
    silent, told = new_trace(sampled=False), new_trace()
    await ask(traced_fleet, {"traceparent": str(silent)})
    await ask(traced_fleet, {"traceparent": str(told)})
    await collector.until_all_told(told, set(SPANS))  # each process sends in the order of its spans
    assert silent.trace_id not in collector.spans


@pytest.mark.parametrize("given", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
async def test_a_request_without_a_usable_trace_gets_one_of_its_own(traced_fleet: Fleet, collector: Collector, given: str) -> None:
    before = set(collector.spans)
    step = await ask(traced_fleet, {"traceparent": given} if given else {})
    after = new_trace()
    await ask(traced_fleet, {"traceparent": str(after)})
    await collector.until_all_told(after, set(SPANS))
    [spans] = [spans for trace, spans in collector.spans.items() if trace not in before and trace != after.trace_id]
    assert {span.step for span in spans} == {step}


async def test_a_collector_that_does_not_answer_holds_up_no_end() -> None:
    asked = asyncio.Event()

    async def swallow(request: web.Request) -> web.Response:
        asked.set()
        await asyncio.sleep(600)
        return web.Response()

    runner, port = await serve("/v1/traces", swallow)
    telemetry = Telemetry("test", "test-0", TelemetryConfig(otlp_endpoint=f"http://127.0.0.1:{port}/v1/traces"))
    message = Message(step=StepId("s"), trace=str(new_trace()))
    for _ in range(2_000):  # several batches
        telemetry.span("of interest", message, now_ns())
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(asyncio.to_thread(telemetry.close), asked.wait())
    await runner.cleanup()


async def test_sglang_is_told_the_trace(tmp_path: Path) -> None:
    headers: list[str] = []

    async def generate(request: web.Request) -> web.StreamResponse:
        headers.append(request.headers.get("traceparent", ""))
        event = b'data: {"output_ids": [7], "meta_info": {"finish_reason": {"type": "stop"}}}\n\ndata: [DONE]\n\n'
        return web.Response(body=event, content_type="text/event-stream")

    port = free_port()
    runner, _ = await serve("/generate", generate, port)
    run = SglangRun(SglangConfig(port=port, log_dir=str(tmp_path)))
    request = EngineRequest(step=StepId("s"), attempt=1, tokens=[1], sampling=Sampling(), max_tokens=1, trace=str(new_trace()))
    for each in (request, msgspec.structs.replace(request, trace="")):
        assert [chunk.finish async for chunk in run.stream(each, Flight("r"))] == [FinishReason.STOP]
    await run.end(0)
    await runner.cleanup()
    assert headers == [request.trace, ""]
