"""Malformed input at every door: it is answered or parked, nobody dies of it, and the next good step is served."""

import asyncio
import gzip
import io
import json
import re
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from typing import Any

import aiohttp
import httpx2 as httpx
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from legato import Client
from legato.fleet import Fleet
from services.gateway.errors import STATUS
from shared.contracts import subjects
from shared.contracts.catalogue import CATALOGUE, Kind
from shared.contracts.examples import MESSAGES
from shared.contracts.fleet import RunningStep, WorkerBeat, WorkerState
from shared.contracts.ids import CellId, StepId, WorkerId
from shared.contracts.outcomes import Status
from shared.contracts.steps import CancelRequested, StepDispatched, StepRevoked, StepState
from shared.contracts.streams import DEAD, OUT
from shared.runtime.cursor import Source
from tests.acceptance.conftest import running_fleet
from tests.acceptance.garbage import (
    CHAT,
    COMPLETION,
    FUZZ,
    GOOD,
    JSON,
    LIMIT_S,
    NO_MESSAGES,
    ODD_TEXTS,
    PROMPT,
    Wire,
    bodies,
    document,
    encoded,
    is_id,
    is_token,
    replaced,
    run_command,
    told,
    with_text,
)


@pytest.fixture(scope="module")
async def fleet() -> AsyncIterator[Fleet]:
    async with running_fleet(workers=1, settings=("simulated.law=8b-h100", "admission.anyone.max_output_tokens=300")) as fleet:
        yield fleet


@pytest.fixture(scope="module")
async def wire(fleet: Fleet) -> AsyncIterator[Wire]:
    async with Wire(fleet.running.nats) as wire:
        yield wire


