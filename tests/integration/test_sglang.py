"""The engine protocol on the real SGLang with SmolLM2-135M on the CPU. One engine serves all tests but the last ones, which end it."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path

import msgspec
import psutil
import pytest
import pytest_asyncio
from sglang_rig import CONFIG, GREEDY, MARKS, TIMEOUT_S, Loaded, engine_at

from services.worker.engines.base import EngineChunk, EngineError, EngineLoad
from services.worker.engines.sglang import SglangEngine
from shared.contracts.ids import StepId
from shared.contracts.kv import AllCleared, BlocksStored
from shared.contracts.outcomes import FinishReason, Reason
from shared.contracts.steps import Sampling
from shared.core.blocks import block_hashes

pytestmark = MARKS
WARM = Sampling(temperature=1.0, seed=7)


@pytest_asyncio.fixture(scope="module")
async def loaded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Loaded]:
    async with engine_at(tmp_path_factory.mktemp("engine")) as loaded:
        yield loaded


@pytest.fixture
def chat_prompt() -> str:
    return "Name the four seasons of the year and say one sentence about each of them."


async def test_the_card_and_the_capacity_describe_the_model_and_the_pool(loaded: Loaded) -> None:
    card = loaded.card
    assert (card.name, card.vocab_size, card.block_tokens, card.eos_token_ids) == ("smollm2-135m", 49152, 16, [2])
    assert (card.bos_token, card.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert "add_generation_prompt" in card.chat_template
    assert card.context_tokens < 2048 == loaded.capacity.blocks * card.block_tokens
    assert loaded.capacity.slots == CONFIG.slots


async def test_tokens_stream_and_the_last_chunk_says_why_it_ended(loaded: Loaded, chat_prompt: str) -> None:
    chunks = await loaded.chunks(loaded.request(chat_prompt, max_tokens=12))
    assert len(chunks) > 6, "tokens must arrive as they are made, not at the end"
    assert sum(len(chunk.tokens) for chunk in chunks) == 12
    assert [chunk.finish for chunk in chunks] == [None] * (len(chunks) - 1) + [FinishReason.LENGTH]


async def test_the_text_makes_sense_and_ends_by_itself(loaded: Loaded) -> None:
    chunks = await loaded.chunks(loaded.request("What is the capital of France? Answer in one short sentence.", max_tokens=60))
    text = loaded.tokenizer.decode([token for chunk in chunks for token in chunk.tokens])
    assert "Paris" in text
    assert chunks[-1].finish is FinishReason.STOP
    assert chunks[-1].tokens[-1:] == loaded.card.eos_token_ids


@pytest.mark.parametrize("sampling", [GREEDY, WARM, Sampling(temperature=1.2, top_p=0.9, top_k=40)], ids=["greedy", "seeded", "unseeded"])
async def test_a_repeated_attempt_gives_the_same_tokens_alone_and_in_a_batch(loaded: Loaded, chat_prompt: str, sampling: Sampling) -> None:
    request = loaded.request(chat_prompt, sampling=sampling)
    alone = await loaded.tokens(request)
    again = msgspec.structs.replace(request, attempt=2)
    others = [loaded.request(f"Tell me a story about the number {number}.", sampling=WARM) for number in range(3)]
    in_batch, *_ = await asyncio.gather(*(loaded.tokens(each) for each in (again, *others)))
    assert in_batch == alone


async def test_steps_without_a_seed_differ(loaded: Loaded, chat_prompt: str) -> None:
    sampling = Sampling(temperature=1.5)
    one, other = [await loaded.tokens(loaded.request(chat_prompt, sampling=sampling)) for _ in range(2)]
    assert one != other


async def test_a_second_request_finds_its_prompt_cached(loaded: Loaded) -> None:
    prompt = "Count from one to forty in words. " * 8
    first, second = [await loaded.chunks(loaded.request(prompt, max_tokens=2)) for _ in range(2)]
    length = len(loaded.request(prompt).tokens)
    assert first[0].cached_tokens < 16
    assert second[0].cached_tokens == (length - 1) // 16 * 16  # the last token is always computed


async def test_kv_events_tell_the_hashes_that_prompts_are_matched_by(loaded: Loaded) -> None:
    request = loaded.request(
        "These words have not been seen before by this engine, and they fill several blocks of its cache. " * 3, max_tokens=2
    )
    wanted = block_hashes(request.tokens, 16)
    assert len(wanted) >= 3
    seen: list[int] = []
    sequence: list[int] = []
    async with asyncio.timeout(TIMEOUT_S), aclosing(loaded.engine.kv_events()) as batches:
        running = asyncio.ensure_future(loaded.tokens(request))
        async for batch in batches:
            sequence.append(batch.seq)
            seen += [block for event in batch.events if isinstance(event, BlocksStored) for block in event.hashes]
            if set(wanted) <= set(seen):
                break
        await running
    assert sequence == list(range(sequence[0], sequence[0] + len(sequence)))
    last, held = await loaded.engine.kv_snapshot()
    assert last == sequence[-1]
    assert set(wanted) <= set(held)


async def test_log_probabilities_come_with_their_tokens(loaded: Loaded, chat_prompt: str) -> None:
    chunks = await loaded.chunks(loaded.request(chat_prompt, max_tokens=5, sampling=Sampling(temperature=0, logprobs=3)))
    tokens = [token for chunk in chunks for token in chunk.tokens]
    logprobs = [entry for chunk in chunks for entry in chunk.logprobs]
    assert [entry.token for entry in logprobs] == tokens
    assert all(len(entry.top) == 3 and entry.top[0].token == entry.token and entry.logprob <= 0 for entry in logprobs)


async def test_biases_penalties_and_stop_tokens_reach_the_engine(loaded: Loaded, chat_prompt: str) -> None:
    plain = await loaded.tokens(loaded.request(chat_prompt))
    banned = Sampling(temperature=0, logit_bias={str(plain[0]): -100.0})
    assert (await loaded.tokens(loaded.request(chat_prompt, sampling=banned)))[0] != plain[0]
    stopped = await loaded.chunks(loaded.request(chat_prompt, sampling=Sampling(temperature=0, stop_token_ids=[plain[4]])))
    assert [token for chunk in stopped for token in chunk.tokens] == plain[: plain.index(plain[4]) + 1]
    assert stopped[-1].finish is FinishReason.STOP
    penalised = Sampling(temperature=0, frequency_penalty=2.0, presence_penalty=2.0, repetition_penalty=2.0)
    assert await loaded.tokens(loaded.request(chat_prompt, sampling=penalised)) != plain


EXTREMES = [
    Sampling(temperature=2, top_p=1e-9, top_k=2**31),
    Sampling(temperature=2, min_p=1.0),
    Sampling(temperature=1e-9, top_k=1, seed=2**63 - 1),
    Sampling(frequency_penalty=-2, presence_penalty=-2, repetition_penalty=1e-6),
    Sampling(frequency_penalty=2, presence_penalty=2, repetition_penalty=2, logprobs=20),
    Sampling(logprobs=0, stop_token_ids=list(range(64)), seed=0),
    Sampling(logit_bias={str(token): 100.0 for token in range(1024)}),
    Sampling(logit_bias={"-1": 1.0}),
    Sampling(logit_bias={"49152": 1.0}),
    Sampling(logit_bias={"word": 1.0}),
]


async def test_extreme_sampling_is_served_or_refused_together_with_others_and_harms_nobody(loaded: Loaded, chat_prompt: str) -> None:
    witness = loaded.request(chat_prompt)
    alone = await loaded.tokens(witness)
    requests = [loaded.request(chat_prompt, 4, sampling, priority=100 * (-1) ** row) for row, sampling in enumerate(EXTREMES)]
    tasks = [loaded.tokens(each) for each in (*requests, msgspec.structs.replace(witness, attempt=2))]
    *results, again = await asyncio.gather(*tasks, return_exceptions=True)
    assert again == alone
    assert [None if isinstance(each, BaseException) else len(each) in range(1, 5) for each in results] == [True] * 7 + [None] * 3
    assert [str(each).partition("SGLang answered 400")[1] for each in results[7:]] == ["SGLang answered 400"] * 3


async def test_an_aborted_attempt_ends_as_cancelled_and_frees_its_slot(loaded: Loaded, chat_prompt: str) -> None:
    request = loaded.request(chat_prompt, max_tokens=1500, sampling=Sampling(temperature=0, ignore_eos=True))
    chunks: list[EngineChunk] = []
    async with asyncio.timeout(TIMEOUT_S):
        async for chunk in loaded.engine.generate(request):
            if not chunks:
                assert (await loaded.engine.stats()).slots_used == 1
                await loaded.engine.abort(request.step, request.attempt)
            chunks.append(chunk)
    assert chunks[-1].finish is FinishReason.CANCELLED
    await load_becomes(loaded, lambda load: load == EngineLoad(blocks_used=0, slots_used=0, waiting=0))


async def test_aborting_attempt_1_leaves_attempt_10_alone(loaded: Loaded, chat_prompt: str) -> None:
    request = loaded.request(chat_prompt, max_tokens=40, sampling=Sampling(temperature=0, ignore_eos=True))
    first, tenth = (asyncio.ensure_future(loaded.chunks(msgspec.structs.replace(request, attempt=attempt))) for attempt in (1, 10))
    await load_becomes(loaded, lambda load: load.slots_used == 2)
    await loaded.engine.abort(request.step, 1)
    assert (await first)[-1].finish is FinishReason.CANCELLED
    assert (await tenth)[-1].finish is FinishReason.LENGTH


async def test_an_attempt_may_ask_its_engine_twice(loaded: Loaded, chat_prompt: str) -> None:
    """As a take-over does: it warms the cache, and goes on. Seconds after a response SGLang aborts what then has that response's id."""
    request = loaded.request(chat_prompt, max_tokens=1, sampling=Sampling(temperature=0, ignore_eos=True))
    await loaded.chunks(request)
    again = await loaded.chunks(msgspec.structs.replace(request, max_tokens=120))
    assert again[-1].finish is FinishReason.LENGTH


