"""Evaluation of graded relevance: nDCG beside scikit-learn, hierarchical AP beside a loop, metrics of each level."""

import numpy as np
import pytest
import torch
from sklearn.metrics import ndcg_score

import frontrank as fr
from frontrank.errors import InputError, InputTypeError
from tests.reference.graded import hierarchical_ap
from tests.reference.lists import lists_of_scores

GRADED = ("nDCG", "nDCG@3", "H-AP")


def batch(n=40, dim=5, seed=0):
    """Embeddings, and labels of three nested levels, finest first."""
    generator = np.random.default_rng(seed)
    fine = generator.integers(12, size=n)
    return generator.normal(size=(n, dim)), np.stack([fine, fine // 2, fine // 4], 1)


def grades_of(labels, gallery_labels):
    return (labels[:, None] == gallery_labels[None]).sum(2).astype(float)


def by_loops(scores, grades, own):
    """nDCG, nDCG@3 and H-AP of each query with a positive, from its sorted list."""
    rows = []
    for q in range(len(scores)):
        keep = np.arange(scores.shape[1]) != q if own else np.ones(scores.shape[1], dtype=bool)
        gains, of_query = 2 ** grades[q, keep] - 1, scores[q, keep]
        if gains.any():
            rows.append([ndcg_score([gains], [of_query], k=k) for k in (None, 3)])
    exact = torch.as_tensor(scores) * 1e7  # steps instead of sigmoids
    lists = lists_of_scores(exact, torch.as_tensor(grades), own=own)
    return [*np.mean(rows, 0), float(np.mean([1 - float(hierarchical_ap(one, 1.0)) for one in lists]))]


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_of_a_set_that_searches_itself():
    embeddings, labels = batch()
    report = fr.evaluate(embeddings, labels, metrics=GRADED)
    expected = by_loops(unit(embeddings) @ unit(embeddings).T, grades_of(labels, labels), own=True)
    assert [report[name] for name in GRADED] == pytest.approx(expected, abs=1e-9)
    same = fr.evaluate(embeddings, relevant=grades_of(labels, labels), metrics=GRADED)
    assert dict(same) == pytest.approx(dict(report), abs=1e-12)


def test_of_a_gallery_and_of_given_scores():
    (queries, labels), (gallery, of_gallery) = batch(9, seed=1), batch(30, seed=2)
    scores, grades = unit(queries) @ unit(gallery).T, grades_of(labels, of_gallery)
    expected = by_loops(scores, grades, own=False)
    report = fr.evaluate(queries, labels, gallery=gallery, gallery_labels=of_gallery, metrics=GRADED)
    assert [report[name] for name in GRADED] == pytest.approx(expected, abs=1e-9)
    for given in ({"labels": labels, "gallery_labels": of_gallery}, {"relevant": grades}):
        report = fr.evaluate_scores(scores, metrics=GRADED, **given)
        assert [report[name] for name in GRADED] == pytest.approx(expected, abs=1e-9)


def test_levels_that_are_not_nested():
    embeddings, labels = batch()
    labels[:, 1] = np.arange(40) % 5
    grades = grades_of(labels, labels)
    report = fr.evaluate(embeddings, labels, metrics=(*GRADED, "mAP"))
    scores = unit(embeddings) @ unit(embeddings).T
    assert [report[name] for name in GRADED] == pytest.approx(by_loops(scores, grades, own=True), abs=1e-9)
    assert report["mAP (level 2)"] == fr.evaluate(embeddings, labels[:, 1], metrics="mAP")["mAP"]
    whole = fr.evaluate(embeddings, relevant=grades.astype(int), metrics=GRADED)
    assert dict(whole) == pytest.approx({name: report[name] for name in GRADED}, abs=1e-12)
    queries, of_queries = batch(9, seed=1)
    report = fr.evaluate(queries, of_queries, gallery=embeddings, gallery_labels=labels, metrics=GRADED)
    expected = by_loops(unit(queries) @ unit(embeddings).T, grades_of(of_queries, labels), own=False)
    assert [report[name] for name in GRADED] == pytest.approx(expected, abs=1e-9)


def test_small_grades_count():
    scores, grades = [[0.9, 0.5, 0.1]], np.array([[0.0, 1e-20, 0.0]])
    for name, value in (("nDCG", 1 / np.log2(3)), ("H-AP", 1 / 2)):
        assert fr.evaluate_scores(scores, relevant=grades, metrics=name)[name] == pytest.approx(value)


def test_metrics_of_each_level():
    embeddings, labels = batch()
    report = fr.evaluate(embeddings, labels, metrics=("R@1", "mAP", "H-AP"))
    for level, ending in enumerate(("", " (level 2)", " (level 3)")):
        alone = fr.evaluate(embeddings, labels[:, level], metrics=("R@1", "mAP"))
        assert (report[f"R@1{ending}"], report[f"mAP{ending}"]) == (alone["R@1"], alone["mAP"])
    assert list(report) == ["R@1", "mAP", "R@1 (level 2)", "mAP (level 2)", "R@1 (level 3)", "mAP (level 3)", "H-AP"]
    alone = fr.evaluate(np.eye(4), [[0, 0], [0, 0], [1, 0], [2, 1]], metrics=("R@1", "mAP", "nDCG", "nDCG@1"))
    note = str(alone).splitlines()[1]  # a query without a positive of its class may have one of its category
    assert "nDCG" not in note
    assert "level" not in note
    assert report.positives.tolist() == fr.evaluate(embeddings, labels[:, 0]).positives.tolist()
    (queries, of_queries), names = batch(9, seed=1), ("NMI", "dists@intra")  # of groups: those of the finest level
    levels = fr.evaluate(queries, of_queries, gallery=embeddings, gallery_labels=labels, metrics=names)
    finest = {"labels": of_queries[:, 0], "gallery": embeddings, "gallery_labels": labels[:, 0]}
    assert dict(levels) == dict(fr.evaluate(queries, metrics=names, **finest))


def test_without_levels_every_positive_is_alike():
    embeddings, labels = batch()
    report = fr.evaluate(embeddings, labels[:, 0], metrics=("mAP", "H-AP", "nDCG"))
    assert report["H-AP"] == report["mAP"]
    booleans = labels[:, None, 0] == labels[None, :, 0]
    assert report["nDCG"] == fr.evaluate(embeddings, relevant=booleans, metrics="nDCG")["nDCG"]


def test_of_equal_scores_the_less_relevant_comes_first():
    report = fr.evaluate_scores([[0.5, 0.5, 0.5]], relevant=np.array([[2.0, 1.0, 0.0]]), metrics=("nDCG", "H-AP"))
    best = 3 + 1 / np.log2(3)
    assert report["nDCG"] == pytest.approx((1 / np.log2(3) + 3 / 2) / best)
    assert report["H-AP"] == pytest.approx((1 / 2 + 3 / 3) / 3)


def test_ignored_items_have_no_grade():
    embeddings, labels = batch()
    ignored = np.random.default_rng(3).random((40, 40)) < 0.3
    report = fr.evaluate(embeddings, labels, ignored=ignored, metrics=GRADED)
    scores = np.where(ignored, -2.0, unit(embeddings) @ unit(embeddings).T)  # at the end, and of grade 0
    grades = np.where(ignored, 0.0, grades_of(labels, labels))
    assert [report[name] for name in GRADED] == pytest.approx(by_loops(scores, grades, own=True), abs=1e-9)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("labels", {"labels": np.array([[0, 0], [0, 1], [1, 2], [1, 2]])}),  # the coarsest first
        ("labels", {"labels": np.zeros((4, 0), dtype=int)}),
        ("level 1", {"labels": [[0, 0], [1, 0], [2, 1], [3, 1]]}),  # which has metrics that do not look at grades
        ("gallery_labels", {"labels": [[0, 0]] * 4, "gallery": np.eye(4), "gallery_labels": [0] * 4}),
        ("relevant", {"relevant": np.full((4, 4), -1.0)}),
        ("relevant", {"relevant": np.full((4, 4), np.inf)}),
        ("relevant", {"relevant": np.full((4, 4), 2000.0)}),
        (
            "H-AP",
            {
                "embeddings": np.random.default_rng(0).normal(size=(9, 3)),
                "relevant": np.linspace(0, 1, 81).reshape(9, 9),
            },
        ),
    ],
)
def test_wrong_arguments(name, arguments):
    with pytest.raises(InputError, match=name):
        fr.evaluate(**{"embeddings": np.eye(4), **arguments}, metrics=("nDCG", "H-AP", "mAP"))


