"""`frontrank data check`: what it counts, finds and saves."""

import re
import shlex
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import frontrank as fr
from frontrank.cli import data as command
from frontrank.data import images as image_check
from frontrank.data import leakage
from frontrank.errors import FrontrankWarning
from tests.cli.images import EACH, TEST, TINY, TRAIN, picture, published, tree

ALL = (len(TRAIN) + len(TEST)) * EACH


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    folder = tmp_path / "here"
    shutil.copytree(made / "my_photos", folder / "my_photos")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def check(here, run):
    return lambda *words: run("data", "check", *words)


def rows(found):
    return [line.split()[:3] for line in found.out.splitlines()[1:3]]


def examples(text):
    return [shlex.split(line)[1:] for line in text.split("examples:\n")[1].splitlines() if line.startswith("  ")]


def test_examples_of_check(here, run):
    published("sop", here / "Stanford_Online_Products")
    for words in examples(command.CHECK_EPILOG):
        more = ["--allow-partial"] if "Stanford" in words[2] else []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FrontrankWarning)
            found = run(*words, *more)
        assert found.status == 0, found.err
        assert re.search(r"\nall \d+ images can be read\n$", found.out)


HELP = {
    "": command.EPILOG,
    "check": command.CHECK_EPILOG,
    "emoji": command.EMOJI_EPILOG,
    "glyphs": command.GLYPHS_EPILOG,
}


@pytest.mark.parametrize("action", HELP)
def test_help(run, action):
    found = run("data", *action.split(), "--help")
    assert (found.status, found.err) == (0, "")
    assert found.out.startswith(f"usage: frontrank data {action}".rstrip())
    assert found.out.endswith(HELP[action])
    assert max(map(len, found.out.splitlines())) <= 80


def test_counts(check, here, tmp_path):
    before = tree(tmp_path)
    found = check("my_photos")
    assert (found.status, found.err) == (0, "")
    assert rows(found) == [["train", "24", "6"], ["test", "12", "3"]]
    assert found.out == f"{fr.data.read_folder('my_photos').describe()}\nall {ALL} images can be read\n"
    assert tree(tmp_path) == before


def test_broken_images_are_all_listed(check, here):
    (here / "my_photos" / "train" / "line\nbreak" / "0.png").write_bytes(b"no picture")
    whole = (here / "my_photos" / "test" / "cup" / "1.png").read_bytes()
    (here / "my_photos" / "test" / "cup" / "1.png").write_bytes(whole[:-900])
    found = check("my_photos", "--save", "good.csv")
    assert found.status == 2
    assert found.err == (
        f"frontrank data: 2 of {ALL} images cannot be read; mend or remove them, or train with --data.broken skip\n"
    )
    listed = [line for line in found.out.splitlines() if line.startswith("broken: ")]
    assert [line.split(".png")[0] for line in listed] == ["broken: test/cup/1", r"broken: 'train/line\nbreak/0"]
    assert found.out.endswith("wrote good.csv\n")
    kept = fr.data.read_table("good.csv")
    assert len(kept) == ALL - 2
    assert all(Path(file).is_file() for file in kept.files())


def test_quick_reads_headers_only(check, here):
    path = here / "my_photos" / "test" / "cup" / "1.png"
    path.write_bytes(path.read_bytes()[:-900])
    assert check("my_photos", "--quick").status == 0
    path.write_bytes(b"no picture")
    assert check("my_photos", "--quick").status == 2


def test_all_are_broken(check, here):
    for path in here.rglob("*.png"):
        path.write_bytes(b"")
    found = check("my_photos")
    assert found.status == 2
    assert f"{ALL} of {ALL} images cannot be read" in found.err
    assert found.err.count("\n") == 1


def test_leakage(check, here):
    """A copy, stored as another format and larger, and a file under two labels."""
    copied = np.zeros((32, 32, 3), np.uint8)
    copied[:, 16:], copied[20:] = 200, 90
    for name, side in (("train/it's/0.png", 32), ("test/cup/0.png", 64)):
        Image.fromarray(copied).resize((side, side), Image.Resampling.NEAREST).save(here / "my_photos" / name)
    shutil.copy("my_photos/train/#5/1.png", "my_photos/train/-x/1.png")
    Image.new("RGB", (32, 32), "red").save("my_photos/test/plate/3.png")
    found = check("my_photos", "--leakage")
    assert found.status == 0, found.err
    lines = found.out.splitlines()[3:]
    assert lines == [
        "near-duplicates between train and test: 1",
        "  train/it's/0.png  test/cup/0.png  (differ in 0 of 128 bits)",
        "1 images are too plain to be compared",
        "files of train with the same content and different labels: 1",
        "  train/#5/1.png  train/-x/1.png",
        f"all {ALL} images can be read",
    ]
    assert "near-duplicates" not in check("my_photos").out


