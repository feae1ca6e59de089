"""What the rest of the fleet hears of the queues."""

from services.scheduler.book import MS, State
from services.scheduler.config import SchedulerConfig
from services.scheduler.plan import Plan
from services.scheduler.policies.drain import drain_ms
from shared.contracts.fleet import QueueReported
from shared.contracts.ids import ModelName


def report(plan: Plan) -> None:
    """Every `report_ms`, each model's load, in order of their names."""
    state = plan.state
    if plan.now_ns - state.reported_ns >= plan.config.report_ms * MS:
        models = dict.fromkeys(plan.fleet.rooms) | dict.fromkeys(state.queues)
        plan.outputs += [queue_report(plan, model) for model in sorted(models)]


def next_report_ns(state: State, config: SchedulerConfig) -> int:
    """0: there is nothing to report."""
    return state.reported_ns + config.report_ms * MS if state.workers or state.queues else 0


def queue_report(plan: Plan, model: ModelName) -> QueueReported:
    """One model's load, before what this input may dispatch."""
    state = plan.state
    room = plan.room(model)
    queue = state.queues.get(model)
    depth = len(queue.keys) if queue else 0
    return QueueReported(
        cell=state.cell,
        model=model,
        depth=depth,
        waiting_tokens=queue.tokens if queue else 0,
        running=room.running,
        slots=room.slots,
        workers=room.ready,
        order=plan.config.order,
        drain_ms=drain_ms(depth, room.slots, room.busy, state.service_ms.get(model, 0.0)),
    )
