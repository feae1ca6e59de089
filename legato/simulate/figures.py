"""What a run's columns say: percentiles, shares, costs, caches, and curves to draw. Pure. defined.py says what each figure is."""

import math
from collections.abc import Callable, Iterable, Sequence

import msgspec

from legato.simulate.defined import FIGURES, GROUPED, PERCENTILES
from legato.simulate.scenario import Scenario
from legato.simulate.summing import binned, curve, mean, percentile, share
from shared.sim.measured import STATUSES, Calls, Measured

PARTS = 6  # of the time in which programs begin
POINTS = 240  # of a series, at most
SERIES = ("queued", "running", "workers", "coming", "kv_used", "kv_cached", "tokens_per_s", "hit_rate", "usd_per_hour")
SUCCEEDED = STATUSES.index("succeeded")

Figures = dict[str, float | None]


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run in figures: by name, None where there is nothing to say (no call succeeded); `kinds`, `tenants` and `parts` the same for
    some programs."""

    policy: str
    seed: int
    hash: str
    seconds: float
    figures: Figures
    kinds: dict[str, Figures]
    tenants: dict[str, Figures]
    parts: dict[str, Figures]
    violations: list[str]


class Report(Run, frozen=True, kw_only=True):
    """And what is drawn of it. `series`: means over steps of `step_s` from 0 on, None where the run was over. `curves`: values at
    summing.QUANTILES."""

    step_s: float
    series: dict[str, list[float | None]]
    curves: dict[str, list[float]]


def report(measured: Measured, scenario: Scenario) -> Report:
    """All that is told of a run."""
    calls, programs = measured.calls, measured.programs
    counted_calls = [row for row in range(len(calls)) if calls.asked_s[row] >= scenario.warm_up_s]
    counted_programs = [row for row in range(len(programs)) if programs.begun_s[row] >= scenario.warm_up_s]
    found = _of(measured, counted_calls, counted_programs) | _rates(measured, scenario, counted_calls, counted_programs)
    found |= _fleet(measured, scenario, found)
    part_s = (scenario.seconds - scenario.warm_up_s) / PARTS

    def grouped(call_in: Callable[[int], str], program_in: Callable[[int], str]) -> dict[str, Figures]:
        of_calls, of_programs = _split(counted_calls, call_in), _split(counted_programs, program_in)
        groups = sorted(of_calls | of_programs)
        return {name: _chosen(_of(measured, of_calls.get(name, []), of_programs.get(name, []))) for name in groups}

    def part(at_s: float) -> str:
        number = min(PARTS - 1, int((at_s - scenario.warm_up_s) / part_s)) if part_s > 0 else 0
        begin_s = scenario.warm_up_s + number * part_s
        return f"{begin_s:05.0f} to {begin_s + part_s:05.0f} s"

    kind, tenant = programs.kind, programs.tenant
    step_s = max(scenario.sample_s, (scenario.seconds + scenario.drain_s) / POINTS)  # the same for all runs
    return Report(
        policy=measured.policy,
        seed=measured.seed,
        hash=measured.hash,
        seconds=measured.totals.seconds,
        figures={figure.name: found.get(figure.name) for figure in FIGURES},
        kinds=grouped(lambda row: programs.kinds[kind[calls.program[row]]], lambda row: programs.kinds[kind[row]]),
        tenants=grouped(lambda row: programs.tenants[tenant[calls.program[row]]], lambda row: programs.tenants[tenant[row]]),
        parts=grouped(lambda row: part(calls.asked_s[row]), lambda row: part(programs.begun_s[row])),
        step_s=step_s,
        series={name: binned(measured.samples.at_s, getattr(measured.samples, name), step_s) for name in SERIES},
        curves={name: curve(values) for name, values in _times(measured, counted_calls, counted_programs).items() if values},
        violations=list(measured.totals.violations),
    )


def _split(rows: Iterable[int], name: Callable[[int], str]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for row in rows:
        groups.setdefault(name(row), []).append(row)
    return groups


def _chosen(found: Figures) -> Figures:
    return {name: found[name] for name in GROUPED}


def _times(measured: Measured, call_rows: Sequence[int], program_rows: Sequence[int]) -> dict[str, list[float]]:
    """Ordered times of what succeeded, by what they are times of."""
    calls, programs = measured.calls, measured.programs
    done = [row for row in call_rows if calls.status[row] == SUCCEEDED]
    spoken = [row for row in done if calls.output_tokens[row] > 1]
    return {
        "ttft": _ordered(calls.first_s[row] - calls.asked_s[row] for row in done),
        "itl": _ordered((calls.ended_s[row] - calls.first_s[row]) / (calls.output_tokens[row] - 1) for row in spoken),
        "gap": _ordered(calls.longest_gap_s[row] for row in spoken),
        "call": _ordered(calls.ended_s[row] - calls.asked_s[row] for row in done),
        "program": _ordered(programs.ended_s[row] - programs.begun_s[row] for row in program_rows if programs.succeeded[row]),
    }


def _ordered(values: Iterable[float]) -> list[float]:
    return sorted(value for value in values if not math.isnan(value))


def _of(measured: Measured, call_rows: Sequence[int], program_rows: Sequence[int]) -> Figures:
    """What can be said of any part of the calls and programs."""
    calls, programs = measured.calls, measured.programs
    times = _times(measured, call_rows, program_rows)
    found: Figures = {f"{name}_p{number}_s": percentile(of, number / 100) for name, of in times.items() for number in PERCENTILES}
    for index, status in enumerate(STATUSES):
        name = "success" if index == SUCCEEDED else status
        found[f"call_{name}"] = share(sum(calls.status[row] == index for row in call_rows), len(call_rows))
    done = [row for row in call_rows if calls.status[row] == SUCCEEDED]
    prompt, cached = _sum(calls.prompt_tokens, done), _sum(calls.cached_tokens, done)
    known = prompt - _sum(calls.wanted_tokens, done)
    found_known = sum(min(calls.cached_tokens[row], calls.prompt_tokens[row] - calls.wanted_tokens[row]) for row in done)
    found |= {
        "calls": float(len(call_rows)),
        "programs": float(len(program_rows)),
        "program_mean_s": mean(times["program"]),
        "program_success": share(_sum(programs.succeeded, program_rows), len(program_rows)),
        "program_well": share(_sum(programs.well, program_rows), len(program_rows)),
        "program_unfinished": share(sum(math.isnan(programs.ended_s[row]) for row in program_rows), len(program_rows)),
        "hit_rate": share(cached, prompt),
        "hit_rate_infinite": share(known, prompt),
        "hit_of_infinite": share(found_known, known),
    }
    return found


def _sum(column: Sequence[float], rows: Sequence[int]) -> float:
    return math.fsum(column[row] for row in rows)


def _rates(measured: Measured, scenario: Scenario, call_rows: Sequence[int], program_rows: Sequence[int]) -> Figures:
    calls, programs = measured.calls, measured.programs
    load_s = scenario.seconds - scenario.warm_up_s
    done = [row for row in call_rows if calls.status[row] == SUCCEEDED]
    return {
        "program_goodput_per_s": share(_sum(programs.well, program_rows), load_s),
        "call_goodput_per_s": share(sum(programs.well[calls.program[row]] for row in done), load_s),
        "output_tokens_per_s": share(_sum(calls.output_tokens, done), load_s),
        "attempts_per_call": share(_sum(calls.attempts, call_rows), len(call_rows)),
        "tries_per_call": share(_sum(calls.tries, call_rows), len(call_rows)),
        "recomputed_tokens": _recomputed(calls, call_rows),
    }


def _recomputed(calls: Calls, rows: Sequence[int]) -> float:
    """A call that was never computed has not saved what it wanted."""
    return float(sum(max(0, calls.computed_tokens[row] - calls.wanted_tokens[row]) for row in rows))


def _fleet(measured: Measured, scenario: Scenario, found: Figures) -> Figures:
    """Of workers and samples, from the end of the warm-up until no more programs begin: else a fleet that waits for the last slow reader
    would look dear."""
    samples, totals, calls = measured.samples, measured.totals, measured.calls
    loaded = [scenario.warm_up_s <= at_s <= scenario.seconds for at_s in samples.at_s]
    usd, gpu_s = totals.load_usd, totals.load_worker_s
    done = round((found["calls"] or 0) * (found["call_success"] or 0))
    programs_done = round((found["programs"] or 0) * (found["program_success"] or 0))
    taken_s = math.fsum(taken for taken, at_s in zip(calls.gpu_s, calls.ended_s, strict=True) if at_s <= scenario.seconds)
    columns: dict[str, Sequence[float]] = {
        "queue": samples.queued,
        "running": samples.running,
        "kv_used": samples.kv_used,
        "kv_cached": samples.kv_cached,
        "workers": samples.workers,
    }
    over_time: Figures = {}
    for name, column in columns.items():
        values = [float(value) for value, within in zip(column, loaded, strict=True) if within]
        over_time |= {f"{name}_mean": mean(values), f"{name}_max": max(values, default=None)}
    return over_time | {
        "usd_per_program": share(usd, programs_done),
        "usd_per_call": share(usd, done),
        "gpu_s_per_program": share(gpu_s, programs_done),
        "gpu_s_per_call": share(gpu_s, done),
        "fleet_usd": usd,
        "fleet_gpu_s": gpu_s,
        "utilisation": share(taken_s, gpu_s),
        "wasted_gpu_s": totals.wasted_gpu_s,
        "wasted_share": share(totals.wasted_gpu_s, totals.fleet_gpu_s),
        "preemptions": float(totals.preemptions),
        "retractions": float(totals.retractions),
        "lost_attempts": float(totals.lost_attempts),
        "events": float(totals.events),
        "violations": float(len(totals.violations)),
    }
