"""Findings: what is measured of one or two models on the same images, in numbers, curves and ranked pictures."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from frontrank.data.table import ImageTable
from frontrank.errors import InputError
from frontrank.evaluation.compare import Comparison, compare_over_classes
from frontrank.evaluation.evaluate import (
    encode_labels,
    has_small_levels,
    per_query_values,
    values_by_level,
)
from frontrank.evaluation.measures import BY_LEVEL, DEFAULT, class_distances, measure
from frontrank.evaluation.report import Report
from frontrank.evaluation.statistics import Floats, interval_over_classes
from frontrank.progress import progress
from frontrank.ranking import LabelRelevance, Ranks, Relevance, Vectors, exact_ranks, exact_scores, precision, slack
from frontrank.ranking.exact import Use
from frontrank.ranking.vectors import as_array, full_precision

Indices = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Curve:
    """Points of a line: y over x."""

    x: Floats
    y: Floats


class RankedImage(NamedTuple):
    """An image in a ranked list: its row in the table, and its place in the list, from 1.

    right: whether it has the query's label
    cost:  its share of the AP that the query loses; 0 if it is right
    half:  wrong, but in the same category or another coarser level
    """

    row: int
    place: int
    score: float
    right: bool
    cost: float = 0.0
    half: bool = False


class RankedList(NamedTuple):
    """A query's list as one model ranks it: its first images, and the wrong ones that cost it most AP.

    first_right: place of its first right image, 0 if there is none; late: that image, where it is not among the first
    """

    average_precision: float
    first: tuple[RankedImage, ...]
    costly: tuple[RankedImage, ...]
    first_right: int = 0
    late: RankedImage | None = None


class QueryExample(NamedTuple):
    """A query that the report shows, by its row in the table, with one list per side."""

    row: int
    positives: int
    ranked: tuple[RankedList, ...]


@dataclass(frozen=True, eq=False)
class ModelFindings:
    """Findings of one model.

    name:      "before" or "after"; title: in words, such as "tf_efficientnet_lite0, not trained further"
    recall:    R@k over k; precision_recall: mean interpolated precision over recall
    positive_scores, negative_scores: densities over the score
    places:    of the images `Findings.mapped`, on the map
    intervals: 95 % intervals over classes of the metrics that are means over queries
    """

    name: str
    title: str
    report: Report
    recall: Curve
    precision_recall: Curve
    positive_scores: Curve
    negative_scores: Curve
    places: Floats
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)


class CategoryResult(NamedTuple):
    """A category's queries, and their R@1 and mAP per side."""

    name: str
    classes: int
    queries: int
    recall_at_1: tuple[float, ...]
    mean_ap: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Findings:
    """All findings; `sides` is (before, after), or (after,) where there is nothing to compare with.

    change:  paired difference of each metric, over classes
    queries: "best", "typical", "worst", and "most improved" where there are two sides
    mapped:  rows of the table that are on the map
    """

    table: ImageTable
    sides: tuple[ModelFindings, ...]
    change: Comparison | None
    queries: Mapping[str, tuple[QueryExample, ...]]
    mapped: Indices
    categories: tuple[CategoryResult, ...]
    notes: tuple[str, ...] = ()


# Who searches what, and with which embeddings


class _Roles(NamedTuple):
    """Rows of the table that search, those that are searched (None: the same), and the labels of both as numbers.

    levels: the labels of all rows of the table [row] or, if there are several levels, [row, level]
    """

    queries: Indices
    gallery: Indices | None
    codes: tuple[Tensor, Tensor]
    levels: np.ndarray

    @property
    def levels_of_sides(self) -> tuple[np.ndarray, np.ndarray | None]:
        """The labels of all levels of the queries, and of the gallery."""
        return self.levels[self.queries], None if self.gallery is None else self.levels[self.gallery]

    @property
    def measures_levels(self) -> bool:
        """Whether there are coarser levels that do not take long to measure."""
        return has_small_levels(*self.levels_of_sides)

    @property
    def classes(self) -> Indices:
        return np.asarray(self.codes[0].numpy())

    @property
    def items(self) -> Indices:
        return self.queries if self.gallery is None else self.gallery

    @property
    def relevance(self) -> LabelRelevance:
        return LabelRelevance(*self.codes, own=self.gallery is None)


