"""Which workers with room are worth a look, where the least predicted finish wins: a few, however many there are.

Of two workers of equal size and rates, the one that is busier, has more to compute before, or less of the prompt cached, finishes a step
later, if it is better in none of these; equals are told apart by id. So of each row of workers that are equally busy, which begins with the
one that has computed first, one that may have the step beats all behind it that hold no more of the prompt. The first that holds as much as
the rest do beats all behind it, and in busier rows all that have computed no earlier; all of them, where it has nothing left to compute.
The few that hold more than the rest are looked at one by one. Where few have enough free blocks at all, these are looked at, and no others.
"""

from services.scheduler.book import EVERYBODY, Step
from services.scheduler.load import Load, Room
from services.scheduler.placement import cached_tokens
from services.scheduler.policies.filter_failed import is_spared
from services.scheduler.policies.filter_fits import fits
from services.scheduler.policies.reserve import expected_output_tokens

DEEP_MAX = 16  # workers that hold more of a prompt than the rest


def narrowed(step: Step, room: Room, now_ns: int) -> list[Load]:
    """Some of the room's loads, the one with the least predicted finish among them; none where the step fits nowhere."""
    cached, others = step.cached or {}, step.cached_on(EVERYBODY)
    amounts = sorted(cached.values())
    tokens = step.job.prompt_tokens + expected_output_tokens(step.job)
    if not room.roomy(tokens - (amounts[-1] if amounts else 0)):
        return []
    deep = amounts[-DEEP_MAX - 1] if len(amounts) > DEEP_MAX else 0
    rest = max(deep, others)  # no more than DEEP_MAX hold more than this
    loads = room.loads
    found: list[Load] = []
    if amounts and amounts[-1] > rest:
        found = [loads[worker] for worker, held in cached.items() if held > rest and worker in loads]
    roomy = room.roomy(tokens - rest)
    if roomy <= len(room.rows):
        return found + room.roomiest(roomy)
    best: dict[tuple[float, ...], int] = {}  # when the best so far has computed what it has, by size and rates
    for alike in sorted(room.rows):
        size, most = alike[1:], -1  # what is cached on those of this row that may have the step
        for computed_ns, worker in room.rows[alike]:
            if size in best and max(computed_ns, now_ns) >= best[size]:
                break
            held = cached.get(worker, others)
            if held <= most or not _may_have(step, loads[worker], room.ready):
                continue
            found.append(loads[worker])
            most = held
            if held >= rest:
                best[size] = computed_ns
                break
    return found


def _may_have(step: Step, load: Load, ready: int) -> bool:
    return not is_spared(load, step, ready) and fits(step.job, load, cached_tokens(step, load))