# Several labels per item: what shares one is relevant


def sets_of(n, seed=0):
    generator = np.random.default_rng(seed)
    return [frozenset(generator.integers(9, size=generator.integers(1, 4)).tolist()) for _ in range(n)]


def shares(sets, others):
    return np.array([[bool(a & b) for b in others] for a in sets])


def test_sets_of_labels():
    (queries, _), (gallery, _) = batch(12, seed=3), batch(30, seed=4)
    sets, others = sets_of(12), sets_of(30, seed=1)
    report = fr.evaluate(queries, sets, gallery=gallery, gallery_labels=others)
    assert dict(report) == dict(fr.evaluate(queries, gallery=gallery, relevant=shares(sets, others)))
    scores = unit(queries) @ unit(gallery).T
    assert dict(fr.evaluate_scores(scores, sets, gallery_labels=others)) == pytest.approx(dict(report))
    assert dict(fr.evaluate(gallery, others)) == dict(fr.evaluate(gallery, relevant=shares(others, others)))
    own = unit(gallery) @ unit(gallery).T
    assert dict(fr.evaluate_scores(own, others)) == pytest.approx(dict(fr.evaluate(gallery, others)))


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"metrics": ["NMI"]}, "NMI"),
        ({"relevant": np.eye(12, dtype=bool)}, "relevant"),
        ({"gallery": batch(5)[0]}, "gallery_labels"),
        ({"gallery": batch(5)[0], "gallery_labels": [1] * 5}, "gallery_labels"),
    ],
)
def test_what_does_not_go_with_sets(more, name):
    with pytest.raises((InputError, InputTypeError), match=name):
        fr.evaluate(batch(12)[0], sets_of(12), **more)
