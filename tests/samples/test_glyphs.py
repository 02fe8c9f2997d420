"""Glyphs: Unicode data, fonts and pictures, the choice among them, and the build of the data set."""

import json
import os
import shutil
import warnings
from collections import Counter, defaultdict
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontrank.data.table import read_table
from frontrank.errors import FrontrankWarning, InputError, InputTypeError
from frontrank.packages import Package
from frontrank.samples import build, glyphs
from frontrank.samples.build import label_split
from frontrank.samples.glyphs import (
    SMALL,
    TEST_PACKAGES,
    TYPEFACES,
    UNICODE_DATA,
    Character,
    Typeface,
    build_glyphs,
    character_label,
    choose_pictures,
    draw_glyph,
    fingerprints,
    font_characters,
    open_font,
    read_characters,
)
from tests.data.test_table import assert_same
from tests.errors import refusal
from tests.fetch import require_packages
from tests.samples.fonts import UNIHAN, archive, collection, font, unicode_archive

# Han characters in Unicode


def test_radicals_strokes_and_meanings(tmp_path):
    characters = read_characters(unicode_archive(tmp_path / "unicode.deb"))
    assert characters[ord("水")] == Character(85, 0, "water")
    assert characters[ord("火")] == Character(86, 0, "fire")
    assert characters[ord("土")] == Character(32, 0, "")
    assert characters[ord("金")] == Character(167, 0, "")  # the first of two places
    assert characters[ord("钅")] == Character(167, 2, "")  # a simplified radical
    assert characters[ord("王")] == Character(96, -1, "")
    assert characters[0x20000] == Character(1, 4, "")
    assert ord("海") in characters
    assert 0xFA45 not in characters  # 海 again, from an older standard
    assert len(characters) == UNIHAN.count("kRSUnicode") - 1
    files = {"Unihan_RadicalStrokeCounts.txt": "U+6C34\tkRSUnicode\t85.0\n", "Unihan_Readings.txt": ""}
    assert read_characters(archive(tmp_path / "u.deb", files)) == {ord("水"): Character(85, 0, "")}


def test_damaged_packages(tmp_path):
    for name, content in (
        ("Unihan_IRGSources.txt.bz2", b"not compressed"),
        ("Unihan_IRGSources.txt", b"U+6C34\tkRSUnicode\tx.y\n"),
        ("Unihan_IRGSources.txt", b"\xff\xfe"),
        ("x.txt", b"U+6C34"),  # it has no radicals
    ):
        path = archive(tmp_path / "u.deb", {name: content})
        refusal(lambda path=path: read_characters(path), "u.deb", "Unihan_")


# Fonts

SHAPE = (0, 0, 500, 500)


@settings(max_examples=30)
@given(st.sets(st.integers(0x20, 0xFFFE) | st.integers(0x4E00, 0x4E40) | st.integers(0x20000, 0x20010), min_size=1))
def test_the_characters_of_fonts(codes):
    """Narrow ones with a table of 16 bits only, and wide ones."""
    data = font({code: (0, 0, 100 + place % 800, 500) for place, code in enumerate(sorted(codes))})
    assert font_characters(data).tolist() == sorted(codes)


def test_the_missing_glyph_is_no_glyph():
    for wide in (False, True):
        data = font({0x4E00: SHAPE, 0x4E01: None, 0x4E02: (0, 0, 9, 9), 0x4E05: None}, wide=wide)
        assert font_characters(data).tolist() == [0x4E00, 0x4E02]


def test_a_collection_is_read_by_number():
    data = collection({0x4E00: SHAPE}, {0x4E01: SHAPE, 0x4E05: (0, 0, 7, 7)})
    assert font_characters(data, 0).tolist() == [0x4E00]
    assert font_characters(data, 1).tolist() == [0x4E01, 0x4E05]
    with pytest.raises(ValueError, match="font"):
        font_characters(data, 2)


