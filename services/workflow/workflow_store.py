"""Postgres: workflows and their values, written with the steps of the same batch, and read."""

from collections.abc import Sequence
from typing import Any

import msgspec

from services.workflow import sql
from services.workflow.rows import columns, plain, problem_of, usage_of
from services.workflow.state import Changes
from shared.contracts.ids import TenantId, WorkflowId
from shared.contracts.steps import StepState
from shared.contracts.workflows import (
    NOTHING,
    PARTS_MAX,
    BudgetSet,
    ValueFound,
    ValueRecorded,
    WorkflowClosed,
    WorkflowOpened,
    WorkflowRecord,
    WorkflowsAsked,
    WorkflowState,
    WorkflowStep,
)
from shared.runtime.db import Connection, Pool, Row

LIST_MAX = 1_000


async def write(connection: Connection, changes: Changes) -> None:
    """What programs said. Of several in one batch the first counts, as it does against what is there; of budgets the last."""
    if changes.opened:
        await connection.execute(sql.OPEN_WORKFLOW, *columns(map(_opened, changes.opened)))
    if changes.budgets:
        lasts = {(each.workflow, each.key): each for each in changes.budgets}  # a stranger's word does not hide the program's own
        await connection.execute(sql.SET_BUDGET, *columns(map(_budget, lasts.values())))
    if changes.values:
        await connection.execute(sql.RECORD_VALUE, *columns(map(_recorded, changes.values)))
    if changes.closed:
        firsts = {each.workflow: each for each in reversed(changes.closed)}
        await connection.execute(sql.CLOSE_WORKFLOW, *columns(map(_closed, firsts.values())))


class WorkflowReader:
    """Every method raises what asyncpg raises."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def get(self, workflow: WorkflowId) -> WorkflowRecord | None:
        """A workflow with its newest steps, oldest of them first."""
        row = await self._pool.fetchrow(sql.WORKFLOW, workflow)
        if row is None:
            return None
        steps = await self._pool.fetch(sql.WORKFLOW_STEPS, workflow, PARTS_MAX)
        names = await self._pool.fetch(sql.VALUE_NAMES, workflow, PARTS_MAX)
        return msgspec.structs.replace(
            _record(row), steps=[_step(each) for each in reversed(steps)], values=[each["name"] for each in reversed(names)]
        )

    async def newest(self, asked: WorkflowsAsked) -> list[WorkflowRecord]:
        """Without steps and values, the newest first."""
        key = None if asked.key is None else plain(asked.key)
        return [_record(row) for row in await self._pool.fetch(sql.WORKFLOWS, max(0, min(asked.most, LIST_MAX)), key)]

    async def value(self, workflow: WorkflowId, token: str) -> ValueFound:
        """What was recorded under a name."""
        row = await self._pool.fetchrow(sql.VALUE, workflow, token)
        return ValueFound(found=False, value=NOTHING) if row is None else ValueFound(found=True, value=msgspec.Raw(row["value"]))


def _opened(m: WorkflowOpened) -> Sequence[Any]:
    return plain(m.workflow), plain(m.kind), plain(m.key), m.deadline_ns, m.steps_planned, m.time_ns, m.budget_usd


def _budget(m: BudgetSet) -> Sequence[Any]:
    return plain(m.workflow), plain(m.key), m.budget_usd


def _recorded(m: ValueRecorded) -> Sequence[Any]:
    return plain(m.workflow), plain(m.token), plain(m.name), bytes(m.value), m.time_ns


def _closed(m: WorkflowClosed) -> Sequence[Any]:
    return plain(m.workflow), m.success, m.score, plain(m.why), m.time_ns


def _record(row: Row) -> WorkflowRecord:
    state = WorkflowState.OPEN if not row["closed_ns"] else WorkflowState.SUCCEEDED if row["success"] else WorkflowState.FAILED
    return WorkflowRecord(
        workflow=row["workflow"],
        state=state,
        kind=row["kind"],
        key=row["key"],
        tenant=TenantId(row["tenant"] or ""),
        opened_ns=row["opened_ns"],
        deadline_ns=row["deadline_ns"],
        steps_planned=row["steps_planned"],
        closed_ns=row["closed_ns"],
        score=row["score"],
        why=row["why"],
        step_count=row["step_count"],
        value_count=row["value_count"],
        usage=usage_of(row),
        budget_usd=row["budget_usd"],
        spent_usd=row["spent_usd"],
        estimated_usd=row["estimated_usd"],
        reserved_usd=row["reserved_usd"],
    )


def _step(row: Row) -> WorkflowStep:
    return WorkflowStep(
        step=row["step"],
        name=row["step_key"],
        input=row["input"],
        status=StepState(row["status"]),
        model=row["model"],
        attempts=row["attempt"],
        usage=usage_of(row),
        accepted_ns=row["accepted_ns"],
        settled_ns=row["settled_ns"],
        problem=problem_of(row),
    )
