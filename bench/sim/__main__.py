"""`python -m bench.sim`: many short worlds with faults, each from its seed; `--seed` runs one of them again. See docs/simulation.md."""

import argparse
import os
import sys
import time
from datetime import date
from pathlib import Path

import msgspec

from bench.sim.many import results
from bench.sim.minimise import minimised
from bench.sim.mutation_table import Caught, mutation_table
from bench.sim.mutations import MUTATIONS, mutated
from bench.sim.plan import Plan, drawn
from bench.sim.world import Result, simulate
from legato.places import check_place, write
from shared.core.errors import LegatoError

WORLDS, MUTATED_MAX = 1_000, 400
SHOWN_MAX = 5  # broken worlds that are made shorter


def main() -> int:
    """0 where every world held."""
    parser = argparse.ArgumentParser(prog="python -m bench.sim", description="Whole fleets in simulated worlds, with faults.")
    parser.add_argument("--seeds", type=_positive, help=f"how many worlds (default: {WORLDS}; for each planted bug at most {MUTATED_MAX})")
    parser.add_argument("--first", type=int, default=1, help="the first seed (default: 1)")
    parser.add_argument("--seed", type=int, help="this world alone, twice, with its plan and its log")
    parser.add_argument("--plan", type=_plan, metavar="FILE", help="a plan from a file instead of a seed's")
    parser.add_argument("--log", type=_file, metavar="FILE", help="where its log of events goes (default: only its hash is shown)")
    parser.add_argument("--jobs", type=_positive, default=os.cpu_count() or 1, help="processes side by side (default: one for each core)")
    parser.add_argument("--mutations", action="store_true", help="plant each of the known bugs, and see which world shows it")
    parser.add_argument("--table", type=_file, metavar="FILE", help="where the bugs and what shows them go, as Markdown (with --mutations)")
    parser.add_argument("--mutation", choices=sorted(MUTATIONS), help="plant this one")
    given = parser.parse_args()
    if given.table is not None and not given.mutations:
        parser.error("--table is of --mutations: say both")
    if given.mutations:
        return _mutations(given.seeds or MUTATED_MAX, given.jobs, given.table)
    if given.seed is not None or given.plan is not None:
        return _one(given.plan or drawn(given.seed), given.log, given.mutation)
    return _many(range(given.first, given.first + (given.seeds or WORLDS)), given.jobs, given.mutation)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"a number from 1 on is needed, not {text!r}")
    return int(text)


def _file(path: str) -> Path:
    """Refused at once where none can be: what goes there takes minutes."""
    try:
        check_place(Path(path), "", "here.txt")
    except LegatoError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return Path(path)


def _plan(path: str) -> Plan:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Plan)
    except (OSError, msgspec.DecodeError) as error:
        raise argparse.ArgumentTypeError(f"{path} is no plan of a world: {error}") from error


def _one(plan: Plan, log: Path | None, mutation: str | None) -> int:
    print(msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(plan, programs=[]))).decode())
    with mutated(mutation):
        first, second = (simulate(plan, keep_log=log is not None) for _ in range(2))
    if log is not None:
        write(log, [f"{line}\n".encode() for line in first.log])
    print(_line(first))
    print(f"the same again: {second.hash == first.hash}")
    return int(bool(first.broken) or second.hash != first.hash)


def _many(seeds: range, jobs: int, mutation: str | None) -> int:
    began, broken, worlds, turns, statuses = time.monotonic(), [], 0, 0, dict[str, int]()
    for result in results(seeds, jobs, mutation):
        worlds, turns = worlds + 1, turns + result.turns
        for status, count in result.statuses.items():
            statuses[status] = statuses.get(status, 0) + count
        if result.broken:
            broken.append(result)
            print(_line(result), flush=True)
        elif worlds % 100 == 0:
            print(f"{worlds} worlds in {time.monotonic() - began:.0f} s", flush=True)
    took_s = time.monotonic() - began
    said = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
    print(f"{worlds} worlds in {took_s:.0f} s ({worlds / took_s:.1f} a second), {turns} turns; steps: {said}; {len(broken)} broken")
    for result in broken[:SHOWN_MAX]:
        _shorten(result, mutation)
    return int(bool(broken))


def _shorten(result: Result, mutation: str | None) -> None:
    """Say how to see it again, and with how little of its plan it still happens."""
    planted = f" --mutation {mutation}" if mutation else ""
    print(f"\nagain: python -m bench.sim --seed {result.seed}{planted} --log world.log")
    kind = result.broken.split(":")[0]
    with mutated(mutation):
        plan = minimised(drawn(result.seed), lambda each: simulate(each).broken.split(":")[0] == kind, tries=60)
    path = Path(f"world-{result.seed}.json")
    path.write_bytes(msgspec.json.format(msgspec.json.encode(plan)))
    steps = sum(len(each.asks) for each in plan.programs)
    print(f"shorter: python -m bench.sim --plan {path}{planted} ({len(plan.faults)} faults, {steps} asks)")
    for fault in plan.faults:
        print(f"    {fault}")


def _mutations(seeds: int, jobs: int, table: Path | None) -> int:
    """Whether each planted bug shows itself within so many worlds, and by what."""
    rows, missed = [], []
    for name, mutation in MUTATIONS.items():
        began = time.monotonic()
        found = next((each for each in results(range(1, seeds + 1), jobs, name) if each.broken), None)
        if found is None:
            missed.append(name)
        what = f"seed {found.seed}: {found.broken[:150]}" if found else f"NOT CAUGHT in {seeds} worlds"
        print(f"{name:32} {time.monotonic() - began:4.0f} s  {what}\n    {mutation.what}", flush=True)
        rows.append(Caught(name, mutation.what, found.seed if found else None, found.broken if found else ""))
    said = f"{len(MUTATIONS) - len(missed)} of {len(MUTATIONS)} planted bugs were caught; missed: {', '.join(missed) or 'none'}"
    print(said)
    if table is not None:
        write(table, [mutation_table(rows, seeds, said, date.today()).encode()])
    return int(bool(missed))


def _line(result: Result) -> str:
    said = ", ".join(f"{count} {status}" for status, count in sorted(result.statuses.items()))
    head = f"seed {result.seed}  {result.hash}  {result.seconds:.1f} s  {result.turns} turns  {result.stored} stored  {said}"
    return f"{head}\n    BROKEN: {result.broken}" if result.broken else head


if __name__ == "__main__":
    sys.exit(main())
