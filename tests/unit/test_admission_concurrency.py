"""How many steps of a tenant are under way at once, by what admission hears of their ends."""

import itertools

import msgspec
import pytest

from services.admission.decide import wake_ns
from services.admission.policies.concurrency import HELD_MAX
from services.admission.state import SWEEP_NS, State
from shared.contracts.envelope import Message, Tick
from shared.contracts.ids import StepId, TenantId
from shared.contracts.outcomes import Problem, Reason, Status
from shared.contracts.output import Output
from shared.contracts.steps import StepAdmitted, StepRefused
from tests.admission_desk import KEY, MS, OTHER_KEY, Desk


def strict(**terms: object) -> Desk:
    """Nobody is held."""
    return Desk(settings={"concurrent_wait_ms": 0}, **terms)


def told(outputs: list[Message]) -> list[tuple[str, bool]]:
    """Which steps are answered, and whether they are admitted."""
    return [(output.step, isinstance(output, StepAdmitted)) for output in outputs if isinstance(output, StepAdmitted | StepRefused)]


def test_no_more_steps_of_a_tenant_run_at_once_than_agreed() -> None:
    desk = strict(concurrent_max=2)
    desk.admitted("a")
    desk.admitted("b")
    assert desk.refused().reason is Reason.RATE_LIMITED
    desk.settle("a")
    desk.admitted("c")
    desk.refused()


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.CANCELLED, Status.EXPIRED])
def test_a_step_that_has_ended_makes_room_for_the_next_before_it_is_settled(status: Status) -> None:
    desk = strict(concurrent_max=1, tokens_per_minute=40)
    desk.admitted("a")
    desk.end("a", status)
    desk.admitted("b")
    assert desk.refused().reason is Reason.RATE_LIMITED
    desk.close("b")
    assert "tokens per minute" in desk.refused().message, "what was reserved is given back by the settlement alone"
    desk.settle("a", prompt_tokens=0)
    desk.admitted("c")


def test_a_step_whose_refusal_the_log_kept_from_an_earlier_life_gives_back_all_that_it_took() -> None:
    desk = strict(concurrent_max=1, tokens_per_minute=20)
    admitted = desk.admitted("a")  # decided anew, after a restart; the log keeps the refusal of the life before
    desk.take(StepRefused(step=admitted.step, tenant=admitted.tenant, problem=Problem(reason=Reason.RATE_LIMITED, message="full")))
    assert not desk.state.in_flight
    assert not desk.submit("a"), "it is answered"
    desk.admitted("b")


@pytest.mark.parametrize("known", ["not at all", "held", "admitted"])
def test_the_reader_of_a_step_that_an_earlier_life_refused_is_told_once_more(known: str) -> None:
    """That life may have ended between storing its refusal and telling it."""
    desk = Desk(concurrent_max=1)
    if known == "held":
        desk.admitted("b")
    if known != "not at all":
        desk.submit("a")
    problem = Problem(reason=Reason.RATE_LIMITED, message="full")
    refused = StepRefused(step=StepId("a"), tenant=TenantId("acme"), problem=problem)
    [end] = [output.end for output in desk.take(refused) if isinstance(output, Output)]
    assert end is not None
    assert (end.status, end.problem) == (Status.REFUSED, problem)
    assert not desk.take(refused)


def test_a_refusal_of_this_life_is_not_told_twice() -> None:
    desk = strict(concurrent_max=1)
    desk.admitted("a")
    [refused] = [output for output in desk.submit("b") if isinstance(output, StepRefused)]
    assert not desk.take(refused)


def test_a_step_that_waits_for_a_place_gets_that_of_one_which_the_log_has_refused() -> None:
    desk = Desk(concurrent_max=1)
    admitted = desk.admitted("a")
    assert not desk.submit("b")
    refused = StepRefused(step=admitted.step, tenant=admitted.tenant, problem=Problem(reason=Reason.RATE_LIMITED, message="full"))
    assert told(desk.take(refused)) == [("b", True)]


@pytest.mark.parametrize("retryable", [False, True])
def test_an_attempt_that_failed_makes_no_room_and_the_closing_of_its_step_does(retryable: bool) -> None:
    desk = strict(concurrent_max=1)
    desk.admitted("a")
    desk.end("a", Status.FAILED, retryable=retryable)
    desk.refused()
    desk.close("a")
    desk.admitted("b")


def test_news_of_one_end_in_any_order_and_number_makes_room_once() -> None:
    for order in itertools.permutations(("end", "close", "settle")):
        desk = strict(concurrent_max=2)
        desk.admitted("a")
        desk.admitted("b")
        for news in (*order, *order):
            getattr(desk, news)("a")
            assert desk.state.tenants[TenantId("acme")].running == 1
        desk.admitted("c")
        desk.refused()


def test_a_step_that_has_ended_and_is_not_settled_is_not_taken_again() -> None:
    desk = strict(concurrent_max=1)
    desk.admitted("a")
    desk.end("a")
    assert desk.submit("a") == []


def test_a_settlement_that_comes_when_nothing_else_is_remembered_of_its_tenant_changes_nothing() -> None:
    desk = strict(concurrent_max=1)
    desk.admitted("a")
    desk.end("a")
    desk.now += 2 * SWEEP_NS
    desk.take(Tick())
    assert desk.state.tenants == {}
    desk.settle("a")
    assert desk.state.in_flight == {}


