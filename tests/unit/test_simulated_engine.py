"""The simulated engine in real time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import msgspec
import pytest
from tokenizers import Tokenizer

from services.worker.engines import byte_tokenizer
from services.worker.engines.base import EngineChunk, EngineError, EngineLoad, EngineRequest
from services.worker.engines.simulated import SimulatedConfig, SimulatedEngine
from services.worker.output import OutputProcessor
from shared.contracts.ids import StepId
from shared.contracts.kv import BlocksStored
from shared.contracts.outcomes import FinishReason, Reason
from shared.contracts.steps import Sampling
from shared.core.blocks import block_hashes

PATIENCE_S = 10.0  # for what never should take long
INSTANT = SimulatedConfig(law="instant")
SLOW = SimulatedConfig(law="8b-h100", time_scale=1e6)  # an iteration takes hours: nothing is produced within a test
PROMPT = [*b"<Tell me of the bow, and of the line that holds while another one takes it over.>"]


@asynccontextmanager
async def running(config: SimulatedConfig = INSTANT) -> AsyncIterator[SimulatedEngine]:
    engine = SimulatedEngine(config)
    async with asyncio.timeout(PATIENCE_S):
        await engine.load()
        yield engine
        await engine.drain(0)


def request(step: str = "step", /, **fields: object) -> EngineRequest:
    values: dict[str, object] = {"attempt": 1, "tokens": PROMPT, "sampling": Sampling(), "max_tokens": 40}
    return EngineRequest(step=StepId(step), **(values | fields))  # type: ignore[arg-type]


async def chunks_of(engine: SimulatedEngine, what: EngineRequest) -> list[EngineChunk]:
    async with aclosing(engine.generate(what)) as chunks:
        return [chunk async for chunk in chunks]


async def tokens_of(engine: SimulatedEngine, what: EngineRequest) -> list[int]:
    return [token for chunk in await chunks_of(engine, what) for token in chunk.tokens]


async def failure_of(engine: SimulatedEngine, what: EngineRequest) -> EngineError:
    with pytest.raises(EngineError) as caught:
        await chunks_of(engine, what)
    return caught.value


async def iteration_of(engine: SimulatedEngine) -> None:
    """Returns once an iteration that computes a block has begun."""
    async with aclosing(engine.kv_events()) as batches:
        await anext(batches)


def test_an_unknown_law_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'9b-abacus'"):
        SimulatedConfig(law="9b-abacus")


async def test_its_card_names_a_tokenizer_that_works() -> None:
    engine = SimulatedEngine(INSTANT)
    card, capacity, files = await engine.load()
    await engine.drain(0)
    tokenizer = Tokenizer.from_str(files[card.tokenizer].decode())
    assert tokenizer.decode(tokenizer.encode("für Elise — 音").ids) == "für Elise — 音"
    assert (card.vocab_size, capacity.slots, capacity.decode_tokens_per_s) == (byte_tokenizer.VOCAB_SIZE, INSTANT.slots, 0.0)


@pytest.mark.parametrize(
    ("law", "faster"), [("deepseek-v3@h200x8:sglang", "deepseek-v3@b200x8:sglang"), ("qwen3-32b@h100", "qwen3-32b@h100x4")]
)
async def test_it_takes_as_long_as_a_model_on_a_gpu(law: str, faster: str) -> None:
    rates = []
    for name in (law, faster):
        engine = SimulatedEngine(SimulatedConfig(law=name))
        _, capacity, _ = await engine.load()
        await engine.drain(0)
        rates.append(capacity.decode_tokens_per_s)
    assert 10 < rates[0] < rates[1] < 500


async def test_its_capacity_follows_from_the_law_and_the_time_scale() -> None:
    speeds = []
    for time_scale in (0.5, 1.0):
        engine = SimulatedEngine(SimulatedConfig(law="8b-h100", time_scale=time_scale))
        _, capacity, _ = await engine.load()
        await engine.drain(0)
        speeds.append((capacity.prefill_tokens_per_s, capacity.decode_tokens_per_s))
    assert speeds[0] == pytest.approx((speeds[1][0] * 2, speeds[1][1] * 2))
    assert 100 < speeds[1][1] < 200  # an 8B model in bf16 on one H100, one stream


async def test_a_request_gets_all_its_tokens_and_one_end() -> None:
    async with running() as engine:
        chunks = await chunks_of(engine, request(max_tokens=40))
    assert sum(len(chunk.tokens) for chunk in chunks) == 40
    assert [chunk.finish for chunk in chunks if chunk.finish is not None] == [FinishReason.LENGTH]
    assert chunks[-1].finish is FinishReason.LENGTH
    assert all(chunk.tokens for chunk in chunks)


async def test_the_same_request_says_the_same_and_a_seed_chooses_what() -> None:
    async with running() as engine:
        first, again = [await tokens_of(engine, request(step)) for step in ("a", "b")]
        seeded = {seed: await tokens_of(engine, request(f"seed-{seed}", sampling=Sampling(seed=seed))) for seed in range(8)}
    assert first == again
    assert len({tuple(tokens) for tokens in seeded.values()}) > 1


async def test_the_text_is_readable() -> None:
    async with running() as engine:
        text = bytes(await tokens_of(engine, request(max_tokens=3000))).decode(errors="ignore")
    assert "naïve little waltz" in text
    assert "音楽" in text


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("cut", [1, 5, 39])
async def test_a_resumed_request_goes_on_where_it_was(seed: int | None, cut: int) -> None:
    async with running() as engine:
        whole = await tokens_of(engine, request("whole", sampling=Sampling(seed=seed)))
    async with running() as other:
        rest = await tokens_of(other, request("rest", sampling=Sampling(seed=seed), resumed=whole[:cut]))
    assert whole[:cut] + rest == whole


async def test_a_resumed_request_that_was_complete_says_nothing_more() -> None:
    async with running() as engine:
        assert await chunks_of(engine, request(resumed=[65] * 40)) == [EngineChunk(tokens=[], finish=FinishReason.LENGTH)]


async def test_a_stop_token_ends_the_output_and_is_its_last_token() -> None:
    async with running() as engine:
        chunks = await chunks_of(engine, request(max_tokens=2000, sampling=Sampling(stop_token_ids=[ord(".")], min_tokens=100)))
    tokens = [token for chunk in chunks for token in chunk.tokens]
    assert chunks[-1].finish is FinishReason.STOP
    assert (tokens[-1], tokens[100:].count(ord("."))) == (ord("."), 1)


async def test_a_slow_consumer_gets_what_waits_for_it_in_one_chunk() -> None:
    async with running() as engine, aclosing(engine.generate(request(max_tokens=500))) as chunks:
        first = await anext(chunks)
        await tokens_of(engine, request("longer", max_tokens=600))
        rest = [chunk async for chunk in chunks]
    assert [len(chunk.tokens) for chunk in rest] == [500 - len(first.tokens)]


async def test_logprobs_come_one_per_token_with_the_chosen_one_on_top() -> None:
    async with running() as engine:
        chunks = await chunks_of(engine, request(sampling=Sampling(logprobs=3)))
        plain = await chunks_of(engine, request("plain"))
    for chunk in chunks:
        assert [each.token for each in chunk.logprobs] == chunk.tokens
        assert all(each.top[0].token == each.token and len(each.top) == 3 for each in chunk.logprobs)
    assert all(chunk.logprobs == [] for chunk in plain)


async def test_a_prompt_that_was_served_before_is_found_in_the_cache() -> None:
    async with running() as engine:
        cold = await chunks_of(engine, request("cold"))
        warm = await chunks_of(engine, request("warm"))
    assert (cold[0].cached_tokens, warm[0].cached_tokens) == (0, len(PROMPT) // 16 * 16)


async def test_the_next_turn_is_found_in_the_cache_with_the_answer() -> None:
    async with running() as engine:
        answer = await tokens_of(engine, request("turn-1"))
        turn = [*PROMPT, *answer, *b" and then?"]
        chunks = await chunks_of(engine, request("turn-2", tokens=turn))
    assert chunks[0].cached_tokens == (len(PROMPT) + 39) // 16 * 16


SMALL = SimulatedConfig(law="instant", blocks=16, context_tokens=256)  # a prompt fills 5


async def served_behind_others(config: SimulatedConfig, **fields: object) -> int:
    """How many tokens of the prompt need no computing, when it comes again after three others."""
    async with running(config) as engine:
        await chunks_of(engine, request("first", max_tokens=3, **fields))
        for number in range(3):
            await chunks_of(engine, request(f"other-{number}", tokens=[number, *PROMPT], max_tokens=3))
        return (await chunks_of(engine, request("again", max_tokens=3)))[0].cached_tokens


@pytest.mark.parametrize(
    ("config", "priority", "cached"),
    [
        (SMALL, 5, 0),
        (msgspec.structs.replace(SMALL, eviction="priority"), 5, 80),
        (msgspec.structs.replace(SMALL, host_blocks=4), 0, 64),
    ],
)
async def test_what_is_found_again_depends_on_eviction_and_on_the_tier_in_the_host(
    config: SimulatedConfig, priority: int, cached: int
) -> None:
    assert await served_behind_others(config, priority=priority) == cached


def test_a_block_takes_its_bytes_over_the_link_to_come_back_from_the_host() -> None:
    config = SimulatedConfig(law="llama-3.1-8b@h100", host_gb_per_s=50.0, adapter_mb=100.0).batching()
    assert config.host_block_ns == pytest.approx(16 * 131_072 / 50, rel=1e-3)
    assert config.adapter_load_ns == 2_000_000


async def test_what_an_adapter_computed_is_no_use_to_another() -> None:
    async with running(SimulatedConfig(law="instant", adapters_max=2)) as engine:
        cached = [
            (await chunks_of(engine, request(step, adapter=adapter)))[0].cached_tokens
            for step, adapter in (("1", "a"), ("2", ""), ("3", "b"), ("4", "a"), ("5", ""))
        ]
    assert cached == [0, 0, 0, 80, 80]


async def test_an_adapter_is_refused_where_there_is_no_place_for_any() -> None:
    async with running() as engine:
        error = await failure_of(engine, request(adapter="a"))
    assert "adapters_max is 0" in str(error)
    assert error.retryable


async def test_cache_events_and_snapshot_name_the_blocks_of_prompt_and_output() -> None:
    async with running() as engine:
        answer = await tokens_of(engine, request())
        hashes = block_hashes([*PROMPT, *answer[:-1]], 16)
        seq, snapshot = await engine.kv_snapshot()
        stored: list[int] = []
        async with aclosing(engine.kv_events()) as batches:
            async for batch in batches:
                stored += [block for event in batch.events if isinstance(event, BlocksStored) for block in event.hashes]
                if batch.seq == seq:
                    break
    assert stored == snapshot == hashes


async def test_cache_events_that_nobody_reads_are_dropped_and_the_gap_shows() -> None:
    async with running(SimulatedConfig(law="instant", kv_batches_max=2)) as engine:
        await tokens_of(engine, request(max_tokens=200))
        seq, _ = await engine.kv_snapshot()
        first = await anext(engine.kv_events())
    assert seq > 2
    assert first.seq == seq - 1


async def test_an_aborted_request_ends_as_cancelled_and_leaves_nothing_behind() -> None:
    async with running(SLOW) as engine, asyncio.TaskGroup() as group:
        consumer = group.create_task(chunks_of(engine, request()))
        await iteration_of(engine)
        await engine.abort(StepId("step"), 2)
        assert (await engine.stats()).slots_used == 1
        await engine.abort(StepId("step"), 1)
        assert await consumer == [EngineChunk(tokens=[], finish=FinishReason.CANCELLED)]
        assert await engine.stats() == EngineLoad(blocks_used=0, slots_used=0, waiting=0)


async def test_a_consumer_that_goes_away_aborts_its_request() -> None:
    async with running() as engine:
        async with aclosing(engine.generate(request(max_tokens=10_000))) as chunks:
            await anext(chunks)
        assert await engine.stats() == EngineLoad(blocks_used=0, slots_used=0, waiting=0)


async def test_load_counts_what_runs_and_what_waits() -> None:
    async with running(SimulatedConfig(law="8b-h100", time_scale=1e6, slots=1)) as engine, asyncio.TaskGroup() as group:
        consumers = [group.create_task(chunks_of(engine, request(step))) for step in ("a", "b", "c")]
        await iteration_of(engine)
        assert await engine.stats() == EngineLoad(blocks_used=6, slots_used=1, waiting=2)
        for consumer in consumers:
            consumer.cancel()


@pytest.mark.parametrize(
    ("fields", "reason", "retryable"),
    [
        ({"tokens": []}, Reason.ENGINE_REJECTED, False),
        ({"tokens": [byte_tokenizer.VOCAB_SIZE]}, Reason.ENGINE_REJECTED, False),
        ({"resumed": [-1]}, Reason.ENGINE_REJECTED, False),
        ({"tokens": [1] * 40_000}, Reason.CONTEXT_TOO_LONG, False),
    ],
)
async def test_what_it_cannot_serve_is_refused(fields: dict[str, object], reason: Reason, retryable: bool) -> None:
    async with running() as engine:
        error = await failure_of(engine, request(**fields))
    assert (error.reason, error.retryable) == (reason, retryable)


async def test_a_full_queue_is_refused_and_may_be_tried_elsewhere() -> None:
    async with (
        running(SimulatedConfig(law="8b-h100", time_scale=1e6, slots=1, queue_max=0)) as engine,
        asyncio.TaskGroup() as group,
    ):
        consumer = group.create_task(chunks_of(engine, request("a")))
        await iteration_of(engine)
        error = await failure_of(engine, request("b"))
        assert (error.reason, error.retryable) == (Reason.QUEUE_FULL, True)
        consumer.cancel()


async def test_an_output_ends_where_the_context_does() -> None:
    async with running(SimulatedConfig(law="instant", context_tokens=100)) as engine:
        assert len(await tokens_of(engine, request(max_tokens=1000))) == 100 - len(PROMPT)


async def test_small_caches_retract_and_still_say_everything_once() -> None:
    async with running(SimulatedConfig(law="instant", blocks=16, context_tokens=256)) as engine:
        prompts = [[index, *PROMPT[:30]] for index in range(8)]
        outputs = await asyncio.gather(
            *[tokens_of(engine, request(f"s{i}", tokens=each, max_tokens=100)) for i, each in enumerate(prompts)]
        )
        alone = [await tokens_of(engine, request(f"alone-{i}", tokens=each, max_tokens=100)) for i, each in enumerate(prompts)]
    assert outputs == alone


async def test_draining_lets_requests_finish_and_refuses_new_ones() -> None:
    engine = SimulatedEngine(INSTANT)
    await engine.load()
    async with aclosing(engine.generate(request(max_tokens=2000))) as chunks, asyncio.TaskGroup() as group:
        first = await anext(chunks)
        drained = group.create_task(engine.drain(PATIENCE_S))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="draining"):
            await chunks_of(engine, request("late"))
        rest = [token async for chunk in chunks for token in chunk.tokens]
        await chunks.aclose()
        await drained
    assert len(first.tokens) + len(rest) == 2000
    assert [batch async for batch in engine.kv_events()] == []


async def test_a_drain_that_takes_too_long_breaks_off() -> None:
    engine = SimulatedEngine(SLOW)
    await engine.load()
    async with asyncio.TaskGroup() as group:
        consumer = group.create_task(failure_of(engine, request()))
        await iteration_of(engine)
        await engine.drain(0)
    error = consumer.result()
    assert "stopped" in str(error)
    assert error.retryable


async def test_a_crash_loses_requests_and_cache_and_a_reload_starts_afresh() -> None:
    async with running() as engine:
        before = await tokens_of(engine, request("before"))
        async with aclosing(engine.generate(request("lost", max_tokens=10_000))) as chunks:
            await anext(chunks)
            await engine.crash("drill")
            with pytest.raises(EngineError) as caught:
                [chunk async for chunk in chunks]
        assert caught.value.retryable
        assert await engine.died() == "drill"
        with pytest.raises(EngineError):
            await chunks_of(engine, request("too early"))
        await engine.load()
        assert await engine.kv_snapshot() == (0, [])
        assert await tokens_of(engine, request("after")) == before


async def test_it_crashes_by_itself_when_told_to() -> None:
    async with running(SimulatedConfig(law="8b-h100", time_scale=1e6, crash_after_s=0.01)) as engine:
        with pytest.raises(EngineError, match="as configured"):
            await chunks_of(engine, request())
        assert "as configured" in await engine.died()
        await engine.load()


async def test_the_output_processor_reads_it_without_a_seam_across_engines() -> None:
    whole, text, tokens = await _read([]), "", list[int]()
    for _ in range(4):
        piece, taken = await _read(tokens, take=7)
        text, tokens = text + piece, tokens + taken
    piece, taken = await _read(tokens)
    assert (text + piece, tokens + taken) == whole


async def _read(resumed: list[int], take: int = 10_000) -> tuple[str, list[int]]:
    """What one attempt shows when its engine is lost after at least `take` tokens."""
    what = request(resumed=resumed, max_tokens=700, sampling=Sampling(seed=3, stop=["another reads"]))
    output = OutputProcessor(Tokenizer.from_str(byte_tokenizer.build().decode()), byte_tokenizer.EOS_TOKEN_IDS, what)
    text, tokens = "", list[int]()
    async with running() as engine, aclosing(engine.generate(what)) as chunks:
        async for chunk in chunks:
            piece = output.push(chunk.tokens, chunk.logprobs, chunk.finish)
            text, tokens = text + piece.text, tokens + piece.tokens
            if piece.finish is not None or len(tokens) >= take:
                break
    return text, tokens
