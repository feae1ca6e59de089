"""OpenAI's request bodies: what is taken, what is refused and by which name."""

import json
from typing import Any

import msgspec
import pytest

from services.gateway.dialect import Asked, read_request
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.steps import ChatMessage, Sampling, Submission

HELLO = [{"role": "user", "content": "Hello"}]


def read(body: dict[str, Any], *, chat: bool = True, **headers: str) -> Asked | Problem:
    start = {"model": "m", "messages": HELLO} if chat else {"model": "m", "prompt": "Once"}
    return read_request(json.dumps(start | body).encode(), {name.replace("_", "-"): text for name, text in headers.items()}, chat=chat)


def taken(body: dict[str, Any], *, chat: bool = True, **headers: str) -> Asked:
    asked = read(body, chat=chat, **headers)
    assert isinstance(asked, Asked), asked
    return asked


def refused(body: dict[str, Any], *, chat: bool = True, **headers: str) -> Problem:
    problem = read(body, chat=chat, **headers)
    assert isinstance(problem, Problem), problem
    return problem


def test_the_least_chat_is_a_submission_with_defaults() -> None:
    asked = taken({})
    assert asked.submission == Submission(model="m", messages=[ChatMessage(role="user", content="Hello")])
    assert asked.data == b'{"model":"m","messages":[{"role":"user","content":"Hello"}],"sampling":{}}'
    assert (asked.chat, asked.stream, asked.include_usage) == (True, False, False)


def test_all_sampling_parameters_arrive() -> None:
    given = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "seed": 7,
        "stop_token_ids": [1, 2],
        "min_tokens": 2,
        "frequency_penalty": 1,
        "presence_penalty": -1,
        "repetition_penalty": 1.1,
        "logit_bias": {"17": -100},
        "ignore_eos": True,
    }
    expected = Sampling(max_tokens=9, stop=["a", "b"], logprobs=3, **given)  # type: ignore[arg-type]
    chat = taken(given | {"max_tokens": 9, "stop": ["a", "b"], "logprobs": True, "top_logprobs": 3})
    assert chat.submission.sampling == expected
    completion = taken(given | {"max_tokens": 9, "stop": ["a", "b"], "logprobs": 3}, chat=False)
    assert completion.submission.sampling == expected


def test_null_is_as_if_not_given() -> None:
    names = (
        "temperature",
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "logprobs",
        "top_logprobs",
        "stream",
        "stream_options",
        "tools",
        "n",
    )
    assert taken(dict.fromkeys(names)) == taken({})


def test_parameters_that_ask_for_nothing_are_taken() -> None:
    chat = {"n": 1, "tools": [], "tool_choice": "auto", "response_format": {"type": "text"}, "modalities": ["text"], "store": False}
    assert taken(chat | {"metadata": {}, "service_tier": "auto", "parallel_tool_calls": True}) == taken({})
    assert taken({"n": 1, "best_of": 1, "echo": False, "suffix": ""}, chat=False) == taken({}, chat=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("functions", [{}]),
        ("function_call", {"name": "f"}),
        ("modalities", ["audio"]),
        ("audio", {}),
        ("store", True),
        ("metadata", {"a": "b"}),
        ("service_tier", "flex"),
        ("prediction", {}),
        ("web_search_options", {}),
        ("suffix", None),  # a parameter of the other door
        ("guided_regex", "a*"),
        ("temprature", 0.5),
        ("x" * 500, None),
    ],
)
def test_what_chat_does_not_support_is_refused_by_name(name: str, value: object) -> None:
    problem = refused({name: value})
    assert (problem.reason, problem.param) == (Reason.UNSUPPORTED, name[:64])
    assert name[:64] in problem.message


@pytest.mark.parametrize(("name", "value"), [("best_of", 2), ("echo", True), ("suffix", "x"), ("tools", []), ("messages", HELLO)])
def test_what_completions_do_not_support_is_refused_by_name(name: str, value: object) -> None:
    problem = refused({name: value}, chat=False)
    assert (problem.reason, problem.param) == (Reason.UNSUPPORTED, name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 2.1),
        ("temperature", "hot"),
        ("temperature", True),
        ("top_p", 0),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 1.01),
        ("seed", -1),
        ("seed", 2**63),
        ("seed", 10**40),
        ("max_tokens", 0),
        ("max_completion_tokens", 0),
        ("frequency_penalty", -3),
        ("repetition_penalty", 0),
        ("min_tokens", -1),
        ("stream", "yes"),
        ("stream", 1),
        ("stream_options", []),
        ("n", 0),
        ("n", 17),
        ("n", True),
        ("n", 1.0),
        ("reasoning_effort", "much"),
        ("chat_template_kwargs", "thinking"),
        ("chat_template_kwargs", {str(number): 1 for number in range(17)}),
        ("user", "x" * 257),
        ("model", ""),
        ("model", 7),
        ("messages", []),
        ("messages", "Hello"),
        ("top_logprobs", 2),  # without logprobs
        ("logit_bias", {"one": 1}),
        ("logit_bias", {"１": 1}),
    ],
)
def test_a_value_out_of_its_range_is_refused_by_its_parameters_name(name: str, value: object) -> None:
    problem = refused({name: value})
    assert (problem.reason, problem.param) == (Reason.INVALID, name)
    assert name in problem.message


