"""How a machine's messages go out: stored or not as the catalogue says, under ids that let the log keep the first of each fact."""

import asyncio
from collections.abc import Callable
from typing import Any

from shared.contracts.catalogue import KIND
from shared.contracts.envelope import Message
from shared.contracts.output import Output
from shared.contracts.steps import Prompt, StepAdmitted, StepClosed, StepDispatched, StepRefused, StepRouted
from shared.runtime.bus import Bus
from shared.runtime.publisher import Ack

_NAMED_BY_STEP: dict[type[Message], Callable[[Any], str]] = {
    StepAdmitted: lambda m: f"{m.step}.admission",
    StepRefused: lambda m: f"{m.step}.admission",
    StepRouted: lambda m: f"{m.step}.routing",
    StepDispatched: lambda m: f"{m.step}.dispatch.{m.attempt}",
    StepClosed: lambda m: f"{m.step}.closed",
    Output: lambda m: f"{m.step}.end.{m.attempt}",  # all that machines say on a step's output is its end
    Prompt: lambda m: f"{m.step}.prompt",
}


def message_id(message: Message) -> str:
    """The `Nats-Msg-Id`. What may happen once to a step (or to an attempt) is named by it, so that the log keeps the first decision when a
    restarted process takes an unjournalled input again, even if it now decides otherwise. All else: the id that the driver gave."""
    named = _NAMED_BY_STEP.get(type(message))
    return named(message) if named is not None else message.id


async def send(bus: Bus, message: Message, data: bytes) -> list[asyncio.Future[Ack]]:
    """Publish one decided message, encoded as `data`; the acknowledgement to come, where it is stored. Raises BusError, StoreError."""
    kind = KIND[type(message)]
    if not kind.stored:
        await bus.publish(kind.subject(message), data)
        return []
    return [await bus.store(kind.subject(message), data, msg_id=message_id(message), trace=message.trace)]
