"""Prefix matches, gaps and their repair."""

from itertools import count
from typing import Any

import msgspec
import pytest

from services.kv_registry.config import KvRegistryConfig
from services.kv_registry.decide import MACHINE
from services.kv_registry.service import Prompts
from services.kv_registry.state import PromptSeen
from shared.contracts.envelope import Message
from shared.contracts.fleet import Capacity, ModelCard, WorkerBeat, WorkerGone, WorkerRegistered, WorkerState
from shared.contracts.ids import CellId, ModelName, StepId, TenantId, WorkerId
from shared.contracts.kv import AllCleared, BlocksRemoved, BlocksStored, KvChanged, KvEvent, KvResyncRequested, KvSnapshot, PrefixMatched
from shared.contracts.steps import Prompt
from shared.core.machine import step as take
from shared.drivers.inputs import Unreadable
from shared.runtime.cursor import Record

MS = 1_000_000
CELL = CellId("local")
STEP_IDS = count()


class Registry:
    """A registry's machine in the test's hand, with workers that number their changes."""

    def __init__(self, *workers: str) -> None:
        self.config = KvRegistryConfig()
        self.state = MACHINE.start(self.config)
        self.now_ns = 1_000_000 * MS
        self.seqs: dict[str, int] = {}
        for worker in workers:
            self.register(worker)

    def take(self, event: Message) -> list[Message]:
        return take(MACHINE, self.state, event, self.now_ns, self.config)

    def register(self, worker: str, *, epoch: int = 1, model: str = "m", blocks: int = 100, cell: str = CELL) -> None:
        card = ModelCard(name=ModelName(model), tokenizer="t", vocab_size=9, context_tokens=99, block_tokens=16)
        capacity = Capacity(blocks=blocks, slots=1)
        event = WorkerRegistered(
            worker=WorkerId(worker), cell=CellId(cell), pool="p", epoch=epoch, state=WorkerState.READY, card=card, capacity=capacity
        )
        assert self.take(event) == []
        self.seqs[worker] = 0

    def change(self, worker: str, *events: KvEvent, lost: bool = False, epoch: int = 1) -> list[Message]:
        """The worker's next batch; a lost one was sent and does not arrive."""
        self.seqs[worker] += 1
        event = KvChanged(worker=WorkerId(worker), cell=CELL, epoch=epoch, seq=self.seqs[worker], events=list(events))
        return [] if lost else self.take(event)

    def snapshot(self, worker: str, hashes: list[int], *, part: int = 0, parts: int = 1) -> list[Message]:
        seq = self.seqs[worker]
        return self.take(KvSnapshot(worker=WorkerId(worker), cell=CELL, epoch=1, seq=seq, hashes=hashes, part=part, parts=parts))

    def beat(self, worker: str, *, epoch: int = 1) -> list[Message]:
        self.now_ns += 500 * MS
        beat = WorkerBeat(worker=WorkerId(worker), cell=CELL, epoch=epoch, state=WorkerState.READY, kv_seq=self.seqs[worker])
        return self.take(beat)

    def ask(self, *blocks: int, model: str = "m") -> dict[Any, int]:
        """Who holds how much, of those that hold some."""
        [answer] = self.take(prompt(self.now_ns, *blocks, model=model))
        assert isinstance(answer, PrefixMatched)
        others = {name: answer.others for name, worker in self.state.workers.items() if worker.model == model and name not in answer.blocks}
        return {worker: held for worker, held in [*answer.blocks.items(), *others.items()] if held}


def prompt(time_ns: int, *blocks: int, model: str = "m") -> PromptSeen:
    step = StepId(f"s{next(STEP_IDS)}")
    return PromptSeen(step=step, tenant=TenantId("t"), time_ns=time_ns, model=ModelName(model), block_tokens=16, blocks=list(blocks))


def stored(*hashes: int) -> BlocksStored:
    return BlocksStored(hashes=list(hashes))


def removed(*hashes: int) -> BlocksRemoved:
    return BlocksRemoved(hashes=list(hashes))


def asks(outputs: list[Message], worker: str) -> bool:
    return outputs == [KvResyncRequested(worker=WorkerId(worker), cell=CELL)]


