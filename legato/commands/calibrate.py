"""`legato calibrate`: the engine model against measured engines."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from legato.commands.options import Json
from legato.console import err, out, print_json, say, table
from shared.core.errors import LegatoError

OUT = Path(".legato/calibration")


def calibrate(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Folder of the measured tables.")] = Path("../shared/data"),
    out_dir: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the constants and the errors are written.")] = OUT,
    json: Json = False,
) -> None:
    """Fit the simulated engine's step law to measured engines, and say how far off it is where the fit has not looked.

    legato calibrate --data ../shared/data
    legato calibrate --json | jq '.errors[] | select(.group == "all")'

    About two minutes on one core; schedules of measured loops are kept in DIR for the next time. Needs numpy and scipy:
    pip install 'legato[calibrate]'.
    """
    try:
        from legato.calibration import work
    except ModuleNotFoundError as error:
        if error.name not in ("numpy", "scipy"):
            raise
        raise LegatoError("legato calibrate needs numpy and scipy: pip install 'legato[calibrate]', or make setup in a clone") from error
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        tasks: dict[str, int] = {}

        def told(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=total)
            progress.update(progress.task_ids[list(tasks).index(what)], completed=done)

        found = work.calibrate(data, out_dir / "schedules", told)
    work.write(found, out_dir)
    if json:
        print_json(found)
        return
    rows = table("HELD OUT", "POINTS OF", "POINTS", "TPOT ERROR", "TTFT ERROR", right=("POINTS", "TPOT ERROR", "TTFT ERROR"))
    for each in found.errors:
        rows.add_row(each.held_out or "nothing", each.group, f"{each.points:,}", f"{each.token:.1%}", f"{each.first:.1%}")
    for run in found.runs:
        token, first = (abs(run.predicted_token_s / run.token_s - 1), abs(run.predicted_first_s / run.first_s - 1))
        rows.add_row("gpu" if run.constants == "of other GPUs" else "run", run.run, "1 run", f"{token:.1%}", f"{first:.1%}")
    out.print(rows)
    say(f"{found.points:,} points; left out: {', '.join(f'{count:,} {why}' for why, count in found.left_out.items())}")
    say(f"Constants and tables are in {out_dir}: copy fit-*.toml to shared/core/calibrated/ to ship them.")
