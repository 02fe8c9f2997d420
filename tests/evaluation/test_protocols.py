import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import frontrank as fr
from frontrank.errors import FrontrankError, InputTypeError
from frontrank.evaluation import protocols
from frontrank.evaluation.protocols import PROTOCOLS, template_means
from tests.errors import refusal
from tests.exact_paths import set_sizes

ALL_RANKS = ["mAP", "mAP@R", "R-precision"]
AMONG_THEMSELVES = {  # the metrics of the papers, the name, images and classes of the test set
    "sop": (["R@1", "R@10", "R@100", "R@1000", *ALL_RANKS], "Stanford Online Products", 60_502, 11_316),
    "cub": (["R@1", "R@2", "R@4", "R@8", *ALL_RANKS], "CUB-200-2011", 5_924, 100),
    "inaturalist": (["R@1", "R@4", "R@16", "R@32", *ALL_RANKS], "iNaturalist 2018", 136_093, 2_452),
    "vehicleid-small": (["R@1", "R@5", *ALL_RANKS], "VehicleID small", 7_332, 800),
    "vehicleid-medium": (["R@1", "R@5", *ALL_RANKS], "VehicleID medium", 12_995, 1_600),
    "vehicleid-large": (["R@1", "R@5", *ALL_RANKS], "VehicleID large", 20_038, 2_400),
    "vggface2": (["mAP", "R@1"], "VGGFace2", 169_396, 500),
    "ijb-c": (["mAP", "R@1"], "IJB-C", 148_824, 3_531),
}
FACES = ["vggface2", "ijb-c"]


def some_rows(items=60, classes=6, seed=0):
    """Embeddings around the means of their classes, and labels; every class has ten items."""
    rng = np.random.default_rng(seed)
    labels = np.arange(items) % classes
    return (rng.standard_normal((classes, 8))[labels] + 1.5 * rng.standard_normal((items, 8))).astype("f4"), labels


def same(first, second):
    """Two reports have the same values, bit for bit."""
    assert dict(first) == dict(second)
    for name in first:
        assert first.per_query[name].tobytes() == second.per_query[name].tobytes()
    assert first.gallery_size == second.gallery_size
    assert first.positives.tolist() == second.positives.tolist()


@pytest.mark.parametrize("name", AMONG_THEMSELVES)
def test_every_image_searches_the_others(name):
    metrics, title, images, classes = AMONG_THEMSELVES[name]
    rows, labels = some_rows()
    report = PROTOCOLS[name](rows, labels)
    assert list(report) == metrics
    assert report.name == title
    same(report, fr.evaluate(rows, labels, metrics=metrics))
    assert 0.2 < report["mAP"] < 0.99
    (note,) = report.notes
    assert re.search(f"{title} .*{images:,} .*{classes:,} classes", note)
    assert "60 images of 6 classes" in note


@pytest.mark.parametrize("name", ["sop", "vehicleid-large", "ijb-c"])
def test_no_note_on_the_whole_test_set(monkeypatch, name):
    rows, labels = some_rows()
    monkeypatch.setitem(protocols._SETS, name, replace(protocols._SETS[name], images=60, classes=6))
    assert PROTOCOLS[name](rows, labels).notes == ()
    assert len(PROTOCOLS[name](rows[:-1], labels[:-1]).notes) == 1
    other = labels.copy()
    other[labels == 5] = 4
    assert " 60 images of 5 classes" in PROTOCOLS[name](rows, other).notes[0]


def test_vehicleid_by_size():
    rows, labels = some_rows()
    for size in ("small", "medium", "large"):
        report = protocols.vehicleid(rows, labels, size)
        assert report.name == f"VehicleID {size}"
        assert report.notes == PROTOCOLS[f"vehicleid-{size}"](rows, labels).notes
    assert protocols.vehicleid(rows, labels).name == "VehicleID small"
    for size in ("Small", None):
        refusal(lambda size=size: protocols.vehicleid(rows, labels, size), "size", error=FrontrankError)


def shop():
    rows, labels = some_rows()
    return rows[:25], labels[:25], rows[25:], labels[25:]


def test_in_shop():
    report = PROTOCOLS["in-shop"](*shop())
    metrics = ["R@1", "R@10", "R@20", "R@30", "R@40", "R@50", *ALL_RANKS]
    queries, labels, gallery, gallery_labels = shop()
    assert list(report) == metrics
    same(report, fr.evaluate(queries, labels, gallery=gallery, gallery_labels=gallery_labels, metrics=metrics))
    assert report.name == "In-Shop Clothes"
    (note,) = report.notes
    for count in ("14,218 queries", "12,612 gallery", "3,985 classes", "25 queries", "35 gallery", "6 classes"):
        assert count in note


@pytest.mark.parametrize("left_out", [[2], [3], [2, 3]])
def test_in_shop_without_a_gallery(left_out):
    given = [None if i in left_out else of for i, of in enumerate(shop())]
    refusal(lambda: protocols.in_shop(*given), "gallery_labels")


