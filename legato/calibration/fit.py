"""Fitting efficiencies to points: least absolute relative errors, held near what is known of engines alike.

Three levels, each fitted with the one above as its prior: all points; each engine (vLLM, SGLang, TensorRT-LLM); each engine on each GPU.
So a GPU with few points, or none, takes the engine's constants, and no cell drifts far for little gain. Unknowns are the logarithms of
all constants (they stay positive, and errors count as ratios). Solved by scipy's least_squares with a robust loss.
Source: Gelman and Hill, "Data analysis using regression and multilevel models", 2007, for the levels; Huber, "Robust statistics", 1981.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from scipy.optimize import least_squares

from legato.calibration.loop import CONTEXT, NEW, PAIRS, PER_TOKEN, REQUESTS, TO_FIRST, TOKENS_GRAIN, Array
from legato.calibration.points import Loop, Point
from shared.core.engine_law import Demand, Efficiency, Front, law_of
from shared.core.shipped_laws import Fitted
from shared.core.step_law import StepLaw, products_s

NAMES = (*Efficiency.__struct_fields__, *Front.__struct_fields__)
START: Array = np.log(
    [*(getattr(Efficiency(), n) for n in Efficiency.__struct_fields__), *(getattr(Front(), n) for n in Front.__struct_fields__)]
)

FIRST_WEIGHT = 0.7  # of errors of TTFT, against those of TPOT
ROUNDING = 0.02  # errors far below this count by their square
STIFF_START, STIFF_ENGINE, STIFF_GPU = 3.0, 20.0, 40.0  # per squared logarithm: as that many points that are off by 100%
FRONT_LOOSE = 0.1  # of STIFF_ENGINE: what surrounds an engine is its own
EVALUATIONS = 30  # of a fit at most, not counting those for slopes
TOLERANCE = 1e-4
OF_PRODUCTS = [NAMES.index(name) for name in ("bf16", "fp8", "fp4", "experts", "weights", "expert_weights", "expert_spread")]
PRODUCTS_KEPT = 10  # of the last constants that were tried
FRONT = np.array([name in Front.__struct_fields__ for name in NAMES])

Constants = dict[tuple[str, str], Array]  # by (engine, GPU); ("", "") of all, (engine, "") of an engine


class Measured(Protocol):
    """What constants are fitted to."""

    measured: Array  # logarithms of seconds
    weights: Array  # of their errors

    def predict(self, constants: Array) -> Array:
        """Logarithms of what should have been measured."""


class Cell:
    """Some points with their schedules, ready to be predicted together."""

    def __init__(self, points: Sequence[Point], schedules: Mapping[Loop, Array]) -> None:
        tables = [schedules[point.loop] for point in points]
        self.size = len(points)
        self._work = {weight: np.array([_work(table, weight) for table in tables]).T for weight in (TO_FIRST, PER_TOKEN)}
        merged = {loop: _by_tokens(schedules[loop]) for loop in {point.loop for point in points}}
        rows = [merged[point.loop] for point in points]
        self._of = np.repeat(np.arange(self.size), [len(table) for table in rows])
        self._new, self._first, self._token = np.concatenate(rows).T
        self._products: dict[tuple[float, ...], tuple[Array, Array]] = {}
        columns: dict[str, Any] = {name: self._column(points, name) for name in Demand.__struct_fields__}
        self._demand = Demand(**columns)
        self._prompts = np.array([(1 + p.loop.shortest) / 2 * p.loop.prompt_tokens for p in points])
        self._poll = np.array([float(p.poll_steps) for p in points])
        self._stream = np.array([float(p.stream_steps) for p in points])
        self.measured: Array = np.log([*(p.first_s for p in points), *(p.token_s for p in points)])
        self.weights = np.repeat([FIRST_WEIGHT, 1.0], self.size)

    @staticmethod
    def _column(points: Sequence[Point], name: str) -> Array:
        return np.array([float(getattr(point.demand, name)) for point in points])

    def predict(self, constants: Array) -> Array:
        """Logarithms of mean TTFT of all points, then of mean TPOT, in seconds."""
        efficiency, front = split(constants)
        law = law_of(self._demand, efficiency)
        of_first, of_token = self._products_of(law, constants)
        waiting, token = of_first + self._linear(law, TO_FIRST), of_token + self._linear(law, PER_TOKEN)
        steps = front.first_steps + front.poll_steps * self._poll + front.stream_steps * self._stream
        first = waiting + steps * token + front.first_s + front.prompt_token_s * self._prompts
        both: Array = np.log(np.concatenate([first, token]))
        return both

    def _linear(self, law: StepLaw, weight: int) -> Array:
        """What of the iterations is linear in their work, summed up for each point: everything but the products."""
        pairs, context, new, requests, iterations = self._work[weight]
        linear: Array = law.pair_s * pairs + law.context_s * context + law.extra_token_s * new
        linear += law.request_s * requests + law.overhead_s * iterations
        return linear

    def _products_of(self, law: StepLaw, constants: Array) -> tuple[Array, Array]:
        """The products' part of mean TTFT and TPOT. Most constants are none of products: the last results are kept."""
        key = tuple(constants[OF_PRODUCTS])
        if key not in self._products:
            if len(self._products) == PRODUCTS_KEPT:
                del self._products[next(iter(self._products))]
            per_step: dict[str, Any] = {name: self._spread(getattr(law, name)) for name in StepLaw.__struct_fields__}
            durations: Any = products_s(StepLaw(**per_step), self._new)
            self._products[key] = self._sum(durations * self._first), self._sum(durations * self._token)
        return self._products[key]

    def _sum(self, values: Array) -> Array:
        """Of each point's iterations."""
        summed: Array = np.bincount(self._of, values, minlength=self.size).astype(np.float64)
        return summed

    def _spread(self, value: Any) -> Any:
        return value[self._of] if isinstance(value, np.ndarray) else value