async def test_a_reader_that_goes_away_frees_the_engine(loaded: Loaded, chat_prompt: str) -> None:
    request = loaded.request(chat_prompt, max_tokens=1500, sampling=Sampling(temperature=0, ignore_eos=True))
    async with asyncio.timeout(TIMEOUT_S), aclosing(loaded.engine.generate(request)) as chunks:
        async for _ in chunks:
            break
    await load_becomes(loaded, lambda load: load == EngineLoad(blocks_used=0, slots_used=0, waiting=0))


async def test_cached_blocks_do_not_count_as_used(loaded: Loaded) -> None:
    await loaded.tokens(loaded.request("A prompt of some length, which the cache keeps. " * 10, max_tokens=2))
    await load_becomes(loaded, lambda load: load == EngineLoad(blocks_used=0, slots_used=0, waiting=0))


@pytest.mark.parametrize("where", ["tokens", "resumed", "stop"])
@pytest.mark.parametrize("token", [49152, -1])
async def test_an_id_outside_the_vocabulary_is_refused_and_harms_nobody(loaded: Loaded, chat_prompt: str, where: str, token: int) -> None:
    request = loaded.request(chat_prompt, max_tokens=3)
    fields = {"sampling": Sampling(temperature=0, stop_token_ids=[token])} if where == "stop" else {where: [5, token]}
    with pytest.raises(EngineError, match="token ids must be within 0 and 49151") as refused:
        await loaded.tokens(msgspec.structs.replace(request, **fields))
    assert (refused.value.reason, refused.value.retryable) == (Reason.INVALID, False)
    assert len(await loaded.tokens(request)) == 3


