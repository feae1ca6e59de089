"""The AsyncAPI 3.0 document and the JSON Schemas, made from the catalogue. `docs/generate.py` writes them.

Channels are named by their subject without its ids; operations say which service sends or receives what.
"""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from shared.contracts import subjects
from shared.contracts.catalogue import CATALOGUE, Kind
from shared.contracts.costs import CostReport
from shared.contracts.examples import DOORS, MESSAGES
from shared.contracts.steps import HandedOver, HandOverAsked, StepRecord, Submission, Turn
from shared.contracts.streams import STREAMS
from shared.contracts.workflows import ValueFound, WorkflowList, WorkflowRecord

Json = dict[str, Any]

VERSION = "0.1.0"  # of the contracts: what golden bytes change, changes it
DIALECT = "https://json-schema.org/draft/2020-12/schema"
REFS = "#/components/schemas/{name}"
PLACES = ("step", "workflow", "token", "cell", "worker", "pool", "service", "partition")  # fields that stand in subjects

SUBMISSIONS = Kind(
    type=Submission,
    subject=lambda _: subjects.submit("{step}"),  # type: ignore[arg-type]
    pattern=subjects.SUBMIT,
    stored=True,
    senders=("client", "gateway"),
    listeners=("admission",),
)
TURNS = Kind(
    type=Turn,
    subject=lambda _: subjects.turn("{turn}"),  # type: ignore[arg-type]
    pattern=subjects.TURN,
    stored=True,
    senders=("client", "gateway"),
    listeners=("admission",),
)
KINDS = (SUBMISSIONS, TURNS, *CATALOGUE)


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A request, and who answers it. `asks`: what it must carry."""

    name: str
    address: str
    answer: type[msgspec.Struct]
    asks: type[msgspec.Struct] | None = None
    payload: str = "its payload is ignored."
    service: str = "workflow"


QUERIES = (
    Query(name="query.step", address="legato.query.step.{step}", answer=StepRecord),
    Query(name="query.workflow", address="legato.query.workflow.{workflow}", answer=WorkflowRecord),
    Query(
        name="query.workflows",
        address=subjects.QUERY_WORKFLOWS,
        answer=WorkflowList,
        payload="its payload is how many at most, or an object with `most` and `key`: those that were opened with this key.",
    ),
    Query(name="query.costs", address=subjects.QUERY_COSTS, answer=CostReport, payload="its payload is the Unix time in ns since when."),
    Query(name="query.value", address="legato.query.value.{workflow}.{token}", answer=ValueFound),
    Query(
        name="handover",
        address="legato.handover.{worker}",
        answer=HandedOver,
        asks=HandOverAsked,
        payload="the worker with the next attempt sends it to the one that has the step.",
        service="worker",
    ),
)

INFO: Json = {
    "title": "Legato",
    "version": VERSION,
    "description": (
        "Every message on Legato's bus. A user needs four channels: publish to `submit`, listen on `out`, and, if wanted, publish to "
        "`cancel` and ask on `query.step`; docs/nats-api.md shows how. All others are spoken between the services. An operation belongs "
        "to the service that its tag names: `send` means that this service sends."
    ),
    "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
}
SERVERS: Json = {
    "local": {"host": "127.0.0.1:4222", "protocol": "nats", "description": "nats-server 2.12 or newer with JetStream"},
}
PARAMETERS: Json = {
    "step": {"description": "The step's id, chosen by whoever submits it: one token of a NATS subject."},
    "turn": {"description": "The id of a conversation up to its last message, made of what it says (docs/nats-api.md)."},
    "workflow": {"description": "The workflow's id, chosen by whoever opens it: one token of a NATS subject."},
    "token": {"description": "The name of a value, as the SHA-256 of it says it in 32 hexadecimal digits."},
    "cell": {"description": "The cell: one region's fleet."},
    "worker": {"description": "The worker's id."},
    "pool": {"description": "Workers of one kind within a cell."},
    "service": {"description": "The name of a service."},
    "partition": {"description": "A decision partition of a service."},
}
HEADERS: Json = {
    "type": "object",
    "properties": {
        "Nats-Msg-Id": {"type": "string", "description": "JetStream keeps the first message of each id within two minutes."},
        "traceparent": {"type": "string", "description": "W3C Trace Context: the trace that this belongs to."},
    },
}


def tag_of(kind: type[msgspec.Struct]) -> str:
    """The name of a message in documents and file names: its `type` on the wire, else its class's name in the same style."""
    tag = kind.__struct_config__.tag
    return str(tag) if tag else re.sub(r"(?<!^)(?=[A-Z])", ".", kind.__name__).lower()


def example_names() -> dict[str, msgspec.Struct]:
    """All examples by name: the message's tag, numbered from the second of its kind on."""
    named: dict[str, msgspec.Struct] = {}
    for example in (*DOORS, *MESSAGES):
        name, number = tag_of(type(example)), 2
        while name in named:
            name, number = f"{tag_of(type(example))}.{number}", number + 1
        named[name] = example
    return named


def schemas() -> dict[str, Json]:
    """A JSON Schema of every message, by tag, each complete in itself."""
    return {tag_of(kind): {"$schema": DIALECT, **_standard(msgspec.json.schema(kind))} for kind in _types()}