def test_each_worker_is_said_to_hold_its_longest_prefix() -> None:
    registry = Registry("a", "b", "c")
    registry.change("a", stored(1, 2, 3, 4))
    registry.change("b", stored(1, 2, 9))
    registry.change("c", stored(2, 3))
    assert registry.ask(1, 2, 3, 5) == {"a": 3, "b": 2}
    assert registry.ask(2, 3) == {"a": 2, "b": 1, "c": 2}


def test_an_answer_carries_what_the_scheduler_must_know() -> None:
    registry = Registry("a")
    registry.change("a", stored(1))
    seen = prompt(registry.now_ns, 1, 2)
    [answer] = registry.take(seen)
    assert answer == PrefixMatched(
        step=seen.step, tenant=TenantId("t"), cell=CELL, model=ModelName("m"), blocks={WorkerId("a"): 1}, block_tokens=16
    )


def test_a_prompt_that_nobody_knows_is_answered_with_nothing() -> None:
    assert Registry().ask(1) == {}
    assert Registry("a").ask(1) == {}
    assert Registry("a").ask() == {}


def test_an_old_prompt_is_not_answered() -> None:
    registry = Registry("a")
    assert registry.take(prompt(registry.now_ns - 10_001 * MS, 1)) == []


def test_equal_blocks_of_another_model_are_no_match() -> None:
    registry = Registry("a")
    registry.register("other", model="n")
    registry.change("other", stored(1))
    assert registry.ask(1) == {}
    assert registry.ask(1, model="n") == {"other": 1}


def test_removed_and_cleared_blocks_are_no_longer_found() -> None:
    registry = Registry("a", "b")
    registry.change("a", stored(1, 2, 3))
    registry.change("b", stored(1, 2, 3))
    registry.change("a", removed(3))
    assert registry.ask(1, 2, 3) == {"a": 2, "b": 3}
    registry.change("b", AllCleared(), stored(1))
    assert registry.ask(1, 2, 3) == {"a": 2, "b": 1}


def test_a_missing_change_leads_to_a_resync() -> None:
    registry = Registry("a")
    registry.change("a", stored(1))
    registry.change("a", stored(2), lost=True)
    assert asks(registry.change("a", stored(3)), "a")
    assert registry.ask(1, 2, 3) == {}, "nothing of it is sure"
    assert registry.snapshot("a", [1, 2, 3]) == []
    assert registry.ask(1, 2, 3) == {"a": 3}
    assert registry.change("a", stored(4)) == []
    assert registry.ask(1, 2, 3, 4) == {"a": 4}


def test_a_last_change_that_got_lost_is_noticed_by_the_second_beat() -> None:
    registry = Registry("a")
    registry.change("a", stored(1), lost=True)
    assert registry.beat("a") == [], "the change may still be on its way"
    assert asks(registry.beat("a"), "a")


def test_a_change_that_comes_between_two_beats_is_not_missing() -> None:
    registry = Registry("a")
    registry.change("a", stored(1), lost=True)
    registry.beat("a")
    registry.seqs["a"] = 0
    registry.change("a", stored(1))
    assert registry.beat("a") == []


def test_a_registry_that_starts_late_asks_for_what_it_missed() -> None:
    registry = Registry("a")
    registry.seqs["a"] = 56
    assert asks(registry.change("a", stored(1)), "a")


def test_requests_are_spaced_and_repeated() -> None:
    registry = Registry("a")
    registry.seqs["a"] = 10
    assert asks(registry.change("a", stored(1)), "a")
    registry.seqs["a"] += 5
    assert registry.change("a", stored(2)) == []
    assert registry.beat("a") == []
    assert asks(registry.beat("a"), "a")


def unsynced(worker: str = "a") -> Registry:
    """A registry that has missed five changes of the worker and asks for a snapshot."""
    registry = Registry(worker)
    registry.change(worker, stored(1, 2))
    registry.seqs[worker] += 5
    assert asks(registry.change(worker, removed(2), stored(7)), worker)
    return registry


def test_a_snapshot_replaces_what_was_known() -> None:
    registry = unsynced()
    registry.snapshot("a", [7, 8])
    assert (registry.ask(1, 2), registry.ask(7, 8)) == ({}, {"a": 2})


def test_a_snapshot_in_parts_counts_only_when_it_is_whole() -> None:
    registry = unsynced()
    registry.snapshot("a", [1, 2], part=0, parts=3)
    registry.snapshot("a", [3], part=1, parts=3)
    assert registry.ask(1) == {}
    registry.snapshot("a", [4], part=2, parts=3)
    assert registry.ask(1, 2, 3, 4) == {"a": 4}


