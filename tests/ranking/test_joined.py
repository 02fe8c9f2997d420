"""Several sets of rows as one: the same, bit for bit, as their rows written one after the other."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frontrank.errors import InputError
from frontrank.ranking import Lists, Vectors, exact_ranks
from frontrank.ranking.vectors import VectorParts, make_comparable

SIZES = (4, 1, 6)
DTYPES = [
    ("f4", "f4", "f4"),
    ("f8", "f8", "f8"),
    ("f4", "f4", "f8"),
    ("f8", "f4", "f2"),
    ("f4", "f8", "f4"),
    ("f2", "f2", "f2"),
]


def some_parts(dtypes=DTYPES[0], sizes=SIZES):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((size, 3)).astype(dtype) for size, dtype in zip(sizes, dtypes, strict=True)]


def joined_and_written_out(parts):
    joined = VectorParts([Vectors(f"part {i}", part) for i, part in enumerate(parts)])
    return joined, Vectors("all", np.concatenate(parts))


def check(joined, whole, rows):
    ours, theirs = joined.read(rows), whole.read(rows)
    for name in ("raw", "length", "unit"):
        first, second = getattr(ours, name), getattr(theirs, name)
        assert first.dtype == second.dtype
        assert torch.equal(first, second)
    assert torch.equal(ours.exact_unit(), theirs.exact_unit())


@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
def test_any_range(dtypes):
    joined, whole = joined_and_written_out(some_parts(dtypes))
    assert joined.shape == whole.shape == (11, 3)
    assert (len(joined), joined.dim) == (11, 3)
    assert joined.dtype == whole.dtype
    for start, stop in itertools.combinations_with_replacement(range(12), 2):
        check(joined, whole, slice(start, stop))
    assert torch.equal(joined.unit(), whole.unit())
    joined.check()


@pytest.mark.parametrize("dtypes", DTYPES, ids=str)
@given(st.lists(st.integers(0, 10), max_size=15))
def test_any_rows(dtypes, rows):
    check(*joined_and_written_out(some_parts(dtypes)), torch.tensor(rows, dtype=torch.long))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 100])
def test_chunks_cover_all_and_stay_in_one_part(rows):
    joined, _ = joined_and_written_out(some_parts())
    found = list(joined.chunks(rows))
    assert [i for some in found for i in range(some.start, some.stop)] == list(range(11))
    for some in found:
        assert 0 < some.stop - some.start <= rows
        assert any(start <= some.start and some.stop <= stop for start, stop in [(0, 4), (4, 5), (5, 11)])


def test_tensors_and_arrays_together():
    tensor, array = torch.randn(4, 3, requires_grad=True), np.random.default_rng(0).standard_normal((3, 3))
    joined = VectorParts([Vectors("a", tensor), Vectors("b", array)])
    whole = Vectors("all", torch.cat([tensor.detach().double(), torch.from_numpy(array)]))
    check(joined, whole, slice(0, 7))
    check(joined, whole, torch.tensor([6, 1, 3]))
    assert not joined.unit().requires_grad


def test_nothing_is_copied(tmp_path):
    """A mapped file stays one, and what is read afterwards is what is there then."""
    memory, kept = some_parts(("f4", "f4"), (2, 3))
    np.save(tmp_path / "kept.npy", kept)
    mapped = np.load(tmp_path / "kept.npy", mmap_mode="r+")
    joined = VectorParts([Vectors("a", memory), Vectors("b", mapped)])
    memory[0], mapped[2] = [3, 4, 0], [0, 0, 7]
    assert joined.read(slice(0, 1)).raw.tolist() == [[3, 4, 0]]
    assert joined.read(torch.tensor([4, 0])).raw.tolist() == [[0, 0, 7], [3, 4, 0]]


@pytest.mark.parametrize("rows", [slice(0, 11), slice(6, 9), torch.tensor([7])], ids=str)
@pytest.mark.parametrize("value", [math.nan, 0])
def test_bad_rows_are_named_by_their_part(rows, value):
    parts = some_parts()
    parts[2][2:4] = value  # rows 7 and 8 of all
    joined, _ = joined_and_written_out(parts)
    for read in (lambda: joined.read(rows), joined.check):
        with pytest.raises(InputError, match=r"^part 2 .*\(number 2, 3\)"):
            read()
    joined.read(slice(0, 5))  # good ones can still be read


def test_other_dimensions():
    with pytest.raises(InputError, match=r"gallery.*distractors"):
        VectorParts([Vectors("gallery", torch.ones(2, 3)), Vectors("distractors", torch.ones(2, 2))])


@pytest.mark.parametrize("dtypes", [("f4", "f4", "f4"), ("f4", "f8", "f4"), ("f2", "f4", "f2")], ids=str)
def test_ranks_in_a_joined_gallery(dtypes):
    """Positives and items taken out in every part, ties across parts, positives across the ends of parts."""
    parts = some_parts(dtypes, (40, 30, 50))
    parts[1][:10], parts[2][5:15] = parts[0][:10], parts[0][3:13]
    joined, whole = joined_and_written_out(parts)
    queries = torch.randn(5, 3)
    listed = torch.randperm(120)[:60].view(5, 12)
    relevant = Lists(listed[:, :7].flatten(), torch.full((5,), 7))
    removed = Lists(listed[:, 7:].flatten(), torch.full((5,), 5))
    found = []
    for gallery in (joined, whole):
        asked = Vectors("queries", queries)
        make_comparable(asked, gallery)
        exact_ranks(asked, gallery, relevant, removed, lambda some, ranks: found.append((some, *ranks[:3])))
    assert len(found) == 2
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
