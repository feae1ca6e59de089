"""Several choices, tools and thought in OpenAI's dialect: what is taken, what is refused, and what is answered."""

import json
from typing import Any

import msgspec
import pytest

from services.gateway.dialect import Asked, read_request
from services.gateway.replies import Reply, reply_to
from services.gateway.tools import AUTO, Reading, ToolUse, reading_of
from shared.contracts.fleet import ModelCard
from shared.contracts.ids import ModelName, StepId
from shared.contracts.outcomes import FinishReason, Problem, Reason, Status, Usage
from shared.contracts.output import End, Output, TokenLogprob
from shared.contracts.steps import Sampling, Submission
from shared.core.inputs import fingerprint

HELLO = [{"role": "user", "content": "Hello"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: dict[str, Any] = {"type": "function", "function": {"name": "weather", "description": "Now.", "parameters": CITY}}
SUN: dict[str, Any] = {"type": "function", "function": {"name": "sun"}}
CHOSEN = {"type": "function", "function": {"name": "weather"}}
CARD = ModelCard(name=ModelName("m"), tokenizer="t", vocab_size=9, context_tokens=9, block_tokens=4)


def read(body: dict[str, Any], *, chat: bool = True, **headers: str) -> Asked | Problem:
    start = {"model": "m", "messages": HELLO} if chat else {"model": "m", "prompt": "Once"}
    return read_request(json.dumps(start | body).encode(), {name.replace("_", "-"): text for name, text in headers.items()}, chat=chat)


def taken(body: dict[str, Any], *, chat: bool = True, **headers: str) -> Asked:
    asked = read(body, chat=chat, **headers)
    assert isinstance(asked, Asked), asked
    return asked


def refused(body: dict[str, Any], **headers: str) -> Problem:
    problem = read(body, **headers)
    assert isinstance(problem, Problem), problem
    return problem


# --- choices -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chat", [True, False])
def test_the_first_choice_is_what_the_request_would_be_alone_and_the_others_differ_in_their_seed(chat: bool) -> None:
    one, three = taken({"seed": 7}, chat=chat), taken({"seed": 7, "n": 3}, chat=chat)
    assert (one.n, three.n) == (1, 3)
    choices = [three.choice(index) for index in range(3)]
    assert choices[0].data == one.data
    seeds = [each.submission.sampling.seed for each in choices]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3
    assert all(seed is not None and 0 <= seed < 2**31 for seed in seeds)
    for each in choices:
        assert msgspec.json.decode(each.data, type=Submission) == each.submission
        assert msgspec.structs.replace(each.submission, sampling=one.submission.sampling) == one.submission
    assert seeds == [taken({"seed": 7, "n": 3}, chat=chat).choice(index).submission.sampling.seed for index in range(3)]


def test_without_a_seed_each_choice_gets_one_by_its_id() -> None:
    asked = taken({"n": 2})
    assert asked.choice(1).submission == asked.submission


def test_each_choice_is_a_step_of_the_workflow_with_a_name_of_its_own() -> None:
    asked = taken({"n": 2, "seed": 1}, X_Legato_Workflow="trip", X_Legato_Step_Key="plan")
    first, second = asked.choice(0), asked.choice(1)
    assert (first.submission.step_key, second.submission.step_key) == ("plan", "plan#1")
    assert first.belonging is not None
    assert second.belonging is not None
    assert (first.belonging.name, second.belonging.name) == ("plan", "plan#1")
    alone = taken({"seed": 1}, X_Legato_Workflow="trip", X_Legato_Step_Key="plan")
    assert fingerprint(first.submission) == fingerprint(alone.submission)
    assert fingerprint(second.submission) != fingerprint(first.submission)


def test_a_name_needs_room_for_the_number_of_its_choices() -> None:
    taken({"n": 2}, X_Legato_Workflow="trip", X_Legato_Step_Key="x" * 254)
    assert refused({"n": 2}, X_Legato_Workflow="trip", X_Legato_Step_Key="x" * 255).param == "X-Legato-Step-Key"


def test_a_nameless_step_of_a_workflow_has_nameless_choices() -> None:
    assert taken({"n": 2}, X_Legato_Workflow="trip").choice(1).submission.step_key == ""


# --- tools -------------------------------------------------------------------------------------------------------------------


def test_tools_reach_the_submission_as_they_were_given() -> None:
    asked = taken({"tools": [WEATHER, SUN]})
    assert msgspec.to_builtins(asked.submission.tools) == [WEATHER, SUN]
    assert asked.submission.sampling == Sampling()
    assert asked.tools == ToolUse(by=AUTO, names=("weather", "sun"))


def test_with_tool_choice_none_the_model_is_told_of_no_tools() -> None:
    assert taken({"tools": [WEATHER], "tool_choice": "none"}) == taken({})


def test_a_demanded_call_gives_the_output_a_form() -> None:
    required = taken({"tools": [WEATHER, SUN], "tool_choice": "required", "parallel_tool_calls": False})
    form = json.loads(required.submission.sampling.json_schema or "")
    assert (form["type"], form["minItems"], form["maxItems"]) == ("array", 1, 1)
    assert [each["properties"]["name"] for each in form["items"]["anyOf"]] == [{"enum": ["weather"]}, {"enum": ["sun"]}]
    named = taken({"tools": [WEATHER, SUN], "tool_choice": CHOSEN})
    assert json.loads(named.submission.sampling.json_schema or "") == CITY
    assert required.names["json_schema"] == named.names["json_schema"] == "tool_choice"


def strict() -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "strict": True, "parameters": CITY}}


