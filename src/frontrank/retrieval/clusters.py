"""k-means on unit rows, by faiss or scikit-learn."""

import warnings

import numpy as np
import torch
from torch import Tensor

from frontrank.checks import check_integer, check_number
from frontrank.errors import FrontrankError, InputError
from frontrank.ranking.vectors import Vectors

_ROUNDS = 25


def kmeans_labels(embeddings: Vectors, k: int, seed: int = 0) -> Tensor:
    """The number of the cluster of each row, 0 to k - 1, by k-means on rows at length 1 [row].

    Uses faiss where it is installed, else scikit-learn. The same seed gives the same labels, on the same library.

    >>> labels = kmeans_labels(Vectors("rows", torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])), k=2)
    >>> bool(labels[0] == labels[1] != labels[2])
    True
    """
    check_integer("k", k, at_least=1)
    check_integer("seed", seed, at_least=0)
    check_number("seed", seed, at_most=2**31 - 1)
    if k > len(embeddings):
        raise InputError(
            f"k is {k}, but {embeddings.name} has {len(embeddings)} rows; ask for as many clusters at most"
        )
    rows = np.empty(embeddings.shape, dtype=np.float32)
    for where in embeddings.chunks():
        rows[where] = embeddings.unit(where).cpu().numpy()
    return torch.from_numpy(_labels(rows, k, seed)).long()


def _labels(rows: "np.ndarray", k: int, seed: int) -> "np.ndarray":
    try:
        return _by_faiss(rows, k, seed)
    except ImportError:
        pass
    try:
        return _by_sklearn(rows, k, seed)
    except ImportError:
        raise FrontrankError("k-means needs faiss or scikit-learn; pip install 'frontrank[search]'") from None


def _by_faiss(rows: "np.ndarray", k: int, seed: int) -> "np.ndarray":
    import faiss

    limits = {"min_points_per_centroid": 1, "max_points_per_centroid": len(rows)}  # use all points, warn of none
    kmeans = faiss.Kmeans(rows.shape[1], k, niter=_ROUNDS, seed=seed, verbose=False, **limits)
    kmeans.train(rows)
    return kmeans.index.search(rows, 1)[1][:, 0]


def _by_sklearn(rows: "np.ndarray", k: int, seed: int) -> "np.ndarray":
    from sklearn.cluster import KMeans  # type: ignore[import-untyped]
    from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than clusters is no mistake here
        return KMeans(k, n_init=1, max_iter=_ROUNDS, random_state=seed).fit_predict(rows)
