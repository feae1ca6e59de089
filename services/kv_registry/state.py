"""What the KV registry knows: how far it has followed each worker's cache, and an index of all blocks by model."""

import msgspec

from services.kv_registry import feed as feeds
from services.kv_registry.feed import RETRY_NS, Feed
from services.kv_registry.index import Index, clear, join, leave
from services.kv_registry.paths import Paths, Stretch, learn
from shared.contracts.envelope import Message
from shared.contracts.fleet import WorkerBeat, WorkerGone, WorkerRegistered
from shared.contracts.ids import CellId, ModelName, WorkerId
from shared.contracts.kv import KvChanged, KvResyncRequested, KvSnapshot

WORKERS_MAX = 10_000
BLOCKS_FACTOR = 2  # a worker that seems to hold more than so many times its capacity was misheard
SILENT_NS = 60_000_000_000  # a worker that was not heard of for so long is dropped; workers register every 10 s
SWEEP_NS = 5_000_000_000


class PromptSeen(Message, frozen=True, kw_only=True, tag="prompt.seen"):
    """A step's prompt without its tokens, and without the blocks of a prompt seen before whose last one is `after`: the registry's
    recorded input. Never on the bus."""

    model: ModelName
    blocks: list[int]
    after: int | None = None
    block_tokens: int


class Worker(msgspec.Struct, kw_only=True):
    """One worker of the cell."""

    model: ModelName
    feed: Feed
    heard_ns: int


class State(msgspec.Struct, kw_only=True):
    """Invariant: there is an index exactly for each model that a worker serves, and its members are these workers."""

    cell: CellId
    workers: dict[WorkerId, Worker] = {}
    indexes: dict[ModelName, Index] = {}
    paths: Paths = msgspec.field(default_factory=Paths)
    swept_ns: int = 0


def apply(state: State, event: Message, now_ns: int) -> None:
    """Fold one fact. What is said of unknown workers, or by an engine that has been restarted since, changes nothing."""
    match event:
        case PromptSeen():
            learn(state.paths, Stretch(event.after, event.blocks))
        case WorkerRegistered():
            _registered(state, event, now_ns)
        case WorkerGone():
            worker = state.workers.get(event.worker)
            if worker is not None and event.epoch >= worker.feed.epoch:
                _drop(state, event.worker)
        case KvResyncRequested():
            state.workers[event.worker].feed.ask_ns = now_ns + RETRY_NS
        case KvChanged() | KvSnapshot() | WorkerBeat():
            _told(state, event, now_ns)
    if now_ns - state.swept_ns >= SWEEP_NS:
        _sweep(state, now_ns)


def _told(state: State, event: KvChanged | KvSnapshot | WorkerBeat, now_ns: int) -> None:
    worker = _current(state, event, now_ns)
    if worker is None:
        return
    index = state.indexes[worker.model]
    if isinstance(event, KvChanged):
        feeds.change(worker.feed, index, event)
    elif isinstance(event, WorkerBeat):
        feeds.beat(worker.feed, index, event.kv_seq)
    else:
        feeds.collect(worker.feed, index, event, now_ns)


def _current(state: State, event: KvChanged | KvSnapshot | WorkerBeat | WorkerRegistered, now_ns: int) -> Worker | None:
    """The worker that this is about, in the event's epoch; None: not known, or the event is of an older one."""
    worker = state.workers.get(event.worker)
    if worker is None or event.epoch < worker.feed.epoch:
        return None
    if event.epoch > worker.feed.epoch:
        feeds.restart(worker.feed, state.indexes[worker.model], event.epoch)
    worker.heard_ns = now_ns
    return worker


def _registered(state: State, event: WorkerRegistered, now_ns: int) -> None:
    known = state.workers.get(event.worker)
    here = event.cell == state.cell
    if known is not None and event.epoch >= known.feed.epoch and not (here and event.card.name == known.model):
        _drop(state, event.worker)
    if here and event.worker not in state.workers and len(state.workers) < WORKERS_MAX:
        index = state.indexes.setdefault(event.card.name, Index())
        feed = Feed(epoch=event.epoch, bit=join(index, event.worker))
        state.workers[event.worker] = Worker(model=event.card.name, feed=feed, heard_ns=now_ns)
    worker = _current(state, event, now_ns)
    if worker is not None:
        worker.feed.blocks_max = BLOCKS_FACTOR * event.capacity.blocks


def _drop(state: State, name: WorkerId) -> None:
    worker = state.workers.pop(name)
    index = state.indexes[worker.model]
    clear(index, worker.feed.bit, worker.feed.held)
    leave(index, worker.feed.bit)
    if not index.members:
        del state.indexes[worker.model]


def _sweep(state: State, now_ns: int) -> None:
    state.swept_ns = now_ns
    for name in [name for name, worker in state.workers.items() if now_ns - worker.heard_ns > SILENT_NS]:
        _drop(state, name)
