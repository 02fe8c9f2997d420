"""Line charts and the map of embeddings as geometry: where every line, tick and dot lies, and the same in words.

The templates draw it as SVG, so that colours follow the theme of the page and text stays text.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from frontrank.data.table import ImageTable
from frontrank.evaluation.statistics import Floats
from frontrank.reporting.findings import Curve, Findings, Indices, ModelFindings
from frontrank.reporting.pages import fraction, number
from frontrank.tables import Table

HUES = 9  # looks "hue0", "hue1", ... of lines that are of equal rank
_POINTS = 400  # of a line; more could not be seen on a screen
_TOP = 27.0  # of the drawing, below the name of the vertical axis
_TABLE_ROWS = 13  # rows of the table behind a chart
NOISY = 30  # points from which on a running mean helps

Place = Callable[[float], float]  # from a value to its place, in units of the drawing


@dataclass(frozen=True, eq=False)
class Line:
    """A curve and how to draw it.

    kind:   its look, a class of the style sheet: "before", "after", "right", "wrong", "faint", or "hue0" to "hue8"
    filled: down to 0; dotted: a dot at each point; smooth: the curve is faint below its running mean
    """

    name: str
    curve: Curve
    kind: str = "after"
    filled: bool = False
    dotted: bool = False
    smooth: bool = False


class Tick(NamedTuple):
    """A place on an axis, in units of the drawing, and the text there."""

    at: float
    text: str


class Dot(NamedTuple):
    """A place in the drawing with a text, or with the picture of a row of the table."""

    x: float
    y: float
    text: str = ""
    row: int = -1


@dataclass(frozen=True)
class Scale:
    """How values become places along one axis.

    percent: values are fractions and written as percent; log: logarithmic, where every value is positive
    span:    first and last value, by default those of the values; marks: where the ticks are, by default round values
    """

    label: str
    percent: bool = False
    log: bool = False
    span: tuple[float, float] | None = None
    marks: tuple[float, ...] = ()

    def text(self, value: float) -> str:
        """Write a value."""
        return fraction(value) if self.percent else number(value)

    def axis(self, values: Floats, start: float, end: float, rounded: bool = False) -> tuple[Place, tuple[Tick, ...]]:
        """Return where a value lies between start and end, and the ticks; rounded: the axis ends at a tick."""
        ends = float(values.min()), float(values.max())
        log = self.log and 0 < ends[0] < ends[1]
        low, high = self.span or (ends if log else _round_outwards(*_widen(*ends)) if rounded else _widen(*ends))

        def place(value: float) -> float:
            first, last, at = (math.log(v) for v in (low, high, value)) if log else (low, high, value)
            return round(start + (at - first) / (last - first) * (end - start), 1)

        marks = [mark for mark in self.marks if low <= mark <= high]
        marks = marks or (log_ticks(low, high) if log else ticks(low, high))
        labels = tick_texts(marks, self.percent, log or bool(self.marks))
        return place, tuple(Tick(place(at), text) for at, text in zip(marks, labels, strict=True))


class Stroke(NamedTuple):
    """A line as a path of SVG; `area` is closed, "" without filling."""

    kind: str
    path: str
    area: str = ""
    dots: tuple[Dot, ...] = ()


@dataclass(frozen=True)
class Chart:
    """A drawing with its title, its meaning in words (`summary`), and its numbers as a table."""

    title: str
    x_label: str
    y_label: str
    width: float
    height: float
    left: float
    right: float
    bottom: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    strokes: tuple[Stroke, ...]
    legend: tuple[tuple[str, str], ...]
    summary: str
    numbers: Table
    note: str = ""


def chart(
    title: str,
    lines: Sequence[Line],
    x: Scale,
    y: Scale,
    *,
    behind: Sequence[Line] = (),
    size: tuple[float, float] = (420.0, 260.0),
    note: str = "",
    summary: str = "",
) -> Chart | None:
    """Return a chart of some lines; None if there is no finite point.

    behind:  lines below the others, in the drawing only
    summary: the chart in words, for readers who cannot see it; by default where each line begins, ends and is highest
    """
    count = sum(len(line.curve.x) for line in lines)
    lines = _finite_lines(lines)
    if not lines:
        return None
    xs, ys = (np.concatenate([getattr(line.curve, axis) for line in lines]) for axis in "xy")
    right, bottom = size[0] - 14, size[1] - 40
    place_y, y_ticks = y.axis(ys, bottom, _TOP, rounded=True)
    left = 14.0 + 7.2 * max(len(tick.text) for tick in y_ticks)
    place_x, x_ticks = x.axis(xs, left, right)
    drawing = [_strokes(line, (x, y), (place_x, place_y), bottom) for line in (*_finite_lines(behind), *lines)]
    looks = {line.kind: line.name for line in reversed(lines) if line.name}
    lost = f"{count - len(xs)} values are not finite and not drawn." if count > len(xs) else ""
    return Chart(
        *(title, x.label, y.label, *size, left, right, bottom, x_ticks, y_ticks),
        strokes=tuple(stroke for strokes in drawing for stroke in strokes),
        legend=tuple((looks[kind], kind) for kind in reversed(looks)),
        summary=summary or _summary(title, lines, x, y),
        numbers=_numbers(lines, x, y),
        note=" ".join(filter(None, [note, lost])),
    )


def ticks(low: float, high: float) -> list[float]:
    """Return round values from low to high, about three to seven.

    >>> ticks(0.12, 0.61)
    [0.2, 0.3, 0.4, 0.5, 0.6]
    """
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 2.5 * power, 5 * power, 10 * power) if step >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten from low to high, or 1, 2 and 5 times them where those are too few.

    >>> log_ticks(1, 1000), log_ticks(0.02, 0.3)
    ([1.0, 10.0, 100.0, 1000.0], [0.02, 0.05, 0.1, 0.2])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        values = [v for p in powers for f in factors if low * 0.999 <= (v := float(f"{f}e{p}")) <= high * 1.001]
        if len(values) >= 3:
            break
    return values[:: math.ceil(len(values) / 7)] if len(values) > 1 else [low, high]


def tick_texts(values: Sequence[float], percent: bool = False, log: bool = False) -> list[str]:
    """Write the values at an axis, all with as many decimals where it is not logarithmic.

    >>> tick_texts([0.0, 0.25, 0.5], percent=True), tick_texts([0.99982, 0.99984])
    (['0 %', '25 %', '50 %'], ['0.99982', '0.99984'])
    >>> tick_texts([1e-5, 0.001, 10, 10000], log=True)
    ['1e-5', '0.001', '10', '10,000']
    """
    values = [100 * value if percent else value for value in values]
    if log or any(value and abs(value) < 1e-3 for value in values):
        return [number(value) + " %" * percent for value in values]
    step = min((abs(b - a) for a, b in pairwise(values)), default=0.0) or 1.0
    decimals = next((d for d in range(12) if all(abs(v - round(v, d)) < 1e-3 * step for v in values)), 12)
    return [f"{value:,.{decimals}f}" + " %" * percent for value in values]


def finite_points(curve: Curve) -> Curve:
    """Return the finite points of a curve, in the order of x."""
    x, y = np.asarray(curve.x, dtype=np.float64), np.asarray(curve.y, dtype=np.float64)
    keep = np.isfinite(x) & np.isfinite(y)
    order = np.argsort(x[keep], kind="stable")
    return Curve(x[keep][order], y[keep][order])


def running_mean(values: Floats, window: int) -> Floats:
    """Return the mean of the values around each one, of fewer at the ends.

    >>> running_mean(np.array([0.0, 3.0, 6.0, 9.0]), 3).tolist()
    [1.5, 3.0, 6.0, 7.5]
    """
    half = window // 2
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    low, high = np.maximum(at - half, 0), np.minimum(at + half + 1, len(values))
    return np.asarray((sums[high] - sums[low]) / (high - low))


def _finite_lines(lines: Sequence[Line]) -> list[Line]:
    """Return the lines that have a finite point, with these points only."""
    return [replace(line, curve=curve) for line in lines if len((curve := finite_points(line.curve)).x)]


def _strokes(line: Line, scales: tuple[Scale, Scale], places: tuple[Place, Place], ground: float) -> list[Stroke]:
    (x_scale, y_scale), (place_x, place_y) = scales, places
    x, y = line.curve.x, line.curve.y
    few = _spread(len(x), _POINTS)

    def path(heights: Floats) -> str:
        points = zip(x[few].tolist(), heights[few].tolist(), strict=True)
        return "M" + "L".join(f"{place_x(at):g} {place_y(value):g}" for at, value in points)

    if line.smooth and len(x) >= NOISY:
        mean = running_mean(y, max(3, len(x) // 15))
        return [Stroke("faint", path(y)), Stroke(line.kind, path(mean))]
    name = f"{line.name}: " if line.name else ""
    dots = [
        Dot(place_x(a), place_y(b), f"{name}{y_scale.text(b)} at {x_scale.label} {x_scale.text(a)}")
        for a, b in zip(x.tolist(), y.tolist(), strict=True)
        if line.dotted or len(x) == 1
    ]
    ends = "".join(f"L{place_x(float(x[i])):g} {ground:g}" for i in (-1, 0))
    return [Stroke(line.kind, path(y), f"{path(y)}{ends}Z" if line.filled else "", tuple(dots))]


def _widen(low: float, high: float) -> tuple[float, float]:
    """Return the range of an axis; a single value gets some room."""
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    room = abs(high) / 10 or 1.0
    return (low - room, high + room) if low else (0.0, high or room)


def _round_outwards(low: float, high: float) -> tuple[float, float]:
    """Return the range extended to the next ticks."""
    first, second, *_ = ticks(low, high)
    step = second - first
    return step * math.floor(low / step + 1e-9), step * math.ceil(high / step - 1e-9)


def _summary(title: str, lines: Sequence[Line], x: Scale, y: Scale) -> str:
    """Write the chart in words: where each line begins, ends and is highest."""
    parts = []
    for line in lines:
        at, of = line.curve.x.tolist(), line.curve.y.tolist()
        text = f"{y.text(of[0])} at {x.label} {x.text(at[0])}"
        if len(at) > 1:
            most = f"highest {y.text(max(of))} at {x.text(at[of.index(max(of))])}"
            text += f", {y.text(of[-1])} at {x.text(at[-1])}, {most}"
        parts.append(f"{line.name}: {text}" if line.name else text)
    return f"{title}. " + "; ".join(parts) + "."


def _numbers(lines: Sequence[Line], x: Scale, y: Scale) -> Table:
    """Return the numbers of a chart: some of its x in the order of their size, and what each line has there."""
    xs = np.unique(np.concatenate([line.curve.x for line in lines]))
    rows = [
        [x.text(at), *(", ".join(y.text(v) for v in line.curve.y[line.curve.x == at]) for line in lines)]
        for at in xs[_spread(len(xs), _TABLE_ROWS)].tolist()
    ]
    return Table([x.label, *(line.name or y.label for line in lines)], rows, "r" * (1 + len(lines)))


def _spread(count: int, most: int) -> Indices:
    """Return at most so many numbers below `count`, evenly spread and with both ends."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


