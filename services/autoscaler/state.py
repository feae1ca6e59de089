"""What the autoscaler knows: queues, workers, and the targets that it has set."""

import msgspec

from shared.contracts.envelope import Message, Tick
from shared.contracts.fleet import QueueReported, ScaleTargetSet, WorkerBeat, WorkerGone, WorkerRegistered, WorkerState
from shared.contracts.ids import CellId, ModelName, WorkerId

WORKERS_MAX = 20_000
MODELS_MAX = 1_000
SAMPLES_MAX = 2_000  # per pool: 66 minutes at the default interval
SILENT_NS = 10_000_000_000  # a worker or queue that was not heard of for so long is left out
FORGET_NS = 600_000_000_000  # and after so long it is no longer known


class Member(msgspec.Struct):
    """One worker of a pool. `epoch`: which life of its process this is."""

    pool: str
    model: ModelName
    epoch: int
    state: WorkerState
    slots: int
    slots_used: int = 0
    heard_ns: int = 0
    blocks: int = 0  # of KV
    blocks_used: int = 0


class Queue(msgspec.Struct):
    """The last report of one model's queue."""

    depth: int
    heard_ns: int


class Target(msgspec.Struct):
    """What a pool was last told."""

    workers: int
    changed_ns: int
    told_ns: int
    grown_ns: int = 0  # when it was last raised; 0: never


class Sample(msgspec.Struct, frozen=True, array_like=True):
    """A pool at one moment. `workers` are those that are ready; `coming` are those that load; `depth` are steps waiting for its models."""

    at_ns: int
    workers: int
    coming: int
    slots: int
    slots_used: int
    depth: int
    blocks: int = 0  # of KV, of those that are ready
    blocks_used: int = 0


class State(msgspec.Struct):
    """All of it, by name. `samples`: one per pool and tick, oldest first."""

    cell: CellId
    workers: dict[WorkerId, Member] = {}
    queues: dict[ModelName, Queue] = {}
    targets: dict[str, Target] = {}
    samples: dict[str, list[Sample]] = {}
    judged_ns: int = 0
    began_ns: int = 0  # the first tick


def apply(state: State, event: Message, now_ns: int) -> None:
    """Fold one fact. Of what other cells say, nothing is kept."""
    if isinstance(event, WorkerBeat):
        _beat(state, event, now_ns)
    elif isinstance(event, QueueReported):
        if event.model in state.queues or len(state.queues) < MODELS_MAX:
            state.queues[event.model] = Queue(event.depth, now_ns)
    elif isinstance(event, WorkerRegistered):
        _register(state, event, now_ns)
    elif isinstance(event, WorkerGone):
        member = state.workers.get(event.worker)
        if member is not None and event.epoch >= member.epoch:
            del state.workers[event.worker]
    elif isinstance(event, ScaleTargetSet):
        known = state.targets.get(event.pool)
        changed = now_ns if known is None or known.workers != event.workers else known.changed_ns
        grown = now_ns if known is not None and event.workers > known.workers else known.grown_ns if known is not None else 0
        state.targets[event.pool] = Target(event.workers, changed, now_ns, grown)
    elif isinstance(event, Tick):
        _forget(state, now_ns)
        _sample(state, now_ns)


def _register(state: State, event: WorkerRegistered, now_ns: int) -> None:
    known = state.workers.get(event.worker)
    if (
        event.cell != state.cell
        or (known is None and len(state.workers) >= WORKERS_MAX)
        or (known is not None and event.epoch < known.epoch)
    ):
        return
    member = Member(event.pool, event.card.name, event.epoch, event.state, event.capacity.slots, 0, now_ns, event.capacity.blocks)
    if known is not None and event.epoch == known.epoch:
        member.slots_used, member.blocks_used = known.slots_used, known.blocks_used
    state.workers[event.worker] = member


def _beat(state: State, beat: WorkerBeat, now_ns: int) -> None:
    member = state.workers.get(beat.worker)
    if member is not None and beat.epoch >= member.epoch:
        member.epoch, member.state = beat.epoch, beat.state
        member.slots_used, member.heard_ns = beat.slots_used + beat.waiting, now_ns
        member.blocks_used = beat.blocks_used


def _forget(state: State, now_ns: int) -> None:
    """Workers that died without a good-bye, and queues that nobody reports any more."""
    for worker in [name for name, member in state.workers.items() if now_ns - member.heard_ns > FORGET_NS]:
        del state.workers[worker]
    for model in [name for name, queue in state.queues.items() if now_ns - queue.heard_ns > FORGET_NS]:
        del state.queues[model]


def _sample(state: State, now_ns: int) -> None:
    state.judged_ns = now_ns
    state.began_ns = state.began_ns or now_ns
    for pool in sorted({member.pool for member in state.workers.values()} | set(state.samples)):
        samples = state.samples.setdefault(pool, [])
        samples.append(_load(state, pool, now_ns))
        del samples[:-SAMPLES_MAX]


def _load(state: State, pool: str, now_ns: int) -> Sample:
    members = [member for member in state.workers.values() if member.pool == pool and now_ns - member.heard_ns <= SILENT_NS]
    ready = [member for member in members if member.state is WorkerState.READY]
    models = {member.model for member in members}
    fresh = [queue.depth for model, queue in state.queues.items() if model in models and now_ns - queue.heard_ns <= SILENT_NS]
    return Sample(
        at_ns=now_ns,
        workers=len(ready),
        coming=sum(member.state in (WorkerState.LOADING, WorkerState.DOWN) for member in members),
        slots=sum(member.slots for member in ready),
        slots_used=sum(member.slots_used for member in ready),
        depth=sum(fresh),
        blocks=sum(member.blocks for member in ready),
        blocks_used=sum(member.blocks_used for member in ready),
    )
