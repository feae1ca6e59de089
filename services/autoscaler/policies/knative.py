"""Pool policy "knative": Knative's pod autoscaler (KPA).

Rule: workers = ceil(mean concurrency of the stable window / target per worker). Concurrency is what runs and what waits; the target is
`utilisation` of a worker's slots. Within [floor(ready / max_scale_down_rate), ceil(ready x max_scale_up_rate)], where at least one counts
as ready.
Panic: begins when the panic window alone would want `panic_threshold` times the ready workers or more, and lasts until that has
not been so for a stable window. Meanwhile the larger of both windows counts, and nothing is taken away. So it is, too, until the first
stable window is full, where there is more than one worker.
Inputs: samples of the pool, the target as it is.
Constants: configuration; 60 s, a tenth of it, 200 %, 1,000 and 2 are Knative's defaults, and so is the utilisation of 0.7.
Source: Knative Serving, "Additional autoscaling configuration for Knative Pod Autoscaler" and pkg/autoscaler/scaling/autoscaler.go (1.x,
2024-2025).
Where it differs: a sample every `evaluate_s` in place of one a second. No scaling to zero beyond `min`, no activator and no burst
capacity. In panic the target as it is, is kept, also where it was set before.
"""

from services.autoscaler.config import PoolConfig
from services.autoscaler.state import Sample, Target

SECOND_NS = 1_000_000_000


def next_target(samples: list[Sample], target: Target, now_ns: int, config: PoolConfig) -> int:
    """The number of workers to aim at from now on, within the pool's bounds. `samples` are oldest first, at least one."""
    stable_ns = int(config.knative.stable_window_s * SECOND_NS)
    latest = _since(samples, now_ns - stable_ns - _panic_ns(config)) or samples[-1:]
    target_each = config.utilisation * next((sample.slots / sample.workers for sample in reversed(samples) if sample.slots), 1.0)
    workers = desired(latest, now_ns, stable_ns, target_each, config)
    filling = samples[0].at_ns > now_ns - stable_ns and target.workers > 1
    if filling or _panics(latest, now_ns - stable_ns, target_each, config):
        workers = max(workers, desired(latest, now_ns, _panic_ns(config), target_each, config), target.workers)
    return max(config.min, min(config.max, workers))


def desired(samples: list[Sample], now_ns: int, window_ns: int, target_each: float, config: PoolConfig) -> int:
    """Workers by the mean concurrency of a window that ends now, within what may be added or taken away. `target_each`: steps."""
    ready, rates = max(1, samples[-1].workers), config.knative
    most, least = _ceil(ready * rates.max_scale_up_rate), int(ready / rates.max_scale_down_rate)
    return min(most, max(least, _ceil(concurrency(samples, now_ns, window_ns) / target_each)))


def concurrency(samples: list[Sample], now_ns: int, window_ns: int) -> float:
    """Steps that run or wait, on average over the window; of the last sample where it has none."""
    within = _since(samples, now_ns - window_ns) or samples[-1:]
    return sum(sample.slots_used + sample.depth for sample in within) / len(within)


def _panics(samples: list[Sample], since_ns: int, target_each: float, config: PoolConfig) -> bool:
    """Whether at any time since then the panic window wanted too many."""
    for index, sample in enumerate(samples):
        if sample.at_ns > since_ns:
            needed = _ceil(concurrency(samples[: index + 1], sample.at_ns, _panic_ns(config)) / target_each)
            if needed / max(1, sample.workers) >= config.knative.panic_threshold:
                return True
    return False


def _since(samples: list[Sample], since_ns: int) -> list[Sample]:
    """Those behind that time, oldest first."""
    first = len(samples)
    while first and samples[first - 1].at_ns > since_ns:
        first -= 1
    return samples[first:]


def _panic_ns(config: PoolConfig) -> int:
    return int(config.knative.stable_window_s * config.knative.panic_window * SECOND_NS)


def _ceil(value: float) -> int:
    return -int(-value // 1)
