"""Keeps processes running: restarts what ends unexpectedly, ever more slowly, and stops everything in reverse order within a bound."""

import asyncio
import logging
import time
from collections.abc import Callable
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self

import msgspec

from shared.core.errors import LegatoError
from shared.runtime.process import KILL_WAIT_S, ProcessError

GRACE_S_MIN = 0.5  # even when the time for stopping everything is used up, each process is asked before it is killed

_log = logging.getLogger(__name__)


class Supervised(Protocol):
    """What can be supervised: a ManagedProcess, an embedded server. `start` returns when it is of use, or raises LegatoError."""

    @property
    def pid(self) -> int: ...

    async def start(self) -> None: ...

    async def wait(self) -> int: ...

    async def stop(self, grace_s: float) -> int: ...

    def end(self) -> str: ...


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The wait before a restart doubles from `first_s` to `most_s`, and is `first_s` again after a run of `healthy_s`."""

    first_s: float = 0.2
    most_s: float = 30.0
    healthy_s: float = 60.0

    def wait_s(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row, from 1."""
        return float(min(self.most_s, self.first_s * 2 ** min(failures - 1, 30)))


class ProcessEventKind(StrEnum):
    STARTED = "started"
    ENDED = "ended"  # of itself; `detail` says how
    RESTARTING = "restarting"  # `detail` says when
    START_FAILED = "start failed"  # of a restart; the next one follows
    STOPPED = "stopped"  # as asked


class ProcessEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One line in the life of a supervised process."""

    name: str
    kind: ProcessEventKind
    pid: int
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.kind} (process {self.pid}){': ' if self.detail else ''}{self.detail}"


class _Entry:
    def __init__(self, process: Supervised, restart: bool, grace_s: float) -> None:
        self.process = process
        self.restart = restart
        self.grace_s = grace_s
        self.task: asyncio.Task[None] | None = None


class Supervisor:
    """Processes by name. `notify` is called, in the event loop, with each event; it must not block. What it raises is logged: the watching
    goes on.

    Use as a context manager, so that nothing stays behind, whatever happens:

        async with Supervisor(print) as supervisor:
            await supervisor.add("nats", EmbeddedNats(directory))
    """

    def __init__(self, notify: Callable[[ProcessEvent], None], policy: RestartPolicy | None = None, stop_s: float = 30.0) -> None:
        self._notify = notify
        self._policy = policy or RestartPolicy()
        self._stop_s = stop_s
        self._entries: dict[str, _Entry] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop(self._stop_s)

    @property
    def names(self) -> list[str]:
        """In the order in which they were added."""
        return list(self._entries)

    def __getitem__(self, name: str) -> Supervised:
        return self._entries[name].process

    async def add(self, name: str, process: Supervised, *, restart: bool = True, grace_s: float = 10.0) -> None:
        """Start a process and watch it. Raises what its `start` raises; then it is not added. `grace_s`: what it may take to stop."""
        if name in self._entries:
            raise ProcessError(f"a process named {name!r} is supervised already")
        entry = self._entries[name] = _Entry(process, restart, grace_s)
        try:
            await process.start()
        except BaseException:
            del self._entries[name]
            await process.stop(0)
            raise
        self._tell(name, entry, ProcessEventKind.STARTED)
        entry.task = asyncio.create_task(self._watch(name, entry), name=f"supervise {name}")
        entry.task.add_done_callback(_report)

    async def remove(self, name: str, grace_s: float | None = None) -> None:
        """Stop a process for good; returns when it has ended. `grace_s` None: as given to `add`. An unknown name is nothing to do."""
        entry = self._entries.get(name)
        if entry is None:
            return
        if entry.task is not None:
            entry.task.cancel()
            await asyncio.wait([entry.task], timeout=KILL_WAIT_S)
        try:
            await entry.process.stop(entry.grace_s if grace_s is None else grace_s)
        finally:
            self._tell(name, entry, ProcessEventKind.STOPPED)
            self._entries.pop(name, None)

    async def stop(self, within_s: float) -> None:
        """Stop all, last added first, each within its own grace period and all within about `within_s` (see GRACE_S_MIN)."""
        deadline = time.monotonic() + within_s
        errors: list[LegatoError] = []
        for name, entry in reversed(list(self._entries.items())):
            grace_s = min(entry.grace_s, max(deadline - time.monotonic(), GRACE_S_MIN))
            try:
                await self.remove(name, grace_s)
            except LegatoError as error:
                errors.append(error)  # the others must still be stopped
        if errors:
            raise ProcessError("; ".join(map(str, errors))) from errors[0]

    async def _watch(self, name: str, entry: _Entry) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            await entry.process.wait()
            self._tell(name, entry, ProcessEventKind.ENDED, entry.process.end())
            await entry.process.stop(0)  # what is left of its group
            if not entry.restart:
                return
            failures = 1 if time.monotonic() - began >= self._policy.healthy_s else failures + 1
            failures = await self._restart(name, entry, failures)

    async def _restart(self, name: str, entry: _Entry, failures: int) -> int:
        """Start again, as often as it takes; returns the failures so far."""
        while True:
            wait_s = self._policy.wait_s(failures)
            self._tell(name, entry, ProcessEventKind.RESTARTING, f"in {wait_s:g} s")
            await asyncio.sleep(wait_s)
            try:
                await entry.process.start()
            except (LegatoError, OSError) as error:  # the second: what a start writes first finds no room on the disk, for instance
                failures += 1
                self._tell(name, entry, ProcessEventKind.START_FAILED, str(error))
                await entry.process.stop(0)
            else:
                self._tell(name, entry, ProcessEventKind.STARTED)
                return failures

    def _tell(self, name: str, entry: _Entry, kind: ProcessEventKind, detail: str = "") -> None:
        event = ProcessEvent(name=name, kind=kind, pid=entry.process.pid, detail=detail)
        try:
            self._notify(event)
        except Exception:  # whoever is told may fail, with a full disk or a closed terminal; the process must not go unwatched for it
            _log.exception("told to nobody: %s", event)


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("%s failed; the process is no longer watched", task.get_name(), exc_info=task.exception())
