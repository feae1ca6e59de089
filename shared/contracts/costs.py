"""What work has cost, and how much of it was for nothing: the answer on `legato.query.costs`."""

import msgspec

from shared.contracts.ids import ModelName, TenantId
from shared.contracts.outcomes import Problem


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Of one kind of workflow, tenant and model; `kind` is empty for steps that belong to none.

    A task is a workflow, or a step that belongs to none; it is successful when its program said so, or when the step succeeded. What was
    spent on attempts that did not bring their step to a success is wasted, by cause: `failed`, `cancelled` (or expired), `superseded`,
    and `lost` with their worker or void, which is an estimate. `unbilled` attempts still run, or could not be estimated.
    """

    kind: str
    tenant: TenantId
    model: ModelName
    tasks: int
    successful: int
    steps: int
    attempts: int
    unbilled: int
    prompt_tokens: int
    cached_tokens: int
    resumed_tokens: int
    output_tokens: int
    gpu_s: float
    usd: float
    failed_usd: float
    cancelled_usd: float
    superseded_usd: float
    failed_gpu_s: float
    cancelled_gpu_s: float
    superseded_gpu_s: float
    lost_usd: float = 0.0
    lost_gpu_s: float = 0.0


class CostReport(msgspec.Struct, frozen=True, kw_only=True):
    """Most expensive first. `problem`: why there is none."""

    costs: list[Cost]
    since_ns: int = 0
    problem: Problem | None = None
