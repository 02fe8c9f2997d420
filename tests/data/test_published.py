"""The table of published data sets: names, counts, what is missing, and how it is said."""

import pickle
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontrank.data import published
from frontrank.data.published import PUBLISHED, detect_layout, read_published
from frontrank.errors import FrontrankWarning
from tests.data import published_trees as trees
from tests.data.files import refusal
from tests.data.published_trees import TREES, write, write_images


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Writes a data set in miniature, with its counts as the official ones."""

    def written(name, folder=""):
        counts = TREES[name](tmp_path / folder)
        expect(monkeypatch, name, counts)
        return tmp_path

    return written


def expect(monkeypatch, name, *counts):
    monkeypatch.setitem(PUBLISHED, name, replace(PUBLISHED[name], counts=counts))


def partial(name, root):
    """The table of what is there, and the warning."""
    with pytest.warns(FrontrankWarning) as caught:
        table = read_published(name, root, allow_partial=True)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    message = str(caught[0].message)
    assert "\n" not in message
    return table, message


OFFICIAL = {  # the papers' numbers of images and classes
    "sop": [{"train": (59551, 11318), "test": (60502, 11316)}],
    "in-shop": [{"train": (25882, 3997), "query": (14218, 3985), "gallery": (12612, 3985)}],
    "vehicleid": [
        {"train": (110178, 13134), "small": (7332, 800), "medium": (12995, 1600), "large": (20038, 2400)},
        {"train": (113346, 13164), "small": (6493, 800), "medium": (13377, 1600), "large": (19777, 2400)},
    ],
    "inaturalist": [{"train": (325846, 5690), "test": (136093, 2452)}],
    "cub": [{"train": (5864, 100), "test": (5924, 100)}],
    "vggface2": [{"train": (3141890, 8631), "test": (169396, 500)}],
    "ijb-c": [{"test": (148824, 3531)}],
    "landmarks-clean": [{"train": (42410, 586)}],
    "roxford5k": [{"query": (70, None), "gallery": (4993, None)}],
    "rparis6k": [{"query": (70, None), "gallery": (6322, None)}],
    "revisited-1m": [{"distractor": (1001001, None)}],
}


def test_official_counts():
    assert {name: list(dataset.counts) for name, dataset in PUBLISHED.items()} == OFFICIAL
    totals = {name: sum(images for images, _ in counts[0].values()) for name, counts in OFFICIAL.items()}
    assert totals["sop"] == 120053
    assert totals["in-shop"] == 52712
    assert totals["inaturalist"] == 461939
    assert totals["cub"] == 11788
    assert totals["vggface2"] == 3311286


@pytest.mark.parametrize("name", TREES)
def test_a_whole_data_set(tree, name):
    root = tree(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        table = read_published(name, str(root))
        same = read_published(name, root, allow_partial=True)
    assert table.name == PUBLISHED[name].title
    assert table.root == root
    assert table.paths.tolist() == same.paths.tolist()
    expected = PUBLISHED[name].read(root)
    assert table.paths.tolist() == expected.paths.tolist()
    assert table.labels.tolist() == expected.labels.tolist()
    assert {key: column.tolist() for key, column in table.extra.items()} == {
        key: column.tolist() for key, column in expected.extra.items()
    }
    table.check(labelled=name not in ("roxford5k", "rparis6k"), repeats=name == "ijb-c")
    assert all((root / path).is_file() for path in table.paths)


@pytest.mark.parametrize("name", [name for name in TREES if PUBLISHED[name].folder])
def test_the_folder_that_the_archive_makes(tree, name):
    folder = PUBLISHED[name].folder
    root = tree(name, folder)
    assert detect_layout(root) == detect_layout(str(root / folder)) == name
    assert read_published(name, root).root == root / folder


@pytest.mark.parametrize("name", TREES)
def test_detected_by_its_files(tree, name):
    assert detect_layout(tree(name)) == name


def test_nothing_is_detected(tmp_path):
    assert detect_layout(tmp_path) is None
    assert detect_layout(tmp_path / "nowhere") is None
    write_images(tmp_path, ["train/cat/1.jpg", "test/dog/1.jpg", "Eval/list_eval_partition.txt", "images.txt"])
    assert detect_layout(tmp_path) is None
    assert detect_layout(tmp_path / "images.txt") is None


def test_lists_that_other_data_sets_have_too(tree, tmp_path):
    nabirds = ["images.txt", "image_class_labels.txt", "train_test_split.txt", "images/0295/0a1b.jpg"]
    write_images(tmp_path / "nabirds", nabirds)
    assert detect_layout(tmp_path / "nabirds") is None
    write_images(tmp_path / "own", ["images/001.cup/1.jpg"])
    assert detect_layout(tmp_path / "own") is None
    write_images(tmp_path / "two", ["image_class_labels.txt", "images/200.Wren/1.jpg", "Ebay_test.txt"])
    refusal(lambda: detect_layout(tmp_path / "two"), "sop and cub")


def test_two_are_detected(tmp_path):
    write_images(tmp_path, ["gnd_roxford5k.pkl", "rparis6k/gnd_rparis6k.pkl"])
    refusal(lambda: detect_layout(tmp_path), tmp_path, "roxford5k and rparis6k", "say which")


def test_names_and_roots(tmp_path):
    refusal(lambda: read_published("in_shop", tmp_path), "name must be", "'in_shop'", "did you mean 'in-shop'?")
    refusal(lambda: read_published("zzz", tmp_path), "there are sop, in-shop, vehicleid, inaturalist, cub, vggface2")
    refusal(lambda: read_published("sop", tmp_path / "nowhere"), tmp_path / "nowhere", "is no folder", "Ebay_train.txt")
    write_images(tmp_path, ["file"])
    refusal(lambda: read_published("cub", tmp_path / "file"), tmp_path / "file", "is no folder", "images.txt")


REQUIRED = {
    "sop": ["Ebay_train.txt", "Ebay_test.txt"],
    "in-shop": ["Eval/list_eval_partition.txt"],
    "vehicleid": [f"train_test_split/{name}.txt" for name in trees.VEHICLES],
    "inaturalist": [f"Inat_dataset_splits/Inaturalist_{split}_set1.txt" for split in ("train", "test")],
    "cub": ["images.txt", "image_class_labels.txt"],
    "vggface2": ["train", "test"],
    "ijb-c": ["protocols/ijbc_metadata.csv"],
    "landmarks-clean": ["annotation_clean_train.txt"],
    "roxford5k": ["gnd_roxford5k.pkl"],
    "rparis6k": ["gnd_rparis6k.pkl"],
    "revisited-1m": ["revisitop1m.txt"],
}


@pytest.mark.parametrize("allow_partial", [False, True], ids=["whole", "partial"])
@pytest.mark.parametrize(("name", "file"), [(name, file) for name, files in REQUIRED.items() for file in files])
def test_a_missing_list(tree, name, file, allow_partial):
    root = tree(name)
    (root / file).rename(root / "away")
    layout = PUBLISHED[name].layout
    message = refusal(lambda: read_published(name, root, allow_partial), root / file, "is missing", layout)
    assert file.partition("_")[0] in layout
    assert message.count("\n") == 0


def test_layouts_are_said_in_one_line():
    for dataset in PUBLISHED.values():
        assert dataset.layout.isprintable()
        assert 10 < len(dataset.layout) < 200


@pytest.mark.parametrize(
    "call", ["os.scandir", "pathlib.Path.read_bytes", "pathlib.Path.is_dir", "pathlib.Path.is_file"]
)
def test_what_may_not_be_read(tree, monkeypatch, call):
    root = tree("sop")

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("frontrank.data.published.os.scandir" if call == "os.scandir" else call, refuse)
    refusal(lambda: read_published("sop", root), root, "cannot be read: Permission denied; see that you may read it")


LOST = {  # an image, and what is then said of which part; a class that is gone with it
    "sop": ("cabinet_final/555_0.JPG", ["test has 2 images of 1 class instead of 3 images of 2 classes"], "5"),
    "in-shop": (
        "Img/img/WOMEN/Blouses_Shirts/id_00000001/02_2_side.jpg",
        ["gallery has 1 image of 1 class instead of 2 images of 1 class"],
        "",
    ),
    "vehicleid": (
        "image/0000008.jpg",
        ["large has 2 images of 2 classes instead of 3 images of 3 classes"],
        "22",
    ),
    "inaturalist": ("train_val2018/Insecta/9/d1.jpg", ["test has 3 images of 2 classes instead of 4 images of 2"], ""),
    "cub": (f"images/{trees.CUB[0][0]}", ["train has 2 images of 2 classes instead of 3 images of 2 classes"], ""),
    "landmarks-clean": ("images/17/big%20ben.jpg", ["train has 3 images of 2 classes instead of 4 images of 2"], ""),
    "roxford5k": ("jpg/oxford_002985.jpg", ["gallery has 2 images instead of 3 images"], ""),
    "rparis6k": ("jpg/q.jpg", ["query has 1 image instead of 2 images"], ""),
    "revisited-1m": ("jpg/1/b.jpg", ["distractor has 2 images instead of 3 images"], ""),
}


@pytest.mark.parametrize("name", LOST)
def test_a_missing_image(tree, name):
    root = tree(name)
    image, parts, label = LOST[name]
    (root / image).unlink()
    said = [PUBLISHED[name].title, str(root), *parts, f"; 1 listed image is missing: {image}; "]
    message = refusal(lambda: read_published(name, root), *said, "--allow-partial (allow_partial=True)")
    assert message.count(" instead of ") == len(parts)
    assert (f"; of 1 class nothing is there: {label};" in message) == bool(label)
    table, message = partial(name, root)
    whole = PUBLISHED[name].read(root)
    assert table.paths.tolist() == [path for path in whole.paths.tolist() if path != image]
    assert all(part in message for part in said)
    assert message.endswith(f"going on with the {len(whole) - 1} images that are there")
    assert table.name == PUBLISHED[name].title


def test_what_remains_keeps_its_columns(tree):
    root = tree("vehicleid")
    (root / "image/0000005.jpg").unlink()
    table, message = partial("vehicleid", root)
    assert "small has 1 image of 1 class instead of 2" in message
    assert "medium has 2 images of 1 class instead of 3 images of 2 classes" in message
    assert "large has" not in message
    assert table.extra["medium"].tolist() == [False, False, False, False, True, True, False]


def test_what_remains_of_a_gallery_keeps_its_places_in_the_ground_truth(tree):
    root = tree("roxford5k")
    (root / "jpg/all_souls_000013.jpg").unlink()
    table, _ = partial("roxford5k", root)
    assert table.of(role="gallery").extra["index"].tolist() == [1, 2]
    assert table.of(role="query").extra["index"].tolist() == [0, 1]


def test_few_of_many_missing_images_are_named(tree):
    root = tree("sop")
    for path in (root / "bicycle_final").iterdir():
        path.unlink()
    message = refusal(lambda: read_published("sop", root), "5 listed images are missing: bicycle_final/111_0.JPG,")
    assert "bicycle_final/222_0.JPG, ...;" in message
    assert "of 3 classes nothing is there: 1, 2, 4;" in message
    (root / "bicycle_final").rmdir()
    assert refusal(lambda: read_published("sop", root)) == message


def test_no_image_is_there(tree):
    root = tree("cub")
    (root / "images").rename(root / "pictures")
    for allow_partial in (False, True):
        message = refusal(lambda allow=allow_partial: read_published("cub", root, allow), "5 listed images are missing")
        assert "train has 0 images instead of 3 images of 2 classes; test has 0 images instead of 2" in message
        assert "; of 4 classes nothing is there: 1, 100, 101, ...; " in message
        assert message.endswith("unpack its archive again")


def test_no_image_is_there_of_no_class(tree):
    root = tree("revisited-1m")
    (root / "jpg").rename(root / "pictures")
    message = refusal(
        lambda: read_published("revisited-1m", root), "distractor has 0 images instead of 3 images; 3 listed"
    )
    assert "class" not in message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("an image more", "train has 5 images of 3 classes instead of 4 images of 3 classes"),
        ("a class more", "train has 5 images of 4 classes instead of 4 images of 3 classes"),
        ("an image less", "train has 3 images of 2 classes instead of 4 images of 3 classes"),
        ("two classes in one", "train has 4 images of 2 classes instead of 4 images of 3 classes"),
    ],
)
def test_lists_that_are_not_official(tree, change, said):
    root = tree("sop")
    label = {"an image more": 3, "a class more": 9}.get(change)
    lines = [*trees.SOP_TRAIN, f"9 {label} 2 cabinet_final/999_0.JPG"] if label else trees.SOP_TRAIN
    lines = lines[:3] if change == "an image less" else lines
    lines = [line.replace("3 2 1", "3 1 1") for line in lines] if change == "two classes in one" else lines
    write(root, {"Ebay_train.txt": [trees.SOP_HEADER, *lines]})
    write_images(root, ["cabinet_final/999_0.JPG"])
    official = "the lists or folders are not the official ones"
    message = refusal(lambda: read_published("sop", root), said, official, "go on with what is there: --allow-partial")
    assert "test has" not in message
    table, message = partial("sop", root)
    assert said in message
    assert len(table.of("train")) == len(lines)
    assert len(table.of("test")) == 3


def test_faces_too_few(tree):
    root = tree("vggface2")
    (root / "test/n000001/0002_01.jpg").unlink()
    refusal(
        lambda: read_published("vggface2", root), "test has 2 images of 1 class instead of 3 images of 1", "folders"
    )
    table, _ = partial("vggface2", root)
    assert len(table) == 6


def test_the_edition_that_fits_best_is_the_one_expected(tree, monkeypatch):
    root = tree("vehicleid")
    printed = {"train": (9, 9), "small": (9, 9), "medium": (3, 2), "large": (9, 9)}
    released = dict(PUBLISHED["vehicleid"].counts[0])
    for editions in ((printed, released), (released, printed)):
        expect(monkeypatch, "vehicleid", *editions)
        assert len(read_published("vehicleid", root)) == 8
    (root / "image/0000001.jpg").unlink()
    for editions in ((printed, released), (released, printed)):
        expect(monkeypatch, "vehicleid", *editions)
        message = refusal(lambda: read_published("vehicleid", root), "train has 2 images of 2 classes instead of 3")
        assert "9" not in message.split("published:")[1]


def test_an_edition_is_not_mixed_from_two(tree, monkeypatch):
    root = tree("sop")
    expect(monkeypatch, "sop", {"train": (4, 3), "test": (9, 9)}, {"train": (9, 9), "test": (3, 2)})
    refusal(lambda: read_published("sop", root), "test has 3 images of 2 classes instead of 9 images of 9 classes")


def test_a_missing_frame_of_two_faces(tree):
    root = tree("ijb-c")
    (root / "images/frames/2.jpg").unlink()
    table, message = partial("ijb-c", root)
    assert "; 1 listed image is missing: images/frames/2.jpg; " in message
    assert len(table) == 11
    assert "images/frames/2.jpg" not in table.paths
    assert (table.labels == "1").sum() == 5
    (root / "images/frames/3.jpg").unlink()
    said = "test has 9 images of 3 classes instead of 12 images of 3 classes; 2 listed images are missing: "
    refusal(lambda: read_published("ijb-c", root), said, "images/frames/2.jpg, images/frames/3.jpg; ")
    with pytest.warns(FrontrankWarning, match="going on with the 9 images"):
        assert len(read_published("ijb-c", root, allow_partial=True)) == 9


def test_each_folder_is_looked_into_once(tree, monkeypatch):
    root = tree("inaturalist")
    looked = []
    names_in = published.names_in
    monkeypatch.setattr(published, "names_in", lambda folder: looked.append(folder) or names_in(folder))
    read_published("inaturalist", root)
    assert sorted(looked) == sorted({(root / path).parent for path in PUBLISHED["inaturalist"].read(root).paths})
    looked.clear()
    TREES["vggface2"](root)
    expect(monkeypatch, "vggface2", {"train": (4, 2), "test": (3, 1)})
    assert len(read_published("vggface2", root)) == 7
    assert looked == []  # its images are known from the folders


def test_a_root_with_a_line_end_in_its_name(tmp_path):
    root = tmp_path / "two\nlines"
    trees.sop(root)
    message = refusal(lambda: read_published("sop", root), "instead of 59,551 images of 11,318 classes")
    assert "two\\nlines" in message


@settings(max_examples=30, deadline=None)
@given(gone=st.sets(st.integers(0, 6)))
def test_whatever_is_missing(tmp_path_factory, gone):
    root = tmp_path_factory.mktemp("sop")
    counts = trees.sop(root)
    whole = PUBLISHED["sop"].read(root)
    for row in gone:
        (root / whole.paths[row]).unlink()
    rest = [row for row in range(7) if row not in gone]
    with pytest.MonkeyPatch.context() as monkeypatch:
        expect(monkeypatch, "sop", counts)
        if not gone:
            assert read_published("sop", root).paths.tolist() == whole.paths.tolist()
            return
        refusal(lambda: read_published("sop", root), f"{len(gone)} listed image")
        if rest:
            table, message = partial("sop", root)
            assert table.paths.tolist() == whole.paths[rest].tolist()
            lost = set(whole.labels.tolist()) - set(whole.labels[rest].tolist())
            assert ("nothing is there" in message) == bool(lost)


def test_ground_truth_and_table_agree(tmp_path):
    """The official file names its images without an ending, and its lists go by their place in it."""
    stored = trees.truth()
    write(tmp_path, {"gnd_rparis6k.pkl": pickle.dumps(stored, 0)})
    table = PUBLISHED["rparis6k"].read(tmp_path)
    gallery = table.of(role="gallery")
    first = stored["gnd"][0]["easy"][0]
    row = np.flatnonzero(gallery.extra["index"] == first)[0]
    assert gallery.paths[row] == Path("jpg", stored["imlist"][first] + ".jpg").as_posix()
