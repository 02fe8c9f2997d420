"""The published data sets as they are on disk: one function each, whose text begins with what it reads.

They read the lists and do not look for the images; `published` does, and counts.
"""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np

from frontrank.data.ground_truth import read_ground_truth
from frontrank.data.image_table import ImageTable, shown
from frontrank.data.list_files import (
    a_number,
    an_image,
    first_there,
    names_in,
    read_fields,
    read_lines,
    read_pairs,
    read_text,
    wrong_line,
)
from frontrank.errors import InputError
from frontrank.progress import progress

TEST_LISTS = {"small": "800", "medium": "1600", "large": "2400"}  # of VehicleID


class Row(NamedTuple):
    """An image of a table."""

    path: str
    label: str = ""
    category: str = ""
    split: str = "test"
    role: str = ""


def _table(root: Path, rows: list[Row], extra: Mapping[str, np.ndarray] | None = None) -> ImageTable:
    if not rows:
        raise InputError(f"{shown(root)} has no image in its lists or folders; unpack its archive again")
    paths, labels, categories, splits, roles = (np.array(of, dtype=str) for of in zip(*rows, strict=True))
    return ImageTable(root, paths, labels, categories, splits, roles, extra or {})


def _each_once(rows: list[Row], lists: object, remedy: str = "copy the lists again") -> list[Row]:
    """Refuse an image that is listed twice."""
    seen: set[str] = set()
    for row in rows:
        if row.path in seen:
            raise InputError(f"{shown(lists)} names {row.path} twice; {remedy}")
        seen.add(row.path)
    return rows


def _in_folder(file: Path, line: int, name: str) -> str:
    if "/" not in an_image(file, line, name):
        raise wrong_line(file, line, f"names the image {name[:60]!r} without a folder")
    return name


def sop(root: Path) -> ImageTable:
    """Ebay_train.txt and Ebay_test.txt (header: image_id class_id super_class_id path), <super class>_final/*.JPG."""
    rows = []
    names = ("image_id", "class_id", "super_class_id", "path")
    for split in ("train", "test"):
        file = first_there(root, f"Ebay_{split}.txt")
        for line, (_, label, _, name) in read_fields(file, names, header=True):
            category = _in_folder(file, line, name).partition("/")[0].removesuffix("_final")
            rows.append(Row(name, a_number(file, line, "class_id", label), category, split))
    return _table(root, _each_once(rows, f"{root}/Ebay_*.txt"))


def in_shop(root: Path) -> ImageTable:
    """Eval/list_eval_partition.txt (how many, a header, then image_name item_id evaluation_status) and Img/img/.

    Categories are such as MEN/Denim. The images may also be in img/.
    """
    file = first_there(root, "Eval/list_eval_partition.txt", "list_eval_partition.txt")
    above = "" if (root / "img").is_dir() and not (root / "Img/img").is_dir() else "Img/"
    rows = []
    names = ("image_name", "item_id", "evaluation_status")
    for line, (name, label, status) in read_fields(file, names, header=True, counted=True):
        if status not in ("train", "query", "gallery"):
            raise wrong_line(file, line, f"has the evaluation_status {status[:40]!r}, not train, query or gallery")
        parts = an_image(file, line, name).split("/")
        if len(parts) < 5:
            raise wrong_line(file, line, f"names the image {name[:60]!r}, not img/<gender>/<category>/<item>/<image>")
        split, role = ("train", "") if status == "train" else ("test", status)
        rows.append(Row(above + name, label, "/".join(parts[1:3]), split, role))
    return _table(root, _each_once(rows, file))


def vehicleid(root: Path) -> ImageTable:
    """train_test_split/train_list.txt, test_list_800.txt, test_list_1600.txt and test_list_2400.txt (image vehicle_id),
    image/*.jpg and attribute/model_attr.txt (vehicle_id model_id).

    The models of vehicles are their categories; without the file of them there are none. The columns "small",
    "medium" and "large" say which test lists an image is in.
    """
    train = _vehicles(root, "train_list.txt")
    lists = {size: _vehicles(root, f"test_list_{count}.txt") for size, count in TEST_LISTS.items()}
    test: dict[str, str] = {}
    for of in lists.values():
        for path, vehicle in of.items():
            if test.setdefault(path, vehicle) != vehicle:
                raise InputError(f"{shown(root)}/train_test_split says {path} shows two vehicles; copy the lists again")
    if both := sorted(train.keys() & test.keys())[:1]:
        raise InputError(f"{shown(root)}/train_test_split has {both[0]} in train and test; copy the lists again")
    models: dict[str, str] = {}
    if (file := root / "attribute/model_attr.txt").is_file():
        models = {vehicle: model for _, (vehicle, model) in read_fields(file, ("vehicle_id", "model_id"))}
    rows = [
        Row(path, vehicle, models.get(vehicle, ""), split)
        for split, of in (("train", train), ("test", test))
        for path, vehicle in of.items()
    ]
    extra = {size: np.array([row.path in of for row in rows]) for size, of in lists.items()}
    return _table(root, rows, extra)


