"""The metrics of an evaluation by name: functions of a query's ranks, and of groups of embeddings."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from frontrank.checks import nearest_word
from frontrank.errors import InputError, InputTypeError
from frontrank.ranking import (
    Ranks,
    Vectors,
    average_precision,
    hierarchical_average_precision,
    map_at_r,
    ndcg,
    precision_at,
    r_precision,
    recall_at,
    reciprocal_rank,
)

DEFAULT = ("R@1", "R@10", "R@100", "R@1000", "mAP", "mAP@R", "R-precision")
OF_LEVELS = ("nDCG", "H-AP")  # also reported where labels have several levels
BY_LEVEL = ("R@1", "mAP", *OF_LEVELS)  # of coarser levels, where there is not room for all
GROUP_METRICS = ("NMI", "dists@intra", "dists@inter")

_OF_RANKS: dict[str, Callable[[Ranks], Tensor]] = {
    "mAP": average_precision,
    "mAP@R": map_at_r,
    "R-precision": r_precision,
    "MRR": reciprocal_rank,
    "nDCG": ndcg,
    "H-AP": hierarchical_average_precision,
}
_AT_K: dict[str, Callable[..., Tensor]] = {"R": recall_at, "P": precision_at, "nDCG": ndcg}
_DEFINED_FOR_ALL = ("R@", "P@", "MRR")  # a query without a positive has 0


@dataclass(frozen=True)
class Measure:
    """Metric that is a mean over queries; `empty` is its value for a query without a positive, NaN to leave it out.

    graded: looks at how relevant the positives are; others are computed for each level of the labels
    """

    name: str
    value: Callable[[Ranks], Tensor]
    empty: float
    graded: bool = False


def read_metrics(metrics: Iterable[str]) -> tuple[list[Measure], list[str]]:
    """Return the metrics asked for, each once: those of ranks, and the names of those of groups of embeddings."""
    metrics = [metrics] if isinstance(metrics, str) or not isinstance(metrics, Iterable) else list(metrics)
    if not metrics:
        raise InputError('metrics is empty; name at least one, such as "mAP"')
    for name in metrics:
        if not isinstance(name, str):
            raise InputTypeError(f'metrics must be names such as "R@1", got {name!r}')
    names = list(dict.fromkeys(metrics))
    return [measure(name) for name in names if name not in GROUP_METRICS], [n for n in names if n in GROUP_METRICS]


def measure(name: str) -> Measure:
    """Return the metric of ranks with a name, such as "R@1"."""
    empty = 0.0 if name.startswith(_DEFINED_FOR_ALL) else float("nan")
    if name in _OF_RANKS:
        return Measure(name, _OF_RANKS[name], empty, name.startswith(OF_LEVELS))
    if at := re.fullmatch(r"(R|P|nDCG)@([1-9][0-9]{0,14})", name):
        k = int(at[2])
        return Measure(name, partial(_AT_K[at[1]], k=k), empty, name.startswith(OF_LEVELS))
    known = [*_OF_RANKS, *GROUP_METRICS]
    simple = name.lower().replace("recall", "r").replace("precision", "p").replace("-", "").replace("_", "").strip()
    near = nearest_word(name.replace("_at_", "@"), known, 0.7)
    if at := re.fullmatch(r"(r|p|ndcg)@(\d*)[.\d]*", simple):
        near = f"{'nDCG' if at[1] == 'ndcg' else at[1].upper()}@{int(at[2][:15] or 1) or 1}"
    hint = f"did you mean {near}? " if near else ""
    at_k = "R@k, P@k and nDCG@k for any whole k from 1"
    raise InputError(f"metrics: {name!r} is not known; {hint}there are {at_k}, {', '.join(known)}")


def normalized_mutual_information(first: Tensor, second: Tensor) -> float:
    """Return how much two partitions of the same items agree, from 0 to 1: I(A; B) / mean of H(A), H(B).

    >>> normalized_mutual_information(torch.tensor([0, 0, 1, 1]), torch.tensor([1, 1, 0, 0]))
    1.0
    """
    a, b = (x.unique(return_inverse=True)[1] for x in (first, second))
    pairs, joint = (a * (int(b.max()) + 1) + b).unique(return_counts=True)
    shares = [torch.bincount(x).double() / len(x) for x in (a, b)]
    entropies = [-(p * p.log()).sum() for p in shares]
    joint_p = joint.double() / len(a)
    expected = shares[0][pairs // (int(b.max()) + 1)] * shares[1][pairs % (int(b.max()) + 1)]
    mutual = float((joint_p * (joint_p / expected).log()).sum())
    mean = float(sum(entropies)) / 2
    return 1.0 if mean == 0 else min(1.0, max(0.0, mutual / mean))


def class_distances(parts: list[tuple[Vectors, Tensor]]) -> tuple[float | None, float | None]:
    """Return (dists@intra, dists@inter) of embeddings with labels from 0; None for one that is not defined.

    intra: mean over classes of the mean cosine distance of two of its items; a class of one item has none
    inter: mean cosine distance of two class means, normalised
    """
    classes = 1 + max(int(labels.max()) for _, labels in parts)
    sums = torch.zeros(classes, parts[0][0].dim, dtype=torch.float64)
    sizes = torch.zeros(classes, dtype=torch.float64)
    for vectors, labels in parts:
        sizes += torch.bincount(labels, minlength=classes)
        for rows in vectors.chunks():
            sums.index_add_(0, labels[rows], vectors.read(rows).exact_unit().cpu())
    several = sizes > 1
    squares = (sums[several] ** 2).sum(1)  # |sum|^2 = items + twice the sum of cosines of pairs
    intra = 1 - (squares - sizes[several]) / (sizes[several] * (sizes[several] - 1))
    means = torch.nn.functional.normalize(sums[sizes > 0], dim=1)
    pairs = len(means) * (len(means) - 1)
    between = (means.sum(0) ** 2).sum() - (means**2).sum()
    inter = max(0.0, float(1 - between / pairs)) if pairs else None
    return (float(intra.mean().clamp(min=0)) if len(intra) else None), inter