def test_changes_that_a_snapshot_has_not_seen_are_folded_in_behind_it() -> None:
    registry = unsynced()
    seq = registry.seqs["a"]
    registry.change("a", stored(3))
    registry.seqs["a"] = seq
    registry.snapshot("a", [1, 2], part=0, parts=2)
    registry.seqs["a"] = seq + 1
    registry.change("a", removed(2), stored(9))
    registry.seqs["a"] = seq
    assert registry.snapshot("a", [4], part=1, parts=2) == []
    assert (registry.ask(1, 2), registry.ask(9), registry.ask(3), registry.ask(4)) == ({"a": 1}, {"a": 1}, {"a": 1}, {"a": 1})
    registry.seqs["a"] = seq + 2
    assert registry.change("a", stored(2)) == []
    assert registry.ask(1, 2) == {"a": 2}


def test_a_snapshot_that_is_older_than_a_gap_does_not_count() -> None:
    registry = unsynced()
    seq = registry.seqs["a"]
    registry.change("a", stored(3))
    registry.change("a", stored(4), lost=True)
    registry.change("a", stored(5))
    registry.seqs["a"] = seq
    registry.snapshot("a", [1])
    assert registry.ask(1) == {}


def test_a_snapshot_with_a_lost_part_is_asked_for_again() -> None:
    registry = unsynced()
    registry.snapshot("a", [1], part=0, parts=3)
    registry.now_ns += 1000 * MS
    assert asks(registry.snapshot("a", [3], part=2, parts=3), "a")
    registry.snapshot("a", [1, 2, 3])
    assert registry.ask(1, 2, 3) == {"a": 3}


def test_changes_that_a_snapshot_contains_are_not_folded_in_twice() -> None:
    registry = unsynced()
    registry.snapshot("a", [1])
    registry.seqs["a"] = 2
    assert registry.change("a", removed(1)) == []
    assert registry.ask(1) == {"a": 1}


def test_a_new_epoch_starts_with_an_empty_cache() -> None:
    registry = Registry("a")
    registry.change("a", stored(1))
    registry.register("a", epoch=2)
    assert registry.ask(1) == {}
    assert registry.change("a", stored(2), epoch=2) == []
    assert registry.ask(2) == {"a": 1}
    registry.seqs["a"] = 7
    registry.change("a", stored(3), epoch=1)
    assert registry.ask(3) == {}, "an old epoch has nothing to say"


def test_a_beat_or_a_change_of_a_new_epoch_is_believed_before_its_registration() -> None:
    registry = Registry("a", "b")
    registry.change("a", stored(1))
    registry.change("b", stored(1))
    registry.seqs["a"] = 0
    registry.beat("a", epoch=2)
    registry.seqs["b"] = 0
    registry.change("b", stored(2), epoch=2)
    assert registry.ask(1) == {}
    assert registry.ask(2) == {"b": 1}


def test_a_worker_that_goes_or_falls_silent_is_forgotten_with_its_blocks() -> None:
    registry = Registry("a", "b", "c")
    for worker in ("a", "b", "c"):
        registry.change(worker, stored(1))
    registry.take(WorkerGone(worker=WorkerId("a"), cell=CELL, epoch=1))
    assert registry.ask(1) == {"b": 1, "c": 1}
    for _ in range(135):
        registry.beat("c")
    assert registry.ask(1) == {"c": 1}
    registry.register("d")
    registry.change("d", stored(1, 2))
    assert registry.ask(1, 2) == {"c": 1, "d": 2}, "a free place is used again"


def test_in_a_large_fleet_those_that_hold_what_most_hold_are_not_named() -> None:
    names = [f"w{number:02d}" for number in range(40)]
    registry = Registry(*names)
    for name in names[3:]:
        registry.change(name, stored(1, 2))
    registry.change("w39", stored(3))
    registry.change("w00", stored(1))
    [answer] = registry.take(prompt(registry.now_ns, 1, 2, 3))
    assert isinstance(answer, PrefixMatched)
    assert (answer.blocks, answer.others) == ({"w00": 1, "w01": 0, "w02": 0, "w39": 3}, 2)
    for name in names[3:21]:
        registry.change(name, BlocksRemoved(hashes=[1]))
    [answer] = registry.take(prompt(registry.now_ns, 1, 2))
    assert isinstance(answer, PrefixMatched)
    assert (len(answer.blocks), answer.others) == (20, 0), "most do not hold the same"


