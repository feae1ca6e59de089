"""The conversation trace of Mooncake: real chat traffic of a large service, with the prompts' blocks (Qin et al., FAST 2025; Apache-2.0).

Lines of JSON: `timestamp` in ms, in ticks of about 3 s; `input_length` and `output_length` in tokens; `hash_ids`, one for each 512 tokens
of the prompt and one for the rest: the same id is the same text after the same beginning. Id 0 is in all of them, a system prompt.
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import msgspec

from shared.sim.programs import Call, Program, Segment, mixed
from shared.sim.workloads.chance import Random
from shared.sim.workloads.source import Source, tenant_of
from shared.sim.workloads.traces import Trace, found, parsed, played

ORIGIN = "https://github.com/kvcache-ai/Mooncake (FAST25-release/traces/conversation_trace.jsonl)"
BLOCK_TOKENS = 512
TICK_S = 2.999  # the shortest distance between two
SYSTEM_ID = 0


class Mooncake(Trace, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str = "traces/mooncake_conversation_first30min.jsonl"


class Row(msgspec.Struct, frozen=True):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]

    def __post_init__(self) -> None:
        if not 0 < self.input_length <= len(self.hash_ids) * BLOCK_TOKENS < self.input_length + BLOCK_TOKENS:
            raise ValueError(f"{len(self.hash_ids)} hash_ids are not one for each {BLOCK_TOKENS} of {self.input_length} tokens")


def programs(settings: Mooncake, source: Source) -> Iterator[Program]:
    """Mooncake's conversation trace: requests with recorded lengths and shared prefixes."""
    path = found(source.data, settings.path, ORIGIN)
    random = source.random("tenants")
    base = source.random("blocks").getrandbits(64)

    def program(begins_s: float, again: int, row: Row) -> Program:
        left = row.input_length
        prompt = []
        for block in row.hash_ids:
            content = mixed(mixed(base + (again if block != SYSTEM_ID else 0)) + block)
            prompt.append(Segment(content, min(left, BLOCK_TOKENS)))
            left -= BLOCK_TOKENS
        call = Call(key="call-1", prompt=tuple(prompt), output=source.fresh(row.output_length))
        return source.program(settings, tenant_of(settings.tenants, random), begins_s, [call])

    rows = played(settings, source.seconds, lambda again: _spread(path, source.random(f"jitter {again}")))
    return (program(begins_s, again, row) for begins_s, again, row in rows)


def _spread(path: Path, random: Random) -> Iterator[tuple[float, Row]]:
    """Rows in their order, at random times within their ticks: 18 requests do not come at once every 3 s."""
    for tick_ms, rows in groupby(parsed(path, msgspec.json.Decoder(Row).decode), lambda row: row.timestamp):
        together = list(rows)
        later = sorted(random.uniform(0, TICK_S) for _ in together)
        yield from zip((tick_ms / 1_000 + wait_s for wait_s in later), together, strict=True)
