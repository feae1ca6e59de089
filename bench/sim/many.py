"""Many worlds, side by side in processes of their own."""

import multiprocessing
from collections.abc import Iterator

from bench.sim.mutations import mutated
from bench.sim.plan import drawn
from bench.sim.world import Result, simulate


def results(seeds: range, jobs: int, mutation: str | None = None) -> Iterator[Result]:
    """In the order of the seeds."""
    if jobs == 1:
        yield from (_run((seed, mutation)) for seed in seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(_run, [(seed, mutation) for seed in seeds], chunksize=2)


def _run(job: tuple[int, str | None]) -> Result:
    seed, mutation = job
    with mutated(mutation):
        return simulate(drawn(seed))