# Map of the embeddings: points by category, names where a category is densest, pictures where there is room

SIZE = 480.0  # units of the drawing, as wide as high
GROUPS = 9  # categories that have a look of their own
_MARGIN = 18.0
_PICTURE = 26.0  # units that a picture on the map is wide
_PICTURES = 160  # per side
_SHAPES = (
    "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0-6 0z",  # disc
    "m-2.7-2.7h5.4v5.4h-5.4z",  # square
    "m0-3.6l3.5 6h-7z",  # triangle
    "m0-3.9l3.9 3.9l-3.9 3.9l-3.9-3.9z",  # diamond
    "m-1.1-3.6h2.2v2.5h2.5v2.2h-2.5v2.5h-2.2v-2.5h-2.5v-2.2h2.5z",  # plus
    "m0 3.6l3.5-6h-7z",  # triangle upside down
    "m-3.8-1.5h7.6v3h-7.6z",  # bar
    "m-1.5-3.8h3v7.6h-3z",  # upright bar
    "m-3.2 3.2h6.4l-6.4-6.4z",  # corner
    "m-1.5 0a1.5 1.5 0 1 0 3 0a1.5 1.5 0 1 0-3 0z",  # small disc, of the look -1
)


@dataclass(frozen=True)
class Group:
    """Points of one category: its look is a colour and a marker with this number; -1 is all the others."""

    name: str
    look: int
    count: int

    @property
    def marker(self) -> str:
        """Its marker in a box of 14 units, for the legend."""
        return _marker(self.look, 7, 7)


