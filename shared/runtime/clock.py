"""The clock of the live world. Decisions never read it: the time is an input that their driver gives them."""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime

_wall_ns: Callable[[], int] = time.time_ns
_monotonic_s: Callable[[], float] = time.monotonic


def now_ns() -> int:
    """Unix time in nanoseconds. It can jump; measure intervals with `monotonic_s`."""
    return _wall_ns()


def monotonic_s() -> float:
    """Seconds of a clock that never goes back."""
    return _monotonic_s()


def use(wall_ns: Callable[[], int] = time.time_ns, monotonic_s: Callable[[], float] = time.monotonic) -> None:
    """Read other clocks from now on, in the whole process: for a simulation, whose time is virtual. Without arguments, the real ones."""
    global _wall_ns, _monotonic_s
    _wall_ns, _monotonic_s = wall_ns, monotonic_s


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
