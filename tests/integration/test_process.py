import asyncio
import errno
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from shared.runtime.process import ManagedProcess, ProcessError, ProcessSpec
from shared.runtime.supervisor import ProcessEvent, ProcessEventKind, RestartPolicy, Supervisor

WAIT_S = 20.0
SLEEP = "import time; print('up', flush=True); time.sleep(600)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(f"up {child.pid}", flush=True)
time.sleep(600)
"""
PARENT = """
import asyncio, sys, uvloop
from shared.runtime.process import ManagedProcess, ProcessSpec

async def main():
    child = ManagedProcess(ProcessSpec(name="child", argv=[sys.executable, "-c", "import time; time.sleep(600)"]))
    await child.start()
    print(child.pid, flush=True)
    await asyncio.sleep(600)

{loop}.run(main())
"""


def python(code: str, directory: Path, name: str = "child") -> ManagedProcess:
    return ManagedProcess(ProcessSpec(name=name, argv=[sys.executable, "-c", code], log=directory / f"{name}.log"))


async def is_up(process: ManagedProcess) -> str:
    """Waits for the line that the program prints once it runs."""
    async with asyncio.timeout(WAIT_S):
        while "up" not in process.log_tail():
            assert process.running, process.end()
            await asyncio.sleep(0.01)
    return process.log_tail()


class Events:
    """What a supervisor tells, to be awaited."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, ProcessEventKind]] = []
        self.details: list[str] = []
        self._changed = asyncio.Event()

    def __call__(self, event: ProcessEvent) -> None:
        self.seen.append((event.name, event.kind))
        self.details.append(event.detail)
        self._changed.set()

    async def until(self, name: str, kind: ProcessEventKind, times: int = 1) -> None:
        async with asyncio.timeout(WAIT_S):
            while self.seen.count((name, kind)) < times:
                self._changed.clear()
                await self._changed.wait()


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
async def supervisor(events: Events) -> AsyncIterator[Supervisor]:
    async with Supervisor(events, RestartPolicy(first_s=0.01, most_s=0.05)) as supervisor:
        yield supervisor


async def test_a_process_stops_when_asked_and_can_start_again(tmp_path: Path) -> None:
    process = python(SLEEP, tmp_path)
    for _ in range(2):
        await process.start()
        await is_up(process)
        assert process.running
        assert await process.stop() == -signal.SIGTERM
        assert not process.running
    assert "was ended by signal 15 (SIGTERM); its log ends:\nup" in process.end()


async def test_a_process_that_ignores_the_stop_signal_is_killed(tmp_path: Path) -> None:
    process = python(STUBBORN, tmp_path)
    await process.start()
    await is_up(process)
    assert await process.stop(grace_s=0.05) == -signal.SIGKILL


async def test_stopping_takes_the_whole_family_along(tmp_path: Path) -> None:
    process = python(FAMILY, tmp_path)
    await process.start()
    grandchild = psutil.Process(int((await is_up(process)).split()[1]))
    await process.stop()
    await asyncio.to_thread(psutil.wait_procs, [grandchild], WAIT_S)
    assert not grandchild.is_running()


async def test_stopping_what_does_not_run_is_harmless(tmp_path: Path) -> None:
    process = python("raise SystemExit(3)", tmp_path)
    assert await process.stop() == 0
    await process.start()
    assert await process.wait() == 3
    assert (await process.stop(), await process.stop()) == (3, 3)


async def test_a_cancelled_stop_still_kills(tmp_path: Path) -> None:
    process = python(STUBBORN, tmp_path)
    await process.start()
    await is_up(process)
    stop = asyncio.create_task(process.stop(grace_s=600))
    await asyncio.sleep(0)
    stop.cancel()
    assert await asyncio.wait_for(process.wait(), WAIT_S) == -signal.SIGKILL
    assert stop.cancelled()


async def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(ProcessError, match="cannot start ghost: no program 'no-such-program'"):
        await ManagedProcess(ProcessSpec(name="ghost", argv=["no-such-program"])).start()


