"""What the steps of a workflow may cost: reserved when they enter, spent as their attempts report, released when they end."""

import msgspec
import pytest

from services.admission import accounts
from services.admission.accounts import BUDGETS_MAX, IDLE_NS, PAID_MAX, Accounts, Budget
from services.admission.decide import wake_ns
from services.admission.policies.budget import SLACK, token_prices
from services.admission.state import GRACE_NS, SWEEP_NS, State
from shared.contracts.envelope import Message, Tick
from shared.contracts.ids import ModelName, StepId, TenantId, WorkflowId
from shared.contracts.outcomes import Reason, Status, Usage
from shared.contracts.steps import Job, Sampling, StepAdmitted, StepRefused, StepSettled
from shared.contracts.workflows import BudgetSet, WorkflowOpened
from shared.core import catalogue
from shared.core.money import NANO, nano_usd, spelled
from tests.admission_desk import KEY, MS, OTHER_KEY, SECOND, Desk

WF, ACME = WorkflowId("report"), TenantId("acme")
PRICED = 3_600.0  # a dollar a second: 0.01 for a token of prompt, 0.1 for one of output
STEP_USD = (10 * 0.01 + 10 * 0.1) * SLACK  # of a step as the desk submits it


def opened(budget_usd: float | None = 5.0, *, wait_ms: int = 0, **terms: object) -> Desk:
    desk = Desk(settings={"concurrent_wait_ms": wait_ms}, **{"requests_per_minute": 10**9, **terms})
    desk.fleet(usd_per_hour=PRICED)
    desk.take(WorkflowOpened(workflow=WF, tenant=ACME, budget_usd=budget_usd))
    return desk


def budget(desk: Desk) -> Budget:
    return desk.state.accounts.budgets[accounts.account_of(ACME, WF)]


def money(desk: Desk) -> tuple[float, float]:
    """(spent, reserved) in dollars."""
    return budget(desk).spent / NANO, budget(desk).reserved / NANO


def settled(name: str, usd: float) -> StepSettled:
    return StepSettled(step=StepId(name), status=Status.SUCCEEDED, usd=usd)


def admission(name: str, workflow: WorkflowId) -> StepAdmitted:
    return StepAdmitted(step=StepId(name), workflow=workflow, tenant=ACME, job=Job(model=ModelName("m"), prompt_tokens=1, max_tokens=1))


def told(outputs: list[Message]) -> list[tuple[str, bool]]:
    return [(output.step, isinstance(output, StepAdmitted)) for output in outputs if isinstance(output, StepAdmitted | StepRefused)]


def test_a_step_reserves_what_it_may_cost_on_the_dearest_worker() -> None:
    desk = opened()
    desk.fleet(cell="cheap", usd_per_hour=PRICED / 2)
    reservation = desk.admitted("a", workflow=WF).reservation
    assert reservation is not None
    assert reservation.nano_usd == nano_usd(STEP_USD)
    assert money(desk) == (0, pytest.approx(STEP_USD))


def test_without_a_budget_nothing_is_reserved_and_nothing_refused() -> None:
    desk = opened(None)
    for workflow in ("", WF, WorkflowId("never-opened")):
        reservation = desk.admitted(workflow=workflow, sampling=Sampling(max_tokens=900)).reservation
        assert reservation is not None
        assert reservation.nano_usd is None
    assert desk.state.accounts == Accounts()


def test_a_step_that_does_not_fit_is_told_budget_spent_reserved_its_need_and_what_would_fit() -> None:
    desk = opened(5.0)
    desk.admitted("a", workflow=WF)
    desk.end("a", usd=1.0)
    desk.admitted("b", workflow=WF)
    problem = desk.refused(workflow=WF, sampling=Sampling(max_tokens=20))
    assert (problem.reason, problem.param) == (Reason.BUDGET_SPENT, "max_tokens")
    needed = spelled(nano_usd((0.1 + 2.0) * SLACK))
    for words in ("workflow report", "5.0000 USD", "1.0000 are spent", f"{STEP_USD:.4f} reserved", f"would reserve {needed}", "at most 14"):
        assert words in problem.message
    assert problem.retry_after_ms > 0, "the step under way may cost less than it has reserved"
    desk.refused(workflow=WF, sampling=Sampling(max_tokens=15))
    desk.admitted(workflow=WF, sampling=Sampling(max_tokens=14))


def test_what_cannot_fit_even_when_all_others_cost_nothing_is_not_asked_to_come_back() -> None:
    desk = opened(1.0)
    problem = desk.refused(workflow=WF)
    assert (problem.reason, problem.param, problem.retry_after_ms) == (Reason.BUDGET_SPENT, "max_tokens", 0)
    assert "at most 5 now" in problem.message
    assert desk.refused(workflow=WF, prompt_tokens=500).param == "", "no output is short enough"


