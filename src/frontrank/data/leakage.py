"""Pictures that are in two splits, and files with two labels: they make a score too good, or noisy."""

import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from frontrank.checks import check_integer
from frontrank.data.images import map_images
from frontrank.data.table import SPLITS, ImageTable
from frontrank.errors import InputError
from frontrank.files import file_digest
from frontrank.pictures.decode import read_image, require_pillow
from frontrank.progress import progress

T = TypeVar("T")

_GRID = 8  # the hash compares this many pixels with their neighbours, in both directions
_NOISE = 2  # grey levels: a smaller step counts as none, so that a plain background always has the same bits
_BLANK = 16  # a picture whose 9 x 9 greys span fewer levels is too plain to compare
_WORKERS = 2  # processes that read pictures
_TILE = 1 << 18  # pairs compared at once: they stay in the cache


@dataclass(frozen=True, eq=False)
class NearDuplicates:
    """Pairs of pictures that look the same.

    pairs: (path, path, distance) of the first and the second split, in the order of the table
    count: the number of pairs, also of those beyond `most` that are not in `pairs`
    blank: paths of pictures too plain to be compared: all of one colour, or almost
    """

    pairs: list[tuple[str, str, int]]
    count: int
    blank: list[str]


def near_duplicates(
    table: ImageTable,
    between: tuple[str, str] = ("train", "test"),
    threshold: int = 10,
    most: int = 100_000,
) -> NearDuplicates:
    """Find the pictures of one split that are in another, or twice in one, also if resized or compressed again.

    A picture is reduced to 9 x 9 greys; a bit is set where a grey is brighter than its left neighbour (64 bits) or its
    upper one (64 bits). The distance of two pictures is the number of bits that differ, of 128. All pairs are compared.

    threshold: the largest distance that is reported. Up to 10 are copies, resized or compressed; then come brighter or
               trimmed copies, and then pictures that are only similar
    most:      pairs that are returned

    Mirrored, turned and strongly cropped copies are not found. Two pictures of one thing on a plain background, or two
    pages of text, can be as near as a copy: look at the pairs before you delete anything.
    """
    if len(between) != 2 or not set(between) <= set(SPLITS):
        raise InputError(f"between must name two of {', '.join(map(repr, SPLITS))}, got {between!r}")
    check_integer("threshold", threshold, at_least=0, at_most=2 * _GRID**2)
    check_integer("most", most, at_least=0)
    require_pillow()
    paths: list[list[str]] = []
    hashes: list[np.ndarray] = []
    blank: list[str] = []
    for split in dict.fromkeys(between):
        part = table.of(split)
        if not len(part):
            raise InputError(f"{table.name or table.root} has no images in the split {split!r}; compare other splits")
        halves = list(map_images(picture_hash, part.files(), _WORKERS, "hashing images"))
        plain = np.array([each is None for each in halves])
        blank += part.paths[plain].tolist()
        paths.append(part.paths[~plain].tolist())
        hashes.append(np.array([each for each in halves if each], dtype=np.uint64).reshape(-1, 2))
    count, rows = _near_pairs(hashes[0], hashes[-1], len(hashes) == 1, threshold, most)
    pairs = [(paths[0][first], paths[-1][second], distance) for first, second, distance in rows]
    return NearDuplicates(pairs, count, blank)


def conflicting_labels(table: ImageTable, split: str = "train") -> list[tuple[str, ...]]:
    """Return the paths of files with the same bytes but different labels in a split, one group per content, sorted."""
    part = table.of(split)
    by_size: dict[int, list[int]] = defaultdict(list)
    files = part.files()
    for row, file in enumerate(files):
        by_size[_read(os.path.getsize, file)].append(row)
    by_content: dict[str, list[int]] = defaultdict(list)
    suspects = [row for rows in by_size.values() if len({part.labels[row] for row in rows}) > 1 for row in rows]
    with progress("comparing files", len(suspects)) as step:
        for row in suspects:
            by_content[_read(file_digest, files[row])].append(row)
            step(1)
    groups = [rows for rows in by_content.values() if len({part.labels[row] for row in rows}) > 1]
    return sorted(tuple(sorted(part.paths[rows].tolist())) for rows in groups)


def picture_hash(file: str) -> tuple[int, int] | None:
    """Return the two 64-bit halves of a picture's hash: steps to the right, and downward; None if it is blank."""
    from PIL.Image import Resampling

    side = _GRID + 1
    small = read_image(file, at_least=8 * side).convert("L").resize((side, side), Resampling.BOX)
    grey = np.asarray(small).astype(np.int16)
    if np.ptp(grey) < _BLANK:
        return None
    right = grey[:-1, 1:] - grey[:-1, :-1] > _NOISE
    down = grey[1:, :-1] - grey[:-1, :-1] > _NOISE
    return tuple(int.from_bytes(np.packbits(bits).tobytes(), "big") for bits in (right, down))  # type: ignore[return-value]


def _near_pairs(
    first: np.ndarray, second: np.ndarray, same: bool, threshold: int, most: int
) -> tuple[int, list[tuple[int, int, int]]]:
    """Return how many pairs are near, and the first `most` of them; of one list with itself each pair once."""
    count, pairs = 0, list[tuple[int, int, int]]()
    rows = max(1, _TILE // max(1, len(second)))
    with progress("comparing images", len(first)) as step:
        for start in range(0, len(first), rows):
            block = first[start : start + rows]
            for left in range(0, len(second), _TILE):
                tile = second[left : left + _TILE]
                possible = _bits(block[:, None, 0] ^ tile[None, :, 0]) <= threshold  # one half rules out most
                one, two = np.nonzero(possible)
                distance = _bits(block[one] ^ tile[two]).sum(1, dtype=np.int64)
                near = distance <= threshold
                if same:
                    near &= one + start < two + left
                count += int(near.sum())
                room = max(0, most - len(pairs))
                columns = (one[near] + start, two[near] + left, distance[near])
                pairs += zip(*(column[:room].tolist() for column in columns), strict=True)
            step(len(block))
    return count, pairs


def _bits(numbers: np.ndarray) -> np.ndarray:
    """Count the bits of each uint64 that are set."""
    if hasattr(np, "bitwise_count"):
        return np.bitwise_count(numbers)
    return np.unpackbits(numbers[..., None].view(np.uint8), axis=-1).sum(-1, dtype=np.uint8)  # before numpy 2


def _read(function: Callable[[str], T], file: str) -> T:
    try:
        return function(file)
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}); check the images first") from error
