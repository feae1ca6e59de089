"""Every row of docs/resume.md on the real SGLang in float32: a run that is cut anywhere goes on exactly as if uncut.

The engine keeps no prefix cache, so that each resumed run computes prompt and captured tokens afresh, as another worker would. The cuts of
a row run at once, beside each other and beside runs of other kinds, whereas the uncut one ran alone. Tokens come through the output
processor, and are compared with their text, log-probabilities and end.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from itertools import zip_longest

import msgspec
import pytest
import pytest_asyncio
from sglang_rig import GREEDY, MARKS, TIMEOUT_S, Loaded, engine_at

from services.worker.engines.base import EngineRequest
from services.worker.output import OutputProcessor
from shared.contracts.ids import StepId
from shared.contracts.outcomes import FinishReason
from shared.contracts.output import TokenLogprob
from shared.contracts.steps import Sampling, Tool, ToolFunction
from shared.core.tools import calls_form

pytestmark = MARKS
SEASONS = "Name the four seasons of the year and say one sentence about each of them."
FRANCE = "What is the capital of France? Answer in one short sentence."
CITY = "Describe Paris as JSON."
FULL_STOP = 30  # the token "." of SmolLM2
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer"}},
        "required": ["city", "people"],
    }
)

PLACE = {"type": "object", "properties": {"in": {"$ref": "#/$defs/City"}}, "required": ["in"], "$defs": {"City": json.loads(SCHEMA)}}
TOOLS = [
    Tool(type="function", function=ToolFunction(name="describe", parameters=PLACE)),
    Tool(type="function", function=ToolFunction(name="visit", parameters=PLACE)),
]


class Row(msgspec.Struct, frozen=True):
    """A request. `inside`: what some of the cuts must fall into: a character, a stop string, a JSON string."""

    prompt: str
    sampling: Sampling
    inside: str = ""
    max_tokens: int = 24


ROWS = {
    "greedy": Row(SEASONS, GREEDY),
    "seeded": Row(SEASONS, Sampling(temperature=1.0, seed=7)),
    "seed of the step": Row(SEASONS, Sampling(temperature=1.3)),
    "top_p and top_k": Row(SEASONS, Sampling(temperature=1.1, seed=2**40, top_p=0.9, top_k=50)),
    "min_p": Row(SEASONS, Sampling(temperature=1.5, seed=6, min_p=0.1)),
    "frequency penalty": Row(SEASONS, Sampling(temperature=0, frequency_penalty=1.5)),
    "presence penalty": Row(SEASONS, Sampling(temperature=0, presence_penalty=-1.5)),
    "repetition penalty": Row(SEASONS, Sampling(temperature=0, repetition_penalty=1.4)),
    "all penalties, seeded": Row(
        SEASONS, Sampling(temperature=0.8, seed=3, frequency_penalty=0.7, presence_penalty=0.4, repetition_penalty=1.2)
    ),
    "logit_bias": Row(SEASONS, Sampling(temperature=0, logit_bias={"28": -100.0, "198": 3.0})),
    "logprobs": Row(SEASONS, Sampling(temperature=0, logprobs=3, frequency_penalty=0.5)),
    "end of text": Row(FRANCE, GREEDY),
    "min_tokens": Row(FRANCE, Sampling(temperature=0, min_tokens=20)),
    "min_tokens and stop_token_ids": Row(FRANCE, Sampling(temperature=0.9, seed=5, min_tokens=12, stop_token_ids=[FULL_STOP])),
    "stop_token_ids": Row(FRANCE, Sampling(temperature=0, stop_token_ids=[FULL_STOP])),
    "ignore_eos": Row(FRANCE, Sampling(temperature=0, ignore_eos=True)),
    "stop string": Row(FRANCE, Sampling(temperature=0, stop=["of France is"]), "stop"),
    "characters": Row("Say something.", Sampling(temperature=1.0, seed=1, regex="(音|é|🎵|ñ){6}x"), "character"),
    "json_schema": Row(CITY, Sampling(temperature=0, json_schema=SCHEMA), "string"),
    "json_schema, seeded": Row(CITY, Sampling(temperature=1.0, seed=5, json_schema=SCHEMA), "string"),
    "json_schema with penalties and logprobs": Row(
        CITY, Sampling(temperature=0, json_schema=SCHEMA, frequency_penalty=1.0, repetition_penalty=1.2, logprobs=2), "string", 40
    ),
    "json_schema and stop string": Row(CITY, Sampling(temperature=0, json_schema=SCHEMA, stop=['"people":']), "stop"),
    "demanded calls": Row(CITY, Sampling(temperature=1.0, seed=12, json_schema=calls_form(TOOLS, several=True)), "string", 40),
    "any JSON": Row(CITY, Sampling(temperature=0.7, seed=11, json_schema='{"type":"object"}'), "string"),
    "regex": Row(CITY, Sampling(temperature=1.0, seed=4, regex=r"(Paris|London) is [a-z ]{5,60}\.")),
    "ebnf": Row(CITY, Sampling(temperature=0.8, seed=9, ebnf='root ::= item (", " item)* "."\nitem ::= [a-z]+')),
}

COMPANIONS = ("greedy", "top_p and top_k", "all penalties, seeded")  # of each kind that SGLang samples differently


class Run(msgspec.Struct):
    """What a reader has: tokens, the text shown after each of them (from the first new one on), log-probabilities, the end."""

    tokens: list[int]
    shown: list[str]
    cached: int
    logprobs: list[TokenLogprob]
    finish: FinishReason | None


@pytest_asyncio.fixture(scope="module")
async def loaded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Loaded]:
    async with engine_at(tmp_path_factory.mktemp("engine"), extra_args=["--disable-radix-cache"]) as loaded:
        yield loaded


@pytest.mark.parametrize("name", ROWS)
async def test_a_run_that_is_cut_anywhere_goes_on_as_if_uncut(loaded: Loaded, name: str) -> None:
    row = ROWS[name]
    request = loaded.request(row.prompt, row.max_tokens, row.sampling, step=StepId(name.replace(" ", "-")))
    whole = await run(loaded, request)
    offsets = cuts(loaded, row, whole)
    resumed = [msgspec.structs.replace(request, attempt=2 + at, resumed=whole.tokens[:at]) for at in offsets]
    beside = [loaded.request(each.prompt, each.max_tokens, each.sampling) for each in map(ROWS.__getitem__, COMPANIONS)]
    rests = await asyncio.gather(*(run(loaded, each) for each in (*beside, *resumed)))
    for at, rest in zip(offsets, rests[len(beside) :], strict=True):
        where = f"{name}, cut after {at} of {len(whole.tokens)} tokens"
        assert rest.cached == 0, where
        assert rest.shown[0] == whole.shown[at], f"{where}: the reader has other text than the next attempt thinks"
        assert (rest.tokens, rest.shown[-1], rest.finish) == (whole.tokens, whole.shown[-1], whole.finish), where
        assert_alike(rest.logprobs, whole.logprobs[at:], where)


async def test_a_run_that_sglang_itself_preempts_goes_on_as_if_not(loaded: Loaded) -> None:
    rows = [ROWS["all penalties, seeded"], ROWS["json_schema with penalties and logprobs"]] * (loaded.capacity.slots // 2)
    requests = [loaded.request(row.prompt, row.max_tokens, row.sampling, priority=-100) for row in rows]
    alone = await asyncio.gather(*(run(loaded, each) for each in requests))
    again = [asyncio.ensure_future(run(loaded, msgspec.structs.replace(each, attempt=2))) for each in requests]
    async with asyncio.timeout(TIMEOUT_S):
        while (await loaded.engine.stats()).slots_used < len(requests):  # noqa: ASYNC110  it can only be asked for
            await asyncio.sleep(0.02)
    await loaded.tokens(loaded.request(FRANCE, 2, priority=100))
    assert not any(task.done() for task in again), "the urgent one found a free slot"
    for one, other in zip(await asyncio.gather(*again), alone, strict=True):
        assert (one.tokens, one.shown, one.finish) == (other.tokens, other.shown, other.finish)


async def run(loaded: Loaded, request: EngineRequest) -> Run:
    """As an attempt does it: nothing is asked of the engine when the captured tokens are complete."""
    output = OutputProcessor(loaded.tokenizer, loaded.card.eos_token_ids, request)
    read = Run(tokens=output.tokens, shown=[output.full_text], cached=0, logprobs=[], finish=None)
    async with asyncio.timeout(TIMEOUT_S), aclosing(loaded.engine.generate(request)) as chunks:
        while output.finish is None:
            chunk = await anext(chunks)
            read.cached = max(read.cached, chunk.cached_tokens)
            for index, token in enumerate(chunk.tokens):
                last = index == len(chunk.tokens) - 1
                piece = output.push([token], chunk.logprobs[index : index + 1], chunk.finish if last else None)
                read.shown.append(output.full_text)
                read.logprobs += piece.logprobs
    read.finish = output.finish
    return read


def cuts(loaded: Loaded, row: Row, whole: Run) -> list[int]:
    """Nothing captured, the first token, the middle, all but the last token, all tokens; and three inside what the row is about."""
    count = len(whole.tokens)
    inside = [at for at in range(1, count) if is_inside(loaded, row, whole.tokens[:at])] if row.inside else []
    assert bool(inside) == bool(row.inside), f"no cut falls into a {row.inside}: {whole.shown[-1]!r}"
    return sorted({0, 1, count // 2, count - 1, count, *inside[:2], *inside[-1:]})


def is_inside(loaded: Loaded, row: Row, tokens: list[int]) -> bool:
    text = loaded.tokenizer.decode(tokens)
    match row.inside:
        case "character":
            return text.endswith("\ufffd")
        case "stop":
            return any(text.endswith(stop[:length]) for stop in row.sampling.stop for length in range(2, len(stop)))
    return text.count('"') % 2 == 1


def assert_alike(ours: list[TokenLogprob], theirs: list[TokenLogprob], where: str) -> None:
    """The same tokens in the same order, their values within the noise of float32 sums in another order."""
    for one, other in zip_longest(ours, theirs):
        assert [one.token, *(top.token for top in one.top)] == [other.token, *(top.token for top in other.top)], where
        values = [[each.logprob, *(top.logprob for top in each.top)] for each in (one, other)]
        assert values[0] == pytest.approx(values[1], abs=1e-3), where
