"""Options that several commands share, and how a command gets its connection."""

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from legato.addresses import BUS_VARIABLE, bus_config, check_reachable, connecting, running_in
from legato.client import Client
from shared.runtime.bus import Bus, BusConfig

ResultT = TypeVar("ResultT")

Nats = Annotated[str, typer.Option("--nats", metavar="URL", help=f"Address of NATS. Default: {BUS_VARIABLE}, else that of `legato up`.")]
Data = Annotated[Path, typer.Option("--data", metavar="DIR", envvar="LEGATO_DATA", help="Directory of `legato up`.")]
Key = Annotated[str, typer.Option("--key", envvar="LEGATO_API_KEY", help="API key.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Configuration file (TOML).")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Override one setting; may be repeated.")]


@asynccontextmanager
async def connected(nats: str, data: Path) -> AsyncIterator[Bus]:
    """The fleet's bus. Raises LegatoError that says what to do."""
    config = await _found_bus(nats, data)
    with connecting(config.url):
        bus = await Bus.connect(config, "legato-cli")
    try:
        yield bus
    finally:
        await bus.close()


@asynccontextmanager
async def connected_client(nats: str, data: Path, key: str) -> AsyncIterator[Client]:
    """A client of the fleet. Raises LegatoError that says what to do."""
    config = await _found_bus(nats, data)
    async with AsyncExitStack() as stack:
        with connecting(config.url):
            client = Client(config.url, api_key=key, credentials=config.credentials, name="legato-cli")
            await stack.enter_async_context(client)
        yield client


async def _found_bus(nats: str, data: Path) -> BusConfig:
    """How to reach the fleet's NATS, which somebody listens at. Raises LegatoError."""
    config = bus_config(nats, data)
    told = nats or running_in(data)
    await check_reachable(config.url, "" if told else f", and no `legato up` runs in {data}: start one, or give --nats URL")
    return config


def finish(coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a command's work to its end. SIGTERM and SIGHUP leave it in order, as Ctrl-C does; the exit status is the one of shells."""
    logging.basicConfig(format="legato: %(message)s")  # warnings of the connection
    return asyncio.run(_interruptible(coroutine))


async def _interruptible(coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
    interrupted: list[int] = []
    task = asyncio.ensure_future(coroutine)

    def interrupt(number: int) -> None:
        interrupted.append(number)
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGHUP) if threading.current_thread() is threading.main_thread() else ():
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup has one ignored
            asyncio.get_running_loop().add_signal_handler(number, interrupt, number)
    try:
        return await task
    except asyncio.CancelledError:
        if interrupted:
            raise typer.Exit(128 + interrupted[0]) from None
        raise