def search_roles(table: ImageTable) -> tuple[Indices, Indices | None, tuple[str, ...]]:
    """Return the rows that search, those that are searched, and a note on rows that are left out.

    There is no gallery where each query searches the others. Only images of the role gallery make one, with
    distractors beside them: in another an image would find itself.
    """
    queries = np.flatnonzero(np.isin(table.roles, ("", "query")) & (table.labels != ""))
    if (table.roles == "gallery").any():
        return queries, np.flatnonzero(np.isin(table.roles, ("gallery", "distractor"))), ()
    left = int((table.roles == "distractor").sum())
    return queries, None, (f"{left:,} distractors are left out, as there is no gallery beside them",) if left else ()


def _read_roles(table: ImageTable) -> tuple[_Roles, tuple[str, ...]]:
    table.require_one_label("a report")
    queries, gallery, notes = search_roles(table)
    where = table.name or str(table.root)
    if not len(queries):
        raise InputError(f"{where} has no image with a label and the role '' or 'query'; give some images both")
    codes = encode_labels(table.labels[queries], None if gallery is None else table.labels[gallery])
    roles = _Roles(queries, gallery, codes, table.level_labels())
    if not bool((roles.relevance.counts > 0).any()):
        raise InputError(f"{where} has no query with another image of its class to find; give images of the same class")
    return roles, notes


class _Model(NamedTuple):
    """A model's embeddings: all rows, those that search, and those that are searched (None: the same)."""

    name: str
    title: str
    all: Vectors
    queries: Vectors
    gallery: Vectors | None


def _read_model(name: str, title: str, embeddings: Any, roles: _Roles, rows: int) -> _Model:
    what = f"embeddings of {name}"
    array = as_array(what, embeddings)
    vectors = Vectors(what, array)
    if len(vectors) != rows:
        raise InputError(f"{what} has {len(vectors):,} rows, the table has {rows:,}; give one per image")
    vectors.check()
    queries = vectors if len(roles.queries) == rows else Vectors(what, array[roles.queries])
    gallery = None if roles.gallery is None else Vectors(what, array[roles.gallery])
    return _Model(name, title, vectors, queries, gallery)


# Curves of one model over all its queries

LEVELS = 100  # recall 0/100, 1/100, ... 100/100
CELLS = 1000  # equal parts of the scores from -1 to 1 that are counted apart
_BARS = 80  # at most, of a density
_LARGEST_K, _POINTS = 1000, 60  # of a recall curve
_TILE = 2048  # queries, and items, scored together


def rank_curves(
    queries: Vectors, gallery: Vectors | None, relevance: Relevance, also: Use | None = None, show: bool | None = None
) -> tuple[Curve, Curve]:
    """Return R@k over k, and the mean interpolated precision over recall.

    also: is called with the ranks of each block of queries

    R@k is the share of queries with a positive among their first k, for k from 1 to 1,000, or to the length of a list.
    The interpolated precision of a query at recall r is the highest precision at any recall of r or more:

        p(r) = max over j >= r P of j / place_j,    place_j: where the j-th of its P positives stands

    and it is averaged over the queries that have a positive. Ties are as in `evaluate`: against the model.
    """
    first = np.full(len(queries), np.inf)
    sums, count = torch.zeros(LEVELS + 1, dtype=torch.float64), 0

    def use(some: Tensor, ranks: Ranks) -> None:
        nonlocal count
        place = (1 + ranks.before_pos + ranks.before_neg).masked_fill(~ranks.valid, torch.inf)
        first[some.numpy()] = place.amin(1).cpu().numpy()
        sums.add_(interpolated_precision(ranks).sum(0).cpu())
        count += len(some)
        if also is not None:
            also(some, ranks)

    exact_ranks(queries, gallery, relevance, None, use, show)
    length = len(queries) - 1 if gallery is None else len(gallery)
    levels = np.linspace(0, 1, LEVELS + 1)
    return recall_curve(first, length), Curve(levels, sums.numpy() / max(1, count))


