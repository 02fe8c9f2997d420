"""Exact evaluation of embeddings, or of given scores: per-query metrics over the full ranking."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frontrank.errors import FrontrankError, InputError, InputTypeError
from frontrank.evaluation import measures
from frontrank.evaluation.measures import Measure, class_distances, normalized_mutual_information, read_metrics
from frontrank.evaluation.report import Report
from frontrank.ranking import (
    Exact,
    LabelRelevance,
    LevelRelevance,
    Lists,
    Ranks,
    Relevance,
    Vectors,
    exact_ranks,
    is_nested,
)
from frontrank.ranking.relevance import MOST_LEVELS
from frontrank.ranking.shares import current_share
from frontrank.ranking.vectors import as_array, check_labels, make_comparable
from frontrank.retrieval import kmeans_labels

_SCORES = 1 << 24  # given scores looked at together


def evaluate(
    embeddings: Any,
    labels: Any = None,
    *,
    gallery: Any = None,
    gallery_labels: Any = None,
    relevant: Any = None,
    ignored: Any = None,
    metrics: Iterable[str] = measures.DEFAULT,
    device: torch.device | str | None = None,
    seed: int = 0,
    name: str = "",
    progress: bool | None = None,
) -> Report:
    """Evaluate how well embeddings rank: every metric is exact, over the full ranking by cosine similarity.

    embeddings: [item, dim], a tensor, an array or a memory-mapped file, any float dtype. Without a gallery every item
                is a query and searches all the others.
    labels:     one per row, numbers or text; same label = relevant. Or [item, level], finest first: R@k, mAP ... are
                then of the finest level, and those of the others are named "mAP (level 2)"; nDCG and H-AP look at how
                many levels an item shares. Or a set of labels per item: those that share one are relevant
    gallery:    what is searched instead [item, dim], with gallery_labels
    relevant:   instead of labels: a matrix [query, gallery] of booleans or of grades >= 0, or a list of index arrays,
                one per query
    ignored:    items taken out of a query's ranking, in the same form
    metrics:    "R@k", "P@k", "mAP", "mAP@R", "R-precision", "MRR", "nDCG", "nDCG@k", "H-AP", "NMI", "dists@intra",
                "dists@inter"
    device:     where scores are computed; that of the embeddings by default
    seed:       of the k-means of NMI
    progress:   draw a progress bar; None: on a terminal

    Processes that have joined each rank all queries; inside `frontrank.training.distributed.share_queries()` each ranks
    its share, and all of them get the whole report.

    An item with the same score as a positive stands before it. A query without a positive counts as a miss for R@k,
    P@k and MRR, and is left out of the other means. NMI and dists@* are of all items with a label, queries
    and gallery.

    >>> report = evaluate(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.3, 1.0]]), [0, 0, 1, 1], metrics=["R@1"])
    >>> report["R@1"]
    1.0
    """
    of_ranks, of_groups = read_metrics(metrics)
    if ignored is not None and relevant is None and labels is None:
        raise InputError("ignored was given without labels or relevant; say what is relevant")
    queries = Vectors("embeddings", embeddings, device)
    items = None if gallery is None else Vectors("gallery", gallery, queries.device)
    if items is not None:
        make_comparable(queries, items)
        queries.check()  # also those that have no positive, which are never looked at
    columns = None if items is None else len(items)
    if _has_sets(labels, gallery_labels):
        relevant = _share_labels(labels, gallery_labels, relevant, len(queries), columns, of_groups)
        labels = gallery_labels = None
    codes = _codes(len(queries), columns, labels, gallery_labels, relevant, bool(of_groups))
    searched = queries if items is None else items
    rankings = _rankings(of_ranks, codes, relevant, ignored, len(queries), len(searched), own=items is None)
    per_query: dict[str, np.ndarray] = {}
    for some, relevance, removed in rankings:
        per_query |= rank_queries(some, queries, items, relevance, removed, progress)
    whole = _group_metrics(of_groups, queries, items, codes, seed)
    settings = {"NMI seed": seed} if "NMI" in of_groups else {}
    return Report.of(per_query, rankings[0][1].counts.numpy(), len(searched), whole, name=name, settings=settings)


def evaluate_scores(
    scores: Any,
    labels: Any = None,
    *,
    gallery_labels: Any = None,
    relevant: Any = None,
    ignored: Any = None,
    metrics: Iterable[str] = measures.DEFAULT,
    name: str = "",
) -> Report:
    """Evaluate given scores [query, gallery], higher = nearer, such as those of `rerank`; see `evaluate`.

    With labels and no gallery_labels the queries are the gallery, and the diagonal is ignored.

    >>> evaluate_scores([[0.9, 0.2], [0.8, 0.1]], ["cat", "dog"], gallery_labels=["cat", "dog"])["mAP"]
    0.75
    """
    of_ranks, of_groups = read_metrics(metrics)
    if of_groups:
        raise InputError(f"metrics: {of_groups[0]} needs embeddings, which scores are not; use evaluate")
    matrix = _read_scores(scores)
    rows, columns = matrix.shape
    own = relevant is None and gallery_labels is None
    if _has_sets(labels, gallery_labels):
        relevant = _share_labels(labels, gallery_labels, relevant, rows, None if own else columns)
        labels = gallery_labels = None
    if own and rows != columns:
        raise InputError(f"scores of {rows} queries and {columns} items need gallery_labels, or relevant")
    codes = None if relevant is not None else _codes(rows, None if own else columns, labels, gallery_labels, None)
    rankings = _rankings(of_ranks, codes, relevant, ignored, rows, columns, own)
    per_query: dict[str, np.ndarray] = {}
    for of_ranking, relevance, removed in rankings:
        values, take = per_query_values(of_ranking, rows)
        with torch.no_grad():
            for some in relevance.counts.nonzero()[:, 0].split(max(1, _SCORES // columns)):
                take(some, _ranks_of_scores(matrix, some, relevance, removed, own))
        per_query |= values
    return Report.of(per_query, rankings[0][1].counts.numpy(), columns, name=name)


def _has_sets(*sides: Any) -> bool:
    """Return whether labels are sets, for several labels per item."""
    lists = [side for side in sides if isinstance(side, Sequence) or (isinstance(side, np.ndarray) and side.ndim == 1)]
    return any(isinstance(entry, set | frozenset) for side in lists for entry in side)


def _share_labels(
    labels: Any, gallery_labels: Any, relevant: Any, queries: int, items: int | None, of_groups: Sequence[str] = ()
) -> list[np.ndarray]:
    """Return the items that share a label with each query, from sets of labels."""
    if of_groups:
        raise InputError(f"metrics: {of_groups[0]} needs one label per item, and labels has sets; leave it out")
    if relevant is not None or (items is not None) != (gallery_labels is not None):
        raise InputError("labels are sets: give gallery_labels exactly if there is a gallery, and no relevant")
    sides = [("labels", labels, queries), *([] if items is None else [("gallery_labels", gallery_labels, items)])]
    for name, side, count in sides:
        if not _has_sets(side) or not all(isinstance(entry, set | frozenset) for entry in side):
            raise InputTypeError(f"{name} must be a set of labels for each item, as the other labels are")
        if len(side) != count:
            raise InputError(f"{name} has {len(side):,} entries for {count:,} rows; give one set per row")
    rows: dict[Any, list[int]] = {}
    for row, names in enumerate(sides[-1][1]):
        for name in names:
            rows.setdefault(name, []).append(row)
    shared = ({row for name in names for row in rows.get(name, ())} for names in labels)
    return [np.array(sorted(each), dtype=np.int64) for each in shared]


def _rankings(
    of: list[Measure],
    codes: tuple[Tensor, Tensor] | None,
    relevant: Any,
    ignored: Any,
    queries: int,
    items: int,
    own: bool,
) -> list[tuple[list[Measure], Relevance, Lists | None]]:
    """Return what is ranked, with its metrics: for labels of several levels each of these, and their grades."""
    if relevant is not None or codes is None or codes[0].dim() == 1:
        relevance, removed = read_relevance(codes, relevant, ignored, queries, items, own)
        uncounted = isinstance(relevance, Lists) and relevance.grades is not None and relevance.levels is None
        if uncounted and any(each.name == "H-AP" for each in of):
            raise InputError(f"metrics: H-AP counts at most {MOST_LEVELS} different grades; round those of relevant")
        return [(of, relevance, removed)]
    rankings: list[tuple[list[Measure], Relevance, Lists | None]] = []
    plain, graded = [each for each in of if not each.graded], [each for each in of if each.graded]
    for level in range(codes[0].shape[1] if plain else int(not graded)):  # metrics of groups alone: the first
        named = [replace(each, name=f"{each.name} (level {level + 1})") for each in plain] if level else plain
        of_level = (codes[0][:, level], codes[1][:, level])
        if plain and not bool(LabelRelevance(*of_level, own=own).used):
            asked = ", ".join(each.name for each in plain)
            raise InputError(f"labels: no two items share a class of level {level + 1}; leave it out, or {asked}")
        rankings.append((named, *read_relevance(of_level, None, ignored, queries, items, own)))
    if graded:
        rankings.append((graded, *read_relevance(codes, None, ignored, queries, items, own)))
    return rankings


MOST_LEVEL_PAIRS = 10_000_000  # of a coarse level that is measured without being asked for: about a minute


def level_pairs(labels: np.ndarray, gallery_labels: np.ndarray | None = None) -> int:
    """Return how many items are relevant at the coarsest of several levels [item, level], over all queries.

    >>> level_pairs(np.array([["cat", "pet"], ["dog", "pet"], ["oak", "tree"]]))
    2
    """
    names, counts = np.unique(labels[:, -1], return_counts=True)
    if gallery_labels is None:
        return int((counts * (counts - 1)).sum())
    items = dict(zip(*np.unique(gallery_labels[:, -1], return_counts=True), strict=True))
    return int(sum(count * int(items.get(name, 0)) for name, count in zip(names, counts.tolist(), strict=True)))


def has_small_levels(
    labels: np.ndarray, gallery_labels: np.ndarray | None = None, most: int = MOST_LEVEL_PAIRS
) -> bool:
    """Tell whether labels have several levels [item, level] that can be measured quickly: at most so many pairs."""
    return labels.ndim == 2 and level_pairs(labels, gallery_labels) <= most


def values_by_level(
    queries: Vectors,
    gallery: Vectors | None,
    labels: Any,
    gallery_labels: Any,
    metrics: Iterable[str],
    show: bool | None,
) -> dict[str, np.ndarray]:
    """Return the values per query of the coarser levels of labels [item, level], and of metrics of all levels."""
    codes = _codes(len(queries), None if gallery is None else len(gallery), labels, gallery_labels, None)
    items, of = len(queries if gallery is None else gallery), read_metrics(metrics)[0]
    per_query: dict[str, np.ndarray] = {}
    for some, relevance, removed in _rankings(of, codes, None, None, len(queries), items, gallery is None)[1:]:
        per_query |= rank_queries(some, queries, gallery, relevance, removed, show)
    return per_query


def rank_queries(
    of: list[Measure],
    queries: Vectors,
    gallery: Vectors | None,
    relevance: Relevance,
    removed: Lists | None,
    show: bool | None,
) -> dict[str, np.ndarray]:
    """Return the values per query of some metrics; processes that share the work each get those of all queries."""
    values, take = per_query_values(of, len(queries))
    own: list[Tensor] = []

    def take_own(some: Tensor, ranks: Ranks) -> None:
        own.append(some)
        take(some, ranks)

    exact_ranks(queries, gallery, relevance, removed, take_own, show)
    if (share := current_share()) is None:
        return values
    others = torch.ones(len(queries), dtype=torch.bool)
    others[torch.cat(own) if own else []] = False
    unranked = (relevance.counts == 0).numpy()
    for name, of_queries in values.items():
        joined = share.add(torch.from_numpy(of_queries).masked_fill(others, 0)).numpy()
        values[name] = np.where(unranked, of_queries, joined)
    return values


def per_query_values(
    of: list[Measure], queries: int
) -> tuple[dict[str, "np.ndarray"], Callable[[Tensor, Ranks], None]]:
    """Return an array of values for each metric, and the function that fills them in from ranks as they come."""
    values = {measure.name: np.full(queries, measure.empty) for measure in of}

    def take(some: Tensor, ranks: Ranks) -> None:
        of_some = torch.stack([measure.value(ranks).double() for measure in of]).cpu() if of else ()
        for measure, value in zip(of, of_some, strict=True):
            values[measure.name][some.numpy()] = value.numpy()

    return values, take


def _codes(
    queries: int, items: int | None, labels: Any, gallery_labels: Any, relevant: Any, needed: bool = False
) -> tuple[Tensor, Tensor] | None:
    """Return labels as numbers, if there are any; raise if the arguments do not fit together.

    needed: by metrics that are not of ranks
    """
    if items is None and gallery_labels is not None:
        raise InputError("gallery_labels was given without gallery; give both, or neither")
    if labels is None:
        if relevant is None:
            raise InputError("labels is missing; give labels, or say what is relevant to each query with relevant")
        if needed:
            raise InputError("metrics: NMI and dists@* need labels; give labels, or leave these metrics out")
        return None
    if items is not None and gallery_labels is None:
        if relevant is None or needed:
            raise InputError("gallery was given without gallery_labels; give both, or relevant instead of labels")
        return None
    of_items = None if items is None else check_labels("gallery_labels", gallery_labels, items, levels=True)
    of_queries = check_labels("labels", labels, queries, levels=True)
    if of_items is not None and of_items.shape[1:] != of_queries.shape[1:]:
        raise InputError(f"labels has the shape {of_queries.shape} and gallery_labels {of_items.shape}: other levels")
    if of_queries.ndim == 1:
        return encode_labels(of_queries, of_items)
    columns = [
        encode_labels(column, None if of_items is None else of_items[:, level])
        for level, column in enumerate(of_queries.T)
    ]
    codes = torch.stack([of for of, _ in columns], 1), torch.stack([of for _, of in columns], 1)
    both = torch.cat(codes)
    if not is_nested(both) and is_nested(both.flip(1)):
        raise InputError("labels: the finest level comes first, and here the coarsest does; use labels[:, ::-1]")
    return codes


def _group_metrics(
    names: list[str], queries: Vectors, items: Vectors | None, codes: tuple[Tensor, Tensor] | None, seed: int
) -> dict[str, float]:
    if not names or codes is None:
        return {}
    codes = (codes[0][:, 0], codes[1][:, 0]) if codes[0].dim() == 2 else codes
    parts = [(queries, codes[0]), *([] if items is None else [(items, codes[1])])]
    values: dict[str, float | None] = {}
    if "NMI" in names:
        labels = torch.cat([of for _, of in parts])
        rows = queries if items is None else Vectors("embeddings", torch.cat([of.unit() for of, _ in parts]))
        values["NMI"] = normalized_mutual_information(kmeans_labels(rows, len(labels.unique()), seed).cpu(), labels)
    if {"dists@intra", "dists@inter"} & set(names):
        values["dists@intra"], values["dists@inter"] = class_distances(parts)
    for name, need in (("dists@intra", "a class with two items or more"), ("dists@inter", "two classes or more")):
        if name in names and values[name] is None:
            raise InputError(f"metrics: {name} needs {need}; leave it out")
    return {name: value for name in names if (value := values[name]) is not None}


def _read_scores(scores: Any) -> Tensor:
    if isinstance(scores, Tensor) and scores.layout == torch.strided:
        matrix = scores.detach()
    else:
        try:
            array = as_array("scores", scores)
            if array.dtype.kind not in "fiub":
                raise InputTypeError(f"scores of {array.dtype}")
            with np.errstate(over="ignore"):  # what overflows is refused as infinite
                array = array.astype(np.float64 if array.dtype.itemsize > 8 else array.dtype.newbyteorder("="))
            matrix = torch.from_numpy(array)  # which takes the byte order of the machine only
        except (FrontrankError, TypeError) as error:
            raise InputTypeError("scores must be a matrix of numbers, dense, all rows of one length") from error
    if matrix.ndim != 2 or not matrix.numel():
        raise InputError(f"scores must have the shape (queries, gallery), got {tuple(matrix.shape)}")
    if not matrix.dtype.is_floating_point:
        raise InputTypeError(f"scores must be floating point numbers, got {matrix.dtype}; convert to float32")
    return matrix


def _ranks_of_scores(matrix: Tensor, some: Tensor, relevance: Relevance, removed: Lists | None, own: bool) -> Ranks:
    """Return the exact ranks of some queries, from their scores."""
    scores = matrix.index_select(0, some.to(matrix.device))
    scores = scores.clone() if scores.dtype == torch.float64 else scores.float()
    listed = torch.ones(scores.shape, dtype=torch.bool)
    if own:
        listed[torch.arange(len(some)), some] = False
    if removed is not None:
        out = removed.positives(some)
        listed[out.valid.nonzero()[:, 0], out.index[out.valid]] = False
    listed = listed.to(scores.device)
    if bad := (~torch.isfinite(scores) & listed).any(1).nonzero()[:, 0].tolist():
        raise InputError(f"scores has NaN or infinite values in row {int(some[bad[0]])}; look at where they come from")
    positives, device = relevance.positives(some), scores.device
    asked = replace(positives.to(device), candidates=listed)
    ranks = Exact().ranks(scores, asked, slopes=False)[0]
    double = {name: x.double() for name, x in ranks._asdict().items() if x is not None and x.dtype != torch.bool}
    return ranks._replace(**double)


# Arguments of an evaluation


def encode_labels(labels: "np.ndarray", gallery_labels: "np.ndarray | None") -> tuple[Tensor, Tensor]:
    """Return labels of queries and gallery as numbers from 0; the same label has the same number."""
    if gallery_labels is None:
        codes = torch.from_numpy(np.unique(labels, return_inverse=True)[1].astype(np.int64))
        return codes, codes
    if (labels.dtype.kind in "US") != (gallery_labels.dtype.kind in "US"):
        kinds = ["text" if x.dtype.kind in "US" else "numbers" for x in (labels, gallery_labels)]
        raise InputTypeError(f"labels are {kinds[0]} and gallery_labels are {kinds[1]}; convert one to the other")
    if {labels.dtype, gallery_labels.dtype} == {np.dtype(np.int64), np.dtype(np.uint64)}:
        labels, gallery_labels = labels.astype(object), gallery_labels.astype(object)  # together they would be floats
    both = np.unique(np.concatenate([labels, gallery_labels]), return_inverse=True)[1].astype(np.int64)
    return torch.from_numpy(both[: len(labels)]), torch.from_numpy(both[len(labels) :])


def read_relevance(
    codes: tuple[Tensor, Tensor] | None, relevant: Any, ignored: Any, queries: int, items: int, own: bool
) -> tuple[Relevance, Lists | None]:
    """Return what is relevant to each query, and what is taken out of its list.

    own: query i is item i, and in neither
    """
    relevance: Relevance
    if relevant is None:
        assert codes is not None  # the caller has made sure
        if codes[0].dim() == 2 and is_nested(torch.cat(codes)):
            relevance = LevelRelevance(*codes, own=own, by_level=True)
        elif codes[0].dim() == 2:
            relevance = _sharing_a_level(*codes)
        else:
            relevance = LabelRelevance(*codes, own=own)
    else:
        relevance = read_lists("relevant", relevant, queries, items, grades=True)
    removed = None if ignored is None else read_lists("ignored", ignored, queries, items)
    if own:
        itself = Lists(torch.arange(queries), torch.ones(queries, dtype=torch.long))
        relevance = relevance.without(itself) if isinstance(relevance, Lists) else relevance
        removed = None if removed is None else removed.without(itself)
    if removed is not None:
        relevance = Lists.of(relevance).without(removed)
    if not bool((relevance.counts > 0).any()):
        where = "labels and gallery_labels" if relevant is None else "relevant and ignored"
        raise InputError(f"no query has a relevant item, so there is nothing to rank; look at {where}")
    return relevance, removed


def _sharing_a_level(codes: Tensor, gallery_codes: Tensor) -> Lists:
    """Return the items that share a level with each query, whose grade is how many they share."""
    size = len(gallery_codes)
    levels = [Lists.of(LabelRelevance(*of, own=False)) for of in zip(codes.T, gallery_codes.T, strict=True)]
    pairs, grades = torch.cat([each.queries * size + each.items for each in levels]).unique(return_counts=True)
    return Lists(pairs % size, torch.bincount(pairs // size, minlength=len(codes)), grades)


def read_lists(name: str, lists: Any, queries: int, items: int, grades: bool = False) -> Lists:
    """Return gallery items of each query, from a boolean matrix or from a list of index arrays.

    grades: a matrix of numbers >= 0 is allowed; above 0 is relevant
    """
    if isinstance(lists, np.ndarray) and lists.dtype == object and lists.ndim:
        lists = list(lists)
    kinds = f"{name} must be a boolean matrix or a list of index arrays, one per query"
    if isinstance(lists, Tensor | np.ndarray) or _is_nested_bool(lists):
        array = as_array(name, lists)
        whole = array.dtype.kind in "iu" and array.shape == (queries, items)  # others may be indices
        graded = grades and (array.dtype.kind == "f" or whole)
        if array.dtype != bool and not graded:
            raise InputTypeError(f"{kinds}, got an array of {array.dtype}; use {name}.astype(bool) or list({name})")
        if array.shape != (queries, items):
            raise InputError(f"{name} must have the shape (queries, gallery) = ({queries}, {items}), got {array.shape}")
        with np.errstate(over="ignore"):  # what overflows is refused as infinite
            matrix = torch.from_numpy(array.astype(np.float64) if graded else array.copy())
        if graded and not bool((torch.isfinite(matrix) & (matrix >= 0)).all()):
            raise InputError(f"{name} must have grades >= 0, and finite ones; 0 means not relevant")
        return Lists((matrix > 0).nonzero()[:, 1], (matrix > 0).sum(1), matrix[matrix > 0] if graded else None)
    if not isinstance(lists, Sequence) or isinstance(lists, str):
        raise InputTypeError(f"{kinds}, got {type(lists).__name__}")
    if len(lists) != queries:
        raise InputError(f"{name} has {len(lists):,} lists for {queries:,} queries; give one per query, empty if none")
    rows = [read_indices(f"{name}[{i}]", of, items) for i, of in enumerate(lists)]
    return Lists(torch.cat(rows), torch.tensor([len(of) for of in rows]))


def read_indices(name: str, indices: Any, items: int) -> Tensor:
    """Return gallery items given by their index, each once."""
    array = as_array(name, indices)
    if array.size == 0:
        return torch.empty(0, dtype=torch.long)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise InputTypeError(f"{name} must be a list of whole numbers, got {array.dtype} of shape {array.shape}")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= items:
        raise InputError(f"{name} names item {low if low < 0 else high}, but the gallery has items 0 to {items - 1}")
    values, counts = np.unique(array, return_counts=True)
    if len(values) < len(array):
        raise InputError(f"{name} names item {values[counts > 1][0]} more than once; name each item once")
    return torch.from_numpy(values.astype(np.int64))


def _is_nested_bool(lists: Any) -> bool:
    """Tell whether it is a list of rows of True and False."""
    if not isinstance(lists, Sequence) or isinstance(lists, str):
        return False
    rows = [row for row in lists if isinstance(row, Sequence | np.ndarray | Tensor) and len(row)]
    return bool(rows) and all(isinstance(x, bool | np.bool_) for row in rows[:8] for x in list(row)[:8])
