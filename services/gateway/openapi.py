"""The OpenAPI 3.1 document of the gateway, made from what it decodes and answers. `docs/generate.py` writes it.

OpenAI's own replies are OpenAI's to describe: they are objects here, with the address of their reference.
"""

import msgspec

from services.gateway import nvext
from services.gateway.belonging import BUDGET_USD, DEADLINE_S, KIND, STEP_KEY, STEPS_PLANNED, WORKFLOW
from services.gateway.shapes import NEUTRAL_CHAT, NEUTRAL_COMPLETION, ChatBody, CompletionBody
from services.gateway.workflow_api import LIST_DEFAULT, LIST_MAX, Cancellation, Cancelled, Closing, NamedStep, Resumed, Resumption, Value
from shared.contracts.document import INFO, Json
from shared.contracts.workflows import WorkflowList, WorkflowRecord

REFS = "#/components/schemas/{name}"
REFERENCE = "https://platform.openai.com/docs/api-reference"
JSON = "application/json"

DESCRIPTION = (
    "OpenAI's dialect: any OpenAI client can be used. What is not supported is refused by its name, never ignored. With "
    f"`{WORKFLOW}` and `{STEP_KEY}` a request is a step of a workflow, which is answered once however often it is asked for "
    "(docs/workflows.md)."
)
HEADERS: dict[str, tuple[str, Json]] = {
    "X-Legato-Timeout-Ms": ("The step must have finished within.", {"type": "integer", "minimum": 1}),
    "X-Legato-Priority": ("Higher goes first.", {"type": "integer", "minimum": -100, "maximum": 100}),
    WORKFLOW: (
        "Id of the workflow that the step belongs to: chosen by the program.",
        {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,128}$"},
    ),
    STEP_KEY: ("The step's name within its workflow.", {"type": "string", "minLength": 1, "maxLength": 256}),
    KIND: ("What sort of work the workflow is. Has effect when it is opened, like the next two.", {"type": "string", "maxLength": 128}),
    DEADLINE_S: ("The workflow's steps must end within, from its opening on.", {"type": "number", "minimum": 0}),
    STEPS_PLANNED: ("How many steps the workflow will have.", {"type": "integer", "minimum": 0}),
    BUDGET_USD: (
        "What all its steps may cost, in US dollars; the newest one counts.",
        {"type": "number", "exclusiveMinimum": 0},
    ),
    "traceparent": ("W3C Trace Context: the trace that the step joins.", {"type": "string"}),
    **{name: ("A session of NVIDIA Dynamo: groups steps.", {"type": "string", "maxLength": 256}) for name in nvext.SESSION_HEADERS},
}

ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"enum": ["invalid_request_error", "rate_limit_error", "server_error"]},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_TYPES = (ChatBody, CompletionBody, Closing, Cancellation, Cancelled, Resumption, Resumed, NamedStep, Value, WorkflowList, WorkflowRecord)


def openapi() -> Json:
    """The document."""
    return {
        "openapi": "3.1.0",
        "info": INFO | {"title": "Legato's gateway", "description": DESCRIPTION},
        "servers": [{"url": "http://127.0.0.1:8080"}],
        "security": [{}, {"key": []}],
        "paths": _paths(),
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": "The API key; only its SHA-256 goes further."}},
            "responses": {"Refused": {"description": "OpenAI's error object.", "content": {JSON: {"schema": ERROR}}}},
        },
    }


def _schemas() -> Json:
    _, found = msgspec.json.schema_components(_TYPES, ref_template=REFS)
    for name, neutral in (("ChatBody", NEUTRAL_CHAT), ("CompletionBody", NEUTRAL_COMPLETION), ("NvExt", nvext.NEUTRAL)):
        for field, allowed in neutral.items():
            found[name]["properties"][field] = {"enum": [*allowed, None], "description": "Not supported: any other value is refused."}
    return dict(found)


