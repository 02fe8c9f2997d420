import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frontrank.ranking.vectors import Vectors
from frontrank.retrieval import nearest, neighbours
from tests.reference import retrieval_neighbours as reference


def rows_of(tensor, name="rows"):
    return Vectors(name, tensor)


def check(queries, gallery, k, own=False):
    scores, index = nearest(rows_of(queries), rows_of(gallery), k, own=own)
    expected = reference.nearest(queries.tolist(), gallery.tolist(), k, own)
    assert index.tolist() == [[j for _, j in near] for near in expected]
    assert scores.shape == index.shape
    cosines = torch.tensor([[s for s, _ in near] for near in expected], dtype=torch.float64).view(scores.shape)
    torch.testing.assert_close(scores.double(), cosines, rtol=0, atol=2e-6)


@pytest.fixture
def sizes(monkeypatch):
    def set_sizes(group, items):
        monkeypatch.setattr(neighbours, "GROUP", group)
        monkeypatch.setattr(neighbours, "_ITEMS", items)

    return set_sizes


SIZES = [(1, 1), (4, 7), (100, 100)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_sorting_everything(sizes, size, dtype):
    sizes(*size)
    queries, gallery = torch.randn(4, 6, dtype=dtype), torch.randn(9, 6, dtype=dtype)
    gallery = torch.cat([gallery, gallery[:3]])  # copies of a query are neighbours, the lower index first
    for k in (1, 3, 20):
        check(queries, gallery, k)
        check(gallery, gallery, k, own=True)


def test_by_hand():
    gallery = torch.tensor([[0.0, 2.0], [3.0, 4.0], [-5.0, 0.0]])  # cosines with (1, 0): 0, 3/5, -1
    scores, index = nearest(rows_of(torch.tensor([[7.0, 0.0]])), rows_of(gallery), 3)
    assert index.tolist() == [[1, 0, 2]]
    torch.testing.assert_close(scores, torch.tensor([[0.6, 0.0, -1.0]]))
    scores, index = nearest(rows_of(torch.ones(1, 3, requires_grad=True)), rows_of(torch.ones(1, 3)), 2, own=True)
    assert scores.shape == index.shape == (1, 0)  # an only item has no neighbour
    assert not scores.requires_grad


@pytest.mark.parametrize("size", SIZES)
def test_a_collapsed_model_gives_the_lowest_indices(sizes, size):
    sizes(*size)
    rows = rows_of(torch.randn(1, 33).expand(12, 33))
    for k, own in itertools.product((1, 2, 5), (False, True)):
        expected = [[j for j in range(12) if not (own and j == i)][:k] for i in range(12)]
        assert nearest(rows, rows, k, own=own)[1].tolist() == expected


@given(data=st.data())
def test_any_sizes_of_chunks_give_the_same(data):
    number = st.integers(-2, 2).map(float)
    row = st.lists(number, min_size=3, max_size=3).filter(any)
    gallery = torch.tensor(data.draw(st.lists(row, min_size=1, max_size=25)))
    k = data.draw(st.integers(1, 8))
    own = data.draw(st.booleans())
    queries = gallery if own else torch.tensor(data.draw(st.lists(row, min_size=1, max_size=5)))
    whole = nearest(rows_of(queries), rows_of(gallery), k, own=own)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "GROUP", data.draw(st.integers(1, 6)))
        patch.setattr(neighbours, "_ITEMS", data.draw(st.integers(1, 9)))
        parts = nearest(rows_of(queries), rows_of(gallery), k, own=own)
    assert torch.equal(whole[1], parts[1])
    assert torch.equal(whole[0], parts[0])
    scores = torch.nn.functional.normalize(queries.double()) @ torch.nn.functional.normalize(gallery.double()).T
    if own:
        scores.fill_diagonal_(-2)
    best = scores.sort(dim=1, descending=True)[0][:, : whole[0].shape[1]]
    torch.testing.assert_close(whole[0].double(), best, rtol=0, atol=1e-6)
    torch.testing.assert_close(scores.gather(1, whole[1]), best, rtol=0, atol=1e-12)


@pytest.mark.parametrize("queries", [torch.float32, torch.float64])
@pytest.mark.parametrize("gallery", [torch.float32, torch.float64])
def test_close_items_in_order(sizes, queries, gallery):
    """Items a millionth of a degree apart, where float32 products are off by more than the differences."""
    sizes(2, 50)
    one = torch.randn(1, 24, dtype=torch.float64)
    rows = one + 3e-4 * torch.randn(90, 24, dtype=torch.float64)
    check((one + 0.1 * torch.randn(3, 24)).to(queries), rows.to(gallery), 7)
    check(rows.to(gallery), rows.to(gallery), 7, own=True)


def test_the_precision_the_user_allows_changes_nothing():
    """With bfloat16 products some of the nearest would not be looked at again."""
    rows = rows_of(torch.randn(300, 33))
    expected = nearest(rows, rows, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert all(map(torch.equal, nearest(rows, rows, 5), expected))


@pytest.mark.parametrize(
    ("queries", "gallery", "dtype"),
    [("float64", "float32", "float64"), ("float32", "float64", "float64"), ("float16", "bfloat16", "float32")],
)
def test_dtypes(queries, gallery, dtype):
    one, other = torch.randn(3, 4).to(getattr(torch, queries)), torch.randn(6, 4).to(getattr(torch, gallery))
    assert nearest(rows_of(one), rows_of(other), 2)[0].dtype == getattr(torch, dtype)
    check(one, other, 2)
