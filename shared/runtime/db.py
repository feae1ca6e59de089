"""Postgres by asyncpg: connections and pools with bounds, and one way to retry when the connection is lost.

SQL itself lives in each service's store.py; migrations in shared/runtime/migrations.py.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar, cast

import asyncpg
import msgspec
from asyncpg.exceptions import InterfaceError, InternalClientError, PostgresError

from shared.core.errors import LegatoError

Result = TypeVar("Result")
Row = Mapping[str, Any]

# Whatever ends with one of these may be tried again: the connection was lost or refused, or the transaction was rolled back whole.
RETRYABLE: tuple[type[Exception], ...] = (
    OSError,  # includes refused and reset connections, and TimeoutError
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,  # starting up or shutting down
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
)


class Connection(Protocol):
    """What Legato uses of an asyncpg connection; asyncpg itself has no types. `timeout` in seconds, None: the pool's."""

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str: ...

    async def executemany(self, command: str, args: Iterable[Sequence[object]], *, timeout: float | None = None) -> None: ...

    async def fetch(self, query: str, *args: object, timeout: float | None = None) -> list[Row]: ...

    async def fetchrow(self, query: str, *args: object, timeout: float | None = None) -> Row | None: ...

    async def fetchval(self, query: str, *args: object, column: int = 0, timeout: float | None = None) -> Any: ...

    def transaction(self) -> AbstractAsyncContextManager[None]: ...

    async def close(self, *, timeout: float | None = None) -> None: ...


class Pool(Protocol):
    """What Legato uses of an asyncpg pool. `acquire` gives one connection; the others each use one for one command."""

    def acquire(self, *, timeout: float | None = None) -> AbstractAsyncContextManager[Connection]: ...

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str: ...

    async def executemany(self, command: str, args: Iterable[Sequence[object]], *, timeout: float | None = None) -> None: ...

    async def fetch(self, query: str, *args: object, timeout: float | None = None) -> list[Row]: ...

    async def fetchrow(self, query: str, *args: object, timeout: float | None = None) -> Row | None: ...

    async def fetchval(self, query: str, *args: object, column: int = 0, timeout: float | None = None) -> Any: ...

    async def close(self) -> None: ...

    def terminate(self) -> None: ...


class DatabaseError(LegatoError):
    """Postgres cannot be used: not reachable in time, or a migration does not fit. The cause is kept."""


class DatabaseConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach Postgres, and within which bounds."""

    dsn: str
    pool_min: int = 1
    pool_max: int = 8
    connect_timeout_s: float = 10.0
    command_timeout_s: float = 30.0
    statements_max: int = 256  # prepared statements kept per connection
    unreachable_s: float = 30.0  # how long a lost Postgres is waited for, at start and in `with_retry`


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Waits between tries: doubling from `first_s` to `most_s`, each shortened by a random part of up to a half, for at most `within_s`."""

    first_s: float = 0.05
    most_s: float = 2.0
    within_s: float = 30.0

    def wait_s(self, tries: int) -> float:
        """Seconds to wait after so many tries, from 1. Random, so that a crowd does not return at once."""
        return float(min(self.most_s, self.first_s * 2 ** min(tries - 1, 30))) * random.uniform(0.5, 1.0)


async def connect(dsn: str, timeout_s: float = 10.0) -> Connection:
    """One connection, outside any pool. `timeout_s` bounds the connecting and each later command."""
    return cast(Connection, await asyncpg.connect(dsn, timeout=timeout_s, command_timeout=timeout_s))  # type: ignore[no-untyped-call]


async def open_pool(config: DatabaseConfig) -> Pool:
    """A pool with its first connections made. Waits for a Postgres that is not there yet. Raises DatabaseError.

    A connection that was lost is replaced when it is next needed; see `with_retry` for the commands that it took along.
    """

    async def attempt() -> Pool:
        pool = await asyncpg.create_pool(  # type: ignore[no-untyped-call]
            config.dsn,
            min_size=config.pool_min,
            max_size=config.pool_max,
            timeout=config.connect_timeout_s,
            command_timeout=config.command_timeout_s,
            statement_cache_size=config.statements_max,
        )
        return cast(Pool, pool)

    try:
        return await with_retry(attempt, Backoff(within_s=config.unreachable_s))
    except (PostgresError, InterfaceError) as error:  # a wrong password, no such database, a DSN that is none
        raise DatabaseError(f"cannot use this Postgres: {error}") from error


async def close_pool(pool: Pool, within_s: float = 10.0) -> None:
    """Wait for what is running, at most `within_s`, then cut it off."""
    try:
        async with asyncio.timeout(within_s):
            await pool.close()
    except TimeoutError:
        pool.terminate()


async def with_retry(call: Callable[[], Awaitable[Result]], backoff: Backoff | None = None) -> Result:
    """The result of `call`, tried again while the connection fails (see RETRYABLE).

    `call` must be safe to repeat: when the connection breaks during a commit, the commit may have happened. Raises DatabaseError, with the
    last error as its cause, once `within_s` have passed; any other error at once.
    """
    backoff = backoff or Backoff()
    deadline = time.monotonic() + backoff.within_s
    tries = 0
    while True:
        try:
            return await call()
        except Exception as error:
            if not is_retryable(error):
                raise
            tries += 1
            wait_s = backoff.wait_s(tries)
            if time.monotonic() + wait_s > deadline:
                raise DatabaseError(f"Postgres is not usable since {backoff.within_s:g} s ({tries} tries): {error!r}") from error
        await asyncio.sleep(wait_s)


def is_retryable(error: Exception) -> bool:
    """Whether the same call may succeed on another connection."""
    if isinstance(error, InterfaceError):
        # asyncpg has one class for misuse and for connections that broke underneath; only the words differ.
        return "connection" in str(error) and "clos" in str(error)
    if isinstance(error, InternalClientError):  # what a pool says of a connection that broke in the middle of a query
        return "another operation" in str(error)
    return isinstance(error, RETRYABLE)
