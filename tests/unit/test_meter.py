"""An attempt pays for its share of the engine's time, and all shares together are the time in which it was busy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.meter import Meter


def test_who_is_alone_pays_all_and_two_pay_half_each() -> None:
    meter = Meter()
    first = meter.enter(10.0)
    second = meter.enter(12.0)
    assert meter.leave(first, 14.0) == pytest.approx(2.0 + 1.0)
    assert meter.share(second, 14.0) == pytest.approx(1.0)
    assert meter.leave(second, 17.0) == pytest.approx(1.0 + 3.0)
    third = meter.enter(100.0)
    assert meter.leave(third, 101.0) == pytest.approx(1.0), "nobody pays for the time in which nothing ran"


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=30))
def test_the_shares_add_up_to_the_busy_time(spans: list[tuple[int, int]]) -> None:
    meter, marks, total = Meter(), {}, 0.0
    events = [(start, 0, index) for index, (start, _) in enumerate(spans)]
    events += [(start + length, 1, index) for index, (start, length) in enumerate(spans)]
    for now, leaving, index in sorted(events):
        if leaving:
            total += meter.leave(marks.pop(index), float(now))
        else:
            marks[index] = meter.enter(float(now))
    busy = {moment for start, length in spans for moment in range(start, start + length)}
    assert total == pytest.approx(len(busy))
    assert meter.running == 0
