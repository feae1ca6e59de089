"""Workers with room, made of what placements look at."""

from services.scheduler.book import Worker
from services.scheduler.candidate import Candidate
from services.scheduler.load import Load
from shared.contracts.fleet import Capacity
from shared.contracts.ids import ModelName, WorkerId
from shared.contracts.steps import Job


def candidate(name: str, *, busy: int = 0, cached: int = 0, used: int = 0, backlog: int = 0, slots: int = 256) -> Candidate:
    """`busy`: steps; `cached`, `backlog`: tokens; `used`: of 100 blocks of 16 tokens."""
    worker = Worker(
        id=WorkerId(name),
        epoch=1,
        model=ModelName("m"),
        capacity=Capacity(blocks=100, slots=slots),
        block_tokens=16,
        foreign_slots=busy,
        foreign_blocks=used,
        prefill_tokens=backlog,
    )
    return Candidate(Load(worker), cached)


def job(prompt: int) -> Job:
    return Job(model=ModelName("m"), prompt_tokens=prompt, max_tokens=10)
