"""What admission knows: the accepted steps that are not settled yet, what tenants and workflows have used, and how the fleet is loaded.

Facts only. What they allow is decided with the configuration of the moment, so nothing here depends on it.
"""

from collections import OrderedDict

import msgspec

from services.admission import accounts
from services.admission.accounts import Accounts
from services.admission.prices import Prices, learn
from shared.contracts.envelope import Message, Tick
from shared.contracts.ids import ModelName, StepId, TenantId
from shared.contracts.outcomes import Status, Usage
from shared.contracts.steps import AttemptEnded, Reservation, StepAdmitted, StepClosed, StepRefused, StepSettled, SubmissionRead
from shared.contracts.workflows import BudgetSet, WorkflowOpened
from shared.core import catalogue, limits
from shared.core.catalogue import Catalogue

SETTLED_KEPT = 8_192  # ids of settled steps that are still recognised when submitted again, and as many of refused ones
REMEMBERED_NS = 20 * 3_600_000_000_000  # and so long: less than their outputs are kept, for whoever submits one again reads its output
GRACE_NS = 60_000_000_000  # after its deadline a step is forgotten, should its settlement never come
SWEEP_NS = 5_000_000_000


class InFlight(msgspec.Struct, frozen=True, array_like=True):
    """An accepted step that is not settled."""

    tenant: TenantId
    accepted_ns: int
    deadline_ns: int
    reservation: Reservation
    ended: bool = False  # for its reader; what it used is known when it is settled
    model: ModelName = ModelName("")


class Held(msgspec.Struct, frozen=True, array_like=True):
    """A submission that is not answered."""

    read: SubmissionRead
    since_ns: int


class Use(msgspec.Struct, kw_only=True):
    """What a tenant has in use. The buckets are those of shared/core/limits.py."""

    running: int = 0
    requests_full_ns: int = 0
    tokens_full_ns: int = 0
    tokens_idle_ns: int = 0  # when the bucket was last seen full


class State(msgspec.Struct, kw_only=True):
    """Invariant: a tenant's `running` is the number of its steps in flight that have not ended."""

    held: dict[StepId, Held] = {}  # oldest first; all but a few are answered at once
    in_flight: dict[StepId, InFlight] = {}
    settled: dict[StepId, int] = {}  # when, oldest first
    refused: dict[StepId, int] = {}  # likewise
    tenants: dict[TenantId, Use] = {}
    accounts: Accounts = msgspec.field(default_factory=Accounts)
    prices: dict[ModelName, Prices] = {}
    again: bool = False  # one that was held has just been admitted, and the next may have room as well
    fleet: Catalogue = msgspec.field(default_factory=Catalogue)
    unheard: StepId = StepId("")  # whose refusal was news just now: its reader may not have been told
    swept_ns: int = 0
    overdue_ns: int = 0  # before this, nothing in flight is past its deadline and the grace behind it

    def __post_init__(self) -> None:  # these find their first at once; a dict looks past all that are gone
        self.settled, self.refused = OrderedDict(self.settled), OrderedDict(self.refused)


def apply(state: State, event: Message, now_ns: int) -> None:
    """Fold one fact in."""
    if now_ns - state.swept_ns >= SWEEP_NS:
        _sweep(state, now_ns)
    if isinstance(event, SubmissionRead):
        if not any(event.step in known for known in (state.in_flight, state.settled, state.refused)):
            state.held.setdefault(event.step, Held(event, now_ns))
    elif isinstance(event, StepAdmitted):
        _admitted(state, event, now_ns)
    elif isinstance(event, StepSettled):
        _settled(state, event, now_ns)
    elif isinstance(event, AttemptEnded):
        accounts.charge(state.accounts, event)
        _learn(state, event)
        if event.status is not Status.FAILED:  # else another attempt follows, or a StepClosed
            _ended(state, event.step, event.attempt)
    elif isinstance(event, StepClosed):
        _ended(state, event.step, event.attempt)
    elif isinstance(event, StepRefused):
        _refused(state, event, now_ns)
    elif isinstance(event, Tick):
        state.again = False
    elif isinstance(event, WorkflowOpened):
        accounts.open_budget(state.accounts, event, now_ns)
    elif isinstance(event, BudgetSet):
        accounts.set_budget(state.accounts, event, now_ns)
    else:
        catalogue.fold(state.fleet, event, now_ns)