@pytest.mark.parametrize(
    ("body", "reason", "param"),
    [
        ({"tools": [{"type": "function"}]}, Reason.INVALID, "tools[0].function"),
        ({"tools": [{"type": "custom", "function": {"name": "f"}}]}, Reason.INVALID, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, Reason.INVALID, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "kind": 1}}]}, Reason.UNSUPPORTED, "tools[0].function.kind"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}, Reason.INVALID, "tools[0].function.parameters"),
        (
            {"tools": [SUN, {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
            Reason.INVALID,
            "tools[1].function.parameters",
        ),
        ({"tools": [SUN, SUN]}, Reason.INVALID, "tools"),
        ({"tools": [SUN] * 129}, Reason.INVALID, "tools"),
        ({"tools": [SUN, strict()]}, Reason.UNSUPPORTED, "tools[1].function.strict"),
        ({"tool_choice": "required"}, Reason.INVALID, "tool_choice"),
        ({"tool_choice": CHOSEN}, Reason.INVALID, "tool_choice"),
        ({"tools": [SUN], "tool_choice": CHOSEN}, Reason.INVALID, "tool_choice.function.name"),
        ({"tools": [SUN], "tool_choice": "always"}, Reason.INVALID, "tool_choice"),
        ({"tools": [SUN], "response_format": {"type": "json_object"}}, Reason.INVALID, "tools"),
        ({"tools": [SUN], "tool_choice": "required", "regex": "a"}, Reason.INVALID, "tools"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"$ref": "#/x"}}}}}]}
            | {"tool_choice": "required"},
            Reason.INVALID,
            "tools[0].function.parameters",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"description": "x" * 40_000}}}]}
            | {"tool_choice": "required"},
            Reason.INVALID,
            "tool_choice",
        ),
    ],
)
def test_tools_that_cannot_be_are_refused_by_name(body: dict[str, Any], reason: Reason, param: str) -> None:
    problem = refused(body)
    assert (problem.reason, problem.param) == (reason, param)


def test_strict_is_kept_where_a_call_is_demanded_and_goes_with_none() -> None:
    assert json.loads(taken({"tools": [strict()], "tool_choice": "required"}).submission.sampling.json_schema or "")
    assert taken({"tools": [strict()], "tool_choice": "none"}) == taken({})


@pytest.mark.parametrize("function", [None, {}, {"name": "f"}, {"name": "f", "arguments": {}}, {"name": 1, "arguments": ""}])
def test_a_call_of_an_earlier_turn_has_a_name_and_arguments(function: object) -> None:
    messages = [*HELLO, {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}]
    assert refused({"messages": messages}).param == "messages[1].tool_calls[0].function"


