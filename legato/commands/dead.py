"""`legato dead`: what could not be handled."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from legato.addresses import DATA
from legato.commands.options import Data, Json, Nats, connected, finish
from legato.console import out, print_json, say, table
from shared.contracts import subjects
from shared.contracts.journal import DeadLetter
from shared.contracts.streams import DEAD
from shared.runtime.cursor import Record

Last = Annotated[int, typer.Option("--last", min=1, help="Show so many, the newest.")]


def dead(last: Last = 50, json: Json = False, nats: Nats = "", data: Data = DATA) -> None:
    """List the inputs that could not be handled.

    They were malformed or met a bug; the service went on behind them.
    They are kept for a week, each with the reason.

        legato dead
        legato dead --json | jq .data
    """
    finish(_dead(last, json, nats, data))


def _letter(record: Record) -> DeadLetter:
    """Also of what is none, and lies there all the same."""
    try:
        return msgspec.json.decode(record.data, type=DeadLetter)
    except (msgspec.DecodeError, RecursionError) as error:
        return DeadLetter(service="?", subject=record.subject, source="", error=f"no dead letter: {error}", data="")


async def _dead(last: int, json: bool, nats: str, data: Path) -> None:
    letters: list[DeadLetter] = []
    async with connected(nats, data) as bus:
        async for record in bus.history(DEAD.name, subjects.DEAD):
            letters.append(_letter(record))
            del letters[:-last]
    if json:
        for letter in letters:
            print_json(letter)
        return
    if not letters:
        say("No dead letters.")
        return
    rows = table("TIME", "SERVICE", "SUBJECT", "SOURCE", "REASON")
    for letter in letters:
        time = datetime.fromtimestamp(letter.time_ns / 1e9).isoformat(" ", "milliseconds")
        rows.add_row(time, letter.service, letter.subject, letter.source or "-", letter.error)
    out.print(rows)
