"""The law of an engine's iteration."""

import pytest

from shared.core.errors import LegatoError
from shared.core.step_law import PRESETS, SHARPNESS, StepLaw, StepWork, attended, decode_ns, prefill_ns, preset, step_ns

LAW = PRESETS["8b-h100"]
MOE = StepLaw(experts_s=1.0, expert_share=8 / 256)


def test_decoding_one_stream_takes_about_the_time_to_read_the_weights() -> None:
    assert decode_ns(LAW, requests=1, context=1) == pytest.approx((LAW.weights_s + LAW.overhead_s) * 1e9, rel=0.02)


def test_a_long_prefill_takes_at_least_the_time_to_compute_it() -> None:
    compute_s = LAW.token_s * 4096 + LAW.pair_s * attended(4096, 0)
    assert compute_s * 1e9 < prefill_ns(LAW, tokens=4096) < 1.1 * compute_s * 1e9


def test_where_reading_and_computing_take_as_long_neither_roof_is_reached() -> None:
    ridge = LAW.weights_s / LAW.token_s
    both = step_ns(
        StepLaw(token_s=LAW.token_s, weights_s=LAW.weights_s), StepWork(new_tokens=round(ridge), context_tokens=0, attended_pairs=0)
    )
    assert both == pytest.approx(2 ** (1 / SHARPNESS) * LAW.weights_s * 1e9, rel=0.01)


def test_a_batch_of_decodes_costs_far_less_than_its_streams_alone() -> None:
    assert decode_ns(LAW, requests=32, context=32 * 500) < 2 * decode_ns(LAW, requests=1, context=500)


def test_long_contexts_make_decoding_slower() -> None:
    assert decode_ns(LAW, requests=32, context=32 * 8000) > 2 * decode_ns(LAW, requests=32, context=32 * 100)


def test_a_prefill_after_a_cached_context_pays_for_attention_over_it() -> None:
    assert prefill_ns(LAW, tokens=2048, context=30_000) > prefill_ns(LAW, tokens=2048)


def test_one_token_reads_the_experts_that_it_uses_and_a_large_batch_reads_all() -> None:
    assert decode_ns(MOE, requests=1, context=0) == pytest.approx(8 / 256 * 1e9)
    assert decode_ns(MOE, requests=4, context=0) < 4 * decode_ns(MOE, requests=1, context=0)
    assert decode_ns(MOE, requests=1000, context=0) == pytest.approx(1e9, rel=1e-6)


def test_the_tokens_of_all_ranks_meet_at_the_experts() -> None:
    ranks = StepLaw(experts_s=1.0, expert_share=8 / 256, expert_tokens=8)
    assert decode_ns(ranks, requests=4, context=0) == decode_ns(MOE, requests=32, context=0)


def test_each_request_of_an_iteration_costs_something() -> None:
    law = StepLaw(request_s=1e-5)
    assert decode_ns(law, requests=64, context=0) == 640_000


def test_chunks_attend_to_the_same_pairs_as_the_whole_prompt() -> None:
    assert attended(300, 0) == attended(100, 0) + attended(120, 100) + attended(80, 220)


def test_the_instant_law_takes_no_time() -> None:
    assert prefill_ns(PRESETS["instant"], tokens=100_000) == 0


def test_no_work_takes_no_time() -> None:
    assert step_ns(StepLaw(overhead_s=1.0), StepWork(new_tokens=0, context_tokens=0, attended_pairs=0)) == 0


def test_an_unknown_preset_is_refused_with_the_choices() -> None:
    with pytest.raises(LegatoError, match="8b-h100, instant"):
        preset("9b-abacus")
