"""Workflows: a program is killed in odd places and started again from the top; it ends as if nothing had happened, with one bill."""

import asyncio
import json
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from legato import Client, InputChanged, Refused, WorkflowError
from legato.fleet import Fleet
from legato.request import StepRequest
from shared.contracts import subjects
from shared.contracts.ids import WorkflowId
from shared.contracts.outcomes import Status
from shared.contracts.steps import StepState
from shared.contracts.streams import STEPS, TURNS
from shared.contracts.workflows import WorkflowList, WorkflowRecord, WorkflowState
from tests.acceptance.conftest import running_fleet

LIMIT_S = 120.0
PROGRAM = Path(__file__).parents[1] / "agent_program.py"
ASKED = {"model": "sim-small", "max_tokens": 5}
KILLS = ("begun", "plan 0", "writing 0", "fetch 1", "writing 1", "writing 2")  # after this line, once each


@pytest.fixture(scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    async with running_fleet(workers=1) as fleet:
        yield fleet


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[Client]:
    async with Client(fleet.running.nats) as client:
        yield client


def new_workflow() -> str:
    return f"test-{uuid.uuid4().hex}"


async def recorded(client: Client, workflow: str, steps: int) -> WorkflowRecord:
    """The record, once it has so many steps, all settled."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            record = await client.ask(subjects.query_workflow(WorkflowId(workflow)), WorkflowRecord)
            if record is not None and len(record.steps) >= steps and all(each.settled_ns for each in record.steps):
                return record
            await asyncio.sleep(0.05)


async def run_program(fleet: Fleet, workflow: str, effects: Path, until: str = "") -> str:
    """Its last line; it is killed after the line `until`."""
    argv = (sys.executable, str(PROGRAM), fleet.running.nats, workflow, str(effects))
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    line = ""
    async with asyncio.timeout(LIMIT_S):
        async for data in process.stdout:
            line = data.decode().strip()
            if until and line == until:
                process.kill()
                break
        assert await process.wait() == (-9 if until else 0)
    return line


async def test_a_program_that_is_killed_again_and_again_ends_with_one_bill(fleet: Fleet, client: Client, tmp_path: Path) -> None:
    undisturbed, killed = new_workflow(), new_workflow()
    expected = json.loads(await run_program(fleet, undisturbed, tmp_path / "undisturbed"))["story"]
    for line in KILLS:
        assert await run_program(fleet, killed, tmp_path / "killed", until=line) == line
    story = json.loads(await run_program(fleet, killed, tmp_path / "killed"))["story"]
    assert story == expected.replace(undisturbed, killed)
    one, other = await recorded(client, undisturbed, 6), await recorded(client, killed, 6)
    assert (other.state, other.score, other.step_count) == (WorkflowState.SUCCEEDED, 1.0, 6)
    assert [(each.name, each.status, each.attempts) for each in other.steps] == [(each.name, StepState.SUCCEEDED, 1) for each in one.steps]
    assert other.usage.output_tokens == one.usage.output_tokens
    assert other.values == ["fetch 0", "fetch 1", "fetch 2"]
    assert len(set((tmp_path / "killed").read_text().split())) == 3


async def test_a_step_is_answered_once_however_often_it_is_asked_for(client: Client) -> None:
    async with client.workflow("test", id=new_workflow()) as workflow:
        first, second = await asyncio.gather(*(workflow.step("a", prompt="Hello", **ASKED) for _ in range(2)))
        assert (first.id, first.tokens) == (second.id, second.tokens)
        assert "".join([text async for text in workflow.stream("a", prompt="Hello", **ASKED)]) == first.text
    record = await recorded(client, workflow.id, 1)
    assert (record.step_count, record.state, record.kind) == (1, WorkflowState.OPEN, "test")
    async with client.workflow("test", id=workflow.id) as again:
        assert (await again.step("a", prompt="Hello", **ASKED)).tokens == first.tokens


async def test_choices_are_named_steps_and_a_later_run_may_ask_for_more(client: Client) -> None:
    asked: StepRequest = {**ASKED, "prompt": "Hello", "seed": 3}
    async with client.workflow("test", id=new_workflow()) as workflow:
        two = await workflow.choices("a", 2, **asked)
        assert two[0].tokens != two[1].tokens
        assert (await workflow.step("a", **asked)).id == two[0].id, "the first is the request itself"
    async with client.workflow("test", id=workflow.id) as again:
        three = await again.choices("a", 3, **asked)
        assert [each.id for each in three[:2]] == [each.id for each in two]
        with pytest.raises(InputChanged, match="prompt"):
            await again.choices("a", 2, **{**asked, "prompt": "Bye"})
        with pytest.raises(Refused, match="256 characters"):
            await again.choices("a" * 255, 2, **asked)
        with pytest.raises(Refused, match="from 1 to 128"):
            await again.choices("b", 0, **asked)
    record = await recorded(client, workflow.id, 3)
    assert sorted(each.name for each in record.steps) == ["a", "a#1", "a#2"]


async def test_where_one_choice_is_refused_the_others_are_found_again(client: Client) -> None:
    """A name that is taken by another input stands for whatever fails one of them."""
    asked: StepRequest = {**ASKED, "prompt": "Hello", "seed": 3}
    async with client.workflow("test", id=new_workflow()) as workflow:
        await workflow.step("a#1", prompt="Something else", **ASKED)
        with pytest.raises(InputChanged, match="a#1"):
            await workflow.choices("a", 2, **asked)
        assert (await workflow.choices("a", 1, **asked))[0].status is Status.SUCCEEDED
    assert (await recorded(client, workflow.id, 2)).step_count == 2


async def test_another_input_under_the_same_name_is_refused_and_the_difference_named(client: Client) -> None:
    async with client.workflow("test", id=new_workflow()) as workflow:
        await workflow.step("a", messages=[{"role": "user", "content": "one"}, {"role": "user", "content": "two"}], **ASKED)
        changed = [{"role": "user", "content": "one"}, {"role": "user", "content": "three"}]
        with pytest.raises(InputChanged, match=r"messages\[1\], sampling.temperature"):
            await workflow.step("a", messages=changed, temperature=0.5, **ASKED)
    await recorded(client, workflow.id, 1)
    async with client.workflow("test", id=workflow.id) as again:
        with pytest.raises(InputChanged, match=r"messages\[1\]"):
            await again.step("a", messages=changed, **ASKED)


async def test_what_was_recorded_first_stays(client: Client) -> None:
    done: list[str] = []

    async def act(key: str) -> list[int]:
        done.append(key)
        return [len(done)]

    async with client.workflow("test", id=new_workflow()) as workflow:
        assert [await workflow.record("a", act), await workflow.record("a", act), await workflow.record("b", act)] == [[1], [1], [2]]
        with pytest.raises(WorkflowError, match="no JSON"):
            await workflow.record("c", lambda _: asyncio.sleep(0, result=object()))
    assert len(set(done)) == 2


async def test_values_are_found_in_postgres_when_the_log_has_lost_them(fleet: Fleet, client: Client) -> None:
    workflow = new_workflow()
    async with client.workflow("test", id=workflow) as first:
        await first.record("a", lambda _: asyncio.sleep(0, result={"n": 1}))
    async with asyncio.timeout(LIMIT_S):
        while not (await client.ask(subjects.query_workflow(WorkflowId(workflow)), WorkflowRecord)).values:  # noqa: ASYNC110  asked
            await asyncio.sleep(0.05)
    await fleet.bus.js.purge_stream(STEPS.name, subject=f"legato.workflow.{workflow}.>")
    async with client.workflow("test", id=workflow) as again:
        assert await again.record("a", lambda _: asyncio.sleep(0, result={"n": 2})) == {"n": 1}


async def test_a_refused_step_is_tried_anew_when_it_is_asked_for_again(client: Client) -> None:
    async with client.workflow("test", id=new_workflow()) as workflow:
        for _ in range(2):
            with pytest.raises(Refused, match="no model"):
                await workflow.step("a", prompt="Hello", model="absent", max_tokens=5)
    async with client.workflow("test", id=workflow.id) as again:
        assert len((await again.step("a", prompt="Hello", **ASKED)).tokens) == 5, "a refusal binds nobody to what was asked"


async def test_who_has_ended_does_nothing_new_and_who_has_another_key_nothing_at_all(fleet: Fleet, client: Client) -> None:
    async with client.workflow("test", id=new_workflow()) as workflow:
        done = await workflow.step("a", prompt="Hello", **ASKED)
        await workflow.complete(why="enough")
        await workflow.complete(why="enough")
        with pytest.raises(WorkflowError, match="has ended already"):
            await workflow.complete(success=False)
        with pytest.raises(WorkflowError, match="does nothing new"):
            await workflow.step("b", prompt="Hello", **ASKED)
        assert (await workflow.step("a", prompt="Hello", **ASKED)).tokens == done.tokens
    async with Client(fleet.running.nats, api_key="other") as stranger:
        with pytest.raises(WorkflowError, match="another API key"):
            async with stranger.workflow("test", id=workflow.id):
                pass
    listed = await client.ask(subjects.QUERY_WORKFLOWS, WorkflowList, b"1000")
    assert listed is not None
    assert workflow.id in [each.workflow for each in listed.workflows]


async def test_the_deadline_is_that_of_the_first_opening(client: Client) -> None:
    workflow = new_workflow()
    async with client.workflow("test", id=workflow, deadline_s=0.001):
        pass
    async with client.workflow("test", id=workflow, deadline_s=3_600) as late:
        with pytest.raises(WorkflowError, match="deadline"):
            await late.step("a", prompt="Hello", **ASKED)


async def command(fleet: Fleet, *words: str, status: int = 0) -> str:
    """What `legato workflow ...` prints; of an error its words."""
    argv = (sys.executable, "-m", "legato", "workflow", *words, "--nats", fleet.running.nats)
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    output, error = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert process.returncode == status, error.decode()
    return (output if status == 0 else error).decode()


async def cancelled(client: Client, workflow: str) -> str:
    """A workflow with a step "done" that succeeded and a step "long" that was cancelled after it had begun; the id of the latter."""
    async with client.workflow("test", id=workflow) as wf:
        await wf.step("done", prompt="Hello", **ASKED)
        async for _ in wf.stream("long", prompt="Hello", model="sim-small", max_tokens=2_000):
            break
        assert await wf.cancel("enough") == 1
    [long] = [each for each in (await recorded(client, workflow, 2)).steps if each.name == "long"]
    assert long.status is StepState.CANCELLED
    return long.step


async def test_what_did_not_succeed_is_tried_anew_by_a_person_and_joined_by_its_program(fleet: Fleet, client: Client) -> None:
    workflow = new_workflow()
    former = await cancelled(client, workflow)
    done, long = sorted(map(json.loads, (await command(fleet, "resume", workflow, "--json")).splitlines()), key=lambda each: each["name"])
    assert (done["name"], done["was"], done["resumed"]) == ("done", "succeeded", False)
    assert (long["name"], long["was"], long["resumed"]) == ("long", "cancelled", True)
    assert long["step"] != former
    assert "stays" in await command(fleet, "resume", workflow), "a second time it tries nothing twice"
    async with client.workflow("test", id=workflow) as again:
        result = await again.step("long", prompt="Hello", model="sim-small", max_tokens=2_000)
    assert (result.id, len(result.tokens)) == (long["step"], 2_000)
    record = await recorded(client, workflow, 3)
    assert sorted((each.name, each.status) for each in record.steps) == [
        ("done", StepState.SUCCEEDED),
        ("long", StepState.CANCELLED),
        ("long", StepState.SUCCEEDED),
    ]


async def test_what_was_asked_in_a_conversation_that_is_lost_is_not_tried_anew_from_outside(fleet: Fleet, client: Client) -> None:
    workflow, first = new_workflow(), {"role": "user", "content": "once upon a time " * 400}
    later = [first, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go on."}]
    async with client.workflow("test", id=workflow) as wf:
        await wf.step("first", messages=[first], **ASKED)
        async for _ in wf.stream("long", messages=later, model="sim-small", max_tokens=2_000):
            break
        await wf.cancel()
    await recorded(client, workflow, 2)
    await fleet.bus.js.purge_stream(TURNS.name)
    lines = map(json.loads, (await command(fleet, "resume", workflow, "--json")).splitlines())
    [long] = [each for each in lines if each["name"] == "long"]
    assert (long["was"], long["resumed"]) == ("cancelled", False)
    assert "its program must ask again" in long["why"]
    async with client.workflow("test", id=workflow) as again:
        assert len((await again.step("long", messages=later, model="sim-small", max_tokens=2_000)).tokens) == 2_000


async def test_what_has_ended_or_is_another_keys_is_not_resumed(fleet: Fleet, client: Client) -> None:
    workflow = new_workflow()
    await cancelled(client, workflow)
    assert "another API key" in await command(fleet, "resume", workflow, "--key", "other", status=1)
    assert "nobody has opened" in await command(fleet, "resume", new_workflow(), status=1)
    async with client.workflow("test", id=workflow) as wf:
        await wf.complete(success=False)
    assert "does nothing new" in await command(fleet, "resume", workflow, status=1)


async def test_the_command_shows_what_a_workflow_did(fleet: Fleet, client: Client) -> None:
    async with client.workflow("shown", id=new_workflow(), steps_planned=3) as workflow:
        await workflow.step("first", prompt="Hello", **ASKED)
        await workflow.record("looked up", lambda _: asyncio.sleep(0, result=1))
    await recorded(client, workflow.id, 1)
    for words, expected in (
        (("list",), ("shown", "1/3")),
        (("show", workflow.id), ("first", "succeeded", "looked up")),
        (("cancel", workflow.id), ()),
    ):
        output = await command(fleet, *words)
        assert all(word in output for word in expected), output
