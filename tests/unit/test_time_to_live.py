"""How long KV is kept for a program whose tool runs."""

from math import e, log

import pytest

from shared.core.time_to_live import SEEN_MIN, benefit_s, best_s, keep_s, memoryfulness


@pytest.mark.parametrize(
    ("benefit", "tau"),
    [
        (1.0, 0.0),  # 0.5 x 1 - 1 is a loss
        (3.0, 1.0),  # 0.5 x 3 - 1 = 0.5; 0.75 x 3 - 2 = 0.25
        (5.0, 2.0),  # 0.5 x 5 - 1 = 1.5; 0.75 x 5 - 2 = 1.75; 5 - 10 is a loss
        (50.0, 10.0),  # 0.75 x 50 - 2 = 35.5; 50 - 10 = 40
    ],
)
def test_the_time_with_the_greatest_gain(benefit: float, tau: float) -> None:
    assert best_s([10.0, 1.0, 2.0, 1.0], benefit) == tau


def test_of_equal_gains_the_shortest() -> None:
    assert best_s([1.0, 2.0], 2.0) == 0.0  # 0, 0.5 x 2 - 1 and 2 - 2 are all nothing


def test_a_tool_that_returns_at_once_costs_nothing_to_wait_for() -> None:
    assert best_s([0.0, 0.0, 30.0], 3.0) == 0.0


def test_the_benefit_is_computing_again_and_as_much_of_the_wait_as_order_is_worth() -> None:
    assert benefit_s(8.0, 0.25, 3.0) == 5.0
    assert benefit_s(8.0, -0.5, 3.0) == -1.0, "where a program's end only moves away, going on with it is worth less"


def test_programs_of_equal_length_are_memoryful_and_geometric_ones_are_not() -> None:
    assert memoryfulness([5] * 20) == pytest.approx(1.0)
    geometric = [length for length in range(1, 30) for _ in range(round(2e6 * 0.7**length))]
    assert memoryfulness(geometric[::200]) == pytest.approx(0.0, abs=0.02)
    assert memoryfulness([1] * 99 + [100]) < 0.9
    assert memoryfulness([]) == memoryfulness([1, 1]) == 1.0


def test_few_calls_of_a_tool_are_taken_for_calls_of_any_and_few_of_any_for_exponential_ones() -> None:
    fast, slow = [1.0] * (SEEN_MIN + 1), [4.0] * (SEEN_MIN + 1)
    assert keep_s(fast, fast + slow, 9.0) == 1.0
    assert keep_s(fast[1:], slow, 9.0) == 4.0
    assert keep_s(fast[1:], slow[1:], 9.0) == log(9.0)
    assert keep_s([], [], e) == pytest.approx(1.0)
    assert keep_s([], [], 0.5) == 0.0


def test_the_logarithm_is_the_best_time_for_exponential_durations() -> None:
    quantiles = [-log(1 - (index + 0.5) / 20_000) for index in range(20_000)]
    assert best_s(quantiles, 6.0) == pytest.approx(log(6.0), abs=0.01)
