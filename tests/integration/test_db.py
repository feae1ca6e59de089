import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from asyncpg.exceptions import InternalClientError

from shared.runtime.db import Backoff, DatabaseConfig, DatabaseError, Pool, close_pool, is_retryable, open_pool, with_retry
from shared.runtime.embedded import EmbeddedPostgres
from shared.runtime.migrations import migrate
from shared.runtime.server_directory import free_port


@pytest.fixture
async def pool(database: str) -> AsyncIterator[Pool]:
    pool = await open_pool(DatabaseConfig(dsn=database))
    yield pool
    await close_pool(pool)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two migrations; the second has two statements and uses the first."""
    (tmp_path / "0001_songs.sql").write_text("CREATE TABLE songs (id int PRIMARY KEY)")
    (tmp_path / "0002_first_song.sql").write_text("INSERT INTO songs VALUES (1); INSERT INTO songs VALUES (2);")
    (tmp_path / "README.md").write_text("not a migration")
    return tmp_path


async def test_migrations_are_applied_once_and_in_order(pool: Pool, directory: Path) -> None:
    assert await migrate(pool, directory) == ["0001_songs.sql", "0002_first_song.sql"]
    assert await migrate(pool, directory) == []
    (directory / "0010_third_song.sql").write_text("INSERT INTO songs VALUES (3)")
    assert await migrate(pool, directory) == ["0010_third_song.sql"]
    assert [row["id"] for row in await pool.fetch("SELECT id FROM songs ORDER BY id")] == [1, 2, 3]
    rows = await pool.fetch("SELECT version, name, length(sha256) size, applied_at <= now() past FROM schema_migrations ORDER BY version")
    assert [tuple(row.values()) for row in rows][-1] == (10, "0010_third_song.sql", 64, True)


async def test_processes_that_migrate_at_once_do_it_once(database: str, directory: Path) -> None:
    pools = [await open_pool(DatabaseConfig(dsn=database)) for _ in range(4)]
    applied = await asyncio.gather(*(migrate(pool, directory) for pool in pools))
    assert sorted(name for names in applied for name in names) == ["0001_songs.sql", "0002_first_song.sql"]
    assert await pools[0].fetchval("SELECT count(*) FROM songs") == 2
    for pool in pools:
        await close_pool(pool)


async def test_a_migration_that_changed_after_it_was_applied_is_named(pool: Pool, directory: Path) -> None:
    await migrate(pool, directory)
    (directory / "0001_songs.sql").write_text("CREATE TABLE songs (id bigint PRIMARY KEY)")
    with pytest.raises(DatabaseError, match=r"0001_songs\.sql was changed"):
        await migrate(pool, directory)


async def test_a_failing_migration_leaves_nothing_and_can_be_mended(pool: Pool, directory: Path) -> None:
    broken = directory / "0003_broken.sql"
    broken.write_text("INSERT INTO songs VALUES (3); INSERT INTO singers VALUES (1);")
    with pytest.raises(DatabaseError, match=r"0003_broken\.sql failed.*singers"):
        await migrate(pool, directory)
    assert await pool.fetchval("SELECT count(*) FROM songs") == 2
    broken.write_text("INSERT INTO songs VALUES (3)")
    assert await migrate(pool, directory) == ["0003_broken.sql"]


async def test_a_migration_must_not_slip_in_behind_applied_ones(pool: Pool, directory: Path) -> None:
    (directory / "0004_later.sql").write_text("SELECT 1")
    await migrate(pool, directory)
    (directory / "0003_earlier.sql").write_text("SELECT 1")
    with pytest.raises(DatabaseError, match=r"0003_earlier\.sql comes too late: 0004"):
        await migrate(pool, directory)


async def test_what_a_newer_release_applied_is_left_alone(pool: Pool, directory: Path) -> None:
    (directory / "0003_newer.sql").write_text("SELECT 1")
    await migrate(pool, directory)
    (directory / "0003_newer.sql").unlink()
    assert await migrate(pool, directory) == []


@pytest.mark.parametrize("name", ["1_short.sql", "0005-dash.sql", "0005_Upper.sql"])
async def test_badly_named_files_are_refused(pool: Pool, directory: Path, name: str) -> None:
    (directory / name).write_text("SELECT 1")
    with pytest.raises(DatabaseError, match=name):
        await migrate(pool, directory)


async def test_two_files_with_one_number_are_refused(pool: Pool, directory: Path) -> None:
    (directory / "0002_again.sql").write_text("SELECT 1")
    with pytest.raises(DatabaseError, match=r"0002_again\.sql and 0002_first_song\.sql have the same number"):
        await migrate(pool, directory)


async def test_a_pool_survives_a_restart_of_postgres(fresh_postgres: EmbeddedPostgres) -> None:
    pool = await open_pool(DatabaseConfig(dsn=fresh_postgres.dsn, pool_min=2))
    await pool.execute("CREATE TABLE rows (number int)")
    await pool.execute("INSERT INTO rows VALUES (1)")
    await fresh_postgres.stop()
    count = asyncio.create_task(with_retry(lambda: pool.fetchval("SELECT count(*) FROM rows")))
    await fresh_postgres.start()
    assert await count == 1
    await close_pool(pool)


async def test_a_command_that_is_cut_off_is_tried_again(fresh_postgres: EmbeddedPostgres) -> None:
    pool = await open_pool(DatabaseConfig(dsn=fresh_postgres.dsn))
    began = asyncio.Event()

    async def sleep_once() -> int:
        if began.is_set():
            return int(await pool.fetchval("SELECT 7"))
        began.set()
        await pool.execute("SELECT pg_sleep(60)")
        raise AssertionError("it should have been cut off")

    call = asyncio.create_task(with_retry(sleep_once))
    await began.wait()
    await fresh_postgres.stop(grace_s=0)
    await fresh_postgres.start()
    assert await call == 7
    await close_pool(pool)


async def test_a_postgres_that_stays_away_is_an_error_with_its_cause() -> None:
    config = DatabaseConfig(dsn=f"postgresql://legato:x@127.0.0.1:{free_port()}/legato", unreachable_s=0.3)
    with pytest.raises(DatabaseError, match=r"not usable since 0\.3 s") as caught:
        await open_pool(config)
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


async def test_errors_of_the_caller_are_not_tried_again(pool: Pool, postgres_dsn: str) -> None:
    calls = 0

    async def wrong() -> None:
        nonlocal calls
        calls += 1
        await pool.execute("SELECT nonsense")

    with pytest.raises(asyncpg.UndefinedColumnError):
        await with_retry(wrong)
    assert calls == 1
    password = urlsplit(postgres_dsn).password or ""
    with pytest.raises(DatabaseError, match="password"):
        await open_pool(DatabaseConfig(dsn=postgres_dsn.replace(password, "wrong")))


def test_a_connection_that_broke_in_the_middle_of_a_query_is_told_from_a_misuse() -> None:
    assert is_retryable(InternalClientError("cannot switch to state 15; another operation (2) is in progress"))
    assert not is_retryable(InternalClientError("unexpected state"))


def test_waits_grow_and_stay_bounded() -> None:
    backoff = Backoff(first_s=0.1, most_s=1.0)
    waits = [backoff.wait_s(tries) for tries in range(1, 2000)]
    assert 0.05 <= waits[0] <= 0.1
    assert all(0.5 <= wait <= 1.0 for wait in waits[4:])
