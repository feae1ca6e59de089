"""Pool policy "dynamo": the load-based planner of NVIDIA Dynamo.

Rule: once in each `adjustment_interval_s`, by the means of that interval, and by one worker at most:
    add one      where KV blocks in use exceed `kv_scale_up`, or waiting steps exceed `queue_scale_up` and would, if they went on as in this
                 interval, still do so after QUEUE_INTERVALS more
    take one     where blocks in use are below `kv_scale_down` and waiting steps below `queue_scale_down`; not within GRACE_INTERVALS of an
                 addition
Nothing where workers are on their way, or their number has changed in the interval.
Inputs: samples of the pool: workers, blocks and blocks in use, waiting steps; the target and when it was last raised.
Constants: configuration; 30 s, 0.9 and 0.5 of the blocks, 0.5 and 0.2 steps are the planner's defaults. GRACE_INTERVALS and
QUEUE_INTERVALS, 3 each, are its constants.
Source: NVIDIA Dynamo, "Load-based Planner" (docs/architecture/load_planner.md) and examples/llm/components/planner.py, 0.2 to 0.3, 2025.
Where it differs: the planner scales prefill workers by the queue and decode workers by KV blocks. Workers here do both, so that either adds
and only both take away. Steps that wait in an engine do not count as blocks.
"""

from services.autoscaler.config import PoolConfig
from services.autoscaler.state import Sample, Target

SECOND_NS = 1_000_000_000
GRACE_INTERVALS = 3
QUEUE_INTERVALS = 3


def next_target(samples: list[Sample], target: Target, now_ns: int, config: PoolConfig) -> int:
    """The number of workers to aim at from now on, within the pool's bounds. `samples` are oldest first, at least one."""
    interval_ns = int(config.dynamo.adjustment_interval_s * SECOND_NS)
    begins = len(samples) > 1 and samples[-2].at_ns // interval_ns != now_ns // interval_ns
    return max(config.min, min(config.max, target.workers + (_change(samples, target, now_ns, config) if begins else 0)))


def _change(samples: list[Sample], target: Target, now_ns: int, config: PoolConfig) -> int:
    """By so many, at the end of an interval."""
    limits = config.dynamo
    interval_ns = int(limits.adjustment_interval_s * SECOND_NS)
    within = [sample for sample in samples if sample.at_ns > now_ns - interval_ns]
    if within[-1].coming or any(sample.workers != within[-1].workers for sample in within):
        return 0
    kv, queue = kv_load(within), sum(sample.depth for sample in within) / len(within)
    ahead = within[-1].depth + QUEUE_INTERVALS * (within[-1].depth - within[0].depth)
    if kv > limits.kv_scale_up or (queue > limits.queue_scale_up and ahead > limits.queue_scale_up):
        return 1
    grace = target.grown_ns and now_ns - target.grown_ns < GRACE_INTERVALS * interval_ns
    return -1 if kv < limits.kv_scale_down and queue < limits.queue_scale_down and not grace else 0


def kv_load(samples: list[Sample]) -> float:
    """The mean share of the pool's KV blocks that are in use; 0 where it has none."""
    return sum(sample.blocks_used for sample in samples) / max(1, sum(sample.blocks for sample in samples))
