"""Conversations cut anywhere, with parts that are lost or forged: what comes back is what was said, or nothing."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.contracts.ids import ConversationId
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.steps import ChatMessage
from shared.core.conversation import PARTS_MAX, Part, Walk, chain, pieces_of, read_turn, turn, unknown
from shared.core.sent import Known, Sent

KEYS = ["", "sha256:" + "a" * 64, "5f1c9a0e7b3d48626d1f0c9be8a7345d"]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
calls = st.lists(st.dictionaries(st.text(max_size=3), json_values, max_size=2), max_size=2)
messages = st.builds(
    ChatMessage,
    role=st.sampled_from(["user", "assistant", "tool"]),
    content=st.none() | st.text(max_size=10),
    tool_calls=st.none() | calls,
)
talks = st.lists(messages, min_size=1, max_size=8)
cuts = st.lists(st.booleans(), min_size=8, max_size=8)

Store = dict[ConversationId, bytes]


def resolved(store: Store, conversation: ConversationId, key: str) -> list[ChatMessage] | Problem:
    walk = Walk(conversation, 10**6)
    while walk.at:
        data = store.get(walk.at)
        part = unknown(walk.at) if data is None else read_turn(data, walk.at, key)
        problem = walk.take(part) if isinstance(part, Part) else part
        if problem is not None:
            return problem
    return walk.messages


def stored(talk: list[ChatMessage], cut: list[bool], key: str) -> tuple[Store, ConversationId]:
    pieces = pieces_of(talk)
    ids = chain(pieces, key)
    store: Store = {}
    start = 0
    for stop in range(1, len(pieces) + 1):
        if cut[stop - 1] or stop == len(pieces):
            store[ids[stop - 1]] = turn(pieces[start:stop], ids[start - 1] if start else "")
            start = stop
    return store, ids[-1]


@settings(max_examples=300, deadline=None)
@given(talks, cuts, cuts, st.sampled_from(KEYS))
def test_however_it_is_cut_it_has_one_id_and_comes_back(talk: list[ChatMessage], cut: list[bool], other: list[bool], key: str) -> None:
    (first, name), (second, same) = stored(talk, cut, key), stored(talk, other, key)
    assert name == same
    assert resolved(first, name, key) == resolved(second, name, key) == talk
    assert resolved({**first, **second}, name, key) == talk


@settings(max_examples=300, deadline=None)
@given(talks, cuts, st.sampled_from(KEYS), st.data())
def test_with_a_part_lost_nothing_comes_back(talk: list[ChatMessage], cut: list[bool], key: str, data: st.DataObject) -> None:
    store, name = stored(talk, cut, key)
    del store[data.draw(st.sampled_from(sorted(store)))]
    problem = resolved(store, name, key)
    assert isinstance(problem, Problem)
    assert problem.reason is Reason.HISTORY_UNKNOWN


@settings(max_examples=500, deadline=None)
@given(talks, talks, cuts, st.sampled_from(KEYS), st.sampled_from(KEYS), st.data())
def test_whatever_is_forged_only_what_was_said_comes_back(
    talk: list[ChatMessage], other: list[ChatMessage], cut: list[bool], key: str, stranger: str, data: st.DataObject
) -> None:
    """Somebody overwrites parts with parts of something else, or with others' parts under these ids."""
    store, name = stored(talk, cut, key)
    others, _ = stored(other, cut, stranger)
    pieces = pieces_of(other)
    forgeries: list[Any] = [*others.values(), *store.values(), turn(pieces), turn(pieces, name), turn(pieces, min(store)), b"null"]
    for place in data.draw(st.lists(st.sampled_from(sorted(store)), max_size=3)):
        store[place] = data.draw(st.sampled_from(forgeries))
    found = resolved(store, name, key)
    assert found == talk or (isinstance(found, Problem) and found.reason is Reason.HISTORY_UNKNOWN)
    if stranger != key:
        assert isinstance(resolved(store, name, stranger), Problem)


HOUR = 3_600_000_000_000
growth = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([99, 99, 99, 2, 0]), st.integers(1, 2), st.sampled_from([0, 1, 7, 14])),
    min_size=1,
    max_size=30,
)


@settings(max_examples=300, deadline=None)
@given(growth, st.integers(1, 20))
def test_what_a_sender_refers_to_is_stored_whole_for_as_long_as_it_says(script: list[tuple[int, int, int, int]], ids_max: int) -> None:
    """Conversations grow, branch and rest (each command: which one, how much of it stays, what is added, hours that pass), and the stream
    lets go of what is a day old. A reference is good for half a day; no more is stored than what is new, but for what was forgotten."""
    sent, store, now, talks_ = Sent(ids_max, 12 * HOUR), dict[ConversationId, tuple[int, bytes]](), 0, [[], []]
    for number, (which, kept, added, hours) in enumerate(script):
        now += hours * HOUR
        talk = talks_[which] = [*talks_[which][:kept], *(ChatMessage(role="user", content=f"{number}.{each}") for each in range(added))]
        pieces = pieces_of(talk)
        ids = chain(pieces, "")
        missing = sent.missing(ids, now)
        if missing is None:
            sent.remember(ids[-1], Known(now, 0))
            continue
        for each in missing:
            assert each.known.parts <= PARTS_MAX
            store[ids[each.stop - 1]] = (now, turn(pieces[each.start : each.stop], ids[each.start - 1] if each.start else ""))
            sent.remember(ids[each.stop - 1], each.known)
        assert len(sent) <= ids_max
        later = now + 12 * HOUR
        kept_then = {name: data for name, (at, data) in store.items() if later - at <= 24 * HOUR}
        assert resolved(kept_then, ids[-1], "") == talk
