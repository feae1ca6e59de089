"""The wire format: golden bytes, and the documents that are made from the contracts.

When a golden test fails, a message looks different on the wire, and other programs and older releases will notice. Where that is what you
want: `python docs/generate.py --golden`, and say so in the commit.
"""

import re
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest

from shared.contracts import document
from shared.contracts.catalogue import CATALOGUE
from shared.contracts.envelope import Message
from shared.contracts.examples import DOORS, MESSAGES
from shared.contracts.steps import GRAMMARS, Sampling

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).with_name("golden")
EXAMPLES = document.example_names()
SCHEMAS = document.schemas()
ASYNCAPI = document.asyncapi()


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_message_has_its_golden_bytes(name: str) -> None:
    assert msgspec.json.encode(EXAMPLES[name]) == (GOLDEN / f"{name}.json").read_bytes()


@pytest.mark.parametrize("name", EXAMPLES)
def test_golden_bytes_are_read_as_the_message(name: str) -> None:
    example = EXAMPLES[name]
    decoded = msgspec.json.decode((GOLDEN / f"{name}.json").read_bytes(), type=type(example))
    assert decoded == example
    assert msgspec.json.encode(decoded) == msgspec.json.encode(example)


def test_there_are_no_golden_bytes_of_what_is_gone() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(EXAMPLES)


def test_every_message_of_the_catalogue_has_an_example() -> None:
    assert {type(example) for example in MESSAGES} == {kind.type for kind in CATALOGUE}


@pytest.mark.parametrize("kind", list(dict.fromkeys(map(type, EXAMPLES.values()))), ids=lambda kind: kind.__name__)
def test_the_examples_set_every_field(kind: type[msgspec.Struct]) -> None:
    found: set[tuple[type, str]] = set()
    wanted: set[tuple[type, str]] = set()
    for example in EXAMPLES.values():
        if type(example) is kind:
            _collect(example, found, wanted)
    assert wanted - found - {(Sampling, name) for name in GRAMMARS} == set()  # they exclude others, so they have an example of their own


def _collect(value: Any, found: set[tuple[type, str]], wanted: set[tuple[type, str]]) -> None:
    """Fields that are there, and fields that differ from their default."""
    if isinstance(value, (list, tuple)):
        for item in value:
            _collect(item, found, wanted)
    elif isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(value):
            wanted.add((type(value), field.name))
            item = getattr(value, field.name)
            default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
            if item != default:
                found.add((type(value), field.name))
            _collect(item, found, wanted)


@pytest.mark.parametrize("kind", CATALOGUE, ids=lambda kind: kind.type.__name__)
def test_a_message_ignores_fields_that_it_does_not_know(kind: Any) -> None:
    """So that services can be upgraded one by one."""
    example = next(example for example in MESSAGES if type(example) is kind.type)
    assert isinstance(example, Message)
    newer = {**msgspec.json.decode(msgspec.json.encode(example)), "added_later": [1]}
    assert msgspec.json.decode(msgspec.json.encode(newer), type=kind.type) == example


@pytest.mark.parametrize("kind", CATALOGUE, ids=lambda kind: kind.type.__name__)
def test_a_subject_lies_within_its_pattern(kind: Any) -> None:
    example = next(example for example in MESSAGES if type(example) is kind.type)
    pattern = re.escape(kind.pattern).replace(r"\*", r"[^.\s]+")
    assert re.fullmatch(pattern, kind.subject(example))


def test_what_is_stored_has_one_stream_and_what_is_not_has_none() -> None:
    for kind in document.KINDS:
        text = ASYNCAPI["channels"][document.channel_of(kind)]["description"]
        assert text.startswith("Kept in the stream LEGATO_" if kind.stored else "Not kept")


def test_outputs_are_published_on_one_channel_and_received_on_another() -> None:
    channels = {name: operation["channel"]["$ref"] for name, operation in ASYNCAPI["operations"].items() if name.endswith(".output")}
    assert {place for name, place in channels.items() if ".send." in name} == {"#/channels/outbox"}
    assert {place for name, place in channels.items() if ".receive." in name} == {"#/channels/out"}
    assert ASYNCAPI["channels"]["out"]["address"] == "legato.out.{step}"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_fits_its_json_schema(name: str) -> None:
    schema = SCHEMAS[document.tag_of(type(EXAMPLES[name]))]
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(msgspec.json.decode((GOLDEN / f"{name}.json").read_bytes()), schema, jsonschema.Draft202012Validator)


