"""What HTTP answers: JSON, and refusals in OpenAI's shape."""

import msgspec
from aiohttp import web

from services.gateway.errors import body_of, conflict_of, error_body, headers_of, status_of, type_of
from shared.contracts.outcomes import Problem
from shared.core.workflows import WorkflowError

JSON = "application/json"


def answer(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON text as the whole reply."""
    return web.Response(body=body, status=status, content_type=JSON, headers=headers)


def record(struct: msgspec.Struct, status: int = 200) -> web.Response:
    """A record as the whole reply."""
    return answer(msgspec.json.encode(struct), status)


def refusal(problem: Problem, headers: dict[str, str] | None = None) -> web.Response:
    """A problem as the whole reply."""
    return answer(body_of(problem), status_of(problem), {**(headers or {}), **headers_of(problem)})


def conflict(error: WorkflowError) -> web.Response:
    """What a workflow cannot do, as the whole reply. OpenAI's clients would repeat a 409 by themselves: they are told that it is no use."""
    status, code, param = conflict_of(error)
    body = error_body(str(error), type_of(status), param=param, code=code)
    return answer(body, status, {"x-should-retry": "false"})
