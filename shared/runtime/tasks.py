"""Ending what runs beside."""

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN_S = 10.0  # longer than what a task still does when it is cancelled, which a second one would cut off


async def end(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until they have ended; what they raise is theirs.

    Who passes over a cancellation gets another after AGAIN_S: nats-py does so while it closes a connection.
    """
    left = set(tasks)
    _look_at(ended := {task for task in left if task.done()})
    left -= ended
    while left:
        for task in left:
            task.cancel()
        ended, left = await asyncio.wait(left, timeout=AGAIN_S)
        _look_at(ended)


def _look_at(ended: Iterable[asyncio.Future[Any]]) -> None:
    """So that asyncio does not report an exception as never retrieved."""
    for task in ended:
        if not task.cancelled():
            task.exception()