def test_a_font_that_is_cut_or_has_no_characters():
    whole = font({0x4E00: SHAPE, 0x4E02: (0, 0, 9, 9)})
    for length in range(0, len(whole) // 2, 40):
        with pytest.raises(ValueError, match="font"):
            font_characters(whole[:length])
    for name in (b"cmap", b"maxp"):
        with pytest.raises(ValueError, match="it "):
            font_characters(whole.replace(name, name[::-1]))


# Pictures

TALL, FLAT, BLANK, HUGE, LOW = range(0x4E00, 0x4E05)
RECTANGLES = {
    TALL: (0, 0, 300, 600),
    FLAT: (0, 0, 600, 300),
    BLANK: (0, 0, 0, 0),
    HUGE: (-1000, -200, 2000, 1000),
    LOW: (700, -100, 1000, 500),  # the shape of TALL, elsewhere
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "boxes.ttf"
    path.write_bytes(font(RECTANGLES, missing=(0, 0, 600, 600)))
    return str(path)


def draw(file, code, size=48):
    picture = draw_glyph(open_font(file, 0, size), chr(code), size)
    assert picture.mode == "L"
    assert picture.size == (size, size)
    return np.array(picture)


def test_ink_is_black_and_in_the_middle(file):
    """40 pixels are 1000 units: 300 x 600 units are 12 x 24 pixels."""
    boxes = {TALL: (12, 18, 36, 30), FLAT: (18, 12, 30, 36), LOW: (12, 18, 36, 30)}
    for code, (top, left, bottom, right) in boxes.items():
        expected = np.full((48, 48), 255)
        expected[top:bottom, left:right] = 0
        np.testing.assert_array_equal(draw(file, code), expected)
    assert draw_glyph(open_font(file, 0, 48), chr(BLANK), 48) is None
    ink = draw(file, TALL, 24) < 128
    assert (ink.any(1).sum(), ink.any(0).sum()) == (12, 6)
    ink = draw(file, HUGE) < 128  # it is shrunk
    assert ink.any(0).all()
    assert 18 <= ink.any(1).sum() <= 20  # 3000 x 1200 units, 48 pixels wide
    assert ink.any(1).nonzero()[0].mean() == pytest.approx(23.5, abs=0.5)


def test_fingerprints_are_of_pixels_and_stored(file, tmp_path):
    codes, cache = np.array([TALL, FLAT, BLANK, LOW, 0x5000, 0x5001]), tmp_path / "in" / "cache.npy"
    numbers = fingerprints(file, 0, 48, codes, cache)
    assert numbers.dtype == np.uint64
    tall, flat, blank, low, missing, again = numbers.tolist()
    assert blank == 0
    assert tall == low
    assert missing == again
    assert len({tall, flat, missing, 0}) == 4
    os.remove(file)
    open_font.cache_clear()
    np.testing.assert_array_equal(fingerprints(file, 0, 48, codes, cache), numbers)
    assert [path.name for path in cache.parent.iterdir()] == ["cache.npy"]
    refusal(lambda: fingerprints(file, 0, 48, codes, tmp_path / "other.npy"), "boxes.ttf")


# The choice of pictures

WATER, FIRE, EARTH, GOLD, KING, SEA, AGAIN, RARE = *map(ord, "水火土金王海"), 0xFA45, 0x20000


def choose(pictures, **options):
    """The pictures (code, design, fingerprint) that are chosen, in their order."""
    codes, designs, prints = zip(*pictures, strict=True) if pictures else ((), (), ())
    rows = choose_pictures(
        np.array(codes, dtype=np.int64), np.array(designs, dtype=str), np.array(prints, dtype=np.uint64), **options
    )
    return [pictures[row] for row in rows.tolist()]


def many(classes, designs=8, start=0x4E00):
    """Characters in many typefaces, all pictures different."""
    codes = range(start, start + classes)
    return [(code, f"d{design}", 100 * code + design) for code in codes for design in range(designs)]


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from("abcd"), st.integers(0, 9)), max_size=20))
def test_all_that_is_left_is_distinct(pictures):
    pictures = list({(code, design): (code, design, number) for code, design, number in pictures}.values())
    classes = defaultdict(set)
    for code, _, number in pictures:
        classes[number].add(code)
    kept, seen = [], set()
    for picture in sorted(pictures):
        number = picture[2]
        if number and len(classes[number]) == 1 and number not in seen:
            seen.add(number)
            kept.append(picture)
    sizes = Counter(code for code, _, _ in kept)
    assert choose(pictures) == [picture for picture in kept if sizes[picture[0]] > 1]


