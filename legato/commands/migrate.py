"""`legato migrate`: make what the fleet keeps its data in."""

from pathlib import Path
from typing import Annotated

import typer

from legato.addresses import DATA, running_in
from legato.commands.options import Data, Nats, connected, finish
from legato.console import say, waiting
from shared.contracts.streams import STREAMS
from shared.runtime.db import DatabaseConfig, close_pool, open_pool
from shared.runtime.migrations import migrate as apply_migrations

DIRECTORY = Path(__file__).parents[2] / "migrations"

Postgres = Annotated[str, typer.Option("--postgres", metavar="DSN", envvar="LEGATO_POSTGRES_DSN", help="Address of Postgres.")]


def migrate(nats: Nats = "", postgres: Postgres = "", data: Data = DATA) -> None:
    """Create or update streams, buckets and tables.

    Harmless when all is there already; safe while the fleet runs and from several processes at once. `legato up` does it by itself.

        legato migrate --nats nats://nats:4222 --postgres postgresql://legato:secret@db/legato
    """
    finish(_migrate(nats, postgres, data))


async def _migrate(nats: str, postgres: str, data: Path) -> None:
    async with connected(nats, data) as bus:
        with waiting("Creating streams"):
            await bus.ensure_streams()
    say(f"{len(STREAMS)} streams are as they should be")
    running = running_in(data)
    dsn = postgres or (running.postgres if running else "")
    if not dsn:
        say("no Postgres was given (--postgres DSN): its tables were left alone")
        return
    applied = await migrate_database(dsn)
    say(f"applied {', '.join(applied)}" if applied else "the tables are as they should be")


async def migrate_database(dsn: str) -> list[str]:
    """Bring a Postgres up to date; the names of the migrations applied. Raises DatabaseError."""
    pool = await open_pool(DatabaseConfig(dsn=dsn, pool_max=1))
    try:
        return await apply_migrations(pool, DIRECTORY)
    finally:
        await close_pool(pool)
