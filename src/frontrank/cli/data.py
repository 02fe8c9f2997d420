"""Check images before hours are spent on them, or build a data set of real pictures to try things on.

examples:
  frontrank data check my_photos
  frontrank data emoji emoji
  frontrank data glyphs glyphs --like sop
  frontrank data emoji-scenes scenes

frontrank data ACTION --help explains an action and shows more.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontrank.cli import add_action
from frontrank.cli.inputs import check_output, number_type
from frontrank.errors import InputError

if TYPE_CHECKING:
    from frontrank.data import ImageTable


_MOST_LINES = 20  # of a list of pictures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of the command, and their options."""
    parser.usage = "frontrank data ACTION ..."
    actions = parser.add_subparsers(prog=parser.prog, title="actions", metavar="ACTION", required=True)

    check = add_action(actions, "check", _check, "counts, broken files, leakage from training to test")
    check.add_argument("data", metavar="PATH", help="folder, table or data set of images")
    check.add_argument(
        "--layout", metavar="NAME", default="auto", help="detected by default: folder, classes, table, ..."
    )
    check.add_argument("--allow-partial", action="store_true", help="go on with a data set that is not complete")
    check.add_argument("--quick", action="store_true", help="read the headers of images only")
    check.add_argument("--leakage", action="store_true", help="look for near-duplicates between train and test")
    workers = number_type(int, at_least=1)
    check.add_argument("--workers", metavar="N", type=workers, default=2, help="images read at once; 2 by default")
    check.add_argument("--save", metavar="FILE", help="write the images that can be read as a table, .csv or .parquet")

    emoji = add_action(actions, "emoji", _build_emoji, "build a data set of emoji (npm)")
    emoji.add_argument("--designs", metavar="NAME", help="independent, or all: also 5 that restyle others")
    emoji.add_argument("--skin-tones", action="store_true", help="also those that differ in the colour of skin only")

    glyphs = add_action(actions, "glyphs", _build_glyphs, "build a data set of Han characters (apt)")
    glyphs.add_argument("--like", metavar="NAME", help="sop: exactly as many classes and images as that has")
    glyphs.add_argument("--typefaces", metavar="NAMES", help="small (4, from 12 MB of packages), or names with commas")
    glyphs.add_argument("--any-version", action="store_true", help="accept other versions of the packages")

    scenes = add_action(actions, "emoji-scenes", _build_scenes, "build scenes to detect objects in (npm)")
    for action in (emoji, glyphs, scenes):
        action.add_argument("out", metavar="OUT", help="folder for the data set, a new one or an incomplete one")
        action.add_argument("--size", metavar="N", type=int, help="pixels of a side")
    for action in (emoji, glyphs):
        action.add_argument("--classes", metavar="N", type=int, help="only so many classes, for a quick look")
    scenes.add_argument("--scenes", metavar="N", type=int, help="to train on, 2,000 by default; a quarter for the test")
    scenes.add_argument("--seed", metavar="N", type=int, help="of all that is random; 0 by default")


def _check(options: argparse.Namespace) -> None:
    """Check images before hours are spent on them: how many there are of each kind, which cannot be read, and which
    test images are also, nearly the same, in training.

    examples:
      frontrank data check my_photos
      frontrank data check Stanford_Online_Products --leakage
      frontrank data check my_photos --save photos.csv
    """
    from frontrank.checks import printable
    from frontrank.data import check_images
    from frontrank.data.table import TABLE_ENDINGS
    from frontrank.settings import DataConfig
    from frontrank.training.images import build_images

    if options.save is not None:
        check_output("--save", Path(options.save), TABLE_ENDINGS, None)
    table = build_images(DataConfig(path=options.data, layout=options.layout, allow_partial=options.allow_partial))
    if options.leakage:
        _check_splits(table)
    if options.save is not None:
        try:
            table.check()
        except InputError as error:  # such as a frame of several videos, or a ground truth in place of labels
            raise InputError(f"--save: this cannot be a table of its own ({error}); leave out --save") from error
    print(table.describe(), flush=True)
    result = check_images(table, how="quick" if options.quick else "full", broken="skip", workers=options.workers)
    for path, reason in result.broken:
        print(f"broken: {printable(path)} {reason}")
    if options.leakage:
        _print_leakage(result.table)
    if options.save is not None:
        result.table.save(Path(options.save))
        print(f"wrote {options.save}")
    if result.broken:
        count = f"{len(result.broken):,} of {len(table):,} images cannot be read"
        raise InputError(f"{count}; replace or remove them; training leaves them out")
    print(f"all {len(table):,} images can be read")


def _check_splits(table: ImageTable) -> None:
    if not {"train", "test"} <= set(table.splits.tolist()):
        raise InputError("--leakage compares the splits train and test, but there is only one; give images of both")


