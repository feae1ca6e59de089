"""How long one iteration of an engine takes: the roofline, summed over the batch.

    compute_s = (flops_per_token * new tokens + attention_flops_per_pair * attended pairs) / (peak_flops * compute_efficiency)
    memory_s  = (weight_bytes + kv_bytes_per_token * (context read + new tokens written)) / (memory_bandwidth * memory_efficiency)
    step_s    = max(compute_s, memory_s) + overhead_s

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009. A prefill of many tokens
lies under the compute roof. A decode reads all weights and every context once for a single new token per stream, so it lies under the
memory roof (Pope et al., "Efficiently scaling transformer inference", MLSys 2023). Peak figures come from the makers' data sheets, the
rest from the models' published shapes. The efficiencies and overheads of the presets are defaults, not calibrated yet.
"""

import msgspec

from shared.core.errors import LegatoError


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """A dense decoder-only transformer, as far as time depends on it."""

    parameters: float
    layers: int
    hidden: int
    kv_heads: int
    head_dim: int
    bytes_per_value: float = 2.0  # of weights and KV alike: bf16


class Accelerator(msgspec.Struct, frozen=True, kw_only=True):
    """One device, by its data sheet, and the share of it that an engine reaches."""

    peak_flops: float  # dense, per second, at the model's precision
    memory_bandwidth: float  # bytes per second
    compute_efficiency: float = 0.6  # default, not calibrated yet
    memory_efficiency: float = 0.8  # default, not calibrated yet
    overhead_s: float = 0.0005  # launches, sampling and scheduling of an iteration; default, not calibrated yet


class StepLaw(msgspec.Struct, frozen=True, kw_only=True):
    """The constants of the formula above. All zero: iterations take no time."""

    flops_per_token: float = 0.0
    attention_flops_per_pair: float = 0.0
    weight_bytes: float = 0.0
    kv_bytes_per_token: float = 0.0
    peak_flops: float = 1.0
    memory_bandwidth: float = 1.0
    compute_efficiency: float = 1.0
    memory_efficiency: float = 1.0
    overhead_s: float = 0.0


class StepWork(msgspec.Struct, frozen=True, kw_only=True):
    """What one iteration computes: of all its requests together, prefilling and decoding."""

    new_tokens: int  # prefill tokens, and one for each decoding request
    context_tokens: int  # sum of the tokens whose KV is read: for each request what was computed before
    attended_pairs: int  # sum over the new tokens of the tokens that each attends to


def step_ns(law: StepLaw, work: StepWork) -> int:
    """Nanoseconds of one iteration. Work without new tokens takes no time."""
    if work.new_tokens == 0:
        return 0
    flops = law.flops_per_token * work.new_tokens + law.attention_flops_per_pair * work.attended_pairs
    moved_bytes = law.weight_bytes + law.kv_bytes_per_token * (work.context_tokens + work.new_tokens)
    compute_s = flops / (law.peak_flops * law.compute_efficiency)
    memory_s = moved_bytes / (law.memory_bandwidth * law.memory_efficiency)
    return round((max(compute_s, memory_s) + law.overhead_s) * 1e9)


def prefill_ns(law: StepLaw, tokens: int, context: int = 0) -> int:
    """Nanoseconds of an iteration that only prefills `tokens` tokens of one request after `context` computed ones."""
    return step_ns(law, StepWork(new_tokens=tokens, context_tokens=context, attended_pairs=attended(tokens, context)))


def decode_ns(law: StepLaw, requests: int, context: int) -> int:
    """Nanoseconds of an iteration that only decodes `requests` requests whose contexts sum to `context` tokens."""
    return step_ns(law, StepWork(new_tokens=requests, context_tokens=context, attended_pairs=context + requests))


def attended(tokens: int, context: int) -> int:
    """Pairs that causal attention computes for `tokens` new tokens after `context` old ones."""
    return tokens * context + tokens * (tokens + 1) // 2


def law_of(model: ModelShape, device: Accelerator, count: int = 1) -> StepLaw:
    """The law of `model` on `count` devices that share it evenly (tensor parallel, communication not counted)."""
    return StepLaw(
        flops_per_token=2 * model.parameters,  # one multiplication and one addition per parameter
        attention_flops_per_pair=4.0 * model.layers * model.hidden,  # QK^T and AV
        weight_bytes=model.parameters * model.bytes_per_value,
        kv_bytes_per_token=2 * model.layers * model.kv_heads * model.head_dim * model.bytes_per_value,
        peak_flops=device.peak_flops * count,
        memory_bandwidth=device.memory_bandwidth * count,
        compute_efficiency=device.compute_efficiency,
        memory_efficiency=device.memory_efficiency,
        overhead_s=device.overhead_s,
    )


# Shape of Llama 3 8B (Meta, 2024, config.json). Devices: NVIDIA data sheets, H100 SXM5 (2022) and A100 80 GB SXM4 (2020), dense bf16.
LLAMA_8B = ModelShape(parameters=8.03e9, layers=32, hidden=4096, kv_heads=8, head_dim=128)
H100_SXM = Accelerator(peak_flops=989.4e12, memory_bandwidth=3.35e12)
A100_SXM = Accelerator(peak_flops=312e12, memory_bandwidth=2.039e12)

INSTANT = StepLaw()

PRESETS: dict[str, StepLaw] = {
    "instant": INSTANT,  # no compute time at all: what remains is the control plane's own cost
    "8b-h100": law_of(LLAMA_8B, H100_SXM),
    "8b-a100": law_of(LLAMA_8B, A100_SXM),
}


def preset(name: str) -> StepLaw:
    """The built-in law of that name. Raises LegatoError, naming the choices."""
    law = PRESETS.get(name)
    if law is None:
        raise LegatoError(f"no step law is called {name!r}; there are {', '.join(sorted(PRESETS))}")
    return law
