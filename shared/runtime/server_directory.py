"""The directory of an embedded server: its lock, the port it had last time, and waiting until it answers.

The lock (flock(2)) is inherited by the server, so it is held as long as any process of the server lives, even when ours was killed. Who
gets the lock therefore knows that nothing runs on the data.
"""

import asyncio
import contextlib
import fcntl
import os
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path

from shared.core.errors import LegatoError
from shared.runtime.process import ManagedProcess

LOCK_WAIT_S = 15.0  # for a server whose parent was killed to finish stopping
POLL_S = 0.02
PORT_RANGE = (20_000, 32_000)
PORT_TRIES = 5


class EmbeddedError(LegatoError):
    """An embedded server is not installed, cannot start, or did not answer in time."""


class PortTaken(EmbeddedError):
    """Somebody else listens on the port that the server should have."""


class ServerDirectory:
    """One server's files under `path`, which is created when needed."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.log = self.path / "log"
        self._lock_fd = -1

    async def lock(self, wait_s: float = LOCK_WAIT_S) -> int:
        """Take the directory for one server; returns the descriptor that the server must keep open. Raises EmbeddedError if in use."""
        self.unlock()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LegatoError(f"cannot write in {self.path}: {error.strerror}") from error
        deadline = time.monotonic() + wait_s
        while not _try_lock(descriptor):
            if time.monotonic() >= deadline:
                os.close(descriptor)
                raise EmbeddedError(f"{self.path} is in use by another server that is still running; stop it or choose another directory")
            await asyncio.sleep(POLL_S)
        self._lock_fd = descriptor
        return descriptor

    def unlock(self) -> None:
        """Let go of the directory; the server's own hold on it ends with its last process."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    def ports_to_try(self, fixed: int) -> list[int]:
        """`fixed` alone if given; otherwise the port of the last run on this directory, and free ones."""
        if fixed:
            return [fixed]
        try:
            last = [int((self.path / "port").read_text())]
        except (FileNotFoundError, ValueError):
            last = []
        return last + [free_port() for _ in range(PORT_TRIES)]

    def remember_port(self, port: int) -> None:
        """So that the next run can have it again, and clients find the server where it was."""
        (self.path / "port").write_text(str(port))


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now; somebody may take it before the caller does. Raises EmbeddedError.

    It lies below the range from which Linux gives ports to outgoing connections (ip_local_port_range, 32768 and up): while a server
    restarts, its port could otherwise be given to a client that tries to reconnect, which would then be connected to itself.
    """
    for _ in range(100):
        port = random.randrange(*PORT_RANGE)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise EmbeddedError(f"no free port between {PORT_RANGE[0]} and {PORT_RANGE[1]}")


async def wait_ready(process: ManagedProcess, is_ready: Callable[[], bool], within_s: float) -> None:
    """Wait until `is_ready`. Raises EmbeddedError with the end of the log if the server ends or takes longer; PortTaken if that is why."""
    deadline = time.monotonic() + within_s
    while not is_ready():
        if not process.running:
            kind = PortTaken if "already in use" in process.log_tail() else EmbeddedError
            raise kind(f"{process.end()}")
        if time.monotonic() >= deadline:
            raise EmbeddedError(f"{process.spec.name} was not ready within {within_s:.0f} s; its log ends:\n{process.log_tail()}")
        await asyncio.sleep(POLL_S)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