@pytest.fixture(autouse=True)
async def unharmed(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """After each test every process is the one that it was, and serves."""
    if "fleet" not in request.fixturenames:
        yield
        return
    fleet: Fleet = request.getfixturevalue("fleet")
    before = dict(fleet.running.processes)
    yield
    async with Client(fleet.running.nats) as client:
        step = await client.submit(model="sim-small", prompt="Hello", max_tokens=3)
        assert (await step.result(LIMIT_S)).status is Status.SUCCEEDED
        async with asyncio.timeout(LIMIT_S):  # and Postgres has it
            while (await client.record(step.id)).status is not StepState.SUCCEEDED:  # noqa: ASYNC110  it can only be asked
                await asyncio.sleep(0.01)
    async with httpx.AsyncClient(timeout=LIMIT_S) as http:
        body = {"model": "sim-small", "prompt": "Hello", "max_tokens": 3}
        assert (await http.post(f"{fleet.running.http}/v1/completions", json=body)).status_code == 200
    assert fleet.running.processes == before


async def end_of(fleet: Fleet, step: str) -> dict[str, Any]:
    """The step's end, from the stream."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            record = await fleet.bus.last(OUT.name, f"legato.out.{step}")
            output = json.loads(record.data) if record is not None else {}
            if "end" in output:
                return dict(output["end"])
            await asyncio.sleep(0.002)


async def submitted(fleet: Fleet, wire: Wire, body: bytes, headers: bytes = b"") -> dict[str, Any]:
    step = uuid.uuid4().hex
    assert await wire.store(f"legato.submit.{step}".encode(), body, headers)
    return await end_of(fleet, step)


def said_properly(end: dict[str, Any]) -> bool:
    problem = end.get("problem", {})
    return end["status"] == "succeeded" or bool(end["status"] == "refused" and problem["reason"] and problem["message"].isprintable())


@FUZZ
@given(body=bodies(GOOD, PROMPT))
async def test_every_submission_ends_refused_or_served(fleet: Fleet, wire: Wire, body: bytes) -> None:
    end = await submitted(fleet, wire, body)
    assert said_properly(end) or end["status"] == "expired"  # a replaced `timeout_ms` may be very short


@pytest.mark.parametrize("field", ["prompt", "content", "name", "role", "user", "model", "workflow", "key", "stop", "bias"])
async def test_odd_texts_anywhere_are_served_or_refused(fleet: Fleet, wire: Wire, field: str) -> None:
    for text in ODD_TEXTS:
        assert said_properly(await submitted(fleet, wire, encoded(with_text(field, text)))), ascii(text[:20])


async def test_no_message_is_a_submission(fleet: Fleet, wire: Wire) -> None:
    for body in [*NO_MESSAGES, b"[" * 900 + b"]" * 900, b'{"model": "sim-small", "prompt": "' + b"x" * 7_000_000 + b'"}']:
        assert (await submitted(fleet, wire, body))["status"] == "refused"


async def test_tool_calls_of_any_depth_are_answered(fleet: Fleet, wire: Wire) -> None:
    body = b'{"model": "sim-small", "messages": [{"role": "user", "content": "x", "tool_calls": [%s]}], "sampling": {"max_tokens": 1}}'
    for depth in (*range(100, 1_100, 20), 5_000):
        end = await submitted(fleet, wire, body % (b'{"x":' * depth + b"1" + b"}" * depth))
        assert said_properly(end), depth
        assert end.get("problem", {}).get("reason") != "internal_error"


@FUZZ
@given(headers=st.binary(max_size=40) | st.binary(max_size=40).map(lambda text: b"NATS/1.0\r\n" + text + b"\r\n\r\n"))
@example(b"NATS/1.0\r\nStatus: 100\r\n\r\n")
@example(b"NATS/1.0\r\nStatus: 409\r\nNats-Pending-Messages: x\r\n\r\n")
@example(b"NATS/1.0 503\r\n\r\n")
@example(b"NATS/1.0 \xff\xfe\xfd\r\n\r\n")
@example(b"NATS/1.0\r\ntraceparent: \xff\xfe\r\n\r\n")
@example(b"X")
async def test_no_header_keeps_a_submission_from_being_answered(fleet: Fleet, wire: Wire, headers: bytes) -> None:
    step = uuid.uuid4().hex
    async with Wire(fleet.running.nats) as wire:  # nats-server may hang up
        stored = await wire.store(f"legato.submit.{step}".encode(), encoded(PROMPT), headers)
    if stored:
        assert (await end_of(fleet, step))["status"] == "succeeded"


@FUZZ
@given(name=st.binary(min_size=1, max_size=30).filter(is_token))
@example(b"*")
@example(b">")
@example(b"\xff\xfe")
@example(b"a\x0b\x0cb")
@example(b"a\0b")
@example("ä😀".encode())
@example(b"a" * 4_040)
async def test_what_is_no_step_id_is_parked(fleet: Fleet, name: bytes) -> None:
    async with Wire(fleet.running.nats) as wire:
        seq = await wire.store(b"legato.submit." + name, encoded(PROMPT))
        await wire.store(b"legato.cancel." + name, b"{}")
    if seq and not is_id(name):
        await parked(fleet, [f"LEGATO_STEPS:{seq}"])


async def letters(fleet: Fleet) -> AsyncGenerator[dict[str, Any]]:
    """All dead letters, those to come as well."""
    cursor = await fleet.bus.read(Source(stream=DEAD.name, subjects=(subjects.DEAD,)))
    try:
        async with asyncio.timeout(LIMIT_S):
            while True:
                for record in await cursor.take(64):
                    yield json.loads(record.data)
    finally:
        await cursor.close()


async def parked(fleet: Fleet, places: Iterable[str]) -> None:
    """Wait until each has a dead letter, by its place in a stream, or by service and subject."""
    missing = set(places)
    async with aclosing(letters(fleet)) as found:
        while missing:
            letter = await anext(found)
            assert letter["error"]
            missing -= {letter["source"], f"{letter['service']} {letter['subject']}"}


@FUZZ
@given(body=bodies({"type": "step.cancel", "why": "because", "time_ns": 1}))
async def test_a_cancellation_may_say_anything(fleet: Fleet, wire: Wire, body: bytes) -> None:
    assert await wire.store(f"legato.cancel.{uuid.uuid4().hex}".encode(), body)


async def test_no_message_cancels_a_running_step(fleet: Fleet, wire: Wire) -> None:
    cancels = f"legato.cancel.{(step := uuid.uuid4().hex)}".encode()
    async with Client(fleet.running.nats) as client:
        running = await client.submit(model="sim-small", prompt="Hello", max_tokens=300, step_id=step)
        assert (await anext(aiter(running))).tokens
        await parked(fleet, [f"LEGATO_STEPS:{await wire.store(cancels, body)}" for body in NO_MESSAGES if body not in (b"", b"{}")])
        await wire.store(cancels, b"")
        assert (await running.result(LIMIT_S)).status is Status.CANCELLED


async def test_every_step_of_all_these_has_one_end_as_its_last_word(fleet: Fleet) -> None:
    ends: Counter[str] = Counter()
    last: dict[str, bool] = {}
    async for record in fleet.bus.history(OUT.name, subjects.OUT):
        last[record.subject] = "end" in json.loads(record.data)
        ends[record.subject] += last[record.subject]
    assert len(ends) > 100
    assert set(ends.values()) == {1}
    assert all(last.values())


STATUSES = {200, *STATUS.values()} - {500}


async def posted(http: aiohttp.ClientSession, path: str, body: bytes, headers: dict[str, str] | None = None) -> int:
    """The status, after a look at what the answer says."""
    async with http.post(f"/v1/{path}", data=io.BytesIO(body), headers=headers) as answer:
        text = await answer.text()
    assert answer.status in STATUSES, text
    if answer.content_type == "text/event-stream":
        last = text.rstrip("\n").rpartition("data: ")[2]
        assert last == "[DONE]" or "error" in json.loads(last)
    elif answer.status == 200:
        assert json.loads(text)["choices"]
    else:
        error = json.loads(text)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert error["code"]
    return answer.status


@pytest.fixture
async def http(fleet: Fleet) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(fleet.running.http, timeout=aiohttp.ClientTimeout(LIMIT_S)) as session:
        yield session


@FUZZ
@given(path=st.sampled_from(["chat/completions", "completions"]), body=bodies(CHAT, COMPLETION))
async def test_every_body_gets_an_answer_in_openais_shape(http: aiohttp.ClientSession, path: str, body: bytes) -> None:
    await posted(http, path, body)


async def test_bodies_that_are_none_are_refused(http: aiohttp.ClientSession) -> None:
    for body in NO_MESSAGES:
        assert await posted(http, "chat/completions", body) in (400, 413)
    assert await posted(http, "completions", b"x" * 9_000_000) == 413
    assert await posted(http, "completions", encoded({**COMPLETION, "prompt": "x" * 7_000_000})) in (400, 413)
    assert await posted(http, "completions", b"\x1f\x8b broken", {"Content-Encoding": "gzip"}) == 400
    bomb = gzip.compress(b"[" * 50_000_000)
    assert await posted(http, "completions", bomb, {"Content-Encoding": "gzip"}) == 413


@pytest.mark.parametrize("text", ODD_TEXTS[:1] + ODD_TEXTS[2:], ids=lambda text: ascii(text[:9]))
async def test_odd_texts_by_http_are_answered(http: aiohttp.ClientSession, text: str) -> None:
    for field in ("prompt", "stop", "user", "model"):
        await posted(http, "completions", encoded({**COMPLETION, field: text}))


HEADERS = ["X-Legato-Timeout-Ms", "X-Legato-Priority", "X-Legato-Workflow", "traceparent", "Authorization", "Content-Type", "X-Legato-Step"]


@FUZZ
@given(name=st.sampled_from(HEADERS), value=st.text(max_size=30).filter(lambda text: text.isprintable()) | st.integers().map(str))
@example("X-Legato-Timeout-Ms", "9" * 5_000)
@example("X-Legato-Priority", "-0")
@example("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-extra")
@example("Authorization", "Bearer \udcff")
async def test_every_header_is_taken_or_refused(fleet: Fleet, name: str, value: str) -> None:
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{name}: {value}\r\n"
    body = encoded(COMPLETION)
    status, text = await spoken(fleet, head.encode(errors="surrogateescape") + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    assert status in STATUSES
    assert json.loads(text)["choices" if status == 200 else "error"]


async def spoken(fleet: Fleet, data: bytes, *, leave: bool = False) -> tuple[int, bytes]:
    """Status and body of what is answered to these bytes, (0, nothing) if nothing is. `leave`: no more will come."""
    host, _, port = fleet.running.http.removeprefix("http://").partition(":")
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        if leave:
            writer.write_eof()
        answer = await reader.read()
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, body


@FUZZ
@given(data=st.binary(max_size=200))
@example(b"GET / HTTP/9.9\r\n\r\n")
@example(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n")
@example(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
@example(b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n")
async def test_what_is_no_http_is_refused(fleet: Fleet, data: bytes) -> None:
    status, _ = await spoken(fleet, data, leave=True)
    assert status == 0 or 400 <= status < 500


PARKING = ("admission", "router", "scheduler", "kv_registry", "workflow", "autoscaler")
INNER = [kind for kind in CATALOGUE if set(PARKING) & set(kind.listeners) and kind.type is not CancelRequested]


def inner_example(kind: Kind, **places: str) -> msgspec.Struct:
    """A message of a kind from a worker that nobody knows, in this fleet's cell."""
    message = next(each for each in MESSAGES if type(each) is kind.type)
    fields = {"step": uuid.uuid4().hex, "worker": "phantom", "cell": "local"} | places
    return msgspec.structs.replace(message, **{name: value for name, value in fields.items() if name in kind.type.__struct_fields__})


@pytest.mark.parametrize("kind", INNER, ids=lambda kind: str(kind.type.__struct_config__.tag))
async def test_what_is_no_message_is_parked_by_all_who_listen(fleet: Fleet, wire: Wire, kind: Kind) -> None:
    expected: list[str] = []
    for body in NO_MESSAGES:
        subject = kind.subject(inner_example(kind, worker=f"w-{uuid.uuid4().hex}"))
        expected += [f"{service} {subject}" for service in PARKING if service in kind.listeners]
        await wire.publish(subject.encode(), body)
    await parked(fleet, expected)


IDS = ["a b", "a.b", "*", ">", "a\r\nPUB legato.status 0\r\n\r\n", "x" * 5_000, "\0", "é"]
TRACES = ["a\r\nNats-Msg-Id: x", "\0", "é"]


@pytest.mark.parametrize("place", ["step", "worker", "cell", "trace"])
async def test_ids_that_would_be_commands_to_nats_are_parked(fleet: Fleet, wire: Wire, place: str) -> None:
    expected: list[str] = []
    for kind in (kind for kind in INNER if place in kind.type.__struct_fields__):
        for text in TRACES if place == "trace" else IDS:
            good = inner_example(kind, worker=f"w-{uuid.uuid4().hex}")
            expected += [f"{service} {kind.subject(good)}" for service in PARKING if service in kind.listeners]
            await wire.publish(kind.subject(good).encode(), msgspec.json.encode(msgspec.structs.replace(good, **{place: text})))
    running = [RunningStep(StepId("a b"), 1, 1)]
    beat = WorkerBeat(worker=WorkerId("phantom"), cell=CellId("local"), epoch=1, state=WorkerState.READY, running=running)
    await wire.publish(b"legato.beat.running", msgspec.json.encode(beat))
    await parked(fleet, [*expected, "scheduler legato.beat.running"])


@settings(FUZZ, max_examples=200)
@given(kind=st.sampled_from(INNER), data=st.data())
async def test_well_formed_messages_with_any_value_are_survived(fleet: Fleet, wire: Wire, kind: Kind, data: st.DataObject) -> None:
    good = inner_example(kind)
    names = [name for name in kind.type.__struct_fields__ if name not in ("worker", "cell")]
    known = {name: value for name, value in document(good).items() if name in names or name == "type"}
    odd = data.draw(replaced(known, JSON | st.integers(-(2**70), 2**70) | st.just(2**31) | st.just(0)))
    fixed = {name: getattr(good, name) for name in ("worker", "cell") if name in kind.type.__struct_fields__}
    await wire.publish(kind.subject(good).encode(), encoded({**odd, **fixed}))


ORDERS = [document(inner_example(kind, worker="worker-0")) for kind in CATALOGUE if kind.type in (StepDispatched, StepRevoked)]


@FUZZ
@given(event=st.sampled_from(["dispatched", "revoked"]), body=bodies(*ORDERS))
async def test_a_worker_bears_any_order(fleet: Fleet, wire: Wire, event: str, body: bytes) -> None:
    await wire.publish(f"legato.step.{uuid.uuid4().hex}.{event}.worker-0".encode(), body)


@FUZZ
@given(body=bodies({"x": 1}), reply=st.binary(max_size=20).filter(lambda reply: not set(reply) & set(b" \t\r\n")))
async def test_questions_may_be_anything(fleet: Fleet, wire: Wire, body: bytes, reply: bytes) -> None:
    for subject in (b"legato.status", b"legato.query.step.x", b"legato.query.step.\xff", b"legato.resync.worker-0", b"legato.target"):
        await wire.publish(subject, body, reply=reply)


async def test_no_machine_met_a_bug(fleet: Fleet) -> None:
    async for record in fleet.bus.history(DEAD.name, subjects.DEAD):
        letter = json.loads(record.data)
        assert letter["service"] == "workflow" or not re.match(r"\w+(Error|Exception|Large): ", letter["error"]), letter


NUMBERS = ["nan", "inf", "-1", "0", "1e400", "0x10", "９", "²", "1" * 5_000, "", " "]
WORDS = st.text(max_size=20) | st.sampled_from([*NUMBERS, "\udcff", "*", ">", "a b", "-", "--"])
SUBMIT = ["--max-tokens", "--temperature", "--top-p", "--seed", "--timeout", "--priority", "--id", "--model", "--stop", "--system", "--key"]
REPLAY = ["--at", "--from", "--to", "--partition", "--set"]


@settings(FUZZ, max_examples=30)
@given(text=WORDS, option=st.sampled_from(SUBMIT), value=WORDS)
async def test_any_submission_by_command_gets_an_answer(fleet: Fleet, text: str, option: str, value: str) -> None:
    words = ["submit", text if text != "-" else "x", "--max-tokens", "3", option, value, "--nats", fleet.running.nats]
    assert told(*await asyncio.to_thread(run_command, words)), words


@settings(FUZZ, max_examples=30)
@given(step=WORDS, service=st.just("scheduler") | WORDS, option=st.sampled_from(REPLAY), value=WORDS)
async def test_any_question_by_command_gets_an_answer(fleet: Fleet, step: str, service: str, option: str, value: str) -> None:
    for words in (["timeline", step], ["replay", service, option, value], ["dead", "--last", value]):
        assert told(*await asyncio.to_thread(run_command, [*words, "--nats", fleet.running.nats])), words
