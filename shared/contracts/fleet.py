"""What workers say of themselves, and what the fleet's services say of its load."""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from shared.contracts.envelope import Message
from shared.contracts.ids import CellId, ModelName, StepId, WorkerId

RATE_MAX = 1e12  # tokens per second


class ModelCard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What admission must know of a served model. Files are named by the SHA-256 of their content in the object store `legato_models`."""

    name: ModelName
    tokenizer: str  # object name of a Hugging Face tokenizer.json
    chat_template: str = ""  # Jinja source; empty: the model cannot chat
    vocab_size: Annotated[int, Meta(ge=1)]
    context_tokens: Annotated[int, Meta(ge=1)]
    block_tokens: Annotated[int, Meta(ge=1)]
    eos_token_ids: list[int] = []
    bos_token: str = ""
    eos_token: str = ""
    tool_parser: str = ""  # how the model writes calls (shared/core/parsing/reader.py); empty: nobody has said
    reasoning_parser: str = ""  # how it writes what it thinks, likewise; empty: it does not
    unsupported: list[str] = []  # sampling fields that this engine must not be given (refused at the door, by name)


class Hardware(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The machine under a worker."""

    kind: str = "cpu"  # e.g. H100-SXM, cpu, simulated
    count: int = 1
    memory_bytes: int = 0
    usd_per_hour: float = 0.0  # of the whole worker
    spot: bool = False


class Capacity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an engine can hold at once."""

    blocks: Annotated[int, Meta(ge=0)]  # KV blocks
    slots: Annotated[int, Meta(ge=0)]  # running requests
    prefill_tokens_per_s: Annotated[float, Meta(ge=0, le=RATE_MAX)] = 0.0  # measured or predicted, 0: not known
    decode_tokens_per_s: Annotated[float, Meta(ge=0, le=RATE_MAX)] = 0.0  # of one stream


class WorkerState(StrEnum):
    """What a worker can do now."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    DOWN = "down"  # its engine is being restarted


class RunningStep(msgspec.Struct, frozen=True, array_like=True):
    """One attempt in a worker's hands."""

    step: StepId
    attempt: int
    output_tokens: int


class WorkerRegistered(Message, frozen=True, kw_only=True, tag="worker.registered"):
    """A worker is there (again). Repeated with every state change and at intervals, so that late listeners learn of it."""

    worker: WorkerId
    cell: CellId
    pool: str
    epoch: int  # grows with every start of the worker's process
    state: WorkerState
    card: ModelCard
    hardware: Hardware = Hardware()
    capacity: Capacity
    engine: str = ""
    leaves_ns: int = 0  # of one that drains: when whatever it still has will be lost


class WorkerBeat(Message, frozen=True, kw_only=True, tag="worker.beat"):
    """A heartbeat with the engine's load. `kv_seq` is the last KV event published, so that a silent gap is noticed."""

    worker: WorkerId
    cell: CellId
    epoch: int
    state: WorkerState
    blocks_used: int = 0
    slots_used: int = 0
    waiting: int = 0
    running: list[RunningStep] = []
    kv_seq: int = 0


class WorkerGone(Message, frozen=True, kw_only=True, tag="worker.gone"):
    """A worker has said good-bye: its drain is complete."""

    worker: WorkerId
    cell: CellId
    epoch: int


class WorkerVanished(Message, frozen=True, kw_only=True, tag="worker.vanished"):
    """A worker's connection to NATS is gone, while its lease runs on."""

    worker: WorkerId
    cell: CellId


class QueueReported(Message, frozen=True, kw_only=True, tag="queue.reported"):
    """A scheduler's load for one model: the autoscaler's and the admission's signal."""

    cell: CellId
    model: ModelName
    depth: int
    waiting_tokens: int
    running: int
    slots: int
    workers: int
    drain_ms: int = 0  # predicted time until a step that arrives now would start
    order: str = "priority_fcfs"  # in which steps go (docs/policies.md)


class ScaleTargetSet(Message, frozen=True, kw_only=True, tag="scale.target"):
    """How many workers a pool should have; an actuator makes it so."""

    cell: CellId
    pool: str
    workers: int
    why: str
