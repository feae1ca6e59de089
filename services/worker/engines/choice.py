"""Builds the engine that the configuration names."""

from services.worker.engines.base import Engine
from services.worker.engines.sglang import SglangConfig, SglangEngine
from services.worker.engines.simulated import SimulatedConfig, SimulatedEngine
from shared.runtime.lifecycle import Options


def build(engine: str, options: Options) -> Engine:
    """`engine`: "sglang" or "simulated"; its settings are the section of that name."""
    if engine == "sglang":
        return SglangEngine(options.section(SglangConfig, "sglang"))
    return SimulatedEngine(options.section(SimulatedConfig, "simulated"))
