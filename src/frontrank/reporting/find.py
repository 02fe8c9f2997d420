"""All that a report shows of one or two models, found from their embeddings of the same images."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from frontrank.data.image_table import ImageTable
from frontrank.errors import InputError
from frontrank.evaluation import Report
from frontrank.evaluation.evaluate import per_query_values
from frontrank.evaluation.inputs import coded
from frontrank.evaluation.measures import DEFAULT, class_distances, measure
from frontrank.ranking import LabelRelevance, Vectors
from frontrank.ranking.vectors import as_array
from frontrank.reporting.curves import densities, rank_curves, score_counts
from frontrank.reporting.embedding_map import map_places, sample_rows
from frontrank.reporting.findings import CategoryResult, Findings, Floats, Query, Rows, Side
from frontrank.reporting.over_classes import change_over_classes, class_intervals
from frontrank.reporting.queries import choose_queries, shown_queries
from frontrank.retrieval.arguments import require_count


class _Roles(NamedTuple):
    """Rows of the table that search, those that are searched (None: the same), and their labels as numbers."""

    queries: Rows
    gallery: Rows | None
    codes: tuple[Tensor, Tensor]

    @property
    def classes(self) -> Rows:
        """The class of each query."""
        return np.asarray(self.codes[0].numpy())

    @property
    def items(self) -> Rows:
        return self.queries if self.gallery is None else self.gallery


def find(
    table: ImageTable,
    sides: Sequence[tuple[str, str, Any]],
    *,
    first: int = 10,
    per_kind: int = 4,
    costly: int = 5,
    mapped: int = 1500,
    seed: int = 0,
    show: bool | None = None,
) -> Findings:
    """What a report shows: metrics, curves, ranked queries, categories and a map, per model.

    table:  the images that search each other; where some have the role "gallery", those of the roles "query" and ""
            search them, and the distractors with them
    sides:  name, title and embeddings [row of the table, dimension] of one model, or of two: before and after
    first:  images shown of a list; per_kind: queries shown of each kind; costly: negatives shown that cost most AP
    mapped: images on the map
    seed:   of the sample on the map and of its places, and of choices among equal queries
    show:   progress bars; None draws them on a terminal

    Every number is exact: over all queries and all pairs, by cosine similarity, ties settled against the model as in
    `evaluate`. Intervals and p-values are over classes, whose queries are alike. Nothing of size
    queries x gallery is held.
    """
    for name, value in {"first": first, "per_kind": per_kind, "costly": costly, "mapped": mapped}.items():
        require_count(name, value)
    if len(sides) not in (1, 2):
        raise InputError(f"sides has {len(sides)} models; give one, or two to compare")
    roles, notes = _roles(table)
    models = [_model(*side, roles, len(table)) for side in sides]
    rows_on_map = sample_rows(table, mapped, seed)
    places, how = map_places([model.all for model in models], rows_on_map, seed)
    found = tuple(_side(model, roles, of, show) for model, of in zip(models, places, strict=True))
    reports = [side.report for side in found]
    return Findings(
        table,
        found,
        change_over_classes(reports[0], reports[1], roles.classes, (sides[0][0], sides[1][0])) if reports[1:] else None,
        _queries(models, reports, roles, per_kind=per_kind, first=first, costly=costly, seed=seed),
        rows_on_map,
        _categories(table, roles, reports),
        (*notes, *_notes(reports[0]), _map_note(len(rows_on_map), len(table), how)),
    )


def _roles(table: ImageTable) -> tuple[_Roles, list[str]]:
    """Who searches what, and what is left out."""
    where = table.name or str(table.root)
    asking = np.flatnonzero(np.isin(table.roles, ("", "query")) & (table.labels != ""))
    notes: list[str] = []
    if not len(asking):
        raise InputError(f"{where} has no image with a label that searches; give some the role '' or 'query'")
    if (table.roles == "gallery").any():
        gallery = np.flatnonzero(np.isin(table.roles, ("gallery", "distractor")))
        codes = coded(table.labels[asking], table.labels[gallery])
    else:
        gallery, codes = None, coded(table.labels[asking], None)
        if left := int((table.roles == "distractor").sum()):
            notes.append(f"{left:,} distractors are left out, as there is no gallery beside them")
    roles = _Roles(asking, gallery, codes)
    if not bool((_relevance(roles).counts > 0).any()):
        raise InputError(f"{where} has no image that another of its class could find; give classes of two or more")
    return roles, notes


def _relevance(roles: _Roles) -> LabelRelevance:
    return LabelRelevance(*roles.codes, own=roles.gallery is None)


class _Model(NamedTuple):
    """A model's embeddings: all rows, those that search, and those that are searched (None: the same)."""

    name: str
    title: str
    all: Vectors
    queries: Vectors
    gallery: Vectors | None


