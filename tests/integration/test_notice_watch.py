"""Watching for planned losses, against small servers that answer as the clouds do, and as they should not."""

import asyncio
import gzip
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from services.worker.notices.config import NoticesConfig
from services.worker.notices.notice import Notice
from services.worker.notices.watch import watch

LIMIT_S = 20.0
SECOND_NS = 10**9
SPOT = "/latest/meta-data/spot/instance-action"
PREEMPTED = "/computeMetadata/v1/instance/preempted"
MAINTENANCE = "/computeMetadata/v1/instance/maintenance-event"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler, port: int = 0) -> AsyncIterator[str]:
    """The address of a server that answers everything with the handler."""
    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def config(**given: Any) -> NoticesConfig:
    return NoticesConfig(**{"poll_ms": 50, "timeout_ms": 1_000, "retry_max_ms": 50, **given})


async def noticed(settings: NoticesConfig) -> Notice:
    return await asyncio.wait_for(watch(settings), LIMIT_S)


def in_seconds(notice: Notice) -> float:
    return (notice.gone_ns - time.time_ns()) / SECOND_NS


def iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))


def http_date(seconds: float) -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + seconds))


class Answers:
    """Answers in turn, the last one for ever; counts the questions."""

    def __init__(self, *answers: web.Response | Handler) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        answer = self._answers[min(self.asked, len(self._answers) - 1)]
        self.asked += 1
        if isinstance(answer, web.Response):
            return web.Response(status=answer.status, body=answer.body, headers=answer.headers)
        return await answer(request)


class Imds:
    """EC2's metadata service, version 2 only."""

    def __init__(self, spot: Answers, rebalance: Answers | None = None) -> None:
        self.spot, self.rebalance = spot, rebalance or Answers(web.Response(status=404))
        self.tokens = 0

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/latest/api/token":
            if request.method != "PUT" or not 1 <= int(request.headers["X-aws-ec2-metadata-token-ttl-seconds"]) <= 21_600:
                return web.Response(status=400)
            self.tokens += 1
            return web.Response(text=f"token-{self.tokens}==")
        if request.headers.get("X-aws-ec2-metadata-token") != f"token-{self.tokens}==":
            return web.Response(status=401)
        if request.path == "/latest/meta-data/events/recommendations/rebalance":
            return await self.rebalance(request)
        return await self.spot(request) if request.path == SPOT else web.Response(status=404)


NOTHING = web.Response(status=404)


def interruption(seconds: float, action: str = "terminate") -> web.Response:
    return web.json_response({"action": action, "time": iso(seconds)})


async def test_a_spot_interruption_is_heard_when_it_appears() -> None:
    imds = Imds(Answers(NOTHING, NOTHING, interruption(100)))
    async with serving(imds) as url:
        notice = await noticed(config(aws_url=url))
    assert notice.cause == "EC2 spot terminate"
    assert 90 < in_seconds(notice) < 101
    assert (imds.spot.asked, imds.tokens) == (3, 1)


async def test_a_token_that_is_over_is_renewed() -> None:
    imds = Imds(Answers(NOTHING, web.Response(status=401), interruption(60)))
    async with serving(imds) as url:
        await noticed(config(aws_url=url))
    assert imds.tokens == 2


async def test_a_rebalance_recommendation_counts_only_if_wanted() -> None:
    recommended = Answers(web.json_response({"noticeTime": iso(-5)}))
    async with serving(Imds(Answers(NOTHING), recommended)) as url:
        assert (await noticed(config(aws_url=url, aws_rebalance=True))).cause == "EC2 rebalance recommendation"
    imds = Imds(Answers(NOTHING, NOTHING, interruption(60)), recommended)
    async with serving(imds) as url:
        assert (await noticed(config(aws_url=url))).cause == "EC2 spot terminate"


