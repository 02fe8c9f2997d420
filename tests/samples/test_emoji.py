"""The emoji data set: what is in it, what is left out, and what happens when its building is broken off."""

import hashlib
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from frontrank.data import read_table
from frontrank.errors import InputError, InputTypeError
from frontrank.samples import emoji
from frontrank.samples.build import label_split
from frontrank.samples.emoji import build_emoji
from tests.errors import refusal
from tests.fetch import require_packages
from tests.files import files
from tests.samples import fake_emoji
from tests.samples.fake_emoji import svg

FAMILY = "1F468-200D-1F469-200D-1F466"
DESIGNS = [design.name for design in emoji.INDEPENDENT]


@pytest.fixture
def few(tmp_path, monkeypatch):
    """Small packages in place of the real ones; gives a function that changes them."""
    monkeypatch.setattr(emoji, "COUNTS", {})

    def change(changed):
        archives = fake_emoji.write_archives(tmp_path / "packages", changed)
        monkeypatch.setattr(emoji, "fetch", lambda packages, show=None: [archives[package] for package in packages])

    change({})
    return change


def of_class(table, label):
    return table.extra["design"][table.labels == label].tolist()


def test_what_is_built(few, tmp_path):
    table = build_emoji(tmp_path / "out")
    assert set(table.labels) == set(fake_emoji.CLASSES) - {"1F46A"}  # of three designs only
    assert of_class(table, "1F600") == DESIGNS
    assert of_class(table, "1F605") == ["openmoji", "emojione-1", "emojione-2", "fxemoji"]
    assert of_class(table, "0023-20E3") == of_class(table, FAMILY) == DESIGNS[:-1]
    row = table.paths.tolist().index("images/0023-20E3/fluent-3d.png")
    assert (table.labels[row], table.categories[row], table.roles[row]) == ("0023-20E3", "symbols", "")
    extra = {name: column[row] for name, column in table.extra.items()}
    assert extra == {"subcategory": "keycap", "design": "fluent-3d", "licence": "MIT", "name": "name of 0023-20E3"}
    again = read_table(tmp_path / "out" / "images.csv")
    assert again.paths.tolist() == table.paths.tolist() == sorted(table.paths, key=lambda path: path.split("/")[1])
    assert all(Path(file).is_file() for file in table.files())
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"LICENCES.md", "data.json", "images", "images.csv"}
    assert len(list((tmp_path / "out").rglob("*.png"))) == len(table)


def test_pictures(few, tmp_path):
    """A square of the drawing's colour on white, the same whatever the design's format."""
    table = build_emoji(tmp_path / "out", size=40)
    for file, label, design in zip(table.files(), table.labels, table.extra["design"], strict=True):
        picture = Image.open(file)
        assert (picture.mode, picture.size, picture.format) == ("RGB", (40, 40), "PNG")
        at = (20, 12) if design == "emojione-2" else (20, 20)  # which is higher than wide, and so in the middle
        expected = Image.new("RGB", (1, 1), fake_emoji.colour(label, DESIGNS.index(design))).getpixel((0, 0))
        assert picture.getpixel(at) == expected, (label, design)
        assert picture.getpixel((1, 1)) == picture.getpixel((38, 38)) == (255, 255, 255)


def test_pictures_in_two_classes_are_left_out(few, tmp_path):
    """By the drawing's file, or by what it looks like; of one class they stay."""
    changed = {("twemoji", "1F600"): "red", ("twemoji", "1F601"): "red"}
    changed |= {("noto", "1F602"): "lime", ("fxemoji", "1F603"): "#00ff00"}  # other files that look the same
    changed |= {("openmoji", "1F604"): "blue", ("twemoji", "1F604"): "blue"}
    changed |= {("openmoji", "1F605"): "gold", ("openmoji", "1F431"): "gold"}
    few(changed)
    table = build_emoji(tmp_path / "out")
    for label, design in (("1F600", "twemoji"), ("1F601", "twemoji"), ("1F602", "noto"), ("1F603", "fxemoji")):
        assert sorted(of_class(table, label)) == sorted(set(DESIGNS) - {design})
    assert of_class(table, "1F604") == DESIGNS
    assert of_class(table, "1F605") == []  # three were left
    assert of_class(table, "1F431") == [design for design in DESIGNS if design != "openmoji"]
    assert len(list((tmp_path / "out").rglob("*.png"))) == len(table)
    assert not (tmp_path / "out" / "images" / "1F605").exists()


def test_blank_pictures_are_left_out(few, tmp_path):
    blank = {("noto", "1F600"): "white", ("fluent-3d", "1F601"): "#ffffff00", ("fxemoji", "1F602"): "none"}
    few(blank)
    table = build_emoji(tmp_path / "out")
    for design, label in blank:
        assert of_class(table, label) == [name for name in DESIGNS if name != design]


def test_the_split_stays_as_it_is(few, tmp_path):
    """Published figures depend on it."""
    table = build_emoji(tmp_path / "out")
    splits = dict(zip(table.labels, table.splits, strict=True))
    expected = {"0023-20E3": "test", "1F431": "train", FAMILY: "train", "1F600": "test", "1F604": "train"}
    assert {label: splits[label] for label in expected} == expected
    assert all(len(set(table.splits[table.labels == label])) == 1 for label in splits)
    assert 1900 < Counter(label_split(f"{number:04X}") for number in range(4000))["train"] < 2100


