"""Whatever a client sends is a submission that admission can read, or a refusal in OpenAI's shape."""

import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.dialect import Asked, read_request
from services.gateway.errors import body_of, headers_of, status_of
from services.gateway.replies import reply_to
from services.gateway.tools import Reading
from shared.contracts.ids import StepId
from shared.contracts.outcomes import Status
from shared.contracts.output import End, Output
from shared.contracts.steps import Submission

NAMES = [
    *("model", "messages", "prompt", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "max_tokens", "max_completion_tokens"),
    *("logit_bias", "logprobs", "top_logprobs", "stream", "stream_options", "user", "min_tokens", "ignore_eos", "stop_token_ids", "n"),
    *("nvext", "agent_hints", "agent_context", "priority", "osl", "session_id", "annotations", "greed_sampling"),
    *("tools", "tool_choice", "response_format", "best_of", "echo", "suffix", "metadata", "store", "service_tier"),
    *("role", "content", "type", "text", "name", "tool_calls", "include_usage", "frequency_penalty", "presence_penalty"),
]

numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0, 1, -1, 2**31, 2**63, 2**64, 10**30])
names = st.sampled_from(NAMES) | st.text(max_size=8)
scalars = st.none() | st.booleans() | numbers | st.text(max_size=12) | st.sampled_from(["user", "assistant", "text", "auto", "m"])
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=5), max_leaves=12)
bodies = st.dictionaries(names, values, max_size=8)
likely = st.fixed_dictionaries(  # near enough to be taken now and then
    {"model": st.just("m"), "messages": st.just([{"role": "user", "content": "Hello"}])},
    optional={
        "temperature": numbers,
        "top_k": numbers,
        "seed": numbers,
        "stop": st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=18),
        "max_tokens": numbers,
        "logit_bias": st.dictionaries(st.integers().map(str) | st.text(max_size=3), numbers, max_size=3),
        "logprobs": st.booleans(),
        "top_logprobs": st.integers(-1, 22),
        "stream": st.booleans() | values,
        "stop_token_ids": st.lists(numbers, max_size=3),
    },
)
prompts = st.fixed_dictionaries({"model": st.just("m"), "prompt": st.text(max_size=5) | st.lists(numbers | st.text(max_size=3)) | values})
header_names = st.sampled_from(
    [
        *("Authorization", "X-Legato-Timeout-Ms", "X-Legato-Priority", "X-Legato-Workflow", "X-Legato-Step-Key", "X-Legato-Deadline-S"),
        *("X-Legato-Steps-Planned", "X-Legato-Workflow-Kind", "X-Dynamo-Session-ID", "traceparent"),
    ]
)
anything = st.characters()  # lone surrogates too: what aiohttp makes of header bytes that are no UTF-8
headers = st.dictionaries(header_names, st.text(anything, max_size=20) | st.sampled_from(["Bearer x", "100", "-1"]), max_size=3)

untimed = settings(deadline=None)  # a busy machine is no failure


def check(body: bytes, given_headers: dict[str, str], chat: bool) -> None:
    asked = read_request(body, given_headers, chat=chat)
    if isinstance(asked, Asked):
        assert msgspec.json.decode(asked.data, type=Submission) == asked.submission
        return
    assert 400 <= status_of(asked) < 500
    error = json.loads(body_of(asked))["error"]
    assert error["message"]
    assert len(error["message"]) < 600
    assert all(isinstance(text, str) for text in headers_of(asked).values())


@untimed
@given(body=values, headers=headers, chat=st.booleans())
def test_any_json_is_taken_or_refused(body: Any, headers: dict[str, str], chat: bool) -> None:
    check(json.dumps(body).encode(), headers, chat)


