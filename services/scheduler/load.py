"""The room on a model's workers, as one decision sees it and fills it."""

from services.scheduler.book import State, Worker
from services.scheduler.policies.filter_ready import is_ready
from shared.contracts.ids import ModelName, WorkerId


class Load:
    """A ready worker's room: what its capacity leaves after what was placed there and what it reports beyond that."""

    __slots__ = (
        "backlog_tokens",
        "block_tokens",
        "busy",
        "capacity_blocks",
        "decode_tokens_per_s",
        "free_blocks",
        "heard_ns",
        "id",
        "places",
        "prefill_tokens_per_s",
        "slots",
    )

    def __init__(self, worker: Worker, heard_ns: int = 0, waiting_max: int = 0) -> None:
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
        self.prefill_tokens_per_s = capacity.prefill_tokens_per_s
        self.decode_tokens_per_s = capacity.decode_tokens_per_s

    def take(self, blocks: int, prefill_tokens: int) -> None:
        """One more step is placed here by this decision."""
        self.busy += 1
        self.free_blocks -= blocks
        self.backlog_tokens += prefill_tokens


def has_place(state: State, model: ModelName, waiting_max: int) -> bool:
    """Whether any worker of the model may have a free slot, or let a step wait: all that most inputs of a full fleet need to know."""
    return any(worker.model == model and busy_slots(worker) < worker.capacity.slots + waiting_max for worker in state.workers.values())


def busy_slots(worker: Worker) -> int:
    """Slots that are taken: by what was placed there, and by what the worker reports beyond that."""
    return len(worker.placed) + worker.foreign_slots


def ready_workers(state: State, model: ModelName, now_ns: int, lease_ns: int) -> list[Worker]:
    """All workers of the model that take new steps, full ones too."""
    heard = state.heard
    return [worker for worker in state.workers.values() if worker.model == model and is_ready(worker, heard[worker.id], now_ns, lease_ns)]
