"""How many workers each pool should have.

Rules:
- a pool is judged every `evaluate_s`, by the policy that is configured for it. By default policies/ratio.py says how many it needs now, and
  policies/stabilise.py how fast the target may move; policies/knative.py and policies/dynamo.py say both;
- a pool that was never told anything is first told its present size, within its bounds; so one without workers is told its minimum,
  but only after `EMPTY_AFTER_NS`: they may still be starting;
- a target that has not changed is told again every `repeat_s`, for an actuator that came late.
Invariants: every target lies within [min, max]; without news of any worker no pool grows beyond its minimum or its last target.
"""

from collections.abc import Callable

from services.autoscaler.config import AutoscalerConfig, PoolConfig
from services.autoscaler.policies import dynamo, knative, stabilise
from services.autoscaler.policies.ratio import wanted
from services.autoscaler.state import Sample, State, Target, apply
from shared.contracts.envelope import Message, Tick
from shared.contracts.fleet import QueueReported, ScaleTargetSet, WorkerBeat, WorkerGone, WorkerRegistered
from shared.core.machine import Machine

SECOND_NS = 1_000_000_000
EMPTY_AFTER_NS = 60 * SECOND_NS  # a worker with a large model takes that long to be heard of

_POLICIES: dict[str, Callable[[list[Sample], Target, int, PoolConfig], int]] = {
    "ratio": stabilise.next_target,
    "knative": knative.next_target,
    "dynamo": dynamo.next_target,
}


def decide(state: State, event: Message, now_ns: int, config: AutoscalerConfig) -> list[Message]:
    """The targets to be told, on a tick; the tick's sample was taken by `apply`."""
    if not isinstance(event, Tick):
        return []
    return [message for pool in sorted(config.pools) for message in _judge(state, pool, now_ns, config)]


def wake_ns(state: State, config: AutoscalerConfig) -> int:
    """The next time to judge."""
    return state.judged_ns + int(config.evaluate_s * SECOND_NS)


def _judge(state: State, pool: str, now_ns: int, config: AutoscalerConfig) -> list[Message]:
    settings, target = config.pools[pool], state.targets.get(pool)
    samples = state.samples.get(pool, [])
    if not samples:
        if now_ns - state.began_ns < EMPTY_AFTER_NS:
            return []
        samples = [Sample(now_ns, 0, 0, 0, 0, 0)]
    now = samples[-1]
    if target is None:
        workers = max(settings.min, min(settings.max, now.workers + now.coming))
    else:
        workers = _POLICIES[settings.policy](samples, target, now_ns, settings)
        if workers == target.workers and now_ns - target.told_ns < config.repeat_s * SECOND_NS:
            return []
    says = f"{wanted(now, settings)} wanted now" if settings.policy == "ratio" else f"{workers} by {settings.policy}"
    why = f"{now.slots_used} of {now.slots} slots used on {now.workers} workers, {now.depth} steps wait; {says}"
    return [ScaleTargetSet(cell=config.cell, pool=pool, workers=workers, why=why)]


MACHINE = Machine(
    name="autoscaler",
    state=State,
    config=AutoscalerConfig,
    inputs=QueueReported | WorkerRegistered | WorkerBeat | WorkerGone | Tick,
    start=lambda config: State(cell=config.cell),
    apply=apply,
    decide=decide,
    wake_ns=wake_ns,
)
