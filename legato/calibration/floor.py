"""How well any model could do on the table: points that say the same of what ran, and measured different times.

Twins are points of the same model, GPU, engine, precision, layout, lengths and clients (all that a prediction is made of), either all or
none of them known to have run with drafts; copies of the same measurement count once. A model gives twins one number. The best that it
could learn from the others of a group is their middle (leave one out); the best in hindsight is the middle of all of them, the point itself
included. What any model can reach on such points lies between.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from legato.calibration.loop import Array
from legato.calibration.points import Point

COPY_DIGITS = 5  # of seconds. The table has one measurement up to four times: in full, another last digit, or rounded to 0.01 ms


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of absolute relative errors of points that have twins, (TTFT, TPOT) each."""

    group: str  # as "engine vllm"; "all"
    points: int  # that have twins, copies not counted
    of: int  # all points, copies not counted
    others: tuple[float, float]  # predicted by the geometric mean of the others of its group
    hindsight: tuple[float, float]  # by that of the whole group
    model_held_out: tuple[float, float]  # this model's, on the same points


def floors(points: Sequence[Point], held_out: Array) -> list[Floor]:
    """For all engines together, and each. `held_out`: ratios (TTFT, TPOT) of predicted to measured, a row for each point."""
    twins: defaultdict[Point, list[int]] = defaultdict(list)
    seen: set[Point] = set()
    for row, point in enumerate(points):
        measured = {name: round(getattr(point, name), COPY_DIGITS) for name in ("first_s", "token_s")}
        measurement = msgspec.structs.replace(point, **measured)
        if measurement not in seen:
            seen.add(measurement)
            twins[msgspec.structs.replace(point, first_s=0.0, token_s=0.0)].append(row)
    found = [_floor("all", points, twins.values(), held_out)]
    for engine in sorted({point.engine for point in points}):
        own = [rows for point, rows in twins.items() if point.engine == engine]
        found.append(_floor(f"engine {engine}", points, own, held_out))
    return found


def _floor(group: str, points: Sequence[Point], twins: Iterable[list[int]], held_out: Array) -> Floor:
    groups = list(twins)
    several = [rows for rows in groups if len(rows) > 1]
    others, hindsight = [np.empty((0, 2))], [np.empty((0, 2))]
    for rows in several:
        logs = np.log([(points[row].first_s, points[row].token_s) for row in rows])
        away = np.mean(logs, axis=0) - logs
        hindsight.append(away)
        others.append(away * len(rows) / (len(rows) - 1))  # the mean of the others is further away, by this much
    ratios = np.log(held_out[[row for rows in several for row in rows]]).reshape(-1, 2)
    return Floor(
        group=group,
        points=sum(map(len, several)),
        of=sum(map(len, groups)),
        others=_medians(np.concatenate(others)),
        hindsight=_medians(np.concatenate(hindsight)),
        model_held_out=_medians(ratios),
    )


def _medians(logs: Array) -> tuple[float, float]:
    if not len(logs):
        return 0.0, 0.0
    first, token = np.median(np.abs(np.expm1(logs)), axis=0).tolist()
    return first, token
