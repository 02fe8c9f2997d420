"""Scenes of emoji: what is in them, that they are a function of the seed, and what happens when it is broken off."""

import io

import numpy as np
import pytest
from PIL import Image

from frontrank.detection.data import read_scenes
from frontrank.errors import InputError
from frontrank.packages import fetch
from frontrank.pictures.decode import image_size
from frontrank.samples import scenes
from frontrank.samples.scenes import Parts, build_emoji_scenes, draw_scene
from tests.errors import refusal
from tests.fetch import require_packages
from tests.files import files
from tests.packages.fakes import tgz
from tests.samples import fake_emoji

CLASSES = {"cat": "1F431", "grin": "1F600", "beam": "1F601"}


@pytest.fixture
def few(tmp_path, monkeypatch):
    """Three classes and small packages in place of the real ones."""
    monkeypatch.setattr(scenes, "CLASSES", CLASSES)
    monkeypatch.setattr(scenes, "OTHERS", ("1F602",))
    archives = fake_emoji.write_archives(tmp_path / "packages")
    for number, each in enumerate(scenes.PHOTOGRAPHS):
        archives[each.package] = tmp_path / "packages" / each.package.file_name()
        names = [name for of in each.of.values() for name in of]
        archives[each.package].write_bytes(
            tgz({name: photograph(7 * number + place) for place, name in enumerate(names)})
        )
    asked = []

    def fetched(packages, show=None):
        asked.append(packages)
        return [archives[package] for package in packages]

    monkeypatch.setattr(scenes, "fetch", fetched)
    return asked


def photograph(seed):
    pixels = np.random.default_rng(seed).integers(0, 255, (20, 30, 3)).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).resize((300, 200)).save(stream, "JPEG")
    return stream.getvalue()


def test_what_is_built(few, tmp_path):
    counts = build_emoji_scenes(tmp_path / "out", scenes=12, size=64)
    assert counts.scenes == {"train": 12, "test": 3}
    home = tmp_path / "out" / "VOC2007"
    assert sorted(path.name for path in home.iterdir()) == ["Annotations", "ImageSets", "JPEGImages"]
    lists = {path.stem: path.read_text().split("\n")[:-1] for path in (home / "ImageSets/Main").iterdir()}
    assert lists["trainval"] == [f"{number:06d}" for number in range(1, 13)]
    assert lists["test"] == ["000013", "000014", "000015"]
    assert sorted(lists["train"] + lists["val"]) == lists["trainval"]
    assert lists["val"] == ["000005", "000010"]
    assert {f"{name}_{part}" for name in CLASSES for part in ("train", "val", "trainval", "test")} <= set(lists)
    for split, many in (("train", 12), ("test", 3)):
        table = read_scenes(tmp_path / "out", split=split)
        assert len(table) == many
        assert table.classes == tuple(sorted(CLASSES))
        assert table.objects + int(table.counts()[:, 1].sum()) == counts.objects[split]
        assert int(table.counts()[:, 1].sum()) == counts.difficult[split]
        for file, size in zip(table.files, table.sizes, strict=True):
            assert image_size(file) == tuple(size) == (64, 64)
    assert "| noto | train |" in (tmp_path / "out/LICENCES.md").read_text()
    table = read_scenes(tmp_path / "out")
    for label, name in enumerate(table.classes, start=1):
        lines = (tmp_path / f"out/VOC2007/ImageSets/Main/{name}_trainval.txt").read_text().splitlines()
        for row, line in enumerate(lines):
            hard = table.ignored[row][table.labels[row] == label]
            expected = -1 if not len(hard) else 0 if hard.all() else 1
            assert int(line.split()[1]) == expected


def test_a_scene_is_a_function_of_the_seed(few, tmp_path):
    for folder, given in (("one", {}), ("same", {}), ("other", {"seed": 1})):
        build_emoji_scenes(tmp_path / folder, scenes=4, size=64, **given)
    one, same, other = (files(tmp_path / folder / "VOC2007") for folder in ("one", "same", "other"))
    assert one == same
    pictures = [name for name in one if name.endswith(".jpg")]
    assert len({one[name] for name in pictures}) == 5  # no scene is another
    assert len(pictures) == 5
    assert all(one[name] != other[name] for name in pictures)
    build_emoji_scenes(tmp_path / "more", scenes=8, size=64)
    more = files(tmp_path / "more" / "VOC2007")
    assert all(one[f"JPEGImages/{number:06d}.jpg"] == more[f"JPEGImages/{number:06d}.jpg"] for number in range(1, 5))


