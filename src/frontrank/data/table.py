"""Tables of images: ImageTable, and how one is read from a folder or a file."""

import csv
import difflib
import math
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from frontrank.data.embedding_files import did_you_mean, existing_file, parsing
from frontrank.errors import FrontrankWarning, InputError, InputTypeError

# ==== One table of images: where each is, what it shows, and what it is for.


SPLITS = ("train", "validation", "test")
ROLES = ("", "query", "gallery", "distractor")
COLUMNS = {"paths": "path", "labels": "label", "categories": "category", "splits": "split", "roles": "role"}
TABLE_ENDINGS = (".csv", ".parquet")

Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True, eq=False)
class ImageTable:
    """Images, one per row; all columns are arrays of text of one length.

    root:       the folder that `paths` start from
    paths:      relative to root, with forward slashes; absolute ones are taken as they are
    labels:     the class of each image; "" for a distractor, and for an image that is only to be searched
    categories: a coarser group of classes, "" where there is none
    splits:     "train", "validation" or "test"
    roles:      "" searches and is searched; "query", "gallery" and "distractor" are one side of a search
    extra:      further columns [row], such as "template" or "box", as they are needed by a protocol
    name:       of the data set, as a report shows it

    >>> paths, labels = ["a/1.jpg", "a/2.jpg", "b/1.jpg"], ["a", "a", "b"]
    >>> table = ImageTable(Path("birds"), paths, labels, [""] * 3, ["train"] * 3, [""] * 3)
    >>> print(table.check().describe())
    split  images  classes  categories  images per class: least, median, most  classes of one image
    train       3        2           0                              1, 1.5, 2                     1
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
        for name in COLUMNS:
            object.__setattr__(self, name, _text(name, getattr(self, name)))
        object.__setattr__(self, "root", Path(self.root))
        object.__setattr__(self, "extra", {name: np.asarray(column) for name, column in self.extra.items()})
        for name, column in {**{name: getattr(self, name) for name in COLUMNS}, **self.extra}.items():
            if column.ndim == 0 or len(column) != len(self.paths):
                length = len(column) if column.ndim else "no"
                raise InputError(f"{name} has {length} rows, paths has {len(self.paths)}; give one entry per image")

    def __len__(self) -> int:
        return len(self.paths)

    def rows(self, index: np.ndarray) -> "ImageTable":
        """The table of some rows, by number or by mask."""
        columns = {name: getattr(self, name)[index] for name in COLUMNS}
        return replace(self, **columns, extra={name: column[index] for name, column in self.extra.items()})

    def of(self, split: str | None = None, role: str | None = None) -> "ImageTable":
        """The rows of one split, or of one role, or of both."""
        keep = np.ones(len(self), dtype=bool)
        if split is not None:
            keep &= self.splits == split
        if role is not None:
            keep &= self.roles == role
        return self.rows(keep)

    def codes(self) -> np.ndarray:
        """The label of each row as a number from 0, in the order of the sorted labels [row], int64."""
        return np.unique(self.labels, return_inverse=True)[1].astype(np.int64)

    def files(self) -> list[str]:
        """Where each image is, by root and path."""
        return [os.path.join(self.root, path) for path in self.paths.tolist()]

    def check(self, labelled: bool = True, repeats: bool = False) -> "ImageTable":
        """The table itself, unless it is empty, or a split, a role, a label or a path cannot be what is meant.

        labelled: each image that is no distractor must have a label
        repeats:  a file may occur in several rows, as a video frame in several templates
        """
        where = self.name or str(self.root)
        if not len(self):
            raise InputError(f"{where} has no images; give at least one")
        for column, known in ((self.splits, SPLITS), (self.roles, ROLES)):
            for row in np.flatnonzero(~np.isin(column, known))[:1]:
                what = "split" if known is SPLITS else "role"
                raise InputError(
                    f"{where}: {shown(self.paths[row])} has the {what} {str(column[row])!r}; "
                    f"{_nearest(str(column[row]), known)}"
                )
        for row in np.flatnonzero(self.paths == "")[:1]:
            raise InputError(f"{where} has no path in row {row} (from 0); fill or drop it")
        for row in np.flatnonzero((self.labels == "") & (self.roles != "distractor"))[: 1 if labelled else 0]:
            raise InputError(f"{where}: {shown(self.paths[row])} has no label; give it one, or the role 'distractor'")
        if not repeats:
            _refuse_repeats(where, self.root, self.paths.tolist())
        return self

    def boxes(self) -> list[Box | None]:
        """The part of each image that is looked at, by the extra column "box"; None for all of it.

        A box is text ("left top right bottom", commas or blanks between, "" for none) or four numbers.
        """
        column = self.extra.get("box")
        if column is None:
            return [None] * len(self)
        return [_box(path, box) for path, box in zip(self.paths.tolist(), column.tolist(), strict=True)]

    def counts(self) -> list[dict[str, str | int | float]]:
        """Images, classes and categories of each split and role, and how many images its classes have."""
        found: list[dict[str, str | int | float]] = []
        for split in SPLITS:
            for role in ROLES:
                part = self.of(split, role)
                if len(part):
                    sizes = np.unique(part.labels[part.labels != ""], return_counts=True)[1]
                    spread = (sizes.min(), np.median(sizes), sizes.max()) if len(sizes) else (0, 0, 0)
                    found.append(
                        {
                            "split": split,
                            "role": role,
                            "images": len(part),
                            "classes": len(sizes),
                            "categories": len(np.unique(part.categories[part.categories != ""])),
                            "least": int(spread[0]),
                            "median": float(spread[1]),
                            "most": int(spread[2]),
                            "single": int((sizes == 1).sum()),
                        }
                    )
        return found

    def describe(self) -> str:
        """`counts` as lines to print."""
        counts = self.counts()
        lines = [
            {
                "split": str(row["split"]),
                "role": str(row["role"]),
                "images": f"{row['images']:,}",
                "classes": f"{row['classes']:,}",
                "categories": f"{row['categories']:,}",
                "images per class: least, median, most": f"{row['least']:,}, {row['median']:g}, {row['most']:,}",
                "classes of one image": f"{row['single']:,}",
            }
            for row in counts
        ]
        if all(row["role"] == "" for row in counts):
            for line in lines:
                del line["role"]
        return "\n".join(_aligned(lines)) or "no images"

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write a .csv or .parquet file of columns path, label, category, split, role and the extra ones.

        Paths are written as seen from the folder of that file, so that `read_table` finds the images.
        """
        target = Path(path)
        if target.suffix.lower() not in TABLE_ENDINGS:
            raise InputError(f"{shown(target)} must end in {' or '.join(TABLE_ENDINGS)}, as a table does; rename it")
        if target.exists() and not overwrite:
            raise InputError(f"{shown(target)} exists already; give another path, or overwrite=True")
        columns = {COLUMNS[name]: getattr(self, name).tolist() for name in COLUMNS}
        columns["path"] = _seen_from(target.parent, self.root, columns["path"])
        for name, column in self.extra.items():
            if column.ndim != 1 or name in columns:
                raise InputError(f"extra column {name!r} must have one entry per row and a name of its own to be saved")
            columns[name] = column.tolist()
        unfinished = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            (_write_csv if target.suffix.lower() == ".csv" else _write_parquet)(unfinished, columns)
            unfinished.replace(target)
        except UnicodeError as error:
            raise InputError(f"{shown(target)} cannot hold a name that is not UTF-8 ({error}); rename it") from error
        except OSError as error:
            raise InputError(f"{shown(target)} cannot be written ({error.strerror}); give another path") from error
        finally:
            with suppress(OSError):  # or it would hide why the table cannot be written
                unfinished.unlink()


