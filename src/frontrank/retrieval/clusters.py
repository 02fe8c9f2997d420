"""k-means on unit rows, by faiss or scikit-learn."""

import warnings

import numpy as np
import torch
from torch import Tensor

from frontrank.checks import check_integer, import_extra
from frontrank.errors import InputError
from frontrank.ranking.vectors import Vectors

_ROUNDS = 25


def kmeans_labels(embeddings: Vectors, k: int, seed: int = 0) -> Tensor:
    """Return the number of the cluster of each row, 0 to k - 1, by k-means on rows at length 1 [row].

    Uses faiss if it is installed, else scikit-learn. The same seed gives the same labels with the same library.

    >>> labels = kmeans_labels(Vectors("rows", torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])), k=2)
    >>> bool(labels[0] == labels[1] != labels[2])
    True
    """
    check_integer("k", k, at_least=1)
    check_integer("seed", seed, at_least=0, at_most=2**31 - 1)
    if k > len(embeddings):
        raise InputError(f"k is {k}, but {embeddings.name} has {len(embeddings)} rows; ask for at most that many")
    rows = np.empty(embeddings.shape, dtype=np.float32)
    for where in embeddings.chunks():
        rows[where] = embeddings.unit(where).cpu().numpy()
    try:
        labels = _cluster_by_faiss(rows, k, seed)
    except ImportError:
        labels = _cluster_by_sklearn(rows, k, seed)
    return torch.from_numpy(labels).long()


def _cluster_by_faiss(rows: np.ndarray, k: int, seed: int) -> np.ndarray:
    import faiss

    limits = {"min_points_per_centroid": 1, "max_points_per_centroid": len(rows)}  # use all points, warn about none
    kmeans = faiss.Kmeans(rows.shape[1], k, niter=_ROUNDS, seed=seed, verbose=False, **limits)
    kmeans.train(rows)
    return kmeans.index.search(rows, 1)[1][:, 0]


def _cluster_by_sklearn(rows: np.ndarray, k: int, seed: int) -> np.ndarray:
    cluster = import_extra("sklearn.cluster", "search", "k-means without faiss")
    from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters is no mistake here
        return cluster.KMeans(k, n_init=1, max_iter=_ROUNDS, random_state=seed).fit_predict(rows)
