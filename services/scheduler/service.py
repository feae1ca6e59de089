"""The scheduler on the bus: one machine per cell."""

import asyncio

import msgspec

from services.scheduler.config import SchedulerConfig
from services.scheduler.decide import MACHINE
from services.scheduler.prober import Prober
from shared.contracts import subjects
from shared.contracts.envelope import Message
from shared.contracts.steps import CancelRequested, StepDispatched
from shared.contracts.streams import FLEET, PROMPTS, STEPS
from shared.core.reading import NoMessage, brief, read
from shared.drivers.inputs import Unreadable, Wiring
from shared.drivers.service import run_machine
from shared.runtime.cursor import Record, Source
from shared.runtime.lifecycle import Context

_INPUT: msgspec.json.Decoder[Message] = msgspec.json.Decoder(MACHINE.inputs)
_CANCEL = msgspec.json.Decoder(CancelRequested)
_CANCELLED = subjects.cancel("")  # type: ignore[arg-type]  # the subject's part before the step


async def run(context: Context) -> None:
    """Drive the configured cell until told to stop."""
    config = context.section(SchedulerConfig, "scheduler")
    wiring = Wiring(
        sources=[
            Source(
                stream=STEPS.name,
                subjects=(subjects.routed_to(config.cell), subjects.ended_in(config.cell), subjects.CANCEL, subjects.CLOSED),
            ),
            Source(stream=FLEET.name, subjects=(subjects.WORKERS,), latest=True),
        ],
        live=[subjects.BEATS, subjects.match(config.cell), subjects.vanished(config.cell)],
        prepare=prepare,
        handed=handed,
    )
    async with asyncio.TaskGroup() as group:
        probing = group.create_task(_probe(context, config))
        await run_machine(context, MACHINE, config, wiring, config.cell)
        probing.cancel()


async def _probe(context: Context, config: SchedulerConfig) -> None:
    """While this process drives the cell: whoever stands by has nobody to tell."""
    await context.ready.wait()
    await Prober(context.bus, config.cell).run()


def handed(message: Message) -> tuple[str, str, str] | None:
    """With a dispatch, its prompt goes from the stream to the worker."""
    if not isinstance(message, StepDispatched):
        return None
    return PROMPTS.name, subjects.prompt(message.step), subjects.handed_to(message.worker, message.step)


def prepare(record: Record) -> Message:
    """A stored message as the machine sees it. A cancellation may be as bare as `{}`: the step is that of its subject, whatever its body
    says. Raises Unreadable."""
    try:
        if record.subject.startswith(_CANCELLED):
            return msgspec.structs.replace(read(_CANCEL, record.data or b"{}"), step=subjects.step_of(record.subject))
        return brief(read(_INPUT, record.data))
    except NoMessage as error:
        raise Unreadable(str(error)) from error
