"""Rows of tensors, arrays and mapped files; their cosines, and how far off those can be."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frontrank.errors import InputError, InputTypeError
from frontrank.ranking import Vectors, exact_scores, slack
from frontrank.ranking.vectors import CHUNK, check_same_dimensions, full_precision, make_comparable, quick_scores
from tests.errors import refusal
from tests.exact_paths import set_sizes
from tests.reference.evaluation import cosine

X = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
ALL = slice(0, 5)


def mapped(path, array):
    np.save(path, array)
    return np.load(path, mmap_mode="r")


SAME = {
    "tensor": lambda path: X,
    "array": lambda path: X.numpy(),
    "float64": lambda path: X.double(),
    "big-endian": lambda path: X.numpy().astype(">f4"),
    "big-endian float64": lambda path: X.double().numpy().astype(">f8"),
    "read only": lambda path: np.broadcast_to(X.numpy(), (1, 5, 3))[0],
    "list of lists": lambda path: X.tolist(),
    "tuple of tensors": lambda path: tuple(X),
    "mapped": lambda path: mapped(path / "x.npy", X.numpy()),
    "mapped transposed": lambda path: mapped(path / "x.npy", X.numpy().T.copy()).T,
    "requires grad": lambda path: X.clone().requires_grad_(),
    "transposed tensor": lambda path: X.T.contiguous().T,
    "every second row": lambda path: torch.stack([X, -X], 1).flatten(0, 1)[::2],
    "backwards": lambda path: X.numpy()[::-1].copy()[::-1],
    "columns backwards": lambda path: X.numpy()[:, ::-1].copy()[:, ::-1],
    "expanded": lambda path: X[:, :, None].expand(-1, -1, 2)[:, :, 1],
    "long double": lambda path: X.numpy().astype(np.longdouble),
}


@pytest.mark.parametrize("kind", SAME)
def test_all_kinds_of_rows_are_the_same(kind, tmp_path):
    data = SAME[kind](tmp_path)
    vectors = Vectors("x", data)
    plain = X.double() / X.double().square().sum(1, keepdim=True).sqrt()
    wide = kind in ("float64", "big-endian float64", "list of lists", "long double")
    assert vectors.shape == (5, 3)
    assert (len(vectors), vectors.dim, vectors.name) == (5, 3, "x")
    assert vectors.dtype == (torch.float64 if wide else torch.float32)
    for rows in (ALL, torch.tensor([4, 0, 0]), slice(1, 3), torch.tensor([], dtype=torch.long)):
        chunk = vectors.read(rows)
        assert torch.equal(chunk.raw, X[rows].to(vectors.dtype))
        assert chunk.raw.dtype == chunk.unit.dtype == vectors.dtype
        assert not chunk.raw.requires_grad
        torch.testing.assert_close(chunk.unit.double(), plain[rows], rtol=0, atol=1e-15 if wide else 1.2e-7)
        torch.testing.assert_close(chunk.exact_unit(), plain[rows], rtol=0, atol=1e-15)
        torch.testing.assert_close(chunk.length, X[rows].double().norm(dim=1), rtol=1e-15, atol=0)
        assert len(chunk) == len(X[rows])
    assert torch.equal(vectors.unit(), vectors.read(ALL).unit)
    part = vectors.read(ALL)[slice(2, 4)]
    whole = vectors.read(slice(2, 4))
    assert all(torch.equal(getattr(part, of), getattr(whole, of)) for of in ("raw", "length", "unit"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_narrow_floats_are_widened(dtype):
    vectors = Vectors("x", X.to(dtype))
    assert torch.equal(vectors.read(torch.tensor([3, 1])).raw, X.to(dtype).float()[[3, 1]])
    if dtype == torch.float16:
        assert torch.equal(Vectors("x", X.to(dtype).numpy()).read(ALL).raw, X.half().float())


@pytest.mark.parametrize("make", [torch.clone, lambda x: x.numpy().copy()])
def test_rows_are_not_changed(make):
    data = make(torch.cat([X, X * 1e-30]))
    data_before = make(torch.cat([X, X * 1e-30]))
    vectors = Vectors("x", data)
    chunk = vectors.read(slice(0, 10))
    chunk.unit.zero_()
    vectors.check()
    assert (data == data_before).all()


def test_chunks_cover_all_rows_once():
    vectors = Vectors("x", torch.ones(11, 2))
    assert [(s.start, s.stop) for s in vectors.chunks(4)] == [(0, 4), (4, 8), (8, 11)]
    assert [(s.start, s.stop) for s in vectors.chunks()] == [(0, 11)]
    assert [s.stop - s.start for s in Vectors("x", torch.ones(CHUNK + 1, 1)).chunks()] == [CHUNK, 1]


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(torch.float32, s) for s in (1e-38, 1e-30, 1e-20, 1e-15, 1e15, 1e20, 1e30, 1e37)]
    + [(torch.float64, s) for s in (1e-305, 1e-200, 1e200, 1e300)]
    + [(torch.bfloat16, 1e-30), (torch.bfloat16, 1e30)],
)
def test_large_and_tiny_lengths(dtype, scale):
    rows = (X.double() * scale).to(dtype)
    chunk = Vectors("x", rows).read(ALL)
    exact = rows.double() / rows.double().abs().amax(1, keepdim=True)
    exact /= exact.norm(dim=1, keepdim=True)
    for unit in (chunk.unit.double(), chunk.exact_unit()):
        torch.testing.assert_close(unit, exact, rtol=0, atol=1e-15 if dtype == torch.float64 else 2e-7)


def test_the_smallest_numbers_there_are():
    for dtype in (torch.float32, torch.float64):
        least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
        chunk = Vectors("x", torch.tensor([[least, 0.0], [0.0, -least]], dtype=dtype)).read(slice(0, 2))
        assert chunk.unit.tolist() == [[1, 0], [0, -1]]


def test_a_row_is_the_same_beside_a_tiny_one():
    """Else equal rows are tied or not by the company they are read in."""
    rows = torch.cat([X, X[:1] * 1e-30])
    chunk, alone = Vectors("x", rows).read(slice(0, 6)), Vectors("x", X).read(ALL)
    torch.testing.assert_close(chunk.exact_unit()[:5], alone.exact_unit(), rtol=0, atol=1e-15)


def with_bad(rows, value, dtype=torch.float32, count=9):
    data = torch.ones(count, 3, dtype=dtype)
    for row in rows:
        data[row] = value
    return data


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (with_bad([4], torch.tensor([1, NAN, 1])), r"x .*\(number 4\)"),
        (with_bad([0, 8], torch.tensor([1, 1, INF])), r"\(number 0, 8\)"),
        (with_bad([1], -INF, torch.float16), r"\(number 1\)"),
        (with_bad(range(1, 8), NAN, torch.float64), r"7 rows \(number 1, 2, 3, 4, 5, \.\.\.\)"),
        (with_bad([2], 0), r"x .*zeros.* \(number 2\)"),
        (with_bad([2, 7], 0, torch.bfloat16), r"\(number 2, 7\)"),
        (with_bad([2], 1e-320, torch.float64).to(torch.float32), r"zeros.* \(number 2\)"),
    ],
)
@pytest.mark.parametrize("chunk", [2, 100])
def test_rows_without_a_direction_are_named(data, message, chunk, monkeypatch):
    set_sizes(monkeypatch, chunk=chunk)
    vectors = Vectors("x", data)
    with pytest.raises(InputError, match=message) as caught:
        vectors.check()
    assert "\n" not in str(caught.value)
    bad = ((data == 0).all(1) | ~data.isfinite().all(1)).nonzero()[0]
    with pytest.raises(InputError, match=message):
        vectors.read(bad)
    with pytest.raises(InputError, match=message):
        vectors.unit()


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (torch.ones(3, 2, dtype=torch.long), InputTypeError, "x .*torch.int64"),
        (np.ones((3, 2), dtype=np.uint8), InputTypeError, "uint8"),
        (np.ones((3, 2), dtype=object), InputTypeError, "got object"),
        ("rows", InputTypeError, "x "),
        ([[1, 2], [3, 4]], InputTypeError, "got int64"),
        ([[1.0, 2.0], [3.0]], InputError, "x "),
        (torch.ones(3), InputError, r"x .*\(3,\)"),
        (torch.ones(3, 0), InputError, r"got \(3, 0\)"),
        (torch.tensor(1.0), InputError, r"got \(\)"),
        (torch.ones(0, 3), InputError, "x .*rows"),
        (torch.eye(3).to_sparse(), InputTypeError, r"x .*to_dense"),
    ],
)
def test_what_is_not_rows(data, error, message):
    with pytest.raises(error, match=message) as caught:
        Vectors("x", data)
    assert "\n" not in str(caught.value)


def test_same_dimensions_and_the_wider_dtype():
    first, second = Vectors("queries", X), Vectors("gallery", X.double())
    make_comparable(first, second)
    assert first.read(ALL).unit.dtype == second.read(ALL).unit.dtype == torch.float64
    assert torch.equal(first.unit(), second.unit())
    refusal(lambda: check_same_dimensions(first, Vectors("gallery", X[:, :2])), "queries", "gallery")


def chunk_of(rows):
    return Vectors("x", rows).read(slice(0, len(rows)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
def test_exact_scores(dtype, monkeypatch):
    set_sizes(monkeypatch, pairs_at_once=7)
    first, second = (torch.randn(n, 20).to(dtype) for n in (4, 6))
    i, j = (x.flatten() for x in torch.meshgrid(torch.arange(4), torch.arange(6), indexing="ij"))
    found = exact_scores(chunk_of(first), chunk_of(second), i, j)
    expected = [cosine(first[a].tolist(), second[b].tolist()) for a, b in zip(i, j, strict=True)]
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-15)
    none = torch.empty(0, dtype=torch.long)
    assert exact_scores(chunk_of(first), chunk_of(second), none, none).tolist() == []


@pytest.mark.parametrize("dim", [1, 7, 63, 64, 96, 640])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_quick_scores(dim, dtype, monkeypatch):
    """No further off than sums of 64, whatever the dimension: also where all terms are equal."""
    set_sizes(monkeypatch, pairs_at_once=7)
    rows = torch.cat([torch.randn(3, dim), torch.ones(1, dim), torch.full((1, dim), 0.1)]).to(dtype)
    i, j = (x.flatten() for x in torch.meshgrid(torch.arange(5), torch.arange(5), indexing="ij"))
    found = quick_scores(chunk_of(rows), chunk_of(rows), i, j)
    expected = [cosine(rows[a].tolist(), rows[b].tolist()) for a, b in zip(i, j, strict=True)]
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=slack(64, dtype))
    none = torch.empty(0, dtype=torch.long)
    assert quick_scores(chunk_of(rows), chunk_of(rows), none, none).tolist() == []


rows_in_any_order = st.lists(st.floats(-1, 1, width=32), min_size=2, max_size=40).filter(
    lambda x: max(map(abs, x)) > 0.1
)


@given(rows_in_any_order, st.randoms(use_true_random=False))
def test_slack_bounds_what_any_order_of_summing_gives(row, random):
    """A cosine of float32 unit rows, added up term by term in a random order, against one without rounding."""
    other = row[::-1]
    units = [chunk_of(torch.tensor([one])).unit[0] for one in (row, other)]
    terms = list(units[0] * units[1])
    random.shuffle(terms)
    total = torch.tensor(0.0)
    for term in terms:
        total = total + term
    assert abs(float(total) - cosine(row, other)) <= slack(len(row), torch.float32)
    exact = exact_scores(chunk_of(torch.tensor([row])), chunk_of(torch.tensor([other])), *torch.zeros(2, 1).long())
    assert abs(float(exact) - cosine(row, other)) <= slack(len(row), torch.float64)


@pytest.mark.parametrize("value", [1.0, 0.1, 0.7])
def test_slack_where_all_roundings_add_up(value):
    """A running sum of 3000 equal terms, each rounded the same way for a long time."""
    unit = chunk_of(torch.full((1, 3000), value)).unit[0]
    running = (unit * unit).numpy().cumsum(dtype=np.float32)[-1]
    assert 1e-6 < abs(float(running) - 1) <= slack(3000, torch.float32)
    assert slack(3000, torch.float32) == pytest.approx((1.01 * 3000 + 16) * 2**-24)  # eps / 2 of float32


def test_full_precision_is_undone():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with full_precision(torch.device("cpu")):
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "medium"
        with pytest.raises(ZeroDivisionError), full_precision(torch.device("cpu")):
            1 / 0  # noqa: B018
        assert torch.get_float32_matmul_precision() == "medium"
        with torch.autocast("cpu", dtype=torch.bfloat16), full_precision(torch.device("cpu")):
            assert (X @ X.T).dtype == torch.float32
    finally:
        torch.set_float32_matmul_precision(before)
