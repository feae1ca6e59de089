"""From a model, a GPU and how it is laid out to the law of its steps (step_law.py), in two plain steps.

    demand_of(shape, gpu, layout, precision) -> Demand      seconds of each kind of work, if the data sheet were reached
    law_of(demand, efficiency) -> StepLaw                   divided by the measured efficiencies, plus the measured overheads

The split is what is fitted and what is not: a Demand follows from public configs and data sheets alone; an Efficiency is fitted by
`legato calibrate` to measured engines (docs/calibration.md), with the arithmetic below and no other.
"""

from math import log2

import msgspec

from shared.core.model_shape import ModelShape
from shared.core.step_law import StepLaw

ACTIVATION_BYTES = 20.0  # read and written per value of a layer's hidden state around its products: norms, residuals, casts in bf16
USABLE_MEMORY = 0.9  # of the GPU, the default share of SGLang and vLLM; the rest is for activations and graphs
RESERVED_BYTES = 3e9  # CUDA context, communication buffers


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU by its data sheet: dense operations per second, bytes per second, bytes."""

    bf16_flops: float
    fp8_flops: float
    fp4_flops: float  # where the GPU has none, the rate at which 4-bit weights are multiplied: bf16's
    memory_bandwidth: float
    memory_bytes: float
    link_bandwidth: float  # to the other GPUs of the node, one direction

    def flops(self, bytes_per_value: float) -> float:
        """The peak for operands of that width."""
        return self.bf16_flops if bytes_per_value >= 2 else self.fp8_flops if bytes_per_value >= 1 else self.fp4_flops


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How one engine uses its GPUs: `tensor` share each request's attention; `data` such groups share the experts."""

    tensor: int = 1
    data: int = 1

    @property
    def gpus(self) -> int:
        return self.tensor * self.data


