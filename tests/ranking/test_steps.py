import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frontrank.ranking import steps

INF = float("inf")


def counted(items, thresholds):
    """How many items of the row are at or above each threshold, one by one."""
    return [[sum(x >= t for x in row) for t in ts] for row, ts in zip(items, thresholds, strict=True)]


def placed(items, ordered):
    """How many thresholds of the row are at or below each item, one by one."""
    return [[sum(t <= x for t in ts) for x in row] for row, ts in zip(items, ordered, strict=True)]


def check(items, thresholds):
    counts = steps.count_at_or_above(items.clone(), thresholds.clone())
    assert counts.dtype == items.dtype
    assert counts.tolist() == counted(items.tolist(), thresholds.tolist())
    ordered = thresholds.sort(1)[0]
    assert steps.places(items.clone(), ordered.clone()).tolist() == placed(items.tolist(), ordered.tolist())


def floats(bits):
    largest = 2.0 ** (127 if bits == 32 else 1023)
    return st.one_of(
        st.integers(-4, 4).map(float), st.floats(-1, 1, width=bits), st.floats(-largest, largest, width=bits)
    )


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float32, 32), (torch.float64, 64)])
@pytest.mark.parametrize("largest", [5, 40])
@given(data=st.data())
def test_any_numbers(dtype, bits, largest, data):
    rows = data.draw(st.integers(1, 3))
    width, size = data.draw(st.integers(0, 30)), data.draw(st.integers(1, largest))
    numbers = floats(bits)
    row = st.lists(st.one_of(numbers, st.just(-INF)), min_size=width, max_size=width)
    items = torch.tensor([data.draw(row) for _ in range(rows)], dtype=dtype).view(rows, width)
    row = st.lists(numbers, min_size=size, max_size=size)
    check(items, torch.tensor([data.draw(row) for _ in range(rows)], dtype=dtype))


@pytest.mark.parametrize("size", [1, 2, 12, 13, 14, 60])
def test_ties_and_items_that_are_taken_out(size):
    check(torch.randint(-3, 4, (4, 50)).float(), torch.randint(-3, 4, (4, size)).float())
    items = torch.randn(3, 80)
    check(items, items[:, :size])
    items.masked_fill_(torch.rand(3, 80) < 0.5, -INF)
    items[1] = -INF
    check(items, torch.randn(3, size))


@pytest.mark.parametrize("size", [13, 100, 400])
@pytest.mark.parametrize("heaps", [1, 2, 5])
def test_heaps_of_equal_thresholds(size, heaps):
    tops = torch.randn(2, heaps)
    thresholds = tops[:, torch.randint(heaps, (size,))]
    items = torch.cat([torch.randn(2, 30), tops, torch.nextafter(tops, tops + 1), torch.nextafter(tops, tops - 1)], 1)
    check(items, thresholds)


@pytest.mark.parametrize("size", [13, 50])
def test_one_threshold_far_from_a_crowd(size):
    """All but one threshold share a cell of any table of equal cells."""
    thresholds = torch.randn(2, size) * 1e-6
    thresholds[:, 0] = 1e6
    check(torch.cat([torch.randn(2, 40) * 1e-6, torch.randn(2, 5) * 1e6], 1), thresholds)


@pytest.mark.parametrize("scale", [1e-42, 1e-38, 1e-30, 1e-20, 1e20, 1e30, 1e38])
@pytest.mark.parametrize("size", [3, 13, 50])
def test_tiny_and_large_ranges(size, scale):
    check(torch.linspace(-3, 3, 41).repeat(2, 1) * scale, (torch.rand(2, size) * 6 - 3) * scale)


@pytest.mark.parametrize("size", [13, 50])
def test_close_thresholds_far_from_zero(size):
    """Neighbouring floats around 1000: differences are only a few units in the last place."""
    steps_up = torch.arange(size).float() * 2**-13
    thresholds = (1000 + steps_up)[None, torch.randperm(size)]
    items = torch.cat([1000 + steps_up, 1000 - steps_up, 1000 + steps_up + 2**-14])[None]
    check(items, thresholds)


def test_many_rows_share_a_table_of_bounded_size(monkeypatch):
    monkeypatch.setattr(steps, "_LARGEST_TABLE", 8)
    check(torch.randn(20, 30), torch.randn(20, 25))


def test_large():
    items, thresholds = torch.randn(2, 200_000), torch.randn(2, 3000)
    counts = steps.count_at_or_above(items, thresholds)
    expected = items.shape[1] - torch.searchsorted(items.sort(1)[0], thresholds)
    assert torch.equal(counts, expected.float())
