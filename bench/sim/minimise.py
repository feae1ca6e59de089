"""Makes the plan of a world that breaks something shorter: what is left out without mending it stays out."""

from collections.abc import Callable, Iterator

import msgspec

from bench.sim.plan import Plan

TRIES_MAX = 300

replace = msgspec.structs.replace


def minimised(plan: Plan, breaks: Callable[[Plan], bool], tries: int = TRIES_MAX) -> Plan:
    """The shortest plan that was found within so many tries, and `breaks` still."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in _shorter(plan):
            if tries <= 0:
                return plan
            tries -= 1
            if breaks(candidate):
                plan, smaller = candidate, True
                break
    return plan


def _shorter(plan: Plan) -> Iterator[Plan]:
    """Plans with less in them, those that lack much first."""
    for size in (len(plan.faults) // 2, 1):
        for start in range(0, len(plan.faults), size) if size else ():
            yield replace(plan, faults=plan.faults[:start] + plan.faults[start + size :])
    for index in range(len(plan.programs)):
        if len(plan.programs) > 1:
            yield replace(plan, programs=plan.programs[:index] + plan.programs[index + 1 :])
    for index, program in enumerate(plan.programs):
        for drop in range(len(program.asks)):
            if len(program.asks) > 1:
                asks = program.asks[:drop] + program.asks[drop + 1 :]
                yield replace(plan, programs=[*plan.programs[:index], replace(program, asks=asks), *plan.programs[index + 1 :]])
    if plan.loss:
        yield replace(plan, loss=0.0)
    if plan.latency_ms > 0.2:
        yield replace(plan, latency_ms=0.2)
