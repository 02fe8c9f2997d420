"""Files as of COCO: ids with gaps, crowds, where the pictures are, and what is refused."""

import json

import pytest
from PIL import Image

from frontrank.detection.data import coco_classes, find_coco, read_coco
from frontrank.errors import FrontrankWarning, InputError

CATEGORIES = [{"id": 44, "name": "dog"}, {"id": 3, "name": "cat"}]


def content(**changed):
    images = [
        {"id": 12, "file_name": "b.jpg", "width": 40, "height": 30},
        {"id": 7, "file_name": "a.jpg", "width": 40, "height": 30},
    ]
    annotations = [
        {"id": 1, "image_id": 7, "category_id": 44, "bbox": [1.5, 2, 10, 20], "iscrowd": 0},
        {"id": 2, "image_id": 7, "category_id": 3, "bbox": [0, 0, 40, 30], "iscrowd": 1},
    ]
    return {"images": images, "annotations": annotations, "categories": CATEGORIES} | changed


def write(folder, name="train.json", pictures="", **changed):
    (folder / pictures).mkdir(parents=True, exist_ok=True)
    for each in ("a", "b"):
        Image.new("RGB", (40, 30)).save(folder / pictures / f"{each}.jpg")
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content(**changed)))
    return path


def test_what_is_read(tmp_path):
    table = read_coco(write(tmp_path))
    assert table.classes == ("cat", "dog")  # by their ids
    assert [file[-5:] for file in table.files] == ["b.jpg", "a.jpg"]
    assert table.boxes[0].shape == (0, 4)
    assert table.boxes[1].tolist() == [[1.5, 2, 11.5, 22], [0, 0, 40, 30]]
    assert table.labels[1].tolist() == [2, 1]
    assert table.ignored[1].tolist() == [False, True]
    assert table.crowds
    assert table.name == "train"
    assert table.sizes.tolist() == [[40, 30]] * 2
    assert coco_classes(tmp_path / "train.json") == ("cat", "dog")


@pytest.mark.parametrize(
    ("name", "pictures"),
    [
        ("annotations/instances_val2017.json", "val2017"),
        ("annotations/instances_val2017.json", "images/val2017"),
        ("valid/_annotations.coco.json", "valid"),
        ("test.json", "images"),
        ("test.json", "test"),
    ],
)
def test_where_things_are(tmp_path, name, pictures):
    path = write(tmp_path, name, pictures)
    assert find_coco(tmp_path, "test") == path
    assert find_coco(tmp_path, "train") is None or name == "test.json"
    assert len(read_coco(path)) == 2


def test_files_of_two_years_are_refused(tmp_path):
    for year in (2014, 2017):
        write(tmp_path, f"annotations/instances_train{year}.json", f"train{year}")
    said = r"annotations has several files for the split train: instances_train2014.json, instances_train2017.json"
    with pytest.raises(InputError, match=said):
        find_coco(tmp_path, "train")


def test_a_folder_of_pictures_may_be_given(tmp_path):
    path = write(tmp_path, "train.json", "elsewhere")
    with pytest.raises(InputError, match=r"b\.jpg is not there"):
        read_coco(path)
    assert len(read_coco(path, tmp_path / "elsewhere")) == 2


def test_a_size_that_is_not_told_is_looked_up(tmp_path):
    images = [{"id": 7, "file_name": "a.jpg"}]
    assert read_coco(write(tmp_path, images=images)).sizes.tolist() == [[40, 30]]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"images": {}}, "has no list 'images'"),
        ({"images": []}, "has no images"),
        ({"categories": [], "annotations": []}, "has no categories"),
        ({"categories": [*CATEGORIES, {"id": 5, "name": "dog"}]}, "two categories are called 'dog'"),
        ({"categories": [{"id": 1}]}, r"categories\[0\] must have an id and a name"),
        ({"images": [{"id": 7, "file_name": "a.jpg"}] * 2}, r"images\[1\] has the id 7 of another"),
        (
            {"annotations": [{"image_id": 9, "category_id": 3, "bbox": [0, 0, 1, 1]}]},
            r"annotations\[0\] has the image_id 9",
        ),
        (
            {"annotations": [{"image_id": 7, "category_id": 4, "bbox": [0, 0, 1, 1]}]},
            "has the category_id 4, which is not",
        ),
        ({"annotations": [{"image_id": 7, "category_id": 3}]}, r"annotations\[0\] has no bbox"),
        ({"annotations": [{"image_id": 7, "category_id": 3, "bbox": [0, 0, 1]}]}, "bbox must be four numbers"),
        ({"annotations": [{"image_id": 7, "category_id": 3, "bbox": [0, 0, None, 1]}]}, "bbox must be four numbers"),
        ({"annotations": [3]}, r"annotations\[0\] is no object"),
        ({"images": [{"id": 7, "file_name": "a.jpg", "width": 0, "height": 9}]}, "image 7 is 0 x 9 pixels"),
        ({"images": [{"id": 7, "file_name": "a.jpg", "width": 30, "height": 40}]}, "says 30 x 40 pixels"),
    ],
)
def test_what_is_refused(tmp_path, changed, said):
    if "images" in changed and "annotations" not in changed:
        changed = changed | {"annotations": []}
    with pytest.raises(InputError, match=said):
        read_coco(write(tmp_path, **changed))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"images": [\n1,', "train.json line 2 is no whole JSON"),
        ("[]", "has no list 'images'"),
        ("", "line 1 is no whole"),
    ],
)
def test_damaged_files(tmp_path, text, said):
    path = tmp_path / "train.json"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read_coco(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_coco(tmp_path / "none.json")


def test_missing_pictures_may_be_left_out(tmp_path):
    path = write(tmp_path)
    (tmp_path / "a.jpg").unlink()
    with pytest.raises(InputError, match=r"a.jpg is not there"):
        read_coco(path)
    with pytest.warns(
        FrontrankWarning, match=r"train: 1 picture cannot be used and was left out \(.*a.jpg is not there"
    ):
        assert len(read_coco(path, allow_partial=True)) == 1
