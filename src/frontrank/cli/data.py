"""`frontrank data check`: are all images there, can they be read, and do any leak from training to test?"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from frontrank.errors import InputError

if TYPE_CHECKING:
    from frontrank.data.image_table import ImageTable

DESCRIPTION = """\
Look at images before hours are spent on them: how many of what there are, which
cannot be read, and which test images also occur, nearly the same, in training."""

EPILOG = """\
examples:
  frontrank data check my_photos
  frontrank data check Stanford_Online_Products --leakage
  frontrank data check my_photos --save photos.csv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.usage = "frontrank data check PATH [options]"
    parser.add_argument("action", metavar="check", choices=("check",), help="what to do")
    parser.add_argument("data", metavar="PATH", help="folder, table or data set of images")
    parser.add_argument(
        "--layout", metavar="NAME", default="auto", help="found out by default: folder, table, sop, ..."
    )
    parser.add_argument("--allow-partial", action="store_true", help="go on with a data set that is not complete")
    parser.add_argument("--quick", action="store_true", help="read the headers of images only")
    parser.add_argument("--leakage", action="store_true", help="look for near-duplicates between train and test")
    parser.add_argument(
        "--workers", metavar="N", type=int, default=2, help="images that are read at once; 2 by default"
    )
    parser.add_argument("--save", metavar="FILE", help="write the images that can be read as a table, .csv or .parquet")


def run(options: argparse.Namespace) -> None:
    """Count, read, compare; a broken image is an error at the end, after all else was said."""
    from frontrank.build import build_images
    from frontrank.config import DataConfig
    from frontrank.data.image_check import check_images
    from frontrank.data.image_table import shown

    if options.workers < 1:
        raise InputError(f"--workers must be at least 1, got {options.workers}")
    config = DataConfig(path=options.data, layout=options.layout, allow_partial=options.allow_partial)
    table = build_images(config)
    if options.leakage:
        _require_both_splits(table)
    if options.save is not None:
        _require_target(Path(options.save), table)
    print(table.describe(), flush=True)
    checked = check_images(table, how="quick" if options.quick else "full", broken="skip", workers=options.workers)
    for path, reason in checked.broken:
        print(f"broken: {shown(path)} {reason}")
    if options.leakage:
        _print_leakage(checked.table)
    if options.save is not None:
        checked.table.save(Path(options.save))
        print(f"wrote {options.save}")
    if checked.broken:
        many = f"{len(checked.broken):,} of {len(table):,} images cannot be read"
        raise InputError(f"{many}; mend or remove them, or train with --data.broken skip")
    print(f"all {len(table):,} images can be read")


def _require_both_splits(table: "ImageTable") -> None:
    if not {"train", "test"} <= set(table.splits.tolist()):
        raise InputError("--leakage compares the splits train and test, and there is one only; give images of both")


def _require_target(path: Path, table: "ImageTable") -> None:
    """Refuse before the work what could not be saved after it."""
    from frontrank.data.image_table import TABLE_ENDINGS

    if path.suffix.lower() not in TABLE_ENDINGS:
        raise InputError(f"--save {path} must end in {' or '.join(TABLE_ENDINGS)}; choose such a name")
    if path.exists():
        raise InputError(f"--save {path} exists already; choose another name")
    if not path.parent.is_dir():
        raise InputError(f"--save: the folder {path.parent} is not there; make it first")
    try:
        table.check()
    except InputError as error:  # such as a frame of several videos, or a ground truth in place of labels
        raise InputError(f"--save: this cannot be a table of its own ({error}); leave out --save") from error


def _print_leakage(table: "ImageTable", most: int = 20) -> None:
    """Pictures in both train and test, and files of train with two labels."""
    from frontrank.data.image_table import shown
    from frontrank.data.leakage import conflicting_labels, near_duplicates

    _require_both_splits(table)  # again: all images of one may have been broken
    found = near_duplicates(table)
    print(f"near-duplicates between train and test: {found.found:,}")
    for train, test, distance in found.pairs[:most]:
        print(f"  {shown(train)}  {shown(test)}  (differ in {distance} of 128 bits)")
    if found.found > most:
        print(f"  ... and {found.found - most:,} more")
    if found.blank:
        print(f"{len(found.blank):,} images are too plain to be compared")
    conflicts = conflicting_labels(table)
    print(f"files of train with the same content and different labels: {len(conflicts):,}")
    for conflict in conflicts[:most]:
        print(f"  {'  '.join(map(shown, conflict))}")
