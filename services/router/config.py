"""`[router]`: which cells may be chosen, and when a cell is left alone."""

from typing import Annotated

import msgspec
from msgspec import Meta

from shared.core.breaker import BreakerConfig


class RouterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Times in milliseconds."""

    aliases: dict[str, str] = {}  # the service fills in those of [models]
    breaker: BreakerConfig = BreakerConfig()
    patience_ms: Annotated[int, Meta(ge=0)] = 30_000  # how long a step waits for a worker to appear before it is closed
    waiting_max: Annotated[int, Meta(ge=0)] = 10_000  # steps that wait so; more are closed at once
    worker_silent_ms: Annotated[int, Meta(ge=1)] = 60_000  # workers register every 10 s; one silent for longer does not count
    report_fresh_ms: Annotated[int, Meta(ge=1)] = 5_000  # older queue reports tell nothing
    retry_after_ms: Annotated[int, Meta(ge=0)] = 5_000  # told to callers when no worker serves the model
