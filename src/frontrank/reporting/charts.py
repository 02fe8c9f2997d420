"""Line charts as geometry: where every line, tick and dot lies, and the same in words and numbers.

The templates draw it as SVG, so that colours follow the theme of the page and text stays text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from frontrank.reporting.findings import Curve, Floats
from frontrank.reporting.wording import fraction, number

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
