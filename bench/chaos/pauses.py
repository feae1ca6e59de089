"""What readers saw of each blow: the longest silence within a stream that was on a struck worker, or that ran while a service or a server
was struck. Pure.

A stream was on the worker of the attempt that it had heard last before the blow. From then on the longest gap between two outputs counts,
up to the first output of another attempt, or, where the attempt went on after a pause of its worker, to the first one after the pause; for
services and servers, of the gaps that begin within AFTERMATH_NS. Where another blow fell into the gap, or shortly before it, that may have
made it longer (on nats-server, the scheduler, or a worker of the stream), it is counted apart: nobody knows which of them it came from.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from bench.chaos.plan import Way
from bench.chaos.readers import Heard
from bench.chaos.strikes import Struck
from shared.contracts.ids import StepId

ON_THE_WAY = ("nats", "scheduler-0")  # of a running stream, and of one that is to go on elsewhere
AFTERMATH_NS = 2_000_000_000  # after a service or a server was struck, or its pause was over

Attempts = Mapping[tuple[StepId, int], str]  # the worker of each attempt


class Loss(StrEnum):
    """What was struck, as a reader sees it."""

    PLANNED = "its worker was asked to stop (SIGTERM)"
    UNPLANNED = "its worker was killed (SIGKILL)"
    PAUSED = "its worker stopped for a while (SIGSTOP)"
    SERVER = "nats-server was struck"
    OTHER = "another service or Postgres was struck"


class Pause(msgspec.Struct, frozen=True):
    """What one reader saw of one blow. `mixed`: another blow fell into the silence. Times: monotonic, ns."""

    loss: Loss
    step: StepId
    begin_ns: int
    end_ns: int
    mixed: bool

    @property
    def ms(self) -> float:
        return (self.end_ns - self.begin_ns) / 1e6


def loss_of(struck: Struck) -> Loss:
    if not struck.blow.on_worker:
        return Loss.SERVER if struck.blow.victim == "nats" else Loss.OTHER
    return {Way.STOP: Loss.PLANNED, Way.KILL: Loss.UNPLANNED, Way.PAUSE: Loss.PAUSED}[struck.blow.way]


def pauses(streams: Mapping[StepId, Sequence[Heard]], attempts: Attempts, struck: Sequence[Struck]) -> list[Pause]:
    """One for each blow and each reader that it concerned."""
    fallen = [each for each in struck if not each.missed]
    found: list[Pause] = []
    for step, heard in streams.items():
        times = [each.at_ns for each in heard]
        hosts = {attempts.get((step, each.attempt), "") for each in heard}
        close = [each for each in fallen if each.blow.victim in hosts or each.blow.victim in ON_THE_WAY]
        for each in fallen:
            index = bisect_right(times, each.at_ns) - 1
            if index < 0 or index == len(heard) - 1:
                continue  # it had not begun, or had ended
            if each.blow.on_worker and attempts.get((step, heard[index].attempt)) != each.blow.victim:
                continue
            begin, end = _silence(heard, index, each)
            mixed = any(other is not each and begin - AFTERMATH_NS <= other.until_ns and other.at_ns <= end for other in close)
            found.append(Pause(loss_of(each), step, begin, end, mixed))
    return found


def _silence(heard: Sequence[Heard], index: int, struck: Struck) -> tuple[int, int]:
    """The longest gap from the blow on, in which the blow is to be seen."""
    longest = (0, 0)
    for before, after in zip(heard[index:], heard[index + 1 :], strict=False):
        if before.at_ns > struck.until_ns and _is_over(before, heard[index], struck):
            break
        if after.at_ns - before.at_ns > longest[1] - longest[0]:
            longest = (before.at_ns, after.at_ns)
    return longest


def _is_over(now: Heard, then: Heard, struck: Struck) -> bool:
    """Whether a gap that begins now can no longer come from the blow. What is under way when it falls still arrives."""
    if not struck.blow.on_worker:
        return now.at_ns > struck.until_ns + AFTERMATH_NS
    return now.attempt != then.attempt or struck.blow.way is Way.PAUSE
