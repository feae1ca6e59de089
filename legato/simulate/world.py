"""A run of a scenario: the real machines of admission, router, scheduler, registry and autoscaler, and a world around them on one heap.

It plays what decides how a fleet performs: queues, placement, caches, batches, cold starts, losses, clients. The other simulation
(docs/simulation.md) plays what decides whether it is correct: drivers, streams, crash points. Two runs of one scenario, policy and seed
are the same, to the last message.
"""

import math
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from legato.machines import machine_of
from legato.simulate.bus import Bus, Service
from legato.simulate.clients import Clients, key_of
from legato.simulate.fleet import Crew
from legato.simulate.losses import Losses, Strike
from legato.simulate.recorder import Recorder
from legato.simulate.sampler import Sampler
from legato.simulate.scenario import Scenario
from legato.simulate.settings import configs
from services.admission.config import AdmissionConfig, Terms
from services.kv_registry.paths import Paths, learn, shortened
from services.kv_registry.state import PromptSeen
from shared.contracts.outcomes import Reason
from shared.contracts.output import Output
from shared.contracts.steps import StepAdmitted, StepRevoked
from shared.sim.heap import SECOND_NS, Heap
from shared.sim.measured import Measured
from shared.sim.programs import Program
from shared.sim.workloads import together

QUIET_S = 5.0  # behind the last program's end
TELL_SHARES = 200  # how often progress is told
ANYBODY = Terms(priority_max=100, max_output_tokens=1 << 20)  # of a tenant that the scenario sets no terms for


def run(scenario: Scenario, policy: str, seed: int, data: Path, tell: Callable[[float], None]) -> Measured:
    """Play it to its end. `policy`: a name in the scenario, or empty: the services' defaults. `data`: where traces lie. `tell`: the share
    of the time that is over. Raises LegatoError for what the scenario asks for and there is not."""
    return _World(scenario, policy, seed, data).run(tell)


