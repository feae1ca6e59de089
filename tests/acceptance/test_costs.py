"""What work costs, on a fleet whose worker has a price: shares of the engine's time, per successful task, and what was for nothing."""

import asyncio
import json
import os
import re
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI, RateLimitError

from legato import Client, Refused
from legato.commands.record import write
from legato.fleet import Fleet
from legato.simulate.journals import read_recording
from shared.contracts import subjects
from shared.contracts.costs import Cost, CostReport
from shared.contracts.ids import StepId, WorkflowId
from shared.contracts.outcomes import Reason, Status, Usage
from shared.contracts.steps import StepAdmitted, StepRecord
from shared.contracts.streams import STEPS
from shared.contracts.workflows import WorkflowRecord
from shared.core.money import NANO
from shared.runtime.clock import now_ns
from shared.sim.workloads import workload
from shared.sim.workloads.recorded import Row
from tests.acceptance.conftest import running_fleet

LIMIT_S = 120.0
ASKED = {"model": "sim-small", "max_tokens": 20}


@pytest.fixture(scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    settings = ("worker.hardware.usd_per_hour=3600", "worker.hardware.count=2")
    async with running_fleet(workers=1, settings=settings) as fleet:
        yield fleet


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[Client]:
    async with Client(fleet.running.nats) as client:
        yield client


async def settled(client: Client, step: StepId) -> StepRecord:
    async with asyncio.timeout(LIMIT_S):
        while not (record := await client.record(step)).settled_ns:  # noqa: ASYNC110  it can only be asked
            await asyncio.sleep(0.02)
    return record


async def cost_of(client: Client, kind: str) -> Cost:
    report = await client.ask(subjects.QUERY_COSTS, CostReport)
    assert report is not None
    [cost] = [each for each in report.costs if each.kind == kind]
    return cost


async def test_steps_that_run_side_by_side_share_the_engines_time(client: Client) -> None:
    started = asyncio.get_running_loop().time()
    results = await asyncio.gather(*(_result(client, f"Side by side, {number}") for number in range(8)))
    took_s = asyncio.get_running_loop().time() - started
    attempts = [(await settled(client, step)).attempts[0] for step in results]
    assert all(attempt.gpu_s > 0 for attempt in attempts)
    assert sum(attempt.usd for attempt in attempts) <= took_s, "a dollar a second, however many shared it"
    assert all(attempt.usd == pytest.approx(attempt.gpu_s / 2) for attempt in attempts)


async def test_a_workflow_is_a_task_and_what_was_cancelled_is_wasted(fleet: Fleet, client: Client) -> None:
    kind = f"kind-{uuid.uuid4().hex}"
    for number in range(2):
        async with client.workflow(kind, id=f"{kind}-{number}") as workflow:
            steps = [(await workflow.step(name, prompt=f"{name} {number}", **ASKED)).id for name in ("a", "b")]
            await workflow.complete(success=number == 0)
        for step in steps:
            await settled(client, step)
    long = await client.submit(model="sim-small", prompt="Stop me", max_tokens=2_000, workflow=f"{kind}-1", step_key="c")
    await anext(aiter(long))
    await long.cancel()
    assert (await long.result(LIMIT_S)).status is Status.CANCELLED
    await settled(client, long.id)
    cost = await cost_of(client, kind)
    assert (cost.tasks, cost.successful, cost.steps, cost.attempts, cost.unbilled) == (2, 1, 5, 5, 0)
    assert 0 < cost.cancelled_usd < cost.usd
    assert (cost.failed_usd, cost.superseded_usd) == (0, 0)
    assert cost.usd == pytest.approx(cost.gpu_s / 2)
    shown = await _command(fleet, "--since", "1h")
    assert all(word in shown for word in (kind, "cancelled", "USD"))
    [printed] = [
        each for line in (await _command(fleet, "--json")).splitlines() if (each := msgspec.json.decode(line, type=Cost)).kind == kind
    ]
    assert printed == cost


async def test_a_workflow_stays_within_its_budget_until_a_later_run_raises_it(fleet: Fleet, client: Client) -> None:
    asked = {"model": "sim-small", "max_tokens": 200}
    async with client.workflow("probe", id=f"probe-{uuid.uuid4().hex}", budget_usd=1e6) as probe:
        one_usd = await reserved_usd(client, (await probe.step("a", prompt="step 0", **asked)).id)
    assert one_usd > 0
    workflow = f"budget-{uuid.uuid4().hex}"
    async with client.workflow("budget", id=workflow, budget_usd=1.5 * one_usd) as first:
        steps = [first.step(str(number), prompt=f"step {number}", **asked) for number in range(6)]
        outcomes = await asyncio.gather(*steps, return_exceptions=True)
    refused = [each for each in outcomes if isinstance(each, Refused)]
    assert len(refused) == 5
    assert {each.problem.reason for each in refused} == {Reason.BUDGET_SPENT}
    shown = await _command(fleet, "show", workflow, command="workflow")
    assert "reserved by steps under way" in shown
    async with client.workflow("budget", id=workflow, budget_usd=100 * one_usd) as second:
        for number in range(6):
            await settled(client, (await second.step(str(number), prompt=f"step {number}", **asked)).id)
    record = await client.ask(subjects.query_workflow(WorkflowId(workflow)), WorkflowRecord)
    assert record is not None
    assert (record.budget_usd, record.reserved_usd, record.step_count) == (100 * one_usd, 0, 6)
    assert 0 < record.spent_usd < 6 * one_usd


async def test_over_http_a_header_names_the_budget_and_the_newest_counts(fleet: Fleet) -> None:
    workflow = f"budget-{uuid.uuid4().hex}"
    asked: dict[str, Any] = {"model": "sim-small", "messages": [{"role": "user", "content": "Count to ten."}], "max_tokens": 200}
    async with AsyncOpenAI(base_url=f"{fleet.running.http}/v1", api_key="none", max_retries=0, timeout=LIMIT_S) as openai:

        def budget(usd: str, name: str) -> dict[str, str]:
            return {"X-Legato-Workflow": workflow, "X-Legato-Step-Key": name, "X-Legato-Budget-Usd": usd}

        with pytest.raises(RateLimitError, match="budget") as refused:
            await openai.chat.completions.create(**asked, extra_headers=budget("0.000001", "count"))
        assert refused.value.code == "insufficient_quota"
        answer = await openai.chat.completions.create(**asked, extra_headers=budget("1000", "count"))
        assert answer.choices[0].message.content


async def test_an_attempt_that_is_lost_with_its_worker_is_billed_by_estimate(fleet: Fleet, client: Client) -> None:
    kind = f"kind-{uuid.uuid4().hex}"
    async with client.workflow(kind, id=kind):
        step = await client.submit(model="sim-small", prompt="Lose me", max_tokens=200, workflow=kind, step_key="a")
        await anext(aiter(step))
        os.kill(fleet.running.processes["worker-0"], signal.SIGKILL)
        assert (await step.result(LIMIT_S)).status is Status.SUCCEEDED
    async with asyncio.timeout(LIMIT_S):
        while not (record := await settled(client, step.id)).attempts[0].estimated:  # noqa: ASYNC110  which follows a moment later
            await asyncio.sleep(0.02)
    lost, *_, last = record.attempts
    assert (lost.status, lost.estimated, last.estimated) == (None, True, False)
    assert lost.usd == pytest.approx(lost.gpu_s / 2)
    assert 0 < lost.usd < 60
    cost = await cost_of(client, kind)
    assert (cost.lost_usd > 0, cost.unbilled) == (True, 0)
    shown = await _command(fleet)
    assert "lost" in shown
    assert "by estimate" in await _command(fleet, "show", kind, command="workflow")


async def reserved_usd(client: Client, step: StepId) -> float:
    record = await client.bus.last(STEPS.name, subjects.step_event(step, "admitted"))
    assert record is not None
    reservation = msgspec.json.decode(record.data, type=StepAdmitted).reservation
    assert reservation is not None
    assert reservation.nano_usd is not None
    return reservation.nano_usd / NANO


async def _result(client: Client, prompt: str) -> StepId:
    step = await client.submit(prompt=prompt, **ASKED)
    await step.result(LIMIT_S)
    return step.id


async def test_what_was_asked_of_a_fleet_can_be_asked_again_in_a_simulation(fleet: Fleet, client: Client, tmp_path: Path) -> None:
    """As often, as long, and as much of it found in caches; on this fleet, and for its price."""
    began_ns = now_ns()
    talks = await asyncio.gather(*(_talk(client, name) for name in ("Ann", "Bob")), _write(client))
    used = [usage for talk in talks for usage in talk]
    file = tmp_path / "asked.jsonl"
    write(file, await _recorded(fleet, began_ns, len(used)))
    programs = list(workload("recorded", {"path": str(file)}, LIMIT_S, 1))
    assert sorted(len(program.calls) for program in programs) == [4, 4, 5]
    calls = [call for program in programs for call in program.calls]
    assert sorted(call.prompt_tokens for call in calls) == sorted(usage.prompt_tokens for usage in used)
    figures = json.loads(await _command(fleet, "--from-log", str(file), "--json", command="simulate"))["runs"][0]["figures"]
    assert (figures["calls"], figures["programs"], figures["call_success"]) == (len(used), len(programs), 1)
    hits = sum(usage.cached_tokens for usage in used) / sum(usage.prompt_tokens for usage in used)
    assert hits > 0.5
    assert figures["hit_rate"] == pytest.approx(hits, abs=0.05)
    assert figures["fleet_usd"] == pytest.approx(figures["fleet_gpu_s"])
    said = await _command(fleet, str(file), "--since", "1h", command="record")
    assert re.match(r"\d+ steps of \d+ workflows? and 1 tenant, from ", said)
    assert len(file.read_bytes().splitlines()) == int(said.split()[0]) >= len(used)


async def _talk(client: Client, name: str) -> list[Usage]:
    messages = [{"role": "user", "content": f"This is {name}. Let us talk, and let us talk at length. " * 8}]
    used = []
    for _ in range(4):
        result = await (await client.submit(model="sim-small", messages=messages, max_tokens=40)).result(LIMIT_S)
        used.append(result.usage)
        messages += [{"role": "assistant", "content": result.text}, {"role": "user", "content": "Do go on, and do not stop. " * 3}]
    return used


async def _write(client: Client) -> list[Usage]:
    """A workflow: a plan, three parts side by side, and what they have in common."""
    async with client.workflow("writing", id=uuid.uuid4().hex) as workflow:
        plan = await workflow.step("plan", prompt="Plan a report about rivers. " * 10, **ASKED)
        parts = await asyncio.gather(
            *(workflow.step(f"part {number}", prompt=f"{'Write about rivers. ' * 10}{plan.text}{number}", **ASKED) for number in range(3))
        )
        whole = await workflow.step("whole", prompt="".join(part.text for part in parts), **ASKED)
        await workflow.complete(success=True)
    return [each.usage for each in (plan, *parts, whole)]


async def _recorded(fleet: Fleet, since_ns: int, steps: int) -> list[Row]:
    """Once the journals, which are written behind, have all of them."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            rows = (await read_recording(fleet.bus, since_ns, now_ns(), lambda service, number: None)).rows
            if len(rows) == steps and all(row.ended_ns and row.block_tokens for row in rows):
                return rows
            await asyncio.sleep(0.1)


async def _command(fleet: Fleet, *words: str, command: str = "cost") -> str:
    argv = (sys.executable, "-m", "legato", command, *words, "--nats", fleet.running.nats)
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    output, error = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode == 0, error.decode()
    return output.decode()
