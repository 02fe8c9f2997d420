import itertools

import pytest
import torch

from frontrank.retrieval import augment_database, expand_queries, expansion, neighbours
from tests.reference import retrieval_expansion as reference


@pytest.fixture(params=["whole", "blocks"])
def blocks(request, monkeypatch):
    if request.param == "blocks":
        monkeypatch.setattr(expansion, "_ROWS", 2)
        monkeypatch.setattr(neighbours, "GROUP", 3)
        monkeypatch.setattr(neighbours, "_ITEMS", 4)


def check(result, queries, gallery, k, alpha, own=False):
    expected = reference.expanded(queries.tolist(), gallery.tolist(), k, alpha, own)
    tolerance = 1e-12 if queries.dtype == torch.float64 else 2e-6
    assert result.dtype == queries.dtype
    torch.testing.assert_close(result.double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_one_neighbour_at_a_time(dtype):
    queries, gallery = torch.randn(5, 4, dtype=dtype), torch.randn(9, 4, dtype=dtype)
    gallery = torch.cat([gallery, gallery[:2]])  # an exact copy of an item is its neighbour
    for k, alpha in itertools.product((1, 3, 50), (0, 2.0)):
        check(expand_queries(queries, gallery, k, alpha), queries, gallery, k, alpha)
        check(expand_queries(gallery, None, k, alpha), gallery, gallery, k, alpha, own=True)
        check(augment_database(gallery, k, alpha), gallery, gallery, k, alpha, own=True)


def test_by_hand():
    """(1, 0) + 0.6^2 (0.6, 0.8) + 0.8^2 (0.8, -0.6) = (1.728, -0.096); (0, -1) scores 0 and (-1, 0) less."""
    gallery = torch.tensor([[0.0, -3.0], [-1.0, 0.0], [3.0, 4.0], [8.0, -6.0]])
    found = expand_queries(torch.tensor([[2.0, 0.0]]), gallery)
    torch.testing.assert_close(found, torch.tensor([[1.728, -0.096]]) / (1.728**2 + 0.096**2) ** 0.5)
    nearest_only = expand_queries(torch.tensor([[2.0, 0.0]]), gallery, k=1)  # (1, 0) + 0.64 (0.8, -0.6)
    torch.testing.assert_close(nearest_only, torch.tensor([[1.512, -0.384]]) / (1.512**2 + 0.384**2) ** 0.5)


def test_an_only_item_stays():
    rows = torch.tensor([[3.0, 4.0]])
    torch.testing.assert_close(augment_database(rows), torch.tensor([[0.6, 0.8]]))
    torch.testing.assert_close(expand_queries(rows), torch.tensor([[0.6, 0.8]]))


def test_input_is_left_alone_and_may_be_of_other_kinds():
    rows = torch.randn(9, 4)
    before = rows.clone()
    expected = expand_queries(rows[:3], rows[3:])
    assert torch.equal(rows, before)
    assert not expand_queries(rows[:3].requires_grad_(), rows[3:]).requires_grad
    mixed = expand_queries(rows[:3], rows[3:].double())
    assert mixed.dtype == torch.float32
    torch.testing.assert_close(mixed, expected)
    assert augment_database(rows.half()).dtype == torch.float32
