"""Query expansion and database-side augmentation: a descriptor moves towards its nearest neighbours."""

import torch
from torch import Tensor

from frontrank.checks import check_number
from frontrank.ranking.vectors import Vectors, full_precision
from frontrank.retrieval.neighbours import nearest, read_sides

_ROWS = 2048  # descriptors summed at once


def expand_queries(
    queries: object, gallery: object = None, k: int = 10, alpha: float = 2.0, *, progress: bool | None = None
) -> Tensor:
    """Return queries moved towards their k nearest items of the gallery, at length 1 [query, dimension].

        q' = normalise(q + sum_j max(s_j, 0)^alpha d_j)      s_j = cosine of q and d_j, j over the top k

    Filip Radenović, Giorgos Tolias, Ondřej Chum, "Fine-tuning CNN Image Retrieval with No Human Annotation", TPAMI
    2018 (alpha-weighted query expansion). A mean and a sum are the same once normalised. alpha = 0 is the plain
    average; an item with a score of 0 or less adds nothing for any alpha.

    gallery: None if the queries are their own gallery; a query is then not its own neighbour

    >>> expand_queries(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.6, 0.8], [-1.0, 0.0]]), alpha=1.0)  # (1.36, 0.48)
    tensor([[0.9430, 0.3328]])
    """
    return _expand_rows(*read_sides(queries, gallery), k, alpha, progress)


def augment_database(gallery: object, k: int = 10, alpha: float = 2.0, *, progress: bool | None = None) -> Tensor:
    """Return every item of the gallery moved towards its k nearest other items, at length 1 [item, dimension].

    The formula of `expand_queries` with the gallery as its own queries: the item itself has weight 1, the others
    max(s_j, 0)^alpha. Done once, before the gallery is indexed. The idea is that of Relja Arandjelović, Andrew
    Zisserman, "Three things everyone should know to improve object retrieval", CVPR 2012.
    """
    items = Vectors("gallery", gallery)
    return _expand_rows(items, items, k, alpha, progress)


def _expand_rows(queries: Vectors, gallery: Vectors, k: int, alpha: float, progress: bool | None) -> Tensor:
    check_number("alpha", alpha, at_least=0)
    scores, index = nearest(queries, gallery, k, own=queries is gallery, progress=progress)
    weights = torch.where(scores > 0, scores.clamp(min=0) ** alpha, 0).to(queries.dtype)
    result = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
    with full_precision(queries.device):
        for rows in queries.chunks(_ROWS):
            total = queries.unit(rows)
            for weight, j in zip(weights[rows].T, index[rows].cpu().T, strict=True):
                total += weight[:, None] * gallery.unit(j)
            result[rows] = total / torch.linalg.vector_norm(total, dim=1, keepdim=True)
    return result
