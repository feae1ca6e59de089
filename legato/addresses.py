"""Where the fleet is: from flags, else from the environment, else from the `legato up` of this directory, else the default."""

import asyncio
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import psutil

from legato.console import saying_when_slow
from shared.core.errors import LegatoError
from shared.runtime.bus import BusConfig, BusError
from shared.runtime.nats_client import check_scheme

DATA = Path(".legato")
FILE = "up.json"
BUS_VARIABLE = "LEGATO_BUS_URL"
PROBE_S = 3.0
NATS_PORT = 4222
CREDENTIALS = re.compile(r"(?<=//)[^/]*@")  # of a URL


class Running(msgspec.Struct, kw_only=True, omit_defaults=True):
    """`up.json`: what a running `legato up` tells the other commands. `processes`: process id by name."""

    pid: int
    born: float = 0.0  # when that process began, Unix seconds: its number may be given to another one later
    nats: str
    postgres: str = ""
    http: str = ""
    processes: dict[str, int] = {}

    def save(self, data: Path) -> None:
        """Replace the file in one step; only its owner can read it, for it holds a password."""
        new = data / f"{FILE}.new"
        new.unlink(missing_ok=True)
        with os.fdopen(os.open(new, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
        new.replace(data / FILE)


def running_in(data: Path) -> Running | None:
    """The `legato up` that runs on `data`, if one does."""
    try:
        found = msgspec.json.decode((data / FILE).read_bytes(), type=Running)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise LegatoError(f"cannot read {data / FILE}: {error}") from error
    return found if born(found.pid) == found.born else None


def born(pid: int) -> float | None:
    """When a process began, in Unix seconds; None when there is none."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return None


def bus_config(url: str, data: Path) -> BusConfig:
    """How to reach NATS. `url`: from a flag, may be empty."""
    default = BusConfig()
    if not url:
        url = os.environ.get(BUS_VARIABLE, "")
    if not url:
        running = running_in(data)
        url = running.nats if running else default.url
    return BusConfig(url=url, credentials=os.environ.get("LEGATO_BUS_CREDENTIALS", ""))


@contextmanager
def connecting(url: str) -> Iterator[None]:
    """Around a connection that is made for people: says what it waits for, and raises LegatoError where it is no NATS that listens."""
    where = shown(url)
    with saying_when_slow(f"somebody listens at {where}; waiting until NATS answers there"):
        try:
            yield
        except BusError as error:
            if not isinstance(error.__cause__, TimeoutError):
                raise
            raise LegatoError(f"whoever listens at {where} does not answer as NATS does: is it the right port?") from error


async def check_reachable(url: str, hint: str = "") -> None:
    """Raise LegatoError at once where nobody listens: services wait for NATS, people should not have to."""
    check_scheme(url)
    with saying_when_slow(f"trying to reach NATS at {shown(url)}"):
        answers = await asyncio.gather(*(_answers(each) for each in url.split(",")))
    if not any(answers):
        raise LegatoError(f"nobody listens at {shown(url)}{hint}")


def shown(url: str) -> str:
    """Addresses without users and passwords, for people to read."""
    return ",".join(CREDENTIALS.sub("", each) for each in url.split(","))


async def _answers(url: str) -> bool:
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        async with asyncio.timeout(PROBE_S):
            _, writer = await asyncio.open_connection(parts.hostname or "127.0.0.1", parts.port or NATS_PORT)
    except (OSError, TimeoutError, ValueError):  # the last: it is no URL
        return False
    writer.close()
    return True
