"""The published data sets by name: how each is read, and how many images and classes it must have.

The counts are those of the papers of PNP, Smooth-AP, FastAP, RaMBO and AP_Q. A data set with other counts is refused,
or read as far as it is there.
"""

import csv
import io
import math
import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np

from frontrank.checks import check_choice, printable
from frontrank.data.ground_truth import read_ground_truth
from frontrank.data.table import ROLES, SPLITS, ImageTable
from frontrank.errors import FrontrankWarning, InputError
from frontrank.progress import progress

# The lists that come with data sets: text files, one image per line. An error names the file and the line.


class _Line(NamedTuple):
    """A line of a list."""

    file: Path
    number: int

    def error(self, fault: str) -> InputError:
        return InputError(f"{printable(self.file)} line {self.number} {fault}; copy the file again")

    def check_digits(self, name: str, text: str) -> str:
        """Return the text of a field, or raise if it is not a whole number."""
        if not (text.isascii() and text.isdigit()):
            raise self.error(f"has {text[:40]!r} as {name}, which must be a whole number")
        return text

    def check_image(self, name: str, layout: str = "<image>") -> str:
        """Return the path of an image, or raise if it has too few folders or is not inside the data set's folder."""
        outside = name.startswith("/") or (".." in name and ".." in name.split("/"))
        if outside or "\\" in name or not name.isprintable():
            raise self.error(f"names the image {name[:60]!r}, which is no path inside the data set's folder")
        if name.count("/") < layout.count("/"):
            raise self.error(f"names the image {name[:60]!r}, not {layout}")
        return name


def _find_file(root: Path, *names: str) -> Path:
    """Return the first of some files that exists; else raise a FileNotFoundError for the first."""
    for name in names:
        if (root / name).is_file():
            return root / name
    raise FileNotFoundError(root / names[0])


def _read_text(path: Path) -> str:
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _Line(path, data[: error.start].count(b"\n") + 1).error("is not UTF-8 text") from None


def read_lines(path: Path) -> list[tuple[int, str]]:
    """Return the number and the text of each line; raise for a blank line that is not at the end."""
    lines = [(number, line.strip()) for number, line in enumerate(_read_text(path).rstrip().split("\n"), 1)]
    if lines == [(1, "")]:
        raise InputError(f"{printable(path)} is empty; copy the file again")
    for number, line in lines:
        if not line:
            raise _Line(path, number).error("is blank")
    return lines


def _read_fields(
    path: Path, names: Sequence[str], *, header: bool = False, counted: bool = False
) -> Iterator[tuple[_Line, list[str]]]:
    """Yield each line and its fields, which are separated by white space.

    names:   of the fields, as many as each line has
    header:  a line of these names comes first
    counted: before that, a line has the number of images
    """
    lines = read_lines(path)
    count = lines.pop(0)[1] if counted else None
    if header:
        number, text = lines.pop(0) if lines else (2, "")
        if text.split() != list(names):
            raise _Line(path, number).error(f"must be the header {' '.join(names)!r}, not {text[:60]!r}")
    if count is not None and count != str(len(lines)):
        raise _Line(path, 1).error(f"is {count[:20]!r}, but {len(lines):,} images follow")
    for number, text in lines:
        line, fields = _Line(path, number), text.split()
        if len(fields) != len(names):
            raise line.error(f"has {len(fields)} of {len(names)} fields ({' '.join(names)}): {text[:60]!r}")
        yield line, fields


def _read_pairs(path: Path, names: tuple[str, str]) -> dict[str, tuple[_Line, str]]:
    """Return the line and the second field, by the first, which must differ in all lines."""
    pairs: dict[str, tuple[_Line, str]] = {}
    for line, (key, value) in _read_fields(path, names):
        if key in pairs:
            raise line.error(f"has the {names[0]} {key[:40]!r} of line {pairs[key][0].number} again")
        pairs[key] = line, value
    return pairs


