"""Which models are served, from the cards that workers publish."""

import msgspec

from shared.contracts import subjects
from shared.contracts.fleet import WorkerGone, WorkerRegistered, WorkerState
from shared.contracts.ids import ModelName, WorkerId
from shared.contracts.streams import FLEET
from shared.core.reading import NoMessage, read
from shared.runtime.bus import Bus
from shared.runtime.clock import now_ns

SILENT_MAX_S = 65.0  # workers register again every register_ms, at most every 60 s

_DECODER: msgspec.json.Decoder[WorkerRegistered | WorkerGone] = msgspec.json.Decoder(WorkerRegistered | WorkerGone)


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """One model, and who serves it. Lengths in tokens; `heard_s`: seconds since its latest worker registered."""

    name: ModelName
    context_tokens: int
    chat: bool
    tool_parser: str = ""  # for `legato.parse`: how the model writes calls; empty: nobody has said
    reasoning_parser: str = ""  # how it writes what it thinks; empty: it does not
    engines: list[str]
    workers: list[WorkerId]  # ready ones
    not_ready: list[WorkerId]
    slots: int
    heard_s: float


async def read_served(bus: Bus) -> list[Served]:
    """All models with a worker that was heard of in the last minute, by name."""
    now = now_ns()
    by_model: dict[ModelName, list[WorkerRegistered]] = {}
    for card in await read_workers(bus):
        by_model.setdefault(card.card.name, []).append(card)
    return [_served(name, by_model[name], now) for name in sorted(by_model)]


async def read_workers(bus: Bus) -> list[WorkerRegistered]:
    """All workers that were heard of in the last minute, by name."""
    cards, now = await _cards(bus), now_ns()
    known = [card for _, card in sorted(cards.items()) if isinstance(card, WorkerRegistered)]
    return [card for card in known if now - card.time_ns < SILENT_MAX_S * 1e9]


async def _cards(bus: Bus) -> dict[WorkerId, WorkerRegistered | WorkerGone]:
    """The newest of each worker. Only one is kept, and a newer one may replace it at any moment: so one by one, not up to what was last."""
    cards: dict[WorkerId, WorkerRegistered | WorkerGone] = {}
    seq = 0
    while (record := await bus.next_after(FLEET.name, subjects.WORKERS, seq)) is not None:
        seq = record.seq
        try:
            card = read(_DECODER, record.data)
        except NoMessage:  # anybody may publish there; the services park it
            continue
        cards[card.worker] = card
    return cards


def _served(name: ModelName, cards: list[WorkerRegistered], now: int) -> Served:
    ready = [card for card in cards if card.state is WorkerState.READY]
    return Served(
        name=name,
        context_tokens=max(card.card.context_tokens for card in cards),
        chat=any(card.card.chat_template for card in cards),
        tool_parser=cards[-1].card.tool_parser,
        reasoning_parser=cards[-1].card.reasoning_parser,
        engines=sorted({card.engine for card in cards}),
        workers=[card.worker for card in ready],
        not_ready=[card.worker for card in cards if card.state is not WorkerState.READY],
        slots=sum(card.capacity.slots for card in ready),
        heard_s=(now - max(card.time_ns for card in cards)) / 1e9,
    )
