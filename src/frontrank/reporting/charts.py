"""Line charts as geometry: where every line, tick and dot lies, and the same in words and numbers.

The templates draw it as SVG, so that colours follow the theme of the page and text stays text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from frontrank.data.table import ImageTable
from frontrank.reporting.findings import Curve, Findings, Floats, Rows, Side
from frontrank.reporting.pages import fraction, number

# ==== Line charts as geometry: where every line, tick and dot lies, and the same in words and numbers.


HUES = 9  # looks "hue0", "hue1", ... of lines that are of equal rank
_SHOWN = 400  # points of a line; more could not be told apart on a screen
_TOP = 27.0  # of the drawing, below the name of the vertical axis
_TABLED = 13  # rows of the table behind a chart
NOISY = 30  # points from which on a running mean helps


@dataclass(frozen=True, eq=False)
class Line:
    """What is drawn of a curve.

    kind: its look, a class of the style sheet: "before", "after", "right", "wrong", "faint", or "hue0" to "hue8"
    filled: down to 0; dotted: a dot at each point; smooth: the curve is faint below its running mean
    """

    name: str
    curve: Curve
    kind: str = "after"
    filled: bool = False
    dotted: bool = False
    smooth: bool = False


@dataclass(frozen=True)
class Scale:
    """How values become places along one axis.

    percent: they are fractions and written as percent
    log: logarithmic, where every value is positive
    span: from where to where; by the values otherwise
    marks: where the ticks are; at round values otherwise
    """

    label: str
    percent: bool = False
    log: bool = False
    span: tuple[float, float] | None = None
    marks: tuple[float, ...] = ()

    def said(self, value: float) -> str:
        """A value in words."""
        return fraction(value) if self.percent else number(value)

    def axis(self, values: Floats, start: float, end: float, rounded: bool = False) -> "tuple[Axis, tuple[Tick, ...]]":
        """The axis and its ticks; rounded: it goes on to the next ticks."""
        ends = float(values.min()), float(values.max())
        log = self.log and ends[0] > 0 and ends[0] < ends[1]
        low, high = self.span or (ends if log else _rounded(*_padded(*ends)) if rounded else _padded(*ends))
        found = Axis(low, high, start, end, log)
        marks = [mark for mark in self.marks if low <= mark <= high]
        marks = marks or (log_ticks(low, high) if log else ticks(low, high))
        written = texts(marks, self.percent, log or bool(self.marks))
        return found, tuple(Tick(found.place(at), text) for at, text in zip(marks, written, strict=True))


@dataclass(frozen=True)
class Tick:
    """A place on an axis, in units of the drawing, and what is written there."""

    at: float
    text: str


@dataclass(frozen=True)
class Dot:
    """A point, in units of the drawing, and what it stands for in words."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Stroke:
    """A line as a path of SVG; `area` is closed, "" without filling."""

    name: str
    kind: str
    path: str
    area: str = ""
    dots: tuple[Dot, ...] = ()


