"""`legato cost`: what successful tasks have cost, and what was for nothing."""

from pathlib import Path
from typing import Annotated

import typer

from legato.addresses import DATA
from legato.commands.options import Data, Json, Nats, ago_ns, connected_client, finish
from legato.console import out, print_json, say, table
from shared.contracts import subjects
from shared.contracts.costs import Cost, CostReport
from shared.core.errors import LegatoError

NUMBERS = ("TASKS", "SUCCEEDED", "STEPS", "GPU S", "USD", "PER SUCCESS", "WASTED", "CACHED")

Since = Annotated[str, typer.Option("--since", metavar="TIME", help="How far back: 30m, 12h, 7d. Default: all.")]


def cost(since: Since = "", json: Json = False, nats: Nats = "", data: Data = DATA) -> None:
    """Show what successful tasks have cost, by kind of workflow, tenant and model, and what was spent for nothing and why.

    A task is a workflow, or a step that belongs to none. Money is the worker's price (`[worker.hardware] usd_per_hour`), shared among the
    attempts that ran side by side; where no price is set, GPU seconds stand in its place.

    legato cost --since 24h
    legato cost --json | jq 'select(.successful > 0) | {kind, model, usd: (.usd / .successful)}'
    """
    finish(_cost(ago_ns("--since", since), json, nats, data))


async def _cost(since_ns: int, json: bool, nats: str, data: Path) -> None:
    async with connected_client(nats, data, "") as client:
        report = await client.ask(subjects.QUERY_COSTS, CostReport, str(since_ns).encode())
    if report is None or report.problem is not None:
        raise LegatoError("the costs cannot be read now: is the workflow service running, and its Postgres? (`legato status`)")
    if json:
        for each in report.costs:
            print_json(each)
        return
    if not report.costs:
        say("nothing was attempted in that time")
        return
    rows = table("KIND", "TENANT", "MODEL", *NUMBERS, "WASTED ON", right=NUMBERS)
    for each in report.costs:
        rows.add_row(*_row(each))
    out.print(rows)
    unbilled = sum(each.unbilled for each in report.costs)
    if unbilled:
        say(f"{unbilled} attempts run, or were lost with workers that nobody remembers: nobody knows what they used")
    lost_usd, lost_gpu_s = (sum(getattr(each, f"lost_{unit}") for each in report.costs) for unit in ("usd", "gpu_s"))
    if lost_gpu_s:
        say(f"{lost_usd:,.4f} USD ({lost_gpu_s:,.2f} GPU s) of it are an estimate: of attempts lost with their workers (docs/costs.md)")


def _row(cost: Cost) -> list[str]:
    priced = cost.usd > 0
    spent = cost.usd if priced else cost.gpu_s
    waste = {
        cause: getattr(cost, f"{cause}_usd" if priced else f"{cause}_gpu_s") for cause in ("failed", "cancelled", "superseded", "lost")
    }
    per_success = _amount(spent / cost.successful, priced) if cost.successful else "-"
    causes = ", ".join(f"{cause} {_share(amount, spent)}" for cause, amount in waste.items() if amount)
    return [
        cost.kind or "-",
        cost.tenant,
        cost.model,
        *(f"{number:,}" for number in (cost.tasks, cost.successful, cost.steps)),
        f"{cost.gpu_s:,.2f}",
        f"{cost.usd:,.4f}",
        per_success,
        _share(sum(waste.values()), spent),
        _share(cost.cached_tokens, cost.prompt_tokens),
        causes or "-",
    ]


def _amount(value: float, priced: bool) -> str:
    return f"{value:,.6f} USD" if priced else f"{value:,.3f} GPU s"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "-"
