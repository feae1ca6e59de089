"""Builds the engine that the configuration names."""

import msgspec

from services.worker.config import WorkerConfig
from services.worker.engines.base import Engine
from services.worker.engines.sglang import SglangConfig, SglangEngine
from services.worker.engines.simulated import SimulatedConfig, SimulatedEngine
from shared.contracts.fleet import Hardware
from shared.runtime.lifecycle import Options


def build(engine: str, options: Options) -> Engine:
    """`engine`: "sglang" or "simulated"; its settings are the section of that name."""
    if engine == "sglang":
        return SglangEngine(options.section(SglangConfig, "sglang"))
    return SimulatedEngine(options.section(SimulatedConfig, "simulated"))


def equipped(config: WorkerConfig, options: Options) -> WorkerConfig:
    """With the law that times a simulated engine as the kind of its hardware, where nobody has said another one."""
    if config.engine != "simulated" or config.hardware.kind != Hardware().kind:
        return config
    law = options.section(SimulatedConfig, "simulated").law
    return msgspec.structs.replace(config, hardware=msgspec.structs.replace(config.hardware, kind=law))
