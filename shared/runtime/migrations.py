"""Plain SQL migrations, forward only: `NNNN_what.sql`, in the order of their numbers, each in one transaction.

Rules: what was applied never changes (its checksum is kept and compared); a new file has a higher number than all that were applied; what
the files do not know but the database does was applied by a newer release and is left alone, so that releases can overlap. Many processes
may migrate at once: an advisory lock lets one of them do it, the others find it done. Statements that cannot run in a transaction
(CREATE INDEX CONCURRENTLY, VACUUM) cannot stand in a migration.
"""

import hashlib
import itertools
import logging
import re
from pathlib import Path

import msgspec

from shared.runtime.db import Connection, DatabaseError, Pool

FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")
LOCK_KEY = 0x6C656761746F  # "legato" in ASCII; any number that nobody else uses on this database
TIMEOUT_S = 600.0  # for one migration, the wait for the lock included

CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    version int PRIMARY KEY,
    name text NOT NULL,
    sha256 text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)"""

_log = logging.getLogger(__name__)


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    """One file."""

    version: int
    name: str
    sql: str
    sha256: str


async def migrate(pool: Pool, directory: Path) -> list[str]:
    """Apply what is new in `directory`; returns the names of the files applied by this call. Raises DatabaseError that names the file."""
    migrations = read_migrations(directory)
    applied: list[str] = []
    async with pool.acquire(timeout=TIMEOUT_S) as connection:
        for migration in migrations:
            if await _apply(connection, migration):
                _log.info("applied migration %s", migration.name)
                applied.append(migration.name)
    return applied


def read_migrations(directory: Path) -> list[Migration]:
    """All migrations by version. Raises DatabaseError for a bad name, a number used twice, or no directory."""
    if not directory.is_dir():
        raise DatabaseError(f"there is no directory {directory} with migrations")
    migrations: list[Migration] = []
    for path in sorted(directory.glob("*.sql")):
        match = FILE_NAME.fullmatch(path.name)
        if match is None:
            raise DatabaseError(f"migration {path.name} should be named NNNN_what.sql, in lower case")
        sql = path.read_text()
        migrations.append(Migration(version=int(match[1]), name=path.name, sql=sql, sha256=hashlib.sha256(sql.encode()).hexdigest()))
    for before, after in itertools.pairwise(migrations):
        if before.version == after.version:
            raise DatabaseError(f"migrations {before.name} and {after.name} have the same number")
    return migrations


async def _apply(connection: Connection, migration: Migration) -> bool:
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK_KEY, timeout=TIMEOUT_S)
        if await _is_applied(connection, migration):
            return False
        try:
            await connection.execute(migration.sql, timeout=TIMEOUT_S)
        except Exception as error:
            raise DatabaseError(f"migration {migration.name} failed, and nothing of it was kept: {error}") from error
        await connection.execute(
            "INSERT INTO schema_migrations (version, name, sha256) VALUES ($1, $2, $3)", migration.version, migration.name, migration.sha256
        )
        return True


async def _is_applied(connection: Connection, migration: Migration) -> bool:
    await connection.execute(CREATE_TABLE)  # under the lock: two sessions that create it at once would fail
    row = await connection.fetchrow("SELECT name, sha256 FROM schema_migrations WHERE version = $1", migration.version)
    if row is None:
        last = await connection.fetchval("SELECT max(version) FROM schema_migrations")
        if last is not None and last > migration.version:
            raise DatabaseError(f"migration {migration.name} comes too late: {last:04d} is applied already; give it a higher number")
        return False
    if row["sha256"] != migration.sha256:
        raise DatabaseError(f"migration {migration.name} was changed after it had been applied (as {row['name']}); write a new one instead")
    return True
