"""A loaded SGLang with SmolLM2-135M on the CPU, for tests that ask it for tokens."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer

from services.worker.engines.base import EngineChunk, EngineRequest
from services.worker.engines.sglang import SglangEngine
from services.worker.engines.sglang_config import SglangConfig
from shared.contracts.fleet import Capacity, ModelCard
from shared.contracts.ids import StepId
from shared.contracts.steps import Sampling

CONFIG = SglangConfig(max_total_tokens=2048, stop_grace_s=60)  # a prompt that fills the pool takes seconds, not a minute
MARKS = [
    pytest.mark.sglang,
    pytest.mark.skipif(not Path(CONFIG.python).exists(), reason=f"no {CONFIG.python}: run `make setup-engine`"),
]
TIMEOUT_S = 120.0
GREEDY = Sampling(temperature=0)


class Loaded(msgspec.Struct):
    """A loaded engine and what it said of itself."""

    engine: SglangEngine
    card: ModelCard
    capacity: Capacity
    tokenizer: Tokenizer
    steps: int = 0

    def request(self, prompt: str, max_tokens: int = 16, sampling: Sampling = GREEDY, **fields: Any) -> EngineRequest:
        self.steps += 1
        chat = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
        tokens = self.tokenizer.encode(chat, add_special_tokens=False).ids
        request = EngineRequest(step=StepId(f"step-{self.steps}"), attempt=1, tokens=tokens, sampling=sampling, max_tokens=max_tokens)
        return msgspec.structs.replace(request, **fields)

    async def chunks(self, request: EngineRequest) -> list[EngineChunk]:
        async with asyncio.timeout(TIMEOUT_S):
            return [chunk async for chunk in self.engine.generate(request)]

    async def tokens(self, request: EngineRequest) -> list[int]:
        return [token for chunk in await self.chunks(request) for token in chunk.tokens]


@asynccontextmanager
async def engine_at(log_dir: Path, **settings: Any) -> AsyncIterator[Loaded]:
    """An engine from start to end."""
    engine = SglangEngine(msgspec.structs.replace(CONFIG, log_dir=str(log_dir), **settings))
    card, capacity, files = await engine.load()
    try:
        yield Loaded(engine=engine, card=card, capacity=capacity, tokenizer=Tokenizer.from_str(files[card.tokenizer].decode()))
    finally:
        await engine.drain(timeout_s=0)
