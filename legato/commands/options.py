"""Options that several commands share, and how a command gets its connection."""

import asyncio
import logging
import re
import signal
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from legato.addresses import BUS_VARIABLE, bus_config, check_reachable, connecting, running_in
from legato.client import Client
from shared.core.errors import LegatoError
from shared.runtime.bus import Bus, BusConfig

ResultT = TypeVar("ResultT")
UNITS_S = {"m": 60, "h": 3600, "d": 86_400}

Nats = Annotated[str, typer.Option("--nats", metavar="URL", help=f"Address of NATS. Default: {BUS_VARIABLE}, else that of `legato up`.")]
Data = Annotated[Path, typer.Option("--data", metavar="DIR", envvar="LEGATO_DATA", help="Directory of `legato up`.")]
Key = Annotated[str, typer.Option("--key", envvar="LEGATO_API_KEY", help="API key.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Config = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Configuration file (TOML).")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="SECTION.FIELD=VALUE", help="Override one setting; may be repeated.")]


def ago_ns(option: str, text: str) -> int:
    """The time that long ago, Unix nanoseconds; 0 for no text. Raises LegatoError for what is no length of time."""
    if not text:
        return 0
    found = re.fullmatch(r"(\d{1,6})([mhd])", text, re.ASCII)
    if found is None:
        raise LegatoError(f"{option} takes a number of minutes, hours or days such as 30m, 12h or 7d, not {text!r}")
    return max(0, time.time_ns() - int(found[1]) * UNITS_S[found[2]] * 10**9)


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
