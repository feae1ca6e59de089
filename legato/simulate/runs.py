"""Runs of scenarios, each in a process of its own, so many at a time; a run's figures come back, not its millions of rows."""

import gc
import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import NamedTuple

from legato.simulate.figures import Report, report
from legato.simulate.scenario import Scenario
from shared.core.errors import LegatoError

TELL_S = 1.0  # until a look at processes that have said nothing
KILL_S = 2.0  # from asking a process to end until it is made to

Told = Callable[[str, int, float], None]  # policy, seed, share of the run that is done


class Wanted(NamedTuple):
    """One run."""

    policy: str
    seed: int
    scenario: Scenario
    data: Path


def run_all(scenarios: Mapping[str, Scenario], seeds: int, data: Path, jobs: int, told: Told) -> list[Report]:
    """Each policy's scenario with seeds 1 to `seeds`, `jobs` at a time; seed by seed, the policies in their order. Raises LegatoError: the
    first one of a run, which ends the others."""
    wanted = [Wanted(policy, seed, scenario, data) for seed in range(1, seeds + 1) for policy, scenario in scenarios.items()]
    if jobs == 1:
        return [played(each, partial(told, each.policy, each.seed)) for each in wanted]
    return _Processes(wanted, min(jobs, len(wanted)), told).run()


def played(wanted: Wanted, tell: Callable[[float], None]) -> Report:
    """One run, here."""
    from legato.simulate.world import run

    with _seldom_old_garbage():
        return report(run(wanted.scenario, wanted.policy, wanted.seed, wanted.data, tell), wanted.scenario)


@contextmanager
def _seldom_old_garbage() -> Iterator[None]:
    """Look through old objects seldom. A fleet is millions of objects that live to the end of the run: with 1,000 workers it took 2.5 s to
    look through them all, and was done twice in 30 s. Not never: calls leave nothing in circles, but attempts that are lost do."""
    before = gc.get_threshold()
    gc.set_threshold(50_000, 20, 4)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Processes:
    def __init__(self, wanted: list[Wanted], jobs: int, told: Told) -> None:
        self._wanted = wanted
        self._left: Iterator[tuple[int, Wanted]] = iter(enumerate(wanted))
        self._jobs = jobs
        self._told = told
        self._running: dict[Connection, tuple[int, SpawnProcess]] = {}
        self._reports: dict[int, Report] = {}

    def run(self) -> list[Report]:
        try:
            for _ in range(self._jobs):
                self._start_next()
            while self._running:
                for pipe in wait(list(self._running), timeout=TELL_S):
                    assert isinstance(pipe, Connection)
                    self._hear(pipe)
        finally:
            self._end()
        return [self._reports[index] for index in range(len(self._wanted))]

    def _start_next(self) -> None:
        index, wanted = next(self._left, (0, None))
        if wanted is None:
            return
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_play, args=(wanted, there), daemon=True, name=f"{wanted.policy} {wanted.seed}")
        process.start()
        there.close()  # the process has its own: when it dies, ours reads an end
        self._running[here] = (index, process)

    def _hear(self, pipe: Connection) -> None:
        index, process = self._running[pipe]
        wanted = self._wanted[index]
        try:
            said = pipe.recv()
        except (EOFError, OSError):
            process.join(KILL_S)
            raise LegatoError(
                f"{_named(wanted)}: its process ended with status {process.exitcode}; too little memory? (--jobs 1)"
            ) from None
        if isinstance(said, float):
            self._told(wanted.policy, wanted.seed, said)
        elif isinstance(said, str):
            raise LegatoError(f"{_named(wanted)}: {said}")
        else:
            self._reports[index] = said
            self._forget(pipe)
            self._start_next()

    def _forget(self, pipe: Connection) -> None:
        _, process = self._running.pop(pipe)
        pipe.close()
        process.join(KILL_S)
        if process.is_alive():
            process.kill()
            process.join()

    def _end(self) -> None:
        for _, process in self._running.values():
            process.terminate()
        for pipe in list(self._running):
            self._forget(pipe)


def _named(wanted: Wanted) -> str:
    return f"policy {wanted.policy}, seed {wanted.seed}"


def _play(wanted: Wanted, pipe: Connection) -> None:
    """In a process: play, and say how far it is, then the report, or what is wrong as a text."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal: the first one ends us
    with suppress(BrokenPipeError):  # it has ended
        try:
            pipe.send(played(wanted, lambda share: pipe.send(float(share))))
        except LegatoError as error:
            pipe.send(str(error))
        except Exception:
            pipe.send(f"a bug of Legato:\n{traceback.format_exc()}")
            raise
