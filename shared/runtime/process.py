"""Child processes that start cleanly, stop within a bound and never outlive their parent.

`ManagedProcess` is one program in a session of its own: Ctrl-C in the terminal reaches only the parent, which stops its children in order.
If the parent is killed, Linux sends the child `death_signal` (see exec_child.py; it is tied to the thread that started the child, so start
processes from an event loop whose thread lives as long as they should). `Supervisor` keeps several of them running (supervisor.py).
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from shared.core.errors import LegatoError

LAUNCHER = Path(__file__).with_name("exec_child.py")
LOG_BYTES_MAX = 16 * 2**20  # a longer log is set aside as <name>.1 at the next start
KILL_WAIT_S = 10.0  # after SIGKILL; only a process stuck in the kernel takes longer
TAIL_BYTES_MAX = 16 * 2**10


class ProcessError(LegatoError):
    """A program could not be started or stopped, or ended when it should not have. The message ends with the tail of its log."""


class ProcessSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. `argv[0]` is a path or is looked up in PATH; `env` replaces the environment (None: ours).

    `log` gets standard output and error, appended (None: they stay ours). `user` is (uid, gid) to run as, for root only.
    `keep_fds` stay open in the child. `death_signal` is what the child gets if this process dies.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    cwd: Path | None = None
    log: Path | None = None
    user: tuple[int, int] | None = None
    keep_fds: tuple[int, ...] = ()
    stop_signal: int = signal.SIGTERM
    death_signal: int = signal.SIGKILL


class ManagedProcess:
    """One run after another of the same program; at most one at a time."""

    def __init__(self, spec: ProcessSpec) -> None:
        self.spec = spec
        self._process: asyncio.subprocess.Process | None = None
        self._group_may_live = False
        self._log_start = 0  # bytes of earlier runs in the log

    @property
    def pid(self) -> int:
        """Of the present or last run; 0 before the first."""
        return self._process.pid if self._process else 0

    @property
    def returncode(self) -> int | None:
        """None while running or before the first run; -n when ended by signal n."""
        return self._process.returncode if self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the program; returns as soon as the process exists. Raises ProcessError."""
        if self.running:
            raise ProcessError(f"{self.spec.name} is running already, as process {self.pid}")
        argv = self._launcher_argv()
        try:
            with _open_log(self.spec.log) as output:
                self._log_start = output.tell() if output else 0
                self._process = await asyncio.create_subprocess_exec(
                    *argv,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=asyncio.subprocess.STDOUT if output else None,
                    env=self.spec.env,
                    cwd=self.spec.cwd,
                    pass_fds=self.spec.keep_fds,
                    start_new_session=True,
                )
        except OSError as error:
            raise ProcessError(f"cannot start {self.spec.name}: {error}") from error
        self._group_may_live = True

    async def wait(self) -> int:
        """Wait, without limit, for the end of the run; its return code."""
        if self._process is None:
            raise ProcessError(f"{self.spec.name} was never started")
        return await self._process.wait()

    async def stop(self, grace_s: float = 10.0) -> int:
        """Send the stop signal, wait `grace_s`, then kill what is left of the process's group. Harmless when it is not running.

        Returns the return code (0 if never started). Raises ProcessError if the process survives SIGKILL.
        """
        if self._process is None:
            return 0
        try:
            if grace_s > 0:
                self.signal(self.spec.stop_signal)
                async with asyncio.timeout(grace_s):
                    await self._process.wait()
        except TimeoutError:
            pass  # the kill below is the answer
        finally:
            self._kill_group()
        try:
            async with asyncio.timeout(KILL_WAIT_S):
                return await self._process.wait()
        except TimeoutError as error:
            raise ProcessError(f"{self.spec.name} (process {self.pid}) has survived SIGKILL for {KILL_WAIT_S:.0f} s") from error

    def signal(self, number: int) -> None:
        """Send a signal to the process itself, not to its group. Harmless when it is not running."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def log_tail(self, lines: int = 20) -> str:
        """The last lines that this run has logged; empty without a log."""
        return tail(self.spec.log, lines, self._log_start) if self.spec.log else ""

    def end(self) -> str:
        """How the last run ended, for people: the return code or signal, and the tail of the log."""
        log = self.log_tail()
        how = f"{self.spec.name} {describe(self.returncode)}"
        return f"{how}; its log ends:\n{log}" if log else how

    def _launcher_argv(self) -> list[str]:
        program = shutil.which(self.spec.argv[0])
        if program is None:
            raise ProcessError(f"cannot start {self.spec.name}: no program {self.spec.argv[0]!r}")
        user = f"{self.spec.user[0]}:{self.spec.user[1]}" if self.spec.user else "-"
        launcher = [sys.executable, "-I", "-S", str(LAUNCHER), str(int(self.spec.death_signal)), str(os.getpid()), user]
        return [*launcher, os.path.abspath(program), *self.spec.argv[1:]]

    def _kill_group(self) -> None:
        # Once per run: later the number could belong to a stranger.
        if self._group_may_live and self._process is not None:
            self._group_may_live = False
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)


def describe(returncode: int | None) -> str:
    """A return code in words."""
    if returncode is None:
        return "is running"
    if returncode < 0:
        return f"was ended by signal {-returncode} ({signal.Signals(-returncode).name})"
    return f"ended with code {returncode}"


def tail(path: Path, lines: int, start: int = 0) -> str:
    """The last `lines` lines of a text file after byte `start`, at most 16 KiB; empty if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(start, path.stat().st_size - TAIL_BYTES_MAX))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _open_log(path: Path | None) -> "contextlib.AbstractContextManager[IO[bytes] | None]":
    if path is None:
        return contextlib.nullcontext()
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_BYTES_MAX:
        path.replace(path.with_name(path.name + ".1"))
    return path.open("ab")