def test_some_classes(few, tmp_path):
    with pytest.raises(InputError, match=r"^classes .* 400"):
        build_emoji(tmp_path / "many", classes=400)
    whole = build_emoji(tmp_path / "whole", skin_tones=True)
    assert set(fake_emoji.TONED) <= set(whole.labels)
    assert not set(fake_emoji.OTHERS) & set(whole.labels)
    table = build_emoji(tmp_path / "out", classes=5)
    assert len(set(table.labels)) == 5
    assert len(set(table.labels[table.splits == "test"])) == 2
    rows = dict(zip(whole.paths.tolist(), whole.splits.tolist(), strict=True))
    assert rows | dict(zip(table.paths.tolist(), table.splits.tolist(), strict=True)) == rows
    assert len(list((tmp_path / "out").rglob("*.png"))) == len(table)


@pytest.mark.parametrize(
    "wrong", [{"designs": "both"}, {"size": 7}, {"size": 1025}, {"size": 40.0}, {"classes": 1}], ids=str
)
def test_wrong_settings(few, tmp_path, wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        build_emoji(tmp_path / "out", **wrong)
    refusal(lambda: build_emoji(tmp_path / "out", size="40"), "size", error=InputTypeError)
    assert not (tmp_path / "out").exists()


def test_without_resvg(few, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    refusal(lambda: build_emoji(tmp_path / "out"), "resvg_py", "frontrank[samples]")
    assert not (tmp_path / "out").exists()


def test_broken_off(few, tmp_path, monkeypatch):
    """The next call draws only what is missing, and ends with the same."""
    build_emoji(tmp_path / "whole")
    out, drawn, draw = tmp_path / "out", [], emoji.draw_emoji

    def drawing(content, size):
        if len(drawn) == 20:
            raise KeyboardInterrupt
        drawn.append(content)
        return draw(content, size)

    with monkeypatch.context() as patched:
        patched.setattr(emoji, "draw_emoji", drawing)
        with pytest.raises(KeyboardInterrupt):
            build_emoji(out)
    assert not (out / "images.csv").exists()
    assert len(list(out.rglob("*.png"))) == 20
    (out / "images" / "1F600" / ".noto.png.1.a.unfinished").write_bytes(b"half")  # as of a process that was killed
    again = []
    monkeypatch.setattr(emoji, "draw_emoji", lambda *a: (again.append(a[0]), draw(*a))[1])
    first = build_emoji(out)
    assert not set(again) & set(drawn)
    assert files(out) == files(tmp_path / "whole")
    for step in ("fetch", "draw_emoji"):  # which a third call does not need
        monkeypatch.setattr(emoji, step, None)
    assert build_emoji(out).paths.tolist() == first.paths.tolist()


def test_a_drawing_that_cannot_be_drawn(tmp_path):
    for drawing in (b"<svg", b"no picture", b"\xff<svg/>", svg("red")[:40]):
        with pytest.raises(InputError, match=r"x\.png .*resvg_py"):
            emoji._draw_chunk([(str(tmp_path / "x.png"), drawing, 20)])


@pytest.mark.processes
def test_several_processes(few, tmp_path, monkeypatch):
    """They draw what one draws; should one be killed, the next call goes on."""
    build_emoji(tmp_path / "one")
    monkeypatch.setattr(emoji, "_CHUNK", 4)
    with monkeypatch.context() as patched:
        patched.setattr(emoji, "draw_emoji", kill_itself)
        refusal(lambda: build_emoji(tmp_path / "two"), "killed")
    build_emoji(tmp_path / "two")
    assert files(tmp_path / "one") == files(tmp_path / "two")


def kill_itself(*_):
    os.kill(os.getpid(), signal.SIGKILL)


# The real packages

REAL_CATEGORIES = ["flags", "food-drink", "objects", "people-body", "smileys-emotion", "symbols", "travel-places"]


@pytest.mark.processes
def test_real_emoji(tmp_path, monkeypatch):
    """Twelve classes from the pinned packages, half of them for the test, drawn by worker processes.

    Each picture has much white, something that is not, and a shape of its own; designs of a class are not the same.
    """
    require_packages(emoji.PACKAGES)
    monkeypatch.setattr(emoji, "_CHUNK", 4)
    real = build_emoji(tmp_path / "out", classes=12)
    assert len(set(real.labels)) == 12
    assert Counter(dict(zip(real.labels, real.splits, strict=True)).values()) == {"train": 6, "test": 6}
    assert len(real) == 75
    assert min(Counter(real.labels).values()) >= emoji.LEAST
    assert set(real.extra["design"]) == set(DESIGNS)
    assert sorted(set(real.categories)) == REAL_CATEGORIES
    digests = set()
    for file in real.files():
        picture = np.asarray(Image.open(file))
        assert picture.shape == (emoji.SIZE, emoji.SIZE, 3)
        white = (picture == 255).all(axis=2).mean()
        assert 0.02 < white < 0.97, file
        digests.add(hashlib.sha256(picture.tobytes()).digest())
    assert len(digests) == len(real)
