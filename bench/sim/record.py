"""The record of the workflow service in memory: what Postgres does with the statements of services/workflow/sql.py, each of which is named
where it is modelled. It takes time, goes away, and commits what it then cannot say, as Postgres does."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from services.workflow.policies.estimate import Span
from services.workflow.state import OPEN, Changes, Due, Ending, Estimate, Known, Lost, Settlement
from services.workflow.store import Overtaken, Position, Store
from shared.contracts.ids import MessageId, StepId, WorkerId
from shared.contracts.outcomes import Problem, Status, Usage
from shared.contracts.steps import AttemptRecord, StepAdmitted, StepDispatched, StepRecord, StepSettled, StepState
from shared.core.money import NANO
from shared.drivers.simulate import Process


class StepRow(msgspec.Struct, kw_only=True):
    """Of the table `steps`."""

    admitted: StepAdmitted
    status: StepState
    usage: Usage
    accepted_ns: int
    deadline_ns: int
    check_ns: int
    reserved_usd: float
    attempt: int = 0
    redrives: int = 0
    problem: Problem | None = None
    tokens: list[int] = []
    text: str = ""
    settled_ns: int = 0
    settlements: int = 0  # how often a statement settled it: for the checkers


class AttemptRow(msgspec.Struct, kw_only=True):
    """Of the table `attempts`."""

    worker: WorkerId
    cell: str
    dispatched_ns: int = 0
    ended_ns: int = 0
    status: str = "running"
    total_ms: float = 0.0
    gpu_s: float = 0.0
    usd: float = 0.0
    estimated: bool = False


class Tables:
    """What survives whatever happens to processes."""

    def __init__(self) -> None:
        self.up = True
        self.steps: dict[StepId, StepRow] = {}
        self.attempts: dict[tuple[StepId, int], AttemptRow] = {}
        self.position = Position(epoch=0, batch=0, seq=0, unannounced=[])
        self.observe: Callable[[StepId, StepRow], None] = lambda step, row: None  # called for each settlement

    def write(self, changes: Changes, now_ns: int) -> list[StepId]:
        """One transaction of `store._write`."""
        for admission in changes.admitted:  # ADMIT: on conflict do nothing
            self._admit(admission.message, admission.deadline_ns, admission.check_ns)
        for dispatch in changes.dispatched:  # DISPATCH: on conflict do nothing
            self._dispatch(dispatch)
        for ending in changes.ended.values():
            self._end(ending, now_ns)
        for known in changes.advanced.values():  # ADVANCE: where the step is open
            row = self.steps[known.step]
            if row.status in OPEN:
                row.status, row.attempt, row.usage, row.check_ns = known.status, known.attempt, known.usage, known.check_ns
        return sorted(step for step, settlement in changes.settled.items() if self._settle(step, settlement, now_ns))

    def _admit(self, message: StepAdmitted, deadline_ns: int, check_ns: int) -> None:
        reserved = (message.reservation.nano_usd or 0) / NANO if message.reservation is not None else 0.0
        row = StepRow(
            admitted=message,
            status=StepState.QUEUED,
            usage=Usage(prompt_tokens=message.job.prompt_tokens),
            accepted_ns=message.job.accepted_ns or message.time_ns,
            deadline_ns=deadline_ns,
            check_ns=check_ns,
            reserved_usd=reserved,
        )
        self.steps.setdefault(message.step, row)

    def _dispatch(self, message: StepDispatched) -> None:
        row = AttemptRow(worker=message.worker, cell=message.cell, dispatched_ns=message.time_ns)
        self.attempts.setdefault((message.step, message.attempt), row)

    def _end(self, ending: Ending, now_ns: int) -> None:
        """END: makes the row where there is none; the first end stays."""
        message = ending.message
        row = self.attempts.setdefault((message.step, message.attempt), AttemptRow(worker=message.worker, cell=message.cell))
        if row.ended_ns == 0:
            row.ended_ns, row.status, row.estimated = message.time_ns or now_ns, message.status, False
            row.total_ms, row.gpu_s, row.usd = message.total_ms, message.gpu_s, message.usd

    def _settle(self, step: StepId, settlement: Settlement, now_ns: int) -> bool:
        """SETTLE: the compare-and-set."""
        row = self.steps[step]
        if row.status not in OPEN:
            return False
        row.status, row.attempt, row.usage = StepState(settlement.status), settlement.attempt, settlement.usage
        row.problem, row.tokens, row.text, row.settled_ns = settlement.problem, settlement.tokens, settlement.text, now_ns
        row.settlements += 1
        self.observe(step, row)
        return True

    def next_dispatch_ns(self, step: StepId, attempt: int) -> int:
        """When the attempt after one was dispatched; 0: none was."""
        later = (row.dispatched_ns for (of, number), row in self.attempts.items() if of == step and number > attempt)
        return min((at for at in later if at > 0), default=0)


class SimulatedStore(Store):
    """One process's way to the tables. `dies` as in shared/drivers/simulated_nats.py."""

    def __init__(self, tables: Tables, process: Process, trip_s: Callable[[], float], dies: Callable[[Process, str, str], bool]) -> None:
        self._tables = tables
        self._process = process
        self._trip_s = trip_s
        self._dies = dies

    async def _do(self, name: str, work: Callable[[], Any]) -> Any:
        await self._go(name, "committing")
        done = work()
        await self._go(name, "committed")
        return done

    async def _go(self, name: str, point: str) -> None:
        if self._dies(self._process, point, name):
            await self._process.stop_here()
        await asyncio.sleep(self._trip_s())
        if not self._tables.up:
            raise ConnectionResetError("Postgres is away")

    async def take_over(self, stream: str, created: str) -> Position:
        def work() -> Position:  # TAKE_OVER
            position = self._tables.position
            position.epoch += 1
            return msgspec.structs.replace(position)

        return await self._do("take_over", work)  # type: ignore[no-any-return]

    async def known(self, steps: Iterable[StepId]) -> dict[StepId, Known]:
        wanted = list(dict.fromkeys(steps))

        def work() -> dict[StepId, Known]:  # KNOWN
            return {step: _known(step, self._tables.steps[step]) for step in wanted if step in self._tables.steps}

        return await self._do("known", work)  # type: ignore[no-any-return]

    async def record(self, stream: str, reached: Position, changes: Changes, now_ns: int) -> list[StepId]:
        def work() -> list[StepId]:  # LOCK_POSITION, the batch, MOVE_POSITION
            held = self._tables.position
            if held.epoch != reached.epoch:
                raise Overtaken("another process has taken over the reading of the log")
            if held.batch == reached.batch:
                return list(held.unannounced)
            settled = self._tables.write(changes, now_ns)
            held.seq, held.batch, held.unannounced = reached.seq, reached.batch, settled
            return settled

        return await self._do("record", work)  # type: ignore[no-any-return]

    async def looked(self, looks: Sequence[tuple[StepId, int, int]]) -> None:
        def work() -> None:  # LOOKED
            for step, redrives, check_ns in looks:
                row = self._tables.steps[step]
                if row.status in OPEN:
                    row.redrives, row.check_ns = redrives, check_ns

        if looks:
            await self._do("looked", work)

    async def estimated(self, estimates: Sequence[Estimate]) -> None:
        def work() -> None:  # ESTIMATE
            for each in estimates:
                row = self._tables.attempts[each.step, each.attempt]
                if _unbilled(row):
                    row.gpu_s, row.usd, row.estimated = each.gpu_s, each.usd, True

        await self._do("estimated", work)

    async def outcomes(self, steps: Sequence[StepId]) -> list[StepSettled]:
        def work() -> list[StepSettled]:  # OUTCOMES
            found = sorted(step for step in dict.fromkeys(steps) if step in self._tables.steps)
            return [self._announcement(step, self._tables.steps[step]) for step in found]

        return await self._do("outcomes", work)  # type: ignore[no-any-return]

    def _announcement(self, step: StepId, row: StepRow) -> StepSettled:
        admitted = row.admitted
        return StepSettled(
            id=MessageId(f"{step}.settled"),
            step=step,
            workflow=admitted.workflow,
            tenant=admitted.tenant,
            trace=admitted.trace,
            time_ns=row.settled_ns,
            status=Status(row.status),
            attempt=row.attempt,
            usage=row.usage,
            problem=row.problem,
            usd=sum(each.usd for (of, _), each in self._tables.attempts.items() if of == step),
        )

    async def due(self, now_ns: int, most: int) -> list[Due]:
        def work() -> list[Due]:  # DUE
            rows = [(row.check_ns, step, row) for step, row in self._tables.steps.items() if row.status in OPEN and row.check_ns <= now_ns]
            return [_due(step, row) for _, step, row in sorted(rows, key=lambda each: each[:2])[:most]]

        return await self._do("due", work)  # type: ignore[no-any-return]

    async def oldest_open(self) -> tuple[StepId, int] | None:
        def work() -> tuple[StepId, int] | None:  # OLDEST_OPEN
            rows = [(row.accepted_ns, step) for step, row in self._tables.steps.items() if row.status in OPEN]
            return (min(rows)[1], min(rows)[0]) if rows else None

        return await self._do("oldest_open", work)  # type: ignore[no-any-return]

    async def get_step(self, step: StepId) -> StepRecord | None:
        def work() -> StepRecord | None:  # STEP and ATTEMPTS, as far as anybody here looks
            row = self._tables.steps.get(step)
            if row is None:
                return None
            there = sorted((number, each) for (of, number), each in self._tables.attempts.items() if of == step)
            attempts = [AttemptRecord(attempt=number, cell=each.cell, worker=each.worker) for number, each in there]  # type: ignore[arg-type]
            return StepRecord(step=step, status=row.status, attempts=attempts, tokens=row.tokens, text=row.text)

        return await self._do("get_step", work)  # type: ignore[no-any-return]

    async def lost(self, steps: Sequence[StepId]) -> list[Lost]:
        wanted = dict.fromkeys(steps)

        def work() -> list[Lost]:  # LOST
            found = []
            for (step, number), row in self._tables.attempts.items():
                settled_ns = self._tables.steps[step].settled_ns
                if step in wanted and _unbilled(row) and not row.estimated and row.dispatched_ns > 0 and settled_ns > 0:
                    given_up_ns = row.ended_ns or self._tables.next_dispatch_ns(step, number) or settled_ns
                    span = Span(row.dispatched_ns, given_up_ns)
                    found.append(Lost(step=step, attempt=number, worker=row.worker, span=span))
            return sorted(found, key=lambda each: (each.worker, each.step, each.attempt))

        return await self._do("lost", work)  # type: ignore[no-any-return]

    async def attempts_on(self, worker: WorkerId, span: Span) -> list[Span]:
        def work() -> list[Span]:  # ATTEMPTS_ON
            found = []
            for (step, number), row in self._tables.attempts.items():
                if row.worker == worker and 0 < row.dispatched_ns < span.end_ns and (row.ended_ns > span.start_ns or row.ended_ns == 0):
                    settled_ns = self._tables.steps[step].settled_ns
                    end_ns = row.ended_ns or self._tables.next_dispatch_ns(step, number) or settled_ns or span.end_ns
                    found.append(Span(row.dispatched_ns, end_ns))
            return found

        return await self._do("attempts_on", work)  # type: ignore[no-any-return]

    async def forget_steps(self, before_ns: int, most: int) -> int:
        """Nothing in a world is as old as that."""
        return int(await self._do("forget_steps", int))

    async def forget_workflows(self, before_ns: int, most: int) -> int:
        """Likewise."""
        return int(await self._do("forget_workflows", int))


def _unbilled(row: AttemptRow) -> bool:
    """Nobody said what it used: not ended, or ended by somebody else than its worker."""
    return row.ended_ns == 0 or (row.total_ms == 0 and row.status == Status.SUCCEEDED)


def _known(step: StepId, row: StepRow) -> Known:
    return Known(step=step, status=row.status, deadline_ns=row.deadline_ns, attempt=row.attempt, usage=row.usage, check_ns=row.check_ns)


def _due(step: StepId, row: StepRow) -> Due:
    return Due(step=step, status=row.status, attempt=row.attempt, deadline_ns=row.deadline_ns, redrives=row.redrives, admitted=row.admitted)