def test_steps_of_another_tenant_are_not_paid_from_it() -> None:
    desk = Desk(settings={"concurrent_wait_ms": 0})
    desk.config = msgspec.convert({"tenants": {"acme": {"keys": [KEY]}, "other": {"keys": [OTHER_KEY]}}}, type(desk.config))
    desk.fleet(usd_per_hour=PRICED)
    desk.take(WorkflowOpened(workflow=WF, tenant=ACME, budget_usd=1.0))
    reservation = desk.admitted("a", key=OTHER_KEY, workflow=WF).reservation
    assert reservation is not None
    assert reservation.nano_usd is None
    desk.end("a", usd=9.0)
    assert money(desk) == (0, 0)
    desk.take(BudgetSet(workflow=WF, tenant=TenantId("other"), budget_usd=100.0))
    assert budget(desk).limit == NANO
    desk.refused(workflow=WF)
    desk.refused(key=OTHER_KEY, workflow=WF, sampling=Sampling(max_tokens=900), prompt_tokens=100)


def test_where_nobody_knows_a_price_steps_are_admitted_until_others_have_spent_the_budget() -> None:
    desk = opened(1.0)
    desk.fleet(usd_per_hour=0.0)
    for name in ("a", "b"):
        reservation = desk.admitted(name, workflow=WF).reservation
        assert reservation is not None
        assert reservation.nano_usd == 0
    desk.end("a", usd=0.9)
    desk.admitted("c", workflow=WF)
    desk.end("b", usd=0.1)
    assert desk.refused(workflow=WF).reason is Reason.BUDGET_SPENT


def report(usd: float = 0.6, **usage: int) -> dict[str, object]:
    """Half of its time in the engine goes into 10 computed tokens of prompt, half into 30 generated ones."""
    return {
        "usd": usd,
        "usage": Usage(**{"prompt_tokens": 25, "cached_tokens": 20, "output_tokens": 35, **usage}),
        "resumed_tokens": 5,
        "queued_ms": 10.0,
        "ttft_ms": 100.0,
        "total_ms": 210.0,
    }


def test_where_workers_state_no_speed_a_step_reserves_by_what_tokens_have_cost_lately() -> None:
    desk = opened()
    desk.fleet(decode_tokens_per_s=0.0, usd_per_hour=PRICED)
    desk.admitted("a", workflow=WF)
    assert money(desk) == (0, 0)
    desk.end("a", **report())
    desk.admitted("b", workflow=WF)
    assert money(desk)[1] == pytest.approx((10 * 0.3 / 10 + 10 * 0.3 / 30) * SLACK)


def test_prices_follow_what_is_reported_and_are_forgotten_with_their_model() -> None:
    desk = opened(1e6)
    desk.fleet(decode_tokens_per_s=0.0, usd_per_hour=PRICED)
    for number in range(600):
        desk.admitted(f"s{number}")
        desk.end(f"s{number}", **report(6.0 if number < 300 else 0.6))
        desk.end(f"s{number}", **report(1e6))  # of a step that has ended already
        desk.settle(f"s{number}")
    assert token_prices(desk.state, ModelName("small")) == (pytest.approx(0.03, rel=0.05), pytest.approx(0.01, rel=0.05))
    desk.now += catalogue.KEPT_NS + 2 * SWEEP_NS
    desk.take(Tick())
    assert desk.state.prices == {}


@pytest.mark.parametrize("odd", [{"usd": 0.0}, {"ttft_ms": 0.0}, {"ttft_ms": 300.0}, {"total_ms": 0.0}])
def test_from_a_report_without_times_or_money_no_price_is_learnt(odd: dict[str, object]) -> None:
    desk = opened()
    desk.fleet(decode_tokens_per_s=0.0, usd_per_hour=PRICED)
    desk.admitted("a")
    desk.end("a", **{**report(), **odd})
    assert token_prices(desk.state, ModelName("small")) == (0, 0)


def test_an_output_of_one_token_says_nothing_of_what_a_token_of_output_costs() -> None:
    desk = opened()
    desk.fleet(decode_tokens_per_s=0.0, usd_per_hour=PRICED)
    desk.admitted("a")
    desk.end("a", **report(output_tokens=6))
    prompt_token, output_token = token_prices(desk.state, ModelName("small"))
    assert prompt_token > 0
    assert output_token == 0


