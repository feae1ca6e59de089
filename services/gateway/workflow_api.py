"""`/v1/workflows`: what a program says of its workflow and what is recorded of it, for the API key that opened it.

Bodies and answers are the messages of the bus (shared/contracts/workflows.py, steps.py) as JSON.
"""

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from services.gateway.answers import answer, conflict, record, refusal
from services.gateway.bodies import Bodies
from services.gateway.dialect import explain, read_key
from services.gateway.errors import error_body
from services.gateway.gate import Gate
from services.gateway.workflows import Workflows, away
from shared.contracts import subjects
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.steps import StepRecord, StepState
from shared.contracts.workflows import StepResumed, WorkflowList, WorkflowRecord, WorkflowsAsked, WorkflowState
from shared.core.errors import LegatoError
from shared.core.machine import ENCODER
from shared.core.workflows import RecordAway, Terms, Unfit, WorkflowError, checked_name
from shared.runtime.bus import Bus
from shared.runtime.resuming import resume
from shared.runtime.workflow_run import WorkflowRun, ask

LIST_DEFAULT = 100
LIST_MAX = 1_000


class Closing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/workflows/{id}/complete`: how it ended."""

    success: bool = True
    score: float | None = None
    why: str = ""


class Cancellation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/workflows/{id}/cancel`, which may be empty."""

    why: str = ""


class Cancelled(msgspec.Struct, frozen=True, kw_only=True):
    """Its answer: how many steps were running, and are asked to stop."""

    cancelled: int


class Resumption(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /v1/workflows/{id}/resume`, which may be empty: what the workflow may cost from now on."""

    budget_usd: float | None = None


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """Its answer: what became of each named step."""

    steps: list[StepResumed]


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded value: the first that was given under its name."""

    name: str
    value: msgspec.Raw


class NamedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step by its name: the newest of its tries, with all attempts."""

    name: str
    tries: int
    record: StepRecord


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WorkflowApi:
    """Handlers of all paths below /v1/workflows."""

    def __init__(self, bus: Bus, workflows: Workflows, bodies: Bodies, gate: Gate) -> None:
        self._bus = bus
        self._workflows = workflows
        self._bodies = bodies
        self._gate = gate

    def routes(self) -> list[web.RouteDef]:
        """For aiohttp."""
        one = "/v1/workflows/{id}"
        return [
            web.get("/v1/workflows", self._guarded(self.list)),
            web.get(one, self._guarded(self.show)),
            web.post(f"{one}/complete", self._guarded(self.complete)),
            web.post(f"{one}/cancel", self._guarded(self.cancel)),
            web.post(f"{one}/resume", self._guarded(self.resume)),
            web.get(one + "/steps/{name:.+}", self._guarded(self.step)),
            web.get(one + "/values/{name:.+}", self._guarded(self.value)),
            web.put(one + "/values/{name:.+}", self._guarded(self.keep)),
        ]

    async def list(self, request: web.Request) -> web.StreamResponse:
        """The newest workflows of the caller's key, without steps and values."""
        asked = WorkflowsAsked(most=_limit(request), key=_key(request))
        found = await ask(self._bus, subjects.QUERY_WORKFLOWS, WorkflowList, ENCODER.encode(asked))
        if found is None or found.problem is not None:
            raise RecordAway("the workflows cannot be read now")
        return record(WorkflowList(workflows=[each for each in found.workflows if each.key == asked.key]))  # an older service lists all

    async def show(self, request: web.Request) -> web.StreamResponse:
        """What is recorded of a workflow now."""
        run = await self._joined(request)
        found = await run.recorded()
        return record(run.record if found.state is WorkflowState.UNKNOWN else found)  # the second: it was opened a moment ago

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """Say how it ended."""
        run = await self._joined(request)
        said = msgspec.json.decode(await self._body(request) or b"{}", type=Closing)
        await run.complete(said.success, said.score, said.why)
        state = WorkflowState.SUCCEEDED if said.success else WorkflowState.FAILED
        return record(WorkflowRecord(workflow=run.id, state=state, score=said.score, why=said.why))

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        """Cancel the steps that run; the workflow stays open."""
        run = await self._joined(request)
        said = msgspec.json.decode(await self._body(request) or b"{}", type=Cancellation)
        return record(Cancelled(cancelled=await run.cancel(said.why)))

    async def resume(self, request: web.Request) -> web.StreamResponse:
        """Try anew what did not succeed."""
        said = msgspec.json.decode(await self._body(request) or b"{}", type=Resumption)
        run = self._workflows.fresh(_key(request), request.match_info["id"], Terms(budget_usd=said.budget_usd))
        await run.join()
        await run.renew_budget()
        return record(Resumed(steps=await resume(self._bus, run)))

    async def step(self, request: web.Request) -> web.StreamResponse:
        """A step by its name."""
        run, name = await self._joined(request), checked_name(request.match_info["name"])
        found = await run.last_try(name)
        if found is None:
            return _absent(f"workflow {run.id} has no step {name[:64]!r}", "step_not_found")
        tries, known = found
        recorded = await ask(self._bus, subjects.query_step(known.step), StepRecord)
        unknown = recorded is not None and recorded.status is StepState.UNKNOWN
        if recorded is None or (unknown and recorded.problem is not None and recorded.problem.reason is not Reason.INVALID):
            raise RecordAway(f"what is recorded of step {known.step} cannot be read now")
        if unknown:  # accepted a moment ago, or refused, which is not recorded
            recorded = StepRecord(step=known.step, status=known.status, workflow=run.id)
        return record(NamedStep(name=name, tries=tries, record=recorded))

    async def value(self, request: web.Request) -> web.StreamResponse:
        """A recorded value."""
        run, name = await self._joined(request), checked_name(request.match_info["name"])
        found = await run.value(name)
        return _absent(f"workflow {run.id} has no value {name[:64]!r}", "value_not_found") if found is None else _value(name, found)

    async def keep(self, request: web.Request) -> web.StreamResponse:
        """Record a value, unless there is one; the one that is there."""
        run, name = await self._joined(request), checked_name(request.match_info["name"])
        given = await self._body(request)
        msgspec.json.decode(given)
        known = await run.value(name)
        if known is None:
            await run.check_open()
            known = await run.keep(name, msgspec.Raw(given))
        return _value(name, known)

    async def _joined(self, request: web.Request) -> WorkflowRun:
        return await self._workflows.joined(_key(request), request.match_info["id"])

    async def _body(self, request: web.Request) -> bytes:
        async with self._bodies.room(request) as refused:
            body = refused or await self._bodies.read(request)
        if isinstance(body, Problem):
            raise _Refused(body)
        return body

    def _guarded(self, handle: Handler) -> Handler:
        """Every way in which it can end as an answer."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            if (closed := self._gate.closed) is not None:
                return refusal(closed)
            with self._gate.inside():
                try:
                    return await handle(request)
                except (_Refused, Unfit) as error:
                    return refusal(error.problem)
                except msgspec.ValidationError as error:
                    return refusal(explain(error, Closing | Cancellation | Resumption))
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    return refusal(Problem(reason=Reason.INVALID, message=f"the body should be JSON: {error}"))
                except WorkflowError as error:
                    return conflict(error)
                except LegatoError as error:
                    return refusal(away(error))

        return guarded


class _Refused(Exception):
    """Ends the reading of a request; never leaves this module."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def _key(request: web.Request) -> str:
    key = read_key(request.headers)
    if isinstance(key, Problem):
        raise _Refused(key)
    return key


def _limit(request: web.Request) -> int:
    for name in request.query:
        if name != "limit":
            raise _Refused(Problem(reason=Reason.UNSUPPORTED, message=f"{name[:64]} is not supported; there is limit", param=name[:64]))
    text = request.query.get("limit", str(LIST_DEFAULT))
    if not (text.isascii() and text.isdecimal() and len(text) < 5 and 1 <= int(text) <= LIST_MAX):
        raise Unfit(f"limit should be a number from 1 to {LIST_MAX}", "limit")
    return int(text)


def _value(name: str, value: msgspec.Raw) -> web.Response:
    return record(Value(name=name, value=value))


def _absent(message: str, code: str) -> web.Response:
    return answer(error_body(message, "invalid_request_error", code=code), 404)
