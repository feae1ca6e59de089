"""Calls and thought within texts, as models write them."""

import pytest

from shared.core.parsing.deltas import Call, Delta, Parsed
from shared.core.parsing.reader import FORCED, NAMED, Reader, parse

CALL = '{"name": "weather", "arguments": {"city": "Paris", "days": [1, 2]}}'
ARGUMENTS = '{"city": "Paris", "days": [1, 2]}'
WEATHER = Call(name="weather", arguments=ARGUMENTS)


def read(text: str, tools: str = "", reasoning: str = "", **more: object) -> Parsed:
    return parse(text, Reader(tools, reasoning, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>\n{CALL}\n</tool_call>",
        f"<tool_call>{CALL}</tool_call>\n",
        f"\n<tool_call>{CALL}",  # the output ended at a stop token
        f"<tool_call>{CALL[:-1]}</tool_call>",  # one `}` too few
        f'<tool_call>{{"arguments": {ARGUMENTS}, "name": "weather"}}</tool_call>',
        f'<tool_call>{{"type": "function", "name": "weather", "parameters": {ARGUMENTS}}}</tool_call>',
    ],
)
def test_a_call_in_the_manner_of_hermes_is_found(text: str) -> None:
    assert read(text, "hermes") == Parsed(calls=[WEATHER])


def test_several_calls_and_what_is_said_beside_them_are_told_apart() -> None:
    text = f"I look.\n<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{CALL}\n</tool_call>\n\nDone."
    parsed = read(text, "hermes")
    assert parsed.calls == [WEATHER, WEATHER]
    assert parsed.content == "I look.\n\nDone."


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  plain text \n",
        "a <tool_call",
        "<tool_call>",
        "<tool_call>no JSON</tool_call> after",
        '<tool_call>{"nome": 1}</tool_call>',
        '<tool_call>{"name": "f", "arguments": ',
        '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>',
        '<tool_call>{"name": ""}</tool_call>',
        '{"name": "weather", "arguments": {}}',
    ],
)
def test_what_is_no_call_stays_as_it_is(text: str) -> None:
    assert read(text, "hermes") == Parsed(content=text)


def test_a_call_within_what_only_looked_like_one_is_found() -> None:
    parsed = read(f"<tool_call>oh: <tool_call>{CALL}</tool_call>", "hermes")
    assert parsed == Parsed(content="<tool_call>oh:", calls=[WEATHER])


def test_markers_and_brackets_within_strings_end_nothing() -> None:
    arguments = '{"text": "} ] </tool_call> \\" \\\\", "more": {"a": "{"}}'
    parsed = read(f'<tool_call>{{"name": "say", "arguments": {arguments}}}</tool_call>', "hermes")
    assert parsed == Parsed(calls=[Call(name="say", arguments=arguments)])


def test_arguments_that_were_cut_are_told_as_far_as_they_go() -> None:
    assert read('<tool_call>{"name": "f", "arguments": {"a": "b', "hermes").calls == [Call(name="f", arguments='{"a": "b')]


def test_arguments_that_are_no_object_are_told_as_they_are() -> None:
    for written, told in (("null", "{}"), ('"{\\"a\\": 1}"', '{"a": 1}'), ("[1]", "[1]")):
        text = f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>'
        assert read(text, "hermes") == Parsed(calls=[Call(name="f", arguments=told)])
    assert read('<tool_call>{"name": "f"}</tool_call>', "hermes") == Parsed(calls=[Call(name="f", arguments="{}")])


@pytest.mark.parametrize("start", ["[TOOL_CALLS]", "[TOOL_CALLS] ", "", " "])
def test_calls_in_the_manner_of_mistral_are_found(start: str) -> None:
    assert read(f"{start}[{CALL}, {CALL}]", "mistral") == Parsed(calls=[WEATHER, WEATHER])
    assert read(f"{start}[{CALL}", "mistral") == Parsed(calls=[WEATHER])


@pytest.mark.parametrize("text", ["[1, 2]", '[{"a": 1}]', "[", "[TOOL_CALLS]", "[TOOL_CALLS] none", '{"name": "f"}'])
def test_other_lists_are_no_calls_of_mistral(text: str) -> None:
    assert read(text, "mistral") == Parsed(content=text)


