"""The sample on the map, and where its images are."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontrank.data.table import ImageTable
from frontrank.ranking import Vectors
from frontrank.reporting import findings as embedding_map
from frontrank.reporting.findings import place_on_map, principal_components, rotate_onto, sample_rows


def table_of(labels, categories=None):
    count = len(labels)
    categories = np.full(count, "") if categories is None else np.array(categories).astype(str)
    nothing = np.full(count, "")
    paths = np.array([f"{i}.png" for i in range(count)])
    return ImageTable(Path("x"), paths, np.array(labels).astype(str), categories, np.full(count, "test"), nothing)


def clusters(classes, each, noise=0.1, dim=16, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    return (rng.normal(size=(classes, dim))[labels] + noise * rng.normal(size=(len(labels), dim))).astype("f4"), labels


def nearest_share(places, labels):
    """The share of images whose nearest on the map is of their class."""
    apart = ((places[:, None] - places) ** 2).sum(-1)
    np.fill_diagonal(apart, np.inf)
    return (labels[apart.argmin(1)] == labels).mean()


@given(st.integers(0, 1000), st.integers(2, 60), st.integers(1, 60))
def test_each_category_has_its_share(seed, images, count):
    rng = np.random.default_rng(seed)
    categories = rng.integers(0, 3, images)
    rows = sample_rows(table_of(rng.integers(0, 9, images), categories), count, seed)
    assert len(rows) == min(count, images)
    assert (np.diff(rows) > 0).all()
    for category in range(3):
        share = (categories == category).mean() * len(rows)
        assert abs((categories[rows] == category).sum() - share) <= 1


def test_small_classes_come_whole():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(100), 8))
    rows = sample_rows(table_of(labels), 80)
    assert np.unique(labels[rows], return_counts=True)[1].tolist() == [8] * 10


def test_the_seed_draws_the_classes():
    table = table_of(np.repeat(np.arange(100), 8))
    one, again, other = (sample_rows(table, 80, seed).tolist() for seed in (0, 0, 1))
    assert one == again != other


def test_tsne_keeps_classes_together_and_repeats_itself():
    rows, labels = clusters(12, 8)
    places, how = place_on_map([Vectors("rows", rows)], np.arange(len(rows)))
    again, _ = place_on_map([Vectors("rows", rows)], np.arange(len(rows)))
    assert how == "t-SNE"
    assert nearest_share(places[0], labels) > 0.95
    assert np.array_equal(places[0], again[0])


@pytest.mark.parametrize(("dim", "turned", "noise"), [(16, False, 0), (16, True, 1e-7), (300, True, 0)])
def test_the_same_embeddings_are_at_the_same_places_on_both_maps(dim, turned, noise):
    rows, _ = clusters(12, 8, dim=dim)
    rng = np.random.default_rng(1)
    other = rows @ (np.linalg.qr(rng.normal(size=(dim, dim)))[0] if turned else np.eye(dim)).astype("f4")
    other *= (1 + noise * rng.normal(size=rows.shape)).astype("f4")
    (before, after), how = place_on_map([Vectors("rows", rows), Vectors("rows", other)], np.arange(len(rows)))
    assert how == "t-SNE"
    np.testing.assert_allclose(after, before, atol=1e-12)


def test_a_second_map_begins_where_the_first_ended_and_is_of_its_own(monkeypatch):
    began = []

    def tsne(parts, begin, seed):
        began.append(begin)
        return parts[:, :2]

    monkeypatch.setattr(embedding_map, "_tsne", lambda: tsne)
    rows, _ = clusters(12, 8)
    other = rows + 1e-3 * np.random.default_rng(1).normal(size=rows.shape).astype("f4")
    (before, after), _ = place_on_map([Vectors("rows", rows), Vectors("rows", other)], np.arange(len(rows)))
    assert began[0] is None
    np.testing.assert_allclose(began[1] / np.sqrt((began[1] ** 2).sum(1)).max(), before)
    assert 1e-5 < np.abs(after - before).max() < 1e-2


def test_few_images_are_at_their_principal_components():
    rows, labels = clusters(3, 4, noise=0.01)
    (places,), how = place_on_map([Vectors("rows", rows)], np.arange(12))
    assert ("components" in how, "scikit-learn" in how) == (True, False)
    assert nearest_share(places, labels) == 1


def test_a_map_after_one_without_extent():
    rows, labels = clusters(5, 8)
    (before, after), _ = place_on_map([Vectors("a", np.ones((40, 3), "f4")), Vectors("b", rows)], np.arange(40))
    assert not before.any()
    assert nearest_share(after, labels) > 0.9


def test_without_scikit_learn_it_is_principal_components_and_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    rows, _ = clusters(8, 8)
    (places,), how = place_on_map([Vectors("rows", rows)], np.arange(64))
    assert "scikit-learn" in how
    assert np.isfinite(places).all()


ODD = {
    "one": np.ones((1, 3)),
    "two": np.eye(3)[:2],
    "40 alike but for rounding": np.ones((40, 8)) + 1e-7 * np.random.default_rng(0).normal(size=(40, 8)),
    "39 alike": np.concatenate([np.ones((39, 8)), -np.ones((1, 8))]),
    "one dimension, two places": np.repeat([[1.0], [-1.0]], 20, 0),
    "30 images": np.random.default_rng(0).normal(size=(30, 2)),
}


@pytest.mark.parametrize("rows", ODD.values(), ids=ODD.keys())
def test_odd_embeddings_have_places(rows):
    vectors = Vectors("rows", rows.astype("f4"))
    for places in place_on_map([vectors, vectors], np.arange(len(rows)))[0]:
        assert places.shape == (len(rows), 2)
        assert np.isfinite(places).all()
        assert np.sqrt((places**2).sum(1)).max() <= 1 + 1e-12
        assert places.any() == (len(np.unique(rows.round(3), axis=0)) > 1)


def test_principal_components_are_those_of_the_covariance():
    rows = np.random.default_rng(0).normal(size=(50, 6)) * [5, 1, 3, 0.1, 0.5, 2]
    found = principal_components(rows, 3)
    values = np.linalg.eigvalsh(np.cov(rows.T))[::-1][:3]
    np.testing.assert_allclose(found.var(0, ddof=1), values)
    np.testing.assert_allclose(np.corrcoef(found.T), np.eye(3), atol=1e-12)


@pytest.mark.parametrize("rows", [[[5, 6], [5, 0]], [[5, 0], [5, 6]], [[0, 1], [9, 1]], [[9, 1], [0, 1]]])
def test_principal_components_point_the_way_of_what_grows(rows):
    rows = np.array(rows, dtype=float)
    first = principal_components(rows, 2)[:, 0]
    assert np.array_equal(first > 0, rows.sum(1) == rows.sum(1).max())


@given(st.floats(0, 6.28), st.booleans(), st.integers(0, 100))
def test_turning_undoes_any_turn_and_mirroring(angle, mirror, seed):
    target = np.random.default_rng(seed).normal(size=(9, 2))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) * [[1, -1 if mirror else 1]]
    found = rotate_onto(target @ turn + [3, -1], target)
    np.testing.assert_allclose(found, target - target.mean(0), atol=1e-9)
