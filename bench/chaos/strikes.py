"""Strikes processes of a fleet as planned."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence

import msgspec
import psutil

from bench.chaos.plan import Blow, Way
from legato.fleet import Fleet


class Struck(msgspec.Struct):
    """A blow, and when it fell (monotonic, ns). `until_ns`: when a pause was over. `missed`: the victim was not running."""

    blow: Blow
    at_ns: int = 0
    until_ns: int = 0
    missed: bool = False


async def storm(fleet: Fleet, blows: Sequence[Blow], tell: Callable[[str], None]) -> list[Struck]:
    """Strike at the planned times; returns when the last pause is over."""
    begun = time.monotonic()
    struck: list[Struck] = []
    async with asyncio.TaskGroup() as group:
        for blow in blows:
            await asyncio.sleep(begun + blow.at_s - time.monotonic())
            one = Struck(blow)
            struck.append(one)
            group.create_task(strike(fleet, one))
            what = f"{blow.way} {blow.victim}{'’s engine' if blow.engine else ''}"
            tell(f"{blow.at_s:5.1f} s  {what}{f' for {blow.pause_s:.1f} s' if blow.pause_s else ''}")
    return struck


async def strike(fleet: Fleet, struck: Struck) -> None:
    """One blow."""
    blow = struck.blow
    process = _victim(fleet, blow)
    struck.at_ns = struck.until_ns = time.monotonic_ns()
    if process is None:
        struck.missed = True
        return
    if blow.way is Way.PAUSE:
        await _pause(process, blow.pause_s)
        struck.until_ns = time.monotonic_ns()
        return
    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
        # Postgres takes SIGTERM as "when the last session has left", SIGINT as "now, in order".
        orderly = signal.SIGINT if blow.victim == "postgres" else signal.SIGTERM
        process.send_signal(orderly if blow.way is Way.STOP else signal.SIGKILL)


def _victim(fleet: Fleet, blow: Blow) -> psutil.Process | None:
    try:
        process = psutil.Process(fleet.running.processes[blow.victim])
        if blow.engine:
            return process.children()[0]
    except (KeyError, IndexError, psutil.NoSuchProcess):
        return None
    return process


async def _pause(process: psutil.Process, seconds: float) -> None:
    """The process with all below it, as a frozen machine would. Nobody stays stopped, whatever ends the storm."""
    stopped: list[int] = []
    try:
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in [process, *process.children(recursive=True)]:
                os.kill(each.pid, signal.SIGSTOP)
                stopped.append(each.pid)
        await asyncio.sleep(seconds)
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
