"""Pictures made small and written into a page, each once, whatever became of their files."""

import base64
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from frontrank.data.image_table import Box, ImageTable, shown
from frontrank.data.images import map_images, read_image, require_pillow
from frontrank.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

_QUALITY = 80


@dataclass(frozen=True)
class Thumbnail:
    """A small picture; `uri` holds it as data, "" where its file could not be read."""

    name: str
    width: int
    height: int
    uri: str


def thumbnails(
    table: ImageTable, sides: Mapping[int, int], workers: int = 2, show: bool | None = None
) -> tuple[dict[int, Thumbnail], list[str]]:
    """The picture of each row, at most so many pixels wide and high, and why some could not be read.

    sides: row of the table ─► pixels of the longer side; a picture that is smaller stays as it is
    """
    require_pillow()
    rows = sorted(sides)
    files, boxes = table.files(), table.boxes()

    def made(row: str) -> tuple[Thumbnail, str]:
        return _thumbnail(files[int(row)], boxes[int(row)], sides[int(row)], f"p{row}")

    found: dict[int, Thumbnail] = {}
    faults = []
    for row, (picture, fault) in zip(
        rows, map_images(made, [str(row) for row in rows], workers, "pictures", show), strict=True
    ):
        found[row] = picture
        if fault:
            faults.append(fault)
    return found, faults


def faults_note(faults: Iterable[str]) -> tuple[str, ...]:
    """What a page says about pictures that could not be read, if there are any."""
    all_of_them = list(faults)
    if not all_of_them:
        return ()
    one = len(all_of_them) == 1
    count = "1 picture" if one else f"{len(all_of_them):,} pictures"
    first = all_of_them[0] if one else f"the first: {all_of_them[0]}"
    return (
        f"{count} could not be read when this page was made and {'is an' if one else 'are'} empty frame"
        f"{'' if one else 's'} here ({first}).",
    )


def _thumbnail(file: str, box: Box | None, side: int, name: str) -> tuple[Thumbnail, str]:
    try:
        picture = read_image(file, box, at_least=side)
    except InputError as error:
        fault = str(error).split(";")[0].replace(shown(file), shown(Path(file).name))
        return Thumbnail(name, side, side, ""), fault
    return Thumbnail(name, *_shrunk_size(picture.size, side), as_uri(picture, side)), ""


def _shrunk_size(size: tuple[int, int], side: int) -> tuple[int, int]:
    scale = min(1.0, side / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def as_uri(picture: "Image", side: int) -> str:
    """A picture as data, made smaller where it has more pixels than `side` wide or high."""
    from PIL import Image, features

    small = picture.resize(_shrunk_size(picture.size, side), Image.Resampling.LANCZOS)
    kind = "webp" if features.check("webp") else "jpeg"
    file = io.BytesIO()
    small.save(file, kind, quality=_QUALITY)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
