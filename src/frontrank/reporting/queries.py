"""Which queries a report shows, and their ranked lists with the cost of every wrong image."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from frontrank.ranking import Vectors, exact_scores, slack
from frontrank.reporting.findings import Floats, Query, Ranked, Rows, Shown

Flags = NDArray[np.bool_]


def lost_precision(right: Flags) -> Floats:
    """What each image of a list costs: its share of the AP that is lost; 0 for those that are right [place].

    right: is it a positive? from the first place to the last

    The j-th of P positives, at place r_j, has the precision j / r_j and so loses 1 - j / r_j = w / r_j, where w wrong
    images stand before it: each of them takes 1 / r_j. The cost of a wrong image is the sum of 1 / r_j over the
    positives after it, divided by P; all costs of a list add up to 1 - AP. The first wrong images cost most.

    >>> lost_precision(np.array([False, True, False, True]))  # AP is 1/2: the first loses (1/2 + 1/4) / 2
    array([0.375, 0.   , 0.125, 0.   ])
    """
    share = right / np.arange(1, len(right) + 1, dtype=np.float64)
    return np.where(right, 0.0, np.cumsum(share[::-1])[::-1] / max(1, right.sum()))


def list_order(scores: Floats, right: Flags, tie: float) -> Rows:
    """The items of a list from the first place to the last.

    Scores no further than `tie` from the next higher one are tied with it. As in `evaluate` ties are settled against
    the model: the wrong ones come first, then by index.
    """
    order = np.lexsort((np.arange(len(scores)), -scores))
    steps = -np.diff(scores[order], prepend=scores[order[:1]])
    group = np.cumsum(steps > tie)
    return order[np.lexsort((order, right[order], group))]


def choose_queries(
    average_precision: Sequence[Floats], codes: Rows, positives: Rows, per_kind: int, seed: int
) -> dict[str, Rows]:
    """The queries that are shown, by kind: best, typical, worst, and most improved where there are two sides.

    average_precision: of each query, one array per side; the last side chooses
    codes, positives:  the class of each query and how many it has to find; one that has none is not shown

    Best and worst have the highest and lowest AP, the typical ones are nearest to the median, the most improved gained
    most from the first side to the last; these are chosen first. Of equal ones that with more positives comes first,
    then the seed decides. No kind has two queries of a class, and none is shown twice.
    """
    after = average_precision[-1]
    lot = np.random.default_rng(seed).permutation(len(after))
    usable = np.flatnonzero(positives > 0)
    wanted: dict[str, Floats] = {"most improved": average_precision[0] - after} if len(average_precision) > 1 else {}
    wanted |= {"best": -after, "worst": after, "typical": np.abs(after - np.median(after[usable]))}
    per_kind = min(per_kind, max(1, len(usable) // len(wanted)))  # few queries: something for every kind
    taken: set[int] = set()
    chosen: dict[str, Rows] = {}
    for kind, value in wanted.items():
        order = usable[np.lexsort((lot[usable], -positives[usable], value[usable]))]
        if kind == "most improved":
            order = order[value[order] < 0]
        found = _of_different_classes((int(q) for q in order if int(q) not in taken), codes, per_kind)
        taken.update(found)
        chosen[kind] = np.array(found, dtype=np.int64)
    kinds = ("best", "typical", "worst", "most improved")
    return {kind: chosen[kind] for kind in kinds if len(chosen.get(kind, ()))}


def _of_different_classes(order: Iterable[int], codes: Rows, count: int) -> list[int]:
    found: dict[int, int] = {}
    for query in order:
        if len(found) == count:
            break
        found.setdefault(int(codes[query]), query)
    return list(found.values())


def shown_queries(
    chosen: Mapping[str, Rows],
    sides: Sequence[tuple[Vectors, Vectors | None, Floats]],
    labels: tuple[Rows, Rows],
    table_rows: tuple[Rows, Rows],
    *,
    first: int,
    costly: int,
) -> dict[str, tuple[Query, ...]]:
    """The chosen queries with their lists on every side.

    sides:      queries, gallery (None: the queries are searched) and AP per query of each
    labels:     codes of queries and items; table_rows: where both are in the table
    """
    own = sides[0][1] is None

    def shown(query: int) -> Query:
        right = labels[1] == labels[0][query]
        listed = np.flatnonzero(np.arange(len(right)) != query) if own else np.arange(len(right))
        ranked = tuple(
            _ranked(_scores(queries, gallery, query)[listed], right[listed], table_rows[1][listed], *rest)
            for queries, gallery, ap in sides
            for rest in [(float(ap[query]), 2 * slack(queries.dim, torch.float64), first, costly)]
        )
        return Query(int(table_rows[0][query]), int(right[listed].sum()), ranked)

    return {kind: tuple(shown(int(query)) for query in some) for kind, some in chosen.items()}


def _scores(queries: Vectors, gallery: Vectors | None, query: int) -> Floats:
    """The cosines of a query with all items, in float64."""
    items = queries if gallery is None else gallery
    row = queries.read(slice(query, query + 1))
    parts = []
    for where in items.chunks():
        chunk = items.read(where)
        index = torch.arange(len(chunk), device=chunk.raw.device)
        parts.append(exact_scores(row, chunk, torch.zeros_like(index), index).cpu())
    return torch.cat(parts).numpy()


def _ranked(
    scores: Floats, right: Flags, rows: Rows, average_precision: float, tie: float, first: int, costly: int
) -> Ranked:
    order = list_order(scores, right, tie)
    costs = lost_precision(right[order])

    def at(place: int) -> Shown:  # from 0
        item = order[place]
        score = min(1.0, max(-1.0, float(scores[item])))
        return Shown(int(rows[item]), place + 1, score, bool(right[item]), float(costs[place]))

    dear = [int(place) for place in np.argsort(-costs, kind="stable")[:costly] if costs[place] > 0]
    hit = int(right[order].argmax()) if right.any() else -1
    return Ranked(
        average_precision,
        tuple(at(place) for place in range(min(first, len(order)))),
        tuple(map(at, dear)),
        hit + 1,
        at(hit) if hit >= first else None,
    )
