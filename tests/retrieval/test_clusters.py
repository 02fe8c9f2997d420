import sys

import pytest
import torch

from frontrank.errors import InputError, InputTypeError
from frontrank.ranking.vectors import Vectors
from frontrank.retrieval import kmeans_labels


@pytest.fixture(params=["faiss", "sklearn"])
def library(request, monkeypatch):
    if request.param == "sklearn":
        monkeypatch.setitem(sys.modules, "faiss", None)
    return request.param


def rows(tensor):
    return Vectors("embeddings", tensor)


@pytest.mark.usefixtures("library")
def test_each_row_is_in_the_cluster_with_the_nearest_mean_of_directions():
    embeddings = torch.randn(60, 5)
    got = kmeans_labels(rows(embeddings), 3)
    assert (got.dtype, got.shape) == (torch.long, (60,))
    unit = torch.nn.functional.normalize(embeddings)
    means = torch.stack([unit[got == c].mean(0) for c in range(3)])
    assert torch.equal(torch.cdist(unit, means).argmin(1), got)


@pytest.mark.usefixtures("library")
def test_a_seed_gives_the_same_labels_and_another_seed_others():
    embeddings = torch.randn(80, 5)
    first = kmeans_labels(rows(embeddings), 9, seed=3)
    assert torch.equal(kmeans_labels(rows(embeddings), 9, seed=3), first)
    assert torch.equal(kmeans_labels(rows(embeddings.double().numpy()), 9, seed=3), first)
    assert any(not torch.equal(kmeans_labels(rows(embeddings), 9, seed=s), first) for s in (4, 5))


def test_prints_and_warns_nothing(library, capfd):
    embeddings = torch.randn(30, 5)
    kmeans_labels(rows(embeddings), 25)  # hardly a point per cluster
    kmeans_labels(rows(torch.randn(1000, 3)), 2)  # more points per cluster than faiss takes by default
    assert kmeans_labels(rows(embeddings), 1).tolist() == [0] * 30
    assert sorted(kmeans_labels(rows(embeddings), 30).tolist()) == list(range(30))
    same = kmeans_labels(rows(torch.ones(12, 3)), 5)  # fewer distinct rows than clusters
    assert len(set(same.tolist())) == 1
    assert capfd.readouterr() == ("", "")


def test_without_a_library(monkeypatch):
    for name in ("faiss", "sklearn", "sklearn.cluster"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=r"frontrank\[search\]"):
        kmeans_labels(rows(torch.randn(5, 3)), 2)


def test_wrong_arguments():
    for k, seed, error, name in [
        (6, 0, InputError, "k .*embeddings"),
        (0, 0, InputError, "k "),
        (2, -1, InputError, "seed "),
        (2, 2**31, InputError, "seed "),
        (2, None, InputTypeError, "seed "),
    ]:
        with pytest.raises(error, match=f"^{name}"):
            kmeans_labels(rows(torch.randn(5, 3)), k, seed)
    with pytest.raises(InputError, match=r"^embeddings .*number 2"):
        kmeans_labels(rows(torch.tensor([[1.0], [1.0], [torch.nan]])), 2)
