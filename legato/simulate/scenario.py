"""A scenario: which fleet, which load, which disturbances, and which policies are compared on it. Read from TOML; docs/scenarios.md."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Seconds = Annotated[float, Meta(ge=0, le=31_536_000)]
Count = Annotated[int, Meta(ge=0, le=20_000)]


class Cold(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a new worker waits for before it is ready, one after the other."""

    provision_s: Seconds = 45.0  # until there is a machine
    image_s: Seconds = 30.0
    weights_gb: Annotated[float, Meta(ge=0, le=10_000)] = 16.0
    gb_per_s: Annotated[float, Meta(gt=0, le=1_000)] = 1.0  # of the tier that the weights come from
    warm_up_s: Seconds = 10.0

    @property
    def seconds(self) -> float:
        return self.provision_s + self.image_s + self.weights_gb / self.gb_per_s + self.warm_up_s


class Spot(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Capacity that comes and goes: each worker is taken away after an exponential life; or as a trace of capacity says."""

    mean_life_s: Seconds = 0.0  # 0: it is not taken away so
    notice_s: Seconds = 30.0  # before it goes
    trace: str = ""  # a file of ticks (shared/sim/workloads), as shares of the pool's `count`


class Pool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal workers of one model. `law`: a name as docs/calibration.md has it. 0 slots, blocks: as the law's GPU allows."""

    law: str
    count: Count = 1
    model: Annotated[str, Meta(min_length=1, max_length=256)] = "model"
    blocks: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0
    slots: Annotated[int, Meta(ge=1, le=4_096)] = 256
    queue_max: Count = 64  # that wait in the engine
    tokens_per_step: Annotated[int, Meta(ge=1, le=262_144)] = 8_192
    eviction: str = "lru"  # a name of shared/core/eviction.py
    keep_s: Seconds = 0.0  # the KV of a workflow's step is kept so long for the next one; 0: like any other
    keep: Literal["fixed", "continuum"] = "fixed"  # the second: for as long as keeping.py finds worth it, instead
    host_blocks: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 0  # a second tier in the host's memory
    host_gb_per_s: Annotated[float, Meta(gt=0, le=10_000)] = 50.0  # of the link to it, per GPU: PCIe 5.0 x16 has 63
    usd_per_hour: Annotated[float, Meta(ge=0, le=1_000_000)] = 0.0  # of one worker
    cold: Cold = Cold()
    spot: Spot | None = None
    autoscaler: dict[str, Any] = {}  # settings of [autoscaler.pools.NAME]; empty: the pool stays as it is


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Mean times between disturbances of the whole fleet, exponential; 0: none. The last worker that is there is spared."""

    worker_killed_every_s: Seconds = 0.0
    worker_drained_every_s: Seconds = 0.0
    service_restarted_every_s: Seconds = 0.0  # it stands for `restart_s`, then takes what has come meanwhile
    restart_s: Seconds = 2.0
    database_away_every_s: Seconds = 0.0
    database_away_s: Seconds = 5.0


class Network(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times between services, in milliseconds: measured on the embedded servers (docs/benchmarks.md)."""

    hop_ms: Annotated[float, Meta(ge=0, le=1_000)] = 0.5  # from a service's decision to the next one's
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.2  # up to so much more, as a share
    commit_ms: Annotated[float, Meta(ge=0, le=1_000)] = 1.4  # of Postgres, before a step is settled
    first_ms: Annotated[float, Meta(ge=0, le=1_000)] = 0.0  # added to each first token: a gateway, a client


class Load(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One workload; several are played together. `kind`: a loader or a generator of shared/sim/workloads, which checks `with`."""

    kind: str
    settings: dict[str, Any] = msgspec.field(name="with", default_factory=dict)


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it. `policies`: by name, settings of services such as {"scheduler.placement": "least_loaded"}; none: the services' defaults.
    `beat_ms`: how often workers report."""

    name: str
    question: str = ""
    seconds: Seconds = 3_600.0  # programs begin within; what has begun is played to its end, at most `drain_s` longer
    drain_s: Seconds = 600.0
    warm_up_s: Seconds = 0.0  # what was asked before is played, and not counted
    block_tokens: Annotated[int, Meta(ge=1, le=4_096)] = 64
    beat_ms: Annotated[int, Meta(ge=50, le=60_000)] = 500
    sample_s: Annotated[float, Meta(gt=0, le=3_600)] = 5.0
    pools: Annotated[dict[str, Pool], Meta(min_length=1)]
    workload: Annotated[list[Load], Meta(min_length=1)]
    policies: dict[str, dict[str, Any]] = {}
    services: dict[str, Any] = {}  # settings that all policies share, likewise
    faults: Faults = Faults()
    network: Network = Network()
