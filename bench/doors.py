"""The three ways to an engine: in the same process, by NATS, by HTTP. All ask for the same tokens with the same prompt length."""

import time

import aiohttp
import msgspec

from bench.load import Door, Sample
from legato import Client
from services.worker.engines.base import EngineRequest
from services.worker.engines.simulated import SimulatedConfig, SimulatedEngine
from shared.contracts.ids import StepId
from shared.contracts.steps import Sampling

PROMPT = "Tell me, number {number}, what an orchestra without a conductor sounds like, and who then begins. " * 3


class Direct:
    """The engine alone, in this process: what a request costs without a control plane. Tokens only, no detokenising."""

    def __init__(self, config: SimulatedConfig, tokens: int) -> None:
        self.engine = SimulatedEngine(config)
        self._tokens = tokens

    async def request(self, number: int) -> Sample:
        started, first, count = time.perf_counter(), 0.0, 0
        request = EngineRequest(
            step=StepId(f"direct{number}"),
            attempt=1,
            tokens=list(PROMPT.format(number=number).encode()),
            sampling=Sampling(),
            max_tokens=self._tokens,
        )
        async for chunk in self.engine.generate(request):
            first = first or time.perf_counter()
            count += len(chunk.tokens)
        return Sample(first - started, time.perf_counter() - started, count)


def by_nats(client: Client, model: str, tokens: int) -> Door:
    """Through `legato.Client`: publish, then read `legato.out.<step>`."""

    async def request(number: int) -> Sample:
        started, first, count = time.perf_counter(), 0.0, 0
        step = await client.submit(model=model, prompt=PROMPT.format(number=number), max_tokens=tokens)
        async for output in step:
            first = first or time.perf_counter()
            count += len(output.tokens)
        _complete(count, tokens)
        return Sample(first - started, time.perf_counter() - started, count)

    return request


def by_http(session: aiohttp.ClientSession, url: str, model: str, tokens: int) -> Door:
    """Server-sent events from /v1/completions. Counts tokens by the usage at the end."""

    async def request(number: int) -> Sample:
        started, first, count = time.perf_counter(), 0.0, 0
        body = {
            "model": model,
            "prompt": PROMPT.format(number=number),
            "max_tokens": tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with session.post(
            f"{url}/v1/completions", data=msgspec.json.encode(body), headers={"Content-Type": "application/json"}
        ) as reply:
            reply.raise_for_status()
            async for line in reply.content:
                if line.startswith(b"data: {"):
                    first = first or time.perf_counter()
                    usage = msgspec.json.decode(line[6:]).get("usage")
                    count = usage["completion_tokens"] if usage else count
        _complete(count, tokens)
        return Sample(first - started, time.perf_counter() - started, count)

    return request


def _complete(count: int, tokens: int) -> None:
    if count != tokens:
        raise AssertionError(f"received {count} tokens of {tokens}")
