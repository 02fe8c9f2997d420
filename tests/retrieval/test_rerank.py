import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frontrank.retrieval import neighbours
from frontrank.retrieval.rerank import reciprocal_pairs, rerank
from tests.reference import retrieval_rerank as reference

MODULE = sys.modules["frontrank.retrieval.rerank"]  # its name in the package is that of the function
INF = float("inf")
E1, E2, _ = torch.eye(3)


def close(found, expected, tolerance):
    torch.testing.assert_close(
        found.double(), torch.tensor(expected, dtype=torch.float64).view(found.shape), rtol=0, atol=tolerance
    )


def groups(count, each, dim=8, noise=0.5):
    """Items around a few centres, so that neighbourhoods overlap."""
    centres = torch.randn(count, dim, dtype=torch.float64)
    return centres.repeat(each, 1) + noise * torch.randn(count * each, dim, dtype=torch.float64)


@pytest.fixture(params=["whole", "blocks"])
def blocks(request, monkeypatch):
    if request.param == "blocks":
        monkeypatch.setattr(MODULE, "_BUDGET", 50)
        monkeypatch.setattr(neighbours, "GROUP", 3)
        monkeypatch.setattr(neighbours, "_ITEMS", 5)


SETTINGS = [(1, 1, 1.0), (2, 2, 0.0), (4, 1, 0.3), (7, 3, 0.3), (6, 2, 0.7), (60, 50, 0.3)]


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize(("k1", "k2", "lam"), SETTINGS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_equals_the_equations(k1, k2, lam, dtype, tolerance):
    items = groups(4, 7).to(dtype)
    queries, gallery = items[:5], items[5:]
    expected = reference.reranked(queries.tolist(), gallery.tolist(), k1, k2, lam)
    found = rerank(queries, gallery, k1, k2, lam)
    assert found.dtype == dtype
    close(found, expected, tolerance)
    close(rerank(gallery, None, k1, k2, lam), reference.reranked(gallery.tolist(), None, k1, k2, lam), tolerance)


@given(data=st.data())
def test_any_items(data):
    """Few directions: many ties, copies and opposite items."""
    angles = st.sampled_from([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0], [3.0, 4.0], [4.0, -3.0]])
    queries = data.draw(st.lists(angles, min_size=1, max_size=4))
    gallery = data.draw(st.one_of(st.none(), st.lists(angles, min_size=1, max_size=8)))
    k1 = data.draw(st.integers(1, 8))
    k2 = data.draw(st.integers(1, k1))
    lam = data.draw(st.sampled_from([0.0, 0.3, 1.0]))
    items = None if gallery is None else torch.tensor(gallery, dtype=torch.float64)
    found = rerank(torch.tensor(queries, dtype=torch.float64), items, k1, k2, lam)
    close(found, reference.reranked(queries, gallery, k1, k2, lam), 1e-12)


def test_by_hand():
    """Items a = b = (1, 0, 0), c = (0, 1, 0) with k1 = k2 = 2: all are neighbours of all.

    Half-size sets (k = 1) are {a, b}, {a, b}, {c}; the nearest other of c is a (a tie: the lower index).

    V: a and b (1, 1, e), c (e, e, 1) with e = exp(-1). Means over the item and its nearest other: a, b (1, 1, e);
    c with a: ((1 + e) / 2, (1 + e) / 2, (1 + e) / 2) = (h, h, h). J(a, c) = (h + h + e) / (1 + 1 + h).
    """
    e = torch.tensor(-1.0).exp().item()
    h = (1 + e) / 2
    j = (2 * h + e) / (2 + h)
    found = rerank(torch.stack([E1, E1, E2]), k1=2, k2=2, lam=0.0)
    close(found, [[-INF, 1, j], [1, -INF, j], [j, j, -INF]], 1e-6)


def test_two_thirds_are_enough():
    """Half-size sets of 3 with 2 members inside are added, as Eq. 4 says; the authors' code wants more."""
    angles = torch.tensor([0.0, 10.0, 21.0, 33.0, 46.0, 60.0, 75.0, 91.0]).deg2rad().double()
    line = torch.stack([angles.cos(), angles.sin()], 1)
    near = torch.tensor(
        [[i, *sorted(set(range(8)) - {i}, key=lambda j: abs(angles[i] - angles[j]))[:4]] for i in range(8)]
    )
    item, member = reciprocal_pairs(near)
    sets = [set(member[item == i].tolist()) for i in range(8)]
    # nearest 4 of item 0: 1 2 3 4, but 3 and 4 have 0 not among theirs: R(0, 4) = {0, 1, 2}
    # half-size set (2 nearest) of item 2: {1, 2, 3}, of which 1 and 2 are in R(0, 4): 3 joins
    assert sets[0] == {0, 1, 2, 3}
    close(rerank(line, k1=4, k2=2), reference.reranked(line.tolist(), None, 4, 2, 0.3), 1e-12)


def test_other_kinds():
    items = groups(4, 6).float()
    queries, gallery = items[:6], items[6:]
    expected = rerank(queries, gallery)
    assert not rerank(queries.clone().requires_grad_(), gallery).requires_grad
    assert rerank(queries, gallery.double()).dtype == torch.float64
    torch.testing.assert_close(rerank(queries.double(), gallery).float(), expected, rtol=0, atol=1e-6)
    assert rerank(queries.half(), gallery.half()).dtype == torch.float32
