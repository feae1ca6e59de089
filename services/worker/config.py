"""`[worker]`: what a worker is and how it reports. The engines have sections of their own, `[sglang]` and `[simulated]`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from services.worker.notices.config import NoticesConfig
from shared.contracts.fleet import Hardware
from shared.contracts.ids import CellId


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Times in milliseconds unless the name says otherwise."""

    engine: Literal["sglang", "simulated"] = "simulated"
    cell: CellId = CellId("local")
    pool: str = "default"
    hardware: Hardware = Hardware()
    beat_ms: Annotated[int, Meta(ge=50, le=5_000)] = 500
    register_ms: Annotated[int, Meta(ge=500, le=60_000)] = 10_000
    attempts_max: Annotated[int, Meta(ge=1, le=10_000)] = 1_024  # in hands at once; more are handed back
    drain_timeout_s: Annotated[float, Meta(ge=0, le=3_600)] = 30.0  # for running attempts on SIGTERM; what remains is handed back
    output_gap_ms: Annotated[float, Meta(ge=0, le=1_000)] = (
        10.0  # between two output messages of an attempt, the first and the last excepted
    )
    restart_wait_max_s: Annotated[float, Meta(ge=0.1, le=600)] = 30.0  # between starts of an engine that keeps dying
    notices: NoticesConfig = NoticesConfig()  # who tells that this machine will be gone
