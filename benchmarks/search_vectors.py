"""Vectors to search among, and how much of the exact answer a search finds."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import frontrank as fr

PER_CLUSTER = 50  # vectors around one centre
SPREAD = 1.2  # of them, beside numbers of centres of about 1: clusters overlap, as those of classes do
PARTS = 10  # an item belongs to one of so many parts, by which it is filtered
_BLOCK = 1 << 16
Results = dict[str, Any]


class Clusters:
    """Unit vectors around centres, in a space whose directions vary in strength."""

    def __init__(self, rows: int, dim: int) -> None:
        random = np.random.default_rng(0)
        self._strength = np.linspace(1, 0.1, dim, dtype=np.float32)
        self._centres = random.standard_normal((max(1, rows // PER_CLUSTER), dim), dtype=np.float32)

    def drawn(self, count: int, seed: int) -> np.ndarray:
        """Some of them [row, dim]."""
        random = np.random.default_rng(seed)
        found = self._centres[random.integers(len(self._centres), size=count)]
        found += SPREAD * random.standard_normal(found.shape, dtype=np.float32)
        found *= self._strength
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        return found


def clustered(rows: int, dim: int, queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors to search among, and others of their kind as queries."""
    clusters = Clusters(rows, dim)
    return clusters.drawn(rows, seed=2), clusters.drawn(queries, seed=1)


def items(rows: int, first: int = 0) -> list[fr.Item]:
    """Items whose id is their row."""
    return [
        fr.Item(str(row), f"images/{row}.jpg", label=str(row // 100), metadata={"part": row % PARTS})
        for row in range(first, first + rows)
    ]


def fill(index: fr.Index, rows: np.ndarray, at_once: int = 1000) -> None:
    """Add all rows, as many at once as `frontrank index` does, about."""
    for start in range(0, len(rows), at_once):
        some = rows[start : start + at_once]
        index.add(some, items(len(some), start))


def least_scores(rows: np.ndarray, queries: np.ndarray, k: int, part: int | None = None) -> np.ndarray:
    """The score of the k-th best row of each query, among all or those of a part, in float64 [query]."""
    best = np.full((len(queries), k), -np.inf)
    wide = queries.astype(np.float64)
    chosen = rows if part is None else rows[part::PARTS]
    for start in range(0, len(chosen), _BLOCK):
        scores = wide @ chosen[start : start + _BLOCK].astype(np.float64).T
        both = np.concatenate([best, np.partition(scores, -min(k, scores.shape[1]), axis=1)[:, -k:]], axis=1)
        best = np.partition(both, -k, axis=1)[:, -k:]
    return best.min(1)


def recall(rows: np.ndarray, queries: np.ndarray, found: Sequence[Sequence[int]], least: np.ndarray, k: int) -> float:
    """The share of the k best that was found; a row that ties with the k-th best is as good as it."""
    right = 0
    for query, of_query, score in zip(queries.astype(np.float64), found, least, strict=True):
        some = rows[list(of_query)].astype(np.float64) @ query if len(of_query) else np.empty(0)
        right += min(k, int((some >= score - 1e-6).sum()))
    return right / (k * len(queries))


def rows_of(hits: Sequence[Any]) -> list[list[int]]:
    """The rows that a search of an index found."""
    return [[int(name) for name in one.ids] for one in hits]
