"""SGLang as a child process: started, watched, and stopped with everything that it started itself."""

import asyncio
import os
import re
import shutil
import signal
import socket
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

LOG_TAIL_BYTES = 4000
GROUP_EXIT_TIMEOUT_S = 10.0  # from SIGKILL until the kernel has removed the group
POLL_S = 0.05


class EngineProcess:
    """A child in a process group of its own, with a log file and a scratch folder that goes when it goes."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.scratch = Path(tempfile.mkdtemp(prefix="legato-engine-"))
        self._child: asyncio.subprocess.Process | None = None
        self._gone = False  # the group's id may belong to others by now
        self._leftovers: list[Path] = []

    async def start(self, command: Sequence[str], environment: dict[str, str]) -> None:
        """Start the child. Raises OSError when the program cannot be run."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists():
            self.log.replace(self.log.with_name(self.log.name + ".1"))
        with self.log.open("wb") as output:
            self._child = await asyncio.create_subprocess_exec(
                *command,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a Ctrl-C in the worker's terminal is not for the engine
            )

    @property
    def pid(self) -> int:
        """Of the child, which is also the id of its process group."""
        if self._child is None:
            raise AssertionError("the engine process was not started")
        return self._child.pid

    async def exited(self) -> str:
        """Wait for the child's end and return how it ended, with the last lines of its log."""
        if self._child is None:
            return "the engine was never started"
        code = await self._child.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        return f"SGLang (pid {self._child.pid}) {how}; the end of {self.log}:\n{self.tail()}"

    def tail(self) -> str:
        """The last lines of the log."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as lines:
            lines.seek(max(0, self.log.stat().st_size - LOG_TAIL_BYTES))
            return lines.read().decode(errors="replace")

    async def stop(self, timeout_s: float) -> None:
        """SIGTERM to the child alone, which ends its own children; after `timeout_s` SIGKILL to the whole group. Then nothing is left."""
        if self._child is not None:
            if self._child.returncode is None:
                with suppress(ProcessLookupError):
                    self._child.terminate()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._child.wait(), timeout_s)
            await self.kill()
        shutil.rmtree(self.scratch, ignore_errors=True)

    async def kill(self) -> None:
        """SIGKILL to the whole group, and wait until it is gone."""
        if self._child is None or self._gone:
            return
        async with asyncio.timeout(GROUP_EXIT_TIMEOUT_S):
            while _group_alive(self._child.pid):
                with suppress(ProcessLookupError):
                    os.killpg(self._child.pid, signal.SIGKILL)
                await asyncio.sleep(POLL_S)
            await self._child.wait()
        self._gone = True
        for path in self._leftovers:
            path.unlink(missing_ok=True)

    def note_leftovers(self) -> None:
        """Remember the files in shared memory that the child has mapped now: SGLang never removes them."""
        maps = Path(f"/proc/{self.pid}/maps").read_text()
        self._leftovers = [Path(path) for path in dict.fromkeys(re.findall(r"/dev/shm/sglang_\S+", maps))]


def _group_alive(group: int) -> bool:
    """Whether a process of the group is left that is more than a zombie waiting for its parent."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):  # it may end while it is looked at
            # /proc/PID/stat: "pid (name) state ppid pgrp ..."; the name may hold spaces and brackets
            state, _, group_id = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(group_id) == group and state != "Z":
                return True
    return False


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
