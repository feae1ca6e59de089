"""The room on workers, as decisions see it and fill it.

What follows from the workers' records is kept from input to input, and made anew only for workers that have changed since: `Fleet.changed`
names them. It is no part of a snapshot: after decoding all have changed. services/scheduler/fleet.py brings it up to date.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from services.scheduler.policies.score_finish import prefill_s
from shared.contracts.ids import ModelName, StepId, WorkerId
from shared.contracts.steps import Job

if TYPE_CHECKING:
    from services.scheduler.book import Worker


class Load:
    """A ready worker's room: what its capacity leaves after what was placed there and what it reports beyond that."""

    __slots__ = (
        "backlog_tokens",
        "block_tokens",
        "busy",
        "capacity_blocks",
        "computed_ns",
        "decode_tokens_per_s",
        "free_blocks",
        "heard_ns",
        "id",
        "places",
        "prefill_tokens_per_s",
        "slots",
    )

    def __init__(self, worker: "Worker", heard_ns: int = 0, waiting_max: int = 0) -> None:
        capacity = worker.capacity
        self.heard_ns = heard_ns  # its last heartbeat
        self.id: WorkerId = worker.id
        self.slots = capacity.slots
        self.places = capacity.slots + waiting_max  # for steps that run, and for those that may wait in the engine
        self.busy = busy_slots(worker)
        self.capacity_blocks = capacity.blocks
        self.free_blocks = capacity.blocks - worker.reserved_blocks - worker.foreign_blocks
        self.block_tokens = worker.block_tokens
        self.backlog_tokens = worker.prefill_tokens
        self.computed_ns = worker.computed_ns
        self.prefill_tokens_per_s = capacity.prefill_tokens_per_s
        self.decode_tokens_per_s = capacity.decode_tokens_per_s

    @property
    def where(self) -> tuple["Alike", int, int, int]:
        """Where it stands in its room, and what it adds to it."""
        return self.alike, self.computed_ns, self.free_blocks, self.places

    @property
    def alike(self) -> "Alike":
        """Loads that are equal in this differ in their free blocks and in what they have to compute only; how busy they are comes first."""
        return (
            self.busy,
            self.slots,
            self.capacity_blocks,
            self.block_tokens,
            self.prefill_tokens_per_s,
            self.decode_tokens_per_s,
        )

    def take(self, blocks: int, prefill_tokens: int, now_ns: int) -> None:
        """One more step is placed here by this decision."""
        self.busy += 1
        self.free_blocks -= blocks
        self.backlog_tokens += prefill_tokens
        self.computed_ns = behind_ns(self.computed_ns, now_ns, prefill_tokens, self.prefill_tokens_per_s)


Alike = tuple[int, int, int, int, float, float]


class Room:
    """The workers of one model. Counted is what they are; `loads` is what this decision may still use: ready workers with a free place."""

    def __init__(self) -> None:
        self.known: dict[WorkerId, Worker] = {}  # ready or not
        self.ready = 0
        self.slots = 0  # of ready workers, like `busy`
        self.busy = 0
        self.running = 0  # steps placed, on all workers
        self.free = 0  # places of `loads`
        self.loads: dict[WorkerId, Load] = {}
        self.rows: dict[Alike, list[tuple[int, WorkerId]]] = {}  # `loads` by what they have in common: `computed_ns` and id, sorted
        self.filled: dict[WorkerId, None] = {}  # had a free slot before this decision
        self._by_room: list[tuple[int, WorkerId]] = []  # tokens for which a worker of `loads` has free blocks, sorted

    def listed(self) -> list[Load]:
        """All of `loads`, by id."""
        return [self.loads[worker] for worker in sorted(self.loads)]

    def roomy(self, tokens: int) -> int:
        """How many of `loads` have free blocks for so many tokens."""
        return len(self._by_room) - bisect_left(self._by_room, (tokens, ""))

    def roomiest(self, number: int) -> list[Load]:
        """So many of `loads`: those with the most free blocks."""
        return [self.loads[worker] for _, worker in self._by_room[len(self._by_room) - number :]]

    def put(self, load: Load) -> None:
        """Among `loads`, in place of what was there of this worker."""
        before = self.loads.get(load.id)
        if before is not None and before.where == load.where:
            self.loads[load.id] = load
            return
        self.remove(load.id)
        self.loads[load.id] = load
        self.free += load.places - load.busy
        insort(self.rows.setdefault(load.alike, []), (load.computed_ns, load.id))
        insort(self._by_room, (load.free_blocks * load.block_tokens, load.id))

    def remove(self, worker: WorkerId) -> None:
        load = self.loads.pop(worker, None)
        if load is None:
            return
        self.free -= load.places - load.busy
        row = self.rows[load.alike]
        del row[bisect_left(row, (load.computed_ns, worker))]
        if not row:
            del self.rows[load.alike]
        del self._by_room[bisect_left(self._by_room, (load.free_blocks * load.block_tokens, worker))]


