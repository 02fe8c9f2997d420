"""Sizes of tiles change how many calls are made, never a value; an accelerator is asked to wait only a few times."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import frontrank as fr
from frontrank.ranking import Vectors, tiling
from frontrank.retrieval import nearest

WAITS = {"_local_scalar_dense", "nonzero", "_unique2", "unique_dim", "bincount", "masked_select", "equal"}


class Count(TorchDispatchMode):
    """Counts the kernels of an accelerator, and how often the host waits for one."""

    def __init__(self):
        super().__init__()
        self.kernels = self.waits = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.split("::")[1]
        indices = args[1] if name in ("index", "index_put_") else ()
        self.waits += name in WAITS or any(x is not None and x.dtype == torch.bool for x in indices)
        self.kernels += not function.is_view and "empty" not in name
        return function(*args, **(kwargs or {}))


@pytest.fixture
def counted(monkeypatch):
    counted, real = Count(), torch.Tensor.tolist

    def tolist(x):  # of a CPU it does not show
        counted.waits += 1
        return real(x)

    monkeypatch.setattr(torch.Tensor, "tolist", tolist)
    return counted


@pytest.mark.parametrize("loss", [fr.PNP, fr.SmoothAP, fr.FastAP, fr.BlackboxAP], ids=lambda loss: loss.__name__)
@pytest.mark.parametrize(("size", "kernels", "waits"), [(384, 110, 3), (4096, 300, 4)])
def test_few_kernels_and_waits_on_an_accelerator(loss, size, kernels, waits, counted):
    embeddings, labels = torch.randn(size, 8, requires_grad=True), torch.arange(size) // 4
    with tiling("cuda"), counted:
        loss()(embeddings, labels).backward()
    assert counted.kernels <= kernels
    assert counted.waits <= waits


def test_few_kernels_of_a_search(counted):
    rows = Vectors("rows", torch.randn(4096, 8))
    with tiling("cuda"), counted:
        nearest(rows, rows, k=10, own=True)
    assert counted.kernels <= 90
    assert counted.waits <= 4  # two for rows that are not finite, two for the number of candidates


def test_few_kernels_of_an_evaluation(counted):
    with tiling("cuda"), counted:
        fr.evaluate(torch.randn(4096, 8), torch.arange(4096) // 4, metrics=["R@1", "mAP"])
    assert counted.kernels <= 300


@pytest.mark.parametrize("classes", [300, 8])
def test_any_tiling_gives_the_same_evaluation(classes):
    embeddings, labels = torch.randn(1500, 8), torch.arange(1500) % classes
    rows = Vectors("rows", embeddings)
    expected = fr.evaluate(embeddings, labels), nearest(rows, rows, k=5, own=True)
    with tiling("cuda"):
        actual = fr.evaluate(embeddings, labels), nearest(rows, rows, k=5, own=True)
    assert dict(actual[0]) == dict(expected[0])
    assert torch.equal(actual[1][1], expected[1][1])


def test_unknown_device():
    with pytest.raises(fr.FrontrankError, match="device"), tiling("abacus"):
        pass
