"""Postgres: what is written in one transaction, and what is read."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from services.workflow import sql, workflow_store
from services.workflow.policies.estimate import Span
from services.workflow.rows import columns, plain, problem_of, usage_of
from services.workflow.state import Admission, Changes, Due, Ending, Estimate, Known, Lost, Settlement
from shared.contracts.costs import Cost, CostReport
from shared.contracts.ids import MessageId, StepId, WorkerId
from shared.contracts.outcomes import FinishReason, Problem, Status, Usage
from shared.contracts.steps import AttemptRecord, StepAdmitted, StepDispatched, StepRecord, StepSettled, StepState
from shared.core.errors import LegatoError
from shared.core.money import NANO
from shared.runtime.db import Connection, Pool, Row

READER = "workflow"
COSTS_MAX = 1_000  # rows of one report
SPANS_MAX = 10_000  # attempts on one worker that an estimate looks at, the newest

_encode = msgspec.json.encode


class Overtaken(LegatoError):
    """Another process reads the log now; this one must stop at once."""


class Position(msgspec.Struct, kw_only=True):
    """How far this process has read. `unannounced`: what the last batch settled."""

    epoch: int
    batch: int
    seq: int
    unannounced: list[StepId]


class Store:
    """Every method may be repeated when its answer was lost, and raises what asyncpg raises."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    # --- writing -------------------------------------------------------------------------------------------------------------

    async def take_over(self, stream: str, created: str) -> Position:
        """Become the reader of a stream: whoever was it before can no longer write. `created` tells a stream from its successor."""
        row = await self._pool.fetchrow(sql.TAKE_OVER, READER, stream, created)
        assert row is not None
        return Position(epoch=row["epoch"], batch=row["batch"], seq=row["seq"], unannounced=row["unannounced"])

    async def known(self, steps: Iterable[StepId]) -> dict[StepId, Known]:
        """The rows that there are."""
        rows = await self._pool.fetch(sql.KNOWN, list(dict.fromkeys(steps)))
        return {row["step"]: _known(row) for row in rows}

    async def record(self, stream: str, reached: Position, changes: Changes, now_ns: int) -> list[StepId]:
        """Write a batch and the position behind it; the steps that it settled. `reached` has the number and end of this batch.

        A batch that is already there is not written again. Raises Overtaken.
        """
        async with self._pool.acquire() as connection, connection.transaction():
            row = await connection.fetchrow(sql.LOCK_POSITION, READER, stream)
            if row is None or row["epoch"] != reached.epoch:
                raise Overtaken("another process has taken over the reading of the log")
            if row["batch"] == reached.batch:
                return [StepId(step) for step in row["unannounced"]]
            settled = await _write(connection, changes, now_ns)
            await connection.execute(sql.MOVE_POSITION, READER, stream, reached.seq, reached.batch, settled)
            return settled

    async def looked(self, looks: Sequence[tuple[StepId, int, int]]) -> None:
        """(step, re-drives, when to look again) of steps that were due."""
        if looks:
            await self._pool.execute(sql.LOOKED, *columns(looks))

    async def estimated(self, estimates: Sequence[Estimate]) -> None:
        """Bill attempts by estimate, unless they have reported meanwhile."""
        await self._pool.execute(sql.ESTIMATE, *columns((e.step, e.attempt, e.gpu_s, e.usd) for e in estimates))

    async def forget_steps(self, before_ns: int, most: int) -> int:
        """Remove steps without a workflow that ended before then, the oldest, and keep what they have cost; how many."""
        async with self._pool.acquire() as connection, connection.transaction():
            steps = [row["step"] for row in await connection.fetch(sql.RETIRED_STEPS, before_ns, most)]
            await _forget(connection, steps)
        return len(steps)

    async def forget_workflows(self, before_ns: int, most: int) -> int:
        """Remove workflows of which nothing was heard since then, with all that is theirs, and keep what they have cost; how many."""
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.execute(sql.LOCK_POSITIONS, READER)  # nothing new comes to a workflow between the look and its end
            workflows = [row["workflow"] for row in await connection.fetch(sql.RETIRED_WORKFLOWS, before_ns, most)]
            await _forget(connection, [row["step"] for row in await connection.fetch(sql.STEPS_OF, workflows)])
            await connection.execute(sql.FORGET_VALUES, workflows)
            await connection.execute(sql.FORGET_WORKFLOWS, workflows)
        return len(workflows)

    # --- reading -------------------------------------------------------------------------------------------------------------

    async def outcomes(self, steps: Sequence[StepId]) -> list[StepSettled]:
        """The announcements of settled steps, by step id."""
        return [_announcement(row) for row in await self._pool.fetch(sql.OUTCOMES, list(steps))]

    async def due(self, now_ns: int, most: int) -> list[Due]:
        """Open steps to look at, the longest due first."""
        rows = await self._pool.fetch(sql.DUE, now_ns, most)
        return [
            Due(
                step=row["step"],
                status=StepState(row["status"]),
                attempt=row["attempt"],
                deadline_ns=row["deadline_ns"],
                redrives=row["redrives"],
                admitted=msgspec.json.decode(row["admitted"], type=StepAdmitted),
            )
            for row in rows
        ]

    async def oldest_open(self) -> tuple[StepId, int] | None:
        """The open step that was accepted first, and when."""
        row = await self._pool.fetchrow(sql.OLDEST_OPEN)
        return None if row is None else (StepId(row["step"]), row["accepted_ns"])

    async def get_step(self, step: StepId) -> StepRecord | None:
        """Everything recorded of a step."""
        row = await self._pool.fetchrow(sql.STEP, step)
        if row is None:
            return None
        return _step_record(row, await self._pool.fetch(sql.ATTEMPTS, step))

    async def lost(self, steps: Sequence[StepId]) -> list[Lost]:
        """Attempts of settled steps that have no bill, by worker."""
        return [
            Lost(step=row["step"], attempt=row["attempt"], worker=row["worker"], span=Span(row["dispatched_ns"], row["given_up_ns"]))
            for row in await self._pool.fetch(sql.LOST, list(steps))
        ]

    async def attempts_on(self, worker: WorkerId, span: Span) -> list[Span]:
        """When attempts were on a worker, of those that may have been there within `span`."""
        rows = await self._pool.fetch(sql.ATTEMPTS_ON, worker, span.start_ns, span.end_ns, SPANS_MAX)
        return [Span(row["dispatched_ns"], row["ended_ns"]) for row in rows]

    async def costs(self, since_ns: int) -> CostReport:
        """Of the steps that were accepted since then."""
        rows = await self._pool.fetch(sql.COSTS, since_ns, COSTS_MAX)
        return CostReport(costs=[Cost(**dict(row)) for row in rows], since_ns=since_ns)


