"""The index against a plain model, and a registry that always finds back."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from services.kv_registry.config import KvRegistryConfig
from services.kv_registry.decide import MACHINE
from services.kv_registry.state import PromptSeen
from shared.contracts.envelope import Message
from shared.contracts.fleet import Capacity, ModelCard, WorkerBeat, WorkerRegistered, WorkerState
from shared.contracts.ids import CellId, ModelName, WorkerId
from shared.contracts.kv import AllCleared, BlocksRemoved, BlocksStored, KvChanged, KvEvent, KvResyncRequested, KvSnapshot, PrefixMatched
from shared.core.machine import step as take

MS = 1_000_000
CELL = CellId("local")
MODEL = ModelName("m")
WORKERS = ["a", "b", "c"]
CARD = ModelCard(name=MODEL, tokenizer="t", vocab_size=9, context_tokens=99, block_tokens=16)

workers = st.sampled_from(WORKERS)
hashes = st.lists(st.integers(0, 7), max_size=6)
commands = st.one_of(
    st.tuples(st.just("store"), workers, hashes, st.booleans()),
    st.tuples(st.just("remove"), workers, hashes, st.booleans()),
    st.tuples(st.just("clear"), workers, st.booleans()),
    st.tuples(st.just("beat"), workers),
    st.tuples(st.just("restart"), workers, st.booleans()),
    st.tuples(st.just("reload")),
)


class Worker:
    """A worker that knows its cache, and loses some of its messages."""

    def __init__(self, name: str) -> None:
        self.name = WorkerId(name)
        self.epoch = 1
        self.seq = 0
        self.cache: list[int] = []

    def change(self, event: KvEvent) -> KvChanged:
        self.seq += 1
        if isinstance(event, BlocksStored):
            self.cache += [block for block in dict.fromkeys(event.hashes) if block not in self.cache]
        elif isinstance(event, BlocksRemoved):
            self.cache = [block for block in self.cache if block not in event.hashes]
        else:
            self.cache = []
        return KvChanged(worker=self.name, cell=CELL, epoch=self.epoch, seq=self.seq, events=[event])

    def beat(self) -> WorkerBeat:
        return WorkerBeat(worker=self.name, cell=CELL, epoch=self.epoch, state=WorkerState.READY, kv_seq=self.seq)

    def register(self) -> WorkerRegistered:
        capacity = Capacity(blocks=8, slots=1)
        return WorkerRegistered(
            worker=self.name, cell=CELL, pool="p", epoch=self.epoch, state=WorkerState.READY, card=CARD, capacity=capacity
        )

    def snapshot(self) -> list[KvSnapshot]:
        middle = len(self.cache) // 2
        pieces = [self.cache[:middle], self.cache[middle:]]
        return [
            KvSnapshot(worker=self.name, cell=CELL, epoch=self.epoch, seq=self.seq, hashes=piece, part=part, parts=2)
            for part, piece in enumerate(pieces)
        ]

    def prefix(self, blocks: list[int]) -> int:
        return next((depth for depth, block in enumerate(blocks) if block not in self.cache), len(blocks))


class Fleet:
    """Workers and a registry. What the registry asks for is answered at once."""

    def __init__(self) -> None:
        self.config = KvRegistryConfig()
        self.state = MACHINE.start(self.config)
        self.now_ns = 1_000_000 * MS
        self.workers = {name: Worker(name) for name in WORKERS}
        self.asked: dict[str, int] = {}
        for worker in self.workers.values():
            self.take(worker.register())

    def take(self, event: Message) -> list[Message]:
        outputs = take(MACHINE, self.state, event, self.now_ns, self.config)
        for output in outputs:
            if isinstance(output, KvResyncRequested):
                assert self.now_ns - self.asked.get(output.worker, -(10**18)) >= 1000 * MS, "asked again too soon"
                self.asked[output.worker] = self.now_ns
                for part in self.workers[output.worker].snapshot():
                    self.take(part)
        return outputs

    def do(self, command: tuple[Any, ...]) -> None:
        self.now_ns += 200 * MS
        name, *rest = command
        if name == "store":
            self.send(rest[0], BlocksStored(hashes=rest[1]), rest[2])
        elif name == "remove":
            self.send(rest[0], BlocksRemoved(hashes=rest[1]), rest[2])
        elif name == "clear":
            self.send(rest[0], AllCleared(), rest[1])
        elif name == "beat":
            self.take(self.workers[rest[0]].beat())
        elif name == "restart":
            self.restart(self.workers[rest[0]], heard=rest[1])
        else:
            copy = msgspec.json.decode(msgspec.json.encode(self.state), type=MACHINE.state)
            assert copy == self.state
            self.state = copy

    def send(self, worker: str, event: KvEvent, lost: bool) -> None:
        change = self.workers[worker].change(event)
        if not lost:
            self.take(change)

    def restart(self, worker: Worker, *, heard: bool) -> None:
        worker.epoch, worker.seq, worker.cache = worker.epoch + 1, 0, []
        self.asked.pop(worker.name, None)
        if heard:
            self.take(worker.register())

    def settle(self) -> None:
        """Time passes, and every beat arrives."""
        for _ in range(6):
            self.now_ns += 1000 * MS
            for worker in self.workers.values():
                self.take(worker.beat())

    def ask(self, blocks: list[int]) -> dict[WorkerId, int]:
        [answer] = self.take(PromptSeen(model=MODEL, block_tokens=16, blocks=blocks, time_ns=self.now_ns))
        assert isinstance(answer, PrefixMatched)
        return answer.blocks


@settings(max_examples=300, deadline=None)
@given(st.lists(commands, max_size=60), hashes)
def test_whatever_was_lost_the_registry_finds_back_to_what_the_workers_hold(script: list[tuple[Any, ...]], blocks: list[int]) -> None:
    fleet = Fleet()
    for command in script:
        fleet.do(command)
    fleet.settle()
    truth = {worker.name: depth for worker in fleet.workers.values() if (depth := worker.prefix(blocks))}
    assert fleet.ask(blocks) == truth


@settings(max_examples=200, deadline=None)
@given(st.lists(commands.filter(lambda command: command[0] in ("store", "remove", "clear")), max_size=60), hashes)
def test_without_losses_the_registry_is_never_wrong(script: list[tuple[Any, ...]], blocks: list[int]) -> None:
    fleet = Fleet()
    for command in script:
        fleet.do((*command[:-1], False))
        truth = {worker.name: depth for worker in fleet.workers.values() if (depth := worker.prefix(blocks))}
        assert fleet.ask(blocks) == truth
    assert fleet.asked == {}
