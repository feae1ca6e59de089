"""Steps of workflows over HTTP with OpenAI's own client: found again, joined, refused, tried anew; and what is said of a workflow."""

import asyncio
import uuid
from typing import Any

import openai
import pytest
from gateway_place import HELLO, LIMIT_S, USAGE, WORDS, Place, gateway
from openai import AsyncOpenAI

from shared.contracts import subjects
from shared.contracts.ids import StepId, WorkflowId
from shared.contracts.outcomes import Problem, Reason, Status
from shared.contracts.output import Output
from shared.contracts.steps import StepRecord, StepState
from shared.contracts.streams import OUT, STEPS
from shared.contracts.workflows import WorkflowRecord, WorkflowState, WorkflowStep
from shared.core.inputs import fingerprint, session_workflow
from shared.runtime.embedded import EmbeddedNats

TEXT = "".join(WORDS)


def step_of(key: str = "plan", workflow: str = "", **more: str) -> dict[str, str]:
    return {"X-Legato-Workflow": workflow or f"wf-{uuid.uuid4().hex}", "X-Legato-Step-Key": key, **more}


async def ask(place: Place, headers: dict[str, str], model: str = "words", **more: Any) -> Any:
    return await place.client.chat.completions.create(model=model, messages=HELLO, extra_headers=headers, **more)


async def api(place: Place, path: str, body: Any = None, method: str = "GET", key: str = "sk-secret") -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with place.http.request(method, f"{place.url}/v1/workflows{path}", json=body, headers=headers) as response:
        return response.status, await response.json()


# --- steps -------------------------------------------------------------------------------------------------------------------


async def test_a_step_is_answered_once_however_often_and_in_whatever_form_it_is_asked_for(place: Place) -> None:
    headers = step_of()
    first = await ask(place, headers)
    again = await ask(place, headers)
    chunks = [chunk async for chunk in await ask(place, headers, stream=True)]
    assert first.choices[0].message.content == again.choices[0].message.content == TEXT
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert {first.id, again.id, *(chunk.id for chunk in chunks)} == {f"chatcmpl-{await place.submitted()}"}
    assert place.fleet.submitted.empty()


async def test_the_submission_names_workflow_and_step(place: Place) -> None:
    headers = step_of("größer")
    status, answer, _ = await place.post({"model": "words", "messages": HELLO}, **headers)
    step = await place.submitted()
    submission = place.fleet.submissions[step]
    assert (status, submission.workflow, submission.step_key) == (200, headers["X-Legato-Workflow"], "größer")
    assert (answer["X-Legato-Workflow"], answer["X-Legato-Step"]) == (submission.workflow, step)


async def test_a_client_that_leaves_cancels_nothing_and_the_next_one_has_it_from_the_beginning(place: Place) -> None:
    headers = step_of()
    stream = await ask(place, headers, "one-word", stream=True)
    assert (await anext(aiter(stream))).choices[0].delta.content == WORDS[0]
    await stream.close()
    waiting = asyncio.create_task(ask(place, headers, "one-word"))
    joined = await ask(place, headers, "one-word", stream=True)
    assert (await anext(aiter(joined))).choices[0].delta.content == WORDS[0]
    waiting.cancel()
    step = await place.submitted()
    await place.fleet.say(step, Output(attempt=1, offset=1, tokens=[1], text=WORDS[1]))
    await place.fleet.end(step, Status.SUCCEEDED, offset=2)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in joined]) == WORDS[1]
    assert (await ask(place, headers, "one-word")).choices[0].message.content == WORDS[0] + WORDS[1]
    await place.fleet.bus.client.flush()
    assert place.fleet.cancelled.empty()
    assert place.fleet.submitted.empty()


async def test_a_gateway_that_stops_cancels_no_step_of_a_workflow(nats_url: str) -> None:
    async with gateway(nats_url, "drain_timeout_ms=300") as place:
        hanging = asyncio.create_task(ask(place, step_of(), "silent"))
        plain = asyncio.create_task(ask(place, {}, "silent"))
        one, other = await place.submitted(), await place.submitted()
        place.context.stop.set()
        for request in (hanging, plain):
            with pytest.raises(openai.APIConnectionError):
                await request
        nameless = next(step for step in (one, other) if not place.fleet.submissions[step].step_key)
        assert (await place.cancelled()).step == nameless
        await place.fleet.bus.client.flush()
        assert place.fleet.cancelled.empty()


