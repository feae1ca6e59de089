"""Asks the records, once the storm is over: the log, Postgres, and the machine's list of processes."""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime

import msgspec
import psutil

from bench.chaos.again import Work
from bench.chaos.programs import Program
from bench.chaos.readers import Fault, Reading, Wrong
from shared.contracts import subjects
from shared.contracts.ids import StepId
from shared.contracts.output import Output
from shared.contracts.steps import StepSettled
from shared.contracts.streams import OUT, STEPS
from shared.runtime.bus import Bus
from shared.runtime.db import Row, connect

LOOK_AGAIN_S = 0.05
GONE_S = 10.0  # for processes whose parent has just ended

_STEPS = """
SELECT s.step, s.workflow, s.step_key, s.status, s.reason, s.output_tokens, s.accepted_ns, s.settled_ns,
    count(a.attempt) AS attempts,
    count(a.attempt) FILTER (WHERE a.status = 'succeeded' AND NOT a.superseded) AS winners
FROM steps s LEFT JOIN attempts a USING (step)
WHERE s.step = ANY($1::text[]) OR s.workflow = ANY($2::text[])
GROUP BY s.step
"""
_ATTEMPTS = """
SELECT step, attempt, worker, dispatched_ns, ended_ns, status, reason, prompt_tokens + resumed_tokens AS context_tokens, computed_tokens
FROM attempts ORDER BY step, attempt"""
_WORKFLOWS = "SELECT workflow, success FROM workflows WHERE workflow = ANY($1::text[])"


async def settlements(bus: Bus, steps: Collection[StepId], limit_s: float) -> dict[StepId, list[StepSettled]]:
    """Of each step, once every step has one, or the time is over."""
    found: dict[StepId, list[StepSettled]] = {step: [] for step in steps}
    after, deadline = 0, time.monotonic() + limit_s
    while not all(found.values()) and time.monotonic() < deadline:
        async for record in bus.history(STEPS.name, subjects.SETTLED, after):
            after = record.seq
            step = subjects.step_of(record.subject)
            if step in found:
                found[step].append(msgspec.json.decode(record.data, type=StepSettled))
        await asyncio.sleep(LOOK_AGAIN_S)
    return found


def unsettled(settled: Mapping[StepId, Sequence[StepSettled]]) -> list[Fault]:
    """Steps that were settled never, or more than once."""
    lost = [Fault(Wrong.LOST, step, "accepted and never settled") for step, found in settled.items() if not found]
    return lost + [Fault(Wrong.TWICE, step, f"settled {len(found)} times") for step, found in settled.items() if len(found) > 1]