def test_many_near_duplicates(check, here, monkeypatch):
    pairs = [(f"{i}.png", f"{i}.jpg", i) for i in range(21)]
    monkeypatch.setattr(leakage, "near_duplicates", lambda table: leakage.NearDuplicates(pairs, 1234, []))
    found = check("my_photos", "--leakage")
    shown = [line for line in found.out.splitlines() if "of 128 bits" in line]
    assert len(shown) == 20
    assert "  19.png  19.jpg  (differ in 19 of 128 bits)\n  ... and 1,214 more\nfiles of train" in found.out


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_saved_table_can_be_trained_on(check, here, run, ending):
    (here / "lists").mkdir()
    found = check("my_photos", "--save", f"lists/photos.{ending}")
    assert found.out.endswith(f"wrote lists/photos.{ending}\nall {ALL} images can be read\n")
    assert run("train", "--data", f"lists/photos.{ending}", *TINY, "--quiet", "--out", "run").status == 0
    assert len(fr.data.read_table("run/images.csv")) == (len(TRAIN) + len(TEST)) * EACH
    assert rows(check(f"lists/photos.{ending}")) == [["train", "24", "6"], ["test", "12", "3"]]


@pytest.mark.parametrize("name", ["vehicleid", "ijb-c", "roxford5k"])
def test_published_data_sets(check, here, name):
    published(name, here / "set")
    found = check("set")
    assert found.status == 2
    assert "is not as published" in found.err
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FrontrankWarning)
        found = check("set", "--allow-partial", "--layout", name)
        if name == "roxford5k":  # its pictures are smaller here than the boxes of its queries
            assert "in the box" in found.out
        else:
            assert found.out.endswith(" images can be read\n")
        found = check("set", "--allow-partial", "--save", "set.csv")
        if name == "vehicleid":
            assert len(fr.data.read_table("set.csv")) == 8
        else:  # a frame is in several rows, or labels are not what says what is relevant
            assert (found.status, Path("set.csv").exists()) == (2, False)
            assert "frontrank data: --save: this cannot be a table of its own (" in found.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "the following arguments are required: ACTION; see frontrank data --help"),
        ("chekc my_photos", "argument ACTION: invalid choice: 'chekc'"),
        ("check nowhere", "--data nowhere is not there"),
        ("check my_photos --workers 0", "--workers must be at least 1, got 0"),
        ("check my_photos --layout sopp", "data.layout 'sopp' is not known; did you mean sop?"),
        ("check my_photos/train --leakage", "--leakage compares the splits train and test, and there is one only"),
        ("check my_photos --save photos.txt", "--save photos.txt must end in .csv or .parquet; choose such a name"),
        ("check my_photos --save mine.csv", "--save mine.csv exists already; choose another name"),
        ("check my_photos --save no/photos.csv", "--save: the folder no is not there; make it first"),
    ],
)
def test_refused_before_the_work(here, run, monkeypatch, words, message):
    def work(*_, **__):
        raise AssertionError("worked")

    monkeypatch.setattr(image_check, "check_images", work)
    (here / "mine.csv").write_text("mine")
    before = tree(here)
    found = run("data", *words.split())
    assert (found.status, found.out) == (2, "")
    assert found.err.startswith(f"frontrank data: {message}")
    assert found.err.count("\n") == 1
    assert tree(here) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("check", "check: the following arguments are required: PATH; see frontrank data check --help"),
        (
            "check a --leekage",
            "check: there is no option --leekage; did you mean --leakage? See frontrank data check --help",
        ),
        ("check a b", "check: 'b' is one argument too many; see frontrank data check --help"),
        ("emoji", "emoji: the following arguments are required: OUT; see frontrank data emoji --help"),
        ("emoji a --size large", "emoji: argument --size: invalid int value: 'large'; see frontrank data emoji --help"),
        ("emoji a --typeface x", "emoji: there is no option --typeface; see frontrank data emoji --help"),
        (
            "glyphs a --lik sop",
            "glyphs: there is no option --lik; did you mean --like? See frontrank data glyphs --help",
        ),
    ],
)
def test_wrong_words(run, words, message):
    found = run("data", *words.split())
    assert (found.status, found.out, found.err) == (2, "", f"frontrank data {message}\n")


def test_a_split_that_is_broken_as_a_whole(check, here):
    shutil.rmtree("my_photos/test")
    picture(here / "my_photos" / "test" / "cup" / "1.png", 1)
    (here / "my_photos" / "test" / "cup" / "1.png").write_bytes(b"")
    assert "--leakage compares the splits" in check("my_photos", "--leakage").err
