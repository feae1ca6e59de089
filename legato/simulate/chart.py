"""Line charts and ranges as inline SVG, coloured by the page's style sheet (`c0` to `c7`), so that they follow light and dark."""

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 26, 38  # around what is drawn
COLOURS = 8
ROW = 15  # height of a line of a range chart
RADII = (3.0, 4.0, 5.0)  # of its three points


class Axis(NamedTuple):
    """What it is called, how its numbers read, and whether its steps are powers. A logarithmic one leaves out what is not above 0."""

    label: str
    spelled: Callable[[float], str] = lambda value: f"{value:,.6g}"
    log: bool = False


class Line(NamedTuple):
    """Points from left to right; where `y` is None, the line has a gap."""

    label: str
    points: Sequence[tuple[float, float | None]]


class Range(NamedTuple):
    """Up to three values of one row, from the middle outwards; none: the row stays empty."""

    label: str
    values: Sequence[float]


def line_chart(title: str, lines: Sequence[Line], x: Axis, y: Axis) -> str:
    """Lines over one another, with a grid. Empty where there is nothing to draw."""
    points = [(across, up) for line in lines for across, up in line.points if up is not None and (across > 0 or not x.log)]
    if not points:
        return ""
    to_x, x_ticks = _scale([across for across, _ in points], x, LEFT, WIDTH - RIGHT)
    to_y, y_ticks = _scale([up for _, up in points] + [0.0] * (not y.log), y, HEIGHT - BOTTOM, TOP)
    drawn = [_grid(y, y_ticks, to_y, (LEFT, WIDTH - RIGHT), False), _grid(x, x_ticks, to_x, (HEIGHT - BOTTOM, TOP), True)]
    for index, line in enumerate(lines):
        for part in _parts(line.points, x.log):
            path = " ".join(f"{to_x(across):.1f},{to_y(up):.1f}" for across, up in part)
            drawn.append(f'<polyline class="{_colour(index)}" points="{path}"><title>{escape(line.label)}</title></polyline>')
    return _svg(title, HEIGHT, drawn)


def range_chart(title: str, ranges: Sequence[Range], x: Axis) -> str:
    """A row for each: a bar from the middle to the farthest, with a point at each value. Empty where there is nothing to draw."""
    values = [value for each in ranges for value in each.values if value > 0 or not x.log]
    if not values:
        return ""
    height = TOP + ROW * len(ranges) + BOTTOM
    to_x, ticks = _scale(values, x, LEFT, WIDTH - RIGHT)
    drawn = [_grid(x, ticks, to_x, (height - BOTTOM, TOP - 4), True)]
    for index, each in enumerate(ranges):
        if not each.values:
            continue
        up = TOP + ROW * (index + 0.5)
        places = [to_x(max(value, min(values))) for value in each.values]
        said = escape(f"{each.label}: {', '.join(x.spelled(value) for value in each.values)}")
        points = "".join(f'<circle cx="{place:.1f}" cy="{up:.1f}" r="{radius}"/>' for place, radius in zip(places, RADII, strict=False))
        bar = f'<line x1="{places[0]:.1f}" x2="{places[-1]:.1f}" y1="{up:.1f}" y2="{up:.1f}"/>'
        drawn.append(f'<g class="{_colour(index)}"><title>{said}</title>{bar}{points}</g>')
    return _svg(title, height, drawn)


def _svg(title: str, height: float, drawn: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
    return f'{head}<text class="title" x="{LEFT}" y="14">{escape(title)}</text>{"".join(drawn)}</svg>'


def _colour(index: int) -> str:
    """Behind the last colour they begin again, dashed."""
    return f"c{index % COLOURS}" + (" dashed" if index >= COLOURS else "")


def _parts(points: Sequence[tuple[float, float | None]], log: bool) -> list[list[tuple[float, float]]]:
    parts: list[list[tuple[float, float]]] = [[]]
    for across, up in points:
        if up is None:
            parts.append([])
        elif across > 0 or not log:
            parts[-1].append((across, up))
    return [part for part in parts if part]


def _grid(axis: Axis, ticks: Sequence[float], place: Callable[[float], float], ends: tuple[float, float], upright: bool) -> str:
    """Lines across, what they stand for, and the axis's name."""
    drawn = []
    for tick in ticks:
        at = place(tick)
        (x1, y1), (x2, y2) = ((at, ends[0]), (at, ends[1])) if upright else ((ends[0], at), (ends[1], at))
        drawn.append(f'<line class="grid" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')
        spot = (
            f'x="{at:.1f}" y="{ends[0] + 13:.1f}" text-anchor="middle"' if upright else f'x="{LEFT - 6}" y="{at + 3:.1f}" text-anchor="end"'
        )
        drawn.append(f"<text {spot}>{escape(axis.spelled(tick))}</text>")
    if upright:
        drawn.append(f'<text x="{WIDTH - RIGHT}" y="{ends[0] + 28:.1f}" text-anchor="end">{escape(axis.label)}</text>')
    else:
        drawn.append(f'<text x="{WIDTH - RIGHT}" y="14" text-anchor="end">{escape(axis.label)}</text>')
    return "".join(drawn)


def _scale(values: Sequence[float], axis: Axis, begin: float, end: float) -> tuple[Callable[[float], float], list[float]]:
    """From a value to its place, and the round values in between."""
    low, high = min(value for value in values if value > 0 or not axis.log), max(values)
    if low == high:
        low, high = (low / 2, high * 2) if axis.log else (low - 0.5 * (low != 0), high + 0.5)
    if axis.log:
        first, last = math.log10(low), math.log10(high)
        ticks = [value for value in _powers(low, high, dense=last - first < 2) if low <= value <= high]
        return lambda value: begin + (math.log10(value) - first) / (last - first) * (end - begin), ticks
    step = _round_step((high - low) / 5)
    ticks = [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return lambda value: begin + (value - low) / (high - low) * (end - begin), ticks


def _powers(low: float, high: float, dense: bool) -> list[float]:
    """1, 10, 100, …; and their double and fivefold where few of them fit."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [factor * 10.0**power for power in powers for factor in ((1, 2, 5) if dense else (1,))]


def _round_step(about: float) -> float:
    """1, 2 or 5 times a power of ten, at least `about`."""
    power = 10.0 ** math.floor(math.log10(about))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= about * 0.999)
