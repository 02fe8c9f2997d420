"""The images of a comparison: the same for all runs, and looked at before the work."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import frontrank as fr
from frontrank.data.folders import read_table
from frontrank.errors import InputError
from frontrank.jobs.comparison import compare, prepare
from frontrank.jobs.comparison_plan import Plan
from frontrank.training.embedding import embed_table
from tests.jobs.comparisons import plan_of


def folder_of(root, classes, each, images):
    """A folder of classes with pictures of glyphs."""
    pictures = sorted(Path(images).parent.rglob("*.png"))
    for number in range(classes):
        for place in range(each):
            target = root / f"class{number}" / f"{place}.png"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(pictures[(number * 8 + place) % len(pictures)], target)
    return root


def test_a_folder_without_test_images_gets_some(images, tmp_path):
    photos = folder_of(tmp_path / "photos", 12, 4, images)
    table, notes = prepare(plan_of(photos, "SmoothAP"))
    classes = {split: set(table.of(split).labels) for split in ("train", "validation", "test")}
    assert {split: len(of) for split, of in classes.items()} == {"train": 4, "validation": 2, "test": 6}
    assert notes == ["50% of the classes, drawn by the seed, are test images, as there were none"]
    assert np.array_equal(prepare(plan_of(photos, "FastAP"))[0].splits, table.splits)
    other, notes = prepare(plan_of(photos, "SmoothAP", {"data.test": "0.25"}))
    assert (len(set(other.of("test").labels)), notes) == (3, [])


def test_merged_classes_are_the_same_for_all_runs(images):
    table, notes = prepare(plan_of(images, "SmoothAP", {"data.merge_classes": "3", "batches.size": "0"}))
    merged = {
        split: {label.count("U+") for label in table.of(split).labels} for split in ("train", "validation", "test")
    }
    assert merged == {"train": {2, 3}, "validation": {1}, "test": {1}}  # of 8 training classes: 3, 3 and 2
    assert notes == ["every 3 training classes are merged into one"]


@pytest.mark.parametrize(
    ("classes", "each", "overrides", "message"),
    [
        (2, 4, {}, "2 classes of two images or more .* too few to move some to 'test'"),
        (6, 1, {}, r"0 classes of two images or more \(of 6 classes\), too few to move some to 'test'"),
        (6, 4, {}, "3 classes of two images or more .* too few to move some to 'validation'"),
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
    broken = photos / prepare(plan)[0].of("test").paths[0]
    broken.write_bytes(b"no image")
    with pytest.raises(InputError, match="1 of 48 images"):
        compare(plan, tmp_path / "out", quiet=True)
    table, notes = prepare(plan_of(photos, "SmoothAP", {"data.broken": "skip"}))
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


def test_a_plan_is_read_back_as_it_was(compared_before, images):
    plan = plan_of(
        images, "PNP-D_q(alpha=2),triplet(margin=0.1)", lrs="1e-3,1e-2", seeds=2, reference="PNP-D_q(alpha=2)"
    )
    again = Plan.of_json(json.loads(json.dumps(plan.as_json())))
    assert again == plan
