"""Waiting for Postgres: a call is tried again for as long as it takes, and meanwhile the process says that it is not ready."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shared.runtime.db import Backoff, DatabaseError, is_retryable

log = logging.getLogger(__name__)

Result = TypeVar("Result")

BACKOFF = Backoff(first_s=0.05, most_s=2.0)


class Patience:
    """Use as `await patiently(call)`, where `call` is safe to repeat. What waiting cannot cure is raised."""

    def __init__(self, ready: asyncio.Event) -> None:
        self._ready = ready

    async def __call__(self, call: Callable[[], Awaitable[Result]]) -> Result:
        tries = 0
        while True:
            try:
                result = await call()
            except Exception as error:
                if not _passes(error):
                    raise
                tries += 1
                self._wait(tries, error)
                await asyncio.sleep(BACKOFF.wait_s(tries))
            else:
                if tries:
                    log.info("Postgres is back", extra={"tries": tries})
                self._ready.set()
                return result

    def _wait(self, tries: int, error: Exception) -> None:
        self._ready.clear()
        level = logging.WARNING if tries == 1 else logging.DEBUG
        log.log(level, "waiting for Postgres", extra={"tries": tries, "error": repr(error)})


def _passes(error: Exception) -> bool:
    """Whether waiting may help. A DatabaseError is judged by its cause."""
    cause = error.__cause__ if isinstance(error, DatabaseError) else error
    return isinstance(cause, Exception) and is_retryable(cause)
