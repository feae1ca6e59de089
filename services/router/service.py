"""Wiring of the router: admitted steps in, routed steps out."""

import msgspec

from services.router.config import RouterConfig
from services.router.decide import MACHINE
from shared.contracts import subjects
from shared.contracts.catalogue import KIND
from shared.contracts.envelope import Message
from shared.contracts.steps import AttemptEnded
from shared.contracts.streams import FLEET, STEPS
from shared.core.catalogue import ModelsConfig
from shared.core.reading import NoMessage, brief, read
from shared.drivers.inputs import Unreadable, Wiring
from shared.drivers.service import run_machine
from shared.runtime.cursor import Record, Source
from shared.runtime.lifecycle import Context

PARTITION = "main"

_INPUT: msgspec.json.Decoder[Message] = msgspec.json.Decoder(MACHINE.inputs)


async def run(context: Context) -> None:
    """Route until told to stop."""
    config = context.section(RouterConfig, "router")
    models = context.section(ModelsConfig, "models")
    config = msgspec.structs.replace(config, aliases={**models.aliases, **config.aliases})
    wiring = Wiring(
        sources=[
            Source(stream=STEPS.name, subjects=(subjects.ADMITTED, KIND[AttemptEnded].pattern)),
            Source(stream=FLEET.name, subjects=(subjects.WORKERS,), latest=True),
        ],
        live=[subjects.QUEUES],
        prepare=prepare,
    )
    await run_machine(context, MACHINE, config, wiring, PARTITION)


def prepare(record: Record) -> Message:
    """A stored message as the machine sees it. Raises Unreadable."""
    try:
        return brief(read(_INPUT, record.data))
    except NoMessage as error:
        raise Unreadable(str(error)) from error