def test_a_long_value_is_not_sent_back() -> None:
    assert len(refused({"messages": [{"role": "x" * 100_000, "content": ""}]}).message) < 400


def test_top_logprobs_beyond_twenty_are_refused_by_that_name() -> None:
    assert refused({"logprobs": True, "top_logprobs": 21}).param == "top_logprobs"
    assert refused({"logprobs": 21}, chat=False).param == "logprobs"


def test_both_names_of_the_token_limit_may_be_given_when_they_agree() -> None:
    assert taken({"max_tokens": 5, "max_completion_tokens": 5}).submission.sampling.max_tokens == 5
    assert taken({"max_completion_tokens": 5}).submission.sampling.max_tokens == 5
    assert refused({"max_tokens": 5, "max_completion_tokens": 6}).param == "max_tokens"


def test_completions_make_sixteen_tokens_unless_told_otherwise() -> None:
    assert taken({}, chat=False).submission.sampling.max_tokens == 16
    assert taken({}).submission.sampling.max_tokens is None


def test_stop_may_be_one_string_or_up_to_sixteen() -> None:
    assert taken({"stop": "x"}).submission.sampling.stop == ["x"]
    assert taken({"stop": ["x"] * 16}).submission.sampling.stop == ["x"] * 16
    assert refused({"stop": ["x"] * 17}).param == "stop"
    assert refused({"stop": ""}).param == "stop[0]"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"response_format": {"type": "text"}}, Sampling()),
        ({"response_format": {"type": "json_object"}}, Sampling(json_schema='{"type":"object"}')),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {"b": 1, "a": [2]}}}},
            Sampling(json_schema='{"b":1,"a":[2]}'),
        ),
        ({"json_schema": "{}"}, Sampling(json_schema="{}")),
        ({"regex": "a+"}, Sampling(regex="a+")),
        ({"ebnf": 'root ::= "a"'}, Sampling(ebnf='root ::= "a"')),
    ],
)
def test_the_form_of_the_output_arrives(body: dict[str, Any], expected: Sampling) -> None:
    assert taken(body).submission.sampling == expected


@pytest.mark.parametrize(
    ("form", "reason", "param"),
    [
        ({"type": "xml"}, Reason.INVALID, "response_format.type"),
        ({"type": "json_schema"}, Reason.INVALID, "response_format.json_schema"),
        ({"type": "json_object", "json_schema": {"name": "n", "schema": {}}}, Reason.INVALID, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, Reason.INVALID, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "n", "schema": True}}, Reason.INVALID, "response_format.json_schema.schema"),
        ({"type": "json_object", "strict": True}, Reason.UNSUPPORTED, "response_format.strict"),
        ("json", Reason.INVALID, "response_format"),
    ],
)
def test_a_response_format_that_cannot_be_is_refused_by_name(form: object, reason: Reason, param: str) -> None:
    problem = refused({"response_format": form})
    assert (problem.reason, problem.param) == (reason, param)


def test_a_form_is_asked_for_once() -> None:
    assert refused({"response_format": {"type": "json_object"}, "json_schema": "{}"}).param == "json_schema"
    assert refused({"response_format": {"type": "json_object"}}, chat=False).param == "response_format"


def test_text_parts_are_joined_and_others_refused() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    messages = taken({"messages": [{"role": "user", "content": parts}]}).submission.messages
    assert messages == [ChatMessage(role="user", content="Hello")]
    image = {"type": "image_url", "image_url": {"url": "x"}}
    problem = refused({"messages": [{"role": "user", "content": [*parts, image]}]})
    assert (problem.reason, problem.param) == (Reason.UNSUPPORTED, "messages[0].content[2].type")
    problem = refused({"messages": [{"role": "user", "content": [dict(reversed(image.items()))]}]})
    assert (problem.reason, problem.param) == (Reason.UNSUPPORTED, "messages[0].content[0].image_url")


