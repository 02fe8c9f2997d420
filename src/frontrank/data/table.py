"""Tables of images: ImageTable, and how one is read from a folder or a file."""

import csv
import io
import json
import math
import os
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from frontrank.checks import import_extra, join_words, nearest_word, printable, suggestion
from frontrank.data.embedding_files import check_file, name_list, parsing, read_csv, text_array
from frontrank.errors import FrontrankWarning, InputError, InputTypeError
from frontrank.files import PathLike, atomic_write
from frontrank.tables import Table

SPLITS = ("train", "validation", "test")
ROLES = ("", "query", "gallery", "distractor")
COLUMNS = {"paths": "path", "labels": "label", "categories": "category", "splits": "split", "roles": "role"}
TABLE_ENDINGS = (".csv", ".parquet")
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")

_OTHER_PICTURES = (".heic", ".heif", ".avif", ".svg", ".jp2", ".jxl", ".psd", ".dng", ".cr2", ".nef", ".arw")
_JUNK = ("thumbs.db", "desktop.ini", "__macosx")
_SPLIT_WORDS = {"": "train", "val": "validation", "valid": "validation"}
_TOP = {  # a folder at the top: the split and the role of the images in it
    **{split: (split, "") for split in SPLITS},
    **{"val": ("validation", ""), "valid": ("validation", "")},
    **{role: ("test", role) for role in ("query", "gallery")},
}
_COUNTS = ("split", "role", "images", "classes", "categories", "least", "median", "most", "single")
_NAMES = (*COLUMNS.values(), "box")  # columns with a meaning, in capitals or not
_LEVEL = re.compile(r"level[1-9][0-9]?")  # a column between label and category
_LONG = 128  # characters of a text, beyond which it does not set the width of its whole column

Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True, eq=False)
class ImageTable:
    """Table of images, one per row; all columns are arrays of text of one length.

    root:       the folder that `paths` start from
    paths:      relative to root, with forward slashes, or absolute
    labels:     the class of each image; "" for a distractor, and for an image without a known class; of several classes
                a list, which is kept as the text of a JSON list, such as '["cat", "dog"]'; see `label_sets`
    categories: a coarser group of classes, "" where there is none
    splits:     "train", "validation" or "test"
    roles:      "" is query and gallery at once; "query", "gallery" and "distractor" are one side of a search
    extra:      further columns [row] that a protocol needs, such as "template" or "box"; "level2", "level3", ... and
                "subcategory" are levels between label and category
    name:       of the data set, for reports

    >>> paths, labels = ["a/1.jpg", "a/2.jpg", "b/1.jpg"], ["a", "a", "b"]
    >>> table = ImageTable(Path("birds"), paths, labels, [""] * 3, ["train"] * 3, [""] * 3)
    >>> print(table.check().describe())
    split  images  classes  categories  per class: least, median, most  of one image
    train       3        2           0                       1, 1.5, 2             1
    """

    root: Path
    paths: np.ndarray
    labels: np.ndarray
    categories: np.ndarray
    splits: np.ndarray
    roles: np.ndarray
    extra: Mapping[str, np.ndarray] = field(default_factory=dict)
    name: str = ""

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in COLUMNS} | {"labels": _join_lists(self.labels)}
        columns = {name: _text(name, column) for name, column in given.items()}
        extra = {name: np.asarray(column) for name, column in self.extra.items()}
        vars(self).update(columns, root=Path(self.root), extra=extra)  # the class is frozen
        for name, column in {**columns, **extra}.items():
            if column.ndim == 0 or len(column) != len(self.paths):
                length = len(column) if column.ndim else "no"
                raise InputError(f"{name} has {length} rows, paths has {len(self.paths)}; give one entry per image")

    def __len__(self) -> int:
        return len(self.paths)

    def rows(self, index: np.ndarray) -> "ImageTable":
        """Return the table of some rows, by number or by mask."""
        columns = {name: getattr(self, name)[index] for name in COLUMNS}
        return replace(self, **columns, extra={name: column[index] for name, column in self.extra.items()})

    def of(self, split: str | None = None, role: str | None = None) -> "ImageTable":
        """Return the rows of one split, of one role, or of both."""
        of_split = np.ones(len(self), dtype=bool) if split is None else self.splits == split
        return self.rows(of_split if role is None else of_split & (self.roles == role))

    def codes(self) -> np.ndarray:
        """Return the label of each row as a number from 0, in the order of the sorted labels [row], int64.

        Rows with the same list of labels have the same number.
        """
        return np.unique(self.labels, return_inverse=True)[1].astype(np.int64)

    def label_sets(self) -> list[frozenset[str]] | None:
        """Return the labels of each image as sets, as `evaluate` takes them; None if no image has several.

        >>> labels = [["cat", "dog"], "dog", "oak"]
        >>> table = ImageTable("a", ["1", "2", "3"], labels, [""] * 3, ["test"] * 3, [""] * 3)
        >>> [sorted(each) for each in table.label_sets()]
        [['cat', 'dog'], ['dog'], ['oak']]
        """
        return split_labels(self.labels)

    def first_labels(self) -> np.ndarray:
        """Return the label of each image, the first one where it has several [row]."""
        if self.label_sets() is None:
            return self.labels
        return np.array([(_parse_labels(text) or [text])[0] for text in self.labels.tolist()])

    def class_sizes(self) -> np.ndarray:
        """Return how many images each class has; one of several labels counts for each of them [class]."""
        sets = self.label_sets()
        labels = self.labels if sets is None else np.array([label for each in sets for label in each], dtype=str)
        return np.unique(labels[labels != ""], return_counts=True)[1]

    def require_one_label(self, what: str) -> None:
        """Raise if images have several labels, for something that needs one."""
        sets = self.label_sets() or []
        for row in [row for row, each in enumerate(sets) if len(each) > 1][:1]:
            where = f"{self.name or self.root}: {printable(self.paths[row])} has {len(sets[row])} labels"
            raise InputError(f"{where}, and {what} needs one label per image")

    def level_names(self) -> tuple[str, ...]:
        """Return the columns that are levels of the labels, finest first: label, level2, ..., subcategory, category.

        A coarser level counts if all images with a label have it, if it has two values or more, and if each class is
        in one of them. Images of several labels are an error. A distractor is in no class of any level.
        """
        return tuple(self._levels())

    def level_labels(self) -> np.ndarray:
        """Return the labels [row] or, if the table has several levels, [row, level], finest first.

        >>> labels, categories = ["cat", "dog", "oak"], ["pet", "pet", "tree"]
        >>> table = ImageTable("a", ["1", "2", "3"], labels, categories, ["test"] * 3, [""] * 3)
        >>> table.level_names(), table.level_labels().tolist()
        (('label', 'category'), [['cat', 'pet'], ['dog', 'pet'], ['oak', 'tree']])
        """
        levels = list(self._levels().values())
        return np.stack(levels, 1) if levels[1:] else self.labels

    def _levels(self) -> dict[str, np.ndarray]:
        self.require_one_label("a hierarchy of labels")
        return nested_levels(self.labels, {**self.extra, "category": self.categories})

    def warn_of_levels(self, what: str) -> None:
        """Warn that something which looks at levels of labels finds none, or leaves a column out, and why."""
        warn_of_levels(what, self.labels, {**self.extra, "category": self.categories})

    def files(self) -> list[str]:
        """Return the file of each image: root and path."""
        return [os.path.join(self.root, path) for path in self.paths.tolist()]

    def check(self, labelled: bool = True) -> "ImageTable":
        """Return the table itself, or raise if it is empty, or if a split, role, label or path is not valid.

        labelled: each image that is no distractor must have a label
        """
        where = self.name or str(self.root)
        if not len(self):
            raise InputError(f"{where} has no images; give at least one")
        for what, column, known in (("split", self.splits, SPLITS), ("role", self.roles, ROLES)):
            for row in np.flatnonzero(~np.isin(column, known))[:1]:
                value = str(column[row])
                near = suggestion(value, known) or f"; use one of {', '.join(map(repr, known))}"
                raise InputError(f"{where}: {printable(self.paths[row])} has the {what} {value!r}{near}")
        for row in np.flatnonzero(self.paths == "")[:1]:
            raise InputError(f"{where} has no path in row {row} (from 0); fill or drop it")
        for row in np.flatnonzero((self.labels == "") & (self.roles != "distractor"))[: 1 if labelled else 0]:
            raise InputError(f"{where}: {printable(self.paths[row])} has no label; add it, or the role 'distractor'")
        _refuse_repeats(where, self.root, self.paths.tolist())
        return self

    def boxes(self) -> list[Box | None]:
        """Return the part of each image that is used, from the extra column "box"; None for the whole image.

        A box is text ("left top right bottom", commas or blanks between, "" for none) or four numbers.
        """
        return [self.box(row) for row in range(len(self))]

    def box(self, row: int) -> Box | None:
        """Return the part of one image that is used; None for the whole image."""
        column = self.extra.get("box")
        return None if column is None else _box(self.paths[row], column[row])

    def counts(self) -> list[dict[str, str | int | float]]:
        """Return the number of images, classes and categories of each split and role, and the sizes of classes."""
        counts: list[dict[str, str | int | float]] = []
        parts = ((split, role, self.of(split, role)) for split, role in product(SPLITS, ROLES))
        for split, role, part in (each for each in parts if len(each[2])):
            sizes = part.class_sizes()
            categories, single = len(set(part.categories.tolist()) - {""}), int((sizes == 1).sum())
            least, median, most = (sizes.min(), np.median(sizes), sizes.max()) if len(sizes) else (0, 0, 0)
            row = (split, role, len(part), len(sizes), categories, int(least), float(median), int(most), single)
            counts.append(dict(zip(_COUNTS, row, strict=True)))
        return counts

    def describe(self) -> str:
        """Return `counts` as lines to print."""
        counts = self.counts()
        if not counts:
            return "no images"
        names = ["split", "role"] if any(row["role"] for row in counts) else ["split"]
        header = ["images", "classes", "categories", "per class: least, median, most", "of one image"]
        form = "{images:,}|{classes:,}|{categories:,}|{least:,}, {median:g}, {most:,}|{single:,}"
        rows = [[*(str(row[name]) for name in names), *form.format(**row).split("|")] for row in counts]
        return Table([*names, *header], rows, "l" * len(names) + "r" * len(header)).render("text")

    def save(self, path: PathLike, overwrite: bool = False) -> None:
        """Write a .csv or .parquet file of columns path, label, category, split, role and the extra ones.

        Paths are written relative to the folder of that file, so that `read_table` finds the images.
        """
        target = Path(path)
        if target.suffix.lower() not in TABLE_ENDINGS:
            raise InputError(f"{printable(target)} must end in {' or '.join(TABLE_ENDINGS)}; rename it")
        if target.exists() and not overwrite:
            raise InputError(f"{printable(target)} exists already; give another path, or overwrite=True")
        columns = {COLUMNS[name]: getattr(self, name).tolist() for name in COLUMNS}
        columns["path"] = _relative_paths(target.parent, self.root, columns["path"])
        for name, column in self.extra.items():
            if column.ndim != 1 or name in columns:
                raise InputError(f"extra column {name!r} must have one entry per row and a name of its own to be saved")
            columns[name] = column.tolist()
        try:
            content = _csv_content(columns) if target.suffix.lower() == ".csv" else _parquet_content(columns)
        except UnicodeError as error:
            fault = f"{printable(target)} cannot hold a name that is not UTF-8 ({error})"
            raise InputError(f"{fault}; rename it") from error
        atomic_write(target, content)


