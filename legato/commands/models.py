"""`legato models`: what can be asked for."""

from pathlib import Path

from legato.addresses import DATA
from legato.commands.options import Data, Json, Nats, connected, finish
from legato.console import out, print_json, say, table
from legato.served import read_served


def models(json: Json = False, nats: Nats = "", data: Data = DATA) -> None:
    """List the models that workers serve now.

    legato models
    legato models --json | jq .name
    """
    finish(_models(json, nats, data))


async def _models(json: bool, nats: str, data: Path) -> None:
    async with connected(nats, data) as bus:
        served = await read_served(bus)
    if json:
        for each in served:
            print_json(each)
        return
    if not served:
        say("No worker serves a model now: `legato up` starts some, `legato status` shows what runs.")
        return
    rows = table("MODEL", "CONTEXT", "CHAT", "ENGINE", "WORKERS", "SLOTS", right=("CONTEXT", "SLOTS"))
    for each in served:
        workers = ", ".join([*each.workers, *(f"{name} (not ready)" for name in each.not_ready)])
        rows.add_row(each.name, f"{each.context_tokens:,}", "yes" if each.chat else "no", ", ".join(each.engines), workers, str(each.slots))
    out.print(rows)