def test_a_conversation_with_tools_in_its_past_is_taken_as_it_is() -> None:
    call = {"id": "call-1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "annotations": None, "audio": None}
    result = {"role": "tool", "content": "42", "tool_call_id": "call-1"}
    messages = taken({"messages": [*HELLO, answer, result]}).submission.messages
    assert messages is not None
    assert messages[1] == ChatMessage(role="assistant", content=None, tool_calls=[call])
    assert messages[2] == ChatMessage(role="tool", content="42", tool_call_id="call-1")


def test_a_word_that_cannot_stand_there_is_refused_with_those_that_can() -> None:
    role = refused({"messages": [{"role": "robot", "content": "Hi"}]})
    assert role.message.endswith("there are: system, developer, user, assistant, tool")
    assert refused({"response_format": {"type": "xml"}}).message.endswith("there are: text, json_object, json_schema")
    assert "there are" not in refused({"temperature": "hot"}).message


def test_a_message_without_content_is_refused() -> None:
    assert refused({"messages": [*HELLO, {"role": "user"}]}).param == "messages[1].content"
    assert refused({"messages": [{"role": "narrator", "content": "x"}]}).param == "messages[0].role"
    assert refused({"messages": [{"content": "x"}]}).param == "messages[0].role"


@pytest.mark.parametrize("missing", ["model", "messages"])
def test_what_is_missing_is_named(missing: str) -> None:
    body = {"model": "m", "messages": HELLO}
    del body[missing]
    problem = read_request(json.dumps(body).encode(), {}, chat=True)
    assert problem == Problem(reason=Reason.INVALID, message=f"{missing} is missing", param=missing)


def test_a_prompt_is_a_string_or_token_ids_also_as_a_list_of_one() -> None:
    for given, expected in (("x", "x"), (["x"], "x"), ([1, 2], [1, 2]), ([[1, 2]], [1, 2])):
        assert taken({"prompt": given}, chat=False).submission.prompt == expected
    for several in (["x", "y"], [[1], [2]], [1, "x"], [[1], 2]):
        problem = refused({"prompt": several}, chat=False)
        assert (problem.reason, problem.param) == (Reason.UNSUPPORTED, "prompt")
    for wrong in ([], [[]], None, 7, [True], [1.5]):
        assert refused({"prompt": wrong}, chat=False).reason is Reason.INVALID


def test_stream_options_belong_to_streams() -> None:
    asked = taken({"stream": True, "stream_options": {"include_usage": True}})
    assert (asked.stream, asked.include_usage) == (True, True)
    assert refused({"stream_options": {"include_usage": True}}).param == "stream_options"
    assert refused({"stream": True, "stream_options": {"x": 1}}).param == "stream_options.x"
    assert refused({"stream": True, "stream_options": {"include_obfuscation": True}}).reason is Reason.UNSUPPORTED


def test_headers_carry_limits_and_the_workflow() -> None:
    submission = taken({}, X_Legato_Timeout_Ms="250", X_Legato_Priority="-7", X_Legato_Workflow="trip").submission
    assert (submission.timeout_ms, submission.priority, submission.workflow) == (250, -7, "trip")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("X-Legato-Timeout-Ms", "soon"),
        ("X-Legato-Timeout-Ms", "0"),
        ("X-Legato-Timeout-Ms", "1_000"),
        ("X-Legato-Timeout-Ms", "9" * 30),
        ("X-Legato-Priority", "101"),
        ("X-Legato-Priority", "1.5"),
        ("X-Legato-Workflow", "x" * 129),
        ("X-Legato-Workflow", "\udcff"),
    ],
)
def test_a_header_that_cannot_be_is_refused_by_its_name(name: str, text: str) -> None:
    problem = refused({}, **{name: text})
    assert (problem.reason, problem.param) == (Reason.INVALID, name)


def test_a_key_is_hashed_and_something_else_than_a_bearer_is_refused() -> None:
    assert taken({}, Authorization="Bearer abc").submission.key == (
        "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2, appendix B.1
    )
    assert taken({}, Authorization="bearer  abc ") == taken({}, Authorization="Bearer abc")
    assert taken({}).submission.key == ""
    for wrong in ("Basic abc", "Bearer", "Bearer ", "abc"):
        assert refused({}, Authorization=wrong).reason is Reason.UNAUTHENTICATED


@pytest.mark.parametrize(
    "body", [b"", b"nonsense", b'{"model":', b"\xff", b'"\xed\xa0\x80"', b"[" * 100_000, b'{"messages":' + b"[" * 100_000]
)
def test_what_is_not_json_is_refused(body: bytes) -> None:
    problem = read_request(body, {}, chat=True)
    assert isinstance(problem, Problem)
    assert problem.reason is Reason.INVALID


def test_the_submission_is_what_admission_reads() -> None:
    asked = taken({"user": "ada", "seed": 3, "stop": "x"})
    assert msgspec.json.decode(asked.data, type=Submission) == asked.submission
