"""The images of a comparison: the same for all runs, and looked at before the work."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import frontrank as fr
from frontrank.comparison import tasks as comparison_run
from frontrank.comparison.plan import Plan
from frontrank.comparison.runner import compare, prepare
from frontrank.comparison.tasks import query_labels, require_tests, sides
from frontrank.data import images as image_check
from frontrank.data.table import read_table
from frontrank.errors import InputError
from frontrank.settings import TrainConfig
from frontrank.training.embedding import embed_table
from tests.comparison.comparisons import plan_of


def folder_of(root, classes, each, images):
    """A folder of classes with pictures of glyphs."""
    pictures = sorted(Path(images).parent.rglob("*.png"))
    for number in range(classes):
        for place in range(each):
            target = root / f"class{number}" / f"{place}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(pictures[(number * 8 + place) % len(pictures)], target)
    return root


def parted(plan):
    found = prepare(plan)
    return found.table, list(found.notes)


def test_a_folder_without_test_images_gets_some(images, tmp_path):
    photos = folder_of(tmp_path / "photos", 12, 4, images)
    table, notes = parted(plan_of(photos, "SmoothAP"))
    classes = {split: set(table.of(split).labels) for split in ("train", "validation", "test")}
    assert {split: len(of) for split, of in classes.items()} == {"train": 4, "validation": 2, "test": 6}
    assert notes == ["50% of the classes, drawn by the seed, are test images, as there were none"]
    assert np.array_equal(parted(plan_of(photos, "FastAP"))[0].splits, table.splits)
    other, notes = parted(plan_of(photos, "SmoothAP", {"data.test": "0.25"}))
    assert (len(set(other.of("test").labels)), notes) == (3, [])


def test_merged_classes_are_the_same_for_all_runs(images):
    table, notes = parted(plan_of(images, "SmoothAP", {"data.merge_classes": "3", "batches.size": "0"}))
    merged = {
        split: {label.count("U+") for label in table.of(split).labels} for split in ("train", "validation", "test")
    }
    assert merged == {"train": {2, 3}, "validation": {1}, "test": {1}}  # of 8 training classes: 3, 3 and 2
    assert notes == ["every 3 training classes are merged into one"]


@pytest.mark.parametrize(
    ("classes", "each", "overrides", "message"),
    [
        (
            2,
            4,
            {},
            "photos has 2 classes of two images or more; compare needs test images, or at least 8 ",
        ),
        (8, 1, {}, "photos has 0 classes of two images or more; compare needs test images"),
        (7, 4, {}, r"at least 8 classes of two images \(4 with --data.validation 0 and one --lr\)"),
        (3, 4, {"data.validation": "0"}, "at least 4 classes of two images$"),
        (12, 4, {"batches.kind": "categories", "batches.size": "0"}, "SmoothAP: .*needs images with categories"),
        (12, 4, {"optimizer.warmup": "5"}, "SmoothAP: optimizer.warmup"),
        (12, 4, {"metric": "R@x"}, "R@x"),
        (12, 4, {"metric": "dists@intra"}, "metric dists@intra cannot choose a checkpoint"),
        (12, 4, {"device": "nowhere"}, "device 'nowhere' cannot be used"),
        (12, 4, {"model.backbone": "resnt50"}, "resnt50"),
        (8, 4, {"data.validation": "0"}, "no classes are held out to choose learning rates by"),
        (12, 4, {"batches.size": "64"}, "SmoothAP: .*64"),
    ],
)
def test_images_that_are_refused(images, tmp_path, classes, each, overrides, message):
    photos = folder_of(tmp_path / "photos", classes, each, images)
    with pytest.raises(InputError, match=message):
        prepare(plan_of(photos, "SmoothAP", overrides))
    with pytest.raises(InputError, match=message):
        compare(plan_of(photos, "SmoothAP", overrides), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_test_images_of_one_class_are_refused(images, tmp_path):
    photos = folder_of(tmp_path / "photos" / "train", 6, 4, images).parent
    folder_of(photos / "test", 1, 4, images)
    with pytest.raises(InputError, match="the test images are 4 of 1 classes; there must be two classes at least"):
        prepare(plan_of(photos, "SmoothAP"))


def test_two_classes_with_test_images_and_one_learning_rate(images, tasks, tmp_path):
    photos = folder_of(tmp_path / "photos" / "train", 2, 4, images).parent
    folder_of(photos / "test", 3, 2, images)
    overrides = {"data.validation": "0", "batches.size": "0"}
    compared = compare(plan_of(photos, "SmoothAP,FastAP", overrides, lrs="1e-3", seeds=1), tmp_path / "out", quiet=True)
    assert [list(entry.values)[:2] for entry in compared.entries] == [["R@1", "mAP"]] * 2
    assert compared.reference == "SmoothAP"  # nothing is known of held-out classes: the first
    assert compared.entries[0].curves[0].x.size == 0


def test_a_broken_test_image_is_found_before_the_work(images, tasks, tmp_path):
    photos = folder_of(tmp_path / "photos", 12, 4, images)
    plan = plan_of(photos, "SmoothAP", lrs="1e-3", seeds=1)
    broken = photos / prepare(plan).table.of("test").paths[0]
    broken.write_bytes(b"no image")
    with pytest.raises(InputError, match="1 of 48 images"):
        compare(plan, tmp_path / "out", quiet=True)
    table, notes = parted(plan_of(photos, "SmoothAP", {"data.broken": "skip"}))
    assert (len(table), len(notes)) == (47, 2)


def test_queries_and_gallery_are_taken_by_their_roles(images, tasks, tmp_path):
    table = read_table(images)
    roles = np.where(table.splits == "test", np.where(np.arange(len(table)) % 2, "query", "gallery"), "")
    columns = table.paths, table.labels, table.categories, table.splits, roles
    fr.data.ImageTable(table.root, *columns, extra={"licence": np.full(len(table), "MIT")}).save(tmp_path / "t.csv")
    compared = compare(plan_of(tmp_path / "t.csv", "SmoothAP", lrs="1e-3", seeds=1), tmp_path / "out", quiet=True)
    report = fr.Report.load(next((tmp_path / "out").glob("runs/*/*/test.json")))
    assert (report.queries, report.gallery_size) == (32, 32)
    assert compared.licences == {"MIT": 160}
    test = read_table(tmp_path / "out" / "images.csv").of("test")
    model = fr.Embedder.load(next((tmp_path / "out").glob("runs/*/*/model")))
    vectors, asked = embed_table(model, test, workers=0, show=False), test.roles == "query"
    own = fr.evaluate(
        vectors[asked], test.labels[asked], gallery=vectors[~asked], gallery_labels=test.labels[~asked], metrics=["mAP"]
    )
    assert compared.entries[0].values["mAP"][0] == pytest.approx(own["mAP"], abs=1e-6)
    assert compared.entries[0].values["dists@intra"][0] == pytest.approx(
        fr.evaluate(vectors, test.labels, metrics=["dists@intra"])["dists@intra"], abs=1e-6
    )


# Who searches what


def table_of(labels, roles):
    count = len(labels)
    names, nothing = np.arange(count).astype(str), np.full(count, "")
    return fr.data.ImageTable("x", names, np.array(labels), nothing, np.full(count, "test"), np.array(roles))


@pytest.mark.parametrize("role", ["distractor", "query"])
def test_without_a_gallery_no_image_finds_itself(role, monkeypatch):
    """60 random vectors, whose pairs are found by chance only: were each in its own list, R@1 would be 1."""
    labels = [f"c{i // 2}" for i in range(60)] + ([""] * 10 if role == "distractor" else [])
    roles = [""] * 60 + ["distractor"] * 10 if role == "distractor" else ["query"] * 30 + [""] * 30
    table, rng = table_of(labels, roles), np.random.default_rng(0)
    monkeypatch.setattr(comparison_run, "build_images", lambda _: table)
    monkeypatch.setattr(comparison_run, "embed_table", lambda *_, **__: rng.normal(size=(len(table), 8)))
    report = comparison_run.report_on_tests(None, TrainConfig())
    assert (report.queries, report.gallery_size) == (60, 60)
    assert report["R@1"] < 0.2
    assert "R@10" in report
    assert "R@100" not in report
    assert query_labels(table).tolist() == labels[:60]


def test_a_gallery_is_searched_with_its_distractors():
    table = table_of(["a", "b", "a", "b", "", ""], ["query", "", "gallery", "gallery", "distractor", "query"])
    asked, searched = sides(table)
    assert asked.tolist() == [True, True, False, False, False, False]  # without a label it has nothing to find
    assert searched.tolist() == [False, False, True, True, True, False]


@pytest.mark.parametrize(
    ("labels", "roles", "message"),
    [
        (["a", "a"], ["", ""], "of 1 classes; there must be two"),
        (["a", "b"], ["", ""], "and one of two images or more"),
        (["a", "b"], ["query", "gallery"], "no query of the test images has a class of the gallery"),
        (["a", "a", "b", "b"], ["gallery"] * 4, "no query of the test images"),
        (["a", "a", "b"], ["distractor"] * 3, "two classes at least"),
    ],
    ids=["one class", "of one each", "apart", "no query", "distractors"],
)
def test_test_images_of_which_nothing_can_be_found(labels, roles, message):
    with pytest.raises(InputError, match=message):
        require_tests(table_of(labels, roles))


def test_distractors_without_a_gallery_are_noted(images, tmp_path):
    table = read_table(images)
    roles = np.where((table.splits == "test") & (np.arange(len(table)) % 8 == 0), "distractor", "")
    columns = table.paths, table.labels, table.categories, table.splits, roles
    fr.data.ImageTable(table.root, *columns).save(tmp_path / "t.csv")
    assert parted(plan_of(tmp_path / "t.csv"))[1] == ["8 distractors are left out, as there is no gallery beside them"]


def test_broken_images_are_left_out_before_classes_are_drawn(images, tmp_path):
    """Of 8 classes, one has a single good image: it is no class to draw from, and 7 are too few."""
    photos = folder_of(tmp_path / "photos", 8, 3, images)
    assert len(prepare(plan_of(photos, "SmoothAP", {"batches.size": "8"})).table) == 24
    for place in (1, 2):
        (photos / "class3" / f"{place}.png").write_bytes(b"no image")
    with pytest.raises(InputError, match="has 7 classes of two images or more; compare needs"):
        prepare(plan_of(photos, "SmoothAP", {"data.broken": "skip", "batches.size": "8"}))


def test_images_that_were_found_good_are_remembered(images, tmp_path, monkeypatch):
    looked = []
    own = image_check.image_fault
    monkeypatch.setattr(image_check, "image_fault", lambda *a: looked.append(a) or own(*a))
    photos = folder_of(tmp_path / "photos", 12, 4, images)
    prepare(plan_of(photos, "SmoothAP"))
    assert len(looked) == 48
    prepare(plan_of(photos, "SmoothAP"))
    assert len(looked) == 48


@pytest.mark.parametrize(("axis", "told"), [("data.size=24,32", True), ("model.dim=8,16", False)])
def test_no_line_of_a_backbone_that_varies(images, untrained, tmp_path, axis, told):
    compared = compare(plan_of(images, None, axes=[axis], lrs="1e-3", seeds=1), tmp_path / "out", quiet=True)
    assert (compared.frozen == {}) == told
    assert any("no line of the backbone before training" in note for note in compared.notes) == told
    assert (untrained[0][0] == "frozen") != told


def test_warmup_longer_than_a_search_is_refused(images):
    plan = plan_of(images, "SmoothAP", {"optimizer.warmup": "3"}, lrs="1e-3,1e-2", search_steps=2)
    with pytest.raises(InputError, match="warmup"):
        prepare(plan)


def test_a_plan_is_read_back_as_it_was(images):
    plan = plan_of(
        images, "PNP-D_q(alpha=2),triplet(margin=0.1)", lrs="1e-3,1e-2", seeds=2, reference="PNP-D_q(alpha=2)"
    )
    again = Plan.of_json(json.loads(json.dumps(plan.as_json())))
    assert again == plan
