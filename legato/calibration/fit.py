"""Fitting efficiencies to points: least absolute relative errors, held near what is known of engines alike.

Three levels, each fitted with the one above as its prior: all points; each engine (vLLM, SGLang, TensorRT-LLM); each engine on each GPU.
So a GPU with few points, or none, takes the engine's constants, and no cell drifts far for little gain. Unknowns are the logarithms of
all constants (they stay positive, and errors count as ratios). Solved by Levenberg and Marquardt's method with iterated weights.
Source: Gelman and Hill, "Data analysis using regression and multilevel models", 2007, for the levels; Huber, "Robust statistics", 1981.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from legato.calibration.loop import CONTEXT, NEW, PAIRS, PER_TOKEN, REQUESTS, TO_FIRST, Array
from legato.calibration.points import Loop, Point
from shared.core.engine_law import Demand, Efficiency, Front, law_of
from shared.core.shipped_laws import Fitted
from shared.core.step_law import StepLaw, step_s

NAMES = (*Efficiency.__struct_fields__, *Front.__struct_fields__)
START: Array = np.log(
    [*(getattr(Efficiency(), n) for n in Efficiency.__struct_fields__), *(getattr(Front(), n) for n in Front.__struct_fields__)]
)

FIRST_WEIGHT = 0.7  # of errors of TTFT, against those of TPOT
ROUNDING = 0.05  # errors far below this count by their square
STIFF_START, STIFF_ENGINE, STIFF_GPU = 3.0, 20.0, 40.0  # per squared logarithm: as that many points that are off by 100%
FRONT_LOOSE = 0.1  # of STIFF_ENGINE: what surrounds an engine is its own
ITERATIONS = 12
TOLERANCE = 5e-4
FRONT = np.array([name in Front.__struct_fields__ for name in NAMES])

Constants = dict[tuple[str, str], Array]  # by (engine, GPU); ("", "") of all, (engine, "") of an engine


class Cell:
    """Some points with their schedules, ready to be predicted together."""

    def __init__(self, points: Sequence[Point], schedules: Mapping[Loop, Array]) -> None:
        tables = [schedules[point.loop] for point in points]
        self.size = len(points)
        self._of = np.repeat(np.arange(self.size), [len(table) for table in tables])
        self._steps = np.concatenate(tables) if tables else np.empty((0, 6))
        columns: dict[str, Any] = {name: self._column(points, name) for name in Demand.__struct_fields__}
        self._demand = Demand(**columns)
        self._prompts = np.array([(1 + p.loop.shortest) / 2 * p.loop.prompt_tokens for p in points])
        self._poll = np.array([float(p.poll_steps) for p in points])
        self._stream = np.array([float(p.stream_steps) for p in points])
        self.measured: Array = np.log([*(p.first_s for p in points), *(p.token_s for p in points)])

    @staticmethod
    def _column(points: Sequence[Point], name: str) -> Array:
        return np.array([float(getattr(point.demand, name)) for point in points])

    def predict(self, constants: Array) -> Array:
        """Logarithms of mean TTFT of all points, then of mean TPOT, in seconds."""
        efficiency, front = split(constants)
        law = law_of(self._demand, efficiency)
        per_step: dict[str, Any] = {name: self._spread(getattr(law, name)) for name in StepLaw.__struct_fields__}
        columns: list[Any] = [self._steps[:, column] for column in (NEW, CONTEXT, PAIRS, REQUESTS)]
        durations = step_s(StepLaw(**per_step), *columns)
        token = np.bincount(self._of, durations * self._steps[:, PER_TOKEN], minlength=self.size)
        waiting = np.bincount(self._of, durations * self._steps[:, TO_FIRST], minlength=self.size)
        steps = front.first_steps + front.poll_steps * self._poll + front.stream_steps * self._stream
        first = waiting + steps * token + front.first_s + front.prompt_token_s * self._prompts
        both: Array = np.log(np.concatenate([first, token]))
        return both

    def _spread(self, value: Any) -> Any:
        return value[self._of] if isinstance(value, np.ndarray) else value


def split(constants: Array) -> tuple[Efficiency, Front]:
    """The two structs of a vector of logarithms."""
    values = dict(zip(NAMES, np.exp(constants).tolist(), strict=True))
    efficiency = {name: values[name] for name in Efficiency.__struct_fields__}
    return Efficiency(**efficiency), Front(**{name: values[name] for name in Front.__struct_fields__})


def train(points: Sequence[Point], schedules: Mapping[Loop, Array]) -> Constants:
    """Constants of all levels, from nothing but the points."""
    top = _solve(Cell(points, schedules), START, np.full(len(NAMES), STIFF_START))
    found: Constants = {("", ""): top}
    for engine in sorted({point.engine for point in points}):
        own = [point for point in points if point.engine == engine]
        stiff = np.where(FRONT, STIFF_ENGINE * FRONT_LOOSE, STIFF_ENGINE)
        middle = _solve(Cell(own, schedules), top, stiff)
        found[engine, ""] = middle
        for gpu in sorted({point.gpu for point in own}):
            there = [point for point in own if point.gpu == gpu]
            found[engine, gpu] = _solve(Cell(there, schedules), middle, np.full(len(NAMES), STIFF_GPU))
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


def _solve(cell: Cell, prior: Array, stiff: Array) -> Array:
    weights = np.concatenate([np.full(cell.size, FIRST_WEIGHT), np.ones(cell.size)])

    def residuals(x: Array) -> Array:
        weighted: Array = (cell.predict(x) - cell.measured) * weights
        return weighted

    def cost(r: Array, x: Array) -> float:
        return float(np.sum(np.sqrt(r * r + ROUNDING * ROUNDING)) + np.sum(stiff * (x - prior) ** 2))

    x = prior.copy()
    r = residuals(x)
    best, damping = cost(r, x), 1e-2
    for _ in range(ITERATIONS):
        slopes = np.column_stack([(residuals(x + step) - r) / 1e-3 for step in np.eye(len(x)) * 1e-3])
        counts = 1 / np.sqrt(r * r + ROUNDING * ROUNDING)
        curvature = slopes.T @ (slopes * counts[:, None]) + 2 * np.diag(stiff)
        downhill = -(slopes.T @ (counts * r) + 2 * stiff * (x - prior))
        while damping < 1e5:
            move = np.clip(np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), downhill), -1, 1)
            tried = residuals(x + move)
            reached = cost(tried, x + move)
            if reached < best:
                break
            damping *= 5
        else:
            return x
        gained, x, r, best, damping = best - reached, x + move, tried, reached, max(damping / 4, 1e-6)
        if gained < TOLERANCE * best:
            break
    return x
