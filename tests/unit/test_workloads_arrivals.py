"""When programs begin, and how long what they say is."""

import math
import statistics
from itertools import pairwise

import msgspec
import pytest

from shared.sim.workloads.arrivals import Arrivals, Flash, Piece, arrive, gap_of, times, weibull_shape
from shared.sim.workloads.chance import Random
from shared.sim.workloads.lengths import Lognormal


def cv(values: list[float]) -> float:
    return statistics.stdev(values) / statistics.fmean(values)


def gaps(values: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(values)]


@pytest.mark.parametrize("family", ["gamma", "weibull"])
@pytest.mark.parametrize("wanted", [0.5, 1.0, 3.0])
def test_gaps_have_the_rate_and_the_cv_that_are_asked_for(family: str, wanted: float) -> None:
    begins = list(times(5.0, Arrivals(cv=wanted, family=family), 20_000, Random("gaps")))
    assert len(begins) == pytest.approx(100_000, rel=0.03)
    assert cv(gaps(begins)) == pytest.approx(wanted, rel=0.05)
    assert begins == sorted(begins)
    assert 0 <= begins[0] < begins[-1] < 20_000


def test_a_bursty_process_does_not_begin_with_a_burst() -> None:
    counts = [len(list(times(1.0, Arrivals(cv=5.0), 20, Random(f"begin {n}")))) for n in range(2_000)]
    assert statistics.fmean(counts) == pytest.approx(20, rel=0.1)  # one that begins with an arrival has a dozen more


def test_the_load_of_a_day_goes_up_and_down() -> None:
    arrivals = Arrivals(diurnal=0.8, period_s=1_000, peak_s=250)
    begins = list(times(20.0, arrivals, 10_000, Random("day")))
    assert len(begins) == pytest.approx(200_000, rel=0.02)
    top = sum(abs(at % 1_000 - 250) < 50 for at in begins)
    bottom = sum(abs(at % 1_000 - 750) < 50 for at in begins)
    assert top / bottom == pytest.approx(1.8 / 0.2, rel=0.15)


def test_a_flash_crowd_multiplies_the_rate_while_it_lasts_and_keeps_the_shape_of_gaps() -> None:
    arrivals = Arrivals(cv=2.0, flashes=(Flash(at_s=5_000, seconds=500, factor=10),))
    begins = list(times(5.0, arrivals, 10_000, Random("flash")))
    crowd = [at for at in begins if 5_000 <= at < 5_500]
    assert len(crowd) == pytest.approx(25_000, rel=0.05)
    assert len(begins) - len(crowd) == pytest.approx(5 * 9_500, rel=0.05)
    assert cv(gaps(crowd)) == pytest.approx(2.0, rel=0.1)
    assert cv(gaps([at for at in begins if at < 5_000])) == pytest.approx(2.0, rel=0.1)


def test_a_gap_goes_on_over_a_time_without_load() -> None:
    steady = gap_of("gamma", 1e6)  # nearly always 1
    begins = list(arrive([Piece(10, 1.0, steady), Piece(20, 0.0, steady), Piece(30, 2.0, steady)], Random("pieces")))
    assert len(begins) == pytest.approx(30, abs=2)
    assert not [at for at in begins if 10 <= at < 20]


def test_a_gap_is_as_long_over_many_short_pieces_as_over_one() -> None:
    steady = gap_of("gamma", 1e6)
    pieces = [Piece(second + 1.0, 0.1, steady) for second in range(1_000)]
    assert len(list(arrive(pieces, Random("short")))) == pytest.approx(100, abs=1)


def test_nothing_begins_in_no_time() -> None:
    assert list(times(100.0, Arrivals(), 0, Random("none"))) == []


@pytest.mark.parametrize("wanted", [0.05, 1.0, 20.0])
def test_a_weibull_shape_is_found_for_each_cv_that_may_be_asked_for(wanted: float) -> None:
    shape = weibull_shape(wanted)
    first, second = math.gamma(1 + 1 / shape), math.gamma(1 + 2 / shape)
    assert math.sqrt(second / first**2 - 1) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize(
    ("length", "close"),
    [
        (Lognormal(median=100), 1e-9),
        (Lognormal(median=100, max=50), 1e-9),
        (Lognormal(median=100, sigma=1.0), 0.02),
        (Lognormal(median=100, sigma=1.5, min=50, max=500), 0.02),
        (Lognormal(median=0.1, sigma=2.5, max=600), 0.1),
    ],
)
def test_lengths_have_the_mean_they_say(length: Lognormal, close: float) -> None:
    random = Random("lengths")
    drawn = [length.draw(random) for _ in range(50_000)]
    assert statistics.fmean(drawn) == pytest.approx(length.mean, rel=close)
    assert length.min <= min(drawn) <= max(drawn) <= length.max


def test_a_length_in_tokens_is_at_least_one() -> None:
    assert Lognormal(median=0.001).tokens(Random("short")) == 1


@pytest.mark.parametrize("wrong", [{}, {"median": 0}, {"median": -1}, {"median": 5, "min": 9, "max": 8}, {"median": 5, "mean": 6}])
def test_a_length_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, Lognormal)
