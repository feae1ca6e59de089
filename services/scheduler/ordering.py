"""Who goes first, as configured: what an order must know of the past, and where a step stands in its queue (policies/order*.py).

The order's name is part of the state, because facts are folded without any configuration: as it was at the start, then as the last report
(QueueReported) said. So a scheduler that is started anew with another order takes it over with its first report. The past is kept only
for the order that needs it, and bounded.
"""

import heapq
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import msgspec

from services.scheduler.policies import order_atlas, order_edf, order_fcfs, order_plas, order_program_fcfs, order_vtc
from services.scheduler.policies.order import QueueKey, queue_key
from services.scheduler.policies.order_plas import Program
from services.scheduler.policies.order_vtc import Tenant
from shared.contracts.ids import StepId, TenantId, WorkflowId
from shared.contracts.steps import Job

DEFAULT = "priority_fcfs"
ATTAINED = ("plas", "atlas")
PROGRAMS_MAX = 10_000  # workflows whose service is known; who was not heard of for longest is forgotten
TENANTS_MAX = 10_000  # likewise, of those that have nothing waiting

Place = tuple[int, int]


class Ledger(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The past. `programs`, `tenants`: who was not heard of for longest first. `numbers`: tenants numbered. `left`: the tenant that was the
    last to leave the queue."""

    order: str = DEFAULT
    programs: dict[WorkflowId, Program] = {}
    tenants: dict[TenantId, Tenant] = {}
    numbers: int = 0
    left: TenantId = TenantId("")

    def __post_init__(self) -> None:
        self.programs = OrderedDict(self.programs)  # which finds its first at once; a dict looks past all that are gone


class Ordered(Protocol):
    """What an order reads and writes of a step. `place`: in its queue; None: by priority. `attained_ns`: of its program, when it came.
    `waits_ns`: since when."""

    id: StepId
    job: Job
    workflow: WorkflowId
    tenant: TenantId
    arrival: int
    attempt: int
    produced: int
    place: Place | None
    attained_ns: int
    waits_ns: int


def key_of(step: Ordered) -> QueueKey:
    """Of a step that waits."""
    return queue_key(step.job.priority, step.arrival, step.id) if step.place is None else (*step.place, step.id)


# --- what is folded --------------------------------------------------------------------------------------------------------------


def join(ledger: Ledger, step: Ordered, now_ns: int) -> None:
    """The step is about to wait: give it its place."""
    if ledger.order in ATTAINED:
        if not step.attempt:
            step.attained_ns = _program(ledger, step).service_ns
        step.waits_ns = now_ns
        step.place = (order_plas.level(step.attained_ns), step.arrival)
    elif ledger.order == "vtc":
        step.place = (_join_tenant(ledger, step.tenant), step.arrival)
    elif ledger.order == "edf":
        step.place = order_edf.place(step.job.deadline_ns, step.arrival)
    elif ledger.order == "program_fcfs":
        program = _program(ledger, step)
        program.first = program.first or step.arrival
        step.place = order_program_fcfs.place(program.first, step.arrival)
    elif ledger.order == "fcfs":
        step.place = order_fcfs.place(step.arrival)
    else:
        step.place = None


def leave(ledger: Ledger, step: Ordered, now_ns: int) -> None:
    """The step waits no more."""
    if ledger.order in ATTAINED:
        _program(ledger, step).waited_ns += now_ns - step.waits_ns
    elif ledger.order == "vtc":
        tenant = ledger.tenants[step.tenant]
        tenant.waiting -= 1
        if not tenant.waiting:
            ledger.left = step.tenant


def dispatched(ledger: Ledger, step: Ordered, attempt: int) -> None:
    """The step was given to a worker. What is computed again after a loss is nobody's account."""
    if ledger.order == "vtc" and attempt == 1:
        _charge(ledger, step.tenant, order_vtc.input_cost(step.job.prompt_tokens))


def produced(ledger: Ledger, step: Ordered, output_tokens: int) -> None:
    """The step is said to have so many output tokens in all."""
    if ledger.order == "vtc" and output_tokens > step.produced:
        _charge(ledger, step.tenant, order_vtc.output_cost(output_tokens - step.produced))


def completed(ledger: Ledger, step: Ordered, run_ns: int) -> None:
    """The step's last attempt has run for so long to the step's end."""
    if ledger.order == "plas":
        order_plas.completed(_program(ledger, step), run_ns)
    elif ledger.order == "atlas":
        order_atlas.completed(_program(ledger, step), step.attained_ns, run_ns)


def starves(ledger: Ledger, step: Ordered, now_ns: int) -> bool:
    """Whether a step that waits should be promoted."""
    return order_plas.starves(ledger.programs.get(step.workflow) or Program(), now_ns - step.waits_ns)


def _program(ledger: Ledger, step: Ordered) -> Program:
    """The step's program; one that nobody keeps, where it has none."""
    if not step.workflow:
        return Program()
    program = ledger.programs.pop(step.workflow, None) or Program()
    ledger.programs[step.workflow] = program
    if len(ledger.programs) > PROGRAMS_MAX:
        del ledger.programs[next(iter(ledger.programs))]
    return program


def _join_tenant(ledger: Ledger, name: TenantId) -> int:
    """One more step of the tenant waits. Its number."""
    tenant = ledger.tenants.pop(name, None)
    if tenant is None:
        ledger.numbers += 1
        tenant = Tenant(ledger.numbers)
    if not tenant.waiting:
        others = [each.counter for each in ledger.tenants.values() if each.waiting]
        left = ledger.tenants.get(ledger.left)
        tenant.counter = order_vtc.lifted(tenant.counter, others, left.counter if left else 0)
    tenant.waiting += 1
    ledger.tenants[name] = tenant
    if len(ledger.tenants) > TENANTS_MAX:
        idle = next((each for each, known in ledger.tenants.items() if not known.waiting), None)
        if idle is not None:
            del ledger.tenants[idle]
    return tenant.number


def _charge(ledger: Ledger, name: TenantId, cost: int) -> None:
    tenant = ledger.tenants.get(name)
    if tenant is not None:
        tenant.counter += cost


# --- what is decided -------------------------------------------------------------------------------------------------------------


def first_first(ledger: Ledger, keys: list[QueueKey], steps: Mapping[StepId, Ordered], sent: Callable[[StepId], bool]) -> Iterator[StepId]:
    """Those that wait, who goes first first. `sent`: whether the one that was given out just now is dispatched by this decision."""
    return _fairly(ledger, keys, steps, sent) if ledger.order == "vtc" else (key[2] for key in keys)


def last_first(ledger: Ledger, keys: list[QueueKey], steps: Mapping[StepId, Ordered]) -> Iterator[StepId]:
    """Those that wait, who goes last first: whom to turn away."""
    if ledger.order != "vtc":
        return (key[2] for key in reversed(keys))
    tenants = sorted(_by_tenant(ledger, keys, steps), reverse=True)
    return (keys[index][2] for _, _, begin, end in tenants for index in range(end - 1, begin - 1, -1))


def _fairly(ledger: Ledger, keys: list[QueueKey], steps: Mapping[StepId, Ordered], sent: Callable[[StepId], bool]) -> Iterator[StepId]:
    """Always of the tenant whose counter is least, with what this decision has dispatched."""
    turns = list(_by_tenant(ledger, keys, steps))
    heapq.heapify(turns)
    while turns:
        counter, number, index, end = turns[0]
        step = keys[index][2]
        yield step
        if sent(step) and not steps[step].attempt:
            counter += order_vtc.input_cost(steps[step].job.prompt_tokens)
        if index + 1 < end:
            heapq.heapreplace(turns, (counter, number, index + 1, end))
        else:
            heapq.heappop(turns)


def _by_tenant(ledger: Ledger, keys: list[QueueKey], steps: Mapping[StepId, Ordered]) -> Iterator[tuple[int, int, int, int]]:
    """Of each tenant: counter, number, where its steps begin and end."""
    begin = 0
    while begin < len(keys):
        number = keys[begin][0]
        end = bisect_left(keys, number + 1, begin, key=lambda key: key[0])
        yield ledger.tenants[steps[keys[begin][2]].tenant].counter, number, begin, end
        begin = end
