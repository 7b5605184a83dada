"""Turns the history of a figure into the points of a drawing: ticks, lines with gaps, a table.

A history is `{"unit", "step_s", "from_ms", "lines": [{"name", "points": [number or null, ...]}]}`.
Its first point is of `from_ms`, and each later one of `step_s` seconds after the one before. A null
is a gap, never a zero. Places are in units of the drawing, which is 600 wide and 180 high.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from gateway.http.pages import Json

WIDTH: Final = 600
HEIGHT: Final = 180
LEFT: Final = 84
RIGHT: Final = 12
TOP: Final = 10
BOTTOM: Final = 26
LINES_MAX: Final = 6  # that a reader tells apart; a history may have more
_COLUMNS_MAX: Final = 400  # of points: more of them than the drawing has pixels for
_TICKS: Final = 4
_ROWS_MAX: Final = 30
_HOUR_MS: Final = 3_600_000
_DAY_S: Final = 86_400
_DAYS_MIN: Final = 2.0
_STEPS_MS: Final = tuple(
    minutes * 60_000 for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1_440)
)
_NICE: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
_POWERS: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi")
_THOUSANDS: Final = ("", "k", "M", "G", "T", "P")

Point = float | None


class Tick(NamedTuple):
    """A mark on an axis: its place in the drawing, and its words."""

    at: float
    words: str


class Line(NamedTuple):
    """A line of a plot: runs of points between gaps, and points that are alone."""

    name: str
    runs: list[str]
    """Each is what the attribute `points` of a polyline holds."""
    dots: list[tuple[float, float]]


class Row(NamedTuple):
    """A row of the table: when it begins, and the mean of each line. None has no point."""

    at_ms: float
    means: list[Point]


class Plot(NamedTuple):
    """A drawing, and its table. Without a point anywhere it has no lines."""

    unit: str
    lines: list[Line]
    more: int
    """How many further lines the history has."""
    across: list[Tick]
    up: list[Tick]
    summary: str
    rows: list[Row]
    row_ms: float


def plot_of(history: Json) -> Plot:
    """Return the drawing of a history. Raises KeyError or TypeError if it is none."""
    unit = str(history["unit"])
    from_ms, step_ms = float(history["from_ms"]), float(history["step_s"]) * 1_000
    given = history["lines"][:LINES_MAX]
    names = [str(each["name"]) for each in given]
    series = [[_known(point) for point in each["points"]] for each in given]
    known = [point for points in series for point in points if point is not None]
    count = max((len(points) for points in series), default=0)
    if not known:
        return Plot(unit, [], 0, [], [], "no data yet", [], step_ms)
    ticks = nice_ticks(max(known), binary=is_bytes(unit), whole=unit.endswith("records"))
    top = ticks[-1]
    rows, row_ms = _table(series, from_ms, step_ms, count)
    return Plot(
        unit=unit,
        lines=[_line(name, points, count, top) for name, points in zip(names, series, strict=True)],
        more=len(history["lines"]) - len(given),
        across=_times(from_ms, from_ms + step_ms * max(1, count - 1)),
        up=[Tick(_y(tick, top), value_text(tick, unit)) for tick in ticks],
        summary=_summary(names, series, unit),
        rows=rows,
        row_ms=row_ms,
    )


def is_bytes(unit: str) -> bool:
    """Return whether a unit counts bytes, so that its steps are powers of two."""
    return unit.lower().startswith("byte") or unit in ("B", "B/s")


def nice_ticks(highest: float, *, binary: bool = False, whole: bool = False) -> list[float]:
    """Return ticks from 0 to at least `highest`, at steps of 1, 2, 2.5 or 5 times a power.

    The power is one of ten, or if `binary` one of 1,024 times a power of two. If `whole`, no step
    is below 1. There are 3 to 6 ticks.
    """
    wanted = (highest if highest > 1e-9 else 1.0) / _TICKS
    if binary:
        step = 2.0 ** math.ceil(math.log2(wanted))
    else:
        power = 10.0 ** math.floor(math.log10(wanted))
        step = next(nice * power for nice in _NICE if nice * power >= wanted * (1 - 1e-9))
    step = max(step, 1.0) if whole or binary else step
    count = max(2, math.ceil(highest / step * (1 - 1e-9)))
    return [step * each for each in range(count + 1)]


def value_text(value: Point, unit: str) -> str:
    """Return a value with its unit, as `1.5 MiB/s`, `20 ms`, `4 d` or `3 k/s`."""
    if value is None:
        return "–"
    if is_bytes(unit):
        rest = "/s" if unit.endswith("/s") else ""
        number, power = _scaled(value, 1024.0, _POWERS)
        return f"{number} {power}B{rest}"
    if unit == "ms" and value >= 1_000:
        return value_text(value / 1_000, "s")
    if unit in ("ms", "s"):
        days = value / _DAY_S
        long = unit == "s" and days >= _DAYS_MIN  # which an axis has no room for
        return f"{_digits(days)} d" if long else f"{_digits(value)} {unit}"
    number, power = _scaled(value, 1000.0, _THOUSANDS)
    space = " " if power or unit else ""
    return f"{number}{space}{power}{'/s' if unit.endswith('/s') else ''}".rstrip()


def _scaled(value: float, base: float, powers: Sequence[str]) -> tuple[str, str]:
    power = 0
    while abs(value) >= base and power < len(powers) - 1:
        value /= base
        power += 1
    return _digits(value), powers[power]


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _known(point: object) -> Point:
    if isinstance(point, int | float) and math.isfinite(point):
        return max(0.0, float(point))
    return None


def _x(index: float, count: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (index / max(1, count - 1))


def _y(value: float, top: float) -> float:
    return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value / top), 1)


def _line(name: str, points: Sequence[Point], count: int, top: float) -> Line:
    runs: list[str] = []
    dots: list[tuple[float, float]] = []
    run: list[tuple[float, float]] = []
    for index, value in [*thin(points), (count, None)]:
        if value is not None:
            run.append((round(_x(index, count), 1), _y(value, top)))
            continue
        if len(run) == 1:
            dots += run
        elif run:
            runs.append(" ".join(f"{x:g},{y:g}" for x, y in run))
        run = []
    return Line(name, runs, dots)


def thin(points: Sequence[Point]) -> list[tuple[int, Point]]:
    """Return at most two points, the lowest and the highest, of each column of the drawing.

    So a peak stays visible, however many points there are. A column without a point is a gap.
    """
    width = max(1, math.ceil(len(points) / _COLUMNS_MAX))
    if width == 1:
        return list(enumerate(points))
    found: list[tuple[int, Point]] = []
    for first in range(0, len(points), width):
        column = [
            (value, index)
            for index, value in enumerate(points[first : first + width], first)
            if value is not None
        ]
        if not column:
            found.append((first, None))
            continue
        ends = {min(column)[1], max(column)[1]}
        found += [(index, points[index]) for index in sorted(ends)]
    return found


def _times(from_ms: float, to_ms: float) -> list[Tick]:
    step = next(
        (each for each in _STEPS_MS if (to_ms - from_ms) / each <= _TICKS + 2), _STEPS_MS[-1]
    )
    first = math.ceil(from_ms / step) * step
    found: list[Tick] = []
    for at_ms in range(int(first), int(to_ms) + 1, step):
        along = (at_ms - from_ms) / (to_ms - from_ms)
        at = LEFT + (WIDTH - LEFT - RIGHT) * along
        found.append(Tick(round(at, 1), clock(at_ms)))
    return found


def clock(at_ms: float) -> str:
    """Return the time of a day in UTC, as `14:05`."""
    return f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%H:%M}"


def _summary(names: Sequence[str], series: Sequence[Sequence[Point]], unit: str) -> str:
    parts: list[str] = []
    for name, points in zip(names, series, strict=True):
        known = [point for point in points if point is not None]
        if not known:
            parts.append(f"{name}: no data")
            continue
        last = f"last {value_text(known[-1], unit)}" if points[-1] is not None else "none now"
        lowest, highest = value_text(min(known), unit), value_text(max(known), unit)
        parts.append(f"{name}: {last}, lowest {lowest}, highest {highest}")
    return "; ".join(parts)


def _table(
    series: Sequence[Sequence[Point]], from_ms: float, step_ms: float, count: int
) -> tuple[list[Row], float]:
    width = max(1, math.ceil(count / _ROWS_MAX))
    rows: list[Row] = []
    for first in range(0, count, width):
        means: list[Point] = []
        for points in series:
            known = [point for point in points[first : first + width] if point is not None]
            means.append(sum(known) / len(known) if known else None)
        rows.append(Row(from_ms + first * step_ms, means))
    return rows[::-1], width * step_ms