@dataclass(frozen=True)
class Chart:
    """A drawing with its title, its meaning in words, and its numbers."""

    title: str
    x_label: str
    y_label: str
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    strokes: tuple[Stroke, ...]
    legend: tuple[tuple[str, str], ...]
    summary: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Axis:
    """From values to places: `low` lies at `start`, `high` at `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value lies, to a tenth of a unit."""
        low, high, at = (
            (math.log(v) for v in (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        )
        return round(self.start + (at - low) / (high - low) * (self.end - self.start), 1)


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
    """A chart of some lines; None if there is no finite point.

    behind: lines below the others, in the drawing only
    summary: the chart for who cannot see it; by default where each line begins, ends and is highest
    """
    drawn = [replace(line, curve=finite(line.curve)) for line in lines]
    lost = sum(len(line.curve.x) for line in lines) - sum(len(line.curve.x) for line in drawn)
    drawn = [line for line in drawn if len(line.curve.x)]
    if not drawn:
        return None
    xs, ys = (np.concatenate([getattr(line.curve, axis) for line in drawn]) for axis in "xy")
    width, height = size
    y_axis, y_ticks = y.axis(ys, height - 40, _TOP, rounded=True)
    left = 14.0 + 7.2 * max(len(tick.text) for tick in y_ticks)
    x_axis, x_ticks = x.axis(xs, left, width - 14)
    lower = [replace(line, curve=curve) for line in behind if len((curve := finite(line.curve)).x)]
    looks = {line.kind: line.name for line in reversed(drawn) if line.name}
    return Chart(
        title,
        x.label,
        y.label,
        *size,
        left=left,
        right=width - 14,
        top=_TOP,
        bottom=height - 40,
        x_ticks=x_ticks,
        y_ticks=y_ticks,
        strokes=tuple(stroke for line in (*lower, *drawn) for stroke in _strokes(line, x_axis, y_axis, x, y)),
        legend=tuple((looks[kind], kind) for kind in reversed(looks)),
        summary=summary or _summary(title, drawn, x, y),
        header=(x.label, *(line.name or y.label for line in drawn)),
        rows=_rows(drawn, x, y),
        note=" ".join(filter(None, [note, f"{lost} values are not finite and not drawn." if lost else ""])),
    )


def ticks(low: float, high: float) -> list[float]:
    """Round values from low to high, three to seven or so.

    >>> ticks(0.12, 0.61)
    [0.2, 0.3, 0.4, 0.5, 0.6]
    """
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step for step in (power, 2 * power, 2.5 * power, 5 * power, 10 * power) if step >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten from low to high, or the values 1, 2 and 5 times one where those are too few.

    >>> log_ticks(1, 1000), log_ticks(0.02, 0.3)
    ([1.0, 10.0, 100.0, 1000.0], [0.02, 0.05, 0.1, 0.2])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        found = [float(f"{f}e{p}") for p in powers for f in factors]
        found = [value for value in found if low * 0.999 <= value <= high * 1.001]
        if len(found) >= 3:
            break
    if len(found) < 2:
        return [low, high]
    return found[:: math.ceil(len(found) / 7)]


def texts(values: Sequence[float], percent: bool = False, log: bool = False) -> list[str]:
    """How values are written at an axis, all with as many decimals where it is not logarithmic.

    >>> texts([0.0, 0.25, 0.5], percent=True), texts([0.99982, 0.99984]), texts([1e-5, 0.001, 10, 10000], log=True)
    (['0 %', '25 %', '50 %'], ['0.99982', '0.99984'], ['1e-5', '0.001', '10', '10,000'])
    """
    shown = [100 * value for value in values] if percent else list(values)
    if log or any(value and abs(value) < 1e-3 for value in shown):
        return [number(value) + " %" * percent for value in shown]
    step = min((abs(b - a) for a, b in pairwise(shown)), default=0.0) or 1.0
    decimals = next((d for d in range(12) if all(abs(v - round(v, d)) < 1e-3 * step for v in shown)), 12)
    return [f"{value:,.{decimals}f}" + " %" * percent for value in shown]


def finite(curve: Curve) -> Curve:
    """The points of a curve that can be drawn, in the order of x."""
    x, y = np.asarray(curve.x, dtype=np.float64), np.asarray(curve.y, dtype=np.float64)
    keep = np.isfinite(x) & np.isfinite(y)
    order = np.argsort(x[keep], kind="stable")
    return Curve(x[keep][order], y[keep][order])


def running_mean(values: Floats, window: int) -> Floats:
    """The mean of the values around each one, of fewer at the ends.

    >>> running_mean(np.array([0.0, 3.0, 6.0, 9.0]), 3).tolist()
    [1.5, 3.0, 6.0, 7.5]
    """
    half = window // 2
    sums = np.concatenate([[0.0], np.cumsum(values)])
    at = np.arange(len(values))
    low, high = np.maximum(at - half, 0), np.minimum(at + half + 1, len(values))
    return np.asarray((sums[high] - sums[low]) / (high - low))


def _strokes(line: Line, x_axis: Axis, y_axis: Axis, x_scale: Scale, y_scale: Scale) -> list[Stroke]:
    x, y = line.curve.x, line.curve.y
    few = np.unique(np.linspace(0, len(x) - 1, min(len(x), _SHOWN)).round().astype(int))
    dots: tuple[Dot, ...] = ()
    if line.dotted or len(x) == 1:
        named = f"{line.name}: " if line.name else ""
        said = (f"{named}{y_scale.said(b)} at {x_scale.label} {x_scale.said(a)}" for a, b in zip(x, y, strict=True))
        at = ((x_axis.place(float(a)), y_axis.place(float(b))) for a, b in zip(x, y, strict=True))
        dots = tuple(Dot(*place, text) for place, text in zip(at, said, strict=True))
    path = _path(x[few], y[few], x_axis, y_axis)
    if line.smooth and len(x) >= NOISY:
        mean = running_mean(y, max(3, len(x) // 15))
        return [Stroke("", "faint", path), Stroke(line.name, line.kind, _path(x[few], mean[few], x_axis, y_axis))]
    area = ""
    if line.filled:
        ground = y_axis.place(y_axis.low)
        area = f"{path}L{x_axis.place(float(x[-1])):g} {ground:g}L{x_axis.place(float(x[0])):g} {ground:g}Z"
    return [Stroke(line.name, line.kind, path, area, dots)]


def _path(x: Floats, y: Floats, x_axis: Axis, y_axis: Axis) -> str:
    points = zip(x.tolist(), y.tolist(), strict=True)
    return "M" + "L".join(f"{x_axis.place(at):g} {y_axis.place(value):g}" for at, value in points)


def _padded(low: float, high: float) -> tuple[float, float]:
    """The range of an axis; a single value gets some room."""
    if high - low > 1e-9 * max(abs(low), abs(high)):
        return low, high
    room = abs(high) / 10 or 1.0
    return (low - room, high + room) if low else (0.0, high or room)


def _rounded(low: float, high: float) -> tuple[float, float]:
    """The range up to the next ticks."""
    first, second, *_ = ticks(low, high)
    step = second - first
    return step * math.floor(low / step + 1e-9), step * math.ceil(high / step - 1e-9)


def _summary(title: str, lines: Sequence[Line], x: Scale, y: Scale) -> str:
    """The chart for who cannot see it: where each line begins, ends and is highest."""
    parts = []
    for line in lines:
        at, of = line.curve.x.tolist(), line.curve.y.tolist()
        text = f"{y.said(of[0])} at {x.label} {x.said(at[0])}"
        if len(at) > 1:
            text += (
                f", {y.said(of[-1])} at {x.said(at[-1])}, highest {y.said(max(of))} at {x.said(at[of.index(max(of))])}"
            )
        parts.append(f"{line.name}: {text}" if line.name else text)
    return f"{title}. " + "; ".join(parts) + "."


def _rows(lines: Sequence[Line], x: Scale, y: Scale) -> tuple[tuple[str, ...], ...]:
    """The numbers of a chart at some of its x, for each line what it has there."""
    xs = np.unique(np.concatenate([line.curve.x for line in lines]))
    xs = xs[np.unique(np.linspace(0, len(xs) - 1, min(len(xs), _TABLED)).round().astype(int))]
    return tuple(
        (x.said(at), *(", ".join(y.said(v) for v in line.curve.y[line.curve.x == at]) for line in lines))
        for at in xs.tolist()
    )


# ==== The map of the embeddings as geometry: points by category, names where a category is densest, pictures with room.


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


@dataclass(frozen=True)
class Marks:
    """All points of a group as one path of SVG."""

    look: int
    path: str


@dataclass(frozen=True)
class Placed:
    """Something at a place of the map: a name, or the picture of a row."""

    x: float
    y: float
    text: str = ""
    row: int = -1


@dataclass(frozen=True)
class MapSide:
    """The map of one side; `together`: the share of points whose nearest one is of the same class."""

    name: str
    title: str
    marks: tuple[Marks, ...]
    names: tuple[Placed, ...]
    pictures: tuple[Placed, ...]
    together: float


@dataclass(frozen=True)
class EmbeddingMap:
    """The maps of all sides; `by` says what the groups are; `points` is what a script needs to show a point.

    rows: of the table, for each point
    points: the rows, the label of each as a number, its name, its look, and per side x and y
    """

    by: str
    groups: tuple[Group, ...]
    sides: tuple[MapSide, ...]
    rows: list[int]
    points: dict[str, list[object]]


def display_name(table: ImageTable, row: int) -> str:
    """What an image shows, in words: its entry in the column "name" if the table has one, else its label."""
    names = table.extra.get("name")
    return str(names[row] if names is not None and str(names[row]).strip() else table.labels[row]) or "no label"


def embedding_map(findings: Findings) -> EmbeddingMap | None:
    """The map of findings; None if fewer than three of its points have a place on every side."""
    mapped = np.asarray(findings.mapped, dtype=np.int64)
    if len(mapped) == 0 or any(np.shape(side.places) != (len(mapped), 2) for side in findings.sides):
        return None
    keep = np.all([np.isfinite(side.places).all(1) for side in findings.sides], axis=0)
    if keep.sum() < 3:
        return None
    mapped = mapped[keep]
    by, names = _grouping(findings, mapped)
    groups, look = _groups(names)
    places = _fitted([np.asarray(side.places, dtype=np.float64)[keep] for side in findings.sides])
    codes = np.unique(findings.table.labels[mapped], return_inverse=True)[1]
    return EmbeddingMap(
        by,
        groups,
        tuple(_side(side, xy, mapped, groups, look, codes) for side, xy in zip(findings.sides, places, strict=True)),
        mapped.tolist(),
        {
            "rows": mapped.tolist(),
            "codes": codes.tolist(),
            "names": [display_name(findings.table, row) for row in mapped.tolist()],
            "looks": look.tolist(),
            "sides": [xy.round(1).tolist() for xy in places],
        },
    )


def _grouping(findings: Findings, mapped: Rows) -> tuple[str, Sequence[str]]:
    """What the points are coloured by: categories, or else classes if those are few."""
    categories = findings.table.categories[mapped]
    if len(np.unique(categories)) > 1:
        return "category", categories.tolist()
    labels = findings.table.labels[mapped]
    if len(np.unique(labels)) <= GROUPS:
        return "class", labels.tolist()
    return "", [""] * len(mapped)


def _groups(names: Sequence[str]) -> tuple[tuple[Group, ...], Rows]:
    """The largest groups by name, the others as one, and the look of each point."""
    found, codes, counts = np.unique(names, return_inverse=True, return_counts=True)
    largest = sorted(range(len(found)), key=lambda i: (-counts[i], found[i]))[:GROUPS]
    largest = sorted(i for i in largest if found[i] or len(found) == 1)
    looks = np.full(len(found), -1)
    looks[largest] = np.arange(len(largest))
    look = looks[codes]
    groups = [Group(str(found[i]), int(looks[i]), int(counts[i])) for i in largest]
    if others := int((look == -1).sum()):
        groups.append(Group("all others", -1, others))
    return tuple(groups), look


def _fitted(sides: Sequence[Floats]) -> list[Floats]:
    """Places in units of the drawing, each side in its middle; one scale for all, so that distances can be compared."""
    widest = max(float(np.ptp(places, axis=0).max()) for places in sides) or 1.0
    scale = (SIZE - 2 * _MARGIN) / widest
    return [(places - (places.min(0) + places.max(0)) / 2) * scale + SIZE / 2 for places in sides]


def _side(side: Side, xy: Floats, mapped: Rows, groups: Sequence[Group], look: Rows, codes: Rows) -> MapSide:
    marks = tuple(Marks(g.look, "".join(_marker(g.look, x, y) for x, y in xy[look == g.look])) for g in groups)
    named = [g for g in groups if g.look >= 0 and len(groups) > 1]
    return MapSide(
        side.name,
        side.title,
        marks,
        _names([(g.name, xy[look == g.look]) for g in named]),
        _pictures(xy, mapped),
        _together(xy, codes),
    )


def _together(xy: Floats, codes: Rows) -> float:
    far = np.square(xy[:, None] - xy[None]).sum(2)
    np.fill_diagonal(far, np.inf)
    return float((codes[far.argmin(1)] == codes).mean())


def _marker(look: int, x: float, y: float) -> str:
    """A point's path, of a shape by its look."""
    return f"M{x:.1f} {y:.1f}" + (_SHAPES[look] if look >= 0 else "m-1.5 0a1.5 1.5 0 1 0 3 0a1.5 1.5 0 1 0-3 0z")


def _names(groups: Sequence[tuple[str, Floats]]) -> tuple[Placed, ...]:
    """Each group's name at its densest place that is free of the names before it, largest group first."""
    taken: list[tuple[float, float, float]] = []
    found = []
    for name, xy in sorted(groups, key=lambda group: -len(group[1])):
        text = name if len(name) <= 24 else name[:23] + "…"
        half = 3.9 * len(text) + 6
        some = xy[:: max(1, len(xy) // 400)]
        near = (np.linalg.norm(some[:, None] - some[None], axis=2) < SIZE / 12).sum(1)
        for i in np.argsort(-near, kind="stable").tolist():
            x, y = float(some[i][0].clip(half, SIZE - half)), float(some[i][1].clip(14, SIZE - 8))
            if all(abs(x - tx) > half + wide or abs(y - ty) > 19 for tx, ty, wide in taken):
                taken.append((x, y, half))
                found.append(Placed(round(x, 1), round(y, 1), text))
                break
    return tuple(found)


def _pictures(xy: Floats, mapped: Rows) -> tuple[Placed, ...]:
    """Points whose pictures do not cover each other, drawn by lot: the order of a table is that of its categories."""
    found: list[Placed] = []
    cells: dict[tuple[int, int], list[tuple[float, float]]] = {}
    lot = np.random.default_rng(0).permutation(len(mapped))
    for (x, y), row in zip(xy[lot].tolist(), mapped[lot].tolist(), strict=True):
        cell = int(x // _PICTURE), int(y // _PICTURE)
        around = [at for i in (-1, 0, 1) for j in (-1, 0, 1) for at in cells.get((cell[0] + i, cell[1] + j), [])]
        if all(abs(x - a) >= _PICTURE or abs(y - b) >= _PICTURE for a, b in around):
            cells.setdefault(cell, []).append((x, y))
            found.append(Placed(round(x, 1), round(y, 1), row=row))
            if len(found) == _PICTURES:
                break
    return tuple(found)