def _paths() -> Json:
    one, named = [_in_path("id", "Id of the workflow.")], _in_path("name", "Name of the step or value.")
    asks = [{"name": name, "in": "header", "description": text, "schema": schema} for name, (text, schema) in HEADERS.items()]
    limit = {"type": "integer", "minimum": 1, "maximum": LIST_MAX, "default": LIST_DEFAULT}
    return {
        "/v1/chat/completions": {"post": _generation("chat", "ChatBody", asks)},
        "/v1/completions": {"post": _generation("completion", "CompletionBody", asks)},
        "/v1/models": {"get": _operation("models", "The models that ready workers serve.", _object("models/list"))},
        "/v1/models/{name}": {"get": _operation("model", "One of them.", _object("models/retrieve"), [_in_path("name", "Its name.")])},
        "/v1/workflows": {
            "get": _operation(
                "workflows",
                "The newest workflows of this API key, without steps and values.",
                _schema(WorkflowList),
                [{"name": "limit", "in": "query", "schema": limit}],
            )
        },
        "/v1/workflows/{id}": {"get": _operation("workflow", "What is recorded of a workflow.", _schema(WorkflowRecord), one)},
        "/v1/workflows/{id}/complete": {
            "post": _operation("complete", "Say how it ended, once.", _schema(WorkflowRecord), one, _schema(Closing))
        },
        "/v1/workflows/{id}/cancel": {
            "post": _operation("cancel", "Cancel the steps that wait or run.", _schema(Cancelled), one, _schema(Cancellation))
        },
        "/v1/workflows/{id}/resume": {
            "post": _operation("resume", "Try anew what did not succeed.", _schema(Resumed), one, _schema(Resumption))
        },
        "/v1/workflows/{id}/steps/{name}": {"get": _operation("step", "A step with its attempts.", _schema(NamedStep), [*one, named])},
        "/v1/workflows/{id}/values/{name}": {
            "get": _operation("value", "A recorded value.", _schema(Value), [*one, named]),
            "put": _operation("keep", "Record a value, unless there is one: the first stays.", _schema(Value), [*one, named], {}),
        },
        "/health": {"get": _health("Whether the gateway has a connection to NATS.")},
        "/ready": {"get": _health("Whether it takes requests.")},
    }


def _generation(name: str, body: str, headers: list[Json]) -> Json:
    found = _operation(name, "A step. Its headers are said under `parameters`.", _object(name), headers, {"$ref": REFS.format(name=body)})
    found["responses"]["200"]["content"]["text/event-stream"] = {"schema": {"type": "string", "description": "With `stream`: events."}}
    found["responses"]["200"]["headers"] = {
        "X-Legato-Step": {"description": "The step's id.", "schema": {"type": "string"}},
        WORKFLOW: {"description": "The workflow's id, where there is one.", "schema": {"type": "string"}},
    }
    return found


def _operation(name: str, summary: str, answer: Json, parameters: list[Json] | None = None, body: Json | None = None) -> Json:
    found: Json = {"operationId": name, "summary": summary, "parameters": parameters or []}
    if body is not None:
        found["requestBody"] = {"content": {JSON: {"schema": body}}}
    done = {"description": "Done.", "content": {JSON: {"schema": answer}}}
    return found | {"responses": {"200": done, "default": {"$ref": "#/components/responses/Refused"}}}


def _schema(kind: type[msgspec.Struct]) -> Json:
    return {"$ref": REFS.format(name=kind.__name__)}


def _object(place: str) -> Json:
    return {"type": "object", "description": f"As in OpenAI's reference: {REFERENCE}/{place}"}


def _in_path(name: str, description: str) -> Json:
    return {"name": name, "in": "path", "required": True, "description": description, "schema": {"type": "string"}}


def _health(summary: str) -> Json:
    text = {"content": {"text/plain": {"schema": {"type": "string"}}}}
    return {"summary": summary, "responses": {"200": {"description": "Yes.", **text}, "503": {"description": "No.", **text}}}
