"""What workflows with a budget have spent and reserved. Pure.

A step's bill begins with its reservation. What its attempts cost comes out of that, each attempt once; what is left when it ends is
released, unless an attempt has not reported: then the settlement, which knows estimates of those that were lost, releases it.

Invariants: a budget's `reserved` is the sum of what is left on its open bills; nothing is negative; every open bill belongs to a step in
flight, and its budget is not forgotten. Bounded by the steps in flight, and the numbers below.
"""

from collections import OrderedDict
from typing import NewType

import msgspec

from shared.contracts.ids import StepId, TenantId, WorkflowId
from shared.contracts.steps import AttemptEnded, StepAdmitted, StepSettled
from shared.contracts.workflows import BudgetSet, WorkflowOpened
from shared.core.money import NANO_MAX, nano_usd

BUDGETS_MAX = 10_000  # beyond it, those that have been idle longest are forgotten
IDLE_NS = 7 * 24 * 3_600_000_000_000  # then a budget is forgotten, until its program opens it again
PAID_MAX = 8_192  # bills of settled steps, for attempts that report late
ATTEMPTS_MAX = 64  # of one step that are billed as they report; what others cost comes with the settlement

AccountId = NewType("AccountId", str)


class Budget(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Of one workflow, in nano-dollars."""

    limit: int
    spent: int = 0
    reserved: int = 0
    steps: int = 0  # that have an open bill
    seen_ns: int = 0

    @property
    def left(self) -> int:
        """Negative once steps cost more than they had reserved."""
        return self.limit - self.spent - self.reserved


class Bill(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Of one step."""

    account: AccountId
    left: int  # of its reservation
    attempts: list[int] = []  # that have reported
    charged: int = 0
    estimated: int = 0  # of that, for attempts that have not


class Accounts(msgspec.Struct, kw_only=True, omit_defaults=True):
    """All of it."""

    budgets: dict[AccountId, Budget] = {}
    bills: dict[StepId, Bill] = {}  # of steps in flight
    paid: dict[StepId, Bill] = {}  # of settled ones, oldest first

    def __post_init__(self) -> None:
        self.paid = OrderedDict(self.paid)  # which finds its first at once; a dict looks past all that are gone


def account_of(tenant: TenantId, workflow: WorkflowId) -> AccountId:
    """A tenant's own: what others say of a workflow of this name, or do in it, is not their money. Neither part has a dot."""
    return AccountId(f"{tenant}.{workflow}")


def open_budget(accounts: Accounts, event: WorkflowOpened, now_ns: int) -> None:
    """The first opening counts. `tenant` is its key's owner; empty where that is nobody."""
    account = account_of(event.tenant, event.workflow)
    if event.tenant and event.budget_usd is not None and account not in accounts.budgets:
        _add(accounts, account, Budget(limit=nano_usd(event.budget_usd), seen_ns=now_ns))


def set_budget(accounts: Accounts, event: BudgetSet, now_ns: int) -> None:
    """From now on. What was spent is at least what the record had, whatever was forgotten here."""
    if not event.tenant:
        return
    account = account_of(event.tenant, event.workflow)
    if account not in accounts.budgets:
        _add(accounts, account, Budget(limit=0))
    budget = accounts.budgets[account]
    budget.limit, budget.spent = nano_usd(event.budget_usd), max(budget.spent, nano_usd(event.spent_usd))
    budget.seen_ns = now_ns


def reserve(accounts: Accounts, event: StepAdmitted, amount: int, now_ns: int) -> None:
    """Begin a step's bill. The budget is there, since it was asked for this."""
    account = account_of(event.tenant, event.workflow)
    budget = accounts.budgets[account]
    budget.reserved += amount
    budget.steps += 1
    budget.seen_ns = now_ns
    accounts.bills[event.step] = Bill(account=account, left=amount)


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
    accounts.budgets[bill.account].steps -= 1
    accounts.paid[step] = bill
    if len(accounts.paid) > PAID_MAX:
        del accounts.paid[next(iter(accounts.paid))]


def sweep(accounts: Accounts, now_ns: int) -> None:
    """Forget what has been idle for long."""
    for account, budget in list(accounts.budgets.items()):
        if not budget.steps and now_ns - budget.seen_ns > IDLE_NS:
            del accounts.budgets[account]


def _add(accounts: Accounts, account: AccountId, budget: Budget) -> None:
    """Makes room for many at once, so that the search for the idle costs little for each."""
    if len(accounts.budgets) >= BUDGETS_MAX:
        idle = sorted((each.seen_ns, name) for name, each in accounts.budgets.items() if not each.steps)
        for _, name in idle[: BUDGETS_MAX // 8]:
            del accounts.budgets[name]
    accounts.budgets[account] = budget


def _spend(accounts: Accounts, bill: Bill, amount: int) -> None:
    bill.charged = min(bill.charged + amount, NANO_MAX)
    reserved = min(bill.left, amount)
    bill.left -= reserved
    budget = accounts.budgets.get(bill.account)
    if budget is not None:
        budget.spent = min(budget.spent + amount, NANO_MAX)
        budget.reserved -= reserved


def _release(accounts: Accounts, bill: Bill) -> None:
    accounts.budgets[bill.account].reserved -= bill.left
    bill.left = 0
