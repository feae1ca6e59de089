"""Which entry of a journal an event came from."""

import re

from shared.contracts import subjects
from shared.contracts.envelope import Message
from shared.contracts.ids import StepId, is_subject_token
from shared.contracts.steps import StepDispatched
from shared.contracts.streams import STEPS
from shared.core.errors import LegatoError
from shared.drivers.journal import output_decoder
from shared.runtime.bus import Bus

MESSAGE_ID = re.compile(r"([a-z_]+)\.([A-Za-z0-9_-]+)\.(\d+)\.(\d+)(?:\.\d+)?", re.ASCII)
ENTRY = re.compile(r"[0-9]{1,18}")


async def find_entry(bus: Bus, service: str, partition: str, event: str) -> tuple[int, int]:
    """(entry number, epoch or 0) of an entry number, a message id, or a step id. Raises LegatoError."""
    if ENTRY.fullmatch(event):
        return int(event), 0
    named = MESSAGE_ID.fullmatch(event)
    if named is None and is_subject_token(event):
        event = await _decision_on(bus, f"{service}.{partition}.", StepId(event))
        named = MESSAGE_ID.fullmatch(event)
    if named is None:
        raise LegatoError(f"{event!r} is no entry number, message id or step id")
    if named[1] != service:
        raise LegatoError(f"{event} was decided by {named[1]}: legato replay {named[1]} --at {event}")
    if named[2] != partition:
        raise LegatoError(f"{event} was decided in partition {named[2]}: add --partition {named[2]}")
    return int(named[4]), int(named[3])


async def _decision_on(bus: Bus, prefix: str, step: StepId) -> str:
    """The id of the last dispatch of a step, or of the last other thing that was decided on it."""
    decoder = output_decoder()
    decided: list[Message] = []
    async for record in bus.history(STEPS.name, subjects.step_history(step)):
        message: Message = decoder.decode(record.data)
        if message.id.startswith(prefix):
            decided.append(message)
    if not decided:
        raise LegatoError(f"{prefix[:-1]} has decided nothing about a step {step!r} that the log still has; `legato timeline {step}`")
    dispatched = [message for message in decided if isinstance(message, StepDispatched)]
    return (dispatched or decided)[-1].id
