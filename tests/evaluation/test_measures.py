"""Metrics by name, and those of groups of embeddings."""

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score

import frontrank as fr
from frontrank.errors import InputError, InputTypeError
from frontrank.evaluation.measures import (
    DEFAULT,
    GROUP_METRICS,
    class_distances,
    measure,
    normalized_mutual_information,
    read_metrics,
)
from frontrank.ranking import Ranks, Vectors
from tests.exact_paths import set_sizes
from tests.reference import evaluation as reference


def names(metrics):
    of_ranks, of_groups = read_metrics(metrics)
    return [one.name for one in of_ranks], of_groups


def test_names_are_read_in_order_and_once():
    assert names("mAP") == (["mAP"], [])
    assert names(["P@3", "NMI", "R@7", "P@3", "NMI", "MRR"]) == (["P@3", "R@7", "MRR"], ["NMI"])
    assert names(name for name in ("mAP@R", "R-precision")) == (["mAP@R", "R-precision"], [])
    assert names(GROUP_METRICS) == ([], list(GROUP_METRICS))
    assert names(DEFAULT) == (list(DEFAULT), [])


def test_any_k():
    """Of 3 positives one stands on place 5, one on 10 and one on 4321."""
    ranks = Ranks(*torch.tensor([[[0.0, 1, 2]], [[4.0, 8, 4318]]]), torch.ones(1, 3, dtype=torch.bool))
    for k in (1, 4, 5, 9, 10, 11, 4320, 4321, 10**12):
        hits = sum(place <= k for place in (5, 10, 4321))
        assert measure(f"R@{k}").value(ranks).item() == float(hits > 0)
        assert measure(f"P@{k}").value(ranks).item() == pytest.approx(hits / k, rel=1e-6)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("ndcg@5", "nDCG@5"),
        ("map", "mAP"),
        ("map_at_r", "mAP@R"),
        ("rprecision", "R-precision"),
        ("dist@intra", "dists@intra"),
        ("recall@1", "R@1"),
        ("R@1.5", "R@1"),
        ("R@-1", "R@1"),
        ("R@0", "R@1"),
        ("precision@5", "P@5"),
    ],
)
def test_a_metric_that_is_nearly_known(name, suggestion):
    with pytest.raises(InputError, match="metrics") as caught:
        read_metrics([name])
    assert f"mean {suggestion}?" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["R@", "R@1 ", "@5", "banana", "", "r@5\n", "R@1e3"])
def test_a_metric_that_is_not_known(name):
    with pytest.raises(InputError, match="metrics") as caught:
        read_metrics(["R@1", name])
    assert repr(name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_metrics_that_are_no_names():
    with pytest.raises(InputError, match="metrics is empty"):
        read_metrics([])
    for wrong in ([1], ["R@1", None], [("R", 1)], b"mAP"):
        with pytest.raises(InputTypeError, match="metrics"):
            read_metrics(wrong)


partitions = st.lists(st.tuples(st.integers(-2, 3), st.integers(5, 9)), min_size=1, max_size=40)


@given(partitions)
def test_normalized_mutual_information(pairs):
    first, second = zip(*pairs, strict=True)
    found = normalized_mutual_information(torch.tensor(first), torch.tensor(second))
    assert found == pytest.approx(reference.normalized_mutual_information(first, second), abs=1e-12)
    assert found == pytest.approx(normalized_mutual_info_score(first, second), abs=1e-9)


@pytest.mark.parametrize("library", ["faiss", "sklearn"])
@pytest.mark.parametrize("other", [False, True])
def test_nmi_of_embeddings(library, other, monkeypatch):
    """k-means of all rows, with as many clusters as there are labels, against the labels."""
    if library == "sklearn":
        monkeypatch.setitem(sys.modules, "faiss", None)
    evaluation = sys.modules["frontrank.evaluation.evaluate"]
    clusters, real = [], evaluation.kmeans_labels

    def kept(rows, k, seed):
        assert (k, seed) == (5 if other else 4, 7)
        clusters.append(real(rows, k, seed))
        return clusters[-1]

    monkeypatch.setattr(evaluation, "kmeans_labels", kept)
    labels = torch.arange(40) % 4
    rows = torch.nn.functional.one_hot(labels, 6) + 0.6 * torch.randn(40, 6)
    more = {"gallery": rows[30:].double(), "gallery_labels": [3, 3, 9, 9, 9, 0, 0, 1, 2, 3]} if other else {}
    used = 30 if other else 40
    report = fr.evaluate(rows[:used], labels[:used], metrics=["NMI", "R@1"], seed=7, **more)
    all_labels = [*labels[:used].tolist(), *more.get("gallery_labels", [])]
    assert len(clusters[0]) == 40
    assert report["NMI"] == pytest.approx(normalized_mutual_info_score(all_labels, clusters[0].tolist()), abs=1e-9)
    assert 0.1 < report["NMI"] < 1
    assert report.settings == {"NMI seed": 7}
    assert "NMI" not in report.per_query


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("chunk", [3, 100])
def test_class_distances(dtype, chunk, monkeypatch):
    set_sizes(monkeypatch, chunk=chunk)
    labels = torch.tensor([0, 0, 1, 2, 2, 2, 1, 4, 0, 4, 5])  # 5 has one item, there is no 3
    rows = (torch.randn(11, 4) * torch.rand(11, 1) * 9 + 0.5).to(dtype)
    expected = reference.class_distances(rows.double().tolist(), labels.tolist())
    assert class_distances([(Vectors("x", rows), labels)]) == pytest.approx(expected, abs=1e-12)
    parts = [(Vectors("x", rows[:4]), labels[:4]), (Vectors("y", rows[4:]), labels[4:])]
    assert class_distances(parts) == pytest.approx(expected, abs=1e-12)
    options = {"metrics": ["dists@inter", "mAP", "dists@intra"]}
    report = fr.evaluate(rows[:4], labels[:4], gallery=rows[4:], gallery_labels=labels[4:], **options)
    assert (report["dists@intra"], report["dists@inter"]) == pytest.approx(expected, abs=1e-12)
    assert list(report.per_query) == ["mAP"]


def test_class_distances_by_hand():
    """Class 0: (1, 0) and (0, 2), cosine 0; class 1: (-1, 0) twice, cosine 1; class 2: one item (0, -1).

    intra: (1 + 0) / 2
    inter: the means (1, 1) / sqrt 2, (-1, 0) and (0, -1) have the cosines -.7071, -.7071 and 0
    """
    rows = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0], [-3.0, 0.0], [0.0, -1.0]])
    found = class_distances([(Vectors("x", rows), torch.tensor([0, 0, 1, 1, 2]))])
    assert found == pytest.approx((0.5, (1 + 0.5**0.5 + 1 + 0.5**0.5 + 1) / 3))


def test_class_distances_that_do_not_exist():
    rows = torch.randn(3, 2)
    for name, labels in (("dists@intra", [0, 1, 2]), ("dists@inter", [0, 0, 0])):
        with pytest.raises(InputError, match=name):
            fr.evaluate(rows, relevant=[[1], [0], [0]], labels=labels, metrics=[name])