def test_a_schema_refuses_what_the_door_refuses() -> None:
    schema = SCHEMAS["submission"]
    for wrong in ({"prompt": "x"}, {"model": "m", "colour": "red"}, {"model": "m", "sampling": {"temperature": 3}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema, jsonschema.Draft202012Validator)


def test_the_committed_documents_are_current() -> None:
    for name, content in document.files():
        assert (ROOT / "docs" / name).read_bytes() == content, f"docs/{name} is not current: python docs/generate.py"
    wanted = {name for name, _ in document.files() if name.startswith("schemas/")}
    assert {f"schemas/{path.name}" for path in (ROOT / "docs" / "schemas").iterdir()} == wanted


def test_every_reference_in_the_document_leads_somewhere() -> None:
    references = list(_references(ASYNCAPI))
    assert len(references) > 200
    for reference in references:
        place: Any = ASYNCAPI
        for key in reference.removeprefix("#/").split("/"):
            place = place[key]


def _references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [reference for item in value for reference in _references(item)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
    return own + [reference for item in value.values() for reference in _references(item)]


def test_the_document_has_the_structure_of_asyncapi_3() -> None:
    jsonschema.validate(ASYNCAPI, STRUCTURE, jsonschema.Draft202012Validator)
    for operation in ASYNCAPI["operations"].values():
        channel = operation["channel"]["$ref"]
        assert all(message["$ref"].startswith(f"{channel}/messages/") for message in operation["messages"])
    for channel in ASYNCAPI["channels"].values():
        assert set(channel.get("parameters", {})) == set(re.findall(r"\{(\w+)\}", channel["address"] or ""))


def test_the_document_names_every_door_of_a_user() -> None:
    addresses = {channel["address"] for channel in ASYNCAPI["channels"].values()}
    assert {"legato.submit.{step}", "legato.out.{step}", "legato.cancel.{step}", "legato.query.step.{step}"} <= addresses
    assert {document.tag_of(type(example)) for example in DOORS} <= set(ASYNCAPI["components"]["messages"])


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _map(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "propertyNames": {"pattern": r"^[\w.\-]+$"}, "additionalProperties": item}


_TEXT = {"type": "string", "minLength": 1}
_REF = _object({"$ref": {"type": "string", "pattern": "^#/"}}, "$ref")
_REFS = {"type": "array", "items": _REF, "minItems": 1}
_SCHEMA = {"type": "object"}
_LICENSE = _object({"name": _TEXT, "url": _TEXT}, "name")
_MESSAGE = _object(
    {
        "name": _TEXT,
        "title": _TEXT,
        "summary": _TEXT,
        "headers": _SCHEMA,
        "payload": _SCHEMA,
        "examples": {"type": "array", "items": _object({"name": _TEXT, "payload": {}}, "payload"), "minItems": 1},
    },
    "payload",
)

# What the specification (AsyncAPI 3.0.0) says of the objects that the document uses, and no others.
STRUCTURE = _object(
    {
        "asyncapi": {"const": "3.0.0"},
        "info": _object(
            {"title": _TEXT, "version": _TEXT, "description": _TEXT, "license": _object({"name": _TEXT, "url": _TEXT}, "name")}
        ),
        "defaultContentType": {"const": "application/json"},
        "servers": _map(_object({"host": _TEXT, "protocol": _TEXT, "description": _TEXT}, "host", "protocol")),
        "channels": _map(
            _object(
                {
                    "address": {"type": ["string", "null"]},
                    "description": _TEXT,
                    "parameters": _map(_REF),
                    "messages": _map({"anyOf": [_REF, _MESSAGE]}),
                },
                "address",
                "messages",
            )
        ),
        "operations": _map(
            _object(
                {
                    "action": {"enum": ["send", "receive"]},
                    "channel": _REF,
                    "messages": _REFS,
                    "reply": _object({"channel": _REF, "messages": _REFS}),
                    "tags": {"type": "array", "items": _object({"name": _TEXT}, "name")},
                },
                "action",
                "channel",
            )
        ),
        "components": _object(
            {"messages": _map(_MESSAGE), "schemas": _map(_SCHEMA), "parameters": _map(_object({"description": _TEXT}))},
        ),
    },
    "asyncapi",
    "info",
)
