"""`[workflow]`: how the record is written, and when something should have been heard of a step."""

from typing import Annotated

import msgspec
from msgspec import Meta

Positive = Annotated[int, Meta(ge=1)]


class WorkflowConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Times in milliseconds, where the name says nothing else."""

    batch_max: Positive = 512  # events written in one transaction
    batch_bytes_max: Positive = 32 * 2**20  # of messages; one that is larger goes alone
    batch_pause_ms: float = 20.0  # between two transactions: more events share a commit, an outcome is announced so much later
    sweep_ms: Positive = 2_000  # between two looks for steps that stalled
    sweep_max: Positive = 256  # steps per look
    stall_ms: Positive = 10_000  # an admitted step should have been routed by then; doubles with every re-drive
    redrives_max: int = 5
    grace_ms: Positive = 5_000  # after its deadline, until a step that nobody ended is closed here
    prompts_sweep_ms: Positive = 5_000  # between two looks for prompts that no open step can need
    prompts_kept_s: Annotated[float, Meta(ge=0)] = (
        300.0  # a prompt that nobody needs; below 150 an admission's crash can cost one. 0: a day
    )
    kept_days: Annotated[float, Meta(ge=0, le=36_500)] = 30.0  # steps and workflows, behind their end; what they cost stays. 0: for ever
    deadline_default_ms: Positive = 3_600_000  # of a step that came without one: nothing waits for ever
