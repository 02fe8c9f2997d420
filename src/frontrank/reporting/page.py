"""The report of a run as one HTML page."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from frontrank.errors import InputError
from frontrank.evaluation.compare import Difference
from frontrank.evaluation.fields import is_distance
from frontrank.reporting.charts import HUES, NOISY, Chart, Line, Scale, chart, finite
from frontrank.reporting.findings import Curve, Findings, Query, Ranked, RunFacts, Shown, Side
from frontrank.reporting.map_drawing import EmbeddingMap, display_name, embedding_map
from frontrank.reporting.rendering import rendered
from frontrank.reporting.thumbnails import faults_note, thumbnails
from frontrank.reporting.wording import counted, fraction, metric_text

_LARGE, _SMALL = 128, 96  # pixels of a picture in a ranked row, by whether there are many
_MANY = 250
_ON_MAP = 40  # pixels of a picture that only the map shows: 1,500 of them are some 1.3 MB

_GROUPS = {
    "most improved": "Queries whose average precision rose most.",
    "best": "Queries whose right images all come early.",
    "typical": "Queries around the median average precision.",
    "worst": "Queries with the lowest average precision. Below a wrong image: its share of the points of AP that are "
    "lost; the shares of all wrong images add up to what is missing to 100.",
}
_MEANINGS = (
    (r"R@1", "the first result is right"),
    (r"R@(\d+)", "a right image is among the first {0}"),
    (r"P@(\d+)", "right images among the first {0}"),
    (r"mAP", "mean average precision: 100 % if all right images come first"),
    (r"mAP@R", "average precision within the first R, R being the number of right images"),
    (r"R-precision", "right images among the first R, R being their number"),
    (r"MRR", "1 divided by the place of the first right image"),
    (r"NMI", "how well clusters of the embeddings match the classes"),
    (r"dists@intra", "cosine distance of two images of a class"),
    (r"dists@inter", "cosine distance of two classes"),
)


@dataclass(frozen=True)
class MetricRow:
    """A line of the headline table; values and intervals per side."""

    name: str
    meaning: str
    values: tuple[float, ...]
    texts: tuple[str, ...]
    intervals: tuple[tuple[float, float] | None, ...]
    change: Difference | None

    @property
    def is_fraction(self) -> bool:
        """Whether it can be drawn on a scale from 0 to 100 %."""
        return not is_distance(self.name)


def run_page(findings: Findings, facts: RunFacts) -> str:
    """The page that shows findings and where they come from: a whole HTML file, to be written as UTF-8.

    Parts for which there is nothing to show are left out.
    """
    if not findings.sides:
        raise InputError("findings.sides is empty; give at least one side")
    drawn = embedding_map(findings)
    queries = _ordered(findings.queries)
    pictures, faults = thumbnails(findings.table, _wanted(queries, drawn))
    metrics = metric_rows(findings)
    return rendered(
        "run.html.j2",
        title=facts.title,
        facts=facts,
        findings=findings,
        sides=_looks(findings.sides),
        searched=facts.searched or counted(len(set(findings.table.labels) - {""}), "class", "classes"),
        metrics=metrics,
        headline=next((row for row in metrics if row.name == "R@1"), metrics[0]),
        training=training_charts(facts.curves),
        recall=recall_chart(findings.sides),
        precision=precision_chart(findings.sides),
        scores=score_charts(findings.sides),
        queries=queries,
        teaser=next(iter(queries.get("most improved", ())), None),
        name=partial(display_name, findings.table),
        past=past,
        later=later,
        intros=_GROUPS,
        map=drawn,
        pictures=pictures,
        categories=sorted(findings.categories, key=lambda found: (-_known(found.recall_at_1[-1]), found.name)),
        notes=tuple(dict.fromkeys((*findings.notes, *_report_notes(findings), *faults_note(faults)))),
    )


def past(query: Query, ranked: Ranked) -> int:
    """The place from which on nothing right is left to be found, among the first images of a list.

    >>> found = [Shown(row, row + 1, 0.9, right) for row, right in enumerate([True, False, True, False])]
    >>> past(Query(9, 2, ()), Ranked(0.8, tuple(found), ()))
    4
    """
    right = [image.place for image in ranked.first if image.right]
    if 0 < query.positives <= len(right):
        return right[query.positives - 1] + 1
    return max((image.place for image in ranked.first), default=0) + 1


def later(ranked: Ranked) -> tuple[Shown, ...]:
    """The costly images of a list that are not among its first ones."""
    places = {image.place for image in ranked.first}
    return tuple(image for image in ranked.costly if image.place not in places)


def metric_rows(findings: Findings) -> list[MetricRow]:
    """The headline table: each metric of the last side, with what the other one has."""
    reports = [side.report for side in findings.sides]
    rows = []
    for name in reports[-1]:
        values = tuple(report.get(name, math.nan) for report in reports)
        rows.append(
            MetricRow(
                name,
                meaning(name),
                values,
                tuple(metric_text(name, value) for value in values),
                tuple(side.intervals.get(name) for side in findings.sides),
                findings.change[name] if findings.change is not None and name in findings.change else None,
            )
        )
    return rows


def meaning(name: str) -> str:
    """A metric in a few words, "" for one that is not known.

    >>> meaning("R@10")
    'a right image is among the first 10'
    """
    for pattern, text in _MEANINGS:
        if found := re.fullmatch(pattern, name):
            return text.format(*found.groups())
    return ""


def training_charts(curves: Mapping[str, Curve], held_out: str = "classes") -> list[Chart]:
    """The curves of the log: all that are of validation in one chart, every other one in its own.

    held_out: what validation is on
    """
    validation = {name: finite(of) for name, of in curves.items() if name.startswith("validation ")}
    found = []
    for name, curve in curves.items():
        if name not in validation:
            smooth = name == "loss" and len(finite(curve).x) >= NOISY
            note = "The strong line is a running mean, the faint one what was logged." if smooth else ""
            found.append(chart(name, [Line("", curve, smooth=smooth)], Scale("step"), Scale(name), note=note))
    whole = {name: of for name, of in validation.items() if len(of.x)}
    if whole:
        percents = all(of.y.min() >= 0 and of.y.max() <= 1 for of in whole.values())
        metrics = [name.removeprefix("validation ") for name in whole]
        lines = [
            Line(name, of, f"hue{i % HUES}", dotted=len(of.x) <= 30)
            for i, (name, of) in enumerate(zip(metrics, whole.values(), strict=True))
        ]
        what = metrics[0] if len(metrics) == 1 else "metrics"
        title = "validation" if len(metrics) > 1 else f"validation {what}"
        found.insert(1, chart(title, lines, Scale("step"), Scale(f"{what} on held-out {held_out}", percent=percents)))
    return [one for one in found if one is not None]


def recall_chart(sides: Sequence[Side]) -> Chart | None:
    """R@k over k."""
    lines = [Line(side.name, side.recall, look, dotted=len(side.recall.x) <= 12) for side, look in _looks(sides)]
    return chart("R@k", lines, Scale("k", log=True), Scale("R@k", percent=True))


def precision_chart(sides: Sequence[Side]) -> Chart | None:
    """Precision over recall."""
    lines = [Line(side.name, side.precision_recall, look) for side, look in _looks(sides)]
    span = (0.0, 1.0)
    return chart(
        "precision over recall", lines, Scale("recall", percent=True, span=span), Scale("precision", True, span=span)
    )


def score_charts(sides: Sequence[Side]) -> list[Chart]:
    """Densities of the scores of right and wrong pairs, a chart per side on the same axes."""
    curves = [finite(of) for side in sides for of in (side.negative_scores, side.positive_scores)]
    xs, ys = (np.concatenate([getattr(of, axis) for of in curves]) for axis in "xy")
    if not len(xs) or xs.min() == xs.max() or ys.max() <= 0:
        return []
    found = []
    for side in sides:
        lines = [
            Line("wrong", side.negative_scores, "wrong", filled=True),
            Line("right", side.positive_scores, "right", filled=True),
        ]
        right, wrong = finite(side.positive_scores), finite(side.negative_scores)
        common = overlap(right, wrong)
        said = f"The two overlap in {fraction(common)} of their area." if common is not None else ""
        found.append(
            chart(
                f"scores {side.name}",
                lines,
                Scale("score", span=(float(xs.min()), float(xs.max()))),
                Scale("density", span=(0.0, float(ys.max()) * 1.05)),
                note=said,
                summary=" ".join(filter(None, [_peaks(side.name, {"right": right, "wrong": wrong}), said])),
            )
        )
    return [one for one in found if one is not None]


def _peaks(side: str, curves: Mapping[str, Curve]) -> str:
    """Densities in words: where each is highest, and between which scores its middle half lies."""
    parts = []
    for name, of in curves.items():
        if len(of.x) and of.y.sum() > 0:
            below = np.cumsum(of.y) / of.y.sum()
            low, high = (float(of.x[np.searchsorted(below, share)]) for share in (0.25, 0.75))
            most = float(of.x[of.y.argmax()])
            parts.append(f"{name} images score {most:.2f} most often, the middle half of them {low:.2f} to {high:.2f}")
    return f"Scores {side}: {'; '.join(parts)}."


def overlap(a: Curve, b: Curve) -> float | None:
    """The area that two densities have in common, as a fraction of either; None if one has no area.

    >>> overlap(Curve(np.array([0.0, 2.0]), np.array([1.0, 1.0])), Curve(np.array([1.0, 3.0]), np.array([1.0, 1.0])))
    0.5
    """
    if min(len(a.x), len(b.x)) < 2:
        return None
    grid = np.linspace(min(a.x[0], b.x[0]), max(a.x[-1], b.x[-1]), 3001)
    heights = [np.interp(grid, of.x, of.y, left=0.0, right=0.0) for of in (a, b)]
    areas = [float(height.sum()) for height in heights]
    if min(areas) <= 0:
        return None
    return round(float(np.minimum(heights[0] / areas[0], heights[1] / areas[1]).sum()), 3)


def _ordered(queries: Mapping[str, tuple[Query, ...]]) -> dict[str, tuple[Query, ...]]:
    names = [*(name for name in _GROUPS if name in queries), *(name for name in queries if name not in _GROUPS)]
    return {name: queries[name] for name in names if queries[name]}


def _wanted(queries: Mapping[str, tuple[Query, ...]], drawn: EmbeddingMap | None) -> dict[int, int]:
    """The rows whose pictures the page shows, each with its number of pixels."""
    rows = set()
    for name, of in queries.items():
        for query in of:
            rows.add(query.row)
            for ranked in query.ranked:
                costly = ranked.costly if name == "worst" else ()
                rows |= {image.row for image in (*ranked.first, *costly, *((ranked.late,) if ranked.late else ()))}
    side = _LARGE if len(rows) <= _MANY else _SMALL
    found = dict.fromkeys(sorted(rows), side)
    if drawn is not None:
        for row in drawn.rows:
            found.setdefault(row, _ON_MAP)
    return found


def _looks(sides: Sequence[Side]) -> list[tuple[Side, str]]:
    """Each side with its look: that of the last side is the strong one."""
    return [(side, "after" if side is sides[-1] else "before") for side in sides]


def _known(value: float) -> float:
    return -1.0 if math.isnan(value) else value


def _report_notes(findings: Findings) -> list[str]:
    reports = [side.report for side in findings.sides]
    notes = [note for report in reports for note in report.notes]
    return [*notes, *(findings.change.notes if findings.change is not None else ())]