class Precision(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes per value. 4-bit formats with their scales: NVFP4 0.5625 (one for 16 values), MXFP4 and int4 0.53 (one for 32)."""

    attention: float = 2.0
    dense: float = 2.0
    experts: float = 2.0
    kv: float = 2.0
    expert_products: float = 2.0  # width that they are multiplied in; weight-only formats do not lower it


_NVFP4, _GROUPS_OF_32 = 0.5625, 0.53
PRECISIONS: dict[str, Precision] = {
    "bf16": Precision(),
    "fp8": Precision(attention=1.0, dense=1.0, experts=1.0, kv=1.0, expert_products=1.0),
    "fp4": Precision(attention=_NVFP4, dense=_NVFP4, experts=_NVFP4, kv=1.0, expert_products=_NVFP4),
    "fp4-experts": Precision(dense=_NVFP4, experts=_NVFP4, kv=1.0, expert_products=_NVFP4),  # attention stays in bf16
    "int4-experts": Precision(experts=_GROUPS_OF_32),
    "mxfp4-experts": Precision(experts=_GROUPS_OF_32, kv=1.0, expert_products=_GROUPS_OF_32),
}


class Front(msgspec.Struct, frozen=True, kw_only=True):
    """What a first token waits for outside its own steps: fitted, too. The step law has no part in it."""

    first_s: float = 0.005  # HTTP, templates, the first event's way back
    prompt_token_s: float = 3e-6  # tokenising
    first_steps: float = 3.0  # iterations until the engine looks for new requests and the first token has left
    poll_steps: float = 0.5  # more, for each iteration between two looks for new requests (SGLang's scheduler_recv_interval)
    stream_steps: float = 0.5  # more, for each token that leaves together (TensorRT-LLM's stream_interval)


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one rank at the data sheet's speed, per unit of work."""

    bf16_s: float = 0.0  # products per new token, by the width of the operands
    fp8_s: float = 0.0
    fp4_s: float = 0.0
    expert_bf16_s: float = 0.0  # the same of routed experts
    expert_fp8_s: float = 0.0
    expert_fp4_s: float = 0.0
    weights_s: float = 0.0  # reading all weights but the routed experts, per step
    experts_s: float = 0.0  # reading all routed experts, per step
    expert_share: float = 0.0
    ranks: int = 1
    pair_s: float = 0.0  # attention per new token and token attended to
    context_read_s: float = 0.0  # reading the KV, per token of context
    context_latent_s: float = 0.0  # multiplying with latent vectors, per token of context
    activation_s: float = 0.0  # per new token
    link_s: float = 0.0  # reductions per new token
    layers: int = 0
    moe_layers: int = 0
    quantised_layers: int = 0  # that quantise their activations
    indexed_layers: int = 0
    hops: float = 0.0  # reductions per step, times the depth of their tree


class Efficiency(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine reaches: shares of the data sheet, and seconds. Fitted; the defaults are a plausible engine."""

    bf16: float = 0.7  # of the peak, in matrix products
    fp8: float = 0.7
    fp4: float = 0.6
    experts: float = 0.4  # products with routed experts, relative to others
    weights: float = 0.75  # of the memory's bandwidth
    expert_weights: float = 0.8
    expert_spread: float = 1.0  # tokens that choose experts as if independently, per token
    attention: float = 0.25  # of the bf16 peak
    kv: float = 0.7
    latent: float = 0.6
    activations: float = 2.0  # below 1 would be more traffic than ACTIVATION_BYTES
    link: float = 0.4
    hop_s: float = 6e-6
    layer_s: float = 3e-5  # launches
    moe_layer_s: float = 3.5e-5  # more, for routing, permuting and grouped products
    quantised_layer_s: float = 1.5e-5  # more, for quantising activations
    indexed_layer_s: float = 1.5e-5  # more, for choosing the tokens to attend to
    step_s: float = 3e-4
    request_s: float = 1e-5


def demand_of(shape: ModelShape, gpu: Gpu, layout: Layout, precision: Precision) -> Demand:
    """What a step of one rank costs at best."""
    tensor, gpus, bandwidth = layout.tensor, layout.gpus, gpu.memory_bandwidth
    products = dict.fromkeys(("bf16_s", "fp8_s", "fp4_s", "expert_bf16_s", "expert_fp8_s", "expert_fp4_s"), 0.0)
    active_experts = shape.expert_parameters * shape.expert_share
    for parameters, width, prefix in (
        (shape.attention_parameters / tensor, precision.attention, ""),
        (shape.dense_parameters / tensor, precision.dense, ""),
        (active_experts * layout.data / gpus, precision.expert_products, "expert_"),
    ):
        name = "bf16_s" if width >= 2 else "fp8_s" if width >= 1 else "fp4_s"
        products[prefix + name] += 2 * parameters / gpu.flops(width)  # one multiplication and one addition
    hidden = shape.layers * shape.hidden
    routed = shape.experts_per_token * shape.moe_layers / shape.layers / tensor
    return Demand(
        **products,
        weights_s=weight_bytes(shape, tensor, precision) / bandwidth,
        experts_s=shape.expert_parameters * precision.experts / gpus / bandwidth,
        expert_share=shape.expert_share,
        ranks=layout.data,
        pair_s=shape.pair_flops / tensor / gpu.bf16_flops,
        context_read_s=kv_bytes_per_token(shape, tensor, precision) / bandwidth,
        context_latent_s=shape.context_flops / tensor / gpu.bf16_flops if shape.kv_heads == 1 else 0.0,
        activation_s=hidden * (1 + routed) * ACTIVATION_BYTES / bandwidth,
        link_s=2 * hidden * 4.0 * (gpus - 1) / gpus / gpu.link_bandwidth,  # two reductions, each 2 bytes out and 2 in per value
        layers=shape.layers,
        moe_layers=shape.moe_layers,
        quantised_layers=shape.layers if precision.dense < 2 else 0,
        indexed_layers=shape.indexed_layers,
        hops=2 * shape.layers * log2(gpus),
    )


def law_of(demand: Demand, efficiency: Efficiency) -> StepLaw:
    """The law of an engine. Plain arithmetic: the fit passes arrays of demands."""
    d, e = demand, efficiency
    launches = e.layer_s * d.layers + e.moe_layer_s * d.moe_layers
    launches += e.quantised_layer_s * d.quantised_layers + e.indexed_layer_s * d.indexed_layers
    experts = d.expert_bf16_s / e.bf16 + d.expert_fp8_s / e.fp8 + d.expert_fp4_s / e.fp4
    return StepLaw(
        token_s=d.bf16_s / e.bf16 + d.fp8_s / e.fp8 + d.fp4_s / e.fp4 + experts / e.experts,
        weights_s=d.weights_s / e.weights,
        experts_s=d.experts_s / e.expert_weights,
        expert_share=d.expert_share,
        expert_tokens=d.ranks * e.expert_spread,
        pair_s=d.pair_s / e.attention,
        context_s=d.context_read_s / e.kv + d.context_latent_s / e.latent,
        extra_token_s=d.activation_s / e.activations + d.link_s / e.link,
        request_s=e.request_s,
        overhead_s=e.step_s + launches + e.hop_s * d.hops,
    )


def weight_bytes(shape: ModelShape, tensor: int, precision: Precision) -> float:
    """Bytes that one GPU reads per step whatever the batch: all but routed experts and the input embedding. The head stays in bf16."""
    quantised = shape.attention_parameters * precision.attention + shape.dense_parameters * precision.dense
    return (quantised + shape.head_parameters * 2.0) / tensor


def kv_bytes_per_token(shape: ModelShape, tensor: int, precision: Precision) -> float:
    """Bytes that one GPU keeps per token of context: KV heads are divided among the GPUs while there are enough, then replicated."""
    return shape.kv_bytes_per_token(precision.kv) / min(tensor, shape.kv_heads)


def kv_blocks(shape: ModelShape, gpu: Gpu, layout: Layout, precision: Precision, block_tokens: int = 16) -> int:
    """KV blocks of one rank: the memory that weights and reserves leave. 0 or less: the model does not fit."""
    weights = weight_bytes(shape, layout.tensor, precision) + shape.expert_parameters * precision.experts / layout.gpus
    if not shape.tied:
        weights += shape.embedding_parameters * 2.0 / layout.tensor
    room = gpu.memory_bytes * USABLE_MEMORY - RESERVED_BYTES - weights
    return int(room // (kv_bytes_per_token(shape, layout.tensor, precision) * block_tokens))