class ComputeEngine:
    """GCP's metadata server: values that can be waited for."""

    def __init__(self) -> None:
        self.values = {PREEMPTED: "FALSE", MAINTENANCE: "NONE"}
        self.waiting: set[str] = set()
        self.all_wait = asyncio.Event()
        self.not_waited = dict.fromkeys(self.values, 0)
        self._changed = asyncio.Condition()

    async def set(self, path: str, value: str) -> None:
        async with self._changed:
            self.values[path] = value
            self._changed.notify_all()

    def _etag(self, path: str) -> str:
        return self.values[path].encode().hex()[:16]

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Metadata-Flavor") != "Google":
            return web.Response(status=403)
        path, asked = request.path, request.query
        if "wait_for_change" not in asked:
            self.not_waited[path] += 1
        if asked.get("wait_for_change") == "true":
            self.waiting.add(path)
            if len(self.waiting) == len(self.values):
                self.all_wait.set()
            async with self._changed:
                await asyncio.wait_for(self._changed.wait_for(lambda: asked["last_etag"] != self._etag(path)), int(asked["timeout_sec"]))
        return web.Response(text=self.values[path], headers={"ETag": self._etag(path), "Metadata-Flavor": "Google"})


@pytest.mark.parametrize(
    ("path", "value", "seconds", "cause"),
    [(PREEMPTED, "TRUE", 30, "GCP preemption"), (MAINTENANCE, "TERMINATE_ON_HOST_MAINTENANCE", 90, "GCP host maintenance")],
)
async def test_a_change_at_google_is_waited_for(path: str, value: str, seconds: int, cause: str) -> None:
    google = ComputeEngine()
    async with serving(google) as url, asyncio.TaskGroup() as group:
        watching = group.create_task(noticed(config(gcp_url=url, gcp_maintenance_s=90)))
        await asyncio.wait_for(google.all_wait.wait(), LIMIT_S)
        await google.set(MAINTENANCE, "MIGRATE_ON_HOST_MAINTENANCE")
        await google.set(path, value)
        notice = await watching
    assert notice.cause == cause
    assert seconds - 10 < in_seconds(notice) <= seconds
    assert set(google.not_waited.values()) == {1}


def scheduled(*events: dict[str, Any]) -> web.Response:
    return web.json_response({"DocumentIncarnation": 1, "Events": list(events)})


def preempt(name: str, seconds: float) -> dict[str, Any]:
    return {
        "EventId": "C7061BAC",
        "EventType": "Preempt",
        "ResourceType": "VirtualMachine",
        "Resources": ["other_3", name],
        "EventStatus": "Scheduled",
        "NotBefore": http_date(seconds),
        "EventSource": "Platform",
        "DurationInSeconds": -1,
    }


async def test_an_event_of_azure_is_heard_by_the_machine_that_it_names() -> None:
    answers = Answers(scheduled(), scheduled(preempt("pool_1", 30)), scheduled(preempt("pool_1", 30), preempt("pool_0", 40)))

    async def azure(request: web.Request) -> web.StreamResponse:
        right = request.headers.get("Metadata") == "true" and request.path_qs == "/metadata/scheduledevents?api-version=2020-07-01"
        return await answers(request) if right and request.method == "GET" else web.Response(status=400)

    async with serving(azure) as url:
        notice = await noticed(config(azure_url=url, azure_resource="pool_0"))
    assert notice.cause == "Azure Preempt"
    assert 25 < in_seconds(notice) < 41
    assert answers.asked == 3


async def test_a_loss_that_is_far_away_is_told_when_it_is_near_and_not_at_all_when_it_is_called_off() -> None:
    far, near = scheduled(preempt("pool_0", 3_600)), scheduled(preempt("pool_0", 50))
    async with serving(Answers(far, far, scheduled(), near)) as url:
        notice = await noticed(config(azure_url=url, azure_resource="pool_0", ahead_s=60))
    assert in_seconds(notice) < 51


