import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from shared.contracts.ids import is_subject_token
from shared.runtime import ids
from shared.runtime.clock import now_ns
from shared.runtime.ids import TraceContext, new_id, new_trace, parse_traceparent, time_ms_of


def test_an_id_is_a_valid_uuid_of_version_7_and_a_subject_token() -> None:
    text = new_id()
    parsed = uuid.UUID(text)
    assert (parsed.version, parsed.variant, str(parsed)) == (7, uuid.RFC_4122, text)
    assert is_subject_token(text)


def test_an_id_tells_when_it_was_made() -> None:
    before = now_ns() // 1_000_000
    assert before <= time_ms_of(ids._Uuid7()()) <= now_ns() // 1_000_000


def test_ids_of_one_process_are_distinct_and_in_order() -> None:
    made = [new_id() for _ in range(20_000)]
    assert made == sorted(set(made))


def test_ids_made_by_many_threads_are_distinct() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: new_id(), range(10_000)))
    assert len(set(made)) == len(made)


def test_ids_stay_in_order_when_the_clock_is_set_back_and_when_the_counter_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([2_000_000_000, 1_000_000_000, 1_000_000_000, 3_000_000_000])
    monkeypatch.setattr(ids, "now_ns", lambda: next(clock))
    generate = ids._Uuid7()
    first, second = generate(), generate()
    generate._counter = 2**ids.COUNTER_BITS - 1
    third, fourth = generate(), generate()
    assert first < second < third < fourth
    assert [time_ms_of(each) for each in (first, second, third, fourth)] == [2000, 2000, 2001, 3000]


def test_a_trace_context_survives_the_header_and_its_child_stays_in_the_trace() -> None:
    root = new_trace()
    child = root.child()
    assert parse_traceparent(str(root)) == root
    assert (child.trace_id, child.sampled) == (root.trace_id, True)
    assert child.span_id != root.span_id
    assert parse_traceparent(str(new_trace(sampled=False))).sampled is False  # type: ignore[union-attr]


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    text = f"cc-{'a' * 32}-{'b' * 16}-01-what-the-future-brings"
    assert parse_traceparent(text) == TraceContext(trace_id="a" * 32, span_id="b" * 16)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"00-{'0' * 32}-{'b' * 16}-01",
        f"00-{'a' * 32}-{'0' * 16}-01",
        f"ff-{'a' * 32}-{'b' * 16}-01",
        f"00-{'A' * 32}-{'b' * 16}-01",
        f"00-{'a' * 31}-{'b' * 16}-01",
        f"00-{'a' * 32}-{'b' * 16}-01-more",
        f"00-{'a' * 32}-{'b' * 16}",
    ],
)
def test_what_is_no_traceparent_is_none(text: str) -> None:
    assert parse_traceparent(text) is None
