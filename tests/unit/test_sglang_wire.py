"""What is said to SGLang over HTTP, and how its answers are read."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.worker.engines.base import EngineError, EngineRequest
from services.worker.engines.sglang_wire import (
    EVENT_BYTES_MAX,
    LOGPROB_MIN,
    EventSplitter,
    check,
    read_event,
    request_body,
    request_headers,
    request_id,
    seed_of,
)
from shared.contracts.fleet import ModelCard
from shared.contracts.ids import ModelName, StepId
from shared.contracts.outcomes import FinishReason, Reason
from shared.contracts.steps import Sampling

REQUEST = EngineRequest(step=StepId("s"), attempt=2, tokens=[1, 2, 3], sampling=Sampling(), max_tokens=10)
RID = request_id(REQUEST.step, REQUEST.attempt, 1)


def event(finish: object = None, **fields: object) -> bytes:
    meta = {"finish_reason": finish, "cached_tokens": 2, **fields}
    return json.dumps({"output_ids": [7], "meta_info": meta}).encode()


@given(st.lists(st.binary(min_size=1, max_size=30).filter(lambda data: b"\n" not in data), max_size=8), st.data())
def test_events_are_the_same_whatever_pieces_they_arrive_in(events: list[bytes], data: st.DataObject) -> None:
    body = b"".join(b"data: " + each + b"\n\n" for each in events)
    splitter, found = EventSplitter(), []
    while body:
        size = data.draw(st.integers(1, len(body)))
        found += splitter.feed(body[:size])
        body = body[size:]
    assert found == events


def test_an_event_without_end_is_an_error_before_it_fills_the_memory() -> None:
    splitter = EventSplitter()
    splitter.feed(b"data: " + b"x" * (EVENT_BYTES_MAX - 6))
    with pytest.raises(EngineError):
        splitter.feed(b"x")


def test_no_request_id_begins_with_another() -> None:
    steps = [StepId(step) for step in ("a", "ab", "a1")]
    ids = [request_id(step, attempt, serial) for step in steps for attempt in (1, 10, 11, 2) for serial in (1, 2, 10)]
    assert not [(one, other) for one in ids for other in ids if one != other and other.startswith(one)]


def test_a_resumed_request_carries_its_tokens_and_counts_only_what_is_left() -> None:
    body = request_body(msgspec.structs.replace(REQUEST, resumed=[8, 9]), RID)
    assert body["input_ids"] == [1, 2, 3, 8, 9]
    assert body["sampling_params"]["max_new_tokens"] == 8
    assert body["sampling_params"]["custom_params"] == {"resume_len": 2}


@pytest.mark.parametrize(("resumed", "left"), [([], 5), ([8, 9], 3), ([8] * 7, 0)])
def test_a_least_length_counts_only_what_is_left(resumed: list[int], left: int) -> None:
    body = request_body(msgspec.structs.replace(REQUEST, sampling=Sampling(min_tokens=5), resumed=resumed), RID)
    assert body["sampling_params"]["min_new_tokens"] == left


@pytest.mark.parametrize("name", ["json_schema", "regex", "ebnf"])
def test_a_grammar_goes_along_whole(name: str) -> None:
    params = request_body(msgspec.structs.replace(REQUEST, sampling=Sampling(**{name: "x"}), resumed=[8]), RID)["sampling_params"]
    assert {each: params[each] for each in ("json_schema", "regex", "ebnf") if each in params} == {name: "x"}


def test_what_the_card_rules_out_never_reaches_the_engine() -> None:
    card = ModelCard(name=ModelName("m"), tokenizer="t", vocab_size=10, context_tokens=100, block_tokens=16, unsupported=["regex"])
    check(REQUEST, card)
    with pytest.raises(EngineError, match="regex") as refused:
        check(msgspec.structs.replace(REQUEST, sampling=Sampling(regex="a")), card)
    assert refused.value.reason is Reason.UNSUPPORTED
    with pytest.raises(EngineError, match="adapters"):
        check(msgspec.structs.replace(REQUEST, adapter="french"), card)


def test_the_step_takes_its_trace_along() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert request_headers(msgspec.structs.replace(REQUEST, trace=trace)) == {"traceparent": trace}
    assert request_headers(REQUEST) == {}


def test_stop_strings_stay_here() -> None:
    assert "stop" not in request_body(msgspec.structs.replace(REQUEST, sampling=Sampling(stop=["\n"])), RID)["sampling_params"]


@pytest.mark.parametrize(("asked", "sent"), [(-1, -1), (0, -1), (5, 5), (2**40, 2**30)])
def test_top_k_stays_within_what_sglang_can_hold(asked: int, sent: int) -> None:
    assert request_body(msgspec.structs.replace(REQUEST, sampling=Sampling(top_k=asked)), RID)["sampling_params"]["top_k"] == sent


def test_a_step_without_a_seed_gets_one_of_its_own_for_all_attempts() -> None:
    seeds = [request_body(msgspec.structs.replace(REQUEST, attempt=attempt), RID)["sampling_params"]["sampling_seed"] for attempt in (1, 2)]
    assert seeds == [seed_of(REQUEST.step)] * 2
    assert seed_of(StepId("other")) != seed_of(REQUEST.step)
    named = msgspec.structs.replace(REQUEST, sampling=Sampling(seed=0))
    assert request_body(named, RID)["sampling_params"]["sampling_seed"] == 0


@given(st.text(max_size=100))
def test_a_derived_seed_fits_into_63_bits(step: str) -> None:
    assert 0 <= seed_of(StepId(step)) < 2**63


@pytest.mark.parametrize(
    ("finish", "aborted", "expected"),
    [
        (None, False, None),
        ({"type": "stop", "matched": 2}, False, FinishReason.STOP),
        ({"type": "length", "length": 4}, False, FinishReason.LENGTH),
        ({"type": "abort", "message": "Aborted", "status_code": None}, True, FinishReason.CANCELLED),
        ({"type": "abort", "message": "Abort in waiting queue", "status_code": 503}, True, FinishReason.CANCELLED),
    ],
)
def test_finish_reasons_are_ours(finish: object, aborted: bool, expected: FinishReason | None) -> None:
    chunk = read_event(event(finish), REQUEST, aborted=aborted)
    assert (chunk.tokens, chunk.cached_tokens, chunk.finish) == ([7], 2, expected)


@pytest.mark.parametrize(("status", "retryable"), [(400, False), (500, True), (503, True)])
def test_a_refusal_says_whether_another_worker_might_do_better(status: int, retryable: bool) -> None:
    in_band = json.dumps({"error": {"message": "no", "code": status}}).encode()
    for data in (in_band, event({"type": "abort", "message": "no", "status_code": status})):
        with pytest.raises(EngineError, match="no") as refused:
            read_event(data, REQUEST, aborted=False)
        assert refused.value.retryable is retryable


def test_a_grammar_that_is_none_is_the_callers_mistake() -> None:
    data = event({"type": "abort", "message": "Failed to compile regex grammar: Unclosed", "status_code": 400})
    with pytest.raises(EngineError, match="Unclosed") as refused:
        read_event(data, REQUEST, aborted=False)
    assert (refused.value.reason, refused.value.retryable) == (Reason.INVALID, False)


def test_log_probabilities_are_read_with_their_alternatives_and_without_infinities() -> None:
    data = event(output_token_logprobs=[[None, 7, None]], output_top_logprobs=[[[-0.5, 3, None], [None, 7, None]]])
    (entry,) = read_event(data, msgspec.structs.replace(REQUEST, sampling=Sampling(logprobs=2)), aborted=False).logprobs
    assert (entry.token, entry.logprob) == (7, LOGPROB_MIN)
    assert [(top.token, top.logprob) for top in entry.top] == [(3, -0.5), (7, LOGPROB_MIN)]


def test_cached_tokens_of_a_resumed_request_are_those_of_its_prompt_and_its_output() -> None:
    assert read_event(event(cached_tokens=16), REQUEST, aborted=False).cached_tokens == 16