def test_what_follows_a_list_of_calls_is_content() -> None:
    assert read(f"[{CALL}, 7] more", "mistral") == Parsed(content=", 7] more", calls=[WEATHER])


@pytest.mark.parametrize("start", ["<|python_tag|>", ""])
def test_calls_in_the_manner_of_llama_are_found(start: str) -> None:
    call = CALL.replace("arguments", "parameters")
    assert read(f"{start}{call}; {call}", "llama3_json") == Parsed(calls=[WEATHER, WEATHER])


def test_json_that_is_an_answer_is_no_call_of_llama() -> None:
    for text in ('{"answer": 42}', '{"name": "Ada", "parameters": {}}', "{", "[]"):
        assert read(text, "llama3_json", names=["weather"]) == Parsed(content=text)


def test_a_name_is_told_before_the_arguments_and_these_as_they_come() -> None:
    reader = Reader("hermes")
    assert reader.push('Hm. <tool_call>{"name": "f", "argu') == [Delta(content="Hm.")]
    assert reader.push('ments": {"a"') == [Delta(call=0, name="f"), Delta(call=0, arguments='{"a"')]
    assert reader.push(": 1}") == [Delta(call=0, arguments=": 1}")]
    assert reader.push("}</tool_") == []
    assert reader.push("call>") == []
    assert reader.end() == []


def test_no_part_of_a_marker_is_told_before_it_is_known_to_be_none() -> None:
    reader = Reader("hermes")
    assert reader.push("a <tool") == [Delta(content="a")]
    assert reader.push("s>") == [Delta(content=" <tools>")]


def test_calls_that_a_grammar_made_sure_of_are_read() -> None:
    assert read(f"[{CALL.replace('arguments', 'parameters')}]", FORCED) == Parsed(calls=[WEATHER])
    assert read(ARGUMENTS, f"{NAMED}weather") == Parsed(calls=[WEATHER])
    assert read("", f"{NAMED}weather") == Parsed()


def test_calls_beyond_the_most_are_not_told() -> None:
    assert read(f"[{CALL}, {CALL}]", FORCED, calls_max=1) == Parsed(calls=[WEATHER])


@pytest.mark.parametrize(
    ("text", "parser", "parsed"),
    [
        ("<think>\nHm.\n</think>\n\nParis.", "qwen3", Parsed(reasoning="Hm.", content="Paris.")),
        ("Hm.\n</think>\n\nParis.", "deepseek_r1", Parsed(reasoning="Hm.", content="Paris.")),
        ("<think>Hm.</think>Paris. </think>", "deepseek_r1", Parsed(reasoning="Hm.", content="Paris. </think>")),
        ("Hm.", "deepseek_r1", Parsed(reasoning="Hm.")),
        ("<think>Hm", "qwen3", Parsed(reasoning="Hm")),
        ("Paris. <think>x</think>", "qwen3", Parsed(content="Paris. <think>x</think>")),
        ("<think>\n\n</think>\n\nParis.", "qwen3", Parsed(content="Paris.")),
        ("<thin", "qwen3", Parsed(content="<thin")),
        ("", "deepseek_r1", Parsed()),
    ],
)
def test_thought_is_told_apart_from_the_answer(text: str, parser: str, parsed: Parsed) -> None:
    assert read(text, reasoning=parser) == parsed


def test_a_call_behind_thought_is_found_and_one_within_it_is_not() -> None:
    text = f"<think>I could say <tool_call>{CALL}</tool_call></think>\n<tool_call>{CALL}</tool_call>"
    parsed = read(text, "hermes", "qwen3")
    assert parsed == Parsed(reasoning=f"I could say <tool_call>{CALL}</tool_call>", calls=[WEATHER])


def test_long_text_that_may_become_a_call_is_held_up_to_a_bound() -> None:
    for tools, start in (("hermes", "<tool_call>{"), ("mistral", "[{"), ("llama3_json", "{")):
        reader = Reader(tools)
        parsed = Parsed()
        for _ in range(70):
            parsed.add(reader.push(start + " " * 1_000))
            start = ""
        assert parsed.content or tools == "hermes"
        parsed.add(reader.push("x"))
        assert parsed.content