def test_how_calls_are_found_is_for_the_models_card_to_say() -> None:
    use = ToolUse(by=AUTO, names=("sun",))
    assert reading_of(use, Sampling(), msgspec.structs.replace(CARD, tool_parser="hermes"), "m") == Reading(tools="hermes", names=("sun",))
    for card, reason in (
        (None, Reason.MODEL_NOT_FOUND),
        (CARD, Reason.UNSUPPORTED),
        (msgspec.structs.replace(CARD, tool_parser="new"), Reason.UNSUPPORTED),
    ):
        problem = reading_of(use, Sampling(), card, "m")
        assert isinstance(problem, Problem)
        assert problem.reason is reason
    assert reading_of(ToolUse(by="forced"), Sampling(json_schema="{}"), None, "m") == Reading(tools="forced")


def test_an_output_with_a_form_of_its_own_has_no_thought_in_it() -> None:
    thinking = msgspec.structs.replace(CARD, reasoning_parser="qwen3")
    assert reading_of(ToolUse(), Sampling(), thinking, "m") == Reading(reasoning="qwen3")
    assert reading_of(ToolUse(), Sampling(json_schema="{}"), thinking, "m") == Reading()
    assert isinstance(reading_of(ToolUse(), Sampling(), msgspec.structs.replace(CARD, reasoning_parser="new"), "m"), Problem)