@untimed
@given(body=bodies | likely | prompts, headers=headers, chat=st.booleans())
def test_any_object_with_known_names_is_taken_or_refused(body: dict[str, Any], headers: dict[str, str], chat: bool) -> None:
    check(json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass"), headers, chat)


@untimed
@given(body=st.binary(max_size=64), chat=st.booleans())
def test_any_bytes_are_taken_or_refused(body: bytes, chat: bool) -> None:
    check(body, {}, chat)


@untimed
@given(name=st.text(max_size=12).filter(lambda name: name not in NAMES), value=values)
def test_a_name_that_nobody_knows_is_never_ignored(name: str, value: Any) -> None:
    known = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
    asked = read_request(json.dumps(known | {name: value}).encode(), {}, chat=True)
    neutral = isinstance(asked, Asked) and name in ("functions", "function_call", "audio", "verbosity", "user", "modalities", "prediction")
    assert neutral or not isinstance(asked, Asked)


@untimed
@given(
    texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=6),
    cuts=st.lists(st.booleans()),
    chat=st.booleans(),
)
def test_a_stream_says_the_same_text_as_the_whole_reply_however_it_is_batched(texts: list[str], cuts: list[bool], chat: bool) -> None:
    body: dict[str, Any] = {"model": "m"} | ({"messages": [{"role": "user", "content": "x"}]} if chat else {"prompt": "x"})
    asked = read_request(json.dumps(body).encode(), {}, chat=chat)
    assert isinstance(asked, Asked)
    end = End(status=Status.SUCCEEDED)
    outputs = [Output(offset=index, tokens=[index], text=text) for index, text in enumerate(texts)]
    outputs.append(Output(offset=len(texts), end=end))
    streamed, whole = reply_to(asked, StepId("s"), 0), reply_to(asked, StepId("s"), 0)
    whole.fold(outputs)
    data, batch = b"", list[Output]()
    for index, output in enumerate(outputs):
        batch.append(output)
        if output.end or (index < len(cuts) and cuts[index]):
            data += streamed.events(batch)
            batch = []
    events = data.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    choices = [json.loads(event.removeprefix(b"data: "))["choices"][0] for event in events[:-2]]
    told = "".join(choice["delta"].get("content", "") if chat else choice["text"] for choice in choices)
    choice = json.loads(whole.whole())["choices"][0]
    assert told == "".join(texts) == (choice["message"]["content"] if chat else choice["text"])


parts = st.sampled_from(["<tool_call>", "</tool_call>", '{"name": "f", "arguments": {"a": ', "1}}", "<think>", "</think>", "x", " ", "<"])
said = st.lists(st.lists(parts, max_size=3).map("".join), max_size=5)


def told(message: dict[str, Any]) -> tuple[str, str, list[tuple[str, str, str]]]:
    calls = [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or []]
    return message.get("content") or "", message.get("reasoning_content") or "", calls


@untimed
@given(texts=st.tuples(said, said), order=st.lists(st.integers(0, 1)), reasoning=st.sampled_from(["", "qwen3", "deepseek_r1"]))
def test_two_choices_stream_what_the_whole_reply_says_however_they_take_turns(
    texts: tuple[list[str], list[str]], order: list[int], reasoning: str
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "n": 2}
    asked = read_request(json.dumps(body).encode(), {}, chat=True)
    assert isinstance(asked, Asked)
    reading = Reading(tools="hermes", reasoning=reasoning)
    streamed, whole = (reply_to(asked, StepId("s"), 0, reading) for _ in range(2))
    left = [[*(Output(text=text) for text in each), Output(end=End(status=Status.SUCCEEDED))] for each in texts]
    data = b""
    for index in [*order, *[0] * 6, *[1] * 6]:
        if left[index]:
            output = left[index].pop(0)
            data += streamed.events([output], index)
            whole.fold([output], index)
    *events, done, _ = data.split(b"\n\n")
    assert done == b"data: [DONE]"
    messages: list[dict[str, Any]] = [{}, {}]
    finished = ["", ""]
    for event in events:
        (choice,) = json.loads(event.removeprefix(b"data: "))["choices"]
        message, delta = messages[choice["index"]], choice["delta"]
        finished[choice["index"]] = choice["finish_reason"] or finished[choice["index"]]
        for name in ("content", "reasoning_content"):
            message[name] = message.get(name, "") + delta.get(name, "")
        for piece in delta.get("tool_calls", []):
            if "id" in piece:
                message.setdefault("tool_calls", []).append({"id": piece["id"], "function": dict(piece["function"])})
            else:
                message["tool_calls"][piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    choices = json.loads(whole.whole())["choices"]
    assert [told(message) for message in messages] == [told(choice["message"]) for choice in choices]
    assert finished == [choice["finish_reason"] for choice in choices]
