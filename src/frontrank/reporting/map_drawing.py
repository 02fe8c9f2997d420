"""The map of the embeddings as geometry: points by category, names where a category is densest, pictures with room."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from frontrank.data.image_table import ImageTable
from frontrank.reporting.findings import Findings, Floats, Rows, Side

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