def test_who_takes_the_place_of_a_worker_is_named_by_its_own_name_and_in_order() -> None:
    registry = Registry("d", "a", "b")
    for worker in ("d", "a", "b"):
        registry.change(worker, stored(1))
    registry.change("b", stored(2))
    assert list(registry.ask(1, 2).items()) == [("a", 1), ("b", 2), ("d", 1)]
    registry.take(WorkerGone(worker=WorkerId("d"), cell=CELL, epoch=1))
    registry.register("c")
    registry.change("c", stored(1, 2))
    assert list(registry.ask(1, 2).items()) == [("a", 1), ("b", 2), ("c", 2)]


def test_a_worker_that_changes_its_model_starts_anew() -> None:
    registry = Registry("a")
    registry.change("a", stored(1))
    registry.register("a", epoch=2, model="n")
    assert registry.ask(1) == {}
    assert list(registry.state.indexes) == ["n"]


def test_workers_of_other_cells_are_not_ours() -> None:
    registry = Registry()
    registry.register("far", cell="far")
    assert registry.change("far", stored(1)) == []
    assert registry.ask(1) == {}


def test_a_worker_that_claims_more_than_it_can_hold_is_asked_again() -> None:
    registry = Registry()
    registry.register("a", blocks=10)
    assert registry.change("a", stored(*range(20))) == []
    assert asks(registry.change("a", stored(20)), "a")
    assert registry.ask(0) == {}
    assert registry.snapshot("a", list(range(21))) == []
    assert registry.ask(0) == {}
    registry.now_ns += 2000 * MS
    assert registry.beat("a") == [], "not every second"


def test_hundreds_of_workers_survive_the_encoding() -> None:
    registry = Registry(*(f"w{number}" for number in range(200)))
    for number in range(200):
        registry.change(f"w{number}", stored(-(2**63), *range(number % 50)))
    copy = msgspec.json.decode(msgspec.json.encode(registry.state), type=MACHINE.state)
    assert copy == registry.state
    expected = {f"w{number}": 1 + (number % 50 > 0) for number in range(200)}
    assert registry.ask(-(2**63), 0) == expected
    registry.state = copy
    assert registry.ask(-(2**63), 0) == expected


def test_a_stored_prompt_is_read_without_its_tokens() -> None:
    stored_prompt = Prompt(
        step=StepId("s"), tenant=TenantId("t"), time_ns=7, model=ModelName("m"), tokens=[1] * 40, block_tokens=16, blocks=[5, 6]
    )
    record = Record("LEGATO_PROMPTS", 1, "legato.prompt.s", msgspec.json.encode(stored_prompt), b"")
    prepare = Prompts().prepare
    seen = prepare(record)
    assert seen == PromptSeen(step=StepId("s"), tenant=TenantId("t"), time_ns=7, model=ModelName("m"), block_tokens=16, blocks=[5, 6])
    assert msgspec.json.decode(msgspec.json.encode(seen), type=MACHINE.inputs) == seen
    with pytest.raises(Unreadable):
        prepare(Record("LEGATO_PROMPTS", 1, "legato.prompt.s", b"{}", b""))


def test_a_prompt_that_goes_on_from_an_earlier_one_is_matched_from_its_beginning() -> None:
    registry, prompts = Registry("a"), Prompts()
    registry.change("a", stored(1, 2, 3))
    answers = []
    for blocks in ([1, 2], [1, 2, 3, 4], [1, 2, 3, 4]):
        grown = Prompt(step=StepId("s"), model=ModelName("m"), time_ns=registry.now_ns, tokens=[], block_tokens=16, blocks=blocks)
        seen = prompts.prepare(Record("LEGATO_PROMPTS", 1, "legato.prompt.s", msgspec.json.encode(grown), b""))
        [answer] = registry.take(seen)
        assert isinstance(answer, PrefixMatched)
        answers.append((seen.after, seen.blocks, answer.blocks))
    assert answers == [(None, [1, 2], {"a": 2}), (2, [3, 4], {"a": 3}), (4, [], {"a": 3})]