@pytest.mark.parametrize("name", ["sop", "vehicleid-small", "ijb-c", "in-shop"])
def test_options_are_passed_on(monkeypatch, name):
    seen = {}

    def evaluate(*args, **options):
        seen.update(options)
        return fr.evaluate(*args, **options)

    monkeypatch.setattr(protocols, "evaluate", evaluate)
    given = shop() if name == "in-shop" else some_rows()
    options = {"metrics": ["MRR", "NMI"], "name": "mine", "device": "cpu", "progress": False, "seed": 3}
    report = PROTOCOLS[name](*given, **options)
    assert {key: seen[key] for key in options} == options
    assert list(report) == ["MRR", "NMI"]
    assert report.name == "mine"
    assert len(report.notes) == 1
    with pytest.raises(TypeError, match="speed"):
        PROTOCOLS[name](*given, speed=3)


def test_means_of_templates_by_hand(monkeypatch):
    """Rows count by their direction, not their length; the templates are in order; rows are read in parts."""
    set_sizes(monkeypatch, chunk=3)
    rows = torch.tensor([[3.0, 4.0], [0.0, 10.0], [5.0, 0.0], [0.0, -2.0]])
    means, labels = template_means(rows, ["x", "y", "x", "y"], [7, 2, 7, 5])
    # 2: (0, 1); 5: (0, -1); 7: the mean of (0.6, 0.8) and (1, 0)
    assert torch.equal(means, torch.tensor([[0.0, 1.0], [0.0, -1.0], [0.8, 0.4]]))
    assert labels.tolist() == ["y", "y", "x"]
    assert means.dtype == torch.float32
    assert template_means(rows.double(), [0] * 4, [7, 2, 7, 5])[0].dtype == torch.float64


def test_templates_that_cannot_be():
    rows = torch.randn(4, 3)
    refusal(lambda: template_means(rows, [1, 1, 1, 2], ["b", "a", "a", "b"]), "template b has")
    refusal(lambda: template_means(rows, [1] * 4, [1, 2, 3]), "templates has 3")
    refusal(lambda: template_means(rows, [1] * 4, ["a", "b", None, "b"]), "templates must be", error=InputTypeError)
    opposite = torch.tensor([[1.0, 2.0], [3.0, 4.0], [-3.0, -4.0]])
    refusal(lambda: template_means(opposite, [0] * 3, [1, 8, 8]), "template 8 has")


def templates_of(labels):
    """Every identity has a template of three rows and others of one."""
    return [f"{label}-{max(0, i // 6 - 2)}" for i, label in enumerate(labels)]


@pytest.mark.parametrize("name", FACES)
def test_templates(name):
    rows, labels = some_rows()
    of_rows = templates_of(labels)
    means, of_means = template_means(rows, labels, of_rows)
    assert len(means) == 6 * 8
    report = PROTOCOLS[name](rows, labels, of_rows)
    same(report, fr.evaluate(means, of_means, metrics=["mAP", "R@1"]))
    assert [note.split()[::4] for note in report.notes[1:]] == [["60", "48"]]
    same(report, PROTOCOLS[name](rows, labels, templates=np.unique(of_rows, return_inverse=True)[1]))
    same(report, PROTOCOLS[name](rows, [f"p{x}" for x in labels], templates=of_rows))


@pytest.mark.parametrize("name", FACES)
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_small_identities_are_neither_queries_nor_gallery(tmp_path, name, dtype):
    rows, labels = some_rows()
    rows = rows.astype(dtype)
    labels[:12] = [100, 100, 100, 100, 101, 101, 101, 101, 101, 102, 103, 103]  # 4, 5, 1 and 2 of them
    kept = ~np.isin(labels, [100, 102, 103])
    report = PROTOCOLS[name](rows, labels)
    same(report, fr.evaluate(rows[kept], labels[kept], metrics=["mAP", "R@1"]))
    assert (report.queries, report.gallery_size) == (53, 53)
    assert [note.split()[0] for note in report.notes[1:]] == ["3"]
    np.save(tmp_path / "rows.npy", rows)
    same(report, PROTOCOLS[name](np.load(tmp_path / "rows.npy", mmap_mode="r"), labels))


def test_identities_are_counted_in_templates():
    """Six rows, but four instances: left out."""
    rows = torch.randn(11, 4)
    labels, templates = ["a"] * 6 + ["b"] * 5, [0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]
    report = protocols.ijb_c(rows, labels, templates)
    assert (report.queries, report.gallery_size) == (5, 5)
    assert [note.split()[0] for note in report.notes[1:]] == ["11", "1"]
    same(report, fr.evaluate(*(of[4:] for of in template_means(rows, labels, templates)), metrics=["mAP", "R@1"]))


@pytest.mark.parametrize("name", FACES)
def test_no_identity_left(name):
    rows = torch.randn(8, 4)
    refusal(lambda: PROTOCOLS[name](rows, [0, 0, 0, 0, 1, 1, 1, 1]), "labels")
    refusal(lambda: PROTOCOLS[name](rows, [0] * 8, [0, 0, 0, 0, 0, 1, 2, 3]), "labels")
    refusal(lambda: PROTOCOLS[name](rows, [1, 2] * 4, [0] * 8), "template 0 has")
