"""Knative's autoscaler: a slow window, and a fast one for bursts."""

from services.autoscaler.config import KnativeConfig, PoolConfig
from services.autoscaler.policies.knative import concurrency, desired, next_target
from services.autoscaler.state import Sample, Target
from tests.pool_of_workers import SECOND, told, waits

POOL = PoolConfig(min=0, max=100, policy="knative")
TARGET_EACH = 7.0  # 70 % of 10 slots


def at(second: int, workers: int, used: int, depth: int = 0) -> Sample:
    return Sample(second * SECOND, workers, 0, 10 * workers, used, depth)


def steady(seconds: int, workers: int, used: int, since: int = 0) -> list[Sample]:
    return [at(second, workers, used) for second in range(since + 2, since + seconds + 1, 2)]


def target(workers: int) -> Target:
    return Target(workers, 0, 0)


def test_the_defaults_are_knatives() -> None:
    config = KnativeConfig()
    assert (config.stable_window_s, config.panic_window, config.panic_threshold) == (60.0, 0.1, 2.0)
    assert (config.max_scale_up_rate, config.max_scale_down_rate, PoolConfig().utilisation) == (1_000.0, 2.0, 0.7)


def test_a_hundred_requests_at_seven_each_want_fifteen_workers() -> None:
    """The example of a container concurrency of 10 and a target of 70 %, in the documentation of Alibaba Cloud's Knative."""
    assert desired([at(2, 15, 100)], 2 * SECOND, 60 * SECOND, TARGET_EACH, POOL) == 15


def test_rates_bound_what_is_added_and_taken_away() -> None:
    """The example in Knative's source: a rate of 1.1 on 2 workers may add one, because 2.2 is rounded up."""
    slow = PoolConfig(max=100, policy="knative", knative=KnativeConfig(max_scale_up_rate=1.1))
    assert desired([at(2, 2, 3)], 2 * SECOND, 60 * SECOND, 1.0, slow) == 3
    assert desired([at(2, 2, 30)], 2 * SECOND, 60 * SECOND, 1.0, slow) == 3
    assert desired([at(2, 9, 0)], 2 * SECOND, 60 * SECOND, 1.0, slow) == 4, "to the half, rounded down"


def test_concurrency_is_what_runs_and_waits_on_average_over_the_window() -> None:
    samples = [at(2, 1, 10, depth=90), at(4, 1, 10, depth=10), at(6, 1, 10, depth=30)]
    assert concurrency(samples, 6 * SECOND, 60 * SECOND) == (100 + 20 + 40) / 3
    assert concurrency(samples, 6 * SECOND, 4 * SECOND) == 30
    assert concurrency(samples, 90 * SECOND, 4 * SECOND) == 40


def test_in_a_steady_state_the_stable_window_counts() -> None:
    samples = steady(70, 4, 28)
    assert next_target(samples, target(4), 70 * SECOND, POOL) == 4
    assert next_target([*samples, at(72, 4, 40)], target(4), 72 * SECOND, POOL) == 5, "29.1 of them on average"


def test_a_burst_panics_and_is_answered_by_the_short_window() -> None:
    samples = [*steady(70, 4, 28), at(72, 4, 40, depth=20), at(74, 4, 40, depth=20), at(76, 4, 40, depth=20)]
    assert next_target(samples, target(4), 76 * SECOND, POOL) == 9, "60 of 7 each are more than twice of 4"
    assert next_target(samples[:-1], target(4), 74 * SECOND, POOL) == 8, "of 28, 60 and 60: just twice of 4"
    assert next_target(samples[:-2], target(4), 72 * SECOND, POOL) == 5, "not yet"


def test_panic_takes_nothing_away_until_a_stable_window_after_it() -> None:
    burst = [*steady(70, 4, 28), *(at(second, 4, 40, depth=20) for second in (72, 74, 76))]
    quiet = [*burst, *steady(58, 9, 7, since=76)]
    assert next_target(quiet, target(9), 134 * SECOND, POOL) == 9
    later = [*burst, *steady(64, 9, 7, since=76)]
    assert next_target(later, target(9), 140 * SECOND, POOL) == 4, "the mean wants 1, and half of 9 may go"


def test_until_the_first_window_is_full_nothing_is_taken_away_but_from_one() -> None:
    samples = steady(40, 5, 0)
    assert next_target(samples, target(5), 40 * SECOND, POOL) == 5
    assert next_target(steady(70, 5, 0), target(5), 70 * SECOND, POOL) == 2
    assert next_target(steady(10, 1, 0), target(1), 10 * SECOND, POOL) == 0


def test_the_bounds_hold_and_a_pool_without_workers_gets_some() -> None:
    bounded = PoolConfig(min=2, max=3, policy="knative")
    assert next_target(steady(70, 3, 30), target(3), 70 * SECOND, bounded) == 3
    assert next_target(steady(70, 3, 0), target(3), 70 * SECOND, bounded) == 2
    empty = [*steady(60, 2, 0), *(Sample(second * SECOND, 0, 0, 0, 0, 30) for second in range(62, 70, 2))]
    assert next_target(empty, target(0), 68 * SECOND, POOL) >= 4


def test_the_machine_follows_the_policy_that_is_configured() -> None:
    changes = told(
        PoolConfig(min=1, max=20, policy="knative"), workers=2, seconds=80, load=lambda second: waits(20, 40 if second > 70 else 0)
    )
    assert changes[0][1].workers == 2
    assert changes[-1][1].workers >= 6
    assert changes[-1][1].why.endswith(f"{changes[-1][1].workers} by knative")
