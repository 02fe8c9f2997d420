"""From a batch to ranked lists: for each query the scores of its positives and of its negatives."""

from typing import NamedTuple

import torch


class RankedList(NamedTuple):
    positive: torch.Tensor
    negative: torch.Tensor
    label: int | None = None
    grades: torch.Tensor | None = None  # of the positives


def lists_of_scores(scores, relevant, candidates=None, own=False, labels=None):
    """The lists of the queries that have a positive; with `own` query i is item i and not in its list."""
    lists = []
    for q in range(len(scores)):
        positive, negative, grades = [], [], []
        for j in range(scores.shape[1]):
            if (own and j == q) or (candidates is not None and not candidates[q, j]):
                continue
            (positive if relevant[q, j] > 0 else negative).append(scores[q, j])
            if relevant[q, j] > 0:
                grades.append(float(relevant[q, j]))
        if positive:
            label = None if labels is None or labels.dim() == 2 else int(labels[q])
            grades = torch.tensor(grades, dtype=scores.dtype)
            lists.append(RankedList(_stack(positive, scores), _stack(negative, scores), label, grades))
    return lists


def lists_of_batch(
    embeddings, labels=None, *, ref_emb=None, ref_labels=None, relevant=None, candidates=None, include_query=False
):
    """The lists of cosine scores that a loss is computed on."""
    gallery = embeddings if ref_emb is None else ref_emb
    if relevant is None:
        relevant = labels[:, None] == (labels if ref_emb is None else ref_labels)[None, :]
        if labels.dim() == 2:  # grade: how many levels are shared
            relevant = relevant.sum(2)
    own = ref_emb is None and not include_query
    return lists_of_scores(_unit(embeddings) @ _unit(gallery).T, relevant, candidates, own, labels)


def mean_over_queries(loss_of_list, lists):
    return sum(loss_of_list(one) for one in lists) / len(lists)


def mean_over_classes(loss_of_list, lists):
    """The mean over classes of the mean over the queries of a class."""
    classes = sorted({one.label for one in lists})
    of_class = [mean_over_queries(loss_of_list, [one for one in lists if one.label == c]) for c in classes]
    return sum(of_class) / len(classes)


def _unit(x):
    return x / (x * x).sum(1, keepdim=True).sqrt()


def _stack(values, scores):
    return torch.stack(values) if values else scores.new_empty(0)