@pytest.mark.parametrize("stream", [False, True])
async def test_another_input_under_the_same_name_is_a_conflict_that_names_the_difference_and_is_not_repeated(
    place: Place, stream: bool
) -> None:
    headers = step_of()
    await ask(place, headers)
    async with AsyncOpenAI(base_url=f"{place.url}/v1", api_key="sk-secret", max_retries=2, timeout=LIMIT_S) as client:
        with pytest.raises(openai.ConflictError, match=r"sampling\.temperature") as caught:
            await client.chat.completions.create(model="words", messages=HELLO, temperature=0.5, stream=stream, extra_headers=headers)
    assert (caught.value.code, caught.value.param) == ("input_changed", "X-Legato-Step-Key")
    assert caught.value.response.headers["x-should-retry"] == "false"
    await place.submitted()
    assert place.fleet.submitted.empty()


async def test_a_step_that_did_not_succeed_is_tried_anew(place: Place) -> None:
    headers = step_of()
    for _ in range(2):
        with pytest.raises(openai.InternalServerError, match="three workers died"):
            await ask(place, headers, "breaks")
    assert await place.submitted() != await place.submitted()


async def test_a_step_that_failed_after_the_record_was_read_is_tried_anew(nats_url: str) -> None:
    async with gateway(nats_url, "workflow_run_ms=0") as place:
        headers = step_of()
        workflow = WorkflowId(headers["X-Legato-Workflow"])
        failing = asyncio.create_task(ask(place, headers, "silent"))
        step = await place.submitted()
        known = [WorkflowStep(step=step, status=StepState.RUNNING)]  # Postgres lags behind
        key = place.fleet.submissions[step].key
        place.fleet.records[workflow] = WorkflowRecord(workflow=workflow, state=WorkflowState.OPEN, key=key, step_count=1, steps=known)
        await place.fleet.end(step, Status.FAILED, Problem(reason=Reason.ENGINE_REJECTED, message="broken"))
        with pytest.raises(openai.InternalServerError, match="broken"):
            await failing
        again = asyncio.create_task(ask(place, headers, "silent"))
        other = await place.submitted()
        assert other != step
        await place.fleet.end(other, Status.SUCCEEDED)
        assert (await again).id == f"chatcmpl-{other}"


async def test_a_step_of_a_workflow_without_a_name_is_a_new_one_each_time_and_cancelled_like_any(place: Place) -> None:
    headers = {"X-Legato-Workflow": f"wf-{uuid.uuid4().hex}"}
    for _ in range(2):
        await ask(place, headers)
    assert await place.submitted() != await place.submitted()
    waiting = asyncio.create_task(ask(place, headers, "silent"))
    step = await place.submitted()
    waiting.cancel()
    assert (await place.cancelled()).step == step