def asyncapi() -> Json:
    """The document."""
    _, definitions = msgspec.json.schema_components(_types(), ref_template=REFS)
    channels, operations = _query_channels(), _query_operations()
    for kind in KINDS:
        address = _address_of(kind)
        for place, action, services in ((address, "send", kind.senders), (subjects.stored_as(address), "receive", kind.listeners)):
            name = _name_of(place)
            channel = channels.setdefault(name, _channel(kind, place))
            channel["messages"][tag_of(kind.type)] = {"$ref": f"#/components/messages/{tag_of(kind.type)}"}
            for service in services:
                operations |= _operation(kind, service, action, name)
    return {
        "asyncapi": "3.0.0",
        "info": INFO,
        "defaultContentType": "application/json",
        "servers": SERVERS,
        "channels": dict(sorted(channels.items())),
        "operations": dict(sorted(operations.items())),
        "components": {
            "messages": {tag_of(kind): _message(kind) for kind in _types()},
            "schemas": _standard(definitions),
            "parameters": PARAMETERS,
        },
    }


def _standard(schema: Any) -> Any:
    """Without `discriminator`, which is OpenAPI's; each variant fixes the value of its own `kind` anyway."""
    if isinstance(schema, list):
        return [_standard(item) for item in schema]
    if isinstance(schema, dict):
        return {key: _standard(value) for key, value in schema.items() if key != "discriminator"}
    return schema


def _types() -> list[type[msgspec.Struct]]:
    asked = (query.asks for query in QUERIES if query.asks is not None)
    return [*(kind.type for kind in KINDS), *asked, *(query.answer for query in QUERIES)]


def _address_of(kind: Kind) -> str:
    """The subject with the names of its ids in braces."""
    example = next(example for example in (*MESSAGES, *DOORS) if type(example) is kind.type)
    places = {field: f"{{{field}}}" for field in PLACES if field in kind.type.__struct_fields__}
    return kind.subject(msgspec.structs.replace(example, **places))


def channel_of(kind: Kind) -> str:
    """The name of the channel on which a message is published."""
    return _name_of(_address_of(kind))


def _name_of(address: str) -> str:
    return ".".join(token for token in address.split(".")[1:] if not token.startswith("{"))


def _channel(kind: Kind, address: str) -> Json:
    return {"address": address, "description": _kept(kind, address), "parameters": _parameters(address), "messages": {}}


def _kept(kind: Kind, address: str) -> str:
    stream = next((stream.name for stream in STREAMS if kind.stored and any(_covers(s, kind.pattern) for s in stream.subjects)), "")
    published = _address_of(kind)
    stored = subjects.stored_as(published)
    if not stream:
        return "Not kept: at most once, to whoever listens."
    if stored == published:
        return f"Kept in the stream {stream}."
    if address == published:
        return f"Kept in the stream {stream}, under `{stored}`; what the stream refuses, no reader sees."
    return f"Sent on by the stream {stream}, which keeps it under this subject, once it is stored."


def _covers(pattern: str, subject: str) -> bool:
    """Whether a stream's subject takes in all subjects of a pattern."""
    tokens = pattern.split(".")
    return subject.split(".")[: len(tokens) - 1] == tokens[:-1] if tokens[-1] == ">" else pattern == subject


def _parameters(address: str) -> Json:
    return {name: {"$ref": f"#/components/parameters/{name}"} for name in re.findall(r"\{(\w+)\}", address)}


def _message(kind: type[msgspec.Struct]) -> Json:
    examples = [{"name": name, "payload": _plain(example)} for name, example in example_names().items() if type(example) is kind]
    return {
        "name": tag_of(kind),
        "title": kind.__name__,
        "summary": (kind.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " "),
        "headers": HEADERS,
        "payload": {"$ref": REFS.format(name=kind.__name__)},
        "examples": examples,
    }


def _plain(example: msgspec.Struct) -> Any:
    """As JSON has it, which also takes in what a message holds as encoded bytes."""
    return msgspec.json.decode(msgspec.json.encode(example))


def _operation(kind: Kind, service: str, action: str, channel: str) -> Json:
    tag = tag_of(kind.type)
    who = service.replace(" ", "-")
    return {
        f"{who}.{action}.{tag}": {
            "action": action,
            "channel": {"$ref": f"#/channels/{channel}"},
            "messages": [{"$ref": f"#/channels/{channel}/messages/{tag}"}],
            "tags": [{"name": who}],
        }
    }


def _query_channels() -> Json:
    """Requests and the inboxes of their answers."""
    channels: Json = {}
    for query in QUERIES:
        answer = tag_of(query.answer)
        asked = tag_of(query.asks) if query.asks is not None else "ask"
        channels[query.name] = {
            "address": query.address,
            "description": f"A NATS request; {query.payload}",
            "parameters": _parameters(query.address),
            "messages": {asked: {"name": asked, "payload": {}} if query.asks is None else {"$ref": f"#/components/messages/{asked}"}},
        }
        channels[f"{query.name}.answer"] = {
            "address": None,
            "description": "The inbox that the request names.",
            "messages": {answer: {"$ref": f"#/components/messages/{answer}"}},
        }
    return channels


def _query_operations() -> Json:
    return {
        f"{query.service}.receive.{query.name}": {
            "action": "receive",
            "channel": {"$ref": f"#/channels/{query.name}"},
            "messages": [{"$ref": f"#/channels/{query.name}/messages/{tag_of(query.asks) if query.asks is not None else 'ask'}"}],
            "reply": {
                "channel": {"$ref": f"#/channels/{query.name}.answer"},
                "messages": [{"$ref": f"#/channels/{query.name}.answer/messages/{tag_of(query.answer)}"}],
            },
            "tags": [{"name": query.service}],
        }
        for query in QUERIES
    }


def files() -> Iterable[tuple[str, bytes]]:
    """(path below docs/, content) of everything that is generated."""
    yield "asyncapi.json", pretty(asyncapi())
    for tag, schema in schemas().items():
        yield f"schemas/{tag}.json", pretty(schema)


def pretty(document: Json) -> bytes:
    """As it stands in a file."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