def test_a_failed_attempt_is_paid_from_the_steps_reservation() -> None:
    desk = opened()
    desk.admitted("a", workflow=WF)
    desk.end("a", Status.FAILED, retryable=True, usd=1.0)
    assert money(desk) == (1.0, pytest.approx(STEP_USD - 1.0))
    desk.end("a", attempt=2, usd=0.5)
    assert money(desk) == (1.5, 0)


def test_an_attempt_is_paid_once_however_often_it_is_reported() -> None:
    desk = opened()
    desk.admitted("a", workflow=WF)
    for _ in range(2):
        desk.end("a", usd=1.0)
    desk.take(settled("a", 1.0))
    desk.end("a", usd=1.0)
    assert money(desk) == (1.0, 0)


def test_a_late_report_of_an_attempt_that_was_superseded_is_paid_too() -> None:
    desk = opened()
    desk.admitted("a", workflow=WF)
    desk.end("a", attempt=2, usd=0.5)
    desk.take(settled("a", 0.5))
    desk.end("a", Status.FAILED, attempt=1, usd=0.25)
    assert money(desk) == (0.75, 0)


def test_while_an_attempt_has_not_reported_its_reservation_stays_until_the_settlement_brings_an_estimate() -> None:
    desk = opened()
    desk.admitted("a", workflow=WF)
    desk.end("a", attempt=2, usd=0.5)
    assert money(desk) == (0.5, pytest.approx(STEP_USD - 0.5))
    desk.take(settled("a", 0.75))
    assert money(desk) == (0.75, 0)
    desk.end("a", Status.FAILED, attempt=1, usd=0.375)
    assert money(desk) == (0.875, 0), "what was estimated is paid with what it was"


def test_an_estimate_pays_for_late_reports_only_as_far_as_it_goes() -> None:
    desk = opened()
    desk.admitted("a", workflow=WF)
    desk.end("a", attempt=3, usd=0.5)
    desk.take(settled("a", 1.5))
    desk.end("a", Status.FAILED, attempt=1, usd=0.75)
    desk.end("a", Status.FAILED, attempt=2, usd=0.5)
    assert money(desk) == (1.75, 0)


def test_a_step_that_was_closed_before_it_had_a_worker_releases_all() -> None:
    desk = opened()
    desk.admitted("a", workflow=WF)
    desk.close("a")
    assert money(desk) == (0, 0)


def test_a_step_whose_settlement_never_comes_releases_what_it_had_reserved_after_its_deadline() -> None:
    desk = opened()
    desk.admitted("a", workflow=WF, timeout_ms=1_000)
    desk.close("a", attempt=1)
    assert money(desk)[1] > 0
    desk.now += SECOND + GRACE_NS + SWEEP_NS + 1
    desk.take(Tick())
    assert money(desk) == (0, 0)
    assert desk.state.accounts.bills == {}


def test_a_step_that_costs_more_than_it_reserved_overdraws_and_the_next_is_refused() -> None:
    desk = opened(2.0)
    desk.admitted("a", workflow=WF)
    desk.end("a", usd=3.0)
    assert money(desk) == (3.0, 0)
    problem = desk.refused(workflow=WF, sampling=Sampling(max_tokens=1))
    assert "3.0000 are spent" in problem.message
    assert problem.param == ""


# --- a moment -----------------------------------------------------------------------------------------------------------------


def test_a_program_of_one_step_after_the_other_is_not_refused_for_the_reservation_of_the_step_whose_end_it_has_seen() -> None:
    desk = opened(STEP_USD * 1.5, wait_ms=100)
    desk.admitted("a", workflow=WF)
    assert desk.submit("b", workflow=WF) == []
    desk.now += 5 * MS
    assert told(desk.end("a", usd=0.125)) == [("b", True)]


def test_what_one_end_frees_may_admit_several() -> None:
    desk = opened(STEP_USD * 2, wait_ms=100)
    desk.admitted("large", workflow=WF, sampling=Sampling(max_tokens=20))
    assert desk.submit("b", workflow=WF, sampling=Sampling(max_tokens=5)) == []
    assert desk.submit("c", workflow=WF, sampling=Sampling(max_tokens=5)) == []
    assert told(desk.end("large", usd=0.0)) == [("b", True)]
    assert wake_ns(desk.state, desk.config) <= desk.now  # type: ignore[operator]
    assert told(desk.take(Tick())) == [("c", True)]
    assert wake_ns(desk.state, desk.config) > desk.now  # type: ignore[operator]