def shown(path: object) -> str:
    """A path as an error message says it: in one line whatever its name has in it."""
    text = str(path)
    return text if text.isprintable() else repr(text)


def _text(name: str, column: object) -> np.ndarray:
    found = np.asarray(column)
    if found.size == 0 or (found.dtype.kind == "O" and all(isinstance(entry, str) for entry in found.ravel())):
        found = found.astype(str)
    if found.dtype.kind != "U" or found.ndim != 1:
        raise InputTypeError(f"{name} must be an array of text [row], got {found.dtype} of shape {found.shape}")
    return found


def _nearest(value: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(value.lower(), known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(map(repr, known))}"


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
    raise InputError(f"{shown(path)} has the box {str(box)[:80]!r}; write left top right bottom, or nothing")


def _refuse_repeats(where: str, root: Path, paths: list[str]) -> None:
    """Refuse a file that comes again, however its path is written."""
    start = os.path.join(os.path.abspath(root), "")
    seen = set()
    for path in paths:
        plain = path
        if "./" in path or "//" in path or os.path.isabs(path):
            plain = os.path.normpath(os.path.join(start, path))
            plain = plain.removeprefix(start).replace(os.sep, "/")
        if plain in seen:
            raise InputError(f"{where} has {shown(path)} in more than one row; drop all but one of them")
        seen.add(plain)


def _aligned(lines: list[dict[str, str]]) -> Iterable[str]:
    if not lines:
        return
    widths = {name: max(len(name), *(len(line[name]) for line in lines)) for name in lines[0]}
    for line in ({name: name for name in widths}, *lines):
        cells = (
            cell.ljust(widths[name]) if name in ("split", "role") else cell.rjust(widths[name])
            for name, cell in line.items()
        )
        yield "  ".join(cells)


def _seen_from(folder: Path, root: Path, paths: list[str]) -> list[str]:
    """The paths that start from root, as seen from a folder; both are resolved, as '..' leaves the target of a link."""
    try:
        prefix = Path(os.path.relpath(root.resolve(), folder.resolve())).as_posix()
    except ValueError:  # another drive
        prefix = root.resolve().as_posix()
    return paths if prefix == "." else [path if os.path.isabs(path) else f"{prefix}/{path}" for path in paths]


def _write_csv(path: Path, columns: Mapping[str, list[object]]) -> None:
    with path.open("x", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def _write_parquet(path: Path, columns: Mapping[str, list[object]]) -> None:
    import_arrow("pyarrow.parquet").write_table(import_arrow("pyarrow").table(columns), path)


def import_arrow(name: str) -> Any:
    """A module of pyarrow."""
    try:
        return import_module(name)
    except ImportError:
        raise InputError("a .parquet table needs pyarrow; pip install 'frontrank[train]', or use .csv") from None


# ==== A user's own images: folders of classes, tables (.csv, .parquet), or just pictures without labels.


IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
_OTHER_PICTURES = (".heic", ".heif", ".avif", ".svg", ".jp2", ".jxl", ".psd", ".dng", ".cr2", ".nef", ".arw")
_JUNK = ("thumbs.db", "desktop.ini", "__macosx")
_TOP = {  # a folder at the top: the split and the role of what is in it
    "train": ("train", ""),
    "validation": ("validation", ""),
    "val": ("validation", ""),
    "valid": ("validation", ""),
    "test": ("test", ""),
    "query": ("test", "query"),
    "gallery": ("test", "gallery"),
}
_SPLIT_WORDS = {"": "train", "val": "validation", "valid": "validation"}
_NAMES = (*COLUMNS.values(), "box")  # columns that mean something here, in capitals or not
_LONG = 128  # characters of a text, beyond which it does not set the width of its whole column


@dataclass(frozen=True)
class Listing:
    """What is in a folder at any depth: the images, relative to it and sorted; and the other files, by their ending."""

    images: tuple[str, ...]
    others: Mapping[str, int]


def list_images(folder: str | os.PathLike[str]) -> Listing:
    """All images in a folder and the folders in it, whatever the file system's own order.

    An image is what ends in .jpg, .jpeg, .png, .webp, .bmp, .gif, .tif or .tiff, in capitals or not. Hidden files and
    folders, Thumbs.db, desktop.ini and __MACOSX are passed over. Links are followed, but never back to a folder above.
    """
    folder = _existing_folder(folder)
    images, others = [], Counter[str]()
    for path in _walk(folder, "", ()):
        ending = os.path.splitext(path)[1].lower()
        if ending in IMAGE_ENDINGS:
            images.append(path)
        else:
            others[ending] += 1
    return Listing(tuple(sorted(images)), dict(sorted(others.items())))


def read_folder(root: str | os.PathLike[str]) -> ImageTable:
    """The images of `root/<class>/<image>` or `root/<category>/<class>/<image>`.

    Where the folders at the top are named train, validation (or val, valid), test, query or gallery, each of them is
    such a tree and says what its images are for: query and gallery are the two sides of the test. Where none is, all
    are for training; some folders of these names beside others are refused.
    A class inside a category has the label "category/class", as two categories may have classes of one name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for path in ("cat/2.jpg", "cat/1.JPG", "dog/1.png", "dog/notes.txt"):
    ...         (Path(folder) / path).parent.mkdir(exist_ok=True)
    ...         (Path(folder) / path).touch()
    ...     table = read_folder(folder)
    >>> table.paths.tolist(), table.labels.tolist()
    (['cat/1.JPG', 'cat/2.jpg', 'dog/1.png'], ['cat', 'cat', 'dog'])
    """
    root = _existing_folder(root)
    images = _some_images([root], [list_images(root)])
    tops = {path.split("/")[0] for path in images if "/" in path}
    by_use = _are_uses(root, tops)
    parts = [path.split("/")[1:] if by_use else path.split("/") for path in images]
    _check_depths(root, images, [len(part) for part in parts], by_use)
    uses = [_TOP[path.split("/")[0].lower()] if by_use else ("train", "") for path in images]
    return ImageTable(
        root,
        np.array(images),
        labels=np.array(["/".join(part[:-1]) for part in parts]),
        categories=np.array([part[0] if len(part) == 3 else "" for part in parts]),
        splits=np.array([split for split, _ in uses]),
        roles=np.array([role for _, role in uses]),
        name=root.resolve().name,
    ).check()


def read_unlabelled(paths: Sequence[str | os.PathLike[str]]) -> ImageTable:
    """Images without labels, to be embedded or searched: files of any name, and folders with all that is in them.

    An image that is named twice is taken once. The split is "test", the role "".
    """
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    folders = [path for path in paths if os.path.isdir(path)]
    listings = {str(folder): list_images(folder) for folder in folders}
    if folders:
        _some_images(folders, list(listings.values()), enough=len(paths) > len(folders))
    found: dict[str, str] = {}
    for path in paths:
        if not os.path.exists(path):
            raise InputError(f"{shown(path)} is not there; check the path")
        inside = listings[str(path)].images if str(path) in listings else None
        names = [str(path)] if inside is None else [os.path.join(path, image) for image in inside]
        for name in names:
            found.setdefault(os.path.abspath(name), Path(name).as_posix())
    nothing = np.full(len(found), "")
    splits = np.full(len(found), "test")
    return ImageTable(
        Path.cwd(), np.array(list(found.values())), nothing, nothing, splits, nothing, name="images"
    ).check(labelled=False)


def read_table(path: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> ImageTable:
    """The images of a .csv or .parquet file with the columns path and label, and perhaps category, split and role.

    root: what the paths start from; else the folder of the table. Absolute paths are taken as they are.

    A .csv file is UTF-8 and its first line names the columns, in capitals or not. Labels are text: "007" is not "7".
    Blanks around a path, label, category, split or role are dropped. Without a split (or where it is blank) an image is
    for training; "val" and "valid" are "validation". Other columns go to `extra`, as text from .csv and as they are
    from .parquet, where columns of lists are left out. Of these, "box" is the part of an image that is looked at: left
    top right bottom in pixels, as text or as a list of four numbers, and blank for all of it. Rows keep their order.
    """
    path = existing_file(Path(path), TABLE_ENDINGS, "tables of images")
    with parsing(path), _utf8(path):
        columns = _csv_columns(path) if path.suffix.lower() == ".csv" else _parquet_columns(path)
    for name in ("path", "label"):
        if name not in columns:
            held = ", ".join(map(repr, list(columns)[:10])) or "nothing"
            remedy = did_you_mean(name, columns) or f"name the column {name!r} in the first line, commas between names"
            raise InputError(f"{shown(path)} has no column {name!r}, only {held}; {remedy}")
    _refuse_misspelt(path, columns)
    rows = len(columns["path"])
    known = {kept: columns.pop(name, np.full(rows, "")) for kept, name in COLUMNS.items()}
    known = {kept: _as_text(path, COLUMNS[kept], column) for kept, column in known.items()}
    known["splits"] = np.array([_SPLIT_WORDS.get(split, split) for split in known["splits"].tolist()], dtype=str)
    base = path.parent if root is None else _existing_folder(root)
    table = ImageTable(base, **known, extra=columns, name=path.stem).check()
    table.boxes()  # a wrong one is refused here, not in the middle of a run
    return table


def _existing_folder(folder: str | os.PathLike[str]) -> Path:
    if not isinstance(folder, str | os.PathLike):
        raise InputTypeError(f"the folder of images must be a path, got {folder!r}")
    if not os.path.isdir(folder):
        what = "is a file, not a folder" if os.path.exists(folder) else "is not there"
        table = str(folder).lower().endswith(TABLE_ENDINGS) and os.path.exists(folder)
        raise InputError(
            f"{shown(folder)} {what}; {'read it as a table' if table else 'give the folder of the images'}"
        )
    return Path(folder)


def _walk(folder: Path, inside: str, above: tuple[tuple[int, int], ...]) -> Iterator[str]:
    """The files of a folder and of the folders in it, relative, with slashes; `above` are the folders that led here."""
    here = os.path.join(folder, inside)
    try:
        found = os.stat(here)
        entries = sorted(os.scandir(here), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"{shown(here)} cannot be listed ({error.strerror}); see that you may read it") from error
    identity = (found.st_dev, found.st_ino)
    if identity in above:
        return
    for entry in entries:
        name = entry.name
        if name.startswith(".") or name.lower() in _JUNK:
            continue
        if _is_folder(entry):
            yield from _walk(folder, f"{inside}{name}/", (*above, identity))
        else:
            yield inside + name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _some_images(
    folders: Iterable[str | os.PathLike[str]], listings: Sequence[Listing], enough: bool = False
) -> tuple[str, ...]:
    """All images listed; refuses to go on without any, and says which pictures were passed over."""
    where = ", ".join(map(shown, folders))
    others = sum((Counter(listing.others) for listing in listings), Counter[str]())
    lost = [ending for ending in others if ending in _OTHER_PICTURES]
    images = tuple(image for listing in listings for image in listing.images)
    if not images and not enough:
        seen = f"{others.total()} other files" if others else "no files"
        raise InputError(f"{where} has no images but {seen}; images end in {', '.join(IMAGE_ENDINGS)}")
    if lost:
        number = sum(others[ending] for ending in lost)
        warnings.warn(
            f"{where}: {number} pictures that end in {', '.join(lost)} are left out; convert them to .jpg or .png",
            FrontrankWarning,
            stacklevel=3,
        )
    return images


def _are_uses(root: Path, tops: Iterable[str]) -> bool:
    """Whether the folders at the top say what images are for; if some do, the others are no classes beside them."""
    uses = sorted(top for top in tops if top.lower() in _TOP)
    others = sorted(set(tops) - set(uses))
    if uses and others:
        use, other = shown(uses[0]), shown(others[0])
        raise InputError(
            f"{shown(root)} has the folder {other} beside {use}, which says what images are for; rename {other} to "
            f"train, validation, test, query or gallery, or move it; if {use} is a class, rename that, or use a table"
        )
    return bool(uses)


def _check_depths(root: Path, images: Sequence[str], depths: Sequence[int], by_use: bool) -> None:
    example = dict(zip(reversed(depths), reversed(images), strict=True))  # the first of each
    layout = f"{shown(root)}/{'train/' if by_use else ''}<class>/<image>"
    if 0 in example or 1 in example:
        image = example.get(0, example.get(1, ""))
        raise InputError(
            f"{shown(root / image)} is in no folder of a class; put the images of each class into {layout}"
        )
    if max(example) > 3:
        image = example[max(example)]
        raise InputError(f"{shown(root / image)} is too deep; use {layout}, or one folder of categories around classes")
    if len(example) > 1:
        raise InputError(
            f"{shown(root)} has images in a class ({shown(example[2])}) and in a class of a category "
            f"({shown(example[3])}); use one of the two everywhere"
        )


@contextmanager
def _utf8(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise InputError(f"{shown(path)} is not UTF-8 ({error.reason} in it); save it as CSV UTF-8") from error


def _csv_columns(path: Path) -> dict[str, np.ndarray]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file, strict=True)
        header = _plain_names(path, next(lines, []))
        rows = []
        for line in lines:
            if line and len(line) != len(header):
                raise InputError(
                    f"{shown(path)} has {len(line)} fields in line {lines.line_num} and {len(header)} in its first; "
                    "write as many in each, and quote a field that has a comma"
                )
            if line:
                rows.append(line)
    columns = zip(*rows, strict=True) if rows else [()] * len(header)
    return {name: _texts(column) for name, column in zip(header, columns, strict=True)}


def _parquet_columns(path: Path) -> dict[str, np.ndarray]:
    arrow = import_arrow("pyarrow")
    table = import_arrow("pyarrow.parquet").read_table(path)
    found = {}
    for place, name in enumerate(_plain_names(path, table.schema.names)):
        column = table.column(place).combine_chunks()
        if arrow.types.is_nested(column.type):
            if name == "box":
                found[name] = _texts([" ".join(map(str, box or ())) for box in column.to_pylist()])
            continue
        if arrow.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        kind = column.type
        number = arrow.types.is_integer(kind) or arrow.types.is_floating(kind) or arrow.types.is_boolean(kind)
        if number and not column.null_count:
            found[name] = column.to_numpy(zero_copy_only=False)
        else:
            values = column.cast(arrow.large_string()).fill_null("")
            found[name] = _texts(values.to_pylist())
    return found


def _plain_names(path: Path, names: Sequence[str]) -> list[str]:
    """The names of columns without blanks around them, and those that mean something in small letters."""
    stripped = [name.strip() for name in names]
    plain = [name.lower() if name.lower() in _NAMES else name for name in stripped]
    for name, count in Counter(plain).items():
        if count > 1:
            raise InputError(f"{shown(path)} has several columns {name!r}; rename all but one")
    return plain


def _refuse_misspelt(path: Path, names: Iterable[str]) -> None:
    """A column that is almost named as one which is not there would be passed over, and its test images trained on."""
    missing = {name: name for name in COLUMNS.values() if name not in names}
    missing |= {kept: name for kept, name in COLUMNS.items() if name in missing}  # "splits" for "split"
    for name in names:
        near = difflib.get_close_matches(name.lower(), missing, 1, 0.78)
        if near and abs(len(near[0]) - len(name)) < 2:  # "category_id" is another thing
            raise InputError(f"{shown(path)} has a column {name!r}; did you mean {missing[near[0]]!r}? Else rename it")


def _texts(texts: Sequence[str]) -> np.ndarray:
    """Text as an array: of one width, unless a long one would make all the others as long."""
    return np.array(texts, dtype=object if max(map(len, texts), default=0) > _LONG else str)


def _as_text(path: Path, name: str, column: np.ndarray) -> np.ndarray:
    if column.dtype.kind not in "iuUO":
        raise InputError(f"{shown(path)} has {column.dtype} in the column {name!r}; write text or integers there")
    return np.array([str(entry).strip() for entry in column.tolist()], dtype=str)
