"""Rule: a step may go to a cell where a worker serves its model (or is loading it) and whose circuit for that model lets it pass.

The circuit is that of shared/core/breaker.py, per cell and model, fed by attempts that failed by no fault of the step.
"""

import msgspec

from services.router.config import RouterConfig
from services.router.state import State, route
from shared.contracts.ids import CellId, ModelName
from shared.contracts.outcomes import Problem, Reason
from shared.core import breaker
from shared.core.catalogue import is_served

MS = 1_000_000


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The cells that may take a step; when there is none, why."""

    cells: list[CellId]
    problem: Problem | None = None


def open_cells(state: State, model: ModelName, now_ns: int, config: RouterConfig) -> Choice:
    """In order of their ids."""
    known = state.fleet.models.get(model)
    cells = known.cells if known else {}
    served = sorted(cell for cell in cells if is_served(cells[cell], now_ns, config.worker_silent_ms * MS))
    if not served:
        problem = Problem(reason=Reason.NO_CAPACITY, message=f"no worker serves {model} now", retry_after_ms=config.retry_after_ms)
        return Choice(cells=[], problem=problem)
    waits = {cell: breaker.wait_ns(route(state, model, cell).breaker, now_ns, config.breaker) for cell in served}
    passing = [cell for cell in served if not waits[cell]]
    if passing:
        return Choice(cells=passing)
    message = f"{model} fails wherever it is served; it is left alone for a while"
    wait_ms = -(-min(waits.values()) // MS)
    return Choice(cells=[], problem=Problem(reason=Reason.CIRCUIT_OPEN, message=message, retry_after_ms=wait_ms))
