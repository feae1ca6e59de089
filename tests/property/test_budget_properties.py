"""What must hold for a workflow's budget, whatever becomes of its steps: attempts report late, twice or never, and admission restarts."""

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.admission.accounts import account_of
from services.admission.config import AdmissionConfig
from services.admission.decide import MACHINE
from services.admission.state import GRACE_NS, SWEEP_NS, State
from shared.contracts.envelope import Message, Tick
from shared.contracts.fleet import Capacity, Hardware, ModelCard, WorkerRegistered, WorkerState
from shared.contracts.ids import CellId, ModelName, StepId, TenantId, WorkerId, WorkflowId
from shared.contracts.outcomes import Problem, Reason, Status
from shared.contracts.steps import AttemptEnded, Sampling, StepAdmitted, StepClosed, StepSettled, SubmissionRead
from shared.contracts.workflows import WorkflowOpened
from shared.core.machine import step
from shared.core.money import NANO

SECOND = 1_000_000_000
NOW = 1_700_000_000 * SECOND
WF = WorkflowId("w")
ACCOUNT = account_of(TenantId("default"), WF)
LIMIT = 10 * NANO
CONFIG = AdmissionConfig()
CARD = ModelCard(name=ModelName("small"), tokenizer="t", vocab_size=10, context_tokens=1_000, block_tokens=16)


class Known(msgspec.Struct):
    """A step as it really is. Costs in nano-dollars."""

    granted: int
    attempts: dict[int, int] = {}  # what each that was dispatched has cost
    told: dict[int, int] = {}  # of those, what was reported
    over: bool = False
    settled: bool = False

    @property
    def cost(self) -> int:
        return sum(self.attempts.values())

    @property
    def overrun(self) -> int:
        return max(0, self.cost - self.granted)


