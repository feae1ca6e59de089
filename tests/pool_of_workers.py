"""An autoscaler's machine with one pool of workers, and what it is told of their load."""

from collections.abc import Callable
from typing import NamedTuple

from services.autoscaler.config import AutoscalerConfig, PoolConfig
from services.autoscaler.decide import MACHINE
from shared.contracts.envelope import Tick
from shared.contracts.fleet import Capacity, ModelCard, QueueReported, ScaleTargetSet, WorkerBeat, WorkerRegistered, WorkerState
from shared.contracts.ids import CellId, ModelName, WorkerId
from shared.core.machine import step

CELL = CellId("local")
SECOND = 1_000_000_000
SLOTS, BLOCKS = 10, 100  # of each worker


class Load(NamedTuple):
    """Of all workers together: slots and KV blocks in use; and steps that wait before them."""

    slots_used: int
    blocks_used: int
    depth: int


def waits(slots_used: int, depth: int, blocks_used: int = 0) -> Load:
    return Load(slots_used, blocks_used, depth)


def told(pool: PoolConfig, workers: int, seconds: int, load: Callable[[int], Load]) -> list[tuple[int, ScaleTargetSet]]:
    """What the pool is told, and at which second. Its workers are there from the start and stay, whatever it is told."""
    config = AutoscalerConfig(pools={"default": pool}, repeat_s=3_600)
    state, begun = MACHINE.start(config), 1_000_000 * SECOND
    card = ModelCard(name=ModelName("m"), tokenizer="t", vocab_size=10, context_tokens=100, block_tokens=16)
    found: list[tuple[int, ScaleTargetSet]] = []
    for second in range(0, seconds, 2):
        now = begun + second * SECOND
        loaded = load(second)
        for number in range(workers):
            name = WorkerId(f"w{number}")
            ready, capacity = WorkerState.READY, Capacity(blocks=BLOCKS, slots=SLOTS)
            event = WorkerRegistered(worker=name, cell=CELL, pool="default", epoch=1, state=ready, card=card, capacity=capacity)
            step(MACHINE, state, event, now, config)
            slots_used, blocks_used = loaded.slots_used // workers, loaded.blocks_used // workers
            beat = WorkerBeat(worker=name, cell=CELL, epoch=1, state=ready, slots_used=slots_used, blocks_used=blocks_used)
            step(MACHINE, state, beat, now, config)
        report = QueueReported(cell=CELL, model=card.name, depth=loaded.depth, waiting_tokens=0, running=0, slots=0, workers=workers)
        step(MACHINE, state, report, now, config)
        found += [(second, message) for message in step(MACHINE, state, Tick(), now, config) if isinstance(message, ScaleTargetSet)]
    return found