async def _forget(connection: Connection, steps: list[StepId]) -> None:
    if steps:
        await connection.execute(sql.SUM_UP, steps)
        await connection.execute(sql.FORGET_ATTEMPTS, steps)
        await connection.execute(sql.FORGET_STEPS, steps)


async def _write(connection: Connection, changes: Changes, now_ns: int) -> list[StepId]:
    if changes.admitted:
        await connection.execute(sql.ADMIT, *columns(map(_admitted, changes.admitted)), now_ns)
    if changes.dispatched:
        await connection.execute(sql.DISPATCH, *columns(map(_dispatched, changes.dispatched)))
    if changes.ended:
        await connection.execute(sql.END, *columns(_ended(ending, now_ns) for ending in changes.ended.values()))
    if changes.advanced:
        await connection.execute(sql.ADVANCE, *columns(map(_advanced, changes.advanced.values())), now_ns)
    await workflow_store.write(connection, changes)
    if not changes.settled:
        return []
    rows = await connection.fetch(sql.SETTLE, *columns(map(_settled, changes.settled.values())), now_ns)
    return sorted(row["step"] for row in rows)


# --- rows from messages ------------------------------------------------------------------------------------------------------


def _json(value: msgspec.Struct | None) -> str | None:
    return None if value is None else _encode(value).decode()


def _reason(problem: Problem | None) -> str:
    return problem.reason if problem else ""


def _usage(usage: Usage) -> tuple[int, int, int]:
    return usage.prompt_tokens, usage.cached_tokens, usage.output_tokens


