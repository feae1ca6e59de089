"""`legato timeline STEP`: what happened to a step, and why."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from legato.addresses import DATA
from legato.commands.options import Data, Json, Nats, connected, finish
from legato.console import coloured, out, print_json, say, table
from legato.history import Happening, read_history
from legato.request import checked_id
from shared.core.errors import LegatoError

StepArgument = Annotated[str, typer.Argument(metavar="STEP", help="Id of the step, as `legato submit` prints it.")]


def timeline(step: StepArgument, json: Json = False, nats: Nats = "", data: Data = DATA) -> None:
    """Show what happened to a step, when, by whom and why.

    From submission to settlement, as far back as the log goes (a day). Times are those at which NATS stored each event.

    legato timeline 0199b1c2-7d1e-7000-8000-000000000000
    legato timeline STEP --json | jq -r '[.ms, .what, .why] | @tsv'
    """
    finish(_timeline(step, json, nats, data))


async def _timeline(step: str, json: bool, nats: str, data: Path) -> None:
    async with connected(nats, data) as bus:
        happenings = await read_history(bus, checked_id(step))
    if not happenings:
        raise LegatoError(f"the log has nothing of step {step}: it goes back a day; is this the right fleet?")
    if json:
        for each in happenings:
            print_json(each)
        return
    rows = table("MS", "WHAT", "WHO", "WHY", right=("MS",))
    for each in happenings:
        rows.add_row(f"{each.ms:,.1f}", _coloured(each), each.who, each.why)
    out.print(rows)
    say(f"the state behind a decision: legato replay scheduler --at {step}")


def _coloured(happening: Happening) -> Text:
    return coloured(happening.what, happening.what.startswith(("refused", "revoked", "closed", "cancel")))
