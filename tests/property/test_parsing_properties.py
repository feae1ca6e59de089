"""What is told of a text does not depend on how it was cut, and nothing of it is lost."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.core.parsing import calls
from shared.core.parsing.deltas import Parsed
from shared.core.parsing.reader import FORCED, NAMED, REASONING_PARSERS, TOOL_PARSERS, Reader, parse

untimed = settings(deadline=None, max_examples=300)

characters = st.characters(exclude_categories=["Cs"])
PARTS = [
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<think>", "</think>", "<", "<tool", "</", "[", "]", "{", "}"),
    *(
        '{"name": "f", "arguments": {',
        '{"name":"g","parameters":{}}',
        '"',
        "\\",
        ",",
        ";",
        ":",
        " ",
        "\n",
        "\u00a0",
        '"name"',
        '"id": "x", ',
    ),
    *('{"a": "}"}', '"arguments"', "x", "é", '{"name": "f", "arguments": {"a": [1, "]"]}}', '{"arguments": {}, "name": "f"}'),
]
texts = st.lists(st.sampled_from(PARTS) | st.text(characters, max_size=3), max_size=14).map("".join)
readers = st.tuples(st.sampled_from(["", *TOOL_PARSERS, FORCED, f"{NAMED}f"]), st.sampled_from(["", *REASONING_PARSERS]))


def in_pieces(text: str, cuts: list[int], reader: Reader) -> Parsed:
    parsed = Parsed()
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for start, stop in pairwise(edges):
        parsed.add(reader.push(text[start:stop]))
    parsed.add(reader.end())
    return parsed


@untimed
@given(text=texts, cuts=st.lists(st.integers(0, 200), max_size=8), kind=readers)
def test_the_same_is_told_however_a_text_is_cut(text: str, cuts: list[int], kind: tuple[str, str]) -> None:
    whole = parse(text, Reader(*kind, names=["f"]))
    assert in_pieces(text, cuts, Reader(*kind, names=["f"])) == whole
    assert in_pieces(text, list(range(len(text))), Reader(*kind, names=["f"])) == whole


@pytest.mark.parametrize("held", [0, 3, 30])
@untimed
@given(text=texts, cuts=st.lists(st.integers(0, 200), max_size=8), kind=readers)
def test_nor_does_it_depend_on_where_the_bound_of_what_is_held_lies(held: int, text: str, cuts: list[int], kind: tuple[str, str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "HELD_CHARS_MAX", held)
        assert in_pieces(text, cuts, Reader(*kind)) == parse(text, Reader(*kind))


@untimed
@given(text=texts, kind=readers)
def test_nothing_is_lost(text: str, kind: tuple[str, str]) -> None:
    """All that is not blank and no part of a call's form is told; without calls and thought, all is."""
    parsed = parse(text, Reader(*kind))
    if not parsed.calls and not kind[1]:
        assert parsed.content == text
    told = sum(len("".join(part.split())) for part in (parsed.content, parsed.reasoning))
    told += sum(len("".join((call.name + call.arguments).split())) for call in parsed.calls)
    form = len('<|python_tag|>[TOOL_CALLS]<tool_call>{"name":"","arguments":}</tool_call>[],"id":"x","type":""') * (len(parsed.calls) + 1)
    assert len("".join(text.split())) <= told + form * 2 + len("<think></think>")


names = st.from_regex(r"[a-zA-Z0-9_-]{1,20}", fullmatch=True)
plain = st.text(characters, max_size=8).filter(lambda text: "<" not in text and "[" not in text and "{" not in text)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(characters, max_size=6), lambda inner: st.lists(inner, max_size=3)
)
given_calls = st.lists(st.tuples(names, st.dictionaries(st.text(characters, max_size=6), values, max_size=3)), min_size=1, max_size=3)


@untimed
@given(made=given_calls, before=plain, ascii_only=st.booleans(), cuts=st.lists(st.integers(0, 500), max_size=8))
def test_calls_come_back_as_they_were_written(
    made: list[tuple[str, dict[str, object]]], before: str, ascii_only: bool, cuts: list[int]
) -> None:
    told = [(name, json.dumps(arguments, ensure_ascii=ascii_only)) for name, arguments in made]
    written = [f'{{"name": "{name}", "arguments": {arguments}}}' for name, arguments in told]
    forms = {
        "hermes": before + "".join(f"<tool_call>\n{each}\n</tool_call>\n" for each in written),
        "mistral": f"{before}[TOOL_CALLS][{', '.join(written)}]",
        "llama3_json": "; ".join(written),
        FORCED: f"[{','.join(written)}]",
    }
    for tools, text in forms.items():
        parsed = in_pieces(text, cuts, Reader(tools))
        assert [(call.name, call.arguments) for call in parsed.calls] == told
        assert parsed.content == (before.rstrip() if tools in ("hermes", "mistral") else "")