async def test_a_loss_whose_time_is_just_over_is_told_and_one_that_never_came_is_not(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(Imds(Answers(interruption(-86_400), interruption(-86_400), interruption(-3)))) as url:
        assert -20 < in_seconds(await noticed(config(aws_url=url))) <= 0
    assert sum("too old" in record.message for record in caplog.records) == 1


async def test_a_file_that_appears_is_a_notice(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(noticed(config(file=str(path))))
        await asyncio.to_thread(_put, path, '{"seconds": 45, "why": "the rack is moved"}')
        notice = await watching
    assert notice.cause == "the rack is moved"
    assert 35 < in_seconds(notice) <= 45


async def test_an_empty_file_leaves_the_grace_that_is_configured(tmp_path: Path) -> None:
    (tmp_path / "notice").touch()
    assert 10 < in_seconds(await noticed(config(file=str(tmp_path / "notice"), file_grace_s=20))) <= 20


async def test_a_file_of_an_earlier_life_and_what_is_no_file_are_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old, pipe, long = tmp_path / "old", tmp_path / "pipe", tmp_path / "long"
    old.touch()
    os.utime(old, (time.time() - 86_400,) * 2)
    os.mkfifo(pipe)
    long.write_text(" " * 5_000)
    for path, complaint in ((old, "too old"), (pipe, "is no file"), (long, "more than 4096 bytes"), (tmp_path, "is no file")):
        caplog.clear()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch(config(file=str(path))))
            await said(caplog, complaint)
            watching.cancel()


def _put(path: Path, content: str) -> None:
    path.with_suffix(".new").write_text(content)
    path.with_suffix(".new").rename(path)


async def said(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Wait until the log has it."""
    async with asyncio.timeout(LIMIT_S):
        while not any(text in record.getMessage() for record in caplog.records):  # noqa: ASYNC110  the log tells nobody
            await asyncio.sleep(0.01)


async def forever(_: web.Request) -> web.StreamResponse:
    await asyncio.sleep(LIMIT_S)
    return web.Response()


async def drip(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.05)


async def flood(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * 65_536)


HOSTILE: dict[str, tuple[web.Response | Handler, str]] = {
    "garbage": (web.Response(body=b"\xff\x00<html>"), "it should be like"),
    "empty": (web.Response(), "it should be like"),
    "deep": (web.Response(body=b"[" * 100_000), "it should be like"),
    "redirect": (web.Response(status=302, headers={"Location": "http://127.0.0.1:9/elsewhere"}), "status 302"),
    "failure": (web.Response(status=500, text="oops"), "status 500"),
    "compressed": (web.Response(body=gzip.compress(interruption(60).body), headers={"Content-Encoding": "gzip"}), "it should be like"),
    "never": (forever, "no answer within"),
    "drip": (drip, "no answer within"),
    "flood": (flood, "more than 262144 bytes"),
    "no time": (web.json_response({"action": "terminate"}), "it should be like"),
    "other time": (web.json_response({"action": "terminate", "time": "tomorrow"}), "it should be like"),
    "other action": (web.json_response({"action": "dance", "time": iso(60)}), "it should be like"),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_an_answer_that_is_none_is_told_once_and_the_watching_goes_on(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    answer, complaint = HOSTILE[kind]
    imds = Imds(Answers(answer, answer, interruption(60)))
    async with serving(imds) as url:
        assert (await noticed(config(aws_url=url, timeout_ms=200))).cause == "EC2 spot terminate"
    assert sum(complaint in record.getMessage() for record in caplog.records) == 1
    assert imds.spot.asked == 3


async def test_a_service_that_is_not_there_is_told_once_and_found_when_it_comes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serving(Answers(NOTHING)) as url:
        pass
    port = int(url.rpartition(":")[2])
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(noticed(config(aws_url=url)))
        await said(caplog, "no answer")
        async with serving(Imds(Answers(NOTHING, interruption(60))), port):
            assert (await watching).cause == "EC2 spot terminate"
    assert sum("no answer" in record.getMessage() for record in caplog.records) == 1
    assert sum("heard of again" in record.getMessage() for record in caplog.records) == 1


async def test_one_source_that_is_away_keeps_no_other_from_being_heard(tmp_path: Path) -> None:
    async with serving(forever) as url:
        settings = config(aws_url=url, gcp_url=url, azure_url=url, azure_resource="pool_0", file=str(tmp_path / "notice"))
        (tmp_path / "notice").touch()
        assert (await noticed(settings)).cause == "the notice file"


async def test_nothing_configured_is_nothing_heard() -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch(NoticesConfig()), 0.05)
