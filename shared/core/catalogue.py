"""What the fleet says of itself: which models are served, in which cells, by which workers, under which load.

Folded from WorkerRegistered, WorkerGone and QueueReported. It grows with the fleet only: what has not been heard of for KEPT_NS is dropped,
which is how long the FLEET stream keeps a registration.
"""

import msgspec

from shared.contracts.envelope import Message
from shared.contracts.fleet import ModelCard, QueueReported, WorkerGone, WorkerRegistered, WorkerState
from shared.contracts.ids import CellId, ModelName, WorkerId
from shared.contracts.streams import FLEET

KEPT_NS = int(FLEET.max_age_s) * 1_000_000_000
_ABLE = (WorkerState.READY, WorkerState.LOADING)


class ModelsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`[models]`: other names for served models, resolved once: `aliases.small = "SmolLM2-135M-Instruct"`."""

    aliases: dict[str, str] = {}


class KnownWorker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as of its last registration."""

    epoch: int
    state: WorkerState
    seen_ns: int
    decode_tokens_per_s: float = 0.0  # of one stream, 0: not known
    prefill_tokens_per_s: float = 0.0  # likewise
    usd_per_hour: float = 0.0  # of the whole worker


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The last report of a cell's queue for a model."""

    depth: int
    running: int
    slots: int
    workers: int
    drain_ms: int
    seen_ns: int


class Cell(msgspec.Struct, kw_only=True):
    """A model in one cell."""

    workers: dict[WorkerId, KnownWorker] = {}
    load: Load | None = None


class KnownModel(msgspec.Struct, kw_only=True):
    """A served model. `card` is the one that was registered last."""

    card: ModelCard
    seen_ns: int
    cells: dict[CellId, Cell] = {}
    decode_tokens_per_s: float = 0.0  # of the fastest worker, 0: not known
    prompt_token_usd: float = 0.0  # on the worker where that is dearest, alone on it; 0: nobody states both price and speed
    output_token_usd: float = 0.0  # likewise


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where a worker is."""

    model: ModelName
    cell: CellId


class Catalogue(msgspec.Struct, kw_only=True):
    """All of it. Invariant: every worker of a cell has its place, and the other way round; no cell is without workers."""

    models: dict[ModelName, KnownModel] = {}
    places: dict[WorkerId, Place] = {}


def fold(catalogue: Catalogue, event: Message, now_ns: int) -> None:
    """Take in one fact; events of other types change nothing."""
    if isinstance(event, QueueReported):
        _report(catalogue, event, now_ns)
    elif isinstance(event, WorkerRegistered):
        _register(catalogue, event, now_ns)
    elif isinstance(event, WorkerGone):
        known = _find(catalogue, event.worker)
        if known is not None and known.epoch <= event.epoch:
            _remove(catalogue, event.worker)


def expire(catalogue: Catalogue, now_ns: int) -> None:
    """Drop what has been silent for KEPT_NS. Costs a walk over all workers: call it every few seconds at most."""
    silent = [worker for worker in catalogue.places if _age_ns(catalogue, worker, now_ns) > KEPT_NS]
    for worker in silent:
        _remove(catalogue, worker)
    for name, model in list(catalogue.models.items()):
        if not model.cells and now_ns - model.seen_ns > KEPT_NS:
            del catalogue.models[name]


def resolve(aliases: dict[str, str], name: str) -> ModelName:
    """The served name behind `name`, which may be one already."""
    return ModelName(aliases.get(name, name))


def is_served(cell: Cell, now_ns: int, silent_ns: int) -> bool:
    """Whether a worker of the cell can take steps, or soon will; one not heard of for `silent_ns` cannot."""
    return any(worker.state in _ABLE and now_ns - worker.seen_ns <= silent_ns for worker in cell.workers.values())


def fresh_load(cell: Cell, now_ns: int, fresh_ns: int) -> Load | None:
    """The cell's load if it was reported within `fresh_ns`."""
    return cell.load if cell.load is not None and now_ns - cell.load.seen_ns <= fresh_ns else None


def _report(catalogue: Catalogue, event: QueueReported, now_ns: int) -> None:
    model = catalogue.models.get(event.model)
    cell = model.cells.get(event.cell) if model else None
    if cell is not None:
        cell.load = Load(
            depth=event.depth,
            running=event.running,
            slots=event.slots,
            workers=event.workers,
            drain_ms=event.drain_ms,
            seen_ns=now_ns,
        )


def _register(catalogue: Catalogue, event: WorkerRegistered, now_ns: int) -> None:
    known = _find(catalogue, event.worker)
    if known is not None and known.epoch > event.epoch:
        return
    place = Place(event.card.name, event.cell)
    if known is not None and catalogue.places[event.worker] != place:
        _remove(catalogue, event.worker)
    model = catalogue.models.setdefault(place.model, KnownModel(card=event.card, seen_ns=now_ns))
    model.card, model.seen_ns = event.card, now_ns
    cell = model.cells.setdefault(place.cell, Cell())
    before = cell.workers.get(event.worker)
    now = cell.workers[event.worker] = KnownWorker(
        epoch=event.epoch,
        state=event.state,
        seen_ns=now_ns,
        decode_tokens_per_s=event.capacity.decode_tokens_per_s,
        prefill_tokens_per_s=event.capacity.prefill_tokens_per_s,
        usd_per_hour=event.hardware.usd_per_hour,
    )
    catalogue.places[event.worker] = place
    if before is None:
        _measure(model, [now])
    elif _rates(before) != _rates(now):
        _measure_all(model)


def _remove(catalogue: Catalogue, worker: WorkerId) -> None:
    place = catalogue.places.pop(worker)
    model = catalogue.models[place.model]
    cell = model.cells[place.cell]
    del cell.workers[worker]
    if not cell.workers:
        del model.cells[place.cell]
    _measure_all(model)


def _measure_all(model: KnownModel) -> None:
    """Costs a walk over the model's workers, so it is left out where one has only said again what it said before."""
    model.decode_tokens_per_s = model.prompt_token_usd = model.output_token_usd = 0.0
    _measure(model, [worker for cell in model.cells.values() for worker in cell.workers.values()])


def _measure(model: KnownModel, workers: list[KnownWorker]) -> None:
    """These workers too."""
    for worker in workers:
        decode, prompt_usd, output_usd = _rates(worker)
        model.decode_tokens_per_s = max(model.decode_tokens_per_s, decode)
        model.prompt_token_usd = max(model.prompt_token_usd, prompt_usd)
        model.output_token_usd = max(model.output_token_usd, output_usd)


def _rates(worker: KnownWorker) -> tuple[float, float, float]:
    decode = worker.decode_tokens_per_s
    return decode, _token_usd(worker, worker.prefill_tokens_per_s), _token_usd(worker, decode)


def _token_usd(worker: KnownWorker, per_s: float) -> float:
    return worker.usd_per_hour / 3600 / per_s if per_s > 0 else 0.0


def _find(catalogue: Catalogue, worker: WorkerId) -> KnownWorker | None:
    place = catalogue.places.get(worker)
    return catalogue.models[place.model].cells[place.cell].workers[worker] if place else None


def _age_ns(catalogue: Catalogue, worker: WorkerId, now_ns: int) -> int:
    known = _find(catalogue, worker)
    return now_ns - known.seen_ns if known else 0