async def test_a_running_process_is_not_started_twice(tmp_path: Path) -> None:
    process = python(SLEEP, tmp_path)
    await process.start()
    with pytest.raises(ProcessError, match="is running already"):
        await process.start()
    await process.stop()


async def test_the_child_gets_what_it_was_given_and_a_session_of_its_own(tmp_path: Path) -> None:
    code = "import os; print(os.getcwd(), os.environ['ONLY'], 'PATH' in os.environ, os.getsid(0) == os.getpid())"
    argv = [sys.executable, "-c", code]
    process = ManagedProcess(ProcessSpec(name="child", argv=argv, cwd=tmp_path, env={"ONLY": "this"}, log=tmp_path / "log"))
    await process.start()
    await process.wait()
    assert process.log_tail() == f"{tmp_path} this False True"
    await process.stop()


async def test_only_this_runs_log_is_quoted(tmp_path: Path) -> None:
    process = python("import os; print(os.environ['LINE'])", tmp_path)
    for line in ("first", "second"):
        process = ManagedProcess(ProcessSpec(name="child", argv=process.spec.argv, env={**os.environ, "LINE": line}, log=tmp_path / "log"))
        await process.start()
        await process.wait()
        await process.stop()
        assert process.log_tail() == line


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_a_killed_parent_takes_its_children_along(loop: str) -> None:
    root = Path(__file__).parents[2]
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT.format(loop=loop), stdout=asyncio.subprocess.PIPE, cwd=root)
    assert parent.stdout is not None
    child = psutil.Process(int(await asyncio.wait_for(parent.stdout.readline(), WAIT_S)))
    parent.kill()
    await parent.wait()
    await asyncio.to_thread(psutil.wait_procs, [child], WAIT_S)
    assert not child.is_running()


async def test_what_ends_unexpectedly_is_started_again(supervisor: Supervisor, events: Events, tmp_path: Path) -> None:
    process = python(SLEEP, tmp_path)
    await supervisor.add("worker", process)
    first = process.pid
    os.kill(first, signal.SIGKILL)
    await events.until("worker", ProcessEventKind.STARTED, times=2)
    assert process.running
    assert process.pid != first
    kinds = [kind for _, kind in events.seen]
    assert kinds == [ProcessEventKind.STARTED, ProcessEventKind.ENDED, ProcessEventKind.RESTARTING, ProcessEventKind.STARTED]
    assert "SIGKILL" in events.details[1]


async def test_what_fails_again_and_again_is_started_ever_more_slowly(supervisor: Supervisor, events: Events, tmp_path: Path) -> None:
    await supervisor.add("worker", python("raise SystemExit(1)", tmp_path))
    await events.until("worker", ProcessEventKind.RESTARTING, times=5)
    waits = [detail for (_, kind), detail in zip(events.seen, events.details, strict=True) if kind == ProcessEventKind.RESTARTING]
    assert waits[:5] == ["in 0.01 s", "in 0.02 s", "in 0.04 s", "in 0.05 s", "in 0.05 s"]


