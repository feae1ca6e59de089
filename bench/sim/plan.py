"""What is to happen in a world, drawn from its seed: the fleet, who asks for what, and what breaks. Plain data, so that it can be shown,
kept and made shorter."""

from random import Random
from typing import Any

import msgspec


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One step that somebody wants."""

    prompt: list[int]
    max_tokens: int
    timeout_ms: int
    priority: int = 0
    wait_s: float = 0.0  # before: for a tool, or to think
    leave_after_s: float = 0.0  # then it is cancelled; 0: never
    twice: bool = False  # it is submitted a second time, a moment later


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who asks for steps one after another. `budget_usd`: they are a workflow of that budget; 0: they belong to none. `rude`: who
    was refused comes back at once, and not when it was told to."""

    name: str
    start_s: float
    asks: list[Ask]
    budget_usd: float = 0.0
    rude: bool = False


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Something that goes wrong. What each kind means is said in faults.py. `point`, `about`, `nth`: it dies or freezes at the `nth` time
    that it gets there with a subject of which `about` is a part, from `at_s` on."""

    kind: str
    at_s: float
    target: str = ""
    seconds: float = 0.0
    point: str = ""
    about: str = ""
    nth: int = 0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One world. Times in seconds of its clock."""

    seed: int
    workers: int
    slots: int
    blocks: int
    replicas: int  # of admission, scheduler and workflow
    latency_ms: float  # of one way, on average
    loss: float  # share of unstored messages that one of their listeners misses, while there are faults
    snapshot_every: int
    attempts_max: int
    queue_max: int
    concurrent_max: int  # steps at once, of all programs; 0: no limit
    programs: list[Program]
    faults: list[Fault]
    heal_s: float  # nothing goes wrong any more from here on


SINGLE = ("router", "kv_registry", "autoscaler")
REPLICATED = ("admission", "scheduler", "workflow")
POINTS = ("received", "sending", "sent")
COMMITS = ("committing", "committed")


def drawn(seed: int, *, faults: bool = True) -> Plan:
    """The world of a seed."""
    random = Random(f"{seed}.plan")
    workers, replicas = random.randint(1, 4), random.choice((1, 1, 2))
    heal_s = random.uniform(4.0, 9.0)
    programs = [_program(random, f"p{number}", heal_s) for number in range(random.randint(2, 7))]
    targets = _targets(workers, replicas, programs)
    number = random.choice((1, 2, 3, 4, 6, 9, 14)) if faults else 0
    return Plan(
        seed=seed,
        workers=workers,
        slots=random.choice((1, 2, 4, 8)),
        blocks=random.choice((24, 64, 512)),
        replicas=replicas,
        latency_ms=random.choice((0.2, 0.2, 1.0, 8.0)),
        loss=random.choice((0.0, 0.0, 0.02, 0.1)) if faults else 0.0,
        snapshot_every=random.choice((40, 150, 600)),
        attempts_max=random.choice((1, 2, 4, 4)),
        queue_max=random.choice((2, 12)),
        concurrent_max=random.choice((0, 0, 1, 3)),
        programs=programs,
        faults=sorted((_fault(random, targets, heal_s) for _ in range(number)), key=lambda fault: (fault.at_s, fault.kind, fault.target)),
        heal_s=heal_s,
    )


def _targets(workers: int, replicas: int, programs: list[Program]) -> dict[str, list[str]]:
    services = [*SINGLE, *(f"{name}-{number}" for name in REPLICATED for number in range(replicas))]
    return {"service": services, "worker": [f"w{number}" for number in range(workers)], "program": [each.name for each in programs]}


def _program(random: Random, name: str, heal_s: float) -> Program:
    shared = [random.randrange(256) for _ in range(random.choice((0, 16, 64)))]
    asks: list[Ask] = []
    for _ in range(random.choice((1, 1, 2, 3, 5))):
        shared = [*shared, *(random.randrange(256) for _ in range(random.randint(1, 40)))]
        asks.append(_ask(random, shared))
    budget = random.choice((0.0, 0.0, 0.002, 0.02, 1.0))
    return Program(name=name, start_s=random.uniform(0.6, heal_s * 0.7), asks=asks, budget_usd=budget, rude=random.random() < 0.3)


def _ask(random: Random, prompt: list[int]) -> Ask:
    return Ask(
        prompt=prompt,
        max_tokens=random.choice((1, 8, 24, 60, 120, 240)),
        timeout_ms=random.choice((1_500, 6_000, 15_000, 15_000, 30_000)),
        priority=random.choice((0, 0, 0, 5, 20)),
        wait_s=random.choice((0.0, 0.0, 0.2, 1.5)),
        leave_after_s=random.uniform(0.05, 3.0) if random.random() < 0.15 else 0.0,
        twice=random.random() < 0.15,
    )


def _fault(random: Random, targets: dict[str, list[str]], heal_s: float) -> Fault:
    at_s = random.uniform(0.3, heal_s) if random.random() < 0.2 else random.uniform(0.8, heal_s)
    kind, where = random.choice(KINDS)
    about: dict[str, Any] = {"kind": kind, "at_s": at_s, "seconds": random.choice((0.05, 0.5, 2.0, 4.0, 6.0, 9.0))}
    if where:
        about["target"] = random.choice(targets[random.choice(where)])
    if kind in ("die", "freeze"):
        about |= _point(random, about["target"])
    return Fault(**about)


def _point(random: Random, target: str) -> dict[str, Any]:
    """Where on its way a process dies: anywhere, or at what it mostly does."""
    known = next((subjects for name, subjects in SUBJECTS.items() if target.startswith(name)), ())
    point, about = random.choice(POINTS), random.choice(("", *known))
    if target.startswith("workflow") and random.random() < 0.6:
        point, about = random.choice(COMMITS), "record"
    return {"point": point, "about": about, "nth": random.choice((1, 1, 2, 3, 5)) if about else random.choice((1, 5, 20, 50))}


SUBJECTS = {
    "admission": ("legato.prompt", ".admitted", "journal", "legato.submit"),
    "router": (".routed", "journal", ".admitted"),
    "scheduler": (".dispatched", ".routed", ".ended", "journal", ".closed", "outbox"),
    "kv_registry": ("legato.match", "journal"),
    "workflow": (".settled", ".admitted"),
    "w": (".dispatched", "outbox", "outbox", ".ended", ".ended", "legato.handover"),
}

KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("kill", ("service", "worker", "worker")),
    ("kill", ("service", "worker", "program")),
    ("die", ("service", "worker")),
    ("die", ("service", "worker")),
    ("die", ("service", "worker")),
    ("die", ("service", "service", "worker")),
    ("die", ("service", "service", "worker")),
    ("die", ("service", "service", "worker")),
    ("pause", ("service", "worker")),
    ("freeze", ("service", "worker")),
    ("freeze", ("worker",)),
    ("pause", ("worker",)),
    ("cut", ("service", "worker", "program")),
    ("hold", ("service", "worker")),
    ("bus", ()),
    ("record", ()),
    ("leave", ("worker",)),
    ("notice", ("worker",)),
    ("engine", ("worker",)),
    ("slow", ()),
)