def _model(name: str, title: str, embeddings: Any, roles: _Roles, rows: int) -> _Model:
    called = f"embeddings of {name}"
    array = as_array(called, embeddings)
    vectors = Vectors(called, array)
    if len(vectors) != rows:
        raise InputError(f"{called} has {len(vectors):,} rows, the table has {rows:,}; give one per image")
    vectors.check()
    asking = vectors if len(roles.queries) == rows else Vectors(called, array[roles.queries])
    gallery = None if roles.gallery is None else Vectors(called, array[roles.gallery])
    return _Model(name, title, vectors, asking, gallery)


def _side(model: _Model, roles: _Roles, places: Floats, show: bool | None) -> Side:
    """All of one model; its metrics are those of `evaluate`, from one pass over the ranks."""
    queries, gallery, relevance = model.queries, model.gallery, _relevance(roles)
    found, take = per_query_values([measure(name) for name in _metrics(roles)], len(queries))
    recall, precision = rank_curves(queries, gallery, relevance, take, show)
    positive, negative = densities(*score_counts(queries, gallery, roles.codes, show))
    searched = [] if gallery is None else [(gallery, roles.codes[1])]
    distances = zip(
        ("dists@intra", "dists@inter"), class_distances([(queries, roles.codes[0]), *searched]), strict=True
    )
    whole = {name: value for name, value in distances if value is not None}
    report = Report.of(found, relevance.counts.numpy(), len(roles.items), whole, name=model.title)
    intervals = class_intervals(report, roles.classes)
    return Side(model.name, model.title, report, recall, precision, positive, negative, places, intervals)


def _metrics(roles: _Roles) -> list[str]:
    """The metrics that say something of so many images: no R@k of a whole list."""
    length = len(roles.items) - (roles.gallery is None)
    return [name for name in DEFAULT if not name.startswith("R@") or int(name[2:]) < max(2, length)]


def _queries(
    models: Sequence[_Model],
    reports: Sequence[Report],
    roles: _Roles,
    *,
    per_kind: int,
    first: int,
    costly: int,
    seed: int,
) -> dict[str, tuple[Query, ...]]:
    """The queries that are shown."""
    precisions = [report.per_query["mAP"] for report in reports]
    codes = roles.codes[0].numpy(), roles.codes[1].numpy()
    chosen = choose_queries(precisions, codes[0], reports[0].positives, per_kind, seed)
    sides = [(model.queries, model.gallery, ap) for model, ap in zip(models, precisions, strict=True)]
    return shown_queries(chosen, sides, codes, (roles.queries, roles.items), first=first, costly=costly)


def _categories(table: ImageTable, roles: _Roles, reports: Sequence[Report]) -> tuple[CategoryResult, ...]:
    """R@1 and mAP of each category's queries, the largest first; none where the table has no categories.

    A category none of whose queries has a positive is left out: it has no mAP.
    """
    categories, labels = table.categories[roles.queries], table.labels[roles.queries]
    found = []
    for name in np.unique(categories) if categories.any() else ():
        rows = categories == name
        if reports[0].positives[rows].any():
            result = CategoryResult(
                str(name) or "no category",
                len(np.unique(labels[rows])),
                int(rows.sum()),
                tuple(float(report.per_query["R@1"][rows].mean()) for report in reports),
                tuple(float(np.nanmean(report.per_query["mAP"][rows])) for report in reports),
            )
            found.append(result)
    return tuple(sorted(found, key=lambda result: (-result.queries, result.name)))


def _notes(report: Report) -> list[str]:
    lonely = report.without_positive
    if not lonely:
        return []
    return [
        f"{lonely:,} of {report.queries:,} queries have no positive: R@k counts them as misses, mAP leaves them out"
    ]


def _map_note(shown: int, images: int, how: str) -> str:
    return f"the map shows {'all' if shown == images else f'{shown:,} of'} {images:,} images by {how}"
