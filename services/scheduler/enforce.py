"""What follows from time alone: deadlines, leases, and revocations that nobody answered; and when to look again."""

from collections.abc import Iterator

from services.scheduler.book import MS, State
from services.scheduler.config import SchedulerConfig
from services.scheduler.plan import Plan
from services.scheduler.policies import retry
from services.scheduler.report import next_report_ns
from shared.contracts.ids import StepId
from shared.contracts.outcomes import Reason


def enforce(plan: Plan) -> None:
    """End or revoke what is past its time."""
    _stop_expired(plan)
    _end_unanswered(plan)
    _lose_silent(plan)


def wake_ns(state: State, config: SchedulerConfig) -> int | None:
    """When a tick is needed at the latest. Times that have passed were acted upon, or wait for something else than time."""
    now_ns, silence_ns = state.now_ns, config.lease_ms * MS // 2
    if state.due:
        return now_ns
    since_ns = state.listening_since(silence_ns)
    times = [next_report_ns(state, config)]
    if state.deadlines:
        times.append(state.deadlines[0][0])
    if state.revoked:
        times.append(max(next(iter(state.revoked.values())), since_ns) + config.revoke_grace_ms * MS)
    if state.awaiting:
        times.append(_next_match_timeout_ns(state, int(config.match_wait_ms * MS)))
    lease_end_ns = _next_lease_end_ns(state, since_ns, config.lease_ms * MS)
    if lease_end_ns <= state.heard_ns + silence_ns:  # else nothing may be concluded until somebody is heard
        times.append(lease_end_ns)
    return min((time for time in times if time > now_ns), default=None)


def _stop_expired(plan: Plan) -> None:
    deadlines = plan.state.deadlines
    if not deadlines or deadlines[0][0] > plan.now_ns:
        return
    for step_id in _due(deadlines, plan.now_ns):
        step = plan.state.steps.get(step_id)
        if step is None or step.revoked or step.closed or step.problem is not None:
            continue
        if step.queued:
            plan.close(step, retry.expired(step))
        else:
            plan.revoke(step, Reason.DEADLINE_PASSED)


def _end_unanswered(plan: Plan) -> None:
    if not plan.state.revoked:
        return
    grace_ns, since_ns = plan.config.revoke_grace_ms * MS, plan.listening_since_ns
    for step_id, revoked_ns in plan.state.revoked.items():
        if max(revoked_ns, since_ns) + grace_ns > plan.now_ns:
            break
        plan.lose(plan.state.steps[step_id])


def _lose_silent(plan: Plan) -> None:
    state, lease_ns = plan.state, plan.config.lease_ms * MS
    overdue_ns = plan.now_ns - lease_ns
    if plan.now_ns - state.heard_ns > lease_ns // 2:
        return
    for worker, heard_ns in state.heard.items():
        if heard_ns > overdue_ns or plan.listening_since_ns > overdue_ns:
            return
        for step_id in state.workers[worker].placed:
            plan.lose(state.steps[step_id])


def _due(heap: list[tuple[int, StepId]], now_ns: int) -> Iterator[StepId]:
    """What stands in the heap for `now_ns` or before, found from its top without taking anything away."""
    stack = [0]
    while stack:
        index = stack.pop()
        if index < len(heap) and heap[index][0] <= now_ns:
            yield heap[index][1]
            stack += (2 * index + 2, 2 * index + 1)


def _next_match_timeout_ns(state: State, wait_ns: int) -> int:
    """0: none to come."""
    return next((routed_ns + wait_ns for routed_ns in state.awaiting.values() if routed_ns + wait_ns > state.now_ns), 0)


def _next_lease_end_ns(state: State, since_ns: int, lease_ns: int) -> int:
    """Of whoever, though only those with steps have something to lose: to look for these costs more than a tick for nothing, and idle
    workers beat before. 0: none to come."""
    ends = (max(heard_ns, since_ns) + lease_ns for heard_ns in state.heard.values())
    return next((end_ns for end_ns in ends if end_ns > state.now_ns), 0)
