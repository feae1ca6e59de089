"""`legato up`: a whole fleet on this machine."""

import asyncio
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from legato import __version__
from legato.actuator import Actuator
from legato.addresses import DATA, shown
from legato.commands.options import Config, Data, Set, finish
from legato.console import out, say, waiting
from legato.fleet import Fleet
from legato.plan import ENGINES, SERVICES, Wanted
from legato.served import Served, read_served
from services.worker.config import WorkerConfig
from shared.runtime.clock import now_ns
from shared.runtime.config import load
from shared.runtime.server_directory import free_port
from shared.runtime.tasks import end

Engine = Annotated[str, typer.Option("--engine", help=f"Engine of the workers: {', '.join(ENGINES)}.")]
Replicas = Annotated[list[str] | None, typer.Option("--replicas", metavar="SERVICE=N", help="Several processes of one service.")]
Only = Annotated[str, typer.Option("--only", metavar="NAMES", help=f"Only these, separated by commas: {', '.join(SERVICES)}.")]
OwnNats = Annotated[str, typer.Option("--nats", metavar="URL", help="An own nats-server. Default: LEGATO_BUS_URL, else one is started.")]
OwnPostgres = Annotated[
    str, typer.Option("--postgres", metavar="DSN", help="An own Postgres. Default: LEGATO_POSTGRES_DSN, else one is started.")
]


def up(  # noqa: PLR0913  # options
    engine: Engine = "simulated",
    workers: Annotated[int, typer.Option("--workers", "-w", min=0, help="How many; the autoscaler may change it.")] = 1,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Of HTTP, on loopback; 0: a free one.")] = 8080,
    data: Data = DATA,
    nats: OwnNats = "",
    postgres: OwnPostgres = "",
    only: Only = "",
    replicas: Replicas = None,
    config: Config = None,
    set_: Set = None,
) -> None:
    """Run a whole fleet on this machine, until Ctrl-C.

    That is a nats-server, a Postgres, every service, and workers. All data and logs are in one directory; other commands that are started
    beside it find the fleet by themselves. What crashes is started again. Ctrl-C drains and leaves no process behind.

        legato up                                              # the simulated engine: no GPU, no model, no download
        legato up --engine sglang --workers 2
        legato up --nats nats://nats:4222 --postgres postgresql://legato:secret@db/legato
        legato up --replicas scheduler=2 --set autoscaler.pools.default.max=4
        legato up --only gateway,admission --nats nats://nats:4222
    """
    wanted = Wanted(
        engine=engine,
        workers=workers,
        port=port or free_port(),
        only=[name.strip() for name in only.split(",") if name.strip()],
        replicas=replicas or [],
        settings=set_ or [],
        config=str(config.absolute()) if config else "",
    )
    finish(_up(data, wanted, nats, postgres))


async def _up(data: Path, wanted: Wanted, nats: str, postgres: str) -> None:
    began, since_ns = time.monotonic(), now_ns()
    fleet = Fleet(data, wanted, lambda line: out.print(line, markup=False, soft_wrap=True), nats, postgres)
    stop = _Stop(fleet)
    async with fleet:
        with waiting(f"Starting {fleet.size} processes in {data}"):
            if not await stop.unless(fleet.start()):
                return
        _print_addresses(fleet, await read_served(fleet.bus), time.monotonic() - began)
        worker = load(WorkerConfig, "worker", Path(wanted.config) if wanted.config else None, overrides=_worker_settings(wanted))
        await stop.unless(Actuator(fleet.bus, fleet, (worker.cell, worker.pool), since_ns, fleet.tell).run())
        say("\nDraining; Ctrl-C once more ends it at once.")
    say("Stopped.")


def _worker_settings(wanted: Wanted) -> list[str]:
    return [text.removeprefix("worker.") for text in wanted.settings if text.startswith("worker.")]


class _Stop:
    """SIGINT and SIGTERM: the first one asks for a drain, the second one ends it."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._asked = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self._asked.is_set():
            self._fleet.kill()
        self._asked.set()

    async def unless(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do the work, or leave it when asked to stop; whether it was done. Raises what it raises."""
        working = asyncio.ensure_future(work)
        asked = asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait([working, asked], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
            return working.done()
        finally:
            await end((working, asked))


def _print_addresses(fleet: Fleet, served: list[Served], seconds: float) -> None:
    running = fleet.running
    out.print(f"\n[bold]Legato {__version__}[/]: {fleet.size} processes ready in {seconds:.1f} s, data and logs in {fleet.data}\n")
    out.print(f"  NATS      {shown(running.nats)}", soft_wrap=True)
    if running.postgres:
        out.print(f"  Postgres  {_without_password(running.postgres)}", soft_wrap=True, markup=False)
    if running.http:
        out.print(f"  HTTP      {running.http}/v1", soft_wrap=True)
    for each in served:
        out.print(f"  Model     {each.name}  ({', '.join(each.engines)}, {len(each.workers)} worker(s))", soft_wrap=True, markup=False)
    if served:
        out.print("\nTry, from another shell in this directory:\n", style="bold")
        for line in _examples(program(), shown(running.nats), running.http, served[0]):
            out.print(f"  {line}", markup=False, soft_wrap=True)
    out.print("\nCtrl-C drains and stops everything.\n", style="dim")


def program() -> str:
    """How this program is called from a shell in this directory."""
    called = Path(sys.argv[0]) if Path(sys.argv[0]).name == "legato" else Path(sys.executable).with_name("legato")
    if shutil.which("legato") == str(called.absolute()):
        return "legato"
    path = called.absolute()
    if path.parent == Path.cwd():
        return f"./{path.name}"
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))


def _examples(legato: str, nats: str, http: str, served: Served) -> list[str]:
    lines = [f'{legato} submit "Hello" --max-tokens 32', f"{legato} status", f"export NATS_URL={nats}  # for docs/nats-api.md"]
    if not http:
        return lines
    messages = '[{"role": "user", "content": "Hello"}]'
    name, value = ("messages", messages) if served.chat else ("prompt", '"Hello"')
    path = "chat/completions" if served.chat else "completions"
    body = f'{{"model": "{served.name}", "{name}": {value}, "max_tokens": 32}}'
    call = f'{path.replace("/", ".")}.create(model="{served.name}", {name}={value}, max_tokens=32)'
    curl = f"curl {http}/v1/{path} -H 'content-type: application/json' -d '{body}'"
    return [*lines, "", curl, "", f'OpenAI(base_url="{http}/v1", api_key="none").{call}']


def _without_password(dsn: str) -> str:
    scheme, _, rest = dsn.partition("://")
    user, at, host = rest.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}{at}{host}"
