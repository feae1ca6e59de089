"""What a transformer weighs and computes, read from its Hugging Face `config.json`.

Parameters are counted by what an engine does with them, because each kind is shared over GPUs, quantised and read differently:
attention, dense (MLPs, shared experts, routers), routed experts, input embedding, output head. Norms and biases are left out (below 0.1%).
Formulas follow from the layers' definitions: grouped-query attention (Ainslie et al., 2023), multi-head latent attention (DeepSeek-V2,
2024), gated delta nets (Yang et al., 2024), SwiGLU MLPs (Shazeer, 2020): three matrices each. Traps that are known to it:
- `head_dim` is not hidden_size / num_attention_heads where it is written (Qwen3, gpt-oss, Mistral Nemo);
- under latent attention `num_key_value_heads` means nothing: one latent vector per token and layer is kept, by every tensor-parallel rank;
- experts and how many of them a token uses are named differently in each family, and some first layers are dense;
- layers with a sliding window or linear attention keep a bounded state, not a KV per token: they count with 0 bytes per token.

Checked against what the makers publish: tests/unit/test_model_shape.py.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from shared.core.errors import LegatoError

SWIGLU_MATRICES = 3  # gate, up, down


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder-only transformer, as far as time and memory depend on it. Parameters are of all layers together."""

    layers: int
    hidden: int
    attention_parameters: float
    dense_parameters: float  # MLPs that every token uses: dense layers, shared experts, routers
    expert_parameters: float = 0.0  # routed experts, all of them
    experts: int = 0  # per layer
    experts_per_token: int = 0
    moe_layers: int = 0
    indexed_layers: int = 0  # with an indexer that chooses which tokens to attend to (DeepSeek sparse attention)
    embedding_parameters: float  # looked up, never multiplied
    head_parameters: float  # of the output; the same memory as the embedding where they are tied
    tied: bool = False
    kv_values_per_token: float  # kept for each token of context
    kv_heads: int  # over how many ranks the KV can be divided; 1 under latent attention
    pair_flops: float  # attention, for each new token and each token that it attends to, in prefill
    context_flops: float  # the same in decode; more under latent attention, which multiplies with the latent vectors then

    @property
    def parameters(self) -> float:
        """All of them."""
        embedding = 0.0 if self.tied else self.embedding_parameters
        return self.attention_parameters + self.dense_parameters + self.expert_parameters + self.head_parameters + embedding

    @property
    def expert_share(self) -> float:
        """The share of the routed experts that one token uses; 0 for a dense model."""
        return self.experts_per_token / self.experts if self.experts else 0.0

    @property
    def active_parameters(self) -> float:
        """Those that one token is multiplied with: 2 floating-point operations each."""
        return self.attention_parameters + self.dense_parameters + self.expert_parameters * self.expert_share + self.head_parameters

    def kv_bytes_per_token(self, bytes_per_value: float = 2.0) -> float:
        """Bytes that a token of context keeps, on all GPUs together where nothing is replicated."""
        return self.kv_values_per_token * bytes_per_value


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """The shape that a `config.json` describes. Raises LegatoError, naming what is missing or makes no sense."""
    config = {**config, **config.get("text_config", {})}  # vision models keep the text part below
    layers, hidden, vocab = (_count(config, name) for name in ("num_hidden_layers", "hidden_size", "vocab_size"))
    attention = _Attention(config, layers, hidden)
    experts, per_token, dense_layers = _routing(config, layers)
    moe_layers = layers - dense_layers if experts else 0
    expert_width = _count(config, "moe_intermediate_size", "intermediate_size") if experts else 0
    dense_width = 0 if moe_layers == layers else _count(config, "intermediate_size")
    shared = _shared_width(config, expert_width) if experts else 0
    matrix = SWIGLU_MATRICES * hidden
    return ModelShape(
        layers=layers,
        hidden=hidden,
        attention_parameters=attention.parameters,
        dense_parameters=matrix * ((layers - moe_layers) * dense_width + moe_layers * shared) + moe_layers * hidden * experts,
        expert_parameters=float(matrix * moe_layers * experts * expert_width),
        experts=experts,
        experts_per_token=per_token,
        moe_layers=moe_layers,
        indexed_layers=layers if config.get("index_topk") else 0,
        embedding_parameters=float(vocab * hidden),
        head_parameters=float(vocab * hidden),
        tied=bool(config.get("tie_word_embeddings", False)),
        kv_values_per_token=attention.kv_values,
        kv_heads=attention.kv_heads,
        pair_flops=attention.pair_flops,
        context_flops=attention.context_flops,
    )


