"""Tools: the form of demanded calls, and what a chat template must know of them."""

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest
from jsonschema import Draft202012Validator

from services.admission.reading import parse
from services.admission.templates import compile_template
from shared.contracts.fleet import ModelCard
from shared.contracts.ids import ModelName
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.steps import ChatMessage, Sampling, Submission, Tool, ToolFunction
from shared.core.tools import NoForm, arguments_form, calls_form, repeated

CARD = ModelCard(name=ModelName("m"), tokenizer="t", vocab_size=9, context_tokens=9, block_tokens=4)
CITY: dict[str, Any] = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"root": {"$ref": "#/$defs/Node"}},
    "required": ["root"],
    "$defs": {"Node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}}}},
}
HELLO = [ChatMessage(role="user", content="Hi")]
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}


def tool(name: str = "weather", parameters: dict[str, Any] | None = CITY) -> Tool:
    return Tool(type="function", function=ToolFunction(name=name, parameters=parameters))


def fits(form: str, output: object) -> bool:
    schema = json.loads(form)
    Draft202012Validator.check_schema(schema)
    try:
        jsonschema.validate(output, schema, cls=Draft202012Validator)
    except jsonschema.ValidationError:
        return False
    return True


def test_the_form_of_calls_takes_calls_of_these_functions_and_nothing_else() -> None:
    form = calls_form([tool(), tool("stop", None)], several=True)
    paris = {"name": "weather", "parameters": {"city": "Paris"}}
    assert fits(form, [paris])
    assert fits(form, [paris, {"name": "stop", "parameters": {}}])
    for wrong in ([], paris, [{"name": "weather", "parameters": {}}], [{"name": "sun", "parameters": {}}], [{**paris, "more": 1}]):
        assert not fits(form, wrong)
    assert not fits(calls_form([tool()], several=False), [paris, paris])


def test_definitions_of_several_tools_do_not_meet() -> None:
    other = {**TREE, "$defs": {"Node": {"type": "integer"}}}
    form = calls_form([tool("tree", TREE), tool("leaf", other)], several=True)
    assert fits(form, [{"name": "tree", "parameters": {"root": {"next": {"next": None}}}}])
    assert fits(form, [{"name": "leaf", "parameters": {"root": 3}}])
    assert not fits(form, [{"name": "leaf", "parameters": {"root": {"next": None}}}])


@pytest.mark.parametrize("target", ["#", "#/properties/a", "https://example.org/x", "#/$defs/a/b"])
def test_a_reference_that_cannot_be_kept_is_named(target: str) -> None:
    with pytest.raises(NoForm, match="may point to") as caught:
        calls_form([tool(), tool("odd", {"type": "object", "properties": {"a": {"$ref": target}}})], several=True)
    assert caught.value.at == 1


def test_the_form_of_arguments_is_the_functions_own() -> None:
    assert fits(arguments_form(tool()), {"city": "Paris"})
    assert not fits(arguments_form(tool()), {})
    assert fits(arguments_form(tool(parameters=None)), {})


def test_a_name_that_is_there_twice_is_found() -> None:
    assert repeated([tool("a"), tool("b"), tool("a")]) == "a"
    assert repeated([tool("a"), tool("b")]) == ""


# --- at admission ------------------------------------------------------------------------------------------------------------


def rendered(template: str, submission: Submission, card: ModelCard = CARD) -> str | Problem:
    return compile_template(template).render(submission, card)


def asked(**more: Any) -> Submission:
    return Submission(model="m", messages=more.pop("messages", HELLO), **more)


# As Llama 3.1's template begins: the name is asked for, and set where it is not there.
LIKE_LLAMA = "{%- if not tools is defined %}{%- set tools = none %}{%- endif %}{{ tools | tojson }}"