def nested_levels(labels: np.ndarray, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return labels and the columns level2, level3, ..., subcategory, category that are coarser levels, as text.

    A column that has no entry for an image with a label, the same one for all, or two for one class, is left out.
    An image without a label, such as a distractor, has no coarser class either.
    """
    return _read_levels(labels, columns)[0]


def level_faults(labels: np.ndarray, columns: Mapping[str, np.ndarray]) -> list[str]:
    """Return why columns of the names of levels are none, in a line each; those without any entry are left out.

    >>> level_faults(np.array(["cat", "cat", "oak"]), {"category": np.array(["pet", "tree", "tree"])})
    ["column category has several entries for label 'cat'"]
    """
    return _read_levels(labels, columns)[1]


def _read_levels(labels: np.ndarray, columns: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], list[str]]:
    names = sorted((name for name in columns if _LEVEL.fullmatch(name)), key=lambda name: int(name[5:]))
    names += [name for name in ("subcategory", "category") if name in columns]
    levels, faults = {"label": labels.astype(str)}, []
    labelled = levels["label"] != ""
    for name in names:
        column, (finer, classes) = columns[name].astype(str), list(levels.items())[-1]
        own, of = column[labelled].tolist(), dict[str, str]()
        several = [
            fine
            for fine, each in zip(classes[labelled].tolist(), own, strict=True)
            if of.setdefault(fine, each) != each
        ]
        if "" in own:
            faults += [f"column {name} is empty for some images"] if any(own) else []
        elif len(set(own)) < 2:
            faults.append(f"column {name} is the same for all images")
        elif several:
            faults.append(f"column {name} has several entries for {finer} {several[0]!r}")
        else:
            levels[name] = np.where(labelled, column, "")
    return levels, faults


def warn_of_levels(what: str, labels: np.ndarray, columns: Mapping[str, np.ndarray]) -> None:
    """Warn that something which looks at levels of labels finds none, or leaves a column out, and why."""
    levels, faults = _read_levels(labels, columns)
    if faults or len(levels) == 1:
        reason = "; ".join(faults) or "there is no column category, subcategory, level2, ..."
        warnings.warn(f"{what} ranks by {join_words(levels, 'and')} alone: {reason}", FrontrankWarning, stacklevel=2)


def split_labels(labels: np.ndarray) -> list[frozenset[str]] | None:
    """Return labels as sets, of which those written as a JSON list have several; None if there is no such list.

    >>> split_labels(np.array(["cat", "dog"]))
    """
    texts = labels.tolist()
    lists = {text: names for text in set(texts) if (names := _parse_labels(text))}
    return [frozenset(lists.get(text, [text] if text else [])) for text in texts] if lists else None


def _parse_labels(text: object) -> list[str]:
    """Return the labels of a text such as '["cat", "dog"]'; [] if it is one label."""
    if not isinstance(text, str) or not text.startswith('["'):
        return []
    try:
        names = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return names if all(isinstance(name, str) for name in names) else []


def _join_lists(labels: object) -> object:
    """Return labels as text, where lists of them become that of a JSON list."""
    several = (list, tuple, set, frozenset)
    if not isinstance(labels, list | tuple) or not any(isinstance(label, several) for label in labels):
        return labels
    return [_join_labels(label) if isinstance(label, several) else label for label in labels]


def _join_labels(labels: Iterable[object]) -> str:
    """Return several labels, each once, as one text; one label stays as it is.

    >>> _join_labels(["cat", "dog", "cat"]), _join_labels(["cat"])
    ('["cat", "dog"]', 'cat')
    """
    names = list(dict.fromkeys(name for label in labels if (name := str(label).strip())))
    return json.dumps(names, ensure_ascii=False) if len(names) > 1 else "".join(names)


def _text(name: str, column: object) -> np.ndarray:
    texts = np.asarray(column)
    if texts.size == 0 or (texts.dtype.kind == "O" and all(isinstance(entry, str) for entry in texts.ravel())):
        texts = texts.astype(str)
    if texts.dtype.kind != "U" or texts.ndim != 1:
        raise InputTypeError(f"{name} must be an array of text [row], got {texts.dtype} of shape {texts.shape}")
    return texts


def _box(path: str, box: Any) -> Box | None:
    try:
        parts = box.replace(",", " ").split() if isinstance(box, str) else [] if box is None else list(box)
        if not parts:
            return None
        left, top, right, bottom = map(float, parts)
        if math.isfinite(left + top + right + bottom):
            return left, top, right, bottom
    except (TypeError, ValueError):
        pass
    raise InputError(f"{printable(path)} has the box {str(box)[:80]!r}; write left top right bottom, or nothing")


def _refuse_repeats(where: str, root: Path, paths: list[str]) -> None:
    """Raise if a file is in several rows, however its path is written."""
    start = os.path.join(os.path.abspath(root), "")
    seen = set()
    for path in paths:
        plain = path
        if "./" in path or "//" in path or os.path.isabs(path):
            plain = os.path.normpath(os.path.join(start, path)).removeprefix(start).replace(os.sep, "/")
        if plain in seen:
            raise InputError(f"{where} has {printable(path)} in more than one row; drop all but one of them")
        seen.add(plain)


def _relative_paths(folder: Path, root: Path, paths: list[str]) -> list[str]:
    """Return paths below root as paths from a folder; both are resolved, as '..' leaves the target of a link."""
    try:
        prefix = Path(os.path.relpath(root.resolve(), folder.resolve())).as_posix()
    except ValueError:  # another drive
        prefix = root.resolve().as_posix()
    return paths if prefix == "." else [path if os.path.isabs(path) else f"{prefix}/{path}" for path in paths]


def _csv_content(columns: Mapping[str, list[object]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([columns, *zip(*columns.values(), strict=True)])
    return text.getvalue().encode()


def _parquet_content(columns: Mapping[str, list[object]]) -> bytes:
    arrow, parquet = _import_arrow()
    parquet.write_table(arrow.table(columns), content := io.BytesIO())
    return content.getvalue()


def _import_arrow() -> tuple[Any, Any]:
    purpose = "a .parquet table"
    return import_extra("pyarrow", "train", purpose), import_extra("pyarrow.parquet", "train", purpose)


# A user's own images: folders of classes, tables (.csv, .parquet), or just pictures without labels.


def list_images(folder: Path) -> tuple[list[str], Counter[str]]:
    """Return all images in a folder and its subfolders, sorted, and the number of other files by ending.

    An image ends in .jpg, .jpeg, .png, .webp, .bmp, .gif, .tif or .tiff, in capitals or not. Hidden files and folders,
    Thumbs.db, desktop.ini and __MACOSX are skipped. Links are followed, but never back to a folder above.
    """
    endings = {path: os.path.splitext(path)[1].lower() for path in _walk(folder, "", ())}
    images = sorted(path for path, ending in endings.items() if ending in IMAGE_ENDINGS)
    return images, Counter(sorted(ending for ending in endings.values() if ending not in IMAGE_ENDINGS))


def read_folder(root: PathLike, classes: bool = False) -> ImageTable:
    """Read the images of `root/<class>/<image>` or `root/<category>/<class>/<image>`.

    If all folders at the top are named train, validation (or val, valid), test, query or gallery, each of them is such
    a tree, for that use: query and gallery are the two sides of the test. Else all images are for training, and a
    folder of such a name beside others is a class, or a category, as they are. A class inside a category has the label
    "category/class", because two categories may have classes of the same name.

    classes: the folders at the top are classes or categories, whatever their names are

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for path in ("cat/2.jpg", "cat/1.JPG", "dog/1.png", "dog/notes.txt"):
    ...         (Path(folder) / path).parent.mkdir(exist_ok=True)
    ...         (Path(folder) / path).touch()
    ...     table = read_folder(folder)
    >>> table.paths.tolist(), table.labels.tolist()
    (['cat/1.JPG', 'cat/2.jpg', 'dog/1.png'], ['cat', 'cat', 'dog'])
    """
    root = _check_folder(root)
    images, others = list_images(root)
    _check_listing([root], images, others)
    tops = sorted({path.split("/")[0] for path in images if "/" in path})
    uses = [top for top in tops if top.lower() in _TOP]
    by_use = bool(uses) and len(uses) == len(tops) and not classes
    if uses and not by_use and not classes:
        _warn_of_categories(root, images, uses, tops)
    parts = [path.split("/")[by_use:] for path in images]
    _check_depths(root, images, [len(part) for part in parts], by_use)
    labels = np.array(["/".join(part[:-1]) for part in parts])
    categories = np.array([part[0] if len(part) == 3 else "" for part in parts])
    splits, roles = np.array([_TOP[path.split("/")[0].lower()] if by_use else ("train", "") for path in images]).T
    return ImageTable(root, np.array(images), labels, categories, splits, roles, name=root.resolve().name).check()


def read_unlabelled(paths: Sequence[PathLike]) -> ImageTable:
    """Read images without labels, to be embedded or searched: files of any name, and folders with all their images.

    An image that is given twice is taken once. The split is "test", the role "".
    """
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    files: dict[str, str] = {}
    folders, others = [], Counter[str]()
    for path in paths:
        if not os.path.exists(path):
            raise InputError(f"{printable(path)} does not exist; check the path")
        names = [str(path)]
        if os.path.isdir(path):
            images, more = list_images(Path(path))
            folders.append(path)
            others += more
            names = [os.path.join(path, image) for image in images]
        for name in names:
            files.setdefault(os.path.abspath(name), Path(name).as_posix())
    _check_listing(folders, files, others)
    nothing, splits = np.full(len(files), ""), np.full(len(files), "test")
    table = ImageTable(Path.cwd(), np.array(list(files.values())), nothing, nothing, splits, nothing, name="images")
    return table.check(labelled=False)


def read_table(path: PathLike, root: PathLike | None = None) -> ImageTable:
    """Read the images of a .csv or .parquet file with the columns path and label, and perhaps category, split and role.

    root: the folder that paths start from; None is the folder of the table. Absolute paths stay as they are

    A .csv file is UTF-8, and its first line names the columns, in capitals or not. Labels are text: "007" is not "7".
    An image of several labels has a JSON list of them, as "[""cat"", ""dog""]" in .csv, or a list in .parquet.
    Blanks around a path, label, category, split or role are dropped. Without a split an image is for training; "val"
    and "valid" are "validation". Other columns go to `extra`: as text from .csv, as they are from .parquet, where
    columns of lists are left out. The column "box" is the part of an image that is used: left top right bottom in
    pixels, as text or as a list of four numbers, and blank for the whole image. The columns "level2", "level3",
    ... and "subcategory" are levels that are coarser than label and finer than category. Rows keep their order.
    """
    path = check_file(Path(path), TABLE_ENDINGS, "tables of images")
    with parsing(path):
        columns = _csv_columns(path) if path.suffix.lower() == ".csv" else _parquet_columns(path)
    if "path" not in columns and (other := re.search("[;\t|]", "".join(columns))):
        kind = {";": "semicolons", "\t": "tabs", "|": "bars"}[other[0]]
        raise InputError(f"{printable(path)} has {kind} between its columns; save it with commas")
    for name in ("path", "label"):
        if name not in columns:
            near = suggestion(name, columns) or f"; name the column {name!r} in the first line, commas between names"
            raise InputError(f"{printable(path)} has no column {name!r}, only {name_list(columns)}{near}")
    _refuse_misspelt(path, columns)
    rows = len(columns["path"])
    known = {kept: columns.pop(name, np.full(rows, "")) for kept, name in COLUMNS.items()}
    known = {kept: _as_text(path, COLUMNS[kept], column) for kept, column in known.items()}
    lists = [_parse_labels(text) or [text] for text in known["labels"].tolist()]
    known["labels"] = np.array([_join_labels(names) for names in lists], dtype=str)
    known["splits"] = np.array([_SPLIT_WORDS.get(split, split) for split in known["splits"].tolist()], dtype=str)
    base = path.parent if root is None else _check_folder(root)
    table = ImageTable(base, **known, extra=columns, name=path.stem).check()
    table.boxes()  # a wrong one is refused here, not in the middle of a run
    return table


def _check_folder(folder: PathLike) -> Path:
    if not isinstance(folder, str | os.PathLike):
        raise InputTypeError(f"the folder of images must be a path, got {folder!r}")
    if not os.path.isdir(folder):
        what = "is a file, not a folder" if os.path.exists(folder) else "does not exist"
        table = str(folder).lower().endswith(TABLE_ENDINGS) and os.path.exists(folder)
        raise InputError(f"{printable(folder)} {what}; {'read it as a table' if table else 'give a folder of images'}")
    return Path(folder)


def _walk(folder: Path, inside: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """Yield the files of a folder and its subfolders, relative, with slashes; `above` are the folders on the way."""
    here = os.path.join(folder, inside)
    try:
        status = os.stat(here)
        entries = sorted(os.scandir(here), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"{printable(here)} cannot be listed ({error.strerror}); check its permissions") from error
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        return
    for entry in entries:
        name = entry.name
        if name.startswith(".") or name.lower() in _JUNK:
            continue
        if os.path.isdir(entry):  # not entry.is_dir(), which raises for a link to itself
            yield from _walk(folder, f"{inside}{name}/", (*above, identity))
        else:
            yield inside + name


def _check_listing(folders: Iterable[PathLike], images: Collection[str], others: Counter[str]) -> None:
    """Raise if there are no images, and warn of pictures that are left out."""
    where = ", ".join(map(printable, folders))
    if not images:
        if not others:
            raise InputError(f"{where} is empty; give a folder of images")
        raise InputError(f"{where} has no images, but {others.total()} other files; use {', '.join(IMAGE_ENDINGS)}")
    if unread := [ending for ending in others if ending in _OTHER_PICTURES]:
        pictures = f"{sum(others[ending] for ending in unread)} pictures that end in {', '.join(unread)}"
        message = f"{where}: {pictures} are left out; convert them to .jpg or .png"
        warnings.warn(message, FrontrankWarning, stacklevel=3)


def _warn_of_categories(root: Path, images: Iterable[str], uses: Sequence[str], tops: Iterable[str]) -> None:
    """Warn of a folder that has the name of a split and folders of classes, but stands beside other folders."""
    tree = next((use for use in uses if any(path.startswith(f"{use}/") and path.count("/") > 1 for path in images)), "")
    if tree:
        other = next(top for top in tops if top not in uses)
        message = (
            f"{printable(root)}: {printable(tree)} is a category here and all images are for training, because "
            f"{printable(other)} is beside it; move {printable(other)} away if {printable(tree)} is a split"
        )
        warnings.warn(message, FrontrankWarning, stacklevel=3)


def _check_depths(root: Path, images: Sequence[str], depths: Sequence[int], by_use: bool) -> None:
    example = dict(zip(reversed(depths), reversed(images), strict=True))  # the first of each
    layout = f"{printable(root)}/{'train/' if by_use else ''}<class>/<image>"
    least, most = (printable(root / example[of(example)]) for of in (min, max))
    if min(example) < 2:
        remedy = ", or use the layout classes if the folders at the top are classes" if by_use else ""
        raise InputError(f"{least} is not in a folder of a class; put the images of each class into {layout}{remedy}")
    if max(example) > 3:
        raise InputError(f"{most} is too deep; use {layout}, or one folder of categories around classes")
    if len(example) > 1:
        raise InputError(f"{least} is in a class, {most} in a class of a category; use one of the two everywhere")


def _csv_columns(path: Path) -> dict[str, np.ndarray]:
    header, *lines = read_csv(path)
    columns = list(zip(*filter(None, lines), strict=True)) or [()] * len(header)
    return {name: _texts(column) for name, column in zip(_plain_names(path, header), columns, strict=True)}


def _parquet_columns(path: Path) -> dict[str, np.ndarray]:
    arrow, parquet = _import_arrow()
    table, types = parquet.read_table(path), arrow.types
    columns = {}
    for place, name in enumerate(_plain_names(path, table.schema.names)):
        column = table.column(place).combine_chunks()
        if types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        kind = column.type
        if types.is_nested(kind):
            if name == "label" and not types.is_struct(kind):
                columns[name] = _texts([_join_labels(labels or ()) for labels in column.to_pylist()])
            if name == "box":
                columns[name] = _texts([" ".join(map(str, box or ())) for box in column.to_pylist()])
        elif not column.null_count and (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            columns[name] = column.to_numpy(zero_copy_only=False)
        else:
            columns[name] = _texts(column.cast(arrow.large_string()).fill_null("").to_pylist())
    return columns


def _plain_names(path: Path, names: Sequence[str]) -> list[str]:
    """Return the names of columns without blanks around them, and those with a meaning in small letters."""
    stripped = [name.strip() for name in names]
    plain = [name.lower() if name.lower() in _NAMES else name for name in stripped]
    for name, count in Counter(plain).items():
        if count > 1:
            raise InputError(f"{printable(path)} has several columns {name!r}; rename all but one")
    return plain


def _refuse_misspelt(path: Path, names: Iterable[str]) -> None:
    """Raise if a column is almost named as a missing one: it would be ignored, and test images trained on."""
    missing = {name: name for name in COLUMNS.values() if name not in names}
    missing |= {kept: name for kept, name in COLUMNS.items() if name in missing}  # "splits" for "split"
    for name in names:
        near = nearest_word(name, missing, 0.78)
        if near and abs(len(near) - len(name)) < 2:  # "category_id" is another thing
            raise InputError(f"{printable(path)} has a column {name!r}; did you mean {missing[near]}? Else rename it")


def _texts(texts: Sequence[str]) -> np.ndarray:
    """Return text as an array: of one width, unless a long text would make all others as long."""
    return np.array(texts, dtype=object if max(map(len, texts), default=0) > _LONG else str)


def _as_text(path: Path, name: str, column: np.ndarray) -> np.ndarray:
    if column.dtype.kind not in "iuUO":
        raise InputError(f"{printable(path)} has {column.dtype} in the column {name!r}; write text or integers there")
    return text_array(f"{printable(path)}, column {name!r},", [str(entry).strip() for entry in column.tolist()])
