"""Tasks are ended, also those that pass over a cancellation."""

import asyncio
import gc
from typing import Any

import pytest

from shared.runtime import tasks
from shared.runtime.tasks import end


async def test_who_passes_over_a_cancellation_gets_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "AGAIN_S", 0.01)
    heard = 0

    async def deaf() -> None:
        nonlocal heard
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                heard += 1
                if heard == 2:
                    raise

    task = asyncio.create_task(deaf())
    await asyncio.sleep(0)
    await end([task])
    assert task.cancelled()
    assert heard == 2


async def test_what_a_task_raises_is_its_own() -> None:
    async def fails() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError

    task = asyncio.create_task(fails())
    await asyncio.sleep(0)
    await end([task, asyncio.get_running_loop().create_future()])
    assert isinstance(task.exception(), ValueError)
    await end([task])
    await end([])


async def test_what_a_task_does_at_its_end_is_not_cut_off() -> None:
    done = asyncio.Event()

    async def tidy() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.6)
            done.set()

    task = asyncio.create_task(tidy())
    await asyncio.sleep(0)
    await end([task])
    assert done.is_set()


async def test_nobody_is_told_of_what_a_task_raised_before() -> None:
    async def fails() -> None:
        raise ValueError

    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: told.append(about))
    failed = [asyncio.create_task(fails())]
    await asyncio.wait(failed)
    await end(failed)
    failed.clear()
    gc.collect()
    assert told == []
