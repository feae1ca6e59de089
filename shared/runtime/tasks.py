"""Ending what runs beside."""

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN_S = 0.5


async def end(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until they have ended; what they raise is theirs.

    Who passes over a cancellation gets another: nats-py does while it waits for a full socket, and so does asyncio.wait_for of Python 3.11
    in the turn in which what it waits for is done.
    """
    left = {task for task in tasks if not task.done()}
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