def _admitted(state: State, event: StepAdmitted, now_ns: int) -> None:
    state.held.pop(event.step, None)
    reservation = event.reservation or Reservation()
    use = state.tenants.setdefault(event.tenant, Use())
    use.running += 1
    use.requests_full_ns = limits.taken(use.requests_full_ns, reservation.request_ns, now_ns)
    if use.tokens_full_ns <= now_ns:
        use.tokens_idle_ns = now_ns
    use.tokens_full_ns = limits.taken(use.tokens_full_ns, reservation.tokens_ns, now_ns)
    state.in_flight[event.step] = InFlight(event.tenant, now_ns, event.job.deadline_ns, reservation, model=event.job.model)
    state.overdue_ns = min(state.overdue_ns, event.job.deadline_ns + GRACE_NS)
    if reservation.nano_usd is not None:
        accounts.reserve(state.accounts, event, reservation.nano_usd, now_ns)
    state.again = bool(state.held)


def _refused(state: State, event: StepRefused, now_ns: int) -> None:
    """Decided here, or read: the log keeps the first answer to a submission. A process that died before its journal had a refusal may have
    been followed by one that admitted the step; of that nobody has heard, and nobody will settle it."""
    state.unheard = StepId("") if event.step in state.refused else event.step
    state.held.pop(event.step, None)
    entry = state.in_flight.get(event.step)
    if entry is not None:
        _free(state, event.step)
        accounts.drop(state.accounts, event.step)
        _give_back(state, entry, Usage())
        del state.in_flight[event.step]
    _remember(state.refused, event.step, now_ns)


def _learn(state: State, event: AttemptEnded) -> None:
    """What tokens of its model cost. From steps in flight only: a report that comes twice could else count twice."""
    entry = state.in_flight.get(event.step)
    if entry is not None and not entry.ended and entry.model in state.fleet.models:
        learn(state.prices.setdefault(entry.model, Prices()), event)


def _ended(state: State, step: StepId, attempt: int) -> None:
    """Make room for the next step of the tenant and of the workflow as soon as this one's reader can know of its end, which is before the
    settlement: an end is reported once the output has it."""
    accounts.end(state.accounts, step, attempt)
    _free(state, step)


def _free(state: State, step: StepId) -> None:
    """Its place among the tenant's steps."""
    entry = state.in_flight.get(step)
    if entry is not None and not entry.ended:
        state.in_flight[step] = msgspec.structs.replace(entry, ended=True)
        state.tenants[entry.tenant].running -= 1


def _settled(state: State, event: StepSettled, now_ns: int) -> None:
    _free(state, event.step)
    accounts.settle(state.accounts, event)
    entry = state.in_flight.pop(event.step, None)
    if entry is None:
        return
    _give_back(state, entry, event.usage)
    _remember(state.settled, event.step, now_ns)


def _give_back(state: State, entry: InFlight, usage: Usage) -> None:
    """The tokens that a step had reserved and did not use."""
    use = state.tenants.get(entry.tenant)
    if use is not None:  # without one, its buckets have been full since
        use.tokens_full_ns = limits.returned(use.tokens_full_ns, _unused_ns(entry, use, usage))


def _remember(table: dict[StepId, int], step: StepId, now_ns: int) -> None:
    table.pop(step, None)
    table[step] = now_ns
    if len(table) > SETTLED_KEPT:
        del table[next(iter(table))]


def _unused_ns(entry: InFlight, use: Use, usage: Usage) -> int:
    """What the step reserved and did not use. Nothing when the bucket was full in the meantime: then it has flowed back already."""
    reserved = entry.reservation
    if use.tokens_idle_ns > entry.accepted_ns or not reserved.tokens:
        return 0
    unused = max(0, reserved.tokens - usage.prompt_tokens - usage.output_tokens)
    return reserved.tokens_ns * unused // reserved.tokens


def _sweep(state: State, now_ns: int) -> None:
    """Drop what nobody will settle any more, and tenants of whom there is nothing to remember."""
    state.swept_ns = now_ns
    if now_ns > state.overdue_ns:
        _drop_overdue(state, now_ns)
    for tenant, use in list(state.tenants.items()):
        if not use.running and now_ns >= max(use.requests_full_ns, use.tokens_full_ns):
            del state.tenants[tenant]
    for table in (state.settled, state.refused):
        while table and now_ns - table[first := next(iter(table))] > REMEMBERED_NS:
            del table[first]
    accounts.sweep(state.accounts, now_ns)
    catalogue.expire(state.fleet, now_ns)
    for model in [name for name in state.prices if name not in state.fleet.models]:
        del state.prices[model]


def _drop_overdue(state: State, now_ns: int) -> None:
    for step in [step for step, entry in state.in_flight.items() if now_ns > entry.deadline_ns + GRACE_NS]:
        _free(state, step)
        accounts.drop(state.accounts, step)
        del state.in_flight[step]
    deadlines = (entry.deadline_ns for entry in state.in_flight.values())
    state.overdue_ns = min(deadlines, default=now_ns) + GRACE_NS