def _work(table: Array, weight: int) -> Array:
    """What a schedule's iterations compute, weighted: pairs, context, new tokens, requests, and the iterations themselves."""
    work: Array = np.append(table[:, weight] @ table[:, [PAIRS, CONTEXT, NEW, REQUESTS]], np.sum(table[:, weight]))
    return work


def _by_tokens(table: Array) -> Array:
    """A schedule as far as products depend on it: new tokens, merged as in the schedule, and both weights."""
    _, group = np.unique(np.round(np.log(table[:, NEW]) / TOKENS_GRAIN), return_inverse=True)
    weights = table[:, TO_FIRST] + table[:, PER_TOKEN] + 1e-12
    tokens = np.bincount(group, table[:, NEW] * weights) / np.bincount(group, weights)
    return np.column_stack([tokens, np.bincount(group, table[:, TO_FIRST]), np.bincount(group, table[:, PER_TOKEN])])


def split(constants: Array) -> tuple[Efficiency, Front]:
    """The two structs of a vector of logarithms."""
    values = dict(zip(NAMES, np.exp(constants).tolist(), strict=True))
    efficiency = {name: values[name] for name in Efficiency.__struct_fields__}
    return Efficiency(**efficiency), Front(**{name: values[name] for name in Front.__struct_fields__})


def train(points: Sequence[Point], schedules: Mapping[Loop, Array]) -> Constants:
    """Constants of all levels, from nothing but the points."""
    top = solve(Cell(points, schedules), START, np.full(len(NAMES), STIFF_START))
    found: Constants = {("", ""): top}
    for engine in sorted({point.engine for point in points}):
        own = [point for point in points if point.engine == engine]
        stiff = np.where(FRONT, STIFF_ENGINE * FRONT_LOOSE, STIFF_ENGINE)
        middle = solve(Cell(own, schedules), top, stiff)
        found[engine, ""] = middle
        for gpu in sorted({point.gpu for point in own}):
            there = [point for point in own if point.gpu == gpu]
            found[engine, gpu] = solve(Cell(there, schedules), middle, np.full(len(NAMES), STIFF_GPU))
    return found


def constants_for(found: Constants, engine: str, gpu: str) -> Array:
    """The closest level that was fitted."""
    return next(found[key] for key in ((engine, gpu), (engine, ""), ("", "")) if key in found)


def predict(points: Sequence[Point], schedules: Mapping[Loop, Array], found: Constants) -> Array:
    """Ratios of predicted to measured: a row (TTFT, TPOT) for each point."""
    ratios = np.empty((len(points), 2))
    for engine, gpu in sorted({(point.engine, point.gpu) for point in points}):
        rows = [row for row, point in enumerate(points) if (point.engine, point.gpu) == (engine, gpu)]
        cell = Cell([points[row] for row in rows], schedules)
        ratios[rows] = np.exp(cell.predict(constants_for(found, engine, gpu)) - cell.measured).reshape(2, -1).T
    return ratios


def fitted_of(constants: Array, points: int) -> Fitted:
    """A vector as the struct that is shipped."""
    efficiency, front = split(constants)
    return Fitted(efficiency=efficiency, front=front, points=points)


def solve(cell: Measured, prior: Array, stiff: Array) -> Array:
    """Constants with the least sum of absolute weighted errors, rounded below ROUNDING, plus `stiff` times squared distances to `prior`."""
    held = np.sqrt(2 * ROUNDING * stiff)
    measured = len(cell.measured)

    def residuals(x: Array) -> Array:
        return np.concatenate([(cell.predict(x) - cell.measured) * cell.weights, held * (x - prior)])

    def loss(z: Array) -> Array:
        """scipy's soft_l1 of the errors, and the square of the distances: rho and its first two derivatives."""
        rho = np.vstack([z, np.ones_like(z), np.zeros_like(z)])
        root = np.sqrt(1 + z[:measured])
        rho[:, :measured] = 2 * (root - 1), 1 / root, -0.5 / root**3
        return rho

    found = least_squares(residuals, prior, loss=loss, f_scale=ROUNDING, ftol=TOLERANCE, max_nfev=EVALUATIONS, diff_step=1e-4)
    best: Array = found.x
    return best
