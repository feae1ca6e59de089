"""What workflows with a budget have spent and reserved. Pure.

A step's bill begins with its reservation. What its attempts cost comes out of that, each attempt once; what is left when it ends is
released, unless an attempt has not reported: then the settlement, which knows estimates of those that were lost, releases it.

Invariants: a budget's `reserved` is the sum of what is left on its open bills; nothing is negative; every open bill belongs to a step in
flight, and its budget is not forgotten. Bounded by the steps in flight, and the numbers below.
"""

import msgspec

from shared.contracts.ids import StepId, WorkflowId
from shared.contracts.steps import AttemptEnded, StepSettled
from shared.contracts.workflows import BudgetSet, WorkflowOpened
from shared.core.money import NANO_MAX, nano_usd

BUDGETS_MAX = 10_000  # beyond it, those that have been idle longest are forgotten
IDLE_NS = 7 * 24 * 3_600_000_000_000  # then a budget is forgotten, unless its program opens it again
CLOSED_NS = 3_600_000_000_000  # of a workflow that has ended
PAID_MAX = 8_192  # bills of settled steps, for attempts that report late
ATTEMPTS_MAX = 64  # of one step that are billed as they report; what others cost comes with the settlement


class Budget(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Of one workflow, in nano-dollars."""

    key: str  # of the program that opened it: another tenant's steps are not paid from it
    limit: int
    spent: int = 0
    reserved: int = 0
    steps: int = 0  # that have an open bill
    closed: bool = False
    seen_ns: int = 0

    @property
    def left(self) -> int:
        """Negative once steps cost more than they had reserved."""
        return self.limit - self.spent - self.reserved


class Bill(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Of one step."""

    workflow: WorkflowId
    left: int  # of its reservation
    attempts: list[int] = []  # that have reported
    charged: int = 0
    estimated: int = 0  # of that, for attempts that have not


class Accounts(msgspec.Struct, kw_only=True, omit_defaults=True):
    """All of it."""

    budgets: dict[WorkflowId, Budget] = {}
    bills: dict[StepId, Bill] = {}  # of steps in flight
    paid: dict[StepId, Bill] = {}  # of settled ones, oldest first


def open_budget(accounts: Accounts, event: WorkflowOpened, now_ns: int) -> None:
    """The first opening counts."""
    if event.budget_usd is not None and event.workflow not in accounts.budgets:
        _add(accounts, event.workflow, Budget(key=event.key, limit=nano_usd(event.budget_usd), seen_ns=now_ns))


def set_budget(accounts: Accounts, event: BudgetSet, now_ns: int) -> None:
    """From now on. What was spent is at least what the record had, whatever was forgotten here."""
    budget = accounts.budgets.get(event.workflow)
    if budget is None:
        budget = Budget(key=event.key, limit=0)
        _add(accounts, event.workflow, budget)
    if event.key == budget.key:
        budget.limit, budget.spent = nano_usd(event.budget_usd), max(budget.spent, nano_usd(event.spent_usd))
        budget.closed, budget.seen_ns = False, now_ns


def close_budget(accounts: Accounts, workflow: WorkflowId) -> None:
    """It is forgotten soon."""
    budget = accounts.budgets.get(workflow)
    if budget is not None:
        budget.closed = True


def reserve(accounts: Accounts, step: StepId, workflow: WorkflowId, amount: int, now_ns: int) -> None:
    """Begin a step's bill. The budget is there, since it was asked for this."""
    budget = accounts.budgets[workflow]
    budget.reserved += amount
    budget.steps += 1
    budget.seen_ns = now_ns
    accounts.bills[step] = Bill(workflow=workflow, left=amount)


def charge(accounts: Accounts, event: AttemptEnded) -> None:
    """What an attempt cost, once, however it ended and whenever it reports."""
    bill = accounts.bills.get(event.step) or accounts.paid.get(event.step)
    if bill is None or event.attempt in bill.attempts or len(bill.attempts) >= ATTEMPTS_MAX:
        return
    bill.attempts.append(event.attempt)
    cost = nano_usd(event.usd)
    guessed = min(cost, bill.estimated)
    bill.estimated -= guessed
    _spend(accounts, bill, cost - guessed)


def end(accounts: Accounts, step: StepId, attempt: int) -> None:
    """The step is over for its reader, by its attempt of that number; the settlement follows."""
    bill = accounts.bills.get(step)
    if bill is not None and len(bill.attempts) >= attempt:
        _release(accounts, bill)


def settle(accounts: Accounts, event: StepSettled) -> None:
    """The record says what all attempts have cost, with estimates for those that have not reported."""
    bill = accounts.bills.get(event.step)
    if bill is not None:
        missing = max(0, nano_usd(event.usd) - bill.charged)
        bill.estimated += missing
        _spend(accounts, bill, missing)
        drop(accounts, event.step)


def drop(accounts: Accounts, step: StepId) -> None:
    """End a step's bill, whatever is missing on it."""
    bill = accounts.bills.pop(step, None)
    if bill is None:
        return
    _release(accounts, bill)
    accounts.budgets[bill.workflow].steps -= 1
    accounts.paid[step] = bill
    if len(accounts.paid) > PAID_MAX:
        del accounts.paid[next(iter(accounts.paid))]


def sweep(accounts: Accounts, now_ns: int) -> None:
    """Forget what has been idle for long."""
    for workflow, budget in list(accounts.budgets.items()):
        if not budget.steps and now_ns - budget.seen_ns > (CLOSED_NS if budget.closed else IDLE_NS):
            del accounts.budgets[workflow]


def _add(accounts: Accounts, workflow: WorkflowId, budget: Budget) -> None:
    """Makes room for many at once, so that the search for the idle costs little for each."""
    if len(accounts.budgets) >= BUDGETS_MAX:
        idle = sorted((each.seen_ns, name) for name, each in accounts.budgets.items() if not each.steps)
        for _, name in idle[: BUDGETS_MAX // 8]:
            del accounts.budgets[name]
    accounts.budgets[workflow] = budget


def _spend(accounts: Accounts, bill: Bill, amount: int) -> None:
    bill.charged = min(bill.charged + amount, NANO_MAX)
    reserved = min(bill.left, amount)
    bill.left -= reserved
    budget = accounts.budgets.get(bill.workflow)
    if budget is not None:
        budget.spent = min(budget.spent + amount, NANO_MAX)
        budget.reserved -= reserved


def _release(accounts: Accounts, bill: Bill) -> None:
    accounts.budgets[bill.workflow].reserved -= bill.left
    bill.left = 0
