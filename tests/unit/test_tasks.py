"""Tasks are ended, also those that pass over a cancellation."""

import asyncio

from shared.runtime.tasks import end


async def test_who_passes_over_a_cancellation_gets_another() -> None:
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
