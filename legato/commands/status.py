"""`legato status`: what runs."""

from pathlib import Path
from typing import Any

from rich.text import Text

from legato.addresses import DATA, running_in
from legato.commands.options import Data, Json, Nats, connected, finish
from legato.console import coloured, out, print_json, say, table
from legato.processes import ask
from shared.runtime.admin import ProcessStatus

MIB = 2**20


def status(json: Json = False, nats: Nats = "", data: Data = DATA) -> None:
    """Show every process of the fleet.

    Whether it is ready, its role (of a deciding service one process is active, the others stand by), and what it uses.

    legato status
    legato status --json | jq 'select(.ready | not) .instance'
    """
    finish(_status(json, nats, data))


async def _status(json: bool, nats: str, data: Path) -> None:
    running = None if nats else running_in(data)
    started = {name for name in running.processes if name not in ("nats", "postgres")} if running else set()
    async with connected(nats, data) as bus:
        answers = await ask(bus, started)
    if json:
        for answer in answers:
            print_json(answer)
    elif answers:
        rows = table("SERVICE", "INSTANCE", "PID", "READY", "ROLE", "RSS", "CPU", "HEALTH", "DETAILS", right=("PID", "RSS", "CPU"))
        for answer in answers:
            rows.add_row(*_row(answer))
        out.print(rows)
    else:
        say("No process answers: `legato up` starts a fleet.")
    silent = sorted(started - {answer.instance for answer in answers})
    if silent:
        say(f"no answer from {', '.join(silent)}; their logs are in {data / 'logs'}")


def _row(answer: ProcessStatus) -> list[str | Text]:
    details: dict[str, Any] = dict(answer.details)
    role = str(details.pop("role", ""))
    return [
        answer.service,
        answer.instance,
        str(answer.pid),
        coloured("yes" if answer.ready else "no", not answer.ready),
        role or "-",
        f"{answer.rss_bytes / MIB:.0f} MiB",
        f"{answer.cpu_s:.1f} s",
        answer.address or "-",
        " ".join(f"{name}={value}" for name, value in details.items()) or "-",
    ]
