"""Token buckets: worked examples and what holds for all of them."""

from hypothesis import given
from hypothesis import strategies as st

from shared.core import limits

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND


def test_a_full_bucket_gives_all_its_units_at_once_and_no_more() -> None:
    full_ns = 0
    for _ in range(7):
        cost = limits.cost_ns(1, 7)
        assert limits.wait_ns(full_ns, cost, NOW) == 0
        full_ns = limits.taken(full_ns, cost, NOW)
    assert limits.wait_ns(full_ns, limits.cost_ns(1, 7), NOW) > 0


def test_sixty_per_minute_flow_back_one_a_second() -> None:
    empty_ns = limits.taken(0, limits.cost_ns(60, 60), NOW)
    one = limits.cost_ns(1, 60)
    assert limits.wait_ns(empty_ns, one, NOW) == SECOND
    assert limits.wait_ns(empty_ns, one, NOW + SECOND // 4) == 3 * SECOND // 4
    assert limits.wait_ns(empty_ns, one, NOW + SECOND) == 0


def test_more_than_the_bucket_can_ever_hold_is_never_given() -> None:
    assert limits.wait_ns(0, limits.cost_ns(101, 100), NOW) is None
    assert limits.wait_ns(0, limits.cost_ns(100, 100), NOW) == 0


def test_without_a_limit_nothing_is_waited_for() -> None:
    assert limits.wait_ns(0, limits.cost_ns(10**12, 0), NOW) == 0


def test_what_is_returned_can_be_taken_again() -> None:
    half = limits.cost_ns(50, 100)
    empty_ns = limits.taken(0, 2 * half, NOW)
    assert limits.level(empty_ns, NOW) == 0
    assert limits.wait_ns(limits.returned(empty_ns, half), half, NOW) == 0


def test_a_changed_limit_holds_for_the_next_request() -> None:
    full_ns = limits.taken(0, limits.cost_ns(100, 100), NOW)
    assert limits.wait_ns(full_ns, limits.cost_ns(10, 100), NOW) == 6 * SECOND
    assert limits.wait_ns(full_ns, limits.cost_ns(10, 1000), NOW) == 6 * SECOND // 10


MOVES = st.lists(st.tuples(st.sampled_from(["take", "return"]), st.integers(0, 500), st.integers(-5 * SECOND, 90 * SECOND)), max_size=60)


@given(MOVES, st.integers(1, 400))
def test_a_bucket_is_never_below_empty_nor_above_full(moves: list[tuple[str, int, int]], per_minute: int) -> None:
    full_ns, now = 0, NOW
    for move, units, later in moves:
        now += later
        cost = limits.cost_ns(units, per_minute)
        if move == "return":
            full_ns = limits.returned(full_ns, cost)
        elif limits.wait_ns(full_ns, cost, now) == 0:
            full_ns = limits.taken(full_ns, cost, now)
        assert 0 <= limits.level(full_ns, now) <= 1


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20 * SECOND)), min_size=1, max_size=60), st.integers(1, 100))
def test_no_stretch_of_time_gives_more_than_a_full_bucket_and_what_flows_back(steps: list[tuple[int, int]], per_minute: int) -> None:
    full_ns, now = 0, NOW
    given_out: list[tuple[int, int]] = []
    for units, later in steps:
        now += later
        cost = limits.cost_ns(units, per_minute)
        if limits.wait_ns(full_ns, cost, now) == 0:
            full_ns = limits.taken(full_ns, cost, now)
            given_out.append((now, units))
    for index, (start, _) in enumerate(given_out):
        total = sum(units for _, units in given_out[index:])
        assert total <= per_minute + per_minute * (now - start) / limits.PERIOD_NS + 1


@given(st.integers(0, 200), st.integers(1, 100), st.integers(0, 120 * SECOND))
def test_after_the_wait_that_was_named_the_units_are_there_and_not_before(units: int, per_minute: int, backlog_ns: int) -> None:
    full_ns = NOW + min(backlog_ns, limits.PERIOD_NS)
    cost = limits.cost_ns(units, per_minute)
    wait = limits.wait_ns(full_ns, cost, NOW)
    if wait is None:
        assert units > per_minute
        return
    assert limits.wait_ns(full_ns, cost, NOW + wait) == 0
    if wait > 0:
        assert limits.wait_ns(full_ns, cost, NOW + wait - 1) == 1
