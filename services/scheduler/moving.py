"""Away from workers that leave: which steps move, and where to. They take room like any other step, so that nobody's leaving crowds those
who stay, and each survivor warms only as much as it can soon compute."""

from services.scheduler.load import Load, Room
from services.scheduler.plan import Plan
from services.scheduler.policies.filter_holding import holding
from services.scheduler.policies.filter_warming import can_warm, has_warmed
from services.scheduler.policies.leave import stays
from shared.contracts.ids import ModelName


def move(plan: Plan, model: ModelName, room: Room) -> None:
    """Dispatch again what leaving workers of the model will not finish."""
    loads = [load for load in room.listed() if has_warmed(load)]
    for worker_id in plan.state.leaving:
        worker = plan.state.workers[worker_id]
        if worker.model != model or not worker.placed:
            continue
        leaving, left_s = Load(worker), (worker.leaves_ns - plan.now_ns) / 1e9
        for step_id in worker.placed:
            step = plan.state.steps[step_id]
            settled = step_id in plan.touched or step.closed or step.revoked or step.cancelled
            if settled or stays(step, leaving, left_s):
                continue
            if not loads:
                return
            able = [load for load in loads if can_warm(step, load)]
            choice = plan.choose(step, holding(step, able), room.ready) or plan.choose(step, able, room.ready)
            if choice is not None:
                plan.dispatch(step, choice, room.ready)
                loads = [load for load in loads if has_warmed(load)]