def list_names(folder: Path) -> set[str]:
    """Return the names in a folder; none if it does not exist."""
    try:
        return set(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return set()


# The published data sets as they are on disk: one function for each.

TEST_LISTS = {"small": "800", "medium": "1600", "large": "2400"}  # of VehicleID
_INAT_FOLDERS = ("Inat_dataset_splits/", "")
_MEDIA = ("SIGHTING_ID", "MEDIA_ID", "TEMPLATE_ID")  # columns of IJB-C that name a video


class _Row(NamedTuple):
    path: str
    label: str = ""
    category: str = ""
    split: str = "test"
    role: str = ""


def _table(
    root: Path, rows: Sequence[_Row], lists: object = None, remedy: str = "copy the lists again", /, **extra: np.ndarray
) -> ImageTable:
    """Return the table of some rows; `lists` are the files they are from, in which no image may be twice, if given."""
    if not rows:
        raise InputError(f"{printable(root)} has no image in its lists or folders; unpack its archive again")
    paths, labels, categories, splits, roles = (np.array(column, dtype=str) for column in zip(*rows, strict=True))
    if lists is not None and len(set(paths.tolist())) < len(rows):
        repeated = Counter(paths.tolist()).most_common(1)[0][0]
        raise InputError(f"{printable(lists)} names {repeated} twice; {remedy}")
    return ImageTable(root, paths, labels, categories, splits, roles, extra)


def read_sop(root: Path) -> ImageTable:
    """Read Stanford Online Products."""
    rows = []
    names = ("image_id", "class_id", "super_class_id", "path")
    for split in ("train", "test"):
        for line, (_, label, _, name) in _read_fields(_find_file(root, f"Ebay_{split}.txt"), names, header=True):
            category = line.check_image(name, "<category>/<image>").partition("/")[0].removesuffix("_final")
            rows.append(_Row(name, line.check_digits("class_id", label), category, split))
    return _table(root, rows, f"{root}/Ebay_*.txt")


def read_in_shop(root: Path) -> ImageTable:
    """Read In-Shop Clothes. Categories are such as MEN/Denim; the images may also be in img/."""
    file = _find_file(root, "Eval/list_eval_partition.txt", "list_eval_partition.txt")
    above = "" if (root / "img").is_dir() and not (root / "Img/img").is_dir() else "Img/"
    rows = []
    names = ("image_name", "item_id", "evaluation_status")
    for line, (name, label, status) in _read_fields(file, names, header=True, counted=True):
        if status not in ("train", "query", "gallery"):
            raise line.error(f"has the evaluation_status {status[:40]!r}, not train, query or gallery")
        parts = line.check_image(name, "img/<gender>/<category>/<item>/<image>").split("/")
        split, role = ("train", "") if status == "train" else ("test", status)
        rows.append(_Row(above + name, label, "/".join(parts[1:3]), split, role))
    return _table(root, rows, file)


def read_vehicleid(root: Path) -> ImageTable:
    """Read PKU VehicleID.

    The models of vehicles are their categories; without the file of them there are none. The columns "small",
    "medium" and "large" tell which test lists an image is in.
    """
    train = _read_vehicles(root, "train_list.txt")
    lists = {size: _read_vehicles(root, f"test_list_{count}.txt") for size, count in TEST_LISTS.items()}
    test: dict[str, str] = {}
    folder = f"{printable(root)}/train_test_split"
    for path, vehicle in (pair for vehicles in lists.values() for pair in vehicles.items()):
        if test.setdefault(path, vehicle) != vehicle:
            raise InputError(f"{folder} says {path} shows two vehicles; copy the lists again")
    if both := sorted(train.keys() & test.keys())[:1]:
        raise InputError(f"{folder} has {both[0]} in train and test; copy the lists again")
    models: dict[str, str] = {}
    if (file := root / "attribute/model_attr.txt").is_file():
        models = {vehicle: model for _, (vehicle, model) in _read_fields(file, ("vehicle_id", "model_id"))}
    rows = [_Row(path, vehicle, models.get(vehicle, ""), "train") for path, vehicle in train.items()]
    rows += [_Row(path, vehicle, models.get(vehicle, ""), "test") for path, vehicle in test.items()]
    extra = {size: np.array([row.path in vehicles for row in rows]) for size, vehicles in lists.items()}
    return _table(root, rows, **extra)


def _read_vehicles(root: Path, name: str) -> dict[str, str]:
    """Return the vehicle on each image of a list."""
    pairs = _read_pairs(_find_file(root, f"train_test_split/{name}"), ("image", "vehicle_id"))
    return {
        line.check_image(f"image/{image}.jpg"): line.check_digits("vehicle_id", vehicle)
        for image, (line, vehicle) in pairs.items()
    }


def read_inaturalist(root: Path) -> ImageTable:
    """Read iNaturalist 2018 with the split of Smooth-AP."""
    rows = []
    starts = [f"{folder}{start}" for folder in _INAT_FOLDERS for start in ("Inaturalist", "Inat")]
    for split in ("train", "test"):
        file = _find_file(root, *(f"{start}_{split}_set1.txt" for start in starts))
        for number, name in read_lines(file):
            parts = _Line(file, number).check_image(name, "train_val2018/<category>/<class>/<image>").split("/")
            rows.append(_Row(name, "/".join(parts[-3:-1]), parts[-3], split))
    return _table(root, rows, f"{root}/Inat_dataset_splits")


def read_cub(root: Path) -> ImageTable:
    """Read CUB-200-2011. The first 100 classes are for training, the others for the test."""
    file, class_file = _find_file(root, "images.txt"), _find_file(root, "image_class_labels.txt")
    images, labels = _read_pairs(file, ("image_id", "path")), _read_pairs(class_file, ("image_id", "class_id"))
    for odd in sorted(images.keys() ^ labels.keys())[:1]:
        lacks = class_file if odd in images else file
        raise InputError(f"{printable(lacks)} has no image_id {odd}, the other list has it; copy both files again")
    rows = []
    for image, (line, name) in images.items():
        label = labels[image][0].check_digits("class_id", labels[image][1])
        path = line.check_image(name, "<class>/<image>")
        rows.append(_Row(f"images/{path}", label, split="train" if int(label) <= 100 else "test"))
    return _table(root, rows, file)


def read_vggface2(root: Path) -> ImageTable:
    """Read VGGFace2."""
    rows = []
    for split in ("train", "test"):
        if not (root / split).is_dir():
            raise FileNotFoundError(root / split)
        identities = sorted(name for name in list_names(root / split) if not name.startswith("."))
        with progress(f"listing {split}", len(identities)) as advance:
            for identity in identities:
                images = sorted(name for name in list_names(root / split / identity) if name.lower().endswith(".jpg"))
                rows += [_Row(f"{split}/{identity}/{name}", identity, "", split) for name in images]
                advance(1)
    return _table(root, rows)


def read_ijb_c(root: Path) -> ImageTable:
    """Read IJB-C, a row per face.

    The column "template" has one text per instance. A video is one instance: its frames share a SIGHTING_ID (or
    MEDIA_ID, or TEMPLATE_ID, if a file has only these). An image in another folder than frames/ is one by itself. The
    column "box" is the face, from FACE_X, FACE_Y, FACE_WIDTH and FACE_HEIGHT. A file and subject that come again, and
    faces of nobody, are left out.
    """
    names = [f"{at}ijbc_metadata{age}.csv" for at in ("protocols/", "protocol/", "") for age in ("", "_with_age")]
    above = "" if not (root / "images").is_dir() and (root / "img").is_dir() else "images/"
    rows: dict[tuple[str, str], _Row] = {}
    templates, boxes = [], []
    for line, face in _read_faces(_find_file(root, *names)):
        subject, name = face["SUBJECT_ID"], line.check_image(face["FILENAME"])
        if subject.lower() in ("", "nan") or (subject, name) in rows:
            continue
        rows[subject, name] = _Row(above + name, line.check_digits("SUBJECT_ID", subject))
        media = next((face[key] for key in _MEDIA if face.get(key)), name)
        templates.append(f"{subject}/{media if 'frames' in name.split('/') else name}")
        boxes.append(_face_box(line, face))
    return _table(root, list(rows.values()), template=np.array(templates), box=np.array(boxes))


def _read_faces(file: Path) -> Iterator[tuple[_Line, dict[str, str]]]:
    """Yield each line of a CSV file and its values by the names of the header, in capitals."""
    reader = csv.DictReader(io.StringIO(_read_text(file).rstrip(), newline=""), strict=True)
    try:
        header = reader.fieldnames = [name.strip().upper() for name in reader.fieldnames or ()]
        for names in (("SUBJECT_ID",), ("FILENAME",), _MEDIA):
            if not set(names) & set(header):
                raise _Line(file, 1).error(f"must be a header with {' or '.join(names)}")
        for face in reader:
            line = _Line(file, reader.line_num)
            if None in face or None in face.values():
                raise line.error(f"must have {len(header)} fields")
            yield line, {name: value.strip() for name, value in face.items()}
    except csv.Error as error:
        raise _Line(file, reader.line_num).error(f"is no CSV ({error})") from None


def _face_box(line: _Line, face: dict[str, str]) -> str:
    """Return left, top, right and bottom of the face in pixels; "" if the file has none."""
    values = [face.get(name, "") for name in ("FACE_X", "FACE_Y", "FACE_WIDTH", "FACE_HEIGHT")]
    if not all(values):
        return ""
    try:
        x, y, width, height = map(float, values)
    except ValueError:
        raise line.error(f"has a face without a valid box: {[value[:20] for value in values]}") from None
    return _box((x, y, x + width, y + height)) if math.isfinite(x + y + width + height) else ""


def _box(edges: Iterable[float]) -> str:
    return " ".join(f"{edge:.10g}" for edge in edges)


def read_landmarks_clean(root: Path) -> ImageTable:
    """Read Landmarks-clean.

    The list is published as addresses on the web, so we define where an image is saved: images/<label>/ and the last
    part of the address. A line may have a path from the root instead.
    """
    folders = ("", "annotations/", "annotations_landmarks/")
    file = _find_file(root, *(f"{folder}annotation_clean_train.txt" for folder in folders))
    rows = []
    for line, (where, label) in _read_fields(file, ("url", "label")):
        if where.startswith(("http://", "https://")):
            where = f"images/{label}/{urlsplit(where).path.rpartition('/')[2]}"
        if where.endswith("/"):
            raise line.error("has an address that ends without the name of an image")
        rows.append(_Row(line.check_image(where), label, split="train"))
    return _table(root, rows, file, "write paths instead of addresses that end alike")


def read_revisited(name: str, root: Path) -> ImageTable:
    """Read roxford5k or rparis6k.

    The column "box" is the part of a query image that is searched for. "index" is the place of an image among the
    queries, or in the gallery: its number in the ground truth, also if some images are missing.
    """
    file = _find_file(root, f"gnd_{name}.pkl")
    truth = read_ground_truth(file)
    sides = {"query": truth.queries, "gallery": truth.images}
    rows = []
    for side, images in sides.items():
        for image in images:
            if not image.isprintable() or not image or {"/", "\\"} & set(image):
                raise InputError(f"{printable(file)} has {ascii(image)[:60]} as a {side} image; copy the file again")
            rows.append(_Row(f"jpg/{image}.jpg", role=side))
    for place, box in enumerate(truth.boxes):
        if len(box) not in (0, 4):
            raise InputError(f"{printable(file)} has {len(box)} numbers as bbx of gnd[{place}]; copy it again")
    boxes = [_box(box) for box in truth.boxes] + [""] * len(truth.images)
    index = np.concatenate([np.arange(len(images)) for images in sides.values()])
    return _table(root, rows, file, box=np.array(boxes), index=index)


def read_distractors(root: Path) -> ImageTable:
    """Read the distractors R1M."""
    file = _find_file(root, "revisitop1m.txt")
    rows = []
    for number, name in read_lines(file):
        ending = "" if "." in name.rpartition("/")[2] else ".jpg"
        rows.append(_Row(f"jpg/{_Line(file, number).check_image(name)}{ending}", role="distractor"))
    return _table(root, rows, file)


# The data sets by name.

Counts = Mapping[str, tuple[int, int | None]]  # part of a data set -> images, and classes where it has any


@dataclass(frozen=True)
class DataSet:
    """A published data set.

    title:   its name in a report
    layout:  the files and folders it is read from, for error messages
    read:    reads its table from its lists
    counts:  how many images and classes its splits, roles or test lists have; several if there are editions
    markers: patterns of files or folders that identify it; one of them is enough
    folder:  the folder its archive unpacks to, if that is one folder
    scanned: its images are those in its folders, not those in lists
    only:    a pattern of files that it has and others with the same markers do not have
    """

    title: str
    layout: str
    read: Callable[[Path], ImageTable]
    counts: tuple[Counts, ...]
    markers: tuple[str, ...]
    folder: str = ""
    scanned: bool = False
    only: str = "*"

    def home(self, root: Path) -> Path | None:
        """Return the folder with its files: root, or the folder its archive makes there."""
        homes = (root, root / self.folder)
        return next((home for home in homes if any(any(home.glob(at)) for at in self.markers)), None)


PUBLISHED: dict[str, DataSet] = {
    "sop": DataSet(
        "Stanford Online Products",
        "Ebay_train.txt and Ebay_test.txt (header: image_id class_id super_class_id path), <super class>_final/*.JPG",
        read_sop,
        ({"train": (59_551, 11_318), "test": (60_502, 11_316)},),
        ("Ebay_train.txt", "Ebay_test.txt"),
        "Stanford_Online_Products",
    ),
    "in-shop": DataSet(  # a paper prints 28,760 test images; the two sides have 26,830
        "In-Shop Clothes",
        "Eval/list_eval_partition.txt (how many, a header, then image_name item_id evaluation_status) and Img/img/",
        read_in_shop,
        ({"train": (25_882, 3_997), "query": (14_218, 3_985), "gallery": (12_612, 3_985)},),
        ("Img/img/WOMEN", "img/WOMEN"),  # other data sets have an Eval/list_eval_partition.txt too
    ),
    "vehicleid": DataSet(
        "PKU VehicleID",
        "train_test_split/train_list.txt, test_list_800.txt, test_list_1600.txt and test_list_2400.txt "
        "(image vehicle_id), image/*.jpg and attribute/model_attr.txt (vehicle_id model_id)",
        read_vehicleid,
        # The first counts are those of the papers, before the authors found vehicles with forged plates. They then
        # published new lists, and only those are available (VehicleID V1.0, README). Both are accepted.
        (
            {"train": (110_178, 13_134), "small": (7_332, 800), "medium": (12_995, 1_600), "large": (20_038, 2_400)},
            {"train": (113_346, 13_164), "small": (6_493, 800), "medium": (13_377, 1_600), "large": (19_777, 2_400)},
        ),
        tuple(f"train_test_split/test_list_{count}.txt" for count in TEST_LISTS.values()),
        "VehicleID_V1.0",
    ),
    "inaturalist": DataSet(  # the split of Smooth-AP
        "iNaturalist 2018",
        "Inat_dataset_splits/Inaturalist_train_set1.txt and Inaturalist_test_set1.txt (a path per line) and "
        "train_val2018/<category>/<class>/*.jpg",
        read_inaturalist,
        ({"train": (325_846, 5_690), "test": (136_093, 2_452)},),
        tuple(f"{folder}Inat*_{split}_set1.txt" for folder in _INAT_FOLDERS for split in ("train", "test")),
    ),
    "cub": DataSet(
        "CUB-200-2011",
        "images.txt (image_id path), image_class_labels.txt (image_id class_id) and images/<class>/*.jpg",
        read_cub,
        ({"train": (5_864, 100), "test": (5_924, 100)},),
        ("image_class_labels.txt",),
        "CUB_200_2011",
        only="images/[0-9][0-9][0-9].*",  # NABirds has the same lists
    ),
    # The papers round the training images to 3.31 million, which are those of train and test together: 3,311,286.
    "vggface2": DataSet(
        "VGGFace2",
        "train/<identity>/*.jpg and test/<identity>/*.jpg",
        read_vggface2,
        ({"train": (3_141_890, 8_631), "test": (169_396, 500)},),
        ("train/n[0-9][0-9][0-9][0-9][0-9][0-9]",),
        scanned=True,
    ),
    # 3,531 is how many subjects IJB-C has, so Smooth-AP's counts are those before small identities are left
    # out, which the evaluation protocol does.
    "ijb-c": DataSet(
        "IJB-C",
        "protocols/ijbc_metadata.csv (a header with SUBJECT_ID, FILENAME and SIGHTING_ID), "
        "images/img/ and images/frames/",
        read_ijb_c,
        ({"test": (148_824, 3_531)},),
        ("protocols/ijbc_metadata*.csv", "protocol/ijbc_metadata*.csv", "ijbc_metadata*.csv"),
        "IJB-C",
    ),
    "landmarks-clean": DataSet(
        "Landmarks-clean",
        "annotation_clean_train.txt (url label, or path label) and images/<label>/<last part of the url's path>",
        read_landmarks_clean,
        ({"train": (42_410, 586)},),
        ("annotation_clean_train.txt", "annotations*/annotation_clean_train.txt"),
    ),
    **{
        name: DataSet(
            title,
            f"gnd_{name}.pkl and jpg/*.jpg",
            partial(read_revisited, name),
            ({"query": (70, None), "gallery": (images, None)},),
            (f"gnd_{name}.pkl",),
            name,
        )
        for name, title, images in (("roxford5k", "ROxford5k", 4_993), ("rparis6k", "RParis6k", 6_322))
    },
    "revisited-1m": DataSet(
        "R1M",
        "revisitop1m.txt (a path per line) and jpg/",
        read_distractors,
        ({"distractor": (1_001_001, None)},),
        ("revisitop1m.txt",),
        "revisitop1m",
    ),
}


def detect_layout(root: str | Path) -> str | None:
    """Return the name of the published data set in a folder, by its marker files; None if there is none.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "Ebay_train.txt").write_text("")
    ...     detect_layout(folder)
    'sop'
    """
    homes = {name: dataset.home(Path(root)) for name, dataset in PUBLISHED.items()}
    names = [name for name, home in homes.items() if home is not None and any(home.glob(PUBLISHED[name].only))]
    if len(names) > 1:
        raise InputError(f"{printable(root)} holds the files of {' and '.join(names)}; choose one by its name")
    return names[0] if names else None


def read_published(name: str, root: str | Path, allow_partial: bool = False) -> ImageTable:
    """Read the table of a published data set, and check the number of its images and classes.

    name:          one of PUBLISHED
    root:          the folder with its files, or the one its archive was unpacked in
    allow_partial: if images or classes are missing, or too many, warn and use those that are there

    Splits are train and test. In-Shop, ROxford5k and RParis6k have the roles query and gallery, R1M distractor.

    >>> read_published("vggface2", "faces")
    Traceback (most recent call last):
    frontrank.errors.InputError: faces is no folder; give the one with train/<identity>/*.jpg and test/<identity>/*.jpg
    """
    dataset, root = PUBLISHED[check_choice("name", name, PUBLISHED)], Path(root)
    try:
        if not root.is_dir():
            raise InputError(f"{printable(root)} is no folder; give the one with {dataset.layout}")
        table = dataset.read(dataset.home(root) or root)
        there = np.ones(len(table), dtype=bool) if dataset.scanned else _present(table)
    except FileNotFoundError as error:
        raise InputError(f"{printable(error)} is missing; {dataset.title} is read from {dataset.layout}") from None
    except OSError as error:
        reason = f"{printable(error.filename or root)} cannot be read: {error.strerror}"
        raise InputError(f"{reason}; check its permissions") from error
    if differences := _differences(dataset, table, there):
        if not allow_partial or not there.any():
            remedy = ", or go on with what is there: --allow-partial (allow_partial=True)" if there.any() else ""
            raise InputError(f"{differences}; unpack its archive again{remedy}")
        warnings.warn(f"{differences}; going on with the other {int(there.sum()):,} images", FrontrankWarning, 2)
        table = table.rows(there)
    return replace(table, name=dataset.title)


def _present(table: ImageTable) -> np.ndarray:
    """Return which images are on disk [row]; it lists each folder once, because a look at each image is slow."""
    rows_of: dict[str, dict[int, str]] = defaultdict(dict)
    for row, path in enumerate(table.paths.tolist()):
        folder, _, name = path.rpartition("/")
        rows_of[folder][row] = name
    present = np.zeros(len(table), dtype=bool)
    with progress("looking for the images", len(table)) as advance:
        for folder, rows in rows_of.items():
            names = list_names(table.root / folder)
            present[list(rows)] = [name in names for name in rows.values()]
            advance(len(rows))
    return present


def _differences(dataset: DataSet, table: ImageTable, present: np.ndarray) -> str:
    """Return in words how a data set differs from the published one; "" if it does not."""
    listed = [_counts(table, edition, np.ones(len(table), dtype=bool)) for edition in dataset.counts]
    editions = zip(dataset.counts, listed, strict=True)
    expected, _ = max(editions, key=lambda both: len(both[0].items() & both[1].items()))  # the one that fits best
    counts = _counts(table, expected, present)
    differences = {part: count for part, count in expected.items() if counts[part] != count}
    parts = [f"{part} has {_amount(*counts[part])} instead of {_amount(*of)}" for part, of in differences.items()]
    if not present.all():
        files = list(dict.fromkeys(table.paths[~present].tolist()))
        parts.append(f"{_many(len(files), 'listed image')} {'is' if len(files) == 1 else 'are'} missing: {_few(files)}")
        if lost := sorted(set(table.labels.tolist()) - {"", *table.labels[present].tolist()}):
            parts.append(f"{_many(len(lost), 'class')} without any image: {_few(lost)}")
    elif parts:
        parts.append("all listed images are there, so the lists or folders are not the official ones")
    return f"{dataset.title} in {printable(table.root)} is not as published: {'; '.join(parts)}" if parts else ""


def _counts(table: ImageTable, parts: Iterable[str], among: np.ndarray) -> Counts:
    """Count images and classes of each part among some rows; a part is a split, a role, or a boolean column."""
    counts = {}
    for part in parts:
        inside = table.splits == part if part in SPLITS else table.roles == part if part in ROLES else table.extra[part]
        labels = table.labels[inside & among].tolist()
        counts[part] = len(labels), len(set(labels) - {""}) or None
    return counts


def _amount(images: int, classes: int | None) -> str:
    return _many(images, "image") + (f" of {_many(classes, 'class')}" if classes else "")


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "es" if what.endswith("s") else "s")


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + ", ..." * (len(names) > 3)
