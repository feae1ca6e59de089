"""How long one iteration of an engine takes: a roofline for the matrix products, plus what attention, links and launches add.

    products_s  = (compute_s ** SHARPNESS + read_s ** SHARPNESS) ** (1 / SHARPNESS)      near the larger of the two
      compute_s = token_s * new tokens
      read_s    = weights_s + experts_s * (1 - (1 - expert_share) ** (expert_tokens * new tokens))
    attention_s = pair_s * attended pairs + context_s * context tokens
    step_s      = products_s + attention_s + extra_token_s * new tokens + request_s * requests + overhead_s

Every coefficient is in seconds of one rank (a group of tensor-parallel GPUs with a batch of its own). engine_law.py derives them from a
model, a GPU and fitted efficiencies; docs/calibration.md says how good they are. The terms and their reasons:
- A matrix product reads its weights once and multiplies each token: Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009;
  Pope et al., "Efficiently scaling transformer inference", MLSys 2023. Between the roofs kernels reach neither: a smooth maximum.
- Of a mixture of experts only those are read that some token of the batch is routed to: with independent choices of k of E experts, a
  share of 1 - (1 - k / E) ** tokens. With data-parallel attention the tokens of all ranks meet at the experts: expert_tokens.
- Attention overlaps with no product, so it is added: over pairs (compute, prefill), over the context's KV (bandwidth, decode).
- Norms, casts and reductions between GPUs cost per token; launches and the latency of reductions per iteration; sampling and scheduling
  per request.
"""

import msgspec

from shared.core.errors import LegatoError

SHARPNESS = 4 / 3  # fitted over all engines (1.34): 1 is the sum of both roofs, infinity the larger one


class StepLaw(msgspec.Struct, frozen=True, kw_only=True):
    """The coefficients of the formula above. All zero: iterations take no time."""

    token_s: float = 0.0
    weights_s: float = 0.0
    experts_s: float = 0.0
    expert_share: float = 0.0
    expert_tokens: float = 1.0
    pair_s: float = 0.0
    context_s: float = 0.0
    extra_token_s: float = 0.0
    request_s: float = 0.0
    overhead_s: float = 0.0


class StepWork(msgspec.Struct, frozen=True, kw_only=True):
    """What one iteration computes: of all its requests together, prefilling and decoding."""

    new_tokens: int  # prefill tokens, and one for each decoding request
    context_tokens: int  # sum of the tokens whose KV is read: for each request what was computed before
    attended_pairs: int  # sum over the new tokens of the tokens that each attends to
    requests: int = 1


def products_s(law: StepLaw, new_tokens: float) -> float:
    """Seconds of the matrix products of one iteration: all of `step_s` that is not linear in its work."""
    read = law.weights_s + law.experts_s * (1.0 - (1.0 - law.expert_share) ** (law.expert_tokens * new_tokens))
    products: float = ((law.token_s * new_tokens) ** SHARPNESS + read**SHARPNESS) ** (1.0 / SHARPNESS)
    return products


def step_s(law: StepLaw, new_tokens: float, context_tokens: float, attended_pairs: float, requests: float) -> float:
    """Seconds of one iteration with at least one new token. Plain arithmetic: the fit passes arrays of iterations."""
    products = products_s(law, new_tokens)
    attention = law.pair_s * attended_pairs + law.context_s * context_tokens
    return products + attention + law.extra_token_s * new_tokens + law.request_s * requests + law.overhead_s


def step_ns(law: StepLaw, work: StepWork) -> int:
    """Nanoseconds of one iteration. Work without new tokens takes no time."""
    if work.new_tokens == 0:
        return 0
    return round(step_s(law, work.new_tokens, work.context_tokens, work.attended_pairs, work.requests) * 1e9)


def prefill_ns(law: StepLaw, tokens: int, context: int = 0) -> int:
    """Nanoseconds of an iteration that only prefills `tokens` tokens of one request after `context` computed ones."""
    return step_ns(law, StepWork(new_tokens=tokens, context_tokens=context, attended_pairs=attended(tokens, context)))


def decode_ns(law: StepLaw, requests: int, context: int) -> int:
    """Nanoseconds of an iteration that only decodes `requests` requests whose contexts sum to `context` tokens."""
    return step_ns(law, StepWork(new_tokens=requests, context_tokens=context, attended_pairs=context + requests, requests=requests))


def attended(tokens: int, context: int) -> int:
    """Pairs that causal attention computes for `tokens` new tokens after `context` old ones."""
    return tokens * context + tokens * (tokens + 1) // 2


INSTANT = StepLaw()
LLAMA_8B_KV_BYTES = 2 * 32 * 8 * 128 * 2  # per token: keys and values of 32 layers with 8 heads of 128, in bf16


def _llama_8b(peak_flops: float, memory_bandwidth: float) -> StepLaw:
    """Llama 3 8B in bf16 (Meta, 2024, config.json: 32 layers of 4096, 8 KV heads of 128) on one GPU that reaches 60% and 80%."""
    products, bandwidth = peak_flops * 0.6, memory_bandwidth * 0.8
    return StepLaw(
        token_s=2 * 7.5e9 / products,  # all parameters but the input embedding
        weights_s=7.5e9 * 2 / bandwidth,
        pair_s=4 * 32 * 4096 / products,
        context_s=LLAMA_8B_KV_BYTES / bandwidth,
        overhead_s=0.0005,
    )


# Laws that need no file, for tests and drills: data sheets (NVIDIA H100 SXM5, 2022; A100 80 GB SXM4, 2020) and round efficiencies. Fitted
# laws are named after a model and a GPU: shipped_laws.py.
PRESETS: dict[str, StepLaw] = {
    "instant": INSTANT,  # no compute time at all: what remains is the control plane's own cost
    "8b-h100": _llama_8b(989.4e12, 3.35e12),
    "8b-a100": _llama_8b(312e12, 2.039e12),
}


def preset(name: str) -> StepLaw:
    """The built-in law of that name. Raises LegatoError, naming the choices."""
    law = PRESETS.get(name)
    if law is None:
        raise LegatoError(f"no step law is called {name!r}; there are {', '.join(sorted(PRESETS))}")
    return law
