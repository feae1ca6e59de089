"""Runs of simulated fleets as tests think them up: a few rows of numbers, without a world."""

import math
from typing import Any

import msgspec

from legato.simulate.figures import Report, report
from legato.simulate.scenario import Load, Pool, Scenario
from shared.sim.measured import STATUSES, Measured

POOL = Pool(law="llama-3.1-8b@h100:vllm", count=2, usd_per_hour=3.6)


def thought_scenario(**fields: Any) -> Scenario:
    """Two workers and a minute of chats."""
    plain: dict[str, Any] = {"name": "thought", "seconds": 60.0, "drain_s": 0.0, "pools": {"h100": POOL}, "workload": [Load(kind="chat")]}
    return Scenario(**plain | fields)


def add_program(measured: Measured, begun_s: float, ended_s: float = math.nan, **fields: Any) -> int:
    """A program, successful and served well unless it is said otherwise; its row."""
    programs = measured.programs
    for names, column, name in (
        (programs.kinds, programs.kind, fields.get("kind", "chat")),
        (programs.tenants, programs.tenant, fields.get("tenant", "default")),
    ):
        if name not in names:
            names.append(name)
        column.append(names.index(name))
    programs.begun_s.append(begun_s)
    programs.ended_s.append(ended_s)
    programs.succeeded.append(fields.get("succeeded", not math.isnan(ended_s)))
    programs.well.append(fields.get("well", not math.isnan(ended_s)))
    return len(programs) - 1


def add_call(measured: Measured, program: int, times: tuple[float, float, float], **fields: Any) -> None:
    """A call that was asked for, began to answer, and ended at those times; successful unless it is said otherwise."""
    plain = {
        "prompt_tokens": 100,
        "output_tokens": 11,
        "cached_tokens": 0,
        "computed_tokens": 100,
        "wanted_tokens": 100,
        "attempts": 1,
        "tries": 1,
        "longest_gap_s": 0.0,
        "gpu_s": 0.0,
        "usd": 0.0,
    }
    calls = measured.calls
    calls.program.append(program)
    for column, value in zip((calls.asked_s, calls.first_s, calls.ended_s), times, strict=True):
        column.append(value)
    calls.status.append(STATUSES.index(fields.pop("status", "succeeded")))
    for name, value in (plain | fields).items():
        getattr(calls, name).append(value)


def add_sample(measured: Measured, at_s: float, **fields: Any) -> None:
    """What the fleet looked like at a time; what is not said is 0."""
    measured.samples.at_s.append(at_s)
    for name, column in vars(measured.samples).items():
        if name != "at_s":
            column.append(fields.get(name, 0))


def thought_report(policy: str = "default", seed: int = 1, ttft_s: float = 1.0, **fields: Any) -> Report:
    """Of two programs of one call each, by two tenants: every first token after so many seconds, the second one's twice as late."""
    measured = Measured(policy, seed)
    for number, tenant in enumerate(("light", "heavy")):
        program = add_program(measured, 10.0 + number, 20.0 + number, tenant=tenant, kind=("chat", "research")[number])
        add_call(measured, program, (10.0 + number, 10.0 + number + ttft_s * (number + 1), 20.0 + number))
    for at_s in (0, 20, 40):
        add_sample(measured, float(at_s), workers=2, queued=at_s, usd_per_hour=7.2, kv_used=0.5)
    return msgspec.structs.replace(report(measured, thought_scenario()), **fields)