def _vehicles(root: Path, name: str) -> dict[str, str]:
    """The vehicle on each image of a list."""
    file = first_there(root, f"train_test_split/{name}")
    return {
        an_image(file, line, f"image/{image}.jpg"): a_number(file, line, "vehicle_id", vehicle)
        for image, (line, vehicle) in read_pairs(file, ("image", "vehicle_id")).items()
    }


def inaturalist(root: Path) -> ImageTable:
    """Inat_dataset_splits/Inaturalist_train_set1.txt and Inaturalist_test_set1.txt (a path per line) and
    train_val2018/<category>/<class>/*.jpg.
    """
    rows = []
    for split in ("train", "test"):
        ends = f"{split}_set1.txt"
        names = (
            f"{folder}{start}_{ends}" for folder in ("Inat_dataset_splits/", "") for start in ("Inaturalist", "Inat")
        )
        file = first_there(root, *names)
        for line, name in read_lines(file):
            parts = an_image(file, line, name).split("/")
            if len(parts) < 4:
                raise wrong_line(file, line, f"is {name[:60]!r}, not train_val2018/<category>/<class>/<image>")
            rows.append(Row(name, "/".join(parts[-3:-1]), parts[-3], split))
    return _table(root, _each_once(rows, f"{root}/Inat_dataset_splits"))


def cub(root: Path) -> ImageTable:
    """images.txt (image_id path), image_class_labels.txt (image_id class_id) and images/<class>/*.jpg.

    The first 100 classes are for training, the others for the test.
    """
    file, labelled = first_there(root, "images.txt"), first_there(root, "image_class_labels.txt")
    images, labels = read_pairs(file, ("image_id", "path")), read_pairs(labelled, ("image_id", "class_id"))
    if odd := sorted(images.keys() ^ labels.keys())[:1]:
        lacks = labelled if odd[0] in images else file
        raise InputError(
            f"{shown(lacks)} does not have the image_id {odd[0]}, the other list does; copy both files again"
        )
    rows = []
    for image, (line, name) in images.items():
        label = a_number(labelled, labels[image][0], "class_id", labels[image][1])
        path = _in_folder(file, line, name)
        rows.append(Row(f"images/{path}", label, split="train" if int(label) <= 100 else "test"))
    return _table(root, _each_once(rows, file))


def vggface2(root: Path) -> ImageTable:
    """train/<identity>/*.jpg and test/<identity>/*.jpg."""
    rows = []
    for split in ("train", "test"):
        if not (root / split).is_dir():
            raise FileNotFoundError(root / split)
        identities = sorted(name for name in names_in(root / split) if not name.startswith("."))
        with progress(f"listing {split}", len(identities)) as advance:
            for identity in identities:
                images = sorted(name for name in names_in(root / split / identity) if name.lower().endswith(".jpg"))
                rows += [Row(f"{split}/{identity}/{name}", identity, "", split) for name in images]
                advance(1)
    return _table(root, rows)


def ijb_c(root: Path) -> ImageTable:
    """protocols/ijbc_metadata.csv (a header with SUBJECT_ID, FILENAME and SIGHTING_ID), images/img/ and images/frames/.

    A row per face. The column "template" is one text per instance: a video is one, whose frames share a SIGHTING_ID
    (or MEDIA_ID, or TEMPLATE_ID, where a file has only these), an image in another folder than frames/ is one by
    itself. The column "box" is the face, by FACE_X, FACE_Y, FACE_WIDTH and FACE_HEIGHT. A file and subject that come
    again, and faces of nobody, are left out.
    """
    starts = ("protocols/", "protocol/", "")
    file = first_there(
        root, *(f"{at}{name}.csv" for at in starts for name in ("ijbc_metadata", "ijbc_metadata_with_age"))
    )
    above = "" if not (root / "images").is_dir() and (root / "img").is_dir() else "images/"
    rows: dict[tuple[str, str], Row] = {}
    templates, boxes = [], []
    media_columns = ("SIGHTING_ID", "MEDIA_ID", "TEMPLATE_ID")
    for line, face in _csv_rows(file, ("SUBJECT_ID", "FILENAME"), media_columns):
        subject, name = face["SUBJECT_ID"], an_image(file, line, face["FILENAME"])
        if subject.lower() in ("", "nan") or (subject, name) in rows:
            continue
        rows[subject, name] = Row(above + name, a_number(file, line, "SUBJECT_ID", subject))
        media = next((face[key] for key in media_columns if face.get(key)), name)
        templates.append(f"{subject}/{media if 'frames' in name.split('/') else name}")
        boxes.append(_face_box(file, line, face))
    return _table(root, list(rows.values()), {"template": np.array(templates), "box": np.array(boxes)})


