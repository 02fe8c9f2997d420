"""The published data sets by name: what is read, and how many images and classes there must be.

The counts are those of the papers of PNP, Smooth-AP, FastAP, RaMBO and AP_Q. A data set that differs is refused, or
read as far as it is there.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from frontrank.data import published_layouts as layouts
from frontrank.data.image_table import ROLES, SPLITS, ImageTable, shown
from frontrank.data.list_files import names_in
from frontrank.data.stored_arrays import did_you_mean
from frontrank.errors import FrontrankWarning, InputError
from frontrank.progress import progress

Counts = Mapping[str, tuple[int, int | None]]  # part of a data set -> images, and classes where it has any


@dataclass(frozen=True)
class DataSet:
    """A published data set.

    title:           its name in a report
    read:            its table from its lists; the function's text begins with what it needs
    counts:          how many images and classes its splits, roles or test lists have; several if there are editions
    telling:         files or folders that tell it, as patterns; one of them is enough
    folder:          what its archive unpacks to, if that is one folder
    scanned:         its images are what its folders hold, not what lists name
    only:            what it has and others with the same telling files have not, as a pattern
    """

    title: str
    read: Callable[[Path], ImageTable]
    counts: tuple[Counts, ...]
    telling: tuple[str, ...]
    folder: str = ""
    scanned: bool = False
    only: str = "*"

    @property
    def layout(self) -> str:
        """What is read, in words."""
        return " ".join((self.read.__doc__ or "").split("\n\n")[0].split()).rstrip(".")

    def home(self, root: Path) -> Path | None:
        """The folder that has its files: root, or the folder its archive makes there."""
        homes = (root, root / self.folder)
        return next((home for home in homes if any(any(home.glob(at)) for at in self.telling)), None)


# The papers print the counts of VehicleID before its authors found vehicles with forged plates; they then gave the
# files new lists, and only those can be had (VehicleID V1.0, README). Both are accepted.
_VEHICLEID: tuple[Counts, ...] = (
    {"train": (110_178, 13_134), "small": (7_332, 800), "medium": (12_995, 1_600), "large": (20_038, 2_400)},
    {"train": (113_346, 13_164), "small": (6_493, 800), "medium": (13_377, 1_600), "large": (19_777, 2_400)},
)

PUBLISHED: dict[str, DataSet] = {
    "sop": DataSet(
        "Stanford Online Products",
        layouts.sop,
        ({"train": (59_551, 11_318), "test": (60_502, 11_316)},),
        ("Ebay_train.txt", "Ebay_test.txt"),
        "Stanford_Online_Products",
    ),
    "in-shop": DataSet(  # a paper prints 28,760 test images; the two sides have 26,830
        "In-Shop Clothes",
        layouts.in_shop,
        ({"train": (25_882, 3_997), "query": (14_218, 3_985), "gallery": (12_612, 3_985)},),
        ("Img/img/WOMEN", "img/WOMEN"),  # other data sets have an Eval/list_eval_partition.txt too
    ),
    "vehicleid": DataSet(
        "PKU VehicleID",
        layouts.vehicleid,
        _VEHICLEID,
        tuple(f"train_test_split/test_list_{count}.txt" for count in layouts.TEST_LISTS.values()),
        "VehicleID_V1.0",
    ),
    "inaturalist": DataSet(  # the split of Smooth-AP
        "iNaturalist 2018",
        layouts.inaturalist,
        ({"train": (325_846, 5_690), "test": (136_093, 2_452)},),
        tuple(
            f"{folder}Inat*_{split}_set1.txt" for folder in ("Inat_dataset_splits/", "") for split in ("train", "test")
        ),
    ),
    "cub": DataSet(
        "CUB-200-2011",
        layouts.cub,
        ({"train": (5_864, 100), "test": (5_924, 100)},),
        ("image_class_labels.txt",),
        "CUB_200_2011",
        only="images/[0-9][0-9][0-9].*",  # NABirds has the same lists
    ),
    # The papers round the training images to 3.31 million, which are those of train and test together: 3,311,286.
    "vggface2": DataSet(
        "VGGFace2",
        layouts.vggface2,
        ({"train": (3_141_890, 8_631), "test": (169_396, 500)},),
        ("train/n[0-9][0-9][0-9][0-9][0-9][0-9]",),
        scanned=True,
    ),
    # 3,531 is how many subjects IJB-C has, so Smooth-AP's counts are those before small identities are left
    # out, which the evaluation protocol does.
    "ijb-c": DataSet(
        "IJB-C",
        layouts.ijb_c,
        ({"test": (148_824, 3_531)},),
        ("protocols/ijbc_metadata*.csv", "protocol/ijbc_metadata*.csv", "ijbc_metadata*.csv"),
        "IJB-C",
    ),
    "landmarks-clean": DataSet(
        "Landmarks-clean",
        layouts.landmarks_clean,
        ({"train": (42_410, 586)},),
        ("annotation_clean_train.txt", "annotations*/annotation_clean_train.txt"),
    ),
    "roxford5k": DataSet(
        "ROxford5k",
        layouts.revisited("roxford5k"),
        ({"query": (70, None), "gallery": (4_993, None)},),
        ("gnd_roxford5k.pkl",),
        "roxford5k",
    ),
    "rparis6k": DataSet(
        "RParis6k",
        layouts.revisited("rparis6k"),
        ({"query": (70, None), "gallery": (6_322, None)},),
        ("gnd_rparis6k.pkl",),
        "rparis6k",
    ),
    "revisited-1m": DataSet(
        "R1M",
        layouts.distractors,
        ({"distractor": (1_001_001, None)},),
        ("revisitop1m.txt",),
        "revisitop1m",
    ),
}


def detect_layout(root: str | Path) -> str | None:
    """The name of the published data set that a folder holds, by its telling files; None if it holds none.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "Ebay_train.txt").write_text("")
    ...     detect_layout(folder)
    'sop'
    """
    homes = {name: dataset.home(Path(root)) for name, dataset in PUBLISHED.items()}
    found = [name for name, home in homes.items() if home is not None and any(home.glob(PUBLISHED[name].only))]
    if len(found) > 1:
        raise InputError(f"{shown(root)} holds the files of {' and '.join(found)}; say which is meant")
    return found[0] if found else None


def read_published(name: str, root: str | Path, allow_partial: bool = False) -> ImageTable:
    """The table of a published data set, whose images and classes are as many as they must be.

    name:          one of PUBLISHED
    root:          the folder that has its files, or the one its archive was unpacked in
    allow_partial: where images or classes are missing, or are too many, warn and go on with those that are there

    Splits are train and test. In-Shop, ROxford5k and RParis6k have the roles query and gallery, R1M distractor.

    >>> read_published("vggface2", "faces")
    Traceback (most recent call last):
    frontrank.errors.InputError: faces is no folder; give the one with train/<identity>/*.jpg and test/<identity>/*.jpg
    """
    if name not in PUBLISHED:
        remedy = did_you_mean(str(name), PUBLISHED) or f"there are {', '.join(PUBLISHED)}"
        raise InputError(f"name must be a published data set, got {name!r}; {remedy}")
    dataset, root = PUBLISHED[name], Path(root)
    try:
        if not root.is_dir():
            raise InputError(f"{shown(root)} is no folder; give the one with {dataset.layout}")
        table = dataset.read(dataset.home(root) or root)
        there = np.ones(len(table), dtype=bool) if dataset.scanned else ~_missing(table)
    except FileNotFoundError as error:
        raise InputError(f"{shown(error)} is missing; {dataset.title} is read from {dataset.layout}") from None
    except OSError as error:
        said = f"{shown(error.filename or root)} cannot be read: {error.strerror}"
        raise InputError(f"{said}; see that you may read it") from error
    if said := _differences(dataset, table, there):
        if not allow_partial or not there.any():
            remedy = ", or go on with what is there: --allow-partial (allow_partial=True)" if there.any() else ""
            raise InputError(f"{said}; unpack its archive again{remedy}")
        warnings.warn(f"{said}; going on with the {int(there.sum()):,} images that are there", FrontrankWarning, 2)
        table = table.rows(there)
    return replace(table, name=dataset.title)


def _missing(table: ImageTable) -> np.ndarray:
    """Which images are not on disk [row]: a look into each folder, where one for each image would take long."""
    rows_of: dict[str, list[int]] = {}
    names = []
    for row, path in enumerate(table.paths.tolist()):
        folder, _, name = path.rpartition("/")
        rows_of.setdefault(folder, []).append(row)
        names.append(name)
    missing = np.zeros(len(table), dtype=bool)
    with progress("looking for the images", len(table)) as advance:
        for folder, rows in rows_of.items():
            there = names_in(table.root / folder)
            missing[[row for row in rows if names[row] not in there]] = True
            advance(len(rows))
    return missing


def _differences(dataset: DataSet, table: ImageTable, there: np.ndarray) -> str:
    """What is not as published, in words; "" if all is."""
    listed = [_counts(table, edition, np.ones(len(table), dtype=bool)) for edition in dataset.counts]
    agree = [
        sum(of[part] == edition[part] for part in edition) for of, edition in zip(listed, dataset.counts, strict=True)
    ]
    expected = dataset.counts[int(np.argmax(agree))]
    found = _counts(table, expected, there)
    said = [
        f"{part} has {_amount(found[part])} instead of {_amount(expected[part])}"
        for part in expected
        if found[part] != expected[part]
    ]
    if not there.all():
        files = list(dict.fromkeys(table.paths[~there].tolist()))
        said.append(f"{_many(len(files), 'listed image')} {'is' if len(files) == 1 else 'are'} missing: {_few(files)}")
        if lost := sorted(set(table.labels.tolist()) - {"", *table.labels[there].tolist()}):
            said.append(f"of {_many(len(lost), 'class')} nothing is there: {_few(lost)}")
    elif said:
        said.append("all images that are listed are there, so the lists or folders are not the official ones")
    return f"{dataset.title} in {shown(table.root)} is not as published: {'; '.join(said)}" if said else ""


def _counts(table: ImageTable, parts: Iterable[str], among: np.ndarray) -> Counts:
    """Images and classes of each part among some rows: a split, a role, or a column that says who is in."""
    found = {}
    for part in parts:
        inside = table.splits == part if part in SPLITS else table.roles == part if part in ROLES else table.extra[part]
        inside = inside & among
        labels = set(table.labels[inside].tolist()) - {""}
        found[part] = int(inside.sum()), len(labels) or None
    return found


def _amount(count: tuple[int, int | None]) -> str:
    images, classes = count
    return _many(images, "image") + (f" of {_many(classes, 'class')}" if classes else "")


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}" + ("" if count == 1 else "es" if what.endswith("s") else "s")


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + ", ..." * (len(names) > 3)