def test_a_state_from_before_ends_were_heard_is_still_understood() -> None:
    desk = strict(concurrent_max=1)
    desk.admitted("a")
    kept = msgspec.json.decode(msgspec.json.encode(desk.state))
    del kept["in_flight"]["a"][4:]
    before = msgspec.convert(kept, State).in_flight["a"]
    assert msgspec.structs.replace(before, model="small") == desk.state.in_flight["a"]


def test_settlements_that_come_twice_or_from_nowhere_free_nothing() -> None:
    desk = strict(concurrent_max=1)
    desk.settle("unknown")
    desk.admitted("a")
    desk.settle("a")
    desk.settle("a")
    desk.admitted("b")
    assert desk.refused().reason is Reason.RATE_LIMITED


# --- held for a moment -------------------------------------------------------------------------------------------------------


def test_a_step_that_comes_before_the_report_of_the_end_that_its_client_has_seen_is_admitted_with_it() -> None:
    desk = Desk(concurrent_max=1)
    for index in range(50):
        desk.submit(f"s{index}")
        desk.now += 5 * MS
        if index:
            assert told(desk.end(f"s{index - 1}")) == [(f"s{index}", True)]
    assert list(desk.state.refused) == []


def test_a_step_for_which_no_place_gets_free_in_time_is_refused() -> None:
    desk = Desk(concurrent_max=1)
    desk.admitted("a")
    assert desk.submit("b") == []
    due = desk.now + desk.config.concurrent_wait_ms * MS
    assert wake_ns(desk.state, desk.config) == due
    desk.now = due - 1
    assert desk.take(Tick()) == []
    desk.now = due
    assert told(desk.take(Tick())) == [("b", False)]
    assert desk.state.held == {}
    assert told(desk.end("a")) == []


def test_each_place_goes_to_who_has_waited_longest() -> None:
    desk = Desk(concurrent_max=2)
    desk.admitted("a")
    desk.admitted("b")
    assert desk.submit("c") == desk.submit("d") == []
    assert told(desk.close("b")) == [("c", True)]
    assert told(desk.settle("a")) == [("d", True)]


def test_no_more_are_held_than_could_get_a_place() -> None:
    desk = Desk(concurrent_max=2)
    for name in "abcd":
        desk.submit(name)
    assert desk.refused("e").reason is Reason.RATE_LIMITED
    assert list(desk.state.held) == ["c", "d"]


@pytest.mark.parametrize("news", ["retry", "copy", "other"])
def test_what_makes_no_room_leaves_a_held_step_where_it_is(news: str) -> None:
    desk = Desk(concurrent_max=1)
    desk.admitted("a")
    desk.submit("b")
    outputs = {
        "retry": lambda: desk.end("a", Status.FAILED, retryable=True),
        "copy": lambda: desk.submit("b"),
        "other": lambda: desk.end("x"),
    }
    assert outputs[news]() == []
    assert list(desk.state.held) == ["b"]
    assert told(desk.end("a")) == [("b", True)]


def test_who_breaks_another_rule_is_refused_at_once_though_all_places_are_taken() -> None:
    desk = Desk(concurrent_max=1)
    desk.admitted("a")
    assert desk.refused(prompt_tokens=10_000).reason is Reason.CONTEXT_TOO_LONG
    assert desk.refused(key=OTHER_KEY).reason is Reason.UNAUTHENTICATED


def test_a_rule_that_a_held_step_breaks_by_the_time_that_it_has_a_place_refuses_it() -> None:
    desk = Desk(concurrent_max=2, requests_per_minute=3)
    desk.admitted("a")
    desk.admitted("b")
    desk.submit("c")
    desk.submit("d")
    assert told(desk.end("a")) == [("c", True)]
    assert told(desk.end("b")) == [("d", False)]


def test_whose_time_is_over_is_refused_though_a_place_is_free_since_after_a_restart_its_prompt_is_gone() -> None:
    desk = Desk(concurrent_max=1)
    desk.admitted("a")
    desk.submit("b")
    desk.now += desk.config.concurrent_wait_ms * MS
    assert told(desk.end("a")) == [("b", False)]


def test_the_number_of_held_steps_and_their_tokens_are_bounded() -> None:
    desk = Desk(concurrent_max=HELD_MAX + 1)
    for index in range(HELD_MAX + 1):
        desk.admitted(f"n{index}")
    for index in range(HELD_MAX):
        assert desk.submit(f"h{index}") == []
    desk.refused()
    desk = Desk(concurrent_max=2, settings={"prepared_tokens_max": 100})
    desk.admitted("a")
    desk.admitted("b")
    assert desk.submit(prompt_tokens=25) == []
    desk.refused(prompt_tokens=1)


def test_a_held_step_survives_a_snapshot() -> None:
    desk = Desk(concurrent_max=1)
    desk.admitted("a")
    desk.submit("b", key=KEY)
    desk.state = msgspec.json.decode(msgspec.json.encode(desk.state), type=State)
    assert told(desk.end("a")) == [("b", True)]
