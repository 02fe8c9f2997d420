"""Curves of one model over all its queries: recall, precision over recall, and how the scores are spread."""

import math

import numpy as np
import torch
from torch import Tensor

from frontrank.progress import progress
from frontrank.ranking import Ranks, Relevance, Vectors, exact_ranks, precision
from frontrank.ranking.exact import Use
from frontrank.ranking.vectors import full_precision
from frontrank.reporting.findings import Curve, Floats

LEVELS = 100  # recall 0/100, 1/100, ... 100/100
CELLS = 1000  # equal parts of the scores from -1 to 1 that are counted apart
_BARS = 80  # at most, of a density that is shown
_LARGEST_K, _POINTS = 1000, 60  # of a recall curve
_TILE = 2048  # queries, and items, scored together


def rank_curves(
    queries: Vectors, gallery: Vectors | None, relevance: Relevance, also: Use | None = None, show: bool | None = None
) -> tuple[Curve, Curve]:
    """R@k over k, and the mean interpolated precision over recall.

    also: is handed the ranks of some queries after the other, as they come

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
    """The highest precision at each level of recall or beyond it [query, level], float64.

    >>> ranks = Ranks(*(torch.tensor([row]) for row in ([0., 1.], [1., 1.], [True, True])))  # wrong, right, right
    >>> interpolated_precision(ranks)[0, [0, 50, 51, 100]]
    tensor([0.6667, 0.6667, 0.6667, 0.6667], dtype=torch.float64)
    """
    found = precision(ranks.before_pos.double(), ranks.before_neg.double()).masked_fill(~ranks.valid, 0)
    place = ranks.before_pos.long().masked_fill(~ranks.valid, 0)
    in_order = torch.zeros_like(found).scatter_reduce(1, place, found, "amax")
    best = in_order.flip(1).cummax(1).values.flip(1)
    wanted = torch.arange(LEVELS + 1, device=found.device) * ranks.valid.sum(1, keepdim=True)
    return best.gather(1, ((wanted + LEVELS - 1) // LEVELS - 1).clamp(min=0))  # the whole number from r P on


def recall_curve(first: Floats, length: int) -> Curve:
    """R@k for some k from 1 to the length of a list; first: the place of each query's first positive, inf for none.

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
    """How many positive and how many negative pairs have a score in each of `CELLS` equal parts of [-1, 1].

    Every pair of a query and an item is counted; without a gallery every two queries are one pair. A tile of pairs is
    scored at a time, in float32: a score within its rounding of a border may be counted beyond it.
    """
    items = queries if gallery is None else gallery
    rows, columns = (of.argsort(stable=True) for of in codes)  # classes together: few tiles hold positive pairs
    counts = torch.zeros(2, CELLS, dtype=torch.float64)
    work = len(rows) * len(columns) / (2 if gallery is None else 1)
    with torch.no_grad(), full_precision(queries.device), progress("spread of scores", work, show) as step:
        for i in range(0, len(rows), _TILE):
            some = rows[i : i + _TILE]
            unit = queries.unit(some)
            for j in range(i if gallery is None else 0, len(columns), _TILE):
                them = columns[j : j + _TILE]
                scores = (unit @ items.unit(them).T).clamp_(-1, 1)
                if gallery is None and i == j:
                    scores[torch.ones_like(scores, dtype=torch.bool).tril()] = 2  # beyond the cells
                counts += _counted(scores, codes[0][some], codes[1][them])
                step(len(some) * len(them) / (2 if gallery is None and i == j else 1))
    return counts[0].numpy(), (counts[1] - counts[0]).numpy()


def _counted(scores: Tensor, labels: Tensor, others: Tensor) -> Tensor:
    """How many scores of a tile are in each cell: of positive pairs, and of all [2, cell]; labels are in order."""
    everything = torch.histc(scores.float(), CELLS, -1, 1)
    positive = torch.zeros_like(everything)
    if labels[-1] >= others[0] and others[-1] >= labels[0]:
        same = (labels[:, None] == others).to(scores.device)
        positive = torch.histc(scores[same].float(), CELLS, -1, 1)
    return torch.stack([positive, everything]).double().cpu()


def densities(positive: Floats, negative: Floats) -> tuple[Curve, Curve]:
    """The counts of `score_counts` as densities on one axis, from the lowest score to the highest, at most 80 bars.

    x is the middle of a bar, and a bar's width times y, summed up, is 1 (0 if there are no such pairs).
    """
    held = np.flatnonzero(positive + negative)
    low, high = int(held[0]), int(held[-1]) + 1
    wide = math.ceil((high - low) / _BARS)
    starts = np.arange(low, high, wide)
    width = 2 * wide / CELLS
    middles = -1 + 2 * starts / CELLS + width / 2
    bars = [np.add.reduceat(counts[:high], starts) for counts in (positive, negative)]
    return Curve(middles, _density(bars[0], width)), Curve(middles, _density(bars[1], width))


def _density(bars: Floats, width: float) -> Floats:
    return bars / max(1.0, float(bars.sum())) / width
