"""A recorded run of an engine, played again by the model: requests arrive when they did, and everything else is computed."""

import json
from pathlib import Path
from statistics import mean

import msgspec

from shared.core.batching import Batching, BatchingConfig, Request
from shared.core.errors import LegatoError
from shared.core.step_law import StepLaw


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """A request: seconds since the run began, and tokens."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """A run and the means that were measured in it, in seconds."""

    arrivals: list[Arrival]
    slots: int
    tokens_per_step: int
    first_s: float
    token_s: float


def read_vllm_run(folder: Path) -> Recorded:
    """A run as LLMServingSim records vLLM: `meta.json` and `requests.jsonl`. Raises LegatoError."""
    try:
        settings = json.loads((folder / "meta.json").read_text())["engine_kwargs"]
        rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines() if line]
        rows.sort(key=lambda row: row["queued_ts"])
        begin = rows[0]["queued_ts"]
        return Recorded(
            arrivals=[
                Arrival(at_s=row["queued_ts"] - begin, prompt_tokens=row["input_toks"], output_tokens=row["output_toks"]) for row in rows
            ],
            slots=settings["max_num_seqs"],
            tokens_per_step=settings["max_num_batched_tokens"],
            first_s=mean(row["first_token_ts"] - row["queued_ts"] for row in rows),
            token_s=mean(
                (row["last_token_ts"] - row["first_token_ts"]) / (row["output_toks"] - 1) for row in rows if row["output_toks"] > 1
            ),
        )
    except (KeyError, IndexError, json.JSONDecodeError) as error:
        raise LegatoError(f"{folder} does not hold a recorded vLLM run (meta.json, requests.jsonl): {error!r}") from error


def replayed(run: Recorded, law: StepLaw, blocks: int) -> tuple[float, float]:
    """Mean TTFT and mean TPOT of the run by `law` with `blocks` KV blocks of 16 tokens, in seconds."""
    config = BatchingConfig(blocks=blocks, slots=run.slots, queue_max=len(run.arrivals), tokens_per_step=run.tokens_per_step)
    batching = Batching(config, law)
    began: dict[int, float] = {}
    ended: dict[int, float] = {}
    now, sent = 0.0, 0
    while len(ended) < len(run.arrivals):
        if batching.idle:
            now = max(now, run.arrivals[sent].at_s)
        while sent < len(run.arrivals) and run.arrivals[sent].at_s <= now:
            arrival = run.arrivals[sent]
            chain = range(sent << 32, (sent + 1) << 32)  # blocks that nobody shares
            if batching.submit(Request(sent, arrival.prompt_tokens, arrival.output_tokens, chain)) is not None:
                raise LegatoError(f"request {sent} of the run does not fit into {blocks} KV blocks")
            sent += 1
        step = batching.step()
        now += step.duration_ns * 1e-9
        for request in step.produced:
            began.setdefault(int(str(request.key)), now)
        for request in step.finished:
            ended[int(str(request.key))] = now
    first = mean(began[number] - arrival.at_s for number, arrival in enumerate(run.arrivals))
    several = [(number, arrival.output_tokens - 1) for number, arrival in enumerate(run.arrivals) if arrival.output_tokens > 1]
    return first, mean((ended[number] - began[number]) / tokens for number, tokens in several)
