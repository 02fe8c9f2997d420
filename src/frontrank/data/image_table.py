"""One table of images: where each is, what it shows, and what it is for."""

import csv
import difflib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from frontrank.errors import InputError, InputTypeError

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
