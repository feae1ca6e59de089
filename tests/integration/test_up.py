"""`legato up` for real, with the simulated engine: what its first screen promises, and that nothing stays behind."""

import asyncio
import json
import os
import re
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import aiohttp
import msgspec
import psutil
import pytest

import legato
from legato.actuator import Actuator
from legato.addresses import FILE, Running
from legato.fleet import Fleet
from legato.plan import SERVICES, Wanted
from shared.contracts import subjects
from shared.contracts.fleet import ScaleTargetSet
from shared.contracts.ids import CellId, StepId
from shared.contracts.streams import FLEET
from shared.core.machine import ENCODER
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.clock import now_ns

START_S = 120.0
STOP_S = 60.0
COMMAND_S = 60.0


class Up:
    """A running `legato up`."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.lines: list[str] = []
        self._process: asyncio.subprocess.Process

    async def start(self, *words: str) -> None:
        self._process = await legato_process("up", "--data", str(self.data), "--port", "0", *words)

    @property
    def running(self) -> Running:
        return msgspec.json.decode((self.data / FILE).read_bytes(), type=Running)

    async def until(self, *words: str) -> str:
        """The next line it prints with all of these words."""
        assert self._process.stdout is not None
        async with asyncio.timeout(START_S):
            while line := (await self._process.stdout.readline()).decode():
                self.lines.append(line)
                if all(word in line for word in words):
                    return line
        raise AssertionError(f"it ended without saying {words}: {''.join(self.lines)}")

    async def stop(self, number: int = signal.SIGINT) -> int:
        self.signal(number)
        return await self.end()

    def signal(self, number: int = signal.SIGINT) -> None:
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def end(self) -> int:
        assert self._process.stdout is not None
        self.lines.append((await asyncio.wait_for(self._process.stdout.read(), STOP_S)).decode())
        return await asyncio.wait_for(self._process.wait(), STOP_S)


async def legato_process(*words: str) -> asyncio.subprocess.Process:
    """The command line as people start it; both outputs in one pipe."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LEGATO_")}
    argv = [str(Path(sys.executable).with_name("legato")), *words]
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=asyncio.subprocess.STDOUT, env=env)


async def called(up: Up, *words: str) -> tuple[int, str]:
    """Exit status and output of a command beside a fleet."""
    process = await legato_process(*words, "--data", str(up.data))
    output, _ = await asyncio.wait_for(process.communicate(), COMMAND_S)
    return process.returncode or 0, output.decode()


async def asked(up: Up, *words: str) -> list[dict[str, object]]:
    """What a command prints with --json, which must succeed."""
    status, output = await called(up, *words, "--json")
    assert status == 0, output
    return [json.loads(line) for line in output.splitlines()]


@pytest.fixture(scope="module")
async def up() -> AsyncIterator[Up]:
    # Not pytest's own directory: Postgres runs as somebody else when we are root.
    with tempfile.TemporaryDirectory(prefix="legato-up-") as directory:
        up = Up(Path(directory))
        await up.start()
        try:
            await up.until("Ctrl-C drains")
            yield up
        finally:
            await up.stop()


async def test_every_service_is_ready_and_one_screen_says_how_to_use_them(up: Up) -> None:
    statuses = await asked(up, "status")
    assert sorted(str(each["service"]) for each in statuses) == sorted(SERVICES)
    assert all(each["ready"] for each in statuses)
    screen = "".join(up.lines)
    ready = re.search(r"(\d+) processes ready", screen)
    assert ready
    assert f"Starting {ready[1]} processes" in screen
    assert len(up.running.processes) == int(ready[1])
    assert all(word in screen for word in ("NATS", "Postgres", "HTTP", "curl", "OpenAI(", "legato submit"))
    assert up.running.postgres
    assert up.running.postgres not in screen, "the password is in the file, not on the screen"


