"""Rule: of the cells that may take a step, the one where it would start soonest.

Cells that report come before cells that do not, or that report no live worker. Among them the shortest predicted wait, as their schedulers
report it, decides; among equals, as between cells with free slots, the least occupied one. Steps routed since a report count as occupying
already: otherwise all would go to the same cell until its next report. Last, the id.
"""

from services.router.config import RouterConfig
from services.router.state import State, route
from shared.contracts.ids import CellId, ModelName
from shared.core.catalogue import Cell, fresh_load

MS = 1_000_000
Rank = tuple[bool, int, float, CellId]


def choose(state: State, model: ModelName, cells: list[CellId], now_ns: int, config: RouterConfig) -> CellId:
    """The best of `cells`, of which there is at least one."""
    if len(cells) == 1:
        return cells[0]
    known = state.fleet.models[model].cells

    def rank(cell: CellId) -> Rank:
        return _rank(cell, known[cell], route(state, model, cell).routed, fresh_ns=config.report_fresh_ms * MS, now_ns=now_ns)

    return min(cells, key=rank)


def _rank(cell: CellId, known: Cell, routed: int, *, fresh_ns: int, now_ns: int) -> Rank:
    load = fresh_load(known, now_ns, fresh_ns)
    if load is None or not load.workers:
        return True, 0, float(routed), cell
    return False, load.drain_ms, (load.depth + load.running + routed) / max(1, load.slots), cell
