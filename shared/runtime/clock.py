"""The clock of the live world. Decisions never read it: the time is an input that their driver gives them."""

import re
import time
from datetime import UTC, datetime


def now_ns() -> int:
    """Unix time in nanoseconds. It can jump; measure intervals with time.monotonic."""
    return time.time_ns()


_FRACTION = re.compile(r"\.(\d+)")


def unix_ns(stamp: str) -> int:
    """A time as nats-server writes it: RFC 3339, up to nine digits behind the dot."""
    fraction = _FRACTION.search(stamp)
    whole = datetime.fromisoformat(_FRACTION.sub("", stamp).replace("Z", "+00:00"))
    return int(whole.timestamp()) * 1_000_000_000 + int(fraction[1].ljust(9, "0") if fraction else 0)


def stamp_of(at_ns: int) -> str:
    """The same for a Unix time."""
    whole = datetime.fromtimestamp(at_ns // 1_000_000_000, UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{at_ns % 1_000_000_000:09d}Z"