def test_what_has_waited_long_enough_for_a_reservation_is_refused_with_the_budget() -> None:
    desk = opened(STEP_USD * 1.5, wait_ms=100)
    desk.admitted("a", workflow=WF)
    desk.submit("b", workflow=WF)
    desk.now += 100 * MS
    refused, _ = desk.take(Tick())
    assert isinstance(refused, StepRefused)
    assert refused.problem.reason is Reason.BUDGET_SPENT


# --- set, closed, forgotten ---------------------------------------------------------------------------------------------------


def test_a_raised_budget_lets_the_workflow_go_on_and_a_second_opening_changes_nothing() -> None:
    desk = opened(2.0)
    desk.admitted("a", workflow=WF)
    desk.end("a", usd=2.0)
    desk.take(WorkflowOpened(workflow=WF, tenant=ACME, budget_usd=9.0))
    assert desk.refused(workflow=WF).reason is Reason.BUDGET_SPENT
    desk.take(BudgetSet(workflow=WF, tenant=ACME, budget_usd=4.0, spent_usd=2.0))
    desk.admitted("b", workflow=WF)
    desk.refused(workflow=WF)


def test_a_workflow_that_was_forgotten_is_learnt_again_with_what_the_record_has() -> None:
    desk = opened(4.0)
    desk.admitted("a", workflow=WF)
    desk.end("a", usd=3.0)
    desk.take(settled("a", 3.0))
    desk.now += IDLE_NS + SWEEP_NS
    desk.take(Tick())
    assert desk.state.accounts.budgets == {}
    desk.fleet(usd_per_hour=PRICED)
    desk.take(BudgetSet(workflow=WF, tenant=ACME, budget_usd=4.0, spent_usd=3.0))
    assert desk.refused(workflow=WF).reason is Reason.BUDGET_SPENT


def test_a_budget_is_not_forgotten_while_a_step_is_under_way() -> None:
    desk = opened()
    desk.admitted("a", workflow=WF, timeout_ms=3_600_000)
    desk.state.accounts.budgets[accounts.account_of(ACME, WF)].seen_ns -= 2 * IDLE_NS
    desk.now += SWEEP_NS
    desk.take(Tick())
    assert budget(desk).steps == 1
    desk.take(settled("a", 1.0))
    desk.now += SWEEP_NS
    desk.take(Tick())
    assert desk.state.accounts.budgets == {}


def test_what_nobodys_key_says_of_a_budget_is_not_heard() -> None:
    desk = opened(None)
    desk.take(WorkflowOpened(workflow=WF, budget_usd=1.0))
    desk.take(BudgetSet(workflow=WF, budget_usd=1.0))
    assert desk.state.accounts == Accounts()


def test_only_so_many_budgets_are_kept_and_those_with_steps_under_way_always() -> None:
    books = Accounts()
    for number in range(BUDGETS_MAX + 10):
        name = WorkflowId(f"w{number}")
        accounts.open_budget(books, WorkflowOpened(workflow=name, tenant=ACME, budget_usd=1.0), number)
        if number == 0:
            accounts.reserve(books, admission("a", name), 1, number)
    assert len(books.budgets) <= BUDGETS_MAX
    assert "acme.w0" in books.budgets
    assert "acme.w1" not in books.budgets
    assert f"acme.w{BUDGETS_MAX + 9}" in books.budgets


def test_only_so_many_bills_of_settled_steps_are_kept() -> None:
    books = Accounts()
    accounts.open_budget(books, WorkflowOpened(workflow=WF, tenant=ACME, budget_usd=1.0), 0)
    for number in range(PAID_MAX + 1):
        accounts.reserve(books, admission(f"s{number}", WF), 0, 0)
        accounts.settle(books, settled(f"s{number}", 0.0))
    assert (len(books.paid), len(books.bills), "s0" in books.paid) == (PAID_MAX, 0, False)


def test_a_state_from_before_there_were_budgets_is_still_understood() -> None:
    desk = Desk()
    desk.admitted("a")
    kept = msgspec.json.decode(msgspec.json.encode(desk.state))
    del kept["accounts"], kept["again"], kept["prices"]
    assert msgspec.convert(kept, State) == desk.state


@pytest.mark.parametrize(("usd", "nano"), [(0.0, 0), (-1.0, 0), (1e-9, 1), (0.1, 100_000_000), (1e300, 10**18)])
def test_money_is_counted_in_whole_numbers_within_bounds(usd: float, nano: int) -> None:
    assert nano_usd(usd) == nano


@pytest.mark.parametrize(("nano", "text"), [(0, "0.0000"), (1, "0.000000001"), (250_000, "0.00025"), (1_650_000_000, "1.6500")])
def test_small_amounts_of_money_differ_from_nothing(nano: int, text: str) -> None:
    assert spelled(nano) == text
