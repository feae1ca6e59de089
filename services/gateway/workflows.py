"""Steps of workflows over HTTP, by the rules of the client (shared/runtime/workflow_run.py): either goes on with what the other began.

A run is begun with the first request of a workflow and kept for `workflow_run_ms`: the record is read from Postgres once for all requests
of that time, and what came later from the log.
"""

import asyncio
import logging
from collections import OrderedDict

import msgspec

from services.gateway.belonging import Belonging
from services.gateway.config import GatewayConfig
from services.gateway.dialect import Asked
from services.gateway.exchange import CANCEL_TIMEOUT_S, Exchange, Farewells
from shared.contracts import subjects
from shared.contracts.catalogue import KIND
from shared.contracts.ids import StepId
from shared.contracts.outcomes import Problem, Reason
from shared.contracts.steps import StepRecord, StepState, Submission
from shared.contracts.streams import OUT
from shared.contracts.workflows import WorkflowOpened
from shared.core.errors import LegatoError
from shared.core.machine import ENCODER
from shared.core.workflows import RecordAway, Terms, Unfit, WorkflowError, output_of
from shared.runtime.bus import Bus
from shared.runtime.publisher import WrongLastSequence
from shared.runtime.workflow_run import WorkflowRun, ask, opening

log = logging.getLogger(__name__)

SESSIONS_MAX = 10_000  # whose opening is remembered

_Name = tuple[str, str]  # key of the caller, id of the workflow

NO_TERMS = Terms()


class Workflows:
    """Methods raise Unfit, WorkflowError, RecordAway, BusError and StoreError where they do not say otherwise."""

    def __init__(self, bus: Bus, config: GatewayConfig, farewells: Farewells) -> None:
        self._bus = bus
        self._config = config
        self._farewells = farewells
        self._runs: OrderedDict[_Name, tuple[float, WorkflowRun]] = OrderedDict()  # the oldest first, with the time when it is over
        self._steps = 0  # that are kept with all runs
        self._sessions: OrderedDict[_Name, None] = OrderedDict()

    async def submit(self, exchange: Exchange, asked: Asked, belonging: Belonging) -> Problem | None:
        """Hand a step in, join it where it runs, or have its recorded answer: `exchange` then has its output. What could not be, and why.
        Raises WorkflowError."""
        try:
            if belonging.session:
                self._note(asked.submission.key, belonging)
                return await exchange.submit(asked)
            run = await self.begun(asked.submission.key, belonging)
            return await (self._named(exchange, asked, run, belonging.name) if belonging.name else self._nameless(exchange, asked, run))
        except Unfit as error:
            return error.problem
        except WorkflowError:
            raise
        except LegatoError as error:
            return away(error)

    async def begun(self, key: str, belonging: Belonging) -> WorkflowRun:
        """The run of a workflow, which is opened where it is new."""
        known, budget_usd = self._kept((key, belonging.workflow)), belonging.terms.budget_usd
        if known is None or budget_usd not in (None, known.budget_usd):
            opened = opening(belonging.workflow, belonging.kind, key, belonging.terms)
            known = WorkflowRun(self._bus, opened, self._config.workflow_wait_ms / 1e3)
            await known.begin()
            self._keep(known)
        return known

    async def joined(self, key: str, workflow: str) -> WorkflowRun:
        """The run of a workflow that somebody has opened."""
        known = self._kept((key, workflow))
        if known is None:
            known = self.fresh(key, workflow)
            await known.join()
            self._keep(known)
        return known

    def fresh(self, key: str, workflow: str, terms: Terms = NO_TERMS) -> WorkflowRun:
        """A run of a workflow that is to be joined, with the record as it is then."""
        return WorkflowRun(self._bus, opening(workflow, "", key, terms), self._config.workflow_wait_ms / 1e3)

    # --- steps ---------------------------------------------------------------------------------------------------------------

    async def _nameless(self, exchange: Exchange, asked: Asked, run: WorkflowRun) -> Problem | None:
        return await exchange.submit(_within(asked, await run.grant(asked.submission.timeout_ms)))

    async def _named(self, exchange: Exchange, asked: Asked, run: WorkflowRun, name: str) -> Problem | None:
        async def next_try(refused: StepId, whole: bytes) -> tuple[StepId, bool]:
            place = await run.place(name, msgspec.json.decode(whole, type=Submission), refused)
            return place.step, place.status is None

        place = await run.place(name, asked.submission)
        exchange.share(place.step, next_try)
        if place.status is StepState.SUCCEEDED and await self._bus.last(OUT.name, subjects.out(place.step)) is None:
            await self._recorded(exchange)
            return None
        if place.status is not None:
            return await exchange.join(asked)
        problem = await exchange.submit(_within(asked, await run.grant(asked.submission.timeout_ms)))
        if problem is None and exchange.copy:  # somebody else was a moment earlier
            await run.compare(name, place.step, asked.submission)
        return problem

    async def _recorded(self, exchange: Exchange) -> None:
        """The answer that Postgres has, for good (without log-probabilities); the log has forgotten it."""
        found = await ask(self._bus, subjects.query_step(exchange.step), StepRecord)
        output = output_of(found) if found is not None else None
        if output is None:
            raise RecordAway("the recorded answer cannot be read now")
        exchange.have(output)

    # --- sessions ------------------------------------------------------------------------------------------------------------

    def _note(self, key: str, belonging: Belonging) -> None:
        """Open the workflow of a session, in the background: its steps need it not."""
        name = (key, belonging.workflow)
        if name in self._sessions:
            return
        self._sessions[name] = None
        if len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        self._farewells.start(self._open(opening(belonging.workflow, belonging.kind, key, Terms())), f"open-{belonging.workflow}")

    async def _open(self, opened: WorkflowOpened) -> None:
        subject = KIND[WorkflowOpened].subject(opened)
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                await (await self._bus.store(subject, ENCODER.encode(opened), msg_id=opened.id, expect_last=0))
        except WrongLastSequence:
            log.debug("opened before", extra={"workflow": opened.workflow})

    # --- runs that are kept --------------------------------------------------------------------------------------------------

    def _kept(self, name: _Name) -> WorkflowRun | None:
        now = asyncio.get_running_loop().time()
        while self._runs and next(iter(self._runs.values()))[0] <= now:
            self._drop()
        found = self._runs.get(name)
        return found[1] if found is not None else None

    def _keep(self, run: WorkflowRun) -> None:
        name = (run.key, str(run.id))
        if name in self._runs:  # begun by two requests at once
            return
        self._runs[name] = (asyncio.get_running_loop().time() + self._config.workflow_run_ms / 1e3, run)
        self._steps += run.weight
        while self._steps > self._config.workflow_steps_kept_max and len(self._runs) > 1:
            self._drop()

    def _drop(self) -> None:
        _, (_, run) = self._runs.popitem(last=False)
        self._steps -= run.weight


def away(error: LegatoError) -> Problem:
    """NATS or the record cannot be reached: later, it is right to ask again."""
    log.warning("a workflow cannot be served", extra={"error": str(error)})
    return Problem(reason=Reason.NO_CAPACITY, message=f"{error}; try again")


def _within(asked: Asked, timeout_ms: int | None) -> Asked:
    """The request with the time that its workflow grants."""
    if timeout_ms == asked.submission.timeout_ms:
        return asked
    submission = msgspec.structs.replace(asked.submission, timeout_ms=timeout_ms)
    return msgspec.structs.replace(asked, submission=submission, data=msgspec.json.encode(submission))