@pytest.mark.parametrize("template", ["{{ tools | tojson }}", LIKE_LLAMA, "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"])
def test_tools_are_written_as_they_were_given(template: str) -> None:
    text = rendered(template, asked(tools=[tool()]))
    assert isinstance(text, str)
    wanted = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
    assert json.loads(text) in (wanted, [wanted])


def test_a_template_without_tools_refuses_them_by_name_unless_the_output_has_their_form() -> None:
    problem = rendered("plain", asked(tools=[tool()]))
    assert isinstance(problem, Problem)
    assert (problem.reason, problem.param) == (Reason.UNSUPPORTED, "tools")
    assert rendered("plain", asked(tools=[tool()], sampling=Sampling(json_schema="{}"))) == "plain"


def test_calls_of_earlier_turns_reach_the_template_with_their_arguments_as_objects() -> None:
    messages = [*HELLO, ChatMessage(role="assistant", tool_calls=[CALL]), ChatMessage(role="tool", content="22", tool_call_id="c1")]
    template = "{% for m in messages %}{{ m.tool_calls[0].function.arguments.city if m.tool_calls else m.content }} {% endfor %}"
    assert rendered(template, asked(messages=messages)) == "Hi Paris 22 "
    assert CALL["function"] == {"name": "weather", "arguments": '{"city": "Paris"}'}
    problem = rendered("plain", asked(messages=messages))
    assert isinstance(problem, Problem)
    assert (problem.reason, problem.param) == (Reason.UNSUPPORTED, "messages[1].tool_calls")


@pytest.mark.parametrize("arguments", ["", "{", "[1]", "7", None, 7])
def test_arguments_that_are_no_object_reach_the_template_as_they_are(arguments: object) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = ChatMessage(role="assistant", tool_calls=[call])
    assert rendered("{{ messages[0].tool_calls[0].function.arguments }}", asked(messages=[message])) == str(arguments)


def test_what_a_template_is_told_besides_it_must_know() -> None:
    template = "{{ 'thinks' if enable_thinking else 'answers' }}"
    assert rendered(template, asked(chat_template_kwargs={"enable_thinking": True})) == "thinks"
    for name, reason in (("depth", Reason.UNSUPPORTED), ("messages", Reason.INVALID), ("self", Reason.UNSUPPORTED)):
        problem = rendered(template, asked(chat_template_kwargs={name: True}))
        assert isinstance(problem, Problem)
        assert (problem.reason, problem.param) == (reason, f"chat_template_kwargs.{name}")


def test_no_reasoning_is_what_a_model_without_it_does_anyway() -> None:
    none = asked(chat_template_kwargs={"reasoning_effort": "none"})
    assert rendered("plain", none) == "plain"
    assert isinstance(rendered("plain", none, msgspec.structs.replace(CARD, reasoning_parser="qwen3")), Problem)
    assert isinstance(rendered("plain", asked(chat_template_kwargs={"reasoning_effort": "high"})), Problem)
    assert rendered("{{ reasoning_effort }}", asked(chat_template_kwargs={"reasoning_effort": "high"})) == "high"


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"prompt": "x", "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "give `messages`"),
        ({"prompt": "x", "chat_template_kwargs": {"a": 1}}, "chat_template_kwargs", "give `messages`"),
        ({"messages": [{"role": "user"}], "tools": []}, "tools", "length >= 1"),
        ({"messages": [{"role": "user"}], "tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "regex"),
        ({"messages": [{"role": "user"}], "tools": [{"type": "function", "function": {"name": "f"}}] * 2}, "tools", "two tools named f"),
        ({"messages": [{"role": "user"}], "tools": [{"type": "function", "function": {"name": "f"}}] * 129}, "tools", "length <= 128"),
    ],
)
def test_tools_that_cannot_be_are_refused_by_name(body: dict[str, Any], param: str, words: str) -> None:
    problem = parse(msgspec.json.encode({"model": "m", **body}), 100_000)
    assert isinstance(problem, Problem)
    assert problem.param == param
    assert words in problem.message
