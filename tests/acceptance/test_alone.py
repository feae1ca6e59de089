"""Each service alone, as `python -m services.NAME` against given servers; and two of each that decides, of which one is killed."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Collection
from pathlib import Path

import httpx2 as httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from legato import Client
from legato.plan import GRACE_OTHERS_S, GRACE_S, MACHINES, SERVICES
from legato.processes import ask, is_up
from shared.contracts.outcomes import Status
from shared.contracts.steps import StepState
from shared.runtime.admin import ProcessStatus
from shared.runtime.bus import Bus, BusConfig
from shared.runtime.embedded import EmbeddedNats
from shared.runtime.process import ManagedProcess, ProcessSpec

LIMIT_S = 60.0


class Crew:
    """Processes started one by one, and what they say of themselves."""

    def __init__(self, bus: Bus, dsn: str, logs: Path) -> None:
        self.bus = bus
        self._dsn = dsn
        self._logs = logs
        self.processes: dict[str, ManagedProcess] = {}

    async def start(self, service: str, instance: str, *settings: str) -> ManagedProcess:
        words = [word for setting in (f"bus.url={self.bus.config.url}", *settings) for word in ("--set", setting)]
        argv = [sys.executable, "-m", f"services.{service}", "--instance", instance, *words]
        env = {**os.environ, "LEGATO_POSTGRES_DSN": self._dsn, "LEGATO_GATEWAY_PORT": "0"}
        process = ManagedProcess(ProcessSpec(name=instance, argv=argv, env=env, log=self._logs / f"{instance}.log"))
        await process.start()
        self.processes[instance] = process
        return process

    async def until_up(self, names: Collection[str]) -> dict[str, ProcessStatus]:
        """What each says once all serve or stand by."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                answers = {each.instance: each for each in await ask(self.bus, names) if each.instance in names and is_up(each)}
                if answers.keys() >= set(names):
                    return answers
                for name in names:
                    assert self.processes[name].running, self.processes[name].end()
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        await asyncio.gather(*(process.stop(GRACE_OTHERS_S) for process in self.processes.values()))


@pytest.fixture(scope="module")
async def own_nats(session_directory: Path) -> AsyncIterator[str]:
    server = EmbeddedNats(session_directory / "alone")
    await server.start()
    yield server.url
    await server.stop()


@pytest.fixture
async def crew(own_nats: str, database: str, tmp_path: Path) -> AsyncIterator[Crew]:
    bus = await Bus.connect(BusConfig(url=own_nats), "test")
    crew = Crew(bus, database, tmp_path)
    yield crew
    await crew.stop()
    await bus.close()


async def got(address: str, path: str) -> httpx.Response:
    async with httpx.AsyncClient(timeout=LIMIT_S) as client:
        return await client.get(f"{address}{path}")


async def ready(address: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while (await got(address, "/ready")).status_code != 200:  # noqa: ASYNC110  it can only be asked
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_alone_gets_ready_tells_and_leaves_nothing(crew: Crew, service: str) -> None:
    process = await crew.start(service, f"{service}-alone")
    status = (await crew.until_up([f"{service}-alone"]))[f"{service}-alone"]
    await ready(status.address)
    assert (status.service, status.pid) == (service, process.pid)
    assert (await got(status.address, "/health")).text == "ok\n"
    samples = [
        sample for family in text_string_to_metric_families((await got(status.address, "/metrics")).text) for sample in family.samples
    ]
    assert {sample.labels["service"] for sample in samples if "service" in sample.labels} <= {service}
    if service in MACHINES and service != "workflow":
        assert [sample.value for sample in samples if sample.name == "legato_decision_seconds_count"]
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), GRACE_S.get(service, GRACE_OTHERS_S)) == 0
    assert not [child for child in children if child.is_running()]
    for line in (crew._logs / f"{service}-alone.log").read_text().splitlines():
        assert json.loads(line)["level"] in ("info", "warning"), line


async def test_of_two_the_other_takes_over_when_the_active_one_is_killed(crew: Crew) -> None:
    names = [f"{service}-{index}" for service in MACHINES for index in (0, 1)]
    for name in names:
        await crew.start(name.rpartition("-")[0], name)
    await crew.start("worker", "worker-0", "simulated.law=8b-h100")
    await crew.until_up(["worker-0"])
    roles = {name: status.details["role"] for name, status in (await crew.until_up(names)).items()}
    active = sorted(name for name, role in roles.items() if role == "active")
    assert [name.rpartition("-")[0] for name in active] == sorted(MACHINES)
    standing_by = [name for name in names if name not in active]
    assert {roles[name] for name in standing_by} == {"standing by"}
    async with Client(crew.bus.config.url) as client:
        running = await client.submit(model="sim-small", prompt="Play on", max_tokens=600)
        await anext(aiter(running))
        for name in active:
            os.kill(crew.processes[name].pid, signal.SIGKILL)
        assert (await running.result(LIMIT_S)).status is Status.SUCCEEDED
        later = await client.submit(model="sim-small", prompt="Play again", max_tokens=3)
        assert (await later.result(LIMIT_S)).status is Status.SUCCEEDED
        async with asyncio.timeout(LIMIT_S):
            while {(await client.record(step.id)).status for step in (running, later)} != {StepState.SUCCEEDED}:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    async with asyncio.timeout(LIMIT_S):
        while {status.details["role"] for status in (await crew.until_up(standing_by)).values()} != {"active"}:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    for status in (await crew.until_up(standing_by)).values():
        await ready(status.address)


@pytest.mark.parametrize(
    ("service", "settings", "said"),
    [
        ("workflow", ["postgres.dsn=nonsense"], "DSN"),
        ("workflow", ["postgres.dsn="], "LEGATO_POSTGRES_DSN"),
        ("scheduler", ["scheduler.queue_maximum=1"], "queue_max"),
        ("gateway", ["gateway.host=203.0.113.1"], "cannot serve"),
        ("worker", ["worker.engine=steam"], "steam"),
    ],
)
async def test_what_cannot_run_says_why_and_ends(crew: Crew, service: str, settings: list[str], said: str) -> None:
    process = await crew.start(service, f"{service}-wrong", *settings)
    assert await asyncio.wait_for(process.wait(), LIMIT_S) == 1
    [error] = [json.loads(line) for line in process.log_tail().splitlines() if '"error"' in line]
    assert said in error["message"]