class _World:
    def __init__(self, scenario: Scenario, policy: str, seed: int, data: Path) -> None:
        self._scenario = scenario
        self._heap = Heap()
        self._measured = Measured(policy, seed)
        self._bus = Bus(self._heap, scenario.network, Random(f"network {seed}"))
        self._clients = Clients(self._bus, self._measured, Random(f"clients {seed}"), scenario)
        self._clients.tenants = self._welcome
        self._services = {name: Service(self._bus, machine_of(name), config) for name, config in configs(scenario, policy).items()}
        self._crew = Crew(self._bus, scenario, self._clients.steps, Random(f"fleet {seed}"))
        self._losses = Losses(self._bus, self._crew, scenario, Random(f"losses {seed}"))
        self._losses.plan(data)
        self._recorder = Recorder(self._bus, scenario.network.commit_ms, lambda settled: None)
        self._bus.watch(Output, self._output)
        self._bus.watch(StepRevoked, self._revoked)
        self._bus.watch(StepAdmitted, _Prompts(self._bus, self._clients, scenario.block_tokens).admitted)
        self._faults = Random(f"faults {seed}")
        self._programs = together([(load.kind, load.settings) for load in scenario.workload], scenario.seconds, seed, data)
        self._exhausted = False
        self._calm = False  # nothing is struck any more
        self._sampler = Sampler(self._heap, self._crew, self._services["scheduler"], self._measured.samples)

    def run(self, tell: Callable[[float], None]) -> Measured:
        scenario, heap = self._scenario, self._heap
        self._crew.start()
        self._plan_faults()
        self._next_program(None)
        self._sample(None)
        end_ns = round((scenario.seconds + scenario.drain_s) * SECOND_NS)
        for share in range(1, TELL_SHARES + 1):
            heap.run(end_ns * share // TELL_SHARES, self._over)
            tell(share / TELL_SHARES)
        self._close()
        return self._measured

    def _over(self) -> bool:
        """Everything that began has ended."""
        return self._exhausted and not self._clients.open

    def _next_program(self, program: Program | None) -> None:
        """Begin one, and wait for the next."""
        if program is not None:
            self._clients.begin(program)
        following = next(self._programs, None)
        if following is None or following.begins_s >= self._scenario.seconds:
            self._exhausted = True
        else:
            self._heap.at(round(following.begins_s * SECOND_NS), self._next_program, following)

    def _welcome(self, tenant: str) -> None:
        """A tenant's first program: it has a key."""
        admission = self._services["admission"]
        config: AdmissionConfig = admission.config
        terms = config.tenants.get(tenant, ANYBODY)
        if not terms.keys:
            known = {**config.tenants, tenant: msgspec.structs.replace(terms, keys=[key_of(tenant)])}
            admission.config = msgspec.structs.replace(config, tenants=known)

    def _output(self, message: Output) -> None:
        step = self._clients.steps.get(message.step)
        if message.end is not None and step is not None:
            step.end(message.end.status, message.end.problem)

    def _revoked(self, message: StepRevoked) -> None:
        self._measured.totals.preemptions += message.reason is Reason.PREEMPTED

    def _plan_faults(self) -> None:
        faults = self._scenario.faults
        for every_s, strike in (
            (faults.worker_killed_every_s, self._losses.kill_one),
            (faults.worker_drained_every_s, self._losses.drain_one),
            (faults.service_restarted_every_s, self._restart),
            (faults.database_away_every_s, lambda: self._recorder.away(faults.database_away_s)),
        ):
            if every_s:
                self._strike_later((every_s, strike))

    def _strike_later(self, what: Strike) -> None:
        self._heap.after(self._faults.expovariate(1 / what[0]), self._strike, what)

    def _strike(self, what: Strike) -> None:
        if not self._calm:
            what[1]()
            self._strike_later(what)

    def _restart(self) -> None:
        service = self._services[self._faults.choice(list(self._services))]
        service.stop()
        self._heap.after(self._scenario.faults.restart_s, lambda _: service.start())

    def _sample(self, _: object) -> None:
        self._sampler.sample()
        self._heap.after(self._scenario.sample_s, self._sample)

    def _close(self) -> None:
        """Let what was said arrive, and look at what must hold."""
        measured, crew, totals = self._measured, self._crew, self._measured.totals
        whole, self._calm, scenario = self._over(), True, self._scenario
        totals.seconds = self._heap.now_s
        quiet_s = QUIET_S + scenario.faults.restart_s + scenario.faults.database_away_s
        self._heap.run(self._heap.now_ns + round(quiet_s * SECOND_NS), lambda: False)
        totals.violations = self._violations(whole)
        crew.close(totals.seconds)
        totals.load_usd, totals.load_worker_s = crew.paid_between(scenario.warm_up_s, scenario.seconds)
        totals.events = self._bus.messages
        totals.fleet_usd, totals.fleet_gpu_s = crew.paid_between(0.0, math.inf)
        totals.wasted_gpu_s, totals.retractions = crew.counts.wasted_gpu_s, crew.counts.retractions
        totals.lost_attempts = self._losses.lost_attempts
        measured.hash = self._bus.hash()

    def _violations(self, whole: bool) -> list[str]:
        """What should not be. `whole`: nothing was cut off by the end of the time."""
        recorder, scheduler = self._recorder, self._services["scheduler"].state
        found = list(self._clients.violations)
        for worker in self._crew.workers.values():
            cache = worker.batching.cache
            if cache.used + cache.cached + cache.free != cache.blocks or min(cache.used, cache.cached, cache.free) < 0:
                found.append(f"blocks of {worker.id} do not add up")
            if not worker.attempts and cache.used:
                found.append(f"{worker.id} has no attempt, and {cache.used} blocks in use")
        if whole and (recorder.open or recorder.settlements != recorder.admitted):
            found.append(f"{recorder.admitted} steps were accepted, {recorder.settlements} settled, {len(recorder.open)} are open")
        if whole and scheduler.steps:
            found.append(f"the scheduler keeps {len(scheduler.steps)} steps that are over")
        return found


class _Prompts:
    """What the registry is told of prompts: of each one that is admitted, what is new, as services/kv_registry/service.py does it."""

    def __init__(self, bus: Bus, clients: Clients, block_tokens: int) -> None:
        self._bus = bus
        self._clients = clients
        self._block_tokens = block_tokens
        self._paths = Paths()

    def admitted(self, message: StepAdmitted) -> None:
        """Tell the registry."""
        step = self._clients.steps.get(message.step)
        if step is None:
            return
        new = shortened(self._paths, step.chain.first(step.call.prompt_tokens // self._block_tokens))
        learn(self._paths, new)
        self._bus.publish(
            PromptSeen(
                step=message.step,
                workflow=message.workflow,
                tenant=message.tenant,
                model=message.job.model,
                blocks=new.blocks,
                after=new.after,
                block_tokens=self._block_tokens,
            )
        )
