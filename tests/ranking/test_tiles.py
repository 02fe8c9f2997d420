"""Sizes of tiles change how many calls are made, never a value; an accelerator is asked to wait only a few times."""

from pathlib import Path
from runpy import run_path

import pytest
import torch

import frontrank as fr
from frontrank.ranking import Vectors, tiling
from frontrank.retrieval import nearest

COUNTS = run_path(str(Path(__file__).parents[2] / "benchmarks" / "counts.py"))
Count, Device, DEVICE = COUNTS["Count"], COUNTS["Device"], COUNTS["DEVICE"]


@pytest.mark.parametrize("loss", [fr.PNP, fr.SmoothAP, fr.FastAP, fr.BlackboxAP, fr.RecallAtK])
@pytest.mark.parametrize(("size", "kernels", "waits"), [(384, 110, 3), (4096, 300, 4)])
def test_few_kernels_and_waits_on_an_accelerator(loss, size, kernels, waits):
    labels, place = torch.arange(size) // 4, torch.arange(size)
    alone = torch.where(place % 4 == 3, place + size, labels)  # the last of each class has one of its own
    for more, of in ((0, labels), (1, alone))[: 2 if size == 384 else 1]:
        embeddings = torch.randn(size, 8, requires_grad=True)
        with tiling("cuda"), Count() as counted:
            loss()(embeddings, of).backward()
        assert counted.kernels <= kernels + 20 * more
        assert counted.waits <= waits + more


@pytest.mark.parametrize("loss", [fr.PNP, fr.SmoothAP, fr.FastAP, fr.BlackboxAP, fr.RecallAtK])
def test_few_kernels_and_waits_with_large_classes(loss):
    embeddings = torch.randn(512, 8, requires_grad=True)
    with tiling("cuda"), Count() as counted:
        loss()(embeddings, torch.arange(512) // 32).backward()
    assert counted.kernels <= 200
    assert counted.waits <= 4


def test_few_kernels_of_a_search():
    with Device() as counted:
        rows = Vectors("rows", torch.randn(4096, 8).to(DEVICE, non_blocking=True))
        nearest(rows, rows, k=10, own=True)
    assert counted.kernels <= 70
    assert counted.waits <= 3  # rows that are not finite, two for the number of candidates


@pytest.mark.parametrize(("each", "kernels"), [(4, 110), (32, 170)])
def test_few_kernels_of_an_evaluation(each, kernels):
    embeddings, labels = torch.randn(512, 8), torch.arange(512) // each
    with Device() as counted:
        report = fr.evaluate(embeddings.to(DEVICE, non_blocking=True), labels, metrics=["R@1", "mAP"])
    assert dict(report) == dict(fr.evaluate(embeddings, labels, metrics=["R@1", "mAP"]))
    assert counted.kernels <= kernels
    assert counted.waits <= 3  # rows that are not finite, what rounding leaves open, the values


@pytest.mark.parametrize(("rows", "classes"), [(1500, 300), (400, 4), (1500, 50)])
def test_any_tiling_gives_the_same_evaluation(rows, classes):
    embeddings, labels = torch.randn(rows, 8), torch.arange(rows) % classes
    vectors = Vectors("rows", embeddings)
    expected = fr.evaluate(embeddings, labels), nearest(vectors, vectors, k=5, own=True)
    with tiling("cuda"):
        actual = fr.evaluate(embeddings, labels), nearest(vectors, vectors, k=5, own=True)
    assert dict(actual[0]) == dict(expected[0])
    assert torch.equal(actual[1][1], expected[1][1])


def test_unknown_device():
    with pytest.raises(fr.FrontrankError, match="device"), tiling("abacus"):
        pass