def _admitted(admission: Admission) -> Sequence[Any]:
    m = admission.message
    accepted_ns = m.job.accepted_ns or m.time_ns
    names = (m.step, plain(m.tenant), plain(m.workflow), plain(m.job.model), plain(m.trace), plain(m.step_key), plain(m.input))
    reserved_usd = (m.reservation.nano_usd or 0) / NANO if m.reservation is not None else 0.0
    return (*names, _json(m), m.job.prompt_tokens, accepted_ns, admission.deadline_ns, admission.check_ns, reserved_usd)


def _dispatched(m: StepDispatched) -> Sequence[Any]:
    return m.step, m.attempt, plain(m.cell), plain(m.worker), plain(m.why), m.time_ns


def _ended(ending: Ending, now_ns: int) -> Sequence[Any]:
    m = ending.message
    who = (m.step, m.attempt, plain(m.cell), plain(m.worker))
    how = (m.status, ending.superseded, _reason(m.problem), _json(m.problem))
    work = (*_usage(m.usage), m.queued_ms, m.ttft_ms, m.total_ms, m.resumed_tokens, m.computed_tokens)
    return (*who, *how, *work, m.gpu_s, m.usd, m.time_ns or now_ns)


def _advanced(row: Known) -> Sequence[Any]:
    return (row.step, row.status, row.attempt, *_usage(row.usage), row.check_ns)


def _settled(s: Settlement) -> Sequence[Any]:
    how = (s.status, _reason(s.problem), _json(s.problem), s.finish_reason)
    tokens = "{" + ",".join(map(str, s.tokens)) + "}"  # arrays of arrays would have to be rectangular
    return (s.step, *how, s.attempt, *_usage(s.usage), s.text.encode(), tokens)


# --- messages from rows ------------------------------------------------------------------------------------------------------


def _known(row: Row) -> Known:
    return Known(
        step=row["step"],
        status=StepState(row["status"]),
        deadline_ns=row["deadline_ns"],
        attempt=row["attempt"],
        usage=usage_of(row),
        check_ns=row["check_ns"],
    )


def _announcement(row: Row) -> StepSettled:
    return StepSettled(
        id=MessageId(f"{row['step']}.settled"),
        step=row["step"],
        workflow=row["workflow"],
        tenant=row["tenant"],
        trace=row["trace"],
        time_ns=row["settled_ns"],
        status=Status(row["status"]),
        attempt=row["attempt"],
        usage=usage_of(row),
        problem=problem_of(row),
        usd=row["usd"],
    )


def _step_record(row: Row, attempts: list[Row]) -> StepRecord:
    return StepRecord(
        step=row["step"],
        status=StepState(row["status"]),
        tenant=row["tenant"],
        workflow=row["workflow"],
        model=row["model"],
        trace=row["trace"],
        accepted_ns=row["accepted_ns"],
        deadline_ns=row["deadline_ns"],
        settled_ns=row["settled_ns"],
        attempt=row["attempt"],
        attempts=[_attempt_record(attempt) for attempt in attempts],
        redrives=row["redrives"],
        finish_reason=FinishReason(row["finish_reason"]) if row["finish_reason"] else None,
        usage=usage_of(row),
        tokens=row["tokens"],
        text=row["text"].decode(),
        problem=problem_of(row),
    )


def _attempt_record(row: Row) -> AttemptRecord:
    return AttemptRecord(
        attempt=row["attempt"],
        cell=row["cell"],
        worker=row["worker"],
        why=row["why"],
        status=Status(row["status"]) if row["ended_ns"] else None,
        superseded=row["superseded"],
        problem=problem_of(row),
        usage=usage_of(row),
        dispatched_ns=row["dispatched_ns"],
        ended_ns=row["ended_ns"],
        queued_ms=row["queued_ms"],
        ttft_ms=row["ttft_ms"],
        total_ms=row["total_ms"],
        resumed_tokens=row["resumed_tokens"],
        computed_tokens=row["computed_tokens"],
        gpu_s=row["gpu_s"],
        usd=row["usd"],
        estimated=row["estimated"],
    )
