"""How fast a target may move.

Up at once, by at most `step_up_max`, and not within `scale_up_after_s` of the last change: new workers need time to be felt. Down to the
largest number that any moment of the last `scale_down_after_s` wanted, so that a lull between two bursts empties nothing (the stabilisation
window of Kubernetes' HorizontalPodAutoscaler, autoscaling/v2); not before the window has been watched in full.

Inputs: samples, the target as it is. No constants of its own.
"""

from services.autoscaler.config import PoolConfig
from services.autoscaler.policies.ratio import wanted
from services.autoscaler.state import Sample, Target

SECOND_NS = 1_000_000_000


def next_target(samples: list[Sample], target: Target, now_ns: int, config: PoolConfig) -> int:
    """The number of workers to aim at from now on, within the pool's bounds. `samples` are oldest first, at least one."""
    now_wanted = wanted(samples[-1], config)
    if now_wanted > target.workers:
        if now_ns - target.changed_ns < config.scale_up_after_s * SECOND_NS:
            return _within(target.workers, config)
        return _within(min(now_wanted, target.workers + config.step_up_max), config)
    since_ns = now_ns - int(config.scale_down_after_s * SECOND_NS)
    if samples[0].at_ns > since_ns or target.changed_ns > since_ns:
        return _within(target.workers, config)
    most = max(wanted(sample, config) for sample in samples if sample.at_ns >= since_ns)
    return _within(min(target.workers, most), config)


def _within(workers: int, config: PoolConfig) -> int:
    return max(config.min, min(config.max, workers))
