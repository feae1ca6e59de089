"""`legato replay SERVICE`: decide again what was decided."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from legato.addresses import DATA
from legato.commands.options import Data, Json, Nats, connected, finish
from legato.console import counting, out, print_json, say
from legato.entries import find_entry
from legato.machines import DECIDERS, machine_of, only_partition
from legato.summary import summarised
from shared.contracts.envelope import Message
from shared.contracts.ids import is_subject_token
from shared.core.errors import LegatoError
from shared.core.machine import Machine
from shared.drivers.journal import output_decoder
from shared.drivers.refold import Difference
from shared.drivers.replay import Moment, Replay, Report
from shared.runtime.bus import Bus
from shared.runtime.config import SECTIONS

CUT = 200  # characters of an output in a report

Service = Annotated[str, typer.Argument(help=f"One of {', '.join(DECIDERS)}.")]
At = Annotated[str, typer.Option("--at", metavar="EVENT", help="Show one decision: entry number, message id or step id.")]
Setting = Annotated[
    list[str] | None, typer.Option("--set", metavar="SERVICE.FIELD=VALUE", help="Decide under another setting; may be repeated.")
]


def replay(  # noqa: PLR0913  # options
    service: Service,
    partition: Annotated[str, typer.Option("--partition", help="Default: the only one there is.")] = "",
    first: Annotated[int, typer.Option("--from", min=1, help="First entry.")] = 1,
    last: Annotated[int | None, typer.Option("--to", min=1, help="Last entry. Default: the newest.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare with what was recorded (the default without --at).")] = False,
    at: At = "",
    setting: Setting = None,
    full: Annotated[bool, typer.Option("--full", help="With --at: show large collections whole.")] = False,
    json: Json = False,
    nats: Nats = "",
    data: Data = DATA,
) -> None:
    """Decide again what a service decided, and compare.

    Takes the recorded inputs in their order and compares every decision, byte for byte. The exit status is 1 when anything differs.
    Nothing is sent to the fleet: it is safe while the fleet runs.

        legato replay scheduler --verify
        legato replay scheduler --at 0199b1c2-7d1e-7000-8000-000000000000     # the step's last dispatch: state and reasons
        legato replay scheduler --at scheduler.local.3.4711.0
        legato replay scheduler --from 1000 --to 2000 --set scheduler.match_wait_ms=0   # what would another setting have changed?
    """
    machine = machine_of(service)
    asked = _Asked(machine=machine, partition=partition, settings=[own_setting(machine, text) for text in setting or []])
    if at:
        moment = finish(_at(asked, at, nats, data))
        print_json(moment) if json else _print_moment(moment, asked.machine, full)
        raise typer.Exit(int(verify and bool(moment.differences)))
    report = finish(_verify(asked, (first, last), nats, data))
    print_json(report) if json else _print_report(report)
    raise typer.Exit(int(report.differing > 0))


def own_setting(machine: Machine[Any, Any], setting: str) -> str:
    """`service.field=value`, as all commands take it, as the `field=value` that a replay takes; that one stays as it is. Raises LegatoError
    for a setting of another section."""
    section, dot, field = setting.partition("=")[0].partition(".")
    if dot and section == machine.name:
        return setting.removeprefix(f"{section}.")
    if dot and section in SECTIONS and section not in machine.config.__struct_fields__:
        raise LegatoError(
            f"--set {setting}: {machine.name} decides by [{machine.name}] alone; write {machine.name}.FIELD=VALUE, not {section}.{field}"
        )
    return setting


class _Asked(msgspec.Struct, kw_only=True):
    machine: Machine[Any, Any]
    partition: str  # empty: the only one
    settings: list[str]

    async def replay(self, bus: Bus) -> Replay[Any, Any]:
        self.partition = self.partition or await only_partition(bus, self.machine.name)
        if not is_subject_token(self.partition):
            raise LegatoError(f"a partition's name has letters, digits, - and _, not {self.partition!r}")
        return Replay(bus, self.machine, self.partition, self.settings)


async def _verify(asked: _Asked, span: tuple[int, int | None], nats: str, data: Path) -> Report:
    first, last = span
    async with connected(nats, data) as bus:
        replaying = await asked.replay(bus)
        with counting(f"Replaying {asked.machine.name}") as bar:
            report = await replaying.verify(first, last, lambda number, end: bar.update(bar.task_ids[0], completed=number, total=end))
        end = 0 if report.inputs else await replaying.end()
    if not report.inputs:
        name = f"{asked.machine.name}.{asked.partition}"
        if 0 < end < first:
            raise LegatoError(f"there is no entry {first} yet: the log of {name} ends at entry {end}")
        raise LegatoError(f"the journal of {name} has no entry from {first} to {last or 'the end'}")
    return report


def _print_report(report: Report) -> None:
    rate = report.inputs / max(report.seconds, 1e-9)
    begin = f"the snapshot at entry {report.snapshot:,}" if report.snapshot else "the very start"
    out.print(f"[bold]{report.service}.{report.partition}[/]  entries {report.first:,} to {report.last:,}, from {begin}")
    out.print(f"{report.inputs:,} inputs taken again, {report.outputs:,} decisions compared, {rate:,.0f} inputs/s")
    if report.missing:
        out.print(f"[yellow]{report.missing:,} entries asked for are no longer in the log[/]")
    for note in report.notes:
        out.print(note, style="yellow", markup=False)
    if not report.differing:
        out.print("[green]none different[/]")
        return
    number = report.differences[0].number
    out.print(f"[bold red]{report.differing:,} different[/]; they part first at entry {number:,}:")
    for difference in report.differences:
        _print_difference(difference)
    if report.differing > len(report.differences):
        out.print(f"… and {report.differing - len(report.differences):,} more")
    say(f"the state there: legato replay {report.service} --at {number}")


def _print_difference(difference: Difference) -> None:
    step = f", step {difference.step}" if difference.step else ""
    out.print(f"\nentry {difference.number:,}, output {difference.index}, on {difference.input_type}{step}", style="bold", markup=False)
    for field in difference.fields:
        out.print(f"  {field.path}: {_cut(field.recorded)} → {_cut(field.replayed)}", markup=False, soft_wrap=True)
    if not difference.fields:
        out.print(f"  recorded: {_cut(difference.recorded)}\n  replayed: {_cut(difference.replayed)}", markup=False, soft_wrap=True)


def _cut(text: str) -> str:
    return (text if len(text) <= CUT else f"{text[:CUT]}…") or "nothing"


# --- one decision ------------------------------------------------------------------------------------------------------------


async def _at(asked: _Asked, event: str, nats: str, data: Path) -> Moment:
    async with connected(nats, data) as bus:
        replaying = await asked.replay(bus)
        number, epoch = await find_entry(bus, asked.machine.name, asked.partition, event)
        moment = await replaying.at(number)
    if epoch and moment.epoch != epoch:
        raise LegatoError(
            f"{event} is not in the journal: the process of epoch {epoch} ended before it was written, and its input was decided "
            f"again; entry {number} is of epoch {moment.epoch}"
        )
    return moment


def _print_moment(moment: Moment, machine: Machine[Any, Any], full: bool) -> None:
    decoder = output_decoder()
    source = f", from {moment.source}" if moment.source else ""
    time = datetime.fromtimestamp(moment.now_ns / 1e9).isoformat(" ", "milliseconds")
    out.print(f"[bold]{moment.service}.{moment.partition}[/]  entry {moment.number:,}, epoch {moment.epoch}, {time}{source}")
    for note in moment.notes:
        out.print(note, style="yellow", markup=False)
    _section("Input", _shown(moment.input, machine.inputs, full))
    _section("State before", _shown(moment.state, machine.state, full))
    outputs: list[Message] = [decoder.decode(raw) for raw in moment.recorded]
    out.print(f"\n[bold]Decided[/]: {len(outputs) or 'nothing'}")
    for output, raw in zip(outputs, moment.recorded, strict=True):
        out.print(f"{output.__struct_config__.tag}  {output.id}", style="cyan", markup=False)
        why = getattr(output, "why", "") or getattr(getattr(output, "problem", None), "message", "")
        if why:
            out.print(f"  because: {why}", markup=False, soft_wrap=True)
        out.print_json(data=msgspec.json.decode(raw) if full else summarised(output))
    if moment.differences:
        out.print("\n[bold red]Decided differently now[/]:")
        for difference in moment.differences:
            _print_difference(difference)


def _section(title: str, value: Any) -> None:
    out.print(f"\n[bold]{title}[/]")
    out.print_json(data=value)


def _shown(raw: msgspec.Raw, kind: Any, full: bool) -> Any:
    return msgspec.json.decode(raw) if full else summarised(msgspec.json.decode(raw, type=kind))
