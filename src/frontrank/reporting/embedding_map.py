"""Embeddings in two dimensions, to be looked at: t-SNE of a sample, the same images at comparable places per model.

t-SNE (van der Maaten and Hinton, 2008) keeps near images near; distances between groups mean little.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from frontrank.data.image_table import ImageTable
from frontrank.ranking import Vectors
from frontrank.reporting.findings import Floats, Rows

_WHOLE = 8  # images of a class that are taken together, where a class has so many
_FEWEST = 30  # images that t-SNE makes sense of
_PARTS = 50  # principal components that t-SNE sees: the rest is noise and time
_ROUNDS = 500  # of the first map; the second one begins near its end
_FEWER_ROUNDS = 300
_PERPLEXITY = 30.0


def sample_rows(table: ImageTable, count: int, seed: int = 0) -> Rows:
    """So many rows of the table, or all: of each category its share, and of a class a few images together.

    Within a category classes are drawn by the seed, and 8 images of each, or more where there are few classes: an image
    without others of its class would tell nothing.
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


def _of_classes(rows: Rows, labels: np.ndarray, quota: int) -> list[int]:
    """The first `quota` rows, if first come a few of one class, then of the next, and so on, then all the others."""
    names, start, code = np.unique(labels, return_index=True, return_inverse=True)
    each = max(_WHOLE, -(-quota // len(names)))
    order = np.argsort(code, kind="stable")
    place = np.empty(len(rows), dtype=np.int64)
    place[order] = np.arange(len(rows)) - np.searchsorted(code[order], code[order])
    return rows[np.lexsort((place, start[code], place // each))][:quota].tolist()


def map_places(sides: Sequence[Vectors], rows: Rows, seed: int = 0) -> tuple[list[Floats], str]:
    """The places of some rows on the map of each side [row, 2], and how they were found.

    Places are within a distance of 1 from the middle. The second side begins where the first one ended and is turned
    and mirrored to fit it best (Procrustes), so that an image that stays is seen to stay. Where all images are as far
    from each other as on the first side, both maps are one: another run of t-SNE would make a change of rounding.
    """
    tsne = _tsne() if len(rows) >= _FEWEST else None
    found: list[Floats] = []
    for side in sides:
        parts = principal_components(side.unit(torch.from_numpy(rows)).double().cpu().numpy(), _PARTS)
        places = parts[:, :2]
        if not found:
            first = parts
        if tsne is not None and places.any():
            if found and _same_but_for_rounding(parts, first):
                places = found[0]
            else:
                places = tsne(parts, found[0] if found and found[0].any() else None, seed)
        found.append(turned_onto(places, found[0]) if found else places - places.mean(0))
    why = "" if len(rows) < _FEWEST else ", as scikit-learn is not installed: pip install 'frontrank[report]'"
    return [
        _within_one(places) for places in found
    ], "t-SNE" if tsne is not None else f"the first two principal components{why}"


def principal_components(rows: Floats, count: int) -> Floats:
    """Rows in the directions in which they differ most, as many as there are or are asked for, at least two.

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
    found = (u * (s * sign))[:, :count]
    found[:, s[:count] < 1e-6 * s[0]] = 0.0
    return np.pad(found, ((0, 0), (0, max(0, 2 - found.shape[1]))))


def turned_onto(places: Floats, target: Floats) -> Floats:
    """Places turned and mirrored about their middle so that they are as near to the target as can be.

    >>> turned_onto(np.array([[0.0, 1.0], [0.0, -1.0]]), np.array([[1.0, 0.0], [-1.0, 0.0]])).round(3).tolist()
    [[1.0, 0.0], [-1.0, 0.0]]
    """
    centred = places - places.mean(0)
    u, _, v = np.linalg.svd(centred.T @ (target - target.mean(0)))
    return centred @ (u @ v)


def _same_but_for_rounding(rows: Floats, others: Floats) -> bool:
    """Whether rows, which are centred, are turned or mirrored others: then the products of all pairs are the same."""
    products = others @ others.T
    return bool(np.abs(rows @ rows.T - products).max() <= 1e-5 * np.abs(products).max())


def _within_one(places: Floats) -> Floats:
    far = np.sqrt((places**2).sum(1)).max(initial=0.0)
    return places / far if far > 0 else places


def _tsne() -> Callable[[Floats, Floats | None, int], Floats] | None:
    """The function that moves rows to their places; None where scikit-learn is missing.

    It is given where they begin, or None for the usual way: at a point, in the order of their principal components,
    and with attraction exaggerated at first. From a map there is no such phase, which would undo it.
    """
    try:
        from sklearn.manifold import TSNE  # type: ignore[import-untyped]
    except ImportError:
        return None

    def places(rows: Floats, begin: Floats | None, seed: int) -> Floats:
        start = 1e-4 * rows[:, :2] / rows[:, :2].std(0).max() if begin is None else begin
        apart = 1e-2 * start.std(0).max() * np.random.default_rng(seed).normal(size=start.shape)
        model = TSNE(
            2,
            perplexity=min(_PERPLEXITY, (len(rows) - 1) / 3),
            early_exaggeration=12.0 if begin is None else 1.0,
            init=(start + apart).astype(np.float32),  # copies that begin at one place would never part
            max_iter=_ROUNDS if begin is None else _FEWER_ROUNDS,
            random_state=seed,
        )
        return np.asarray(model.fit_transform(rows.astype(np.float32)), dtype=np.float64)

    return places
