"""Which processes `legato up` runs, and how each is started. Pure."""

import re
import sys
from collections.abc import Sequence

import msgspec

from shared.core.errors import LegatoError
from shared.runtime.config import check_setting

# In the order in which they start: who decides, who works, who opens the door.
MACHINES = ("workflow", "kv_registry", "scheduler", "router", "admission", "autoscaler")
SERVICES = (*MACHINES, "worker", "gateway")
NUMBER = re.compile(r"[0-9]{1,3}")
ENGINES = ("simulated", "sglang", "none")

# How long each may take to stop, in seconds: its own drain, and a little more.
GRACE_S = {"worker": 75.0, "gateway": 25.0}
GRACE_OTHERS_S = 15.0


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for. `replicas`: `service=number` each; `settings`: `section.field=value` each, for all processes."""

    engine: str = "simulated"
    workers: int = 1
    port: int = 8080
    only: Sequence[str] = ()
    replicas: Sequence[str] = ()
    settings: Sequence[str] = ()
    config: str = ""


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """One process. `name` is its instance name."""

    name: str
    service: str
    settings: list[str] = []
    config: str = ""

    @property
    def argv(self) -> list[str]:
        config = ["--config", self.config] if self.config else []
        settings = [word for setting in self.settings for word in ("--set", setting)]
        return [sys.executable, "-m", f"services.{self.service}", "--instance", self.name, *config, *settings]

    @property
    def grace_s(self) -> float:
        return GRACE_S.get(self.service, GRACE_OTHERS_S)


def plan(wanted: Wanted) -> list[Launch]:
    """The processes, in order. Raises LegatoError for what cannot be."""
    if wanted.engine not in ENGINES:
        raise LegatoError(f"there is no engine {wanted.engine!r}; there are {', '.join(ENGINES)}")
    for setting in wanted.settings:
        check_setting(setting)
    for name in wanted.only:
        _check_service(name)
    counts = _replicas(wanted)
    chosen = [service for service in SERVICES if not wanted.only or service in wanted.only]
    return [launch(wanted, service, index) for service in chosen for index in range(counts[service])]


def launch(wanted: Wanted, service: str, index: int) -> Launch:
    """The `index`-th process of a service."""
    own: list[str] = []
    if service == "worker":
        own = [f"worker.engine={wanted.engine}"]
    elif service == "gateway":
        own = [f"gateway.port={wanted.port + index}"]
    return Launch(name=f"{service}-{index}", service=service, settings=[*own, *wanted.settings], config=wanted.config)


def _replicas(wanted: Wanted) -> dict[str, int]:
    counts = dict.fromkeys(SERVICES, 1) | {"worker": 0 if wanted.engine == "none" else wanted.workers}
    for text in wanted.replicas:
        service, _, number = text.partition("=")
        _check_service(service)
        if not NUMBER.fullmatch(number) or service == "worker":
            raise LegatoError(f"{text!r} is no number of replicas; write for example scheduler=2 (and --workers for workers)")
        counts[service] = int(number)
    return counts


def _check_service(name: str) -> None:
    if name not in SERVICES:
        raise LegatoError(f"there is no service {name!r}; there are {', '.join(SERVICES)}")
