"""What an attempt cost whose worker never said it: lost with its worker, or given up while that was away.

Rule: it pays for its share of its worker's time, as the worker's own meter would have had it (services/worker/meter.py), as far as the
record tells:
    share_s = the sum, over all moments from its dispatch until it was given up, of dt / n(t)
    n(t)    = the attempts that the record has on that worker at t, itself among them
    gpu_s   = share_s x the worker's GPUs;  usd = share_s x the worker's usd_per_hour / 3600
Inputs: times of dispatch and end of the worker's attempts in the record; the hardware by the worker's last registration. An attempt was
given up when the next one of its step was dispatched, or when the step was settled.
Constants: none. Source: generalised processor sharing, as the meter.

Limits: the worker was dead for a while before that was noticed (a fraction of a second to its lease of 3 s), and is paid for that long.
What others did on the worker is known by dispatch and report, a few milliseconds around what its meter counts. One that was to be relieved
and was lost before is paid only until the dispatch of its successor. Tokens are not estimated.
"""

from collections.abc import Iterable
from itertools import pairwise

import msgspec

from shared.contracts.fleet import Hardware


class Span(msgspec.Struct, frozen=True, array_like=True):
    """When an attempt was on its worker. Unix, nanoseconds."""

    start_ns: int
    end_ns: int


def share_s(lost: Span, all_there: Iterable[Span]) -> float:
    """Seconds of the worker's time. `all_there`: the worker's attempts, `lost` among them; those at other times do not matter."""
    if lost.end_ns <= lost.start_ns:  # by clocks that differ
        return 0.0
    changes: dict[int, int] = {lost.start_ns: 0, lost.end_ns: 0}
    for span in all_there:
        start, end = max(span.start_ns, lost.start_ns), min(span.end_ns, lost.end_ns)
        if start < end:
            changes[start] = changes.get(start, 0) + 1
            changes[end] = changes.get(end, 0) - 1
    share_ns, running = 0.0, 0
    for moment, following in pairwise(sorted(changes)):
        running += changes[moment]
        share_ns += (following - moment) / max(1, running)
    return share_ns / 1e9


def cost(share: float, hardware: Hardware) -> tuple[float, float]:
    """GPU seconds and dollars of so many seconds of the worker."""
    return share * hardware.count, share * hardware.usd_per_hour / 3600
