"""Processes under a virtual clock."""

import asyncio
from collections.abc import Iterator

import pytest

from shared.drivers.simulate import Process, Stuck, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


def _ticking(loop: VirtualLoop, log: list[tuple[str, float]], name: str, every_s: float) -> Process:
    async def tick() -> None:
        try:
            while True:
                await asyncio.sleep(every_s)
                log.append((name, round(loop.elapsed_s(), 3)))
        finally:
            log.append((name, -1.0))

    process = Process(name, loop)
    process.start(tick())
    return process


def test_time_goes_on_to_what_is_due_next_and_nobody_waits_for_it(loop: VirtualLoop) -> None:
    loop.run_until_complete(asyncio.wait_for(asyncio.sleep(86_400), None))
    assert loop.elapsed_s() == 86_400


def test_a_killed_process_takes_no_further_step_and_cleans_nothing_up(loop: VirtualLoop) -> None:
    log: list[tuple[str, float]] = []

    async def live() -> None:
        process = _ticking(loop, log, "a", 1.0)
        await asyncio.sleep(2.5)
        process.kill()
        await asyncio.sleep(5.0)

    loop.run_until_complete(live())
    assert log == [("a", 1.0), ("a", 2.0)]


def test_a_paused_process_takes_its_steps_later(loop: VirtualLoop) -> None:
    log: list[tuple[str, float]] = []

    async def live() -> None:
        process = _ticking(loop, log, "a", 1.0)
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(3.0)
        process.resume()
        await asyncio.sleep(1.2)
        process.kill()

    loop.run_until_complete(live())
    assert log == [("a", 1.0), ("a", 4.5), ("a", 5.5)]


def test_what_is_due_at_one_time_runs_in_the_order_of_asking(loop: VirtualLoop) -> None:
    log: list[int] = []

    async def live() -> None:
        for number in range(50):
            loop.call_later(1.0, log.append, number)
        await asyncio.sleep(2.0)

    loop.run_until_complete(live())
    assert log == list(range(50))


def test_a_world_in_which_nothing_is_due_says_so(loop: VirtualLoop) -> None:
    with pytest.raises(Stuck, match="nothing is due"):
        loop.run_until_complete(loop.create_future())