class Counted(NamedTuple):
    """What a room counts of a worker."""

    model: ModelName
    ready: bool
    slots: int
    busy: int
    running: int


PROMPT_TOKENS = 16  # of prompts that are put together in `Fleet.running`


class Fleet:
    """All rooms. `running`: steps on workers, by priority, then by the length of their prompts in PROMPT_TOKENS."""

    def __init__(self, workers: Iterable[WorkerId]) -> None:
        self.changed: dict[WorkerId, None] = dict.fromkeys(workers)
        self.rooms: dict[ModelName, Room] = {}
        self.counted: dict[WorkerId, Counted] = {}
        self.running: dict[int, dict[int, dict[StepId, None]]] = {}
        self.lease_ns = 0  # by which it is known who is silent
        self.waiting_max = 0  # steps that may wait in an engine

    def started(self, step: StepId, job: Job) -> None:
        """It is on a worker."""
        alike = self.running.setdefault(job.priority, {}).setdefault(job.prompt_tokens // PROMPT_TOKENS, {})
        alike[step] = None

    def stopped(self, step: StepId, job: Job) -> None:
        """It no longer is."""
        same, length = self.running[job.priority], job.prompt_tokens // PROMPT_TOKENS
        del same[length][step]
        if not same[length]:
            del same[length]
        if not same:
            del self.running[job.priority]

    def count(self, worker: "Worker", heard_ns: int, ready: bool) -> None:
        """As it is now."""
        busy, slots = busy_slots(worker), worker.capacity.slots
        now = Counted(worker.model, ready, slots, min(busy, slots), len(worker.placed))
        known = self.counted.get(worker.id)
        if known is not None and known.model != worker.model:
            self.drop(worker.id)
            known = None
        room = self.rooms.setdefault(worker.model, Room())
        if now != known:
            self._add(room, known, -1)
            self._add(room, now, 1)
            self.counted[worker.id] = now
        room.known[worker.id] = worker
        room.filled.pop(worker.id, None)
        if ready and busy < slots + self.waiting_max:
            room.put(Load(worker, heard_ns, self.waiting_max))
        else:
            room.remove(worker.id)

    def drop(self, worker: WorkerId) -> None:
        """It is no longer known."""
        known = self.counted.pop(worker, None)
        if known is None:
            return
        room = self.rooms[known.model]
        self._add(room, known, -1)
        room.remove(worker)
        room.filled.pop(worker, None)
        del room.known[worker]
        if not room.known:
            del self.rooms[known.model]

    def take(self, load: Load, blocks: int, prefill_tokens: int, now_ns: int) -> None:
        """One more step is placed there by this decision. What was decided is folded as any fact is; so the worker counts as changed."""
        room = self.rooms[self.counted[load.id].model]
        room.remove(load.id)
        load.take(blocks, prefill_tokens, now_ns)
        if load.busy < load.places:
            room.put(load)
        else:
            room.filled[load.id] = None
        self.changed[load.id] = None

    @staticmethod
    def _add(room: Room, counted: Counted | None, sign: int) -> None:
        if counted is None:
            return
        room.running += sign * counted.running
        if counted.ready:
            room.ready += sign
            room.slots += sign * counted.slots
            room.busy += sign * counted.busy


def busy_slots(worker: "Worker") -> int:
    """Slots that are taken: by what was placed there, and by what the worker reports beyond that."""
    return len(worker.placed) + worker.foreign_slots


def prefill_ns(tokens: int, tokens_per_s: float) -> int:
    """Predicted nanoseconds to compute so many tokens of prompts."""
    return round(prefill_s(tokens, tokens_per_s) * 1e9)


def behind_ns(computed_ns: int, now_ns: int, tokens: int, tokens_per_s: float) -> int:
    """When so many tokens more are computed, behind what is until `computed_ns`."""
    return max(computed_ns, now_ns) + prefill_ns(tokens, tokens_per_s)
