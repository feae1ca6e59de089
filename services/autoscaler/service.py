"""Wiring of the autoscaler."""

from services.autoscaler.config import AutoscalerConfig
from services.autoscaler.decide import MACHINE
from shared.contracts import subjects
from shared.contracts.streams import FLEET
from shared.drivers.inputs import Wiring
from shared.drivers.service import run_machine
from shared.runtime.cursor import Source
from shared.runtime.lifecycle import Context


async def run(context: Context) -> None:
    """Serve until told to stop."""
    config = context.section(AutoscalerConfig, "autoscaler")
    wiring = Wiring(
        sources=[Source(stream=FLEET.name, subjects=(subjects.WORKERS,), latest=True)],
        live=[subjects.BEATS, subjects.queue(config.cell)],
    )
    await run_machine(context, MACHINE, config, wiring, config.cell)