def _print_leakage(table: ImageTable) -> None:
    """Print the pictures that are in both train and test, and the files of train with two labels."""
    from frontrank.checks import printable
    from frontrank.data import near_duplicates
    from frontrank.data.leakage import conflicting_labels

    _check_splits(table)  # again: all images of one may have been broken
    duplicates = near_duplicates(table)
    print(f"near-duplicates between train and test: {duplicates.count:,}")
    for train, test, distance in duplicates.pairs[:_MOST_LINES]:
        print(f"  {printable(train)}  {printable(test)}  (differ in {distance} of 128 bits)")
    if duplicates.count > _MOST_LINES:
        print(f"  ... and {duplicates.count - _MOST_LINES:,} more")
    if duplicates.blank:
        print(f"{len(duplicates.blank):,} images are too plain to be compared")
    conflicts = conflicting_labels(table)
    print(f"files of train with the same content and different labels: {len(conflicts):,}")
    for conflict in conflicts[:_MOST_LINES]:
        print(f"  {'  '.join(map(printable, conflict))}")


def _build_emoji(options: argparse.Namespace) -> None:
    """Build a data set of emoji: a class is an emoji, and its images are the drawings of 4 to 8 vendors. It has 1,826
    classes and 11,586 images; about half of the classes are for training and the others for the test. npm fetches the
    packages with the drawings once (149 MB); after that it takes about a minute. A folder that is complete stays as it
    is; an incomplete one is completed.

    examples:
      frontrank data emoji emoji
      frontrank data emoji few --classes 40
      frontrank data emoji large --size 128
    """
    from frontrank.samples.emoji import build_emoji

    settings = _settings(options, "designs", "classes", "size")
    _print_table(build_emoji(options.out, skin_tones=options.skin_tones, **settings), options.out, options.classes)


def _build_glyphs(options: argparse.Namespace) -> None:
    """Build a data set of Han characters: a class is a character, and its images are that character in many typefaces.
    It is as large as Stanford Online Products, or larger, and easier. apt fetches the packages with the fonts once,
    without installing them (291 MB; 12 MB with --typefaces small). A folder that is complete stays as it is; an
    incomplete one is completed.

    examples:
      frontrank data glyphs glyphs
      frontrank data glyphs glyphs-sop --like sop
      frontrank data glyphs few --classes 100 --typefaces small
    """
    from frontrank.samples.glyphs import build_glyphs

    settings = _settings(options, "classes", "size", "like")
    if options.typefaces is not None:
        names = [name.strip() for name in options.typefaces.split(",") if name.strip()]
        settings["typefaces"] = "small" if names == ["small"] else names
    _print_table(build_glyphs(options.out, any_version=options.any_version, **settings), options.out, options.classes)


def _build_scenes(options: argparse.Namespace) -> None:
    """Build scenes to detect objects in: emoji of 20 classes on parts of photographs, several in a scene, at any size
    and angle, in front of and behind each other. The test has drawings of other vendors on other photographs than
    training. The layout is that of Pascal VOC. npm fetches the packages with drawings and photographs once (68 MB);
    after that it takes about a minute. A folder that is complete stays as it is; an incomplete one is completed.

    examples:
      frontrank data emoji-scenes scenes
      frontrank data emoji-scenes few --scenes 200
      frontrank data emoji-scenes large --size 256 --seed 1
    """
    from frontrank.samples.scenes import build_emoji_scenes

    print(build_emoji_scenes(options.out, **_settings(options, "scenes", "size", "seed")).describe())
    print(f"\nthe scenes are in {Path(options.out) / 'VOC2007'}, in the layout of Pascal VOC")
    print("the test has drawings of other vendors, and other photographs, than training")
    print(f"drawings and photographs have licences of their own, see {Path(options.out) / 'LICENCES.md'}")
    print(f"next: frontrank detect train --recipe detect-emoji-rambo --data {shlex.quote(options.out)}")


def _settings(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return those of the options that are given."""
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def _print_table(table: ImageTable, out: str, classes: int | None) -> None:
    """Print what there is now, where it is, and what to do with it."""
    print(table.describe())
    count = len(set(table.labels.tolist()))
    if classes is not None and count != classes:
        print(f"{count:,} classes instead of {classes:,}: the pictures of the others are the same or blank")
    print(f"\nthe images are in {out}, their table is {Path(out) / 'images.csv'}")
    print("no class is both in train and in test: the test is on classes that training never saw")
    print(f"the drawings have licences of their own, see {Path(out) / 'LICENCES.md'}")
    start = "--backbone tf_efficientnet_lite0 --weights package --data.size 64 --data.resize 64"
    print(f"next: frontrank train --data {shlex.quote(out)} {start} --out runs/first")