class MapSide(NamedTuple):
    """Map of one side; `together` is the share of points whose nearest one is of the same class.

    marks: per group its look, and all its points as one path of SVG
    """

    name: str
    marks: tuple[tuple[int, str], ...]
    names: tuple[Dot, ...]
    pictures: tuple[Dot, ...]
    together: float


class EmbeddingMap(NamedTuple):
    """Maps of all sides; `by` says what the groups are; `points` is what the script needs."""

    by: str
    groups: tuple[Group, ...]
    sides: tuple[MapSide, ...]
    points: dict[str, list[Any]]


def display_name(table: ImageTable, row: int) -> str:
    """Return the name of an image: its entry in the column "name" if the table has one, else its label."""
    names = table.extra.get("name")
    return str(names[row] if names is not None and str(names[row]).strip() else table.labels[row]) or "no label"


def draw_map(findings: Findings) -> EmbeddingMap | None:
    """Return the map of findings; None if fewer than three points have a place on every side."""
    table, mapped = findings.table, np.asarray(findings.mapped, dtype=np.int64)
    if len(mapped) == 0 or any(np.shape(side.places) != (len(mapped), 2) for side in findings.sides):
        return None
    keep = np.all([np.isfinite(side.places).all(1) for side in findings.sides], axis=0)
    if keep.sum() < 3:
        return None
    mapped = mapped[keep]
    by, groups, look = _groups(table.categories[mapped], table.labels[mapped])
    places = _fit([np.asarray(side.places, dtype=np.float64)[keep] for side in findings.sides])
    codes = np.unique(table.labels[mapped], return_inverse=True)[1]
    sides = zip(findings.sides, places, strict=True)
    points = {
        "rows": mapped.tolist(),
        "codes": codes.tolist(),
        "names": [display_name(table, row) for row in mapped.tolist()],
        "looks": look.tolist(),
        "sides": [xy.round(1).tolist() for xy in places],
    }
    drawings = tuple(_draw_side(side, xy, mapped, groups, look, codes) for side, xy in sides)
    return EmbeddingMap(by, groups, drawings, points)