def split_of(code):
    return label_split(character_label(code))


def of_sop(monkeypatch, pictures, train, test):
    monkeypatch.setattr(glyphs, "LIKE_SOP", {"train": train, "test": test})
    kept = choose(pictures, like="sop")
    sizes = {split: Counter(code for code, _, _ in kept if split_of(code) == split) for split in ("train", "test")}
    return kept, sizes


@pytest.mark.parametrize("images", [80, 113, 240])
def test_exactly_so_many_classes_and_images(monkeypatch, images):
    kept, sizes = of_sop(monkeypatch, many(150, 14), (40, images), (41, 2 * 41))
    assert len(kept) == len(set(kept)) == images + 82
    assert (len(sizes["train"]), sizes["train"].total()) == (40, images)
    assert (len(sizes["test"]), sizes["test"].total()) == (41, 82)
    assert set(sizes["train"].values()) <= set(range(2, 13))
    assert set(sizes["test"].values()) == {2}
    assert kept == sorted(kept, key=lambda picture: picture[:2])


def test_too_little_for_sop(monkeypatch):
    pictures = many(100, 6) + many(100, 5, start=0x6000)  # these have too few typefaces
    kept, _ = of_sop(monkeypatch, pictures, (30, 70), (30, 70))
    assert max(code for code, _, _ in kept) < 0x6000
    train = sum(split_of(0x4E00 + code) == "train" for code in range(100))
    pictures = many(100, 6)
    refusal(
        lambda: of_sop(monkeypatch, pictures, (train + 1, 2 * train + 2), (1, 2)), "like='sop'", train + 1, f" {train} "
    )
    refusal(lambda: of_sop(monkeypatch, pictures, (10, 20), (10, 61)), "10 test classes", "61 images")


# The data set

PLACEHOLDER = (50, 0, 800, 800)  # of all fonts here
ONE, TWO = (Package("apt", name, "1-1", "0" * 64, 1) for name in ("fonts-one", "fonts-two"))
FACES = {
    "flat": Typeface("flat", ONE, "MIT", ("flat.ttf", "flat-more.ttf"), 0),
    "tall": Typeface("tall", ONE, "OFL-1.1", ("tall.ttf",), 0),
    "slim": Typeface("slim", TWO, "public domain", ("slim.ttc",), 1),
}
SHAPES = {
    "flat.ttf": {
        WATER: (0, 0, 900, 100),
        FIRE: (0, 0, 900, 150),
        EARTH: PLACEHOLDER,
        GOLD: (0, 0, 900, 300),
        65: (0, 0, 9, 9),
    },
    # What the first file has comes from there; that it has 土 as a placeholder only is not seen in time.
    "flat-more.ttf": {WATER: (0, 0, 5, 5), SEA: (0, 0, 900, 400), AGAIN: (0, 0, 900, 450), RARE: (0, 0, 900, 500)},
    "tall.ttf": {WATER: (0, 0, 100, 900), FIRE: (0, 0, 0, 0), GOLD: (0, 0, 200, 900), EARTH: (0, 0, 300, 900)},
    # 海 and 土 share a picture, and so does 王 with nobody
    "slim.ttc": {WATER: (0, 0, 50, 900), SEA: (0, 0, 60, 900), EARTH: (0, 0, 60, 900), KING: (0, 0, 70, 900)},
}
EXPECTED = ["U+6C34 flat", "U+6C34 slim", "U+6C34 tall", "U+91D1 flat", "U+91D1 tall"]


