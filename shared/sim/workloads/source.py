"""What all kinds of workloads draw from: seeded chance, contents that nobody else has, and the numbers of programs.

Everything follows from the seed and the workload's name, by strings alone, so that it is the same whatever PYTHONHASHSEED is.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from shared.sim.programs import Call, Program, Segment, mixed
from shared.sim.workloads.arrivals import times
from shared.sim.workloads.chance import Random
from shared.sim.workloads.settings import Arriving, Clients, Tenant


class Source:
    """One workload of one seed. `name` tells it from others that are played beside it; it is the first part of its programs' ids."""

    def __init__(self, kind: str, seconds: float, seed: int, data: Path, name: str = "") -> None:
        self.kind = kind
        self.seconds = seconds
        self.data = data  # the folder of public traces
        self._name = name or kind
        self._seed = seed
        self._contents = 0
        self._programs = 0
        self._base = self.random("contents").getrandbits(64)

    def random(self, what: str) -> Random:
        """A generator of its own for each purpose, so that one more draw here changes nothing there."""
        return Random(f"{self._seed}/{self._name}/{what}")

    def fresh(self, tokens: int) -> Segment:
        """A text of so many tokens (at least one) that is nowhere else."""
        self._contents += 1
        return Segment(mixed(self._base + self._contents), max(1, tokens))

    def shared(self, name: str, tokens: int) -> Segment:
        """The text of that name, the same each time: a system prompt, for one."""
        return Segment(self.random(f"text {name}").getrandbits(64), max(1, tokens))

    def system(self, tenant: Tenant, count: int, tokens: int, random: Random) -> tuple[Segment, ...]:
        """One of the tenant's `count` system prompts, the n-th used 1/n as often as the first (Zipf's law); none of no tokens."""
        if not tokens:
            return ()
        (chosen,) = random.choices(range(count), [1 / (rank + 1) for rank in range(count)])
        return (self.shared(f"system {tenant.name} {chosen}", tokens),)

    def program(self, clients: Clients, tenant: Tenant, begins_s: float, calls: Iterable[Call]) -> Program:
        """The next program, with a number that no other has."""
        self._programs += 1
        return Program(
            id=f"{self._name}-{self._programs}",
            kind=self.kind,
            begins_s=begins_s,
            calls=tuple(calls),
            tenant=tenant.name,
            model=clients.model,
            priority=tenant.priority,
            behaviour=tenant.behaviour,
            objective=tenant.objective,
        )


def generated(settings: Arriving, source: Source, calls: Callable[[Tenant, Random], Iterable[Call]]) -> Iterator[Program]:
    """Programs that begin as `settings` says, each of a tenant drawn by share and of the calls that `calls` makes for it. The n-th program
    has chance of its own: another rate of arrival leaves it as it is."""
    begins = times(settings.rate_per_s, settings.arrivals, source.seconds, source.random("arrivals"))
    for number, begins_s in enumerate(begins):
        random = source.random(f"program {number}")
        tenant = tenant_of(settings.tenants, random)
        yield source.program(settings, tenant, begins_s, calls(tenant, random))


def tenant_of(tenants: tuple[Tenant, ...], random: Random) -> Tenant:
    """One of them, by share."""
    return random.choices(tenants, [tenant.share for tenant in tenants])[0]