class _Attention:
    """Parameters, KV and work of all attention layers."""

    def __init__(self, config: Mapping[str, Any], layers: int, hidden: int) -> None:
        heads = _count(config, "num_attention_heads")
        full, linear = _kinds(config, layers)
        if "kv_lora_rank" in config:
            self._latent(config, hidden, heads, full)
        else:
            self._grouped(config, hidden, heads, (full, layers - linear))
        if linear:
            self.parameters += linear * _delta_net(config, hidden)

    def _grouped(self, config: Mapping[str, Any], hidden: int, heads: int, counts: tuple[int, int]) -> None:
        full, softmax = counts  # layers that keep all of the KV; layers with softmax attention, sliding ones too
        self.kv_heads = int(config.get("num_key_value_heads") or heads)
        dim = int(config.get("head_dim") or hidden // heads)
        queries = heads * (2 if config.get("attn_output_gate") else 1)
        self.parameters = float(softmax * hidden * dim * (queries + 2 * self.kv_heads + heads))
        self.kv_values = float(full * 2 * self.kv_heads * dim)
        self.pair_flops = self.context_flops = 4.0 * full * heads * dim  # QK^T and AV, each one multiplication and one addition

    def _latent(self, config: Mapping[str, Any], hidden: int, heads: int, full: int) -> None:
        rank, query_rank = _count(config, "kv_lora_rank"), int(config.get("q_lora_rank") or 0)
        nope, rope, value = (_count(config, name) for name in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        query = query_rank * (hidden + heads * (nope + rope)) if query_rank else hidden * heads * (nope + rope)
        self.parameters = float(full * (query + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden))
        self.kv_heads = 1
        self.kv_values = float(full * (rank + rope))
        self.pair_flops = 2.0 * full * heads * (nope + rope + value)
        self.context_flops = 2.0 * full * heads * (2 * rank + rope)


def _kinds(config: Mapping[str, Any], layers: int) -> tuple[int, int]:
    """(layers that keep a KV of the whole context, layers with linear attention)."""
    kinds = config.get("layer_types")
    if kinds:
        linear = sum(kind == "linear_attention" for kind in kinds)
        return sum(kind == "full_attention" for kind in kinds), linear
    every = int(config.get("full_attention_interval") or 0)
    if every:
        return layers // every, layers - layers // every
    return layers, 0


def _delta_net(config: Mapping[str, Any], hidden: int) -> int:
    """Parameters of one gated delta net: projections to queries, keys, values and the gate, and back."""
    keys = _count(config, "linear_num_key_heads") * _count(config, "linear_key_head_dim")
    values = _count(config, "linear_num_value_heads") * _count(config, "linear_value_head_dim")
    return hidden * (2 * keys + 3 * values)


def _routing(config: Mapping[str, Any], layers: int) -> tuple[int, int, int]:
    """(experts of a layer, experts of a token, dense layers); (0, 0, layers) for a dense model."""
    experts = next((int(config[name]) for name in ("n_routed_experts", "num_experts", "num_local_experts") if config.get(name)), 0)
    if not experts:
        return 0, 0, layers
    per_token = _count(config, "num_experts_per_tok", "experts_per_token")
    if per_token > experts:
        raise LegatoError(f"a model's config routes each token to {per_token} of {experts} experts")
    return experts, per_token, int(config.get("first_k_dense_replace") or 0)


def _shared_width(config: Mapping[str, Any], expert_width: int) -> int:
    written = config.get("shared_expert_intermediate_size")
    return int(written) if written else int(config.get("n_shared_experts") or 0) * expert_width


def _count(config: Mapping[str, Any], *names: str) -> int:
    """The first of `names` that the config has, a positive whole number."""
    value = next((config[name] for name in names if config.get(name) is not None), None)
    if value is None:
        raise LegatoError(f"a model's config has no {' or '.join(names)}")
    if not isinstance(value, int) or value < 1:
        raise LegatoError(f"a model's config says {names[0]} = {value!r}; it is a positive whole number")
    return value
