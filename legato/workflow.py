"""Workflows: programs of many steps that can be killed anywhere, and started again from the top, without paying for anything twice.

    async with client.workflow("report", id="q3-acme") as wf:
        plan = await wf.step("plan", model="smollm2-135m", prompt="Plan a report about rivers.", max_tokens=64)
        page = await wf.record("fetch", lambda key: fetch("https://example.org/rivers", idempotency_key=key))
        text = await wf.step("write", model="smollm2-135m", prompt=f"{plan.text}\n{page}", max_tokens=256)
        await wf.complete(success=True)

A step's id follows from the workflow's id and the step's name: whoever asks for it again finds it, running or ended, and joins it. What it
was asked is compared: the same name with another input is an error, not another answer. A step that did not succeed is tried anew when it
is asked for again. Values that `record` keeps lie in the log under their names, where the first one stays.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

import msgspec

from legato.outcome import NotEnded, Refused, Result, StepError
from legato.request import StepRequest, check_number, choice_request, to_submission
from shared.contracts.ids import StepId
from shared.contracts.outcomes import Reason, Status
from shared.contracts.steps import StepState
from shared.contracts.workflows import WorkflowOpened, WorkflowRecord
from shared.core.inputs import name_token
from shared.core.several import choice_key
from shared.core.workflows import InputChanged, RecordAway, Unfit, WorkflowError, checked_name
from shared.runtime.workflow_run import WorkflowRun

if TYPE_CHECKING:
    from legato.client import Client, Step

__all__ = ["InputChanged", "Workflow", "WorkflowError", "in_client_words"]

ValueT = TypeVar("ValueT")


class Workflow:
    """One run of a program. Use `client.workflow(...)`. Steps and values may be asked for side by side."""

    def __init__(self, client: "Client", opening: WorkflowOpened) -> None:
        self.id = opening.workflow
        self._client = client
        self._opening = opening
        self._begun_run: WorkflowRun | None = None

    async def __aenter__(self) -> Self:
        """Begin, or go on with what is there. Raises WorkflowError, BusError, StoreError, NotEnded when the record cannot be read."""
        run = WorkflowRun(self._client.bus, self._opening)
        with in_client_words():
            await run.begin()
        self._begun_run = run
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """It stays open, until `complete` says how it ended: who leaves with an error can come back."""

    @property
    def _run(self) -> WorkflowRun:
        if self._begun_run is None:
            raise WorkflowError(f"workflow {self.id} has not begun: use `async with client.workflow(...) as workflow`")
        return self._begun_run

    @property
    def record_at_start(self) -> WorkflowRecord:
        """What was known of it when this run began."""
        return self._run.record

    async def step(self, name: str, **request: Unpack[StepRequest]) -> Result:
        """The step's result: recorded, joined or new. Raises Refused, Failed, InputChanged, WorkflowError."""
        try:
            return await self._result(name, request, whole=False)
        except StepError as error:
            if error.problem.reason is not Reason.HISTORY_UNKNOWN:
                raise
        return await self._result(name, request, whole=True)

    async def _result(self, name: str, request: StepRequest, *, whole: bool) -> Result:
        step = await self._begun(name, request, whole=whole)
        if isinstance(step, Result):
            return step
        try:
            return await step.result()
        finally:
            await step.close()

    async def choices(self, name: str, n: int, **request: Unpack[StepRequest]) -> list[Result]:
        """`n` answers to one request, from 1 to CHOICES_MAX: steps of their own, called `name`, `name#1`, `name#2`, …, with seeds that
        follow from the request's, as over HTTP. A later run may ask for more or fewer: those that are recorded stay. Where one fails the
        others go on, and who asks again finds them. Raises what `step` raises, of the first that failed; Refused for an `n` that cannot
        be."""
        check_number(n)
        with in_client_words():
            checked_name(choice_key(name, n - 1))  # the longest: before any of them begins
        try:
            async with asyncio.TaskGroup() as group:
                reading = [group.create_task(self.step(choice_key(name, index), **choice_request(request, index))) for index in range(n)]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in reading]

    async def stream(self, name: str, **request: Unpack[StepRequest]) -> AsyncGenerator[str, None]:
        """The step's text as it comes, from its beginning. Leaving early cancels nothing: the next run joins it."""
        for whole in (False, True):
            step = await self._begun(name, request, whole=whole)
            if isinstance(step, Result):
                yield step.text
                return
            try:
                async for text in step.text():
                    yield text
                return
            except StepError as error:
                if whole or error.problem.reason is not Reason.HISTORY_UNKNOWN:  # which comes before any text
                    raise
            finally:
                await step.close()

    async def record(self, name: str, act: Callable[[str], Awaitable[ValueT]]) -> ValueT:
        """What `act` gave when it was first done, in this run or an earlier one, as JSON has it: a tuple is a list, and keys are strings.

        `act` gets an idempotency key, always the same for this name: it is done at least once, and a crash between doing and recording
        makes the next run do it again. Raises what `act` raises (then nothing is recorded), WorkflowError, StoreError.
        """
        with in_client_words():
            known = await self._run.value(checked_name(name))
            if known is None:
                await self._run.check_open()
        if known is not None:
            return msgspec.json.decode(known)  # type: ignore[no-any-return]
        value = await act(f"{self.id}.{name_token(name)}")
        with in_client_words():
            first = await self._run.keep(name, _as_json(name, value))
        return msgspec.json.decode(first)  # type: ignore[no-any-return]

    async def complete(self, *, success: bool = True, score: float | None = None, why: str = "") -> None:
        """Say how it ended. Once: a second time it must be the same. Raises WorkflowError."""
        with in_client_words():
            await self._run.complete(success, score, why)

    async def cancel(self, why: str = "") -> int:
        """Cancel the steps that run now; how many. The workflow itself stays open."""
        with in_client_words():
            return await self._run.cancel(why)

    async def _begun(self, name: str, request: StepRequest, *, whole: bool) -> "Step | Result":
        """`whole`: with all messages, because those that an earlier try referred to are lost."""
        with in_client_words():
            asked: StepRequest = {**request, "workflow": self.id, "step_key": checked_name(name)}
            submission = to_submission(asked, self._client.key)
            place = await self._run.place(name, submission)
            if place.status is StepState.SUCCEEDED:
                return await self._client.result(place.step)
            if place.status is not None:
                return await self._client.step(place.step)
            timeout_ms = await self._run.grant(request.get("timeout_ms"))
        if timeout_ms is not None:
            asked["timeout_ms"] = timeout_ms
        asked["step_id"] = place.step
        begun, new = await self._client.submit_once(asked, whole=whole)
        try:
            if not new:
                await self._run.compare(name, place.step, submission)
        except BaseException:
            await begun.close()
            raise
        return begun


@contextmanager
def in_client_words() -> Iterator[None]:
    """What a run says, as errors of the client."""
    try:
        yield
    except Unfit as error:
        raise Refused(error.problem, Result(id=StepId(""), status=Status.REFUSED)) from error
    except RecordAway as error:
        raise NotEnded(str(error)) from error


def _as_json(name: str, value: object) -> msgspec.Raw:
    """By the standard library, which says what is none: msgspec writes NaN as null, and bytes as text."""
    try:
        return msgspec.Raw(json.dumps(value, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise WorkflowError(f"what {name!r} gave cannot be recorded, it is no JSON: {error}") from error
