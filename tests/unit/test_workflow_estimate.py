"""What an attempt cost that nobody reported, by the times of all attempts on its worker."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.meter import Meter
from services.workflow.policies.estimate import Span, cost, share_s
from shared.contracts.fleet import Hardware

S = 1_000_000_000


def span(start_s: float, end_s: float) -> Span:
    return Span(int(start_s * S), int(end_s * S))


def test_alone_on_its_worker_it_pays_for_all_the_time() -> None:
    lost = span(10, 14)
    assert share_s(lost, [lost]) == 4
    assert share_s(lost, [lost, span(0, 10), span(14, 20)]) == 4


def test_side_by_side_with_others_it_pays_its_part_of_the_time_that_they_were_there() -> None:
    lost = span(10, 14)
    assert share_s(lost, [lost, span(12, 20)]) == 2 + 1
    assert share_s(lost, [lost, lost, lost, span(0, 11)]) == pytest.approx(1 / 4 + 3 / 3)


def test_an_attempt_that_ended_before_it_began_by_clocks_that_differ_costs_nothing() -> None:
    assert share_s(span(10, 9), [span(10, 9)]) == 0
    assert share_s(span(10, 10), []) == 0


def test_a_share_is_billed_by_the_workers_gpus_and_price() -> None:
    assert cost(2.0, Hardware(count=4, usd_per_hour=18.0)) == (8.0, pytest.approx(0.01))


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted), min_size=1, max_size=8))
def test_it_is_what_the_workers_meter_would_have_said(times: list[list[int]]) -> None:
    meter, marks, shares = Meter(), {}, {}
    moments = [(start, 0, index) for index, (start, _) in enumerate(times)] + [(end, 1, index) for index, (_, end) in enumerate(times)]
    for moment, leaves, index in sorted(moments):
        if leaves:
            shares[index] = meter.leave(marks[index], float(moment))
        else:
            marks[index] = meter.enter(float(moment))
    spans = [span(start, end) for start, end in times]
    for index, each in enumerate(spans):
        assert share_s(each, spans) == pytest.approx(shares[index])
