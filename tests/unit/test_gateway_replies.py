"""Outputs as OpenAI's replies."""

import json
from typing import Any

import pytest

from services.gateway.dialect import Asked
from services.gateway.replies import Reply, reply_to
from shared.contracts.ids import StepId
from shared.contracts.outcomes import FinishReason, Status, Usage
from shared.contracts.output import End, Output, TokenLogprob, TopLogprob
from shared.contracts.steps import ChatMessage, Sampling, Submission

END = End(status=Status.SUCCEEDED, finish_reason=FinishReason.LENGTH, usage=Usage(prompt_tokens=3, cached_tokens=2, output_tokens=4))
USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 2}}


def reply(*, chat: bool = True, usage: bool = False, logprobs: int | None = None) -> Reply:
    sampling = Sampling(logprobs=logprobs)
    if chat:
        submission = Submission(model="m", messages=[ChatMessage(role="user", content="Hello")], sampling=sampling)
    else:
        submission = Submission(model="m", prompt="Once", sampling=sampling)
    return reply_to(Asked(submission=submission, data=b"", include_usage=usage), StepId("s1"), 1_700_000_000)


def events(data: bytes) -> list[Any]:
    """The events of a piece of a stream; [DONE] as it is."""
    assert data == b"" or data.endswith(b"\n\n")
    lines = [line.removeprefix(b"data: ") for line in data.split(b"\n\n")[:-1]]
    return [line.decode() if line == b"[DONE]" else json.loads(line) for line in lines]


def test_a_chat_chunk_has_openais_shape() -> None:
    first, second = events(reply().events([Output(tokens=[1], text='"Hi"'), Output(offset=1, tokens=[2], text=" 🙂")]))
    assert first == {
        "id": "chatcmpl-s1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": '"Hi"'}, "logprobs": None, "finish_reason": None}],
    }
    assert second["choices"][0]["delta"] == {"content": " 🙂"}


def test_a_completion_chunk_has_openais_shape() -> None:
    (chunk,) = events(reply(chat=False).events([Output(tokens=[1], text="Hi")]))
    assert chunk == {
        "id": "cmpl-s1",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [{"index": 0, "text": "Hi", "logprobs": None, "finish_reason": None}],
    }


@pytest.mark.parametrize("chat", [True, False])
def test_a_stream_ends_with_reason_usage_and_done(chat: bool) -> None:
    stream = reply(chat=chat, usage=True)
    (first,) = events(stream.events([Output(tokens=[1], text="Hi")]))
    assert first["usage"] is None
    last, usage, done = events(stream.events([Output(offset=1, end=END)]))
    assert last["choices"][0]["finish_reason"] == "length"
    assert last["usage"] is None
    assert (usage["choices"], usage["usage"]) == ([], USAGE)
    assert done == "[DONE]"


def test_usage_is_told_only_when_asked_for() -> None:
    last, done = events(reply().events([Output(end=END)]))
    assert "usage" not in last
    assert done == "[DONE]"


def test_text_may_come_with_the_end() -> None:
    stream = reply()
    stream.events([Output(tokens=[1], text="Hi")])
    last, _ = events(stream.events([Output(offset=1, tokens=[2], text="!", end=END)]))
    assert last["choices"][0] == {"index": 0, "delta": {"content": "!"}, "logprobs": None, "finish_reason": "length"}


def test_an_end_without_text_has_an_empty_delta_and_an_empty_reply_still_a_role() -> None:
    (last, _) = events(reply().events([Output(end=END)]))
    assert last["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    stream = reply()
    stream.events([Output(tokens=[1], text="Hi")])
    (last, _) = events(stream.events([Output(offset=1, end=END)]))
    assert last["choices"][0]["delta"] == {}


@pytest.mark.parametrize("chat", [True, False])
def test_tokens_without_text_make_no_event(chat: bool) -> None:
    assert reply(chat=chat).events([Output(tokens=[1])]) == b""


@pytest.mark.parametrize("chat", [True, False])
def test_tokens_without_text_make_an_event_when_their_logprobs_are_asked_for(chat: bool) -> None:
    stream = reply(chat=chat, logprobs=0)
    assert len(events(stream.events([Output(tokens=[1], logprobs=[TokenLogprob(token=1, text="\ufffd", logprob=-1.0)])]))) == 1


def test_chat_logprobs_have_openais_shape() -> None:
    top = [TopLogprob(token=5, text="Hé", logprob=-0.1), TopLogprob(token=6, text="\ufffd", logprob=float("-inf"))]
    token = TokenLogprob(token=5, text="Hé", logprob=-0.1, top=top)
    (chunk,) = events(reply(logprobs=2).events([Output(tokens=[5], text="Hé", logprobs=[token])]))
    chosen = {"token": "Hé", "logprob": -0.1, "bytes": [72, 195, 169]}
    unknown = {"token": "\ufffd", "logprob": -9999.0, "bytes": None}
    assert chunk["choices"][0]["logprobs"] == {"content": [{**chosen, "top_logprobs": [chosen, unknown]}], "refusal": None}


def test_completion_logprobs_have_openais_shape_and_offsets_run_through_the_stream() -> None:
    stream = reply(chat=False, logprobs=2)
    top = [TopLogprob(token=5, text="Hi", logprob=-0.1), TopLogprob(token=6, text="Hi", logprob=-3.0)]
    stream.events([Output(tokens=[5], text="Hi", logprobs=[TokenLogprob(token=5, text="Hi", logprob=-0.1, top=top)])])
    (chunk,) = events(stream.events([Output(offset=1, tokens=[7], text="!", logprobs=[TokenLogprob(token=7, text="!", logprob=-0.2)])]))
    assert chunk["choices"][0]["logprobs"] == {"tokens": ["!"], "token_logprobs": [-0.2], "top_logprobs": [{}], "text_offset": [2]}


@pytest.mark.parametrize("chat", [True, False])
def test_a_whole_reply_says_what_the_stream_would(chat: bool) -> None:
    outputs = [Output(tokens=[1], text="He"), Output(offset=1, tokens=[2]), Output(offset=2, tokens=[3, 4], text="llo", end=END)]
    whole = reply(chat=chat)
    for output in outputs:
        whole.fold([output])
    body = json.loads(whole.whole())
    choice = body["choices"][0]
    assert (choice["message"]["content"] if chat else choice["text"]) == "Hello"
    assert (choice["finish_reason"], choice["logprobs"], body["usage"]) == ("length", None, USAGE)
    assert body["object"] == ("chat.completion" if chat else "text_completion")