async def test_what_the_record_knows_is_not_asked_again_when_the_log_has_forgotten_it(place: Place) -> None:
    headers = step_of()
    first = await ask(place, headers)
    step = await place.submitted()
    await place.fleet.bus.js.purge_stream(OUT.name, subject=subjects.out(step))
    await place.fleet.bus.js.purge_stream(STEPS.name, subject=subjects.submit(step))
    place.fleet.steps[step] = StepRecord(step=step, status=StepState.SUCCEEDED, text=TEXT, tokens=[0, 1, 2, 3, 4], usage=USAGE)
    workflow, submission = WorkflowId(headers["X-Legato-Workflow"]), place.fleet.submissions[step]
    known = WorkflowStep(step=step, name="plan", input=fingerprint(submission), status=StepState.SUCCEEDED)
    place.fleet.records[workflow] = WorkflowRecord(
        workflow=workflow, state=WorkflowState.OPEN, key=submission.key, step_count=1, steps=[known]
    )
    async with gateway(place.fleet.bus.config.url) as other:
        other.fleet.records, other.fleet.steps = place.fleet.records, place.fleet.steps
        again = await ask(other, headers)
        assert (again.id, again.choices[0].message.content, again.usage.completion_tokens) == (first.id, TEXT, 5)
        with pytest.raises(openai.ConflictError, match="no longer kept"):
            await ask(other, headers, temperature=0.5)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("X-Legato-Workflow", "a.b"),
        ("X-Legato-Step-Key", "x" * 257),
        ("X-Legato-Deadline-S", "soon"),
        ("X-Legato-Steps-Planned", "-1"),
    ],
)
async def test_a_header_that_makes_no_sense_is_a_bad_request(place: Place, name: str, text: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(place, step_of() | {name: text})
    assert caught.value.param == name
    assert place.fleet.submitted.empty()


async def test_a_deadline_that_has_passed_refuses_new_steps(place: Place) -> None:
    headers = step_of(**{"X-Legato-Deadline-S": "0"})
    with pytest.raises(openai.ConflictError, match="deadline"):
        await ask(place, headers)
    headers = step_of(**{"X-Legato-Deadline-S": "60"})
    await ask(place, headers)
    timeout_ms = place.fleet.submissions[await place.submitted()].timeout_ms
    assert timeout_ms is not None
    assert timeout_ms <= 60_000


async def test_while_the_record_is_away_new_workflows_are_told_to_come_back(fresh_nats: EmbeddedNats) -> None:
    async with gateway(fresh_nats.url, "workflow_wait_ms=0") as place:
        known = step_of()
        await ask(place, known)
        place.fleet.away = Problem(reason=Reason.INTERNAL, message="Postgres is away")
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(place, step_of())
        assert caught.value.status_code == 503
        assert "Retry-After" in caught.value.response.headers
        assert (await ask(place, known)).choices[0].message.content == TEXT
        await ask(place, known | {"X-Legato-Step-Key": "write"})


async def test_a_session_is_grouped_and_opened_beside_its_steps(place: Place) -> None:
    session = uuid.uuid4().hex
    raw = await place.client.chat.completions.with_raw_response.create(
        model="words", messages=HELLO, extra_headers={"X-Dynamo-Session-ID": session}, extra_body={"nvext": {"agent_hints": {"osl": 9}}}
    )
    submission = place.fleet.submissions[await place.submitted()]
    workflow = session_workflow(submission.key, session)
    assert (submission.workflow, submission.step_key) == (workflow, "")
    assert raw.headers["X-Legato-Workflow"] == workflow
    async with asyncio.timeout(LIMIT_S):
        while await place.fleet.bus.last(STEPS.name, subjects.workflow_event(workflow, "opened")) is None:  # noqa: ASYNC110  asked
            await asyncio.sleep(0.01)
    assert await api(place, f"/{workflow}/complete", {"score": 1}, "POST") == (
        200,
        {"workflow": workflow, "state": "succeeded", "score": 1.0},
    )


# --- what is said of a workflow ----------------------------------------------------------------------------------------------


async def test_who_has_ended_does_nothing_new_and_what_was_done_can_still_be_read(place: Place) -> None:
    headers = step_of()
    workflow = headers["X-Legato-Workflow"]
    await ask(place, headers)
    assert (await api(place, f"/{workflow}/complete", {"success": False, "why": "no"}, "POST"))[0] == 200
    assert (await api(place, f"/{workflow}/complete", {"success": False, "why": "no"}, "POST"))[0] == 200
    status, body = await api(place, f"/{workflow}/complete", {"success": True}, "POST")
    assert (status, body["error"]["code"]) == (409, "workflow_ended")
    with pytest.raises(openai.ConflictError, match="does nothing new"):
        await ask(place, headers | {"X-Legato-Step-Key": "write"})
    assert (await ask(place, headers)).choices[0].message.content == TEXT
    assert (await api(place, f"/{workflow}/values/a", 1, "PUT"))[0] == 409


async def test_another_key_is_refused_whatever_it_asks(place: Place) -> None:
    headers = step_of()
    workflow = headers["X-Legato-Workflow"]
    await ask(place, headers)
    await place.submitted()
    async with AsyncOpenAI(base_url=f"{place.url}/v1", api_key="other", max_retries=0, timeout=LIMIT_S) as stranger:
        with pytest.raises(openai.PermissionDeniedError, match="another API key"):
            await stranger.chat.completions.create(model="words", messages=HELLO, extra_headers=headers)
    for method, path in (
        ("GET", ""),
        ("GET", "/steps/plan"),
        ("GET", "/values/a"),
        ("PUT", "/values/a"),
        ("POST", "/complete"),
        ("POST", "/cancel"),
    ):
        for key in ("other", ""):
            status, body = await api(place, f"/{workflow}{path}", 1 if method == "PUT" else None, method, key)
            assert (status, body["error"]["code"]) == (403, "workflow_of_another_key")
    assert place.fleet.submitted.empty()


async def test_what_was_recorded_first_stays(place: Place) -> None:
    headers = step_of()
    path = f"/{headers['X-Legato-Workflow']}/values"
    await ask(place, headers)
    assert (await api(place, f"{path}/page"))[0] == 404
    assert await api(place, f"{path}/page", {"n": [1, "ä"]}, "PUT") == (200, {"name": "page", "value": {"n": [1, "ä"]}})
    assert await api(place, f"{path}/page", 2, "PUT") == (200, {"name": "page", "value": {"n": [1, "ä"]}})
    assert await api(place, f"{path}/page") == (200, {"name": "page", "value": {"n": [1, "ä"]}})
    assert await api(place, f"{path}/a%2Fb%20%C3%A4", "x", "PUT") == (200, {"name": "a/b ä", "value": "x"})


@pytest.mark.parametrize("data", [b"", b"{", b"NaN", b"[" * 100_000, b"\xff", b'"\\ud800"'])
async def test_what_is_no_json_is_no_value(place: Place, data: bytes) -> None:
    headers = step_of()
    await ask(place, headers)
    url = f"{place.url}/v1/workflows/{headers['X-Legato-Workflow']}/values/a"
    async with place.http.put(url, data=data, headers={"Authorization": "Bearer sk-secret"}) as response:
        assert (response.status, (await response.json())["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("complete", {"success": "yes"}, 400, "success"),
        ("complete", {"scor": 1}, 400, "scor"),
        ("complete", {"why": "x" * 1025}, 400, None),
        ("complete", [], 400, None),
        ("cancel", {"reason": "x"}, 400, "reason"),
    ],
)
async def test_a_body_that_makes_no_sense_is_a_bad_request(place: Place, path: str, body: Any, status: int, param: str | None) -> None:
    headers = step_of()
    await ask(place, headers)
    found, answer = await api(place, f"/{headers['X-Legato-Workflow']}/{path}", body, "POST")
    assert (found, answer["error"]["param"]) == (status, param)


async def test_what_nobody_opened_is_not_found(place: Place) -> None:
    for method, path in (("GET", ""), ("POST", "/complete"), ("GET", "/steps/a"), ("PUT", "/values/a")):
        status, body = await api(place, f"/nobody-{uuid.uuid4().hex}{path}", 1 if method == "PUT" else None, method)
        assert (status, body["error"]["code"]) == (404, "workflow_not_found")
    assert (await api(place, "/a.b"))[0] == 400


async def test_a_workflow_and_its_steps_can_be_read_before_they_are_recorded(place: Place) -> None:
    headers = step_of()
    workflow = headers["X-Legato-Workflow"]
    with pytest.raises(openai.InternalServerError):
        await ask(place, headers, "breaks")
    await place.submitted()
    with pytest.raises(openai.ConflictError, match="model"):  # a step that failed is bound to what it was asked
        await ask(place, headers, "words")
    assert await api(place, f"/{workflow}") == (200, {"workflow": workflow, "state": "open"})
    status, step = await api(place, f"/{workflow}/steps/plan")
    assert (status, step["tries"], step["record"]["status"]) == (200, 1, "failed")
    status, body = await api(place, f"/{workflow}/steps/other")
    assert (status, body["error"]["code"]) == (404, "step_not_found")


async def test_cancelling_a_workflow_cancels_the_steps_that_run(place: Place) -> None:
    headers = step_of()
    workflow = WorkflowId(headers["X-Legato-Workflow"])
    waiting = asyncio.create_task(ask(place, headers, "silent"))
    step = await place.submitted()
    running = [WorkflowStep(step=step, status=StepState.RUNNING), WorkflowStep(step=StepId("done"), status=StepState.SUCCEEDED)]
    place.fleet.records[workflow] = WorkflowRecord(workflow=workflow, state=WorkflowState.OPEN, steps=running, step_count=2)
    assert await api(place, f"/{workflow}/cancel", {"why": "enough"}, "POST") == (200, {"cancelled": 1})
    cancelled = await place.cancelled()
    assert (cancelled.step, cancelled.why) == (step, "enough")
    await place.fleet.end(step, Status.CANCELLED)
    with pytest.raises(openai.APIStatusError) as caught:
        await waiting
    assert caught.value.status_code == 499


async def test_a_limit_that_cannot_be_is_refused_by_its_name(place: Place) -> None:
    for query in ("limit=0", "limit=x", "limit=1001", "state=open"):
        status, body = await api(place, f"?{query}")
        assert (status, body["error"]["param"]) == (400, query.partition("=")[0])
