"""Which workers take steps now, and what room they have: kept in `State.fleet`, and here brought up to date with the facts and the time."""

from services.scheduler.book import State
from services.scheduler.load import Fleet
from services.scheduler.policies.filter_ready import is_ready


def refreshed(state: State, now_ns: int, lease_ns: int, waiting_max: int = 0) -> Fleet:
    """The fleet as a decision at `now_ns` begins. Costs what has changed since the last one."""
    fleet, heard = state.fleet, state.heard
    if (lease_ns, waiting_max) != (fleet.lease_ns, fleet.waiting_max):
        fleet.changed = dict.fromkeys([*fleet.changed, *state.workers])
        fleet.lease_ns, fleet.waiting_max = lease_ns, waiting_max
    else:
        for worker_id, heard_ns in heard.items():  # the longest silent first
            if now_ns - heard_ns < lease_ns:
                break
            counted = fleet.counted.get(worker_id)
            if counted is not None and counted.ready:
                fleet.changed[worker_id] = None
    for worker_id in fleet.changed:
        worker = state.workers.get(worker_id)
        if worker is None:
            fleet.drop(worker_id)
        else:
            heard_ns = heard[worker_id]
            fleet.count(worker, heard_ns, is_ready(worker, heard_ns, now_ns, lease_ns))
    fleet.changed.clear()
    return fleet
