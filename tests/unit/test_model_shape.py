"""Shapes of models, against what their makers publish. The configs hold the fields that count."""

from typing import Any

import pytest

from shared.core.errors import LegatoError
from shared.core.model_shape import shape_of

LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
QWEN3_06B = {
    "head_dim": 128,  # not 1024 / 16
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
    "vocab_size": 151936,
}
MIXTRAL = LLAMA_8B | {"vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}
GPT_OSS_120B = {
    "head_dim": 64,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "num_local_experts": 128,
    "vocab_size": 201088,
}
DEEPSEEK_V3 = {
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
}


@pytest.mark.parametrize(
    ("config", "billions", "active"),
    [(LLAMA_8B, 8.03, 7.5), (QWEN3_06B, 0.6, 0.6), (MIXTRAL, 46.7, 12.7), (GPT_OSS_120B, 117, 5.1), (DEEPSEEK_V3, 671, 37)],
    ids=["llama", "qwen3", "mixtral", "gpt-oss", "deepseek"],
)
def test_parameters_are_those_that_the_makers_publish(config: dict[str, Any], billions: float, active: float) -> None:
    shape = shape_of(config)
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.01)
    assert shape.active_parameters / 1e9 == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize(
    ("config", "expected"),
    [(LLAMA_8B, 131072), (QWEN3_06B, 114688), (DEEPSEEK_V3, 70272)],
    ids=["grouped", "head_dim is written", "latent"],
)
def test_kv_bytes_of_a_token_follow_from_the_kind_of_attention(config: dict[str, Any], expected: int) -> None:
    assert shape_of(config).kv_bytes_per_token(2.0) == expected


def test_layers_with_a_sliding_window_keep_no_kv_of_the_whole_context() -> None:
    every = GPT_OSS_120B | {"layer_types": ["full_attention"] * 36}
    assert shape_of(GPT_OSS_120B).kv_bytes_per_token() * 2 == shape_of(every).kv_bytes_per_token()
    assert shape_of(GPT_OSS_120B).parameters == shape_of(every).parameters


def test_latent_attention_multiplies_more_in_decode_than_in_prefill() -> None:
    shape = shape_of(DEEPSEEK_V3)
    assert shape.context_flops > 3 * shape.pair_flops
    assert shape.kv_heads == 1  # the latent vector is not divided among GPUs


def test_a_config_of_a_vision_model_is_read_from_its_text_part() -> None:
    assert shape_of({"model_type": "vlm", "text_config": LLAMA_8B}) == shape_of(LLAMA_8B)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(LegatoError, match="has no num_hidden_layers"):
        shape_of({"hidden_size": 64, "vocab_size": 10})


def test_a_number_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(LegatoError, match="hidden_size = -1; it is a positive whole number"):
        shape_of(LLAMA_8B | {"hidden_size": -1})
    with pytest.raises(LegatoError, match="routes each token to 9 of 8 experts"):
        shape_of(MIXTRAL | {"num_experts_per_tok": 9})
