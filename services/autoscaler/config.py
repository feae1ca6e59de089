"""`[autoscaler]`: bounds and goals per pool."""

from typing import Annotated

import msgspec
from msgspec import Meta

from shared.contracts.ids import CellId


class PoolConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One pool of equal workers. Times in seconds."""

    min: Annotated[int, Meta(ge=0, le=10_000)] = 1
    max: Annotated[int, Meta(ge=0, le=10_000)] = 4
    utilisation: Annotated[float, Meta(gt=0, le=1)] = 0.7  # of slots, aimed at
    queue_per_worker: Annotated[int, Meta(ge=1)] = 8  # waiting steps that one more worker is worth
    step_up_max: Annotated[int, Meta(ge=1)] = 2  # workers added at once
    scale_up_after_s: Annotated[float, Meta(ge=0)] = 5.0  # since the last change
    scale_down_after_s: Annotated[float, Meta(ge=0, le=3_600)] = 300.0  # for so long fewer must have been enough


class AutoscalerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A pool that is not named in `pools` is left as it is: scaling is switched on by naming it."""

    cell: CellId = CellId("local")
    pools: dict[str, PoolConfig] = {}  # by name, such as [autoscaler.pools.default]
    evaluate_s: Annotated[float, Meta(ge=0.1, le=60)] = 2.0
    repeat_s: Annotated[float, Meta(ge=1, le=3600)] = 60.0  # a target is told again, for an actuator that came late
