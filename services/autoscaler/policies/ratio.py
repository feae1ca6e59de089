"""How many workers a pool should have now, from its use and its queue.

    wanted = ceil(workers * used / (utilisation * slots)) + ceil(depth / queue_per_worker)

The first term is the ratio rule of Kubernetes' HorizontalPodAutoscaler (documentation of autoscaling/v2, "Algorithm details"), with the
same tolerance of a tenth around the goal, so that noise changes nothing. The second gives a queue that already waits its own workers, since
use cannot grow above one. The result is within [min, max].

Inputs: workers that are ready, their slots and used slots, queue depth. Constants: TOLERANCE.
"""

from services.autoscaler.config import PoolConfig
from services.autoscaler.state import Sample

TOLERANCE = 0.1


def wanted(load: Sample, config: PoolConfig) -> int:
    """Workers, within the pool's bounds."""
    number = load.workers
    if load.slots:
        ratio = load.slots_used / (config.utilisation * load.slots)
        if abs(ratio - 1) > TOLERANCE:
            number = _ceil(load.workers * ratio)
    number += _ceil(load.depth / config.queue_per_worker)
    return max(config.min, min(config.max, number))


def _ceil(value: float) -> int:
    return -int(-value // 1)