def _groups(categories: np.ndarray, labels: np.ndarray) -> tuple[str, tuple[Group, ...], Indices]:
    """Return what the points are coloured by, the largest groups by name, the others as one, and each point's look.

    Colours are those of categories, or else of classes if those are few.
    """
    by, names = "category", categories
    if len(np.unique(categories)) < 2:
        by, names = ("class", labels) if len(np.unique(labels)) <= GROUPS else ("", np.full(len(labels), ""))
    different, codes, counts = np.unique(names, return_inverse=True, return_counts=True)
    largest = sorted(range(len(different)), key=lambda i: (-counts[i], different[i]))[:GROUPS]
    largest = sorted(i for i in largest if different[i] or len(different) == 1)
    looks = np.full(len(different), -1)
    looks[largest] = np.arange(len(largest))
    look = looks[codes]
    groups = [Group(str(different[i]), int(looks[i]), int(counts[i])) for i in largest]
    if others := int((look == -1).sum()):
        groups.append(Group("all others", -1, others))
    return by, tuple(groups), look


def _fit(sides: Sequence[Floats]) -> list[Floats]:
    """Scale places to the drawing, each side centred; one scale for all, so that distances can be compared."""
    widest = max(float(np.ptp(places, axis=0).max()) for places in sides) or 1.0
    scale = (SIZE - 2 * _MARGIN) / widest
    return [(places - (places.min(0) + places.max(0)) / 2) * scale + SIZE / 2 for places in sides]


def _draw_side(
    side: ModelFindings, xy: Floats, mapped: Indices, groups: Sequence[Group], look: Indices, codes: Indices
) -> MapSide:
    marks = tuple((g.look, "".join(_marker(g.look, x, y) for x, y in xy[look == g.look])) for g in groups)
    names = _names([(g.name, xy[look == g.look]) for g in groups if g.look >= 0 and len(groups) > 1])
    far = np.square(xy[:, None] - xy[None]).sum(2)
    np.fill_diagonal(far, np.inf)
    together = float((codes[far.argmin(1)] == codes).mean())
    return MapSide(side.name, marks, names, _pictures(xy, mapped), together)


def _marker(look: int, x: float, y: float) -> str:
    """Return the path of a point, with the shape of its look."""
    return f"M{x:.1f} {y:.1f}{_SHAPES[look]}"


def _names(groups: Sequence[tuple[str, Floats]]) -> tuple[Dot, ...]:
    """Put each group's name at its densest place that is free of other names, largest group first."""
    taken: list[tuple[float, float, float]] = []
    items = []
    for name, xy in sorted(groups, key=lambda group: -len(group[1])):
        text = name if len(name) <= 24 else name[:23] + "…"
        half = 3.9 * len(text) + 6
        some = xy[:: max(1, len(xy) // 400)]
        near = (np.linalg.norm(some[:, None] - some[None], axis=2) < SIZE / 12).sum(1)
        for i in np.argsort(-near, kind="stable").tolist():
            x, y = float(some[i][0].clip(half, SIZE - half)), float(some[i][1].clip(14, SIZE - 8))
            if all(abs(x - tx) > half + wide or abs(y - ty) > 19 for tx, ty, wide in taken):
                taken.append((x, y, half))
                items.append(Dot(round(x, 1), round(y, 1), text))
                break
    return tuple(items)


def _pictures(xy: Floats, mapped: Indices) -> tuple[Dot, ...]:
    """Draw points at random whose pictures do not cover each other; the table itself is sorted by category."""
    items: list[Dot] = []
    cells: dict[tuple[int, int], list[tuple[float, float]]] = {}
    lot = np.random.default_rng(0).permutation(len(mapped))
    for (x, y), row in zip(xy[lot].tolist(), mapped[lot].tolist(), strict=True):
        cell = int(x // _PICTURE), int(y // _PICTURE)
        around = [at for i in (-1, 0, 1) for j in (-1, 0, 1) for at in cells.get((cell[0] + i, cell[1] + j), [])]
        if all(abs(x - a) >= _PICTURE or abs(y - b) >= _PICTURE for a, b in around):
            cells.setdefault(cell, []).append((x, y))
            items.append(Dot(round(x, 1), round(y, 1), row=row))
            if len(items) == _PICTURES:
                break
    return tuple(items)
