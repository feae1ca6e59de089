"""Conversations as chains of hashes, and what a sender remembers of them."""

import hashlib

import pytest

from shared.contracts.ids import ConversationId
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.steps import MESSAGES_MAX, ChatMessage
from shared.core.conversation import PARTS_MAX, Part, Walk, chain, pieces_of, read_turn, turn, unknown
from shared.core.sent import Known, Missing, Sent

KEY = "sha256:" + "a" * 64
TALK = [
    ChatMessage(role="user", content="What circles the earth?"),
    ChatMessage(role="assistant", tool_calls=[{"id": "c", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}]),
    ChatMessage(role="tool", content="moon 🌙", tool_call_id="c"),
]
PIECES = pieces_of(TALK)
IDS = chain(PIECES, KEY)
NONE = ConversationId("")


def part(start: int, stop: int) -> Part:
    read = read_turn(turn(PIECES[start:stop], IDS[start - 1] if start else ""), IDS[stop - 1], KEY)
    assert isinstance(read, Part)
    return read


def test_an_id_is_what_the_documents_say() -> None:
    """docs/nats-api.md has this rule, for programs in other languages."""
    before = f"key {KEY}"
    for piece in PIECES:
        before = hashlib.sha256(before.encode() + b"\n" + piece).hexdigest()[:32]
    assert IDS[-1] == before


def test_a_conversation_comes_back_from_its_parts() -> None:
    walk = Walk(IDS[2], 10_000)
    assert walk.take(part(2, 3)) is None
    assert walk.at == IDS[1]
    assert walk.take(part(0, 2)) is None
    assert walk.at == ""
    assert walk.messages == TALK
    assert walk.size == sum(len(piece) + 1 for piece in PIECES)


def test_the_same_words_under_another_key_are_another_conversation() -> None:
    assert not set(IDS) & set(chain(PIECES, "")) & set(chain(PIECES, "sha256:" + "b" * 64))
    assert read_turn(turn(PIECES), IDS[-1], "sha256:" + "b" * 64) == unknown(IDS[-1])


def test_the_json_counts_as_it_stands() -> None:
    spaced = b'{"after": "", "messages": [ {"role": "user",  "content": "hi"} ]}'
    [conversation] = chain([b'{"role": "user",  "content": "hi"}'], KEY)
    read = read_turn(spaced, conversation, KEY)
    assert isinstance(read, Part)
    assert read.messages == [ChatMessage(role="user", content="hi")]


@pytest.mark.parametrize(
    "forged",
    [
        turn(PIECES[:2]),
        turn(PIECES, IDS[0]),
        turn([PIECES[1], PIECES[0], PIECES[2]]),
        turn([*PIECES, PIECES[0]]),
        b'{"messages":[]}',
        b"{}",
        b"",
        b"\xff",
        b"[" * 100_000,
        turn(PIECES)[:-1] + b',"more":1}',
    ],
)
def test_what_does_not_give_the_id_is_not_believed(forged: bytes) -> None:
    assert read_turn(forged, IDS[2], KEY) == unknown(IDS[2])


def test_what_gives_the_id_and_holds_no_messages_is_the_senders_mistake() -> None:
    pieces = [b'{"role":"user","text":"hi"}']
    problem = read_turn(turn(pieces), chain(pieces, KEY)[-1], KEY)
    assert isinstance(problem, Problem)
    assert (problem.reason, problem.param) == (Reason.INVALID, "history")
    assert "unknown field text" in problem.message


def test_a_walk_is_bounded_by_bytes() -> None:
    walk = Walk(IDS[2], sum(map(len, PIECES)) + 3, size=1)
    problem = walk.take(part(0, 3))
    assert problem is not None
    assert problem.reason is Reason.TOO_LARGE
    assert Walk(IDS[2], sum(map(len, PIECES)) + 3, size=0).take(part(0, 3)) is None


def test_a_walk_is_bounded_by_messages_and_by_parts() -> None:
    many = Part(after=NONE, key=KEY, messages=TALK[:1] * (MESSAGES_MAX + 1), size=1)
    problem = Walk(IDS[0], 10_000).take(many)
    assert problem is not None
    assert "messages" in problem.message
    walk, endless = Walk(IDS[0], 10_000), Part(after=IDS[0], key="", messages=TALK[:1], size=1)
    problems = [walk.take(endless) for _ in range(PARTS_MAX)]
    assert problems[:-1] == [None] * (PARTS_MAX - 1)
    assert problems[-1] is not None
    assert "parts" in problems[-1].message


