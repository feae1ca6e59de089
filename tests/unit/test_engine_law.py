"""The law of a model on a GPU, and the names under which fitted ones are shipped."""

import pytest

from shared.core.engine_law import PRECISIONS, Efficiency, Layout, demand_of, kv_blocks, kv_bytes_per_token, law_of
from shared.core.errors import LegatoError
from shared.core.shipped_laws import ENGINES, fitted, gpus, kv_token_bytes, law_called, models, named_engine, precision_of
from shared.core.step_law import PRESETS, decode_ns, prefill_ns

LLAMA, DEEPSEEK = models()["llama-3.1-8b"].shape, models()["deepseek-v3"].shape
H100 = gpus()["h100"].gpu
BF16, FP8 = PRECISIONS["bf16"], PRECISIONS["fp8"]


def test_decoding_at_the_data_sheets_speed_reads_all_weights_once() -> None:
    demand = demand_of(LLAMA, H100, Layout(), BF16)
    assert demand.weights_s == pytest.approx(7.5e9 * 2 / 3.35e12, rel=0.01)
    assert demand.bf16_s == pytest.approx(2 * (7.5e9 - LLAMA.head_parameters) / 989e12, rel=0.01)  # the head is for last tokens only


def test_quantised_weights_are_read_and_multiplied_faster() -> None:
    slow, fast = (law_of(demand_of(LLAMA, H100, Layout(), precision), Efficiency()) for precision in (BF16, FP8))
    assert fast.weights_s < 0.6 * slow.weights_s
    assert fast.token_s == pytest.approx(slow.token_s / 2, rel=0.01)


def test_tensor_parallel_gpus_share_the_work_and_pay_for_their_links() -> None:
    one, four = (law_of(demand_of(LLAMA, H100, Layout(tensor=count), BF16), Efficiency()) for count in (1, 4))
    assert four.weights_s == pytest.approx(one.weights_s / 4)
    assert four.pair_s == pytest.approx(one.pair_s / 4)
    assert four.overhead_s > one.overhead_s


def test_a_latent_kv_is_kept_by_every_tensor_parallel_gpu_and_heads_are_divided_while_there_are_enough() -> None:
    assert kv_bytes_per_token(DEEPSEEK, 8, FP8) == kv_bytes_per_token(DEEPSEEK, 1, FP8)
    assert kv_bytes_per_token(LLAMA, 8, FP8) == kv_bytes_per_token(LLAMA, 1, FP8) / 8
    assert kv_bytes_per_token(LLAMA, 16, FP8) == kv_bytes_per_token(LLAMA, 8, FP8)


def test_with_data_parallel_attention_the_ranks_share_the_experts() -> None:
    demand = demand_of(DEEPSEEK, H100, Layout(data=8), FP8)
    together = demand_of(DEEPSEEK, H100, Layout(tensor=8), FP8)
    assert demand.experts_s == together.experts_s
    assert demand.weights_s == pytest.approx(8 * together.weights_s)
    assert law_of(demand, Efficiency(expert_spread=1.0)).expert_tokens == 8


def test_kv_blocks_are_what_the_memory_has_left() -> None:
    blocks = kv_blocks(LLAMA, H100, Layout(), BF16)
    assert blocks * 16 * 131072 == pytest.approx(80e9 * 0.9 - 3e9 - LLAMA.parameters * 2, rel=0.01)
    assert kv_blocks(DEEPSEEK, H100, Layout(), FP8) < 0


def test_four_bit_mixtures_of_experts_keep_their_attention_in_bf16() -> None:
    assert precision_of("fp4", DEEPSEEK).attention == 2.0
    assert precision_of("fp4", LLAMA).attention < 1.0


def test_a_law_is_named_after_a_model_and_a_gpu() -> None:
    one, two = law_called("llama-3.1-8b@h100"), law_called("llama-3.1-8b@h100x2")
    assert decode_ns(two, 1, 1000) < decode_ns(one, 1, 1000)
    assert law_called("llama-3.1-8b@h100:sglang") != law_called("llama-3.1-8b@h100:vllm")
    assert law_called("8b-h100") == PRESETS["8b-h100"]


def test_shipped_laws_are_plausible() -> None:
    """Llama 8B in bf16 on one H100: 5 to 10 ms a token (4.8 is the memory's limit), 15 to 80 thousand prompt tokens a second."""
    law = law_called("llama-3.1-8b@h100:vllm")
    assert 5e6 < decode_ns(law, 1, 1000) < 10e6
    assert 15e3 < 8192e9 / prefill_ns(law, 8192) < 80e3


@pytest.mark.parametrize("gpu", sorted(gpus()))
def test_every_gpu_has_constants_of_every_engine(gpu: str) -> None:
    assert set(fitted(gpu)) == set(ENGINES)
    for constants in fitted(gpu).values():
        assert 0.05 < constants.efficiency.weights < 1.5
        assert 1e-6 < constants.efficiency.layer_s < 1e-3


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("9b-abacus", "no step law is called '9b-abacus'; there are 8b-a100"),
        ("llama-9@h100", "no model 'llama-9'; there are deepseek-v3"),
        ("llama-3.1-8b@tpu", "no GPU 'tpu'; there are a100"),
        ("llama-3.1-8b@h100:ollama", "no engine 'ollama'; there are sglang"),
        ("deepseek-v3@h100", "does not fit on 1 h100: it does on 16"),
    ],
)
def test_a_name_that_stands_for_nothing_is_refused_with_the_choices(name: str, said: str) -> None:
    with pytest.raises(LegatoError, match=said):
        law_called(name)


def test_a_law_knows_what_a_token_of_context_weighs() -> None:
    names = ("llama-3.1-8b@h100", "llama-3.1-8b@h100x2", "llama-3.1-8b@h100x16", "8b-h100", "instant")
    assert [kv_token_bytes(name) for name in names] == [
        131_072,
        65_536,
        16_384,
        131_072,
        0,
    ]  # eight KV heads, one for each of at most 8 GPUs


def test_a_named_engine_knows_its_kv_blocks() -> None:
    assert named_engine("qwen3-32b@h200x2").blocks > named_engine("qwen3-32b@h200").blocks > 0
