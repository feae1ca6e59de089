"""How many steps of a tenant are under way at once, by what admission hears of their ends."""

import itertools

import msgspec
import pytest

from services.admission.state import SWEEP_NS, State
from shared.contracts.envelope import Tick
from shared.contracts.ids import TenantId
from shared.contracts.outcomes import Reason, Status
from tests.admission_desk import Desk


def test_no_more_steps_of_a_tenant_run_at_once_than_agreed() -> None:
    desk = Desk(concurrent_max=2)
    desk.admitted("a")
    desk.admitted("b")
    assert desk.refused().reason is Reason.RATE_LIMITED
    desk.settle("a")
    desk.admitted("c")
    desk.refused()


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.CANCELLED, Status.EXPIRED])
def test_a_step_that_has_ended_makes_room_for_the_next_before_it_is_settled(status: Status) -> None:
    desk = Desk(concurrent_max=1, tokens_per_minute=40)
    desk.admitted("a")
    desk.end("a", status)
    desk.admitted("b")
    assert desk.refused().reason is Reason.RATE_LIMITED
    desk.close("b")
    assert "tokens per minute" in desk.refused().message, "what was reserved is given back by the settlement alone"
    desk.settle("a", prompt_tokens=0)
    desk.admitted("c")


@pytest.mark.parametrize("retryable", [False, True])
def test_an_attempt_that_failed_makes_no_room_and_the_closing_of_its_step_does(retryable: bool) -> None:
    desk = Desk(concurrent_max=1)
    desk.admitted("a")
    desk.end("a", Status.FAILED, retryable=retryable)
    desk.refused()
    desk.close("a")
    desk.admitted("b")


def test_news_of_one_end_in_any_order_and_number_makes_room_once() -> None:
    for order in itertools.permutations(("end", "close", "settle")):
        desk = Desk(concurrent_max=2)
        desk.admitted("a")
        desk.admitted("b")
        for news in (*order, *order):
            getattr(desk, news)("a")
            assert desk.state.tenants[TenantId("acme")].running == 1
        desk.admitted("c")
        desk.refused()


def test_a_step_that_has_ended_and_is_not_settled_is_not_taken_again() -> None:
    desk = Desk(concurrent_max=1)
    desk.admitted("a")
    desk.end("a")
    assert desk.submit("a") == []


def test_a_settlement_that_comes_when_nothing_else_is_remembered_of_its_tenant_changes_nothing() -> None:
    desk = Desk(concurrent_max=1)
    desk.admitted("a")
    desk.end("a")
    desk.now += 2 * SWEEP_NS
    desk.take(Tick())
    assert desk.state.tenants == {}
    desk.settle("a")
    assert desk.state.in_flight == {}


def test_a_state_from_before_ends_were_heard_is_still_understood() -> None:
    desk = Desk(concurrent_max=1)
    desk.admitted("a")
    kept = msgspec.json.decode(msgspec.json.encode(desk.state))
    kept["in_flight"]["a"].pop()
    assert msgspec.convert(kept, State) == desk.state


def test_settlements_that_come_twice_or_from_nowhere_free_nothing() -> None:
    desk = Desk(concurrent_max=1)
    desk.settle("unknown")
    desk.admitted("a")
    desk.settle("a")
    desk.settle("a")
    desk.admitted("b")
    assert desk.refused().reason is Reason.RATE_LIMITED