async def test_a_prompt_as_long_as_the_card_allows_runs_and_a_longer_one_is_refused(loaded: Loaded) -> None:
    longest = [5] * (loaded.card.context_tokens - 1)
    assert len(await loaded.tokens(loaded.request("", max_tokens=1, tokens=longest))) == 1
    with pytest.raises(EngineError) as refused:
        await loaded.tokens(loaded.request("", max_tokens=1, tokens=[*longest, 5]))
    assert refused.value.reason is Reason.CONTEXT_TOO_LONG


@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        WARM,
        Sampling(temperature=0, frequency_penalty=1.0, presence_penalty=0.5, repetition_penalty=1.3),
        Sampling(temperature=0.8, seed=3, top_p=0.9, top_k=50, frequency_penalty=0.7),
    ],
    ids=["greedy", "seeded", "penalised", "seeded and penalised"],
)
async def test_a_generation_resumed_anywhere_goes_on_as_if_uncut(loaded: Loaded, chat_prompt: str, sampling: Sampling) -> None:
    whole = await loaded.tokens(loaded.request(chat_prompt, max_tokens=24, sampling=sampling, step=StepId("cut")))
    for cut in (1, 9, len(whole) - 1):
        request = loaded.request(chat_prompt, 24, sampling, step=StepId("cut"), attempt=cut + 1, resumed=whole[:cut])
        chunks = await loaded.chunks(request)
        assert [token for chunk in chunks for token in chunk.tokens] == whole[cut:], f"cut after {cut} tokens"
        assert chunks[0].cached_tokens < len(request.tokens) + cut


async def test_resumed_log_probabilities_are_those_of_new_tokens_only(loaded: Loaded, chat_prompt: str) -> None:
    sampling = Sampling(temperature=0, logprobs=2)
    whole = [entry for chunk in await loaded.chunks(loaded.request(chat_prompt, 8, sampling)) for entry in chunk.logprobs]
    resumed = [entry.token for entry in whole[:3]]
    rest = [entry for chunk in await loaded.chunks(loaded.request(chat_prompt, 8, sampling, resumed=resumed)) for entry in chunk.logprobs]
    assert [entry.token for entry in rest] == [entry.token for entry in whole[3:]]
    assert [entry.logprob for entry in rest] == pytest.approx([entry.logprob for entry in whole[3:]], abs=1e-3)


