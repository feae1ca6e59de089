"""What takes workers from a thought fleet: processes that die, drains, and spot machines that are wanted back."""

from collections.abc import Callable
from pathlib import Path
from random import Random

from legato.simulate.bus import Bus
from legato.simulate.fleet import DRAIN_S, Crew
from legato.simulate.scenario import Pool, Scenario
from legato.simulate.worker import CELL, Worker
from shared.contracts.fleet import WorkerState, WorkerVanished
from shared.sim.workloads import spot_capacity

MISSED_S = 0.2  # until the scheduler's prober tells that a connection is gone (docs/benchmarks.md, "Pauses")
AGAIN_S = 2.0  # until a killed worker's process runs again; its machine and its image are there
ALIVE = (WorkerState.READY, WorkerState.DRAINING)


Strike = tuple[float, Callable[[], None]]  # every so many seconds in the mean, and what happens then


class Losses:
    """Strikes at a crew. `lost_attempts`: that ran on workers when these died."""

    def __init__(self, bus: Bus, crew: Crew, scenario: Scenario, draw: Random) -> None:
        self.lost_attempts = 0
        self._bus = bus
        self._heap = bus.heap
        self._crew = crew
        self._pools = scenario.pools
        self._draw = draw
        crew.arrived = self._arrived

    def plan(self, data: Path) -> None:
        """What recorded spot capacity has in store. Raises LegatoError for a trace that cannot be read."""
        for name, pool in self._pools.items():
            if pool.spot is not None and pool.spot.trace:
                for at_s, share in spot_capacity(data / pool.spot.trace):
                    self._heap.at(round(at_s * 1e9), self._capacity, (name, round(share * pool.count)))

    def drain_one(self) -> None:
        """A planned loss of any worker: another one is launched when it begins."""
        ready = [each for each in self._crew.workers.values() if each.state is WorkerState.READY]
        if len(ready) > 1:
            worker = self._draw.choice(ready)
            self._crew.launch(worker.kind.pool)
            worker.drain(self._heap.now_ns + round(DRAIN_S * 1e9))

    def kill_one(self) -> None:
        """Any process dies, and comes back on its machine unless it was about to leave."""
        alive = [each for each in self._crew.workers.values() if each.state in ALIVE]
        if len(alive) > 1:
            worker = self._draw.choice(alive)
            leaving = worker.state is WorkerState.DRAINING
            self._die(worker)
            if leaving:
                self._crew.gone(worker)
            else:
                self._heap.after(AGAIN_S, self._again, worker)

    # --- spot machines -----------------------------------------------------------------------------------------------------------

    def _arrived(self, worker: Worker) -> None:
        spot = self._pools[worker.kind.pool].spot
        if spot is not None and spot.mean_life_s:
            self._heap.after(self._draw.expovariate(1 / spot.mean_life_s), self._outlived, worker)

    def _outlived(self, worker: Worker) -> None:
        """Its time is over; the pool asks for another one at once."""
        if self._crew.workers.get(worker.id) is worker and worker.state is not WorkerState.DRAINING:
            self._crew.launch(worker.kind.pool)
            self._take_back(worker)

    def _capacity(self, what: tuple[str, int]) -> None:
        """So many machines of a pool can be had: the surplus is taken back, the oldest last; what is missing is launched."""
        pool, most = what
        staying = self._crew.staying(pool)
        if len(staying) <= most:
            self._crew.reach(pool, most)
            return
        self._crew.recall(pool, len(staying))
        for worker in staying[most:]:
            self._take_back(worker)

    def _take_back(self, worker: Worker) -> None:
        """With notice it drains; without, everything on it is lost."""
        pool: Pool = self._pools[worker.kind.pool]
        notice_s = pool.spot.notice_s if pool.spot is not None else 0.0
        if notice_s:
            worker.drain(self._heap.now_ns + round(notice_s * 1e9))
        else:
            self._die(worker)
            self._crew.gone(worker)

    # --- death -------------------------------------------------------------------------------------------------------------------

    def _die(self, worker: Worker) -> None:
        self.lost_attempts += len(worker.attempts)
        worker.die()
        self._heap.after(MISSED_S, self._vanished, worker)

    def _vanished(self, worker: Worker) -> None:
        self._bus.publish(WorkerVanished(worker=worker.id, cell=CELL))

    def _again(self, worker: Worker) -> None:
        """Its weights come from the machine's own disk: the tier's time once more."""
        if self._crew.workers.get(worker.id) is worker:
            cold = self._pools[worker.kind.pool].cold
            worker.enter(WorkerState.LOADING)
            self._heap.after(cold.weights_gb / cold.gb_per_s + cold.warm_up_s, self._reloaded, (worker, worker.epoch))

    def _reloaded(self, what: tuple[Worker, int]) -> None:
        worker, epoch = what
        if self._crew.workers.get(worker.id) is worker and (worker.state, worker.epoch) == (WorkerState.LOADING, epoch):
            worker.enter(WorkerState.READY)