def test_what_the_template_is_told_arrives() -> None:
    asked = taken({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": True}})
    assert asked.submission.chat_template_kwargs == {"enable_thinking": True, "reasoning_effort": "low"}
    assert asked.names["chat_template_kwargs.reasoning_effort"] == "reasoning_effort"
    assert refused({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"}}).param == "reasoning_effort"


# --- replies -----------------------------------------------------------------------------------------------------------------

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


def end(output_tokens: int = 4, finish: FinishReason = FinishReason.STOP, cached: int = 2) -> End:
    usage = Usage(prompt_tokens=3, cached_tokens=cached, output_tokens=output_tokens)
    return End(status=Status.SUCCEEDED, finish_reason=finish, usage=usage)


def reply(n: int = 1, reading: Reading | None = None, *, chat: bool = True, usage: bool = False, logprobs: int | None = None) -> Reply:
    more: dict[str, Any] = {"n": n}
    if logprobs is not None:
        more |= {"logprobs": True, "top_logprobs": logprobs} if chat else {"logprobs": logprobs}
    if usage:
        more |= {"stream": True, "stream_options": {"include_usage": True}}
    return reply_to(taken(more, chat=chat), StepId("s1"), 1_700_000_000, reading)


def events(data: bytes) -> list[Any]:
    """The events of a piece of a stream; [DONE] as it is."""
    lines = [line.removeprefix(b"data: ") for line in data.split(b"\n\n")[:-1]]
    return [line.decode() if line == b"[DONE]" else json.loads(line) for line in lines]


@pytest.mark.parametrize("chat", [True, False])
def test_choices_stream_side_by_side_and_end_together(chat: bool) -> None:
    stream = reply(2, chat=chat, usage=True)
    (first,) = events(stream.events([Output(tokens=[1], text="b")], 1))
    (second,) = events(stream.events([Output(tokens=[1], text="a")], 0))
    assert [first["choices"][0]["index"], second["choices"][0]["index"]] == [1, 0]
    assert first["id"] == second["id"]
    if chat:
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": "b"}
        assert second["choices"][0]["delta"] == {"role": "assistant", "content": "a"}
    (ended,) = events(stream.events([Output(offset=1, end=end(5, cached=0))], 1))
    assert ended["choices"][0]["finish_reason"] == "stop"
    last, usage, done = events(stream.events([Output(offset=1, end=end(7, FinishReason.LENGTH))], 0))
    assert (last["choices"][0]["index"], last["choices"][0]["finish_reason"], done) == (0, "length", "[DONE]")
    assert usage["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 12,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@pytest.mark.parametrize("chat", [True, False])
def test_a_whole_reply_has_all_choices_with_their_own_log_probabilities(chat: bool) -> None:
    whole = reply(2, chat=chat, logprobs=0)
    for index, text in ((1, "b"), (0, "a")):
        logprobs = [TokenLogprob(token=1, text=text, logprob=-1.0)]
        whole.fold([Output(tokens=[1], text=text, logprobs=logprobs, end=end())], index)
    body = json.loads(whole.whole())
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    texts = [choice["message"]["content"] if chat else choice["text"] for choice in body["choices"]]
    assert texts == ["a", "b"]
    logprobs = [choice["logprobs"] for choice in body["choices"]]
    assert [each["content"][0]["token"] if chat else each["tokens"][0] for each in logprobs] == texts
    assert body["usage"]["completion_tokens"] == 8


def test_a_call_is_answered_in_openais_shape() -> None:
    whole = reply(reading=Reading(tools="hermes"))
    whole.fold([Output(tokens=[1], text=CALL[:30]), Output(offset=1, tokens=[2], text=CALL[30:], end=end())])
    (choice,) = json.loads(whole.whole())["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["message"]["content"] is None
    assert (call["type"], call["function"]) == ("function", {"name": "weather", "arguments": '{"city": "Paris"}'})
    assert (len(call["id"]), call["id"].isalnum(), choice["finish_reason"]) == (9, True, "tool_calls")


def test_a_call_streams_its_name_and_then_its_arguments() -> None:
    stream = reply(reading=Reading(tools="hermes"))
    text = f"Look. {CALL}"
    data = b"".join(stream.events([Output(offset=at, tokens=[1], text=letter)]) for at, letter in enumerate(text))
    data += stream.events([Output(offset=len(text), end=end())])
    *chunks, done = events(data)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": "L"}
    assert "".join(delta.get("content", "") for delta in deltas) == "Look."
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert (calls[0]["index"], calls[0]["type"], calls[0]["function"]) == (0, "function", {"name": "weather", "arguments": ""})
    assert "".join(call["function"]["arguments"] for call in calls) == '{"city": "Paris"}'
    assert all("id" not in call for call in calls[1:])
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["tool_calls"]
    assert (deltas[-1], done) == ({}, "[DONE]")


def test_calls_of_two_steps_and_of_two_choices_have_different_ids_and_those_of_one_always_the_same() -> None:
    def ids(step: str) -> list[str]:
        whole = reply_to(taken({"n": 2}), StepId(step), 0, Reading(tools="hermes"))
        for index in range(2):
            whole.fold([Output(text=CALL + CALL, end=end())], index)
        return [call["id"] for choice in json.loads(whole.whole())["choices"] for call in choice["message"]["tool_calls"]]

    assert len({*ids("a"), *ids("b")}) == 8
    assert ids("a") == ids("a")


def test_an_output_that_was_cut_within_a_call_says_length() -> None:
    whole = reply(reading=Reading(tools="hermes"))
    whole.fold([Output(text=CALL[:-23], end=end(finish=FinishReason.LENGTH))])
    (choice,) = json.loads(whole.whole())["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"].startswith('{"city"')


def test_text_without_a_call_is_answered_as_ever() -> None:
    whole = reply(reading=Reading(tools="hermes"))
    whole.fold([Output(text="It is <", end=end())])
    (choice,) = json.loads(whole.whole())["choices"]
    assert choice["message"] == {"role": "assistant", "content": "It is <", "refusal": None}
    assert choice["finish_reason"] == "stop"


def test_thought_is_answered_apart() -> None:
    text = "<think>\nHm.\n</think>\n\nParis."
    whole, stream = reply(reading=Reading(reasoning="qwen3")), reply(reading=Reading(reasoning="qwen3"))
    whole.fold([Output(text=text, end=end())])
    (choice,) = json.loads(whole.whole())["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Paris.", "reasoning_content": "Hm.", "refusal": None}
    *chunks, _ = events(stream.events([Output(text=text, end=end())]))
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "reasoning_content": "Hm."},
        {"content": "Paris."},
    ]


def test_log_probabilities_come_once_however_many_events_an_output_makes() -> None:
    stream = reply(reading=Reading(tools="hermes"), logprobs=0)
    tokens = [TokenLogprob(token=1, text="x", logprob=-1.0)]
    *chunks, _ = events(stream.events([Output(tokens=[1], text=CALL, logprobs=tokens, end=end())]))
    assert [len(chunk["choices"][0]["logprobs"]["content"]) for chunk in chunks] == [1, *[0] * (len(chunks) - 1)]
    silent = reply(reading=Reading(tools="hermes"), logprobs=0)
    (chunk,) = events(silent.events([Output(tokens=[1], text="<tool_", logprobs=tokens)]))
    assert chunk["choices"][0]["delta"] == {"role": "assistant"}
