"""`legato workflow list|show|resume|cancel`: what programs of many steps have done, and what they cost."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from legato.addresses import DATA
from legato.client import Client
from legato.commands.options import Data, Json, Key, Nats, connected_client, finish
from legato.console import coloured, out, print_json, say, table
from legato.request import checked_id
from shared.contracts import subjects
from shared.contracts.ids import WorkflowId
from shared.contracts.steps import StepState
from shared.contracts.workflows import WorkflowList, WorkflowRecord, WorkflowState, WorkflowStep
from shared.core.errors import LegatoError
from shared.core.money import nano_usd, spelled
from shared.core.workflows import OPEN, Terms
from shared.runtime.resuming import resume as resumed
from shared.runtime.workflow_run import WorkflowRun, opening

TOKENS = ("PROMPT", "CACHED", "OUTPUT")

ANSWER_S = 10.0  # for the workflow service, or its Postgres, to come back

workflow = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="""Show, resume and stop workflows: programs of many steps (docs/workflows.md).

    A program that was broken off is started again: it finds what it has done. `resume` tries anew,
    meanwhile, what of its steps did not succeed.

        legato workflow list
        legato workflow show q3-report
    """,
)

Id = Annotated[str, typer.Argument(metavar="ID", help="The workflow's id, as its program chose it.")]
Most = Annotated[int, typer.Option("--most", min=1, max=1_000, help="How many at most, the newest first.")]
Budget = Annotated[float | None, typer.Option("--budget-usd", help="What it may cost in all from now on. Default: as before.")]
Why = Annotated[str, typer.Option("--why", help="The reason, for whoever looks at the steps later.")]


@workflow.command("list")
def list_(most: Most = 50, json: Json = False, nats: Nats = "", data: Data = DATA) -> None:
    """List workflows, the newest first.

    legato workflow list
    legato workflow list --json | jq 'select(.state == "open") .workflow'
    """
    finish(_list(most, json, nats, data))


@workflow.command()
def show(id: Id, json: Json = False, nats: Nats = "", data: Data = DATA) -> None:
    """Show a workflow: its steps in order, how each went, and what was recorded.

    legato workflow show q3-report
    """
    finish(_show(id, json, nats, data))


@workflow.command()
def resume(  # noqa: PLR0913  # options
    id: Id, budget: Budget = None, key: Key = "", json: Json = False, nats: Nats = "", data: Data = DATA
) -> None:
    """Try anew each named step of a workflow that did not succeed. Its program joins them when it is started again.

    What runs goes on, what succeeded stays, and nothing is paid for twice.
    It needs the API key that opened the workflow.

        legato workflow resume q3-report
        legato workflow resume q3-report --budget-usd 5
    """
    finish(_resume(id, budget, key, json, nats, data))


@workflow.command()
def cancel(id: Id, why: Why = "", nats: Nats = "", data: Data = DATA) -> None:
    """Cancel the steps of a workflow that wait or run now. What has ended stays, and its program may go on.

    legato workflow cancel q3-report --why "wrong figures"
    """
    finish(_cancel(id, why, nats, data))


async def _list(most: int, json: bool, nats: str, data: Path) -> None:
    async with connected_client(nats, data, "") as client:
        answer = await client.ask(subjects.QUERY_WORKFLOWS, WorkflowList, str(most).encode())
    if answer is None or answer.problem is not None:
        raise LegatoError("the workflows cannot be read now: is the workflow service running, and its Postgres? (`legato status`)")
    if json:
        for each in answer.workflows:
            print_json(each)
        return
    if not answer.workflows:
        say("No program has opened a workflow yet: docs/workflows.md shows how.")
        return
    rows = table(
        "WORKFLOW", "KIND", "STATE", "OPENED", "STEPS", "PROMPT", "CACHED", "OUTPUT", right=("STEPS", "PROMPT", "CACHED", "OUTPUT")
    )
    for each in answer.workflows:
        usage = each.usage
        steps = f"{each.step_count}/{each.steps_planned}" if each.steps_planned else str(each.step_count)
        counts = [f"{number:,}" for number in (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens)]
        rows.add_row(each.workflow, each.kind or "-", _state(each), _time(each.opened_ns), steps, *counts)
    out.print(rows)


async def _show(workflow_id: str, json: bool, nats: str, data: Path) -> None:
    async with connected_client(nats, data, "") as client:
        record = await _recorded(client, workflow_id)
    if json:
        print_json(record)
        return
    about = [f"{record.workflow} ({record.kind or 'no kind'}): {record.state}", f"opened {_time(record.opened_ns)}"]
    if record.deadline_ns:
        about.append(f"deadline {_time(record.deadline_ns)}")
    if record.closed_ns:
        about.append(f"ended {_time(record.closed_ns)}" + (f", score {record.score:g}" if record.score is not None else ""))
    out.print(", ".join(about) + (f": {record.why}" if record.why else ""), markup=False)
    if record.budget_usd is not None or record.spent_usd:
        out.print(_money(record), markup=False)
    rows = table("STEP", "STATE", "MODEL", "ATTEMPTS", *TOKENS, "S", "ID", right=("ATTEMPTS", *TOKENS, "S"))
    for each in record.steps:
        rows.add_row(*_row(each))
    out.print(rows)
    if record.step_count > len(record.steps):
        say(f"the newest {len(record.steps):,} of {record.step_count:,} steps")
    if record.values:
        out.print(f"recorded: {', '.join(record.values)}", soft_wrap=True, markup=False)
    say("what happened to a step: legato timeline ID")


async def _resume(workflow_id: str, budget: float | None, key: str, json: bool, nats: str, data: Path) -> None:  # noqa: PLR0913
    async with connected_client(nats, data, key) as client:
        run = WorkflowRun(client.bus, opening(workflow_id, "", client.key, Terms(budget_usd=budget)), ANSWER_S)
        await run.join()
        await run.renew_budget()
        steps = await resumed(client.bus, run)
    if json:
        for each in steps:
            print_json(each)
        return
    if not steps:
        say(f"nothing to resume: no named step of {workflow_id} is known")
        return
    rows = table("STEP", "WAS", "NOW", "ID")
    for each in steps:
        now = "tried anew" if each.resumed else each.why or ("goes on" if each.was in OPEN else "stays")
        rows.add_row(each.name, each.was, coloured(now, bool(each.why)), each.step)
    out.print(rows)
    if run.record.step_count > len(run.record.steps):
        say(f"of its {run.record.step_count:,} steps only the newest {len(run.record.steps):,} were looked at")
    say(f"to go on with what comes behind them, start its program again; `legato workflow show {workflow_id}` shows how they do")


async def _cancel(workflow_id: str, why: str, nats: str, data: Path) -> None:
    async with connected_client(nats, data, "") as client:
        record = await _recorded(client, workflow_id)
        running = [each.step for each in record.steps if each.status in (StepState.QUEUED, StepState.RUNNING)]
        for step in running:
            await client.cancel(step, why)
    say(
        f"asked to stop {len(running)} steps; `legato workflow show {workflow_id}` shows when they have"
        if running
        else "nothing of it runs"
    )


async def _recorded(client: Client, workflow_id: str) -> WorkflowRecord:
    record = await client.ask(subjects.query_workflow(WorkflowId(checked_id(workflow_id))), WorkflowRecord)
    if record is None:
        raise LegatoError("the workflow cannot be read now: is the workflow service running? (`legato status`)")
    if record.problem is not None:
        raise LegatoError(f"{record.problem.message} (`legato workflow list` shows those that there are)")
    return record


def _row(step: WorkflowStep) -> list[str | Text]:
    took = f"{(step.settled_ns - step.accepted_ns) / 1e9:.1f}" if step.settled_ns else "-"
    counts = [str(number) for number in (step.attempts, step.usage.prompt_tokens, step.usage.cached_tokens, step.usage.output_tokens)]
    status = coloured(step.status if step.problem is None else f"{step.status}: {step.problem.reason}", step.problem is not None)
    return [step.name or "-", status, step.model, *counts, took, step.step]


def _money(record: WorkflowRecord) -> str:
    spent = f"spent {spelled(nano_usd(record.spent_usd))} USD"
    if record.estimated_usd:
        spent += f" ({spelled(nano_usd(record.estimated_usd))} by estimate, of attempts lost with their workers)"
    if record.budget_usd is None:
        return spent
    reserved = f"{spelled(nano_usd(record.reserved_usd))} reserved by steps under way"
    return f"budget {spelled(nano_usd(record.budget_usd))} USD: {spent}, {reserved}"


def _state(record: WorkflowRecord) -> Text:
    return coloured(record.state, record.state is WorkflowState.FAILED)


def _time(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