async def test_resuming_a_run_that_was_complete_only_says_how_it_ended(loaded: Loaded, chat_prompt: str) -> None:
    for resumed, finish in (([5, 6, 7], FinishReason.LENGTH), ([5, 2], FinishReason.STOP)):
        chunks = await loaded.chunks(loaded.request(chat_prompt, max_tokens=3, resumed=resumed))
        assert [(chunk.tokens, chunk.finish) for chunk in chunks] == [([], finish)]


async def test_resumption_near_the_end_of_the_context_is_not_refused(loaded: Loaded) -> None:
    room = 40
    prompt = [5] * (loaded.card.context_tokens - room)
    chunks = await loaded.chunks(
        loaded.request("", max_tokens=room, sampling=Sampling(temperature=0, ignore_eos=True), tokens=prompt, resumed=[6] * 38)
    )
    assert sum(len(chunk.tokens) for chunk in chunks) == 2
    assert chunks[-1].finish is FinishReason.LENGTH


async def test_a_killed_engine_is_noticed_its_requests_may_be_retried_and_it_loads_again(loaded: Loaded, chat_prompt: str) -> None:
    request = loaded.request(chat_prompt, max_tokens=1500, sampling=Sampling(temperature=0, ignore_eos=True))
    engine, family = loaded.engine, engine_processes()
    async with asyncio.timeout(TIMEOUT_S):
        died = asyncio.ensure_future(engine.died())
        chunks = engine.generate(request)
        await anext(chunks)
        os.kill(family[0].pid, signal.SIGKILL)
        with pytest.raises(EngineError) as lost:
            await drained(chunks)
        assert lost.value.retryable
        assert "SIGKILL" in await died
        while any(runs(process) for process in family):  # noqa: ASYNC110  its end is told at once, while the rest of it is being killed
            await asyncio.sleep(0.02)
    with pytest.raises(EngineError) as refused:
        await engine.stats()
    assert refused.value.retryable
    await engine.load()
    assert len(await loaded.tokens(loaded.request(chat_prompt, max_tokens=3))) == 3
    async with asyncio.timeout(TIMEOUT_S):
        first = await anext(engine.kv_events())
    assert (first.seq, first.events) == (1, [AllCleared()])
    assert await engine.kv_snapshot() == (1, [])


async def test_drain_lets_a_running_request_finish_and_leaves_no_process(loaded: Loaded, chat_prompt: str) -> None:
    family = engine_processes()
    async with asyncio.timeout(TIMEOUT_S), aclosing(loaded.engine.generate(loaded.request(chat_prompt, max_tokens=12))) as chunks:
        first = await anext(chunks)
        stopped = asyncio.ensure_future(loaded.engine.drain(timeout_s=TIMEOUT_S))
        rest = await drained(chunks)
        await stopped
    assert sum(len(chunk.tokens) for chunk in [first, *rest]) == 12
    assert len(family) > 1
    assert not [process for process in family if runs(process)]
    with pytest.raises(EngineError) as refused:
        await loaded.tokens(loaded.request(chat_prompt))
    assert refused.value.retryable


async def test_a_start_that_fails_says_why_with_the_end_of_the_log(tmp_path: Path) -> None:
    engine = SglangEngine(msgspec.structs.replace(CONFIG, log_dir=str(tmp_path), extra_args=["--no-such-option"]))
    with pytest.raises(EngineError, match="no-such-option"):
        await engine.load()


async def drained(chunks: AsyncIterator[EngineChunk]) -> list[EngineChunk]:
    return [chunk async for chunk in chunks]


async def load_becomes(loaded: Loaded, wanted: Callable[[EngineLoad], bool]) -> None:
    """Wait until the engine reports such a load."""
    async with asyncio.timeout(TIMEOUT_S):
        while not wanted(await loaded.engine.stats()):  # noqa: ASYNC110  it can only be asked for
            await asyncio.sleep(0.02)


def runs(process: psutil.Process) -> bool:
    """Whether it is more than a zombie, which waits for its parent (init, when SGLang's main process went first)."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def engine_processes() -> list[psutil.Process]:
    """SGLang's main process, which is our child, and those that it started."""
    main = next(child for child in psutil.Process().children() if "sglang" in " ".join(child.cmdline()))
    return [main, *main.children(recursive=True)]
