"""Workflows over HTTP with the real OpenAI client against a whole fleet: a killed client finds its answer, with one bill."""

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import openai
import pytest
from openai import AsyncOpenAI

from legato import Client
from legato.fleet import Fleet
from shared.contracts import subjects
from shared.contracts.workflows import WorkflowList, WorkflowsAsked
from shared.core.machine import ENCODER
from tests.acceptance.conftest import running_fleet

LIMIT_S = 120.0
PROGRAM = Path(__file__).parents[1] / "openai_program.py"
RIVERS: Any = [{"role": "user", "content": "Tell me of rivers."}]
ASKED: dict[str, Any] = {"model": "sim-small", "messages": RIVERS, "max_tokens": 200, "seed": 5}


@pytest.fixture(scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    async with running_fleet(workers=1) as fleet:
        yield fleet


@pytest.fixture
async def client(fleet: Fleet) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{fleet.running.http}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
async def http(fleet: Fleet) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=f"{fleet.running.http}/v1", headers={"Authorization": "Bearer none"}) as client:
        yield client


def headers_of(workflow: str, step: str = "write") -> dict[str, str]:
    return {"X-Legato-Workflow": workflow, "X-Legato-Step-Key": step, "X-Legato-Workflow-Kind": "http-test"}


def new_workflow() -> str:
    return f"http-{uuid.uuid4().hex}"


async def killed(fleet: Fleet, workflow: str, step: str) -> str:
    """Kill a program as soon as it has its first chunk; the chunk's id."""
    argv = (sys.executable, str(PROGRAM), f"{fleet.running.http}/v1", workflow, step)
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    line = (await asyncio.wait_for(process.stdout.readline(), LIMIT_S)).decode()
    process.kill()
    assert await process.wait() == -9
    return line.partition(" ")[0]


async def recorded(http: httpx.AsyncClient, path: str, done: Any) -> Any:
    """What is read, once it is so."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            answer = await http.get(path)
            if answer.status_code == 200 and done(answer.json()):
                return answer.json()
            await asyncio.sleep(0.05)


async def test_a_killed_client_finds_its_answer_without_a_second_attempt(
    fleet: Fleet, client: AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    workflow = new_workflow()
    first = await killed(fleet, workflow, "write")
    joined = [chunk async for chunk in await client.chat.completions.create(**ASKED, stream=True, extra_headers=headers_of(workflow))]
    whole = await client.chat.completions.create(**ASKED, extra_headers=headers_of(workflow))
    undisturbed = await client.chat.completions.create(**ASKED)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in joined)
    assert text == whole.choices[0].message.content == undisturbed.choices[0].message.content
    assert {first, joined[0].id, whole.id} == {first}
    step = await recorded(http, f"/workflows/{workflow}/steps/write", lambda step: step["record"].get("settled_ns"))
    assert (step["tries"], len(step["record"]["attempts"])) == (1, 1)
    assert step["record"]["usage"]["output_tokens"] == 200
    assert step["record"]["text"] == text
    (listed,) = (await recorded(http, f"/workflows/{workflow}", lambda record: record.get("steps")))["steps"]
    assert (listed["name"], listed["status"], listed["attempts"]) == ("write", "succeeded", 1)


async def test_one_program_goes_on_with_what_another_began_through_the_other_door(
    fleet: Fleet, client: AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    workflow = new_workflow()
    async with Client(fleet.running.nats, api_key="none") as nats, nats.workflow("mixed", id=workflow) as program:
        by_nats = await program.step("write", model="sim-small", messages=RIVERS, max_tokens=9, seed=5)
        asked = ASKED | {"max_tokens": 9}
        by_http = await client.chat.completions.create(**asked, extra_headers=headers_of(workflow))
        assert (by_http.id, by_http.choices[0].message.content) == (f"chatcmpl-{by_nats.id}", by_nats.text)
        again = await client.chat.completions.create(**asked, extra_headers=headers_of(workflow, "again"))
        assert (await program.step("again", model="sim-small", messages=RIVERS, max_tokens=9, seed=5)).id == again.id[9:]
        assert (await http.put(f"/workflows/{workflow}/values/page", json=[1])).json()["value"] == [1]
        assert await program.record("page", lambda _: asyncio.sleep(0, result=[2])) == [1]
        with pytest.raises(openai.ConflictError, match="max_tokens"):
            await client.chat.completions.create(**ASKED, extra_headers=headers_of(workflow))
        await program.complete(score=0.5)
    with pytest.raises(openai.ConflictError, match="does nothing new"):
        await client.chat.completions.create(**asked, extra_headers=headers_of(workflow, "late"))


async def test_a_workflow_is_completed_listed_and_read_by_its_own_key_only(
    fleet: Fleet, client: AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    workflow = new_workflow()
    more = {"X-Legato-Steps-Planned": "1", "X-Legato-Deadline-S": "600"}
    await client.completions.create(model="sim-small", prompt="Once", max_tokens=4, extra_headers=headers_of(workflow) | more)
    said = {"success": True, "score": 0.9, "why": "done"}
    assert (await http.post(f"/workflows/{workflow}/complete", json=said)).status_code == 200
    record = await recorded(http, f"/workflows/{workflow}", lambda record: record["state"] == "succeeded" and record.get("steps"))
    assert (record["kind"], record["steps_planned"], record["score"], record["why"]) == ("http-test", 1, 0.9, "done")
    assert record["deadline_ns"] - record["opened_ns"] == 600 * 10**9
    assert workflow in [each["workflow"] for each in (await http.get("/workflows?limit=10")).json()["workflows"]]
    stranger = {"Authorization": "Bearer other"}
    assert (await http.get(f"/workflows/{workflow}", headers=stranger)).status_code == 403
    assert (await http.get("/workflows", headers=stranger)).json() == {"workflows": [], "problem": None}
    async with Client(fleet.running.nats, api_key="none") as nats:
        for key, found in ((nats.key, True), ("", False), (None, True)):
            listed = await nats.ask(subjects.QUERY_WORKFLOWS, WorkflowList, ENCODER.encode(WorkflowsAsked(key=key)))
            assert listed is not None
            assert (workflow in [each.workflow for each in listed.workflows]) == found


async def test_a_running_step_is_cancelled_with_its_workflow_and_resumed_with_it(
    fleet: Fleet, client: AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    workflow = new_workflow()
    asked = ASKED | {"max_tokens": 2_000}
    stream = await client.chat.completions.create(**asked, stream=True, extra_headers=headers_of(workflow))
    await anext(aiter(stream))
    await recorded(http, f"/workflows/{workflow}", lambda record: record.get("steps"))
    assert (await http.post(f"/workflows/{workflow}/cancel", json={})).json() == {"cancelled": 1}
    with pytest.raises(openai.APIError):
        [chunk async for chunk in stream]
    step = await recorded(http, f"/workflows/{workflow}/steps/write", lambda step: step["record"].get("settled_ns"))
    assert step["record"]["status"] == "cancelled"
    [tried] = (await http.post(f"/workflows/{workflow}/resume")).json()["steps"]
    assert (tried["name"], tried["was"], tried["resumed"]) == ("write", "cancelled", True)
    step = await recorded(http, f"/workflows/{workflow}/steps/write", lambda step: step["tries"] == 2 and step["record"].get("settled_ns"))
    assert (step["record"]["step"], step["record"]["status"]) == (tried["step"], "succeeded")
    refused = await http.post(f"/workflows/{workflow}/resume", json={"budget": 1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "budget")