class Registry:
    """Packages that are here without a network."""

    def __init__(self, folder):
        self.folder, self.calls = folder, 0
        fonts = {name: font(shapes, PLACEHOLDER) for name, shapes in SHAPES.items() if name.endswith(".ttf")}
        self.one = archive(folder / ONE.file_name(), fonts, "notice one")
        self.two = archive(folder / TWO.file_name(), {"slim.ttc": collection({}, SHAPES["slim.ttc"])})
        self.data = unicode_archive(folder / UNICODE_DATA.file_name())

    def fetch(self, packages, *, any_version=False, show=None):
        self.calls += 1
        paths = {ONE: self.one, TWO: self.two, UNICODE_DATA: self.data}
        return [paths[package] for package in packages]


def in_this_process(tasks, what):
    return [function(*arguments) for function, arguments, _ in tasks]


@pytest.fixture
def registry(tmp_path, monkeypatch):
    packages = Registry(tmp_path / "registry")
    monkeypatch.setattr(glyphs, "fetch", packages.fetch)
    monkeypatch.setattr(glyphs, "TYPEFACES", FACES)
    monkeypatch.setattr(glyphs, "start_workers", lambda show: nullcontext(in_this_process))
    monkeypatch.setattr(glyphs, "_COUNTS", {"train": (1, 3), "test": (1, 2)})
    return packages


def named(table):
    return [f"{label} {design}" for label, design in zip(table.labels, table.extra["design"], strict=True)]


def test_the_table_and_the_folder(registry, tmp_path):
    table = build_glyphs(tmp_path / "out")
    assert named(table) == EXPECTED
    assert table.name == "glyphs"
    assert table.paths.tolist()[1] == "images/06C/U+6C34-slim.png"
    assert table.categories.tolist() == ["085 water"] * 3 + ["167 gold"] * 2
    assert table.splits.tolist() == ["train"] * 3 + ["test"] * 2
    extra = {name: column.tolist() for name, column in table.extra.items()}
    assert extra["subcategory"] == ["085 water +0"] * 3 + ["167 gold +0"] * 2
    assert extra["licence"] == ["MIT", "public domain", "OFL-1.1", "MIT", "OFL-1.1"]
    assert extra["name"] == ["水 water"] * 3 + ["金"] * 2
    assert_same(table, read_table(tmp_path / "out" / "images.csv"))
    found = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file())
    pictures = [f"images/{name[2:4].zfill(3)}/{name.replace(' ', '-')}.png" for name in EXPECTED]
    notices = [f"licences/{name}.txt" for name in ("fonts-one", "fonts-two", "unicode-data")]
    assert found == sorted(["LICENCES.md", "data.json", "images.csv", *pictures, *notices])
    assert (tmp_path / "out" / "licences" / "fonts-one.txt").read_text() == "notice one"
    text = (tmp_path / "out" / "LICENCES.md").read_text()
    assert "| flat | fonts-one 1-1 (apt) | MIT | 2 |" in text
    assert "unicode-data 15.0.0-1 (apt) brought" in text
    nothing = {"like": None, "typefaces": None, "classes": None}
    state = json.loads((tmp_path / "out" / "data.json").read_text())
    assert state["settings"] == {"data": "glyphs", **nothing, "size": 48, "any_version": False}


