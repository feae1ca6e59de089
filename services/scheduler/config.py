"""`[scheduler]`: one cell's queue, leases and retries."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shared.contracts.ids import CellId

MATCH_WAIT_MAX_MS = 50

Placement = Literal["least_finish", "round_robin", "random", "least_loaded", "smg_cache_aware", "dynamo_kv_cost", "llm_d"]
Order = Literal["priority_fcfs", "fcfs", "program_fcfs", "edf", "plas", "atlas", "vtc"]
Queueing = Literal["central", "worker"]
Weight = Annotated[float, Meta(ge=0, le=1_000)]


class SmgConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Of the placement "smg_cache_aware" (policies/place_smg.py)."""

    cache_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.3  # share of the prompt that must be cached
    balance_abs_threshold: Annotated[int, Meta(ge=0, le=100_000)] = 64  # steps
    balance_rel_threshold: Annotated[float, Meta(ge=1, le=1_000)] = 1.5


class DynamoConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Of the placement "dynamo_kv_cost" (policies/place_dynamo.py)."""

    overlap_score_weight: Weight = 1.0


class LlmDConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Of the placement "llm_d" (policies/place_llm_d.py)."""

    prefix_weight: Weight = 3.0
    kv_weight: Weight = 2.0
    queue_weight: Weight = 2.0


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Times in milliseconds. A lease must outlast several heartbeats: `lease_ms` >= 4 x the workers' `beat_ms`."""

    cell: CellId = CellId("local")
    queue_max: Annotated[int, Meta(ge=1, le=100_000)] = 4_096  # waiting steps per model; more are shed
    match_wait_ms: Annotated[float, Meta(ge=0, le=MATCH_WAIT_MAX_MS)] = 3.0  # for the cached prefix of a new step
    dispatch_grace_ms: Annotated[int, Meta(ge=100, le=60_000)] = 1_000  # until the worker's beats must list an attempt
    lease_ms: Annotated[int, Meta(ge=500, le=600_000)] = 3_000  # a worker silent for longer has lost its attempts
    revoke_grace_ms: Annotated[int, Meta(ge=100, le=60_000)] = 3_000  # until a cancelled or expired attempt must have ended
    preempt_gap: Annotated[int, Meta(ge=0, le=200)] = 10  # a step that waits stops one whose priority is lower by so much; 0: never
    attempts_max: Annotated[int, Meta(ge=1, le=100)] = 4
    report_ms: Annotated[int, Meta(ge=50, le=60_000)] = 500
    placement: Placement = "least_finish"  # which worker gets a step (docs/policies.md)
    order: Order = "priority_fcfs"  # which step goes first, likewise
    queueing: Queueing = "central"  # where steps wait for room, likewise
    worker_queue_max: Annotated[int, Meta(ge=1, le=100_000)] = 64  # that wait in each engine, at "worker"; no more than it takes
    smg: SmgConfig = SmgConfig()
    dynamo: DynamoConfig = DynamoConfig()
    llm_d: LlmDConfig = LlmDConfig()
