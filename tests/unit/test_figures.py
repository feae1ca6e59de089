"""Figures of a run, by hand."""

import math
from pathlib import Path

import pytest

from legato.simulate.defined import FIGURES, GROUPED
from legato.simulate.figures import Report, report
from legato.simulate.summing import QUANTILES, binned, percentile
from shared.sim.measured import Measured
from tests.thought_runs import add_call, add_program, add_sample, thought_report, thought_scenario


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1.0), (0.5, 3.0), (0.9, 8.2), (1.0, 9.0), (0.25, 2.0)], ids=["least", "median", "p90", "most", "quarter"]
)
def test_a_percentile_lies_between_its_neighbours(share: float, expected: float) -> None:
    # p90 of five: place 0.9 x 4 = 3.6, between 7 and 9 (the fourth and the fifth)
    values = [1.0, 2.0, 3.0, 7.0, 9.0]
    assert percentile(values, share) == pytest.approx(expected)


def test_there_is_no_percentile_of_nothing() -> None:
    assert percentile([], 0.5) is None


def test_series_are_means_over_steps_with_gaps() -> None:
    assert binned([0.0, 1.0, 9.0], [2.0, 4.0, 5.0], 3.0) == [3.0, None, None, 5.0]
    assert binned([], [], 3.0) == []


def run(measured: Measured, **fields: object) -> Report:
    return report(measured, thought_scenario(**fields))


def test_times_of_a_call_are_from_its_first_try() -> None:
    measured = Measured()
    program = add_program(measured, 0.0, 10.0)
    add_call(measured, program, (1.0, 3.0, 8.0), output_tokens=11, longest_gap_s=0.75, tries=2, attempts=3)
    found = run(measured).figures
    assert found["ttft_p50_s"] == 2.0
    assert found["call_p50_s"] == 7.0
    assert found["itl_p50_s"] == pytest.approx(0.5)  # 5 s for the ten tokens behind the first
    assert found["gap_p99_s"] == 0.75
    assert found["program_mean_s"] == 10.0
    assert found["tries_per_call"] == 2.0
    assert found["attempts_per_call"] == 3.0


def test_a_single_token_has_no_time_between_tokens() -> None:
    measured = Measured()
    add_call(measured, add_program(measured, 0.0, 2.0), (0.0, 1.0, 1.0), output_tokens=1)
    found = run(measured).figures
    assert found["itl_p50_s"] is None
    assert found["ttft_p50_s"] == 1.0


def test_what_did_not_succeed_counts_in_shares_and_not_in_times() -> None:
    measured = Measured()
    good = add_program(measured, 0.0, 4.0)
    bad = add_program(measured, 0.0, 50.0, succeeded=False, well=False)
    add_program(measured, 50.0)  # never ended
    slow = add_program(measured, 0.0, 8.0, well=False)  # succeeded, but later than it should
    add_call(measured, good, (0.0, 1.0, 4.0))
    add_call(measured, slow, (0.0, 3.0, 8.0))
    add_call(measured, bad, (0.0, math.nan, 9.0), status="refused", output_tokens=0)
    add_call(measured, bad, (0.0, 40.0, 50.0), status="expired")
    found = run(measured).figures
    assert found["ttft_p50_s"] == 2.0
    assert found["program_mean_s"] == 6.0
    assert (found["call_success"], found["call_refused"], found["call_expired"], found["call_shed"]) == (0.5, 0.25, 0.25, 0.0)
    assert (found["program_success"], found["program_well"], found["program_unfinished"]) == (0.5, 0.25, 0.25)
    assert found["program_goodput_per_s"] == pytest.approx(1 / 60)
    assert found["call_goodput_per_s"] == pytest.approx(1 / 60)
    assert found["output_tokens_per_s"] == pytest.approx(22 / 60)


def test_caches_are_told_against_one_without_end() -> None:
    measured = Measured()
    program = add_program(measured, 0.0, 9.0)
    # An infinite cache would have held 600 of 1,000 and 0 of 1,000; ours held 300, and a second attempt computed all once more.
    add_call(measured, program, (0.0, 1.0, 2.0), prompt_tokens=1_000, cached_tokens=300, wanted_tokens=400, computed_tokens=700)
    add_call(measured, program, (0.0, 1.0, 2.0), prompt_tokens=1_000, cached_tokens=0, wanted_tokens=1_000, computed_tokens=2_000)
    add_call(measured, program, (0.0, math.nan, 2.0), status="refused", prompt_tokens=5_000, wanted_tokens=5_000, computed_tokens=0)
    found = run(measured).figures
    assert found["hit_rate"] == pytest.approx(300 / 2_000)
    assert found["hit_rate_infinite"] == pytest.approx(600 / 2_000)
    assert found["hit_of_infinite"] == pytest.approx(0.5)
    assert found["recomputed_tokens"] == 300 + 1_000