async def stored(bus: Bus, readings: Mapping[StepId, Reading]) -> list[Fault]:
    """What the stream keeps of each step's output, which is what any reader is sent: one stream, without gap or repeat, up to its end."""
    have = dict.fromkeys(readings, 0)
    over: set[StepId] = set()
    faults: list[Fault] = []
    async for record in bus.history(OUT.name, subjects.OUT):
        step = subjects.step_of(record.subject)
        if step not in have or step in over:
            continue
        output = msgspec.json.decode(record.data, type=Output)
        expected = readings[step].ask.expected[have[step] : have[step] + len(output.tokens)]
        if output.offset != have[step]:
            wrong = Wrong.GAP if output.offset > have[step] else Wrong.REPEAT
            faults.append(Fault(wrong, step, f"stored: attempt {output.attempt} at {output.offset}, {have[step]} tokens before"))
        elif output.tokens != expected:
            faults.append(Fault(Wrong.DIFFERENT, step, f"stored: attempt {output.attempt} has other tokens from {output.offset} on"))
        have[step] += len(output.tokens)
        if output.end is not None:
            over.add(step)
    return faults


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt. Times: Unix, ns; 0: not ended."""

    worker: str
    dispatched_ns: int
    ended_ns: int
    outcome: str
    work: Work


class Recorded(msgspec.Struct):
    """What Postgres has, and what is wrong with it."""

    attempts: dict[tuple[StepId, int], Attempt]
    faults: list[Fault]


async def recorded(dsn: str, readings: Mapping[StepId, Reading], programs: Sequence[Program]) -> Recorded:
    """Each step succeeded, by exactly one attempt, for exactly its tokens; each workflow has its steps once."""
    connection = await connect(dsn)
    try:
        names = [program.id for program in programs]
        rows = await connection.fetch(_STEPS, list(readings), names)
        attempts = await connection.fetch(_ATTEMPTS)
        ended = {row["workflow"]: row["success"] for row in await connection.fetch(_WORKFLOWS, names)}
    finally:
        await connection.close()
    asked = {step: len(reading.ask.expected) for step, reading in readings.items()}
    faults = [Fault(Wrong.LOST, step, "there is no row") for step in asked.keys() - {row["step"] for row in rows}]
    for row in rows:
        faults += _row(row, asked.get(row["step"]))
    for program in programs:
        faults += _workflow(program, [row for row in rows if row["workflow"] == program.id], ended.get(program.id))
    return Recorded(
        attempts={(StepId(row["step"]), row["attempt"]): _attempt(row) for row in attempts},
        faults=faults,
    )


def _attempt(row: Row) -> Attempt:
    outcome = f"{row['status']} {row['reason']}".strip()
    work = Work(context_tokens=row["context_tokens"], computed_tokens=row["computed_tokens"], reason=row["reason"])
    return Attempt(worker=row["worker"], dispatched_ns=row["dispatched_ns"], ended_ns=row["ended_ns"], outcome=outcome, work=work)


def _row(row: Row, tokens: int | None) -> list[Fault]:
    if row["status"] != "succeeded":
        life = f"accepted {_clock(row['accepted_ns'])}, settled {_clock(row['settled_ns'])}, {row['attempts']} attempts"
        return [Fault(Wrong.LOST, row["step"], f"recorded as {row['status']} {row['reason']}; {life}")]
    faults = []
    if row["winners"] != 1:
        faults.append(Fault(Wrong.TWICE, row["step"], f"{row['winners']} of {row['attempts']} attempts count as its success"))
    if tokens is not None and row["output_tokens"] != tokens:
        faults.append(Fault(Wrong.DIFFERENT, row["step"], f"{row['output_tokens']} output tokens are recorded, of {tokens}"))
    return faults


def _clock(at_ns: int) -> str:
    """As the logs have it."""
    return f"{datetime.fromtimestamp(at_ns / 1e9, UTC):%H:%M:%S.%f}"[:-3] if at_ns else "never"


def _workflow(program: Program, rows: Sequence[Row], success: bool | None) -> list[Fault]:
    asked = {
        f"{kind} {number}": len(ask.expected)
        for number, both in enumerate(program.rounds)
        for kind, ask in zip(("plan", "write"), both, strict=True)
    }
    found = sorted((row["step_key"], row["output_tokens"]) for row in rows)
    faults = list(program.faults)
    if not program.done or success is not True:
        faults.append(Fault(Wrong.LOST, program.id, f"not completed after {program.runs} runs; recorded success: {success}"))
    if found != sorted(asked.items()):
        wrong = Wrong.TWICE if len(found) > len(asked) else Wrong.LOST
        faults.append(Fault(wrong, program.id, f"its steps are recorded as {found}, not as {sorted(asked.items())}"))
    return faults


async def left_behind(marker: str) -> list[Fault]:
    """Processes that still have the marker in their environment after a while, without this one."""
    deadline = time.monotonic() + GONE_S
    while (found := [each for each in psutil.process_iter() if _is_marked(each, marker)]) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(LOOK_AGAIN_S)  # strangers' children tell nobody
    return [Fault(Wrong.LEFT, f"process {each.pid}", " ".join(_command(each))) for each in found]


def _is_marked(process: psutil.Process, marker: str) -> bool:
    try:
        return process.pid != psutil.Process().pid and process.status() != psutil.STATUS_ZOMBIE and marker in process.environ().values()
    except psutil.Error:
        return False  # gone, or somebody else's


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return ["gone by now"]
