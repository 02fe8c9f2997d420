from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frontrank.models.pooling import Pooling, average, gem, maximum, rmac, rmac_regions, unit
from tests.reference import pooling as reference

SIZES = [(1, 1), (1, 4), (3, 5), (7, 7), (9, 4)]


def random_maps(height, width):
    return torch.rand(3, 4, height, width, dtype=torch.float64)


def per_channel(function, maps, *more):
    rows = [[function(channel, *more) for channel in image] for image in maps.tolist()]
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_equal_the_loops(size):
    maps = random_maps(*size) - 0.2
    close = {"rtol": 0, "atol": 1e-11}
    torch.testing.assert_close(average(maps), per_channel(reference.average, maps), **close)
    torch.testing.assert_close(maximum(maps), per_channel(reference.maximum, maps), **close)
    for power in (0.5, 1.0, 3.0, 6.5):
        torch.testing.assert_close(gem(maps, power), per_channel(reference.gem, maps, power), **close)
    for levels in (1, 2, 3, 4):
        expected = torch.tensor([reference.rmac(image, levels) for image in maps.tolist()], dtype=torch.float64)
        torch.testing.assert_close(rmac(maps, levels), expected, **close)


def test_gem_does_not_overflow():
    maps = torch.tensor([[[[1e20, 1e20], [1e20, 1e20]]]], requires_grad=True)
    pooled = gem(maps, 3.0)
    torch.testing.assert_close(pooled, torch.tensor([[1e20]]))
    pooled.sum().backward()
    torch.testing.assert_close(maps.grad, torch.full((1, 1, 2, 2), 0.25))


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 4))
def test_regions_are_those_of_the_text_and_inside_the_map(height, width, levels):
    regions = rmac_regions(height, width, levels)
    assert Counter(regions) == reference.regions(height, width, levels)
    assert all(top + side <= height and left + side <= width for top, left, side in regions)
    assert {(left, top, side) for top, left, side in regions} == set(rmac_regions(width, height, levels))


@pytest.mark.parametrize("function", [average, maximum, gem, rmac, unit])
def test_gradients(function):
    maps = random_maps(3, 4).add(0.1).requires_grad_()
    power = torch.tensor([2.5], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (maps, power) if function is gem else (maps,))


@pytest.mark.parametrize("name", ["average", "max", "gem", "rmac"])
@pytest.mark.parametrize("value", [0.0, -1.0])
def test_maps_without_anything_in_them(name, value):
    pooling = Pooling(name)
    maps = torch.full((2, 3, 4, 4), value, requires_grad=True)
    pooled = unit(pooling(maps))
    (pooled * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert pooled.isfinite().all()
    assert maps.grad.isfinite().all()
    assert maps.grad.abs().max() < 1e9
    assert all(p.grad.isfinite().all() for p in pooling.parameters())


@pytest.mark.parametrize("name", ["average", "max", "gem", "rmac"])
def test_half_precision_is_pooled_in_float32(name):
    maps = torch.rand(2, 3, 5, 5)
    pooling = Pooling(name)
    for dtype in (torch.bfloat16, torch.float16):
        pooled = pooling(maps.to(dtype))
        assert pooled.dtype == torch.float32
        assert torch.equal(pooled, pooling(maps.to(dtype).float()))
    assert pooling(maps.double()).dtype == torch.float64
    if name != "rmac":  # places without a grid
        torch.testing.assert_close(pooling(maps.flatten(2)), pooling(maps))


def test_the_power_of_gem_is_trained_and_kept_above_zero():
    pooling = Pooling("gem")
    maps = torch.rand(2, 3, 4, 4)
    torch.testing.assert_close(pooling(maps), gem(maps, 3.0))
    pooling(maps).sum().backward()
    assert pooling.power.grad.item() > 0
    with torch.no_grad():
        pooling.power.fill_(-1.0)
    torch.testing.assert_close(pooling(maps), gem(maps, 0.01))
    assert [list(Pooling(name).parameters()) for name in ("average", "max", "rmac")] == [[], [], []]


def test_rows_of_zeros_keep_a_gradient_of_ordinary_size():
    rows = torch.zeros(2, 3, requires_grad=True)
    result = unit(rows)
    (result * 2).sum().backward()
    assert torch.equal(result, torch.zeros(2, 3))
    assert torch.equal(rows.grad, torch.full((2, 3), 2.0))