async def test_a_prompt_is_answered_by_nats_and_by_http(up: Up) -> None:
    [result] = await asked(up, "submit", "Hello", "--max-tokens", "8")
    assert (result["status"], len(result["tokens"])) == ("succeeded", 8)  # type: ignore[arg-type]
    status, text = await called(up, "submit", "Hello", "--max-tokens", "8")
    assert (status, "succeeded: length" in text) == (0, True)
    [model] = await asked(up, "models")
    body = {"model": model["name"], "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
    url = f"{up.running.http}/v1/chat/completions"
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        assert response.status == 200
        assert (await response.json())["usage"]["completion_tokens"] == 8


async def test_a_step_can_be_followed_from_submission_to_settlement(up: Up) -> None:
    async with legato.Client(up.running.nats) as client:
        [model] = await client.models()
        settled = await client.bus.client.subscribe(subjects.step_event(StepId("followed"), "settled"))
        step = await client.submit(model=model.name, prompt="Once", max_tokens=5, step_id="followed")
        result = await step.result(30)
        await settled.next_msg(timeout=30)
        assert (await client.record(step.id)).tokens == result.tokens
    told = [str(each["what"]) for each in await asked(up, "timeline", step.id)]
    wanted = ["submitted", "admitted", "routed", "dispatched (1)", "first output", "output ended", "attempt ended (1)", "settled"]
    assert [what for what in told if what in wanted] == wanted
    status, moment = await called(up, "replay", "scheduler", "--at", step.id)
    assert status == 0, moment
    assert "because: " in moment
    assert "State before" in moment


async def test_every_decision_replays_without_a_difference(up: Up) -> None:
    for service in ("admission", "router", "scheduler", "kv_registry", "autoscaler"):
        [report] = await asked(up, "replay", service, "--verify")
        assert report["differing"] == 0, report["differences"]
        assert report["inputs"]


async def test_another_setting_parts_from_the_record_and_the_status_says_so(up: Up) -> None:
    await asked(up, "submit", "Hello", "--max-tokens", "2")
    for setting in ("admission.timeout_ms=1234", "timeout_ms=1234"):
        status, text = await called(up, "replay", "admission", "--set", setting)
        assert status == 1, text
        assert "they part first at entry" in text
        assert "job.deadline_ns" in text
    status, text = await called(up, "replay", "admission", "--from", "99999999")
    assert (status, "there is no entry 99999999 yet: the log of admission." in text) == (1, True), text
    status, text = await called(up, "replay", "admission", "--set", "timeout=1")
    assert (status, "did you mean timeout_ms" in text) == (1, True)


async def test_a_refused_prompt_says_why_in_one_line(up: Up) -> None:
    status, text = await called(up, "submit", "Hello", "--model", "nobody-serves-this")
    assert status == 1
    assert text.startswith("legato: ")
    assert text.count("\n") == 1
    assert "nobody-serves-this" in text


async def test_a_second_fleet_on_the_same_directory_is_refused(up: Up) -> None:
    status, text = await called(up, "up")
    assert status == 1
    assert f"process {up.running.pid}" in text


async def test_a_killed_service_comes_back_and_goes_on(up: Up) -> None:
    os.kill(up.running.processes["scheduler-0"], signal.SIGKILL)
    [result] = await asked(up, "submit", "Hello", "--max-tokens", "4")
    assert result["status"] == "succeeded"
    assert "scheduler-0 ended" in await up.until("scheduler-0 ended")
    await up.until("scheduler-0 started")


async def test_a_place_that_cannot_be_written_ends_no_supervision_and_is_tried_again(up: Up) -> None:
    obstacle = up.data / f"{FILE}.new"
    obstacle.mkdir()  # as a full disk does it, or a file system that has become read-only
    try:
        before = up.running.processes["router-0"]
        os.kill(before, signal.SIGKILL)
        assert FILE in await up.until("cannot write")
        restarted = await up.until("router-0", "started as process")
        assert up.running.processes["router-0"] == before
    finally:
        obstacle.rmdir()
    again = int(restarted.rsplit(maxsplit=1)[1])
    os.kill(again, signal.SIGKILL)
    started = await up.until("router-0", "started as process")
    assert up.running.processes["router-0"] == int(started.rsplit(maxsplit=1)[1]) != again


async def test_workers_come_and_go_as_the_fleet_is_told(up: Up) -> None:
    bus = await Bus.connect(BusConfig(url=up.running.nats), "test")

    async def tell(workers: int) -> None:
        target = ScaleTargetSet(cell=CellId("local"), pool="default", workers=workers, why="the test says so", time_ns=now_ns())
        await (await bus.store(subjects.target(target.cell, target.pool), ENCODER.encode(target)))

    await tell(2)
    assert "worker-1 started for a target of 2: the test says so" in await up.until("worker-1 started for")
    second = psutil.Process(up.running.processes["worker-1"])
    await tell(1)
    await up.until("worker-1 drains")
    await asyncio.to_thread(second.wait, STOP_S)
    await bus.close()
    assert set(up.running.processes) >= {"worker-0"}


async def test_ctrl_c_leaves_no_process_and_the_data_for_the_next_time(up: Up) -> None:
    processes = up.running.processes
    family = psutil.Process(up.running.pid).children(recursive=True)
    assert {process.pid for process in family} >= set(processes.values())
    assert await up.stop() == 0, "".join(up.lines)
    assert not [process for process in family if process.is_running()]
    assert not (up.data / FILE).exists()
    assert (up.data / "nats").exists()
    assert "Stopped." in up.lines[-1]


# --- a fleet that cannot start, parts of one, and the actuator alone ---------------------------------------------------------


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="legato-up-") as directory:
        yield Path(directory)