def interpolated_precision(ranks: Ranks) -> Tensor:
    """Return the highest precision at each level of recall or beyond it [query, level], float64.

    >>> ranks = Ranks(*(torch.tensor([row]) for row in ([0., 1.], [1., 1.], [True, True])))  # wrong, right, right
    >>> interpolated_precision(ranks)[0, [0, 50, 51, 100]]
    tensor([0.6667, 0.6667, 0.6667, 0.6667], dtype=torch.float64)
    """
    at_positives = precision(ranks.before_pos.double(), ranks.before_neg.double()).masked_fill(~ranks.valid, 0)
    place = ranks.before_pos.long().masked_fill(~ranks.valid, 0)
    in_order = torch.zeros_like(at_positives).scatter_reduce(1, place, at_positives, "amax")
    best = in_order.flip(1).cummax(1).values.flip(1)
    wanted = torch.arange(LEVELS + 1, device=best.device) * ranks.valid.sum(1, keepdim=True)
    return best.gather(1, ((wanted + LEVELS - 1) // LEVELS - 1).clamp(min=0))  # the whole number from r P on


def recall_curve(first: Floats, length: int) -> Curve:
    """Return R@k for some k from 1 to the length of a list; first: place of each query's first positive, inf for none.

    >>> curve = recall_curve(np.array([1.0, 3.0, np.inf, 1.0]), length=4)
    >>> curve.x.tolist(), curve.y.tolist()
    ([1.0, 2.0, 3.0, 4.0], [0.5, 0.5, 0.75, 0.75])
    """
    most = max(1, min(length, _LARGEST_K))
    spread = np.geomspace(1, most, _POINTS).round()
    k = np.unique([*spread, *(each for each in (1, 10, 100, 1000) if each <= most), most]).astype(np.float64)
    return Curve(k, np.searchsorted(np.sort(first), k, side="right") / len(first))


def score_counts(
    queries: Vectors, gallery: Vectors | None, codes: tuple[Tensor, Tensor], show: bool | None = None
) -> tuple[Floats, Floats]:
    """Return how many positive and how many negative pairs have a score in each of `CELLS` equal parts of [-1, 1].

    Every pair of a query and an item is counted; without a gallery every two queries are one pair. A tile of pairs is
    scored at a time, in float32: a score within its rounding of a border may be counted beyond it.
    """
    items = queries if gallery is None else gallery
    rows, columns = (of.argsort(stable=True) for of in codes)  # classes together: few tiles hold positive pairs
    positive, everything = torch.zeros(2, CELLS, dtype=torch.float64)
    work = len(rows) * len(columns) / (2 if gallery is None else 1)
    with torch.no_grad(), full_precision(queries.device), progress("spread of scores", work, show) as step:
        for i in range(0, len(rows), _TILE):
            some = rows[i : i + _TILE]
            unit, labels = queries.unit(some), codes[0][some]
            for j in range(i if gallery is None else 0, len(columns), _TILE):
                them = columns[j : j + _TILE]
                scores, others = (unit @ items.unit(them).T).clamp_(-1, 1).float(), codes[1][them]
                is_half = gallery is None and i == j
                if is_half:
                    scores[torch.ones_like(scores, dtype=torch.bool).tril()] = 2  # beyond the cells
                everything += torch.histc(scores, CELLS, -1, 1).cpu()
                if labels[-1] >= others[0] and others[-1] >= labels[0]:
                    same = (labels[:, None] == others).to(scores.device)
                    positive += torch.histc(scores[same], CELLS, -1, 1).cpu()
                step(len(some) * len(them) / (2 if is_half else 1))
    return positive.numpy(), (everything - positive).numpy()


def densities(positive: Floats, negative: Floats) -> tuple[Curve, Curve]:
    """Return the counts of `score_counts` as densities on one axis from the lowest to the highest score, in 80 bars.

    x is the middle of a bar, and the sum of a bar's width times y is 1 (0 if there are no such pairs).
    """
    held = np.flatnonzero(positive + negative)
    low, high = int(held[0]), int(held[-1]) + 1
    wide = math.ceil((high - low) / _BARS)
    starts = np.arange(low, high, wide)
    width = 2 * wide / CELLS
    middles = -1 + 2 * starts / CELLS + width / 2
    bars = [np.add.reduceat(counts[:high], starts) for counts in (positive, negative)]
    right, wrong = (Curve(middles, each / max(1.0, float(each.sum())) / width) for each in bars)
    return right, wrong


# Queries that a report shows, and their ranked lists with the cost of every wrong image


def lost_precision(right: Flags) -> Floats:
    """Return what each image of a list costs: its share of the AP that is lost; 0 for a right one [place].

    right: whether it is a positive, from the first place to the last

    The j-th of P positives, at place r_j, has the precision j / r_j and so loses 1 - j / r_j = w / r_j, where w wrong
    images stand before it: each of them takes 1 / r_j. The cost of a wrong image is the sum of 1 / r_j over the
    positives after it, divided by P; all costs of a list add up to 1 - AP. The first wrong images cost most.

    >>> lost_precision(np.array([False, True, False, True]))  # AP is 1/2: the first loses (1/2 + 1/4) / 2
    array([0.375, 0.   , 0.125, 0.   ])
    """
    share = right / np.arange(1, len(right) + 1, dtype=np.float64)
    return np.where(right, 0.0, np.cumsum(share[::-1])[::-1] / max(1, right.sum()))


def list_order(scores: Floats, right: Flags, tie: float) -> Indices:
    """Return the items of a list from the first place to the last.

    Scores no further than `tie` from the next higher one are tied with it. As in `evaluate` a tie counts against the
    model: the wrong ones come first, then by index.
    """
    order = np.lexsort((np.arange(len(scores)), -scores))
    steps = -np.diff(scores[order], prepend=scores[order[:1]])
    group = np.cumsum(steps > tie)
    return order[np.lexsort((order, right[order], group))]


def choose_queries(
    average_precision: Sequence[Floats], codes: Indices, positives: Indices, per_kind: int, seed: int
) -> dict[str, Indices]:
    """Choose the queries to show, by kind: best, typical, worst, and most improved where there are two sides.

    average_precision: of each query, one array per side; the last side decides
    codes, positives:  class of each query, and its number of positives; a query without one is not chosen

    Best and worst have the highest and lowest AP, the typical ones are nearest to the median, the most improved gained
    most from the first side to the last; these are chosen first. Of equal ones the one with more positives comes
    first, then the seed decides. No kind has two queries of a class, and no query is chosen twice.
    """
    after = average_precision[-1]
    lot = np.random.default_rng(seed).permutation(len(after))
    usable = np.flatnonzero(positives > 0)
    wanted: dict[str, Floats] = {"most improved": average_precision[0] - after} if len(average_precision) > 1 else {}
    wanted |= {"best": -after, "worst": after, "typical": np.abs(after - np.median(after[usable]))}
    per_kind = min(per_kind, max(1, len(usable) // len(wanted)))  # few queries: something for every kind
    taken = np.zeros(0, dtype=np.int64)
    chosen: dict[str, Indices] = {}
    for kind, value in wanted.items():
        order = usable[np.lexsort((lot[usable], -positives[usable], value[usable]))]
        if kind == "most improved":
            order = order[value[order] < 0]
        order = order[~np.isin(order, taken)]
        firsts = np.unique(codes[order], return_index=True)[1]  # of each class
        chosen[kind] = order[np.sort(firsts)[:per_kind]]
        taken = np.append(taken, chosen[kind])
    kinds = ("best", "typical", "worst", "most improved")
    return {kind: chosen[kind] for kind in kinds if len(chosen.get(kind, ()))}


def _rank_query(
    query: int, sides: Sequence[tuple[_Model, Report]], roles: _Roles, first: int, costly: int
) -> QueryExample:
    """Rank the gallery for a query by every model; return `first` images, and `costly` wrong ones that cost most AP."""
    right = roles.codes[1].numpy() == int(roles.codes[0][query])
    listed = np.flatnonzero((np.arange(len(right)) != query) | (roles.gallery is not None))
    right, rows = right[listed], roles.items[listed]
    half = np.zeros(len(rows), dtype=bool)
    if roles.levels.ndim == 2:
        half = ~right & (roles.levels[rows, 1:] == roles.levels[roles.queries[query], 1:]).any(1)

    def rank(model: _Model, report: Report) -> RankedList:
        scores = _scores(model, query)[listed]
        order = list_order(scores, right, 2 * slack(model.queries.dim, torch.float64))
        hits = right[order]
        costs = lost_precision(hits)

        def at(place: int) -> RankedImage:  # from 0
            item = order[place]
            score = min(1.0, max(-1.0, float(scores[item])))
            cost = float(costs[place])
            return RankedImage(int(rows[item]), place + 1, score, bool(right[item]), cost, bool(half[item]))

        dearest = [int(place) for place in np.argsort(-costs, kind="stable")[:costly] if costs[place] > 0]
        hit = int(hits.argmax()) if hits.any() else -1
        best = tuple(map(at, range(min(first, len(order)))))
        late = at(hit) if hit >= first else None
        precision = float(report.per_query["mAP"][query])
        return RankedList(precision, best, tuple(map(at, dearest)), hit + 1, late)

    return QueryExample(int(roles.queries[query]), int(right.sum()), tuple(starmap(rank, sides)))


def _scores(model: _Model, query: int) -> Floats:
    """Return the cosines of a query with all items, in float64."""
    items = model.queries if model.gallery is None else model.gallery
    row = model.queries.read(slice(query, query + 1))
    parts = []
    for where in items.chunks():
        chunk = items.read(where)
        index = torch.arange(len(chunk), device=chunk.raw.device)
        parts.append(exact_scores(row, chunk, torch.zeros_like(index), index).cpu())
    return torch.cat(parts).numpy()


# Map: t-SNE of a sample in two dimensions, the same images at comparable places per model

_WHOLE = 8  # images of a class that are taken together, where a class has so many
_FEWEST = 30  # images that t-SNE makes sense of
_PARTS = 50  # principal components that t-SNE sees: the rest is noise and time
_FROM_A_MAP = {"early_exaggeration": 1.0, "max_iter": 300}  # fewer rounds: it begins near its end


def sample_rows(table: ImageTable, count: int, seed: int = 0) -> Indices:
    """Draw `count` rows of the table, or all: of each category its share, and of a class several images.

    Within a category classes are drawn by the seed, and 8 images of each, or more where there are few classes: a single
    image of a class would show nothing.
    """
    if len(table) <= count:
        return np.arange(len(table))
    shuffled = np.random.default_rng(seed).permutation(len(table))
    chosen: list[int] = []
    shared = 0
    for category in np.unique(table.categories):
        rows = shuffled[table.categories[shuffled] == category]
        shared += len(rows)
        chosen += _of_classes(rows, table.labels[rows], shared * count // len(table) - len(chosen))
    return np.sort(np.array(chosen, dtype=np.int64))


def _of_classes(rows: Indices, labels: np.ndarray, quota: int) -> list[int]:
    """Return the first `quota` rows, ordered so that several of a class come together, class after class."""
    names, start, code = np.unique(labels, return_index=True, return_inverse=True)
    each = max(_WHOLE, -(-quota // len(names)))
    order = np.argsort(code, kind="stable")
    place = np.empty(len(rows), dtype=np.int64)
    place[order] = np.arange(len(rows)) - np.searchsorted(code[order], code[order])
    return rows[np.lexsort((place, start[code], place // each))][:quota].tolist()


def place_on_map(sides: Sequence[Vectors], rows: Indices, seed: int = 0) -> tuple[list[Floats], str]:
    """Return the places of some rows on the map of each side [row, 2], and the method in words.

    Places are within a distance of 1 from the middle. The second side starts where the first one ended and is rotated
    and mirrored to fit it best (Procrustes), so that an image that does not move stays in place. Where the distances
    between all images are those of the first side, both maps are the same: t-SNE would show rounding as a change.
    """
    tsne = _tsne() if len(rows) >= _FEWEST else None
    maps: list[Floats] = []
    for side in sides:
        parts = principal_components(side.unit(torch.from_numpy(rows)).double().cpu().numpy(), _PARTS)
        places, products = parts[:, :2], parts @ parts.T  # products of all pairs stay if rows are turned or mirrored
        if not maps:
            first = products
        if tsne is not None and places.any():
            if maps and np.abs(products - first).max() <= 1e-5 * np.abs(first).max():
                places = maps[0]
            else:
                places = tsne(parts, maps[0] if maps and maps[0].any() else None, seed)
        maps.append(rotate_onto(places, maps[0]) if maps else places - places.mean(0))
    why = "" if len(rows) < _FEWEST else ", as scikit-learn is not installed: pip install 'frontrank[report]'"
    method = "t-SNE" if tsne is not None else f"the first two principal components{why}"
    return [places / (np.sqrt((places**2).sum(1)).max(initial=0.0) or 1.0) for places in maps], method


def principal_components(rows: Floats, count: int) -> Floats:
    """Return rows in the directions in which they differ most: `count` or as many as there are, at least two.

    >>> principal_components(np.array([[5.0, 0.0], [5.0, 6.0]]), 2)
    array([[-3.,  0.],
           [ 3.,  0.]])
    """
    centred = rows - rows.mean(0)
    if np.abs(centred).max(initial=0.0) < 1e-6:  # all at one place, but for rounding
        return np.zeros((len(rows), 2))
    u, s, v = np.linalg.svd(centred, full_matrices=False)
    largest = np.abs(v).argmax(1)
    sign = np.where(v[np.arange(len(v)), largest] < 0, -1.0, 1.0)  # which is left open by the decomposition
    parts = (u * (s * sign))[:, :count]
    parts[:, s[:count] < 1e-6 * s[0]] = 0.0
    return np.pad(parts, ((0, 0), (0, max(0, 2 - parts.shape[1]))))


def rotate_onto(places: Floats, target: Floats) -> Floats:
    """Rotate and mirror places about their middle so that they are as near to the target as possible.

    >>> rotate_onto(np.array([[0.0, 1.0], [0.0, -1.0]]), np.array([[1.0, 0.0], [-1.0, 0.0]])).round(3).tolist()
    [[1.0, 0.0], [-1.0, 0.0]]
    """
    centred = places - places.mean(0)
    u, _, v = np.linalg.svd(centred.T @ (target - target.mean(0)))
    return centred @ (u @ v)


def _tsne() -> Callable[[Floats, Floats | None, int], Floats] | None:
    """Return the function that places rows on a map; None where scikit-learn is missing.

    Its second argument is where they start, or None for the usual start: near a point, in the order of their principal
    components, and with attraction exaggerated at first. From a map there is no such phase, which would undo it.
    """
    try:
        from sklearn.manifold import TSNE  # type: ignore[import-untyped]
    except ImportError:
        return None

    def places(rows: Floats, begin: Floats | None, seed: int) -> Floats:
        start = 1e-4 * rows[:, :2] / rows[:, :2].std(0).max() if begin is None else begin
        apart = 1e-2 * start.std(0).max() * np.random.default_rng(seed).normal(size=start.shape)
        init = (start + apart).astype(np.float32)  # copies that begin at one place would never part
        rounds = {"early_exaggeration": 12.0, "max_iter": 500} if begin is None else _FROM_A_MAP
        model = TSNE(2, perplexity=min(30.0, (len(rows) - 1) / 3), init=init, random_state=seed, **rounds)
        return np.asarray(model.fit_transform(rows.astype(np.float32)), dtype=np.float64)

    return places


# All findings from embeddings

_FIRST, _PER_KIND, _COSTLY = 10, 4, 5  # images of a list, queries of each kind, negatives that cost most AP
_MAPPED = 1500  # images on the map


def measure_findings(
    table: ImageTable,
    sides: Sequence[tuple[str, str, Any]],
    *,
    seed: int = 0,
    show: bool | None = None,
) -> Findings:
    """Measure what a report shows: metrics, curves, ranked queries, categories and a map, per model.

    table:  the images that search each other; where some have the role "gallery", those of the roles "query" and ""
            search them, and the distractors with them
    sides:  name, title and embeddings [row of the table, dimension] of one model, or of two: before and after
    seed:   of the sample on the map and of its places, and of choices among equal queries
    show:   progress bars; None draws them on a terminal

    Every number is exact: over all queries and all pairs, by cosine similarity; a tie counts against the model, as in
    `evaluate`. Intervals and p-values are over classes, as queries of a class are alike. Memory never holds
    queries x gallery.
    """
    if len(sides) not in (1, 2):
        raise InputError(f"sides has {len(sides)} models; give one, or two to compare")
    roles, notes = _read_roles(table)
    models = [_read_model(*side, roles, len(table)) for side in sides]
    sample = sample_rows(table, _MAPPED, seed)
    places, method = place_on_map([model.all for model in models], sample, seed)
    results = tuple(_measure_model(model, roles, of, show) for model, of in zip(models, places, strict=True))
    reports = [each.report for each in results]
    precisions = [report.per_query["mAP"] for report in reports]
    chosen = choose_queries(precisions, roles.classes, reports[0].positives, _PER_KIND, seed)
    both = list(zip(models, reports, strict=True))
    examples = {
        kind: tuple(_rank_query(query, both, roles, _FIRST, _COSTLY) for query in queries.tolist())
        for kind, queries in chosen.items()
    }
    names = (sides[0][0], sides[-1][0])
    change = compare_over_classes(reports[0], reports[1], roles.classes, names) if reports[1:] else None
    if lonely := reports[0].without_positive:
        some = f"{lonely:,} of {reports[0].queries:,} queries have no positive"
        notes += (f"{some}: R@k counts them as misses, mAP leaves them out",)
    some = "all" if len(sample) == len(table) else f"{len(sample):,} of"
    if roles.levels.ndim == 2:
        levels = ", ".join(f"{place} {name}" for place, name in enumerate(table.level_names(), 1))
        too_many = f"only level 1 is measured: level {roles.levels.shape[1]} has too many right images"
        measured = "metrics without a level are of level 1" if roles.measures_levels else too_many
        notes += (f"levels of the labels: {levels}; {measured}",)
    notes += (f"the map shows {some} {len(table):,} images by {method}",)
    return Findings(table, results, change, examples, sample, _categories(table, roles, reports), notes)


def _measure_model(model: _Model, roles: _Roles, places: Floats, show: bool | None) -> ModelFindings:
    """Measure one model; its metrics are those of `evaluate`, from one pass over the ranks."""
    queries, gallery, relevance = model.queries, model.gallery, roles.relevance
    length = len(roles.items) - (gallery is None)
    names = [name for name in DEFAULT if not name.startswith("R@") or int(name[2:]) < max(2, length)]  # no whole list
    per_query, take = per_query_values([measure(name) for name in names], len(queries))
    recall, precision = rank_curves(queries, gallery, relevance, take, show)
    if roles.measures_levels:
        per_query |= values_by_level(queries, gallery, *roles.levels_of_sides, BY_LEVEL, show)
    positive, negative = densities(*score_counts(queries, gallery, roles.codes, show))
    parts = [(queries, roles.codes[0]), *([] if gallery is None else [(gallery, roles.codes[1])])]
    distances = zip(("dists@intra", "dists@inter"), class_distances(parts), strict=True)
    whole = {name: value for name, value in distances if value is not None}
    report = Report.of(per_query, relevance.counts.numpy(), len(roles.items), whole, name=model.title)
    of_metrics = {name: interval_over_classes(values, roles.classes) for name, values in report.per_query.items()}
    intervals = {name: interval for name, interval in of_metrics.items() if interval is not None}
    return ModelFindings(model.name, model.title, report, recall, precision, positive, negative, places, intervals)


def _categories(table: ImageTable, roles: _Roles, reports: Sequence[Report]) -> tuple[CategoryResult, ...]:
    """Return R@1 and mAP of each category's queries, the largest first; none where the table has no categories.

    A category without a query that has a positive is left out: it has no mAP.
    """
    categories, labels = table.categories[roles.queries], table.labels[roles.queries]
    results = [
        CategoryResult(
            str(name) or "no category",
            len(np.unique(labels[rows])),
            int(rows.sum()),
            tuple(float(report.per_query["R@1"][rows].mean()) for report in reports),
            tuple(float(np.nanmean(report.per_query["mAP"][rows])) for report in reports),
        )
        for name in (np.unique(categories) if (categories != "").any() else ())
        if reports[0].positives[rows := categories == name].any()
    ]
    return tuple(sorted(results, key=lambda result: (-result.queries, result.name)))