def test_what_a_second_attempt_finds_of_the_first_is_no_merit_of_the_cache() -> None:
    measured = Measured()
    program = add_program(measured, 0.0, 9.0)
    add_call(measured, program, (0.0, 1.0, 2.0), prompt_tokens=1_000, cached_tokens=960, wanted_tokens=900, computed_tokens=940)
    found = run(measured).figures
    assert (found["hit_rate"], found["hit_rate_infinite"], found["hit_of_infinite"]) == (0.96, 0.1, 1.0)


def test_the_fleet_is_paid_for_whether_it_is_busy_or_not() -> None:
    measured = Measured()
    for begun_s in (0.0, 30.0):
        program = add_program(measured, begun_s, begun_s + 5)
        add_call(measured, program, (begun_s, begun_s + 1, begun_s + 5), gpu_s=6.0)
        add_call(measured, program, (begun_s, begun_s + 1, begun_s + 5), gpu_s=6.0)
    totals = measured.totals
    totals.load_usd, totals.load_worker_s, totals.fleet_gpu_s, totals.wasted_gpu_s = 0.12, 120.0, 120.0, 12.0
    found = run(measured).figures
    assert found["usd_per_program"] == pytest.approx(0.06)
    assert found["usd_per_call"] == pytest.approx(0.03)
    assert found["gpu_s_per_program"] == pytest.approx(60)
    assert found["utilisation"] == pytest.approx(24 / 120)
    assert found["wasted_share"] == pytest.approx(0.1)


def test_what_comes_before_and_behind_the_load_is_not_counted() -> None:
    measured = Measured()
    early, late = add_program(measured, 5.0, 9.0), add_program(measured, 25.0, 35.0)
    add_call(measured, early, (5.0, 9.0, 9.0))
    add_call(measured, late, (25.0, 26.0, 35.0))
    add_call(measured, early, (30.0, 31.0, 35.0), status="failed")  # of a program that began before, asked behind
    for at_s, workers, queued in ((0.0, 1, 9), (20.0, 3, 1), (40.0, 3, 3), (80.0, 2, 9)):
        add_sample(measured, at_s, workers=workers, coming=0, queued=queued, usd_per_hour=float(workers))
    totals = measured.totals
    totals.fleet_usd, totals.fleet_gpu_s, totals.load_usd, totals.load_worker_s = 9.0, 180.0, 6.0, 120.0
    found = run(measured, warm_up_s=20.0).figures
    assert (found["programs"], found["calls"], found["call_success"]) == (1.0, 2.0, 0.5)
    assert found["program_goodput_per_s"] == pytest.approx(1 / 40)
    assert (found["queue_mean"], found["queue_max"]) == (2.0, 3.0)
    assert found["fleet_usd"] == pytest.approx(6.0)
    assert found["fleet_gpu_s"] == pytest.approx(120.0)


def test_nothing_at_all_has_no_figures_and_does_not_fail() -> None:
    found = run(Measured()).figures
    assert list(found) == [figure.name for figure in FIGURES]
    assert found["ttft_p50_s"] is None
    assert found["usd_per_program"] is None
    assert found["queue_mean"] is None
    assert found["programs"] == 0.0


def test_kinds_tenants_and_parts_of_the_time_have_figures_of_their_own() -> None:
    made = thought_report(ttft_s=1.0)
    assert {name: figures["ttft_p50_s"] for name, figures in made.kinds.items()} == {"chat": 1.0, "research": 2.0}
    assert {name: figures["ttft_p50_s"] for name, figures in made.tenants.items()} == {"heavy": 2.0, "light": 1.0}
    assert {name: figures["programs"] for name, figures in made.parts.items()} == {"00010 to 00020 s": 2.0}
    assert all(set(figures) == set(GROUPED) for figures in made.kinds.values())


def test_series_and_curves_are_there_to_be_drawn() -> None:
    made = thought_report(ttft_s=1.0)
    assert made.series["queued"][0] == 0.0
    assert made.series["queued"][-1] == 40.0
    assert made.step_s == 5.0
    assert len(made.curves["ttft"]) == len(QUANTILES)
    assert (made.curves["ttft"][0], made.curves["ttft"][-1]) == (1.0, 2.0)


def test_the_document_says_what_each_figure_is() -> None:
    text = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text()
    for figure in FIGURES:
        assert f"| `{figure.name}` | {figure.unit} | {figure.better or '-'} | {figure.about} |" in text
