"""SGLang as a child process: what shared/runtime/process.py does for any program, and the rest of what SGLang leaves behind."""

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shared.runtime.process import ManagedProcess, ProcessError, ProcessSpec

LOG_LINES = 30  # of the log in an error message
NOISE = re.compile(r"nanobind:| - leaked | - \.\.\. skipped")  # a crash's last words bury its reason under hundreds of these
GROUP_EXIT_TIMEOUT_S = 10.0  # from SIGKILL until the kernel has removed the group
POLL_S = 0.05


class EngineProcess:
    """One life of SGLang, with a scratch folder that goes when it goes. Dies with the worker."""

    def __init__(self, log_dir: Path) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="legato-engine-"))
        self._log = log_dir / f"sglang-{os.getpid()}.log"
        self._process: ManagedProcess | None = None
        self._leftovers: list[Path] = []

    async def start(self, command: Sequence[str], environment: dict[str, str]) -> None:
        """Start the child. Raises ProcessError when the program cannot be run."""
        self._process = ManagedProcess(ProcessSpec(name="SGLang", argv=command, env=environment, log=self._log))
        await self._process.start()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    async def ended(self) -> str:
        """Wait for the child's end, kill what is left of its group, and say how it ended. Whoever starts SGLang anew calls `stop` before,
        which also waits until that is gone: the fleet must know of the end at once."""
        if self._process is None:
            raise ProcessError("SGLang was never started")
        await self._process.wait()
        await self._process.stop(grace_s=0)
        return self.described()

    def described(self) -> str:
        """How it ended or stands, with the last lines of its log."""
        if self._process is None:
            return "SGLang was never started"
        how = self._process.end().partition(";")[0]
        lines = [line for line in self._process.log_tail(20 * LOG_LINES).splitlines() if not NOISE.match(line)]
        return "\n".join([f"{how}; the end of {self._log}:", *lines[-LOG_LINES:]])

    async def stop(self, grace_s: float) -> None:
        """SIGTERM to the main process, which ends its own children; after `grace_s` SIGKILL to all of them. Then nothing is left."""
        if self._process is not None:
            await self._process.stop(grace_s)
            async with asyncio.timeout(GROUP_EXIT_TIMEOUT_S):
                while _group_lives(self._process.pid):  # noqa: ASYNC110  Linux tells nobody when a group is empty
                    await asyncio.sleep(POLL_S)
        shutil.rmtree(self.scratch, ignore_errors=True)
        for path in self._leftovers:
            path.unlink(missing_ok=True)

    def note_leftovers(self) -> None:
        """Remember the files in shared memory that the child has mapped now: SGLang never removes them."""
        if self._process is not None:
            maps = Path(f"/proc/{self._process.pid}/maps").read_text()
            self._leftovers = [Path(path) for path in dict.fromkeys(re.findall(r"/dev/shm/sglang_\S+", maps))]


def _group_lives(group: int) -> bool:
    """Whether a process of the group is left that is more than a zombie (init takes those, when it looks)."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # "pid (name) state parent group ...", proc(5); the name may hold blanks and brackets
            state, _, group_id = stat.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):  # it ended while it was looked at
            continue
        if int(group_id) == group and state not in ("Z", "X"):
            return True
    return False