def test_only_what_is_asked_for_is_fetched(registry, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(glyphs, "fetch", lambda packages, **_: asked.extend(packages) or registry.fetch(packages))
    table = build_glyphs(tmp_path / "out", typefaces=["tall", "flat", "tall"])
    assert asked == [UNICODE_DATA, ONE]
    assert named(table) == [name for name in EXPECTED if "slim" not in name]


@pytest.mark.parametrize("step", ["_survey", "_write_missing", "finish_table"])
def test_a_build_that_was_ended_is_gone_on_with(registry, tmp_path, monkeypatch, step):
    whole = build_glyphs(tmp_path / "whole")
    usual = getattr(glyphs, step)

    def end(*given):
        usual(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(glyphs, step, end)
    with pytest.raises(KeyboardInterrupt):
        build_glyphs(tmp_path / "out")
    monkeypatch.setattr(glyphs, step, usual)
    if step == "_write_missing":
        os.remove(tmp_path / "out" / whole.paths[0])
    done = {path: os.stat(path).st_mtime_ns for path in (tmp_path / "out").rglob("*.png")}
    again = build_glyphs(tmp_path / "out")
    assert again.paths.tolist() == whole.paths.tolist()
    for path in whole.paths:
        assert (tmp_path / "out" / path).read_bytes() == (tmp_path / "whole" / path).read_bytes()
    assert {path: os.stat(path).st_mtime_ns for path in done} == done
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        path.name for path in (tmp_path / "whole").iterdir()
    )


def test_few_classes_or_those_of_sop(registry, tmp_path, monkeypatch):
    assert named(build_glyphs(tmp_path / "few", classes=2)) == EXPECTED
    refusal(lambda: build_glyphs(tmp_path / "more", classes=3), "classes=3", "train")
    refusal(lambda: build_glyphs(tmp_path / "out", like="sop"), "like='sop'", "11,318 train classes")
    monkeypatch.setattr(glyphs, "LIKE_SOP", {"train": (1, 2), "test": (1, 2)})
    monkeypatch.setattr(glyphs, "_KNOWN", 2)
    table = build_glyphs(tmp_path / "out", like="sop")
    assert sorted(table.labels.tolist()) == ["U+6C34"] * 2 + ["U+91D1"] * 2


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"like": "cub"}, InputError),
        ({"like": "sop", "classes": 4}, InputError),
        ({"classes": 1}, InputError),
        ({"size": 7}, InputError),
        ({"typefaces": "flat"}, InputTypeError),
        ({"typefaces": ["flat", "tal"]}, InputError),
    ],
    ids=str,
)
def test_wrong_arguments(registry, tmp_path, given, kind):
    with pytest.raises(kind, match=next(iter(given))):
        build_glyphs(tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()
    assert registry.calls == 0


def test_a_font_that_went_away_or_is_none(registry, tmp_path):
    archive(registry.two, {"fat.ttc": b""})
    refusal(lambda: build_glyphs(tmp_path / "out"), "fonts-two", "slim.ttc")
    archive(registry.two, {"slim.ttc": b"nonsense"})
    refusal(lambda: build_glyphs(tmp_path / "other"), "slim.ttc", "fonts-two 1-1")


def test_the_counts_are_checked(registry, tmp_path, monkeypatch):
    monkeypatch.setattr(glyphs, "_COUNTS", {"train": (1, 4), "test": (1, 2)})
    refusal(lambda: build_glyphs(tmp_path / "out"), "train", "3 images", "4")
    for settings_ in ({"size": 32}, {"any_version": True}):
        build_glyphs(tmp_path / "-".join(settings_), **settings_)  # other counts are not known
    monkeypatch.setattr(glyphs, "_COUNTS", {"train": (1, 3), "test": (1, 3)})
    monkeypatch.setattr(build, "_TOLERANCE", 0.4)
    with pytest.warns(FrontrankWarning, match="2 images.* 3"):
        build_glyphs(tmp_path / "out")


@pytest.mark.processes
def test_real_typefaces(tmp_path):
    require_packages(TEST_PACKAGES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        real = build_glyphs(tmp_path / "out", typefaces="small", classes=24, size=32)
    assert {row["split"]: row["classes"] for row in real.counts()} == {"train": 12, "test": 12}
    assert {row["least"] >= 2 and row["most"] <= len(SMALL) for row in real.counts()} == {True}
    assert set(real.extra["design"].tolist()) == set(SMALL)
    assert {TYPEFACES[name].licence for name in SMALL} == set(real.extra["licence"].tolist())
    for label, split in zip(real.labels.tolist(), real.splits.tolist(), strict=True):
        assert split_of(int(label[2:], 16)) == split
    state = json.loads((real.root / "data.json").read_text())
    assert {package["name"] for package in state["packages"]} == {package.name for package in TEST_PACKAGES}


def test_no_room_or_no_common_character(registry, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=4000)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage)
        refusal(lambda: build_glyphs(tmp_path / "out"), "out", "0 MB")
    archive(registry.two, {"slim.ttc": collection({}, {KING: (0, 0, 9, 9)})})
    refusal(lambda: build_glyphs(tmp_path / "other", typefaces=["slim", "tall"]), "typefaces")
