"""The roofline of an engine's iteration."""

import pytest

from shared.core.errors import LegatoError
from shared.core.step_law import PRESETS, StepLaw, StepWork, attended, decode_ns, prefill_ns, preset, step_ns

LAW = PRESETS["8b-h100"]


def test_decoding_one_stream_takes_the_time_to_read_the_weights() -> None:
    weights_s = LAW.weight_bytes / (LAW.memory_bandwidth * LAW.memory_efficiency)
    assert decode_ns(LAW, requests=1, context=1) == pytest.approx((weights_s + LAW.overhead_s) * 1e9, rel=1e-3)


def test_a_long_prefill_takes_the_time_to_compute_it() -> None:
    flops = LAW.flops_per_token * 4096 + LAW.attention_flops_per_pair * (4096 * 4097 // 2)
    compute_s = flops / (LAW.peak_flops * LAW.compute_efficiency)
    assert prefill_ns(LAW, tokens=4096) == pytest.approx((compute_s + LAW.overhead_s) * 1e9)


def test_a_batch_of_decodes_costs_far_less_than_its_streams_alone() -> None:
    assert decode_ns(LAW, requests=32, context=32 * 500) < 2 * decode_ns(LAW, requests=1, context=500)


def test_long_contexts_make_decoding_slower() -> None:
    assert decode_ns(LAW, requests=32, context=32 * 8000) > 2 * decode_ns(LAW, requests=32, context=32 * 100)


def test_a_prefill_after_a_cached_context_pays_for_attention_over_it() -> None:
    assert prefill_ns(LAW, tokens=2048, context=30_000) > prefill_ns(LAW, tokens=2048)


def test_chunks_attend_to_the_same_pairs_as_the_whole_prompt() -> None:
    assert attended(300, 0) == attended(100, 0) + attended(120, 100) + attended(80, 220)


def test_the_instant_law_takes_no_time() -> None:
    assert prefill_ns(PRESETS["instant"], tokens=100_000) == 0


def test_no_work_takes_no_time() -> None:
    assert step_ns(StepLaw(overhead_s=1.0), StepWork(new_tokens=0, context_tokens=0, attended_pairs=0)) == 0


def test_an_unknown_preset_is_refused_with_the_choices() -> None:
    with pytest.raises(LegatoError, match="8b-h100, instant"):
        preset("9b-abacus")
