"""Recorded spot capacity (V100s on AWS, SkyPilot: Wu et al., "Can't Be Late", NSDI 2024): for `Spot.trace` of a scenario's pool.

JSON: `metadata.gap_seconds` between ticks, `data` with the instances at each: those held (preemption traces), or 1 where one could be
launched then (availability traces). The two say different things: do not mix them in one scenario.
"""

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from shared.core.errors import LegatoError

ORIGIN = "https://github.com/skypilot-org/spot-traces"


class Metadata(msgspec.Struct, frozen=True):
    gap_seconds: Annotated[float, Meta(gt=0)]


class Ticks(msgspec.Struct, frozen=True):
    metadata: Metadata
    data: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1, max_length=10_000_000)]


def spot_capacity(path: Path) -> list[tuple[float, float]]:
    """From when on there is which share of the most that there ever was: (seconds, 0 to 1), the first at 0, then one for each change.
    Raises LegatoError if the file is not there, or is no such trace."""
    try:
        ticks = msgspec.json.decode(path.read_bytes(), type=Ticks)
    except OSError as error:
        raise LegatoError(f"cannot read {path}: {error.strerror}; there are such traces at {ORIGIN}") from error
    except msgspec.DecodeError as error:
        raise LegatoError(f"{path} is no trace of spot capacity: {error}") from error
    most = max(ticks.data) or 1
    changes: list[tuple[float, float]] = []
    for tick, instances in enumerate(ticks.data):
        if not changes or changes[-1][1] != instances / most:
            changes.append((tick * ticks.metadata.gap_seconds, instances / most))
    return changes