def _csv_rows(file: Path, names: tuple[str, ...], one_of: tuple[str, ...]) -> Iterable[tuple[int, dict[str, str]]]:
    """The number of each line and its values by the names of the header, in capitals."""
    reader = csv.reader(io.StringIO(read_text(file).rstrip(), newline=""), strict=True)
    try:
        header = [name.strip().upper() for name in next(reader, [])]
        missing = [name for name in names if name not in header]
        if missing or not set(one_of) & set(header):
            lacks = missing[0] if missing else " or ".join(one_of)
            raise wrong_line(file, 1, f"must be a header with {lacks}")
        for values in reader:
            if values and len(values) != len(header):
                raise wrong_line(file, reader.line_num, f"has {len(values)} of {len(header)} fields")
            if values:
                yield reader.line_num, {name: value.strip() for name, value in zip(header, values, strict=True)}
    except csv.Error as error:
        raise wrong_line(file, reader.line_num, f"is no CSV ({error})") from None


def _face_box(file: Path, line: int, face: dict[str, str]) -> str:
    """Left, top, right and bottom of the face in pixels; "" where the file does not say."""
    names = ("FACE_X", "FACE_Y", "FACE_WIDTH", "FACE_HEIGHT")
    if not all(face.get(name) for name in names):
        return ""
    try:
        x, y, width, height = (float(face[name]) for name in names)
    except ValueError:
        raise wrong_line(file, line, f"has a face that is no box: {[face[name][:20] for name in names]}") from None
    return _box((x, y, x + width, y + height)) if math.isfinite(x + y + width + height) else ""


def _box(edges: Iterable[float]) -> str:
    return " ".join(f"{edge:.10g}" for edge in edges)


def landmarks_clean(root: Path) -> ImageTable:
    """annotation_clean_train.txt (url label, or path label) and images/<label>/<what comes last in the url's path>.

    The list is published as addresses on the web, so where an image is saved is for us to say. Of a line with a path,
    the image is there, seen from the root.
    """
    starts = ("", "annotations/", "annotations_landmarks/")
    file = first_there(root, *(f"{folder}annotation_clean_train.txt" for folder in starts))
    rows = []
    for line, (where, label) in read_fields(file, ("url", "label")):
        if where.startswith(("http://", "https://")):
            where = f"images/{label}/{urlsplit(where).path.rpartition('/')[2]}"
        if where.endswith("/"):
            raise wrong_line(file, line, "has an address that ends without the name of an image")
        rows.append(Row(an_image(file, line, where), label, split="train"))
    return _table(root, _each_once(rows, file, "write paths instead of addresses that end alike"))


def revisited(name: str) -> Callable[[Path], ImageTable]:
    """What reads roxford5k or rparis6k: gnd_<name>.pkl and jpg/*.jpg."""

    def read(root: Path) -> ImageTable:
        file = first_there(root, f"gnd_{name}.pkl")
        truth = read_ground_truth(file)
        sides = {"query": truth.queries, "gallery": truth.images}
        rows = [Row(_stored_image(file, side, image), role=side) for side, images in sides.items() for image in images]
        if bad := [i for i, box in enumerate(truth.boxes) if len(box) not in (0, 4)]:
            raise InputError(
                f"{shown(file)} has {len(truth.boxes[bad[0]])} numbers as bbx of gnd[{bad[0]}]; copy it again"
            )
        boxes = [_box(box) for box in truth.boxes] + [""] * len(truth.images)
        index = np.concatenate([np.arange(len(images)) for images in sides.values()])
        return _table(root, _each_once(rows, file), {"box": np.array(boxes), "index": index})

    read.__doc__ = f"""gnd_{name}.pkl and jpg/*.jpg.

    The column "box" is the part of a query image that is searched for. "index" is the place of an image among the
    queries, or in the gallery: what the ground truth calls it by, also where some images are missing.
    """
    return read


def _stored_image(file: Path, side: str, name: str) -> str:
    if not name.isprintable() or not name or {"/", "\\"} & set(name):
        raise InputError(f"{shown(file)} has {ascii(name)[:60]} as the name of a {side} image; copy the file again")
    return f"jpg/{name}.jpg"


def distractors(root: Path) -> ImageTable:
    """revisitop1m.txt (a path per line) and jpg/."""
    file = first_there(root, "revisitop1m.txt")
    rows = []
    for line, name in read_lines(file):
        ending = "" if "." in name.rpartition("/")[2] else ".jpg"
        rows.append(Row(f"jpg/{an_image(file, line, name)}{ending}", role="distractor"))
    return _table(root, _each_once(rows, file))
