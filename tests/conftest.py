"""Real servers for the tests: one nats-server and one Postgres for the whole session, and fresh ones where a test wants its own.

They are children of pytest and end with it, even when it is killed.
"""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shared.runtime.db import connect
from shared.runtime.embedded import EmbeddedNats, EmbeddedPostgres
from shared.runtime.ids import new_id


@pytest.fixture(scope="session")
def session_directory() -> Iterator[Path]:
    # Not pytest's own: Postgres runs as somebody else when we are root, and pytest keeps others out of its directories.
    with tempfile.TemporaryDirectory(prefix="legato-tests-") as directory:
        yield Path(directory)


@pytest.fixture
def server_directory() -> Iterator[Path]:
    """An empty directory for a test's own servers."""
    with tempfile.TemporaryDirectory(prefix="legato-test-") as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
async def nats_url(session_directory: Path) -> AsyncIterator[str]:
    """The session's nats-server with JetStream; what tests leave on it, others see."""
    server = EmbeddedNats(session_directory / "nats")
    await server.start()
    yield server.url
    await server.stop()


@pytest.fixture
async def fresh_nats(server_directory: Path) -> AsyncIterator[EmbeddedNats]:
    """A running nats-server of the test's own, which it may stop and start."""
    server = EmbeddedNats(server_directory / "nats")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture(scope="session")
async def postgres_dsn(session_directory: Path) -> AsyncIterator[str]:
    """The session's Postgres; use `database` for one of the test's own on it."""
    server = EmbeddedPostgres(session_directory / "postgres")
    await server.start()
    yield server.dsn
    await server.stop()


@pytest.fixture
async def database(postgres_dsn: str) -> AsyncIterator[str]:
    """The DSN of a fresh, empty database, dropped after the test."""
    name = f"test_{new_id().replace('-', '')}"
    connection = await connect(postgres_dsn)
    try:
        await connection.execute(f"CREATE DATABASE {name}")
        yield postgres_dsn.replace("/legato?", f"/{name}?")
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await connection.close()


@pytest.fixture
async def fresh_postgres(server_directory: Path) -> AsyncIterator[EmbeddedPostgres]:
    """A running Postgres of the test's own, which it may stop and start. Takes 1.5 s to make; prefer `database`."""
    server = EmbeddedPostgres(server_directory / "postgres")
    await server.start()
    yield server
    await server.stop()