async def test_a_restart_that_fails_is_told_and_tried_again(supervisor: Supervisor, events: Events, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nsleep 600\n")
    program.chmod(0o755)
    await supervisor.add("worker", ManagedProcess(ProcessSpec(name="worker", argv=[str(program)])))
    program.rename(tmp_path / "away")
    os.kill(supervisor["worker"].pid, signal.SIGKILL)
    await events.until("worker", ProcessEventKind.START_FAILED)
    (tmp_path / "away").rename(program)
    await events.until("worker", ProcessEventKind.STARTED, times=2)


async def test_a_listener_that_fails_does_not_end_the_watching(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    events = Events()

    def tell(event: ProcessEvent) -> None:
        events(event)
        raise OSError(errno.ENOSPC, "no space left on device")

    async with Supervisor(tell, RestartPolicy(first_s=0.01)) as supervisor:
        process = python(SLEEP, tmp_path)
        await supervisor.add("worker", process)
        os.kill(process.pid, signal.SIGKILL)
        await events.until("worker", ProcessEventKind.STARTED, times=2)
        os.kill(process.pid, signal.SIGKILL)
        await events.until("worker", ProcessEventKind.STARTED, times=3)
    assert events.seen[-1] == ("worker", ProcessEventKind.STOPPED)
    assert any("told to nobody" in record.message and record.exc_info for record in caplog.records)


async def test_a_restart_that_finds_no_room_to_write_is_tried_again(supervisor: Supervisor, events: Events, tmp_path: Path) -> None:
    class Cramped(ManagedProcess):
        """Writes a file before it starts, as servers do."""

        async def start(self) -> None:
            (tmp_path / "server.conf").write_text("port: 1")
            await super().start()

    process = Cramped(ProcessSpec(name="worker", argv=[sys.executable, "-c", SLEEP]))
    await supervisor.add("worker", process)
    (tmp_path / "server.conf").unlink()
    (tmp_path / "server.conf").mkdir()
    os.kill(process.pid, signal.SIGKILL)
    await events.until("worker", ProcessEventKind.START_FAILED)
    (tmp_path / "server.conf").rmdir()
    await events.until("worker", ProcessEventKind.STARTED, times=2)


async def test_a_good_long_run_forgets_earlier_failures(events: Events, tmp_path: Path) -> None:
    async with Supervisor(events, RestartPolicy(first_s=0.01, healthy_s=0.0)) as supervisor:
        await supervisor.add("worker", python("raise SystemExit(1)", tmp_path))
        await events.until("worker", ProcessEventKind.RESTARTING, times=3)
    assert set(events.details) & {"in 0.02 s", "in 0.04 s"} == set()


async def test_what_should_run_once_is_not_restarted(supervisor: Supervisor, events: Events, tmp_path: Path) -> None:
    await supervisor.add("job", python("pass", tmp_path), restart=False)
    await events.until("job", ProcessEventKind.ENDED)
    await supervisor.remove("job")
    assert events.seen[-1] == ("job", ProcessEventKind.STOPPED)
    assert ("job", ProcessEventKind.RESTARTING) not in events.seen


async def test_removing_stops_for_good_and_frees_the_name(supervisor: Supervisor, events: Events, tmp_path: Path) -> None:
    process = python(SLEEP, tmp_path)
    await supervisor.add("worker", process)
    with pytest.raises(ProcessError, match="'worker' is supervised already"):
        await supervisor.add("worker", process)
    await supervisor.remove("worker")
    assert (process.running, supervisor.names) == (False, [])
    await supervisor.remove("worker")
    await supervisor.add("worker", process)
    assert process.running


async def test_a_process_can_be_removed_while_it_waits_for_its_restart(events: Events, tmp_path: Path) -> None:
    async with Supervisor(events, RestartPolicy(first_s=600)) as supervisor:
        await supervisor.add("worker", python("raise SystemExit(1)", tmp_path))
        await events.until("worker", ProcessEventKind.RESTARTING)
        await supervisor.remove("worker")
        assert events.seen[-1] == ("worker", ProcessEventKind.STOPPED)


async def test_all_are_stopped_in_reverse_order_even_if_some_refuse(events: Events, tmp_path: Path) -> None:
    processes = [python(code, tmp_path, name) for name, code in (("a", SLEEP), ("b", STUBBORN), ("c", SLEEP))]
    async with Supervisor(events) as supervisor:
        for process in processes:
            await supervisor.add(process.spec.name, process, grace_s=0.1)
            await is_up(process)
    assert [name for name, kind in events.seen if kind == ProcessEventKind.STOPPED] == ["c", "b", "a"]
    assert [process.returncode for process in processes] == [-signal.SIGTERM, -signal.SIGKILL, -signal.SIGTERM]


async def test_what_cannot_start_is_not_added(supervisor: Supervisor) -> None:
    with pytest.raises(ProcessError, match="no-such-program"):
        await supervisor.add("ghost", ManagedProcess(ProcessSpec(name="ghost", argv=["no-such-program"])))
    assert supervisor.names == []
