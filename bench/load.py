"""A closed loop of requests: so many at a time, until so many are done. Each door is one coroutine that runs one request."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec


class Sample(msgspec.Struct, frozen=True):
    """One request: seconds to the first token and to the end, tokens received."""

    first_s: float
    total_s: float
    tokens: int


Door = Callable[[int], Awaitable[Sample]]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Many requests through one door."""

    samples: list[Sample]
    seconds: float

    def percentile(self, share: float, field: str) -> float:
        """Nearest-rank percentile of `first_s` or `total_s`, in milliseconds."""
        ordered = sorted(getattr(sample, field) for sample in self.samples)
        return float(1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))])

    @property
    def requests_per_s(self) -> float:
        return len(self.samples) / self.seconds

    @property
    def tokens_per_s(self) -> float:
        return sum(sample.tokens for sample in self.samples) / self.seconds


async def closed_loop(door: Door, requests: int, concurrency: int) -> Series:
    """Raises what a request raises: a benchmark with failures is none."""
    numbers = iter(range(requests))
    samples: list[Sample] = []

    async def worker() -> None:
        for number in numbers:
            samples.append(await door(number))

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker())
    return Series(samples=samples, seconds=time.perf_counter() - started)
