"""Placement "least_loaded": the worker with the fewest steps.

Rule: the fewest steps that run or wait on the worker; among equals, the first by id.
Inputs: steps on each worker with room: placed by us, or reported beyond that. Constants: none.
Source: least outstanding requests, as in most load balancers (`leastconn` of HAProxy, `least_conn` of nginx).
"""

from services.scheduler.candidate import Candidate


def least_loaded(candidates: list[Candidate]) -> Candidate:
    """`candidates`: at least one."""
    return min(candidates, key=lambda each: (each.load.busy, each.load.id))
