"""The time until a step would be finished on a worker: the least one wins.

Rule: the time until the prompts placed there before are computed + the prompt's uncached tokens / prefill rate
      + planned output / decode rate of one stream x (1 + CROWDING x share of slots in use).
A cached prefix counts by the time that it saves: a long queue outweighs a warm cache. When the prompts before are computed follows from
the rate, and anew from what each heartbeat says is left: between two of them it would else seem as if nothing had been done.
Inputs: uncached tokens, planned output tokens, the worker's load and rates, the time.
Constants: CROWDING, own assumption: in a full batch each stream decodes at half the speed of a lone one, since an iteration takes longer
with the KV that it reads (roofline of decode in "LLM Inference Unveiled", Yuan et al., 2024). PREFILL_TOKENS_PER_S and DECODE_TOKENS_PER_S
stand in for workers that do not state their rates, so that load still tells them apart; a rate below TOKENS_PER_S_MIN is none.
Source: least expected finish as in Mooncake's Conductor (Qin et al., FAST 2025): queueing, and prefill less the cached prefix.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.scheduler.load import Load

CROWDING = 1.0
PREFILL_TOKENS_PER_S = 4_000.0
DECODE_TOKENS_PER_S = 40.0
TOKENS_PER_S_MIN = 1e-3


def finish_s(uncached_tokens: int, output_tokens: int, load: "Load", now_ns: int) -> float:
    """Predicted seconds from now to the step's last token."""
    return wait_s(load, now_ns) + prefill_s(uncached_tokens, load.prefill_tokens_per_s) + decode_s(output_tokens, load)


def wait_s(load: "Load", now_ns: int) -> float:
    """Predicted seconds until the prompts that were placed there are computed."""
    return max(0, load.computed_ns - now_ns) / 1e9


def prefill_s(tokens: int, tokens_per_s: float) -> float:
    """Predicted seconds to compute so many tokens of prompts. `tokens_per_s`: as the worker states it, 0: it does not."""
    return tokens / (tokens_per_s if tokens_per_s >= TOKENS_PER_S_MIN else PREFILL_TOKENS_PER_S)


def decode_s(output_tokens: int, load: "Load") -> float:
    """Predicted seconds for the output tokens of one stream."""
    crowd = 1.0 + CROWDING * load.busy / max(1, load.slots)
    rate = load.decode_tokens_per_s
    return output_tokens / (rate if rate >= TOKENS_PER_S_MIN else DECODE_TOKENS_PER_S) * crowd