# --- what a sender remembers -------------------------------------------------------------------------------------------------

HOUR = 3_600_000_000_000


def ids(number: int, name: str = "c") -> list[ConversationId]:
    return [ConversationId(f"{name}{index}") for index in range(number)]


def test_a_question_that_goes_on_from_nothing_goes_whole() -> None:
    assert Sent(10, HOUR).missing(ids(3), 0) is None


def test_a_conversation_is_stored_when_it_goes_on_and_from_then_on_by_its_new_part() -> None:
    sent = Sent(10, HOUR)
    sent.remember(ids(1)[-1], Known(0, 0))
    first = sent.missing(ids(3), 1)
    assert first == [Missing(0, 1, Known(1, 1)), Missing(1, 3, Known(1, 2))], "cut where it ended before"
    for each in first:
        sent.remember(ids(each.stop)[-1], each.known)
    second = sent.missing(ids(5), 2)
    assert second == [Missing(3, 5, Known(1, 3))]
    sent.remember(ids(5)[-1], second[0].known)
    assert sent.missing(ids(5), 3) == []


def test_a_question_that_is_asked_again_is_stored_in_one_part() -> None:
    sent = Sent(10, HOUR)
    sent.remember(ids(3)[-1], Known(0, 0))
    assert sent.missing(ids(3), 1) == [Missing(0, 3, Known(1, 1))]


def test_what_was_sent_whole_in_between_does_not_hide_what_is_stored() -> None:
    sent = Sent(10, HOUR)
    sent.remember(ids(3)[-1], Known(0, 1))
    sent.remember(ids(5)[-1], Known(1, 0))
    assert sent.missing(ids(7), 2) == [Missing(3, 5, Known(0, 2)), Missing(5, 7, Known(0, 3))]


def test_branches_of_a_conversation_share_what_they_have_in_common() -> None:
    sent = Sent(10, HOUR)
    sent.remember(ids(3)[-1], Known(0, 0))
    missing = sent.missing([*ids(3), *ids(2, "a")], 1)
    assert missing == [Missing(0, 3, Known(1, 1)), Missing(3, 5, Known(1, 2))]
    sent.remember(ids(3)[-1], missing[0].known)
    assert sent.missing([*ids(3), *ids(2, "b")], 2) == [Missing(3, 5, Known(1, 2))]


def test_the_age_of_the_oldest_part_counts() -> None:
    sent = Sent(10, HOUR)
    sent.remember(ids(3)[-1], Known(0, 1))
    sent.remember(ids(5)[-1], Known(0, 2))
    assert sent.missing(ids(7), HOUR) is not None
    assert sent.missing(ids(7), HOUR + 1) is None


def test_a_conversation_of_too_many_parts_is_stored_anew_as_one() -> None:
    sent = Sent(10, HOUR)
    sent.remember(ids(3)[-1], Known(0, PARTS_MAX - 2))
    assert sent.missing(ids(5), 1) == [Missing(3, 5, Known(0, PARTS_MAX - 1))]
    sent.remember(ids(5)[-1], Known(0, PARTS_MAX - 1))
    assert sent.missing(ids(5), 1) == []
    assert sent.missing(ids(7), 1) == [Missing(0, 7, Known(1, 1))]


def test_of_what_is_lost_the_older_is_lost_too() -> None:
    sent = Sent(10, HOUR)
    sent.remember(ids(1, "older")[0], Known(1, 1))
    sent.remember(ids(1, "lost")[0], Known(2, 1))
    sent.remember(ids(1, "newer")[0], Known(3, 1))
    sent.forget(ids(1, "lost")[0])
    assert [sent.missing(ids(2, name), 4) is None for name in ("older", "lost", "newer")] == [True, True, False]
    sent.forget(ids(1, "never-heard-of")[0])
    assert len(sent) == 1


def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    sent = Sent(2, HOUR)
    sent.remember(ids(1, "a")[0], Known(0, 1))
    sent.remember(ids(1, "b")[0], Known(0, 1))
    assert sent.missing(ids(2, "a"), 0) is not None
    sent.remember(ids(1, "c")[0], Known(0, 1))
    assert [sent.missing(ids(2, name), 0) is None for name in "abc"] == [False, True, False]
