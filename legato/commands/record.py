"""`legato record FILE`: what clients asked of a running fleet, for simulations."""

import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from legato import places
from legato.addresses import DATA
from legato.commands.options import Data, Nats, ago_ns, connected, finish
from legato.console import counting, out, say
from legato.simulate.journals import read_recording
from legato.simulate.recording import Recording
from shared.core.errors import LegatoError
from shared.sim.workloads.recorded import Row

File = Annotated[Path, typer.Argument(metavar="FILE", help="Where to: one JSON line for each step. Replaced if it is there.")]
Since = Annotated[str, typer.Option("--since", metavar="TIME", help="From how long ago on: 30m, 12h, 2d. Default: all that is kept.")]
Until = Annotated[str, typer.Option("--until", metavar="TIME", help="Up to how long ago, likewise. Default: now.")]


def record(file: File, since: Since = "", until: Until = "", nats: Nats = "", data: Data = DATA) -> None:
    """Write down what clients asked of the running fleet, to ask it again in a simulation.

    From the journals, which are kept for three days: times, lengths, tenants, workflows, models, hashes of the prompts' blocks. No texts
    and no keys. Nothing is sent to the fleet.

        legato record day.jsonl --since 24h
        legato simulate --from-log day.jsonl --set pools.default.count=4     # what if the fleet had four workers?
    """
    places.check_place(file, "", "day.jsonl")
    since_ns, until_ns = ago_ns("--since", since), ago_ns("--until", until) or time.time_ns()
    if since_ns >= until_ns:
        raise LegatoError(f"--since {since} is not before --until {until}: the time between them is recorded")
    found = finish(read(since_ns, until_ns, nats, data))
    write(file, found.rows)
    out.print(f"{told(found.rows)}, in {file}", markup=False, soft_wrap=True)
    for note in found.notes:
        say(note)


async def read(since_ns: int, until_ns: int, nats: str, data: Path) -> Recording:
    """From the fleet's journals. Raises LegatoError."""
    async with connected(nats, data) as bus:
        with counting("Reading journals") as bar:
            return await read_recording(
                bus,
                since_ns,
                until_ns,
                lambda service, number: bar.update(bar.task_ids[0], description=f"Reading {service}", completed=number),
            )


def write(file: Path, rows: Iterable[Row]) -> None:
    """A JSON line for each. Raises LegatoError."""
    encoder = msgspec.json.Encoder()
    places.write(file, (encoder.encode(row) + b"\n" for row in rows))


def told(rows: list[Row]) -> str:
    """Rows in a line."""
    first, last = (datetime.fromtimestamp(row.asked_ns / 1e9).isoformat(" ", "seconds") for row in (rows[0], rows[-1]))
    workflows, tenants = len({row.workflow for row in rows if row.workflow}), len({row.tenant for row in rows})
    return f"{_count(len(rows), 'step')} of {_count(workflows, 'workflow')} and {_count(tenants, 'tenant')}, from {first} to {last}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
