"""Following one worker's cache through its numbered changes, and getting it back from a snapshot when one was missed.

A snapshot as of S and the changes behind it travel on one subject, but S + 1 may be published before the snapshot is. So an unsynced feed
keeps the changes that come meanwhile, without a gap among them, and takes those behind S when the snapshot is complete.
"""

import msgspec

from services.kv_registry.index import Index, add, clear, remove
from shared.contracts.kv import BlocksRemoved, BlocksStored, KvChanged, KvEvent, KvSnapshot

PENDING_MAX = 1_000  # changes kept until a snapshot; beyond it the oldest go
RETRY_NS = 1_000_000_000  # between two requests for a snapshot, and after each part of one
TOO_LARGE_NS = 60_000_000_000  # between two requests when the worker's snapshot goes beyond `blocks_max`


class Change(msgspec.Struct, frozen=True, array_like=True):
    """One batch, until it can be used."""

    seq: int
    events: list[KvEvent]


class Collection(msgspec.Struct):
    """The parts of a snapshot so far."""

    seq: int
    parts: int = 0
    hashes: list[int] = []


class Feed(msgspec.Struct, kw_only=True):
    """Invariants: while `synced`, `held` is the worker's cache as of change `seq` of `epoch`, and nothing is pending or collected;
    else `held` is empty."""

    epoch: int
    bit: int  # in the model's index
    blocks_max: int = 0  # more than this cannot be true
    held: dict[int, None] = {}
    synced: bool = True
    seq: int = 0
    announced: int = 0  # change that the last heartbeat spoke of
    ask_ns: int = 0  # no request for a snapshot before
    pending: list[Change] = []
    collection: Collection | None = None


def restart(feed: Feed, index: Index, epoch: int) -> None:
    """A new engine: its cache is empty."""
    _forget(feed, index)
    feed.epoch, feed.synced, feed.seq, feed.announced, feed.ask_ns = epoch, True, 0, 0, 0


def change(feed: Feed, index: Index, event: KvChanged) -> None:
    """Take one batch of this epoch."""
    if not feed.synced:
        _keep(feed, Change(event.seq, event.events))
    elif event.seq == feed.seq + 1:
        _fold(feed, index, Change(event.seq, event.events))
    elif event.seq > feed.seq:
        lose(feed, index)
        _keep(feed, Change(event.seq, event.events))


def beat(feed: Feed, index: Index, kv_seq: int) -> None:
    """A change that the heartbeat before spoke of, and that has not come yet, is lost; beats and changes may overtake each other."""
    if feed.synced and feed.seq < feed.announced:
        lose(feed, index)
    feed.announced = kv_seq


def lose(feed: Feed, index: Index) -> None:
    """What the worker holds is not known any more."""
    _forget(feed, index)
    feed.synced = False


def collect(feed: Feed, index: Index, event: KvSnapshot, now_ns: int) -> None:
    """Take one part of a snapshot of this epoch; with the last one, the feed is synced unless changes behind it are missing."""
    if feed.synced or event.seq < feed.seq:
        return
    if event.part == 0:
        feed.collection = Collection(event.seq)
    collection = feed.collection
    if collection is None or (event.seq, event.part) != (collection.seq, collection.parts):
        feed.collection = None
        return
    collection.hashes += event.hashes
    collection.parts += 1
    feed.ask_ns = now_ns + RETRY_NS
    if len(collection.hashes) > feed.blocks_max:
        feed.collection, feed.ask_ns = None, now_ns + TOO_LARGE_NS
    elif collection.parts == event.parts:
        feed.collection = None
        _install(feed, index, collection)


def _install(feed: Feed, index: Index, snapshot: Collection) -> None:
    behind = [each for each in feed.pending if each.seq > snapshot.seq]
    if behind and behind[0].seq != snapshot.seq + 1:
        return
    add(index, feed.bit, feed.held, snapshot.hashes)
    feed.synced, feed.seq, feed.announced, feed.pending = True, snapshot.seq, 0, []
    for each in behind:
        if feed.synced:
            _fold(feed, index, each)
        else:
            _keep(feed, each)


def _fold(feed: Feed, index: Index, batch: Change) -> None:
    for event in batch.events:
        if isinstance(event, BlocksStored):
            add(index, feed.bit, feed.held, event.hashes)
        elif isinstance(event, BlocksRemoved):
            remove(index, feed.bit, feed.held, event.hashes)
        else:
            clear(index, feed.bit, feed.held)
    feed.seq = batch.seq
    if len(feed.held) > feed.blocks_max:
        lose(feed, index)


def _keep(feed: Feed, batch: Change) -> None:
    if feed.pending and batch.seq != feed.pending[-1].seq + 1:
        feed.pending.clear()
    feed.pending.append(batch)
    del feed.pending[:-PENDING_MAX]


def _forget(feed: Feed, index: Index) -> None:
    clear(index, feed.bit, feed.held)
    feed.pending, feed.collection = [], None