def test_a_finished_folder_is_left_as_it_is(few, tmp_path):
    first = build_emoji_scenes(tmp_path / "out", scenes=4, size=64)
    assert build_emoji_scenes(tmp_path / "out", scenes=4, size=64) == first
    assert len(few) == 1  # nothing was fetched again
    refusal(lambda: build_emoji_scenes(tmp_path / "out", scenes=8, size=64), "scenes 4 (not 8)")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/letter.txt").write_text("dear")
    refusal(lambda: build_emoji_scenes(tmp_path / "mine", scenes=4), "mine")


def test_broken_off_and_gone_on_with(few, tmp_path, monkeypatch):
    build_emoji_scenes(tmp_path / "whole", scenes=8, size=64)
    calls = []

    def draw(*arguments):
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return draw_scene(*arguments)

    monkeypatch.setattr(scenes, "draw_scene", draw)
    with pytest.raises(KeyboardInterrupt):
        build_emoji_scenes(tmp_path / "out", scenes=8, size=64)
    assert len(list((tmp_path / "out/VOC2007/JPEGImages").iterdir())) == 3
    refusal(lambda: build_emoji_scenes(tmp_path / "out", scenes=8, size=96), "size 64 (not 96)")
    refusal(lambda: read_scenes(tmp_path / "out"), "frontrank data emoji-scenes")
    build_emoji_scenes(tmp_path / "out", scenes=8, size=64)
    assert len(calls) == 4 + 10 - 3
    assert files(tmp_path / "out/VOC2007") == files(tmp_path / "whole/VOC2007")


@pytest.mark.parametrize("given", [{"scenes": 3}, {"size": 32}, {"seed": -1}, {"size": 100.5}], ids=str)
def test_settings_that_cannot_be_used(tmp_path, given):
    with pytest.raises(InputError, match=next(iter(given))):
        build_emoji_scenes(tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()


def squares(side=40):
    """Parts of which each class has its own plain colour, so that pixels tell whose they are."""
    colours = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
    classes = {name: (Image.new("RGBA", (side, side), (*of, 255)),) for name, of in colours.items()}
    return Parts(classes, (Image.new("RGBA", (side, side), (255, 255, 0, 255)),), (Image.new("RGB", (200, 200)),))


def test_boxes_are_what_is_to_be_seen():
    """The only object of a colour has its box around all pixels of this colour."""
    seen = 0
    for seed in range(30):
        picture, placed = draw_scene(squares(), 128, np.random.default_rng(seed))
        hue = np.asarray(picture).argmax(axis=2)
        drawn = np.asarray(picture).max(axis=2) > 90
        yellow = (np.asarray(picture)[..., :2] > 90).all(axis=2)
        names = [each.name for each in placed]
        for each in placed:
            if names.count(each.name) > 1:
                continue
            mine = drawn & ~yellow & (hue == ("red", "green", "blue").index(each.name))
            rows, columns = np.nonzero(mine)
            box = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
            assert np.abs(np.subtract(box, each.box)).max() <= 2  # soft edges
            seen += 1
    assert seen > 25


def test_a_hidden_object_is_not_there(monkeypatch):
    monkeypatch.setattr(scenes, "_place", lambda *_: (40, 40))
    monkeypatch.setattr(scenes, "_vary", lambda drawing, *_: drawing)
    for seed in range(20):
        placed = draw_scene(squares(), 128, np.random.default_rng(seed))[1]
        assert len(placed) <= 1  # the last one drawn hides all others; it may be of no class


def test_the_real_parts_are_all_there_and_not_shared(monkeypatch):
    """Of each class a design has a drawing; train and test share neither a design nor a photograph."""
    wanted = scenes.scene_packages()
    require_packages(wanted)
    archives = dict(zip(wanted, fetch(wanted, show=False), strict=True))
    designs = {split: {design.name for design in scenes.scene_designs(split)} for split in ("train", "test")}
    assert len(designs["train"]) == 4
    assert len(designs["test"]) == 3
    assert not designs["train"] & designs["test"]
    for each in scenes.PHOTOGRAPHS:
        assert not set(each.of["train"]) & set(each.of["test"])
    monkeypatch.setattr(scenes, "_VENDORS", {"test": ("noto-v1",)})  # whose package is small
    parts = scenes.read_parts(archives, "test", 64, 256)
    assert len(parts.classes) == 20
    assert all(len(of) == 1 for of in parts.classes.values())
    assert len(parts.others) == len(scenes.OTHERS)
    assert len(parts.photographs) == 8
    assert all(min(picture.size) >= 8 and picture.mode == "RGBA" for of in parts.classes.values() for picture in of)
