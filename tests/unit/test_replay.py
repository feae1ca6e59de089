"""Taking recorded inputs again: what is compared, what is folded, what can be changed."""

import msgspec
import pytest

from shared.contracts.envelope import Message, Tick
from shared.contracts.ids import MessageId, StepId
from shared.contracts.journal import Entry
from shared.contracts.output import Output
from shared.contracts.steps import CancelRequested
from shared.core.machine import ENCODER, Machine, stamp, step
from shared.drivers.refold import Refold, ReplayError, compare, differences, overridden
from shared.drivers.replay import _choose, first_where
from shared.runtime.cursor import Record


class Nested(msgspec.Struct, frozen=True, kw_only=True):
    words: list[str] = []


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    every: int = 1
    greeting: str = "hello"
    nested: Nested = Nested()


class Tally(msgspec.Struct):
    seen: int = 0
    told: int = 0


def apply(state: Tally, event: Message, now_ns: int) -> None:
    if isinstance(event, CancelRequested):
        state.seen += 1
    if isinstance(event, Output):
        state.told += 1


def decide(state: Tally, event: Message, now_ns: int, config: Settings) -> list[Message]:
    if not isinstance(event, CancelRequested) or state.seen % config.every:
        return []
    return [Output(step=event.step, text=f"{config.greeting}, {state.told} told", offset=state.seen)]


MACHINE: Machine[Tally, Settings] = Machine(
    name="tally",
    state=Tally,
    config=Settings,
    inputs=CancelRequested | Tick,
    start=lambda config: Tally(),
    apply=apply,
    decide=decide,
    wake_ns=lambda state, config: None,
)


def recorded(count: int, config: Settings | None = None, epoch: int = 3) -> list[Entry]:
    """The journal of a run with `count` inputs."""
    state, entries = Tally(), []
    for number in range(1, count + 1):
        event = CancelRequested(id=MessageId(f"c{number}"), step=StepId(f"s{number}"))
        outputs = stamp(step(MACHINE, state, event, number, config or Settings()), event, f"tally.p.{epoch}.{number}", number)
        raws = [msgspec.Raw(data) for data in outputs]
        entries.append(Entry(number=number, now_ns=number, input=msgspec.Raw(ENCODER.encode(event)), outputs=raws))
    return entries


def refold() -> Refold[Tally, Settings]:
    return Refold(MACHINE, Tally(), "p")


def test_the_same_code_and_configuration_decide_the_same_bytes() -> None:
    again = refold()
    assert all(again.take(entry, 3, Settings()).same for entry in recorded(20))
    assert again.state == Tally(seen=20, told=20)


def test_folding_alone_leads_to_the_same_state_as_deciding_again() -> None:
    again, folded = refold(), refold()
    for entry in recorded(7, Settings(every=2)):
        again.take(entry, 3, Settings(every=2))
        folded.fold(entry)
    assert again.state == folded.state


def test_after_a_difference_the_recorded_way_goes_on() -> None:
    again = refold()
    taken = [again.take(entry, 3, Settings(greeting="hi" if entry.number == 2 else "hello")) for entry in recorded(5)]
    assert [each.same for each in taken] == [True, False, True, True, True]
    assert again.state == Tally(seen=5, told=5)


def test_a_difference_names_the_fields_and_both_values() -> None:
    entry = recorded(1)[0]
    [difference] = differences(entry, refold().take(entry, 3, Settings(greeting="hi")))
    assert (difference.number, difference.index, difference.step, difference.input_type) == (1, 0, "s1", "step.cancel")
    [field] = difference.fields
    assert (field.path, field.recorded, field.replayed) == ("text", '"hello, 0 told"', '"hi, 0 told"')


def test_an_output_that_only_one_side_decided_is_a_difference() -> None:
    entry = recorded(1)[0]
    [gone] = differences(entry, refold().take(entry, 3, Settings(every=2)))
    assert (bool(gone.recorded), gone.replayed, gone.fields) == (True, "", [])
    silent = recorded(1, Settings(every=2))[0]
    [new] = differences(silent, refold().take(silent, 3, Settings()))
    assert (new.recorded, bool(new.replayed)) == ("", True)


def test_ids_are_part_of_the_bytes() -> None:
    entry = recorded(1, epoch=3)[0]
    [difference] = differences(entry, refold().take(entry, 4, Settings()))
    assert [field.path for field in difference.fields] == ["id"]


def test_an_input_that_the_code_no_longer_takes_is_an_error_that_names_the_entry() -> None:
    entry = Entry(number=9, now_ns=1, input=msgspec.Raw(b'{"type":"step.unheard"}'))
    with pytest.raises(ReplayError, match="entry 9"):
        refold().take(entry, 1, Settings())


def test_comparison_goes_into_lists_and_objects() -> None:
    left, right = b'{"a":{"b":[1,2]},"c":1}', b'{"a":{"b":[1,3,4]},"d":null}'
    found = [(field.path, field.recorded, field.replayed) for field in compare(left, right)]
    assert found == [("a.b[1]", "2", "3"), ("a.b[2]", "", "4"), ("c", "1", ""), ("d", "", "null")]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("every=4", Settings(every=4)),
        ("greeting=good day", Settings(greeting="good day")),
        ('nested.words=["a"]', Settings(nested=Nested(words=["a"]))),
    ],
)
def test_a_setting_changes_one_field(setting: str, expected: Settings) -> None:
    assert overridden(Settings(), [setting]) == expected


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("every", "field=value"),
        ("evry=4", "did you mean every"),
        ("every=soon", "every"),
        ("every.deep=1", "no fields"),
        ("nested.x=1", "words"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_what_could(setting: str, words: str) -> None:
    with pytest.raises(ReplayError, match=words):
        overridden(Settings(), [setting])


@pytest.mark.parametrize(
    ("snapshots", "oldest", "first", "start"),
    [
        ([], 1, 1, 0),  # a whole log
        ([100, 200], 1, 150, 100),
        ([100, 200], 1, 101, 100),
        ([100, 200], 1, 100, 0),
        ([100, 200], 50, 1, 100),  # the log's head is gone: from the oldest snapshot that its rest goes on from
        ([100, 200], 101, 150, 100),
        ([100, 200], 150, 120, 200),
        ([100], 150, 120, None),
    ],
)
def test_a_replay_begins_at_the_newest_state_that_the_log_goes_on_from(
    snapshots: list[int], oldest: int, first: int, start: int | None
) -> None:
    assert _choose(snapshots, oldest, first) == start


@pytest.mark.parametrize("wanted", [3, 4, 17, 40])
async def test_bisection_finds_the_first_record_that_holds(wanted: int) -> None:
    seqs = [3, 4, 9, 17, 18, 40]

    async def after(seq: int) -> Record:
        return Record("S", next(each for each in seqs if each > seq), "s", b"", b"")

    found = await first_where(after, 40, lambda record: record.seq >= wanted)
    assert found.seq == wanted