async def test_a_fleet_that_cannot_start_says_which_process_why_and_leaves_nothing(directory: Path, nats_url: str) -> None:
    up = Up(directory)
    await up.start("--nats", nats_url, "--only", "router,gateway", "--set", "router.wat=1")
    said = await up.until("router-0 ended")
    assert await up.end() == 1
    assert "router-0 ended with code 1" in said
    assert "wat" in up.lines[-1]
    assert not (directory / FILE).exists()


async def test_a_part_of_a_fleet_runs_on_a_server_of_ones_own_and_sigterm_ends_it(directory: Path, nats_url: str) -> None:
    up = Up(directory)
    await up.start("--nats", nats_url, "--only", "router", "--replicas", "router=2")
    await up.until("Ctrl-C drains")
    roles = {str(each["instance"]): each["details"]["role"] for each in await asked(up, "status") if "router" in str(each["instance"])}  # type: ignore[index]
    assert set(roles) == {"router-0", "router-1"} == set(up.running.processes)
    assert sorted(roles.values()) == ["active", "standing by"]
    assert await up.stop(signal.SIGTERM) == 0


async def test_a_drain_that_takes_long_says_what_it_waits_for_and_ctrl_c_again_ends_it(directory: Path) -> None:
    up = Up(directory)
    await up.start("--set", "simulated.time_scale=50")
    await up.until("Ctrl-C drains")
    async with legato.Client(up.running.nats) as client:
        [model] = await client.models()
        step = await client.submit(model=model.name, prompt="Once", max_tokens=500)
        async with aclosing(aiter(step)) as outputs:
            await anext(outputs)
        up.signal()
        assert "worker-0 (1 step)" in await up.until("waiting for")
        up.signal()
        assert await up.end() == 0
        await step.close()


async def test_who_is_not_ready_is_told_while_a_fleet_starts(directory: Path, nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("legato.fleet.UNREADY_S", -1.0)
    told: list[str] = []
    async with Fleet(directory, Wanted(only=["router"]), told.append, nats_url) as fleet:
        await fleet.start()
    assert told == [f"not ready yet: router-0; their logs are in {directory / 'logs'}"]


class Crew:
    """Workers that only have names."""

    def __init__(self) -> None:
        self.workers = ["worker-0"]
        self.gone: list[str] = []

    async def hire(self) -> str:
        self.workers.append(f"worker-{len(self.workers)}")
        return self.workers[-1]

    async def dismiss(self, name: str) -> None:
        self.workers.remove(name)
        self.gone.append(name)


async def test_the_actuator_follows_its_own_pool_and_no_older_target(nats_url: str) -> None:
    bus = await Bus.connect(BusConfig(url=nats_url), "test")
    await bus.ensure_streams()
    pool, crew, told = f"p{now_ns()}", Crew(), asyncio.Queue[str]()

    async def tell(pool: str, workers: int, time_ns: int) -> None:
        target = ScaleTargetSet(cell=CellId("c"), pool=pool, workers=workers, why="w", time_ns=time_ns)
        await (await bus.store(subjects.target(target.cell, pool), ENCODER.encode(target)))

    await tell(pool, 9, time_ns=10)
    actuator = asyncio.create_task(Actuator(bus, crew, (CellId("c"), pool), 100, told.put_nowait).run())
    await tell(f"{pool}-other", 7, time_ns=100)
    await tell(pool, 3, time_ns=100)
    assert [await asyncio.wait_for(told.get(), 10) for _ in range(2)] == [
        "worker-1 started for a target of 3: w",
        "worker-2 started for a target of 3: w",
    ]
    await tell(pool, 1, time_ns=101)
    assert "worker-2 drains" in await asyncio.wait_for(told.get(), 10)
    assert "worker-1 drains" in await asyncio.wait_for(told.get(), 10)
    await bus.js.purge_stream(FLEET.name)
    actuator.cancel()
    await asyncio.gather(actuator, return_exceptions=True)
    assert crew.gone == ["worker-2", "worker-1"]
    await bus.close()


async def test_a_port_that_is_taken_is_told_before_anything_starts(directory: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = await legato_process("up", "--data", str(directory), "--port", str(taken.getsockname()[1]))
        output, _ = await asyncio.wait_for(process.communicate(), COMMAND_S)
    assert process.returncode == 1
    assert b"--port 0" in output
    assert not (directory / "nats").exists()
