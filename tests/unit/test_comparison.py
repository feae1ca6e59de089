"""Policies against each other: what is sure, and where one loses."""

import pytest

from legato.simulate.comparison import compare, difference
from legato.simulate.summing import interval, t_975
from tests.thought_runs import thought_report


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.706), (9, 2.262), (30, 2.042), (40, 2.021), (60, 2.000), (120, 1.980), (100_000, 1.960)],
)
def test_students_t_is_what_tables_say(freedom: int, expected: float) -> None:
    assert t_975(freedom) == pytest.approx(expected, abs=0.0006)


def test_an_interval_is_what_a_textbook_says() -> None:
    # Mean 5, standard deviation sqrt(20 / 4) = 2.2361, over 5 values: 5 +- 2.776 x 2.2361 / sqrt(5) = 5 +- 2.776
    middle, low, high = interval([2.0, 4.0, 5.0, 6.0, 8.0])
    assert middle == 5.0
    assert (low, high) == (pytest.approx(5 - 2.776), pytest.approx(5 + 2.776))


def test_one_seed_has_no_interval() -> None:
    assert interval([3.0]) == (3.0, None, None)


def test_differences_are_taken_seed_by_seed() -> None:
    # Loads differ far more than policies do: only pair by pair is it seen that the second is always half a second faster.
    base = {seed: {"ttft_p50_s": 10.0 * seed} for seed in range(1, 6)}
    other = {seed: {"ttft_p50_s": 10.0 * seed - 0.5 - 0.01 * (seed % 2)} for seed in range(1, 6)}
    found = difference("ttft_p50_s", base, other)
    assert found is not None
    assert found.mean == pytest.approx(-0.506)
    assert found.low is not None
    assert found.high is not None
    assert found.high < 0
    assert (found.verdict, found.seeds) == ("better", 5)
    assert found.share == pytest.approx(-0.506 / 30)


@pytest.mark.parametrize(
    ("name", "change", "verdict"),
    [
        ("ttft_p50_s", 1.0, "worse"),
        ("ttft_p50_s", -1.0, "better"),
        ("hit_rate", 1.0, "better"),
        ("hit_rate", -1.0, "worse"),
        ("utilisation", 1.0, "higher"),
        ("utilisation", -1.0, "lower"),
        ("ttft_p50_s", 0.0, "equal"),
    ],
)
def test_a_verdict_knows_which_way_is_better(name: str, change: float, verdict: str) -> None:
    base = {seed: {name: float(seed)} for seed in (1, 2, 3)}
    other = {seed: {name: seed + change * (1 + seed / 100)} for seed in (1, 2, 3)}
    found = difference(name, base, other)
    assert found is not None
    assert found.verdict == verdict


def test_what_chance_can_do_is_unclear() -> None:
    found = difference("ttft_p50_s", {1: {"ttft_p50_s": 1.0}, 2: {"ttft_p50_s": 1.0}}, {1: {"ttft_p50_s": 1.5}, 2: {"ttft_p50_s": 0.9}})
    assert found is not None
    assert found.verdict == "unclear"


def test_seeds_without_the_figure_are_left_out_of_the_pairs() -> None:
    base = {1: {"ttft_p50_s": 1.0}, 2: {"ttft_p50_s": None}, 3: {"ttft_p50_s": 3.0}}
    other = {1: {"ttft_p50_s": 2.0}, 2: {"ttft_p50_s": 9.0}, 3: {"ttft_p50_s": None}}
    found = difference("ttft_p50_s", base, other)
    assert found is not None
    assert (found.mean, found.seeds, found.low) == (1.0, 1, None)
    assert difference("ttft_p50_s", {1: {"ttft_p50_s": None}}, other) is None


def test_the_first_policy_is_what_others_are_compared_with() -> None:
    reports = [thought_report(policy, seed, ttft_s) for seed in (1, 2) for policy, ttft_s in (("near", 1.0 + seed / 10), ("far", 2.0))]
    found = compare(reports)
    assert (found.policies, found.seeds) == (["near", "far"], [1, 2])
    row = next(row for row in found.rows if row.figure == "ttft_p50_s")
    assert set(row.differences) == {"far"}
    assert row.policies["near"] is not None
    assert row.policies["near"].mean == pytest.approx(1.725)  # the medians of both calls are 1.65 and 1.8


def test_losses_name_the_tenant_and_the_kind_that_pay() -> None:
    def fair(seed: int, far: bool) -> object:
        made = thought_report("far" if far else "near", seed, 1.0 + seed / 10)
        made.tenants["heavy"]["ttft_p50_s"] = (5.0 if far else 2.0) + seed / 10
        made.kinds["chat"]["ttft_p50_s"] = (0.5 if far else 1.0) + seed / 10  # better there
        return made

    found = compare([fair(seed, far) for seed in (1, 2, 3) for far in (False, True)])  # type: ignore[misc]
    assert [(loss.policy, loss.by, loss.group, loss.figure) for loss in found.losses] == [("far", "tenant", "heavy", "ttft_p50_s")]
    assert found.losses[0].difference.mean == pytest.approx(3.0)
    assert [(gain.by, gain.group, gain.figure) for gain in found.gains] == [("kind", "chat", "ttft_p50_s")]


def test_of_the_percentiles_of_one_time_the_largest_loss_is_told() -> None:
    found = compare(
        [thought_report(policy, seed, ttft_s + seed / 10) for seed in (1, 2) for policy, ttft_s in (("near", 1.0), ("far", 2.0))]
    )
    light = [loss.figure for loss in found.losses if (loss.by, loss.group) == ("tenant", "light")]
    assert len(light) == 1
    assert light[0].startswith("ttft_p")


def test_one_seed_tells_large_losses_only() -> None:
    found = compare([thought_report("near", 1, 1.0), thought_report("far", 1, 1.05)])
    assert not found.losses
    found = compare([thought_report("near", 1, 1.0), thought_report("far", 1, 2.0)])
    assert ("tenant", "heavy", "ttft_p50_s") in [(loss.by, loss.group, loss.figure) for loss in found.losses]
    assert all(loss.difference.verdict == "unclear" for loss in found.losses)
