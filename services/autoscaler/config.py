"""`[autoscaler]`: bounds and goals per pool."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shared.contracts.ids import CellId

Policy = Literal["ratio", "knative", "dynamo"]


class KnativeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Of the policy "knative" (policies/knative.py), besides `utilisation`."""

    stable_window_s: Annotated[float, Meta(ge=6, le=3_600)] = 60.0
    panic_window: Annotated[float, Meta(gt=0, le=1)] = 0.1  # as a share of the stable one
    panic_threshold: Annotated[float, Meta(ge=1.1, le=10)] = 2.0  # times the workers that are ready
    max_scale_up_rate: Annotated[float, Meta(gt=1, le=1_000_000)] = 1_000.0
    max_scale_down_rate: Annotated[float, Meta(gt=1, le=1_000_000)] = 2.0


class DynamoConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Of the policy "dynamo" (policies/dynamo.py)."""

    adjustment_interval_s: Annotated[float, Meta(ge=1, le=3_600)] = 30.0
    kv_scale_up: Annotated[float, Meta(gt=0, le=1)] = 0.9  # share of KV blocks in use
    kv_scale_down: Annotated[float, Meta(ge=0, le=1)] = 0.5
    queue_scale_up: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.5  # steps waiting
    queue_scale_down: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.2


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One pool of equal workers. Times in seconds."""

    min: Annotated[int, Meta(ge=0, le=10_000)] = 1
    max: Annotated[int, Meta(ge=0, le=10_000)] = 4
    policy: Policy = "ratio"  # how many in between (docs/policies.md); the next five are of "ratio", and `utilisation` of "knative" too
    utilisation: Annotated[float, Meta(gt=0, le=1)] = 0.7  # of slots, aimed at
    queue_per_worker: Annotated[int, Meta(ge=1)] = 8  # waiting steps that one more worker is worth
    step_up_max: Annotated[int, Meta(ge=1)] = 2  # workers added at once
    scale_up_after_s: Annotated[float, Meta(ge=0)] = 5.0  # since the last change
    scale_down_after_s: Annotated[float, Meta(ge=0, le=3_600)] = 300.0  # for so long fewer must have been enough
    knative: KnativeConfig = KnativeConfig()
    dynamo: DynamoConfig = DynamoConfig()


class AutoscalerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A pool that is not named in `pools` is left as it is: scaling is switched on by naming it."""

    cell: CellId = CellId("local")
    pools: dict[str, PoolConfig] = {}  # by name, such as [autoscaler.pools.default]
    evaluate_s: Annotated[float, Meta(ge=0.1, le=60)] = 2.0
    repeat_s: Annotated[float, Meta(ge=1, le=3600)] = 60.0  # a target is told again, for an actuator that came late
