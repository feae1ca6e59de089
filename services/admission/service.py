"""Wiring of the admission: submissions in, admissions and refusals out."""

import asyncio
import dataclasses
import logging

import nats.errors

from services.admission.cards import Cards
from services.admission.config import AdmissionConfig
from services.admission.decide import MACHINE
from services.admission.intake import NEWS, Intake, watched
from services.admission.tokenising import Tokenisers
from shared.contracts import subjects
from shared.contracts.catalogue import KIND
from shared.contracts.streams import FLEET, MODELS_BUCKET, STEPS
from shared.core.catalogue import ModelsConfig
from shared.core.errors import LegatoError
from shared.drivers.inputs import Wiring
from shared.drivers.service import run_machine
from shared.runtime.bus import Bus, BusError
from shared.runtime.conversations import Conversations
from shared.runtime.cursor import Source
from shared.runtime.lifecycle import Context

log = logging.getLogger(__name__)

PARTITION = "main"
FETCH_TRIES = 3
FETCH_WAIT_S = 1.0


async def run(context: Context) -> None:
    """Admit until told to stop."""
    config = context.section(AdmissionConfig, "admission")
    aliases = context.section(ModelsConfig, "models").aliases
    cards = Cards(context.bus)
    tokenisers = Tokenisers(lambda name: _fetch(context.bus, name), config.tokenisers_max, config.tokenising_threads)
    conversations = Conversations(context.bus, config.conversations_bytes_max)
    intake = Intake(config, aliases, cards, tokenisers, conversations)
    machine = dataclasses.replace(MACHINE, decide=watched(MACHINE.decide, intake.prompts))
    wiring = Wiring(
        sources=[
            Source(stream=STEPS.name, subjects=(subjects.SUBMIT, *(KIND[kind].pattern for kind in NEWS))),
            Source(stream=FLEET.name, subjects=(subjects.WORKERS,), latest=True),
        ],
        live=[subjects.QUEUES],
        prepare=intake.prepare,
        attach=intake.prompts.attach,
    )
    await cards.load()
    await conversations.follow()
    try:
        async with asyncio.TaskGroup() as group:
            following = group.create_task(cards.follow())
            await run_machine(context, machine, config, wiring, PARTITION)
            following.cancel()
    finally:
        tokenisers.close()


async def _fetch(bus: Bus, name: str) -> bytes | None:
    """A tokenizer's file. Raises BusError when NATS stays away: the service then starts afresh, and no submission is lost."""
    for left in reversed(range(FETCH_TRIES)):
        try:
            return await bus.get_object(MODELS_BUCKET, name)
        except (nats.errors.Error, TimeoutError, LegatoError) as error:
            if not left:
                raise BusError(f"cannot fetch tokenizer {name}: {str(error) or 'no answer'}") from error
            log.warning("tokenizer not fetched yet", extra={"tokenizer": name, "error": str(error)})
            await asyncio.sleep(FETCH_WAIT_S)
    return None
