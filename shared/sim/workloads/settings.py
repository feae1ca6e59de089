"""Settings that kinds of workloads have in common: who asks, and when."""

from typing import Annotated

import msgspec
from msgspec import Meta

from shared.sim.programs import Behaviour, Objective
from shared.sim.workloads.arrivals import Arrivals

Share = Annotated[float, Meta(gt=0, le=1_000_000)]
Rate = Annotated[float, Meta(gt=0, le=100_000)]  # programs per second
Tokens = Annotated[int, Meta(ge=0, le=1_000_000)]
Count = Annotated[int, Meta(ge=1, le=10_000)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class Tenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who asks, and what they count as served well: a class of service."""

    name: Name = "default"
    share: Share = 1.0  # of the programs, relative to the other tenants
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0
    objective: Objective = Objective()
    behaviour: Behaviour = Behaviour()

    def __post_init__(self) -> None:
        for name, value in (msgspec.structs.asdict(self.objective) | msgspec.structs.asdict(self.behaviour)).items():
            if not value >= 0:  # nor is it no number at all
                raise ValueError(f"{name} is {value:g}, and must be 0 or more")


class Clients(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`model`: empty for the scenario's."""

    tenants: Annotated[tuple[Tenant, ...], Meta(min_length=1, max_length=1_000)] = (Tenant(),)
    model: str = ""

    def __post_init__(self) -> None:
        names = [tenant.name for tenant in self.tenants]
        twice = next((name for name in names if names.count(name) > 1), "")
        if twice:
            raise ValueError(f"tenants: two are called {twice}; a class of service has a name of its own")


class Arriving(Clients, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Programs that begin at random: `rate_per_s` of them, in the mean over a day and without flash crowds."""

    rate_per_s: Rate = 1.0
    arrivals: Arrivals = Arrivals()


class Span(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole number, each from `least` to `most` as likely."""

    least: Count
    most: Count

    def __post_init__(self) -> None:
        if self.least > self.most:
            raise ValueError(f"least {self.least} is more than most {self.most}")

    @property
    def mean(self) -> float:
        return (self.least + self.most) / 2
