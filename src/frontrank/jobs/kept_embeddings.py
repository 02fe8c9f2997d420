"""Embeddings that are kept beside a run, so that a second report need not make them again."""

import io
import os
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import numpy as np

from frontrank.data.image_table import ImageTable
from frontrank.errors import FrontrankError
from frontrank.training.checkpoints import atomic_write

_SHORT = 16  # of a digest, in a file's name


def kept_embeddings(
    folder: Path, name: str, model: str, table: ImageTable, make: Callable[[], np.ndarray]
) -> np.ndarray:
    """The embeddings of a table by a model: those in `folder`, or new ones, which are kept there.

    name:  of the file, before the digests that say whether it is of this model and of these images as they are now
    model: what tells it from any other, such as its fingerprint

    Where nothing can be written they are made all the same. What was kept of the same name and images is replaced.
    """
    images = images_digest(table)[:_SHORT]
    path = folder / f"{name}-{images}-{sha256(model.encode()).hexdigest()[:_SHORT]}.npy"
    found = _read(path, len(table))
    if found is None:
        found = make()
        with suppress(OSError, FrontrankError):  # a folder that may not be written to, or a full disk
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob(f"{name}-{images}-*.npy"):
                old.unlink()
            content = io.BytesIO()
            np.save(content, found, allow_pickle=False)
            atomic_write(path, content.getvalue())
    return found


def images_digest(table: ImageTable) -> str:
    """What tells the pictures of a table from others: their paths, boxes, sizes on disk and times of change."""
    found = sha256(os.fsencode(table.root.resolve()) + b"\0")
    boxes = table.extra["box"].tolist() if "box" in table.extra else [""] * len(table)
    for path, file, box in zip(table.paths.tolist(), table.files(), boxes, strict=True):
        stamp = ""
        with suppress(OSError):  # what is not there is found missing when it is to be embedded
            about = os.stat(file)
            stamp = f"{about.st_size} {about.st_mtime_ns}"
        found.update(f"{path}\0{box}\0{stamp}\1".encode("utf-8", "surrogateescape"))
    return found.hexdigest()


def _read(path: Path, rows: int) -> np.ndarray | None:
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    whole = found.ndim == 2 and len(found) == rows and found.dtype == np.float32 and bool(np.isfinite(found).all())
    return found if whole else None