class Budgets(RuleBasedStateMachine):
    """`frugal`: no step costs more than it had reserved."""

    frugal = False

    def __init__(self) -> None:
        super().__init__()
        self.state, self.now, self.count = State(), NOW, 0
        self.steps: dict[StepId, Known] = {}
        self.said: list[Message] = []
        hardware, capacity = (
            Hardware(usd_per_hour=3_600.0),
            Capacity(blocks=1, slots=1, decode_tokens_per_s=10.0, prefill_tokens_per_s=100.0),
        )
        about = {"worker": WorkerId("w"), "cell": CellId("c"), "pool": "p", "epoch": 1, "state": WorkerState.READY, "card": CARD}
        self.take(WorkerRegistered(**about, capacity=capacity, hardware=hardware))  # type: ignore[arg-type]
        self.take(WorkflowOpened(workflow=WF, tenant=TenantId("default"), budget_usd=LIMIT / NANO))

    def take(self, event: Message) -> None:
        for output in step(MACHINE, self.state, event, self.now, CONFIG):
            if isinstance(output, StepAdmitted):
                assert output.reservation is not None
                assert output.reservation.nano_usd is not None
                self.steps[output.step] = Known(granted=output.reservation.nano_usd)

    def say(self, event: Message) -> None:
        self.said.append(event)
        self.take(event)

    def pick(self, data: st.DataObject, names: list[StepId]) -> tuple[StepId, Known]:
        name = data.draw(st.sampled_from(names))
        return name, self.steps[name]

    def cost(self, data: st.DataObject, known: Known) -> int:
        most = known.granted - known.cost if self.frugal else 2 * NANO
        return data.draw(st.integers(0, max(0, most)))

    @property
    def open(self) -> list[StepId]:
        return [name for name, known in self.steps.items() if not known.over]

    @rule(max_tokens=st.integers(1, 40))
    def submit(self, max_tokens: int) -> None:
        self.count += 1
        sampling = Sampling(max_tokens=max_tokens)
        about: dict[str, Any] = {"workflow": WF, "model": "small", "prompt_tokens": 10, "context_tokens": 1_000, "sampling": sampling}
        self.take(SubmissionRead(step=StepId(f"s{self.count}"), **about))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), fate=st.sampled_from(["succeeded", "cancelled", "failed", "lost"]))
    def attempt(self, data: st.DataObject, fate: str) -> None:
        name, known = self.pick(data, self.open)
        number = len(known.attempts) + 1
        known.attempts[number] = self.cost(data, known)
        if fate != "lost":
            self.report(name, known, number, Status(fate))
            known.over = fate != "failed"

    def report(self, name: StepId, known: Known, number: int, status: Status) -> None:
        known.told[number] = known.attempts[number]
        usd = known.attempts[number] / NANO
        self.say(AttemptEnded(step=name, workflow=WF, cell=CellId("c"), worker=WorkerId("w"), attempt=number, status=status, usd=usd))

    @precondition(lambda self: any(len(known.told) < len(known.attempts) for known in self.steps.values()))
    @rule(data=st.data())
    def report_late(self, data: st.DataObject) -> None:
        name, known = self.pick(data, [name for name, known in self.steps.items() if len(known.told) < len(known.attempts)])
        number = data.draw(st.sampled_from(sorted(known.attempts.keys() - known.told.keys())))
        self.report(name, known, number, Status.FAILED)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        name, known = self.pick(data, self.open)
        known.over = True
        problem = Problem(reason=Reason.ATTEMPTS_EXHAUSTED, message="lost")
        self.say(StepClosed(step=name, workflow=WF, status=Status.FAILED, problem=problem, attempt=len(known.attempts)))

    @precondition(lambda self: any(known.over and not known.settled for known in self.steps.values()))
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        """The record's estimates of what was lost are right here."""
        name, known = self.pick(data, [name for name, known in self.steps.items() if known.over and not known.settled])
        known.settled = True
        self.say(StepSettled(step=name, workflow=WF, status=Status.SUCCEEDED, usd=known.cost / NANO))

    @precondition(lambda self: self.said)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        self.take(data.draw(st.sampled_from(self.said)))

    @rule()
    def restart(self) -> None:
        self.state = msgspec.json.decode(msgspec.json.encode(self.state), type=State)

    @rule(later_ms=st.integers(0, 200))
    def wait(self, later_ms: int) -> None:
        self.now += later_ms * 1_000_000
        self.take(Tick())

    @invariant()
    def nothing_is_negative_and_reservations_are_those_of_open_bills(self) -> None:
        books = self.state.accounts
        budget = books.budgets[ACCOUNT]
        bills = [*books.bills.values(), *books.paid.values()]
        assert min([budget.spent, budget.reserved, *(bill.left for bill in bills), *(bill.estimated for bill in bills)]) >= 0
        assert budget.reserved == sum(bill.left for bill in books.bills.values())
        assert budget.steps == len(books.bills)
        assert books.bills.keys() == self.state.in_flight.keys()
        assert not any(bill.left for bill in books.paid.values())

    @invariant()
    def what_is_spent_is_what_attempts_have_cost_as_far_as_anybody_said(self) -> None:
        expected = sum(known.cost if known.settled else sum(known.told.values()) for known in self.steps.values())
        assert self.state.accounts.budgets[ACCOUNT].spent == expected

    @invariant()
    def a_budget_is_overdrawn_by_no_more_than_steps_cost_beyond_their_reservations(self) -> None:
        budget = self.state.accounts.budgets[ACCOUNT]
        overrun = sum(known.overrun for known in self.steps.values())
        assert budget.spent + budget.reserved <= LIMIT + overrun
        assert sum(known.cost for known in self.steps.values()) <= LIMIT + overrun  # also what nobody has said yet
        if self.frugal:
            assert overrun == 0

    def teardown(self) -> None:
        """Those that are settled release what they had; the others when their time is over."""
        for name, known in list(self.steps.items()):
            if known.over and not known.settled:
                self.take(StepSettled(step=name, status=Status.SUCCEEDED, usd=known.cost / NANO))
        self.now += 3_600 * SECOND + GRACE_NS + 2 * SWEEP_NS
        self.take(Tick())
        budget = self.state.accounts.budgets.get(ACCOUNT)
        assert budget is None or budget.reserved == 0
        assert self.state.accounts.bills == {}


class FrugalBudgets(Budgets):
    frugal = True


TestBudgets = Budgets.TestCase
TestFrugalBudgets = FrugalBudgets.TestCase
TestBudgets.settings = TestFrugalBudgets.settings = settings(deadline=None, max_examples=150, stateful_step_count=40)
