"""What a program must not say of its workflow is refused at once; what anybody publishes there stops nobody."""

import asyncio
import math
import sys
import uuid
from collections.abc import AsyncIterator

import pytest

from legato import Client, InputChanged, Refused, WorkflowError
from legato.fleet import Fleet
from shared.contracts import subjects
from shared.contracts.ids import WorkflowId
from shared.contracts.streams import DEAD
from shared.contracts.workflows import BudgetSet, WorkflowOpened, WorkflowRecord, WorkflowState
from shared.core.inputs import name_token
from shared.core.machine import ENCODER
from tests.acceptance.conftest import running_fleet

LIMIT_S = 120.0
ASKED = {"model": "sim-small", "max_tokens": 5}
DEEP = b"[" * 985 + b"]" * 985  # msgspec decodes it, and cannot encode it again


@pytest.fixture(scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    async with running_fleet(workers=1) as fleet:
        yield fleet


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[Client]:
    async with Client(fleet.running.nats) as client:
        yield client


def new_workflow() -> str:
    return f"odd-{uuid.uuid4().hex}"


async def recorded(client: Client, workflow: str) -> WorkflowRecord:
    async with asyncio.timeout(LIMIT_S):
        while True:
            record = await client.ask(subjects.query_workflow(WorkflowId(workflow)), WorkflowRecord)
            if record is not None and record.state is not WorkflowState.UNKNOWN:
                return record
            await asyncio.sleep(0.05)


def value(workflow: str, name: str, value: bytes) -> bytes:
    return b'{"type":"workflow.value","workflow":"%b","name":"%b","token":"%b","value":%b}' % (
        workflow.encode(),
        name.encode(),
        name_token(name).encode(),
        value,
    )


async def test_what_anybody_publishes_about_workflows_is_parked_or_recorded_and_stops_nobody(fleet: Fleet, client: Client) -> None:
    victim = new_workflow()
    odd = {
        f"legato.workflow.{victim}.opened.more": b"{}",
        "legato.workflow.a.opened": b'{"type":"workflow.opened"}',
        "legato.workflow.b.opened": ENCODER.encode(WorkflowOpened(workflow=WorkflowId(victim), key="sha256:evil")),
        "legato.workflow.c.opened": b'{"type":"workflow.opened","workflow":"c","steps_planned":-1}',
        f"legato.workflow.d.value.{name_token('x')}": value(victim, "x", b"1"),
        "legato.workflow.e.value.x": value("e", "x", b"1"),
        "legato.workflow.f.closed": b"\xff",
        "legato.workflow.g.budget": ENCODER.encode(BudgetSet(workflow=WorkflowId(victim), budget_usd=1e-9)),
        "legato.workflow.h.budget": b'{"type":"workflow.budget","workflow":"h","budget_usd":0}',
    }
    before = (await fleet.bus.js.stream_info(DEAD.name, subjects_filter=subjects.dead("workflow"))).state.subjects or {}
    for subject, body in odd.items():
        await (await fleet.bus.store(subject, body))
    deep = subjects.workflow_event(WorkflowId(victim), f"value.{name_token('deep')}")
    await (await fleet.bus.store(deep, value(victim, "deep", DEEP)))
    async with client.workflow("odd", id=victim) as workflow:
        await workflow.step("a", prompt="Hello", **ASKED)
    record = await recorded(client, victim)
    assert (record.kind, record.values) == ("odd", ["deep"])
    after = (await fleet.bus.js.stream_info(DEAD.name, subjects_filter=subjects.dead("workflow"))).state.subjects or {}
    assert sum(after.values()) - sum(before.values()) == len(odd)


async def test_what_cannot_be_said_is_refused_before_anything_is_done(client: Client) -> None:
    done: list[str] = []

    async def act(key: str) -> int:
        done.append(key)
        return 1

    budgets = [{"budget_usd": given} for given in (0, -1, math.nan, math.inf, 2e9, "5", True)]
    for about in ({"deadline_s": math.inf}, {"deadline_s": -1}, {"steps_planned": -1}, {"steps_planned": 2**31}, *budgets):
        with pytest.raises(Refused):
            async with client.workflow("odd", id=new_workflow(), **about):
                pass
    with pytest.raises(Refused):
        client.workflow("odd", id="a.b")
    async with client.workflow("odd", id=new_workflow()) as workflow:
        for name in ("", "x" * 257, "\0", "\ud800"):
            with pytest.raises(Refused):
                await workflow.record(name, act)
            with pytest.raises(Refused):
                await workflow.step(name, prompt="Hello", **ASKED)
        for why, score in (("x" * 1_025, None), ("\ud800", None), ("", math.nan)):
            with pytest.raises(Refused):
                await workflow.complete(why=why, score=score)
        await workflow.complete(why="x" * 1_024, score=1)
    assert not done
    async with asyncio.timeout(LIMIT_S):
        while (await recorded(client, workflow.id)).state is not WorkflowState.SUCCEEDED:  # noqa: ASYNC110  it can only be asked
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("given", [(1, (2, 3)), {1: "a"}, "\U0001f3bb", None, [True, 0.5, {"a": []}]])
async def test_a_value_is_the_same_in_the_first_run_and_in_the_next(client: Client, given: object) -> None:
    async with client.workflow("odd", id=new_workflow()) as workflow:
        first = await workflow.record("a", lambda _: asyncio.sleep(0, result=given))
    async with client.workflow("odd", id=workflow.id) as again:
        second = await again.record("a", lambda _: asyncio.sleep(0, result="something else"))
    assert (type(first), first) == (type(second), second)


@pytest.mark.parametrize("given", [math.nan, b"bytes", {1, 2}, "\ud800"])
async def test_what_is_no_json_is_no_value(client: Client, given: object) -> None:
    async with client.workflow("odd", id=new_workflow()) as workflow:
        with pytest.raises((WorkflowError, Refused)):
            await workflow.record("a", lambda _: asyncio.sleep(0, result=given))


async def test_a_deadline_may_lie_beyond_what_a_single_step_may_take(client: Client) -> None:
    async with client.workflow("odd", id=new_workflow(), deadline_s=30 * 86_400) as workflow:
        assert len((await workflow.step("a", prompt="Hello", **ASKED)).tokens) == 5


async def test_two_runs_at_once_see_what_the_other_asked_and_that_it_has_ended(client: Client) -> None:
    workflow = new_workflow()
    async with client.workflow("odd", id=workflow) as one, client.workflow("odd", id=workflow) as other:
        await one.step("a", prompt="Hello", **ASKED)
        with pytest.raises(InputChanged, match="prompt"):
            await other.step("a", prompt="Good bye", **ASKED)
        await one.complete()
        with pytest.raises(WorkflowError, match="has ended"):
            await other.step("b", prompt="Hello", **ASKED)
        with pytest.raises(WorkflowError, match="has ended"):
            await other.record("b", lambda _: asyncio.sleep(0, result=1))


async def test_brackets_are_no_markup_for_whoever_lists_workflows(fleet: Fleet, client: Client) -> None:
    async with client.workflow("[/] [red]", id=new_workflow()) as workflow:
        await workflow.step("[/]", prompt="Hello", **ASKED)
        await workflow.complete(why="[/b]")
    await recorded(client, workflow.id)
    for words in (("list",), ("show", workflow.id)):
        argv = (sys.executable, "-m", "legato", "workflow", *words, "--nats", fleet.running.nats)
        process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        output, error = await asyncio.wait_for(process.communicate(), LIMIT_S)
        assert process.returncode == 0, error.decode()
        assert "[/]" in output.decode()
