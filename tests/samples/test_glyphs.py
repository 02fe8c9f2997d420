import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from frontrank.data.table import read_table
from frontrank.errors import FrontrankWarning, InputError, InputTypeError
from frontrank.packages import Package
from frontrank.samples import glyphs
from frontrank.samples import glyphs as glyph_choice
from frontrank.samples.glyphs import SMALL, TEST_PACKAGES, TYPEFACES, UNICODE_DATA, Typeface, build_glyphs, split_of
from tests.data.files import refusal
from tests.data.test_image_table import same
from tests.fetch import require_packages
from tests.samples.fonts import archive, collection, font, unicode_archive
from tests.samples.test_processes import BARE

WATER, FIRE, EARTH, GOLD, KING, SEA, AGAIN, RARE = *map(ord, "水火土金王海"), 0xFA45, 0x20000
MISSING = (50, 0, 800, 800)  # of all fonts here
ONE, TWO = (Package("apt", name, "1-1", "0" * 64, 1) for name in ("fonts-one", "fonts-two"))
FACES = {
    "flat": Typeface("flat", ONE, ("flat.ttf", "flat-more.ttf"), 0, "MIT"),
    "tall": Typeface("tall", ONE, ("tall.ttf",), 0, "OFL-1.1"),
    "slim": Typeface("slim", TWO, ("slim.ttc",), 1, "public domain"),
}
SHAPES = {
    "flat.ttf": {
        WATER: (0, 0, 900, 100),
        FIRE: (0, 0, 900, 150),
        EARTH: MISSING,
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
        fonts = {name: font(shapes, MISSING) for name, shapes in SHAPES.items() if name.endswith(".ttf")}
        self.one = archive(folder / ONE.file_name(), fonts, "the notice of one")
        self.two = archive(folder / TWO.file_name(), {"slim.ttc": collection({}, SHAPES["slim.ttc"])})
        self.data = unicode_archive(folder / UNICODE_DATA.file_name())

    def fetch(self, packages, *, any_version=False, show=None):
        self.calls += 1
        paths = {ONE: self.one, TWO: self.two, UNICODE_DATA: self.data}
        return [paths[package] for package in packages]


@pytest.fixture
def registry(tmp_path, monkeypatch):
    made = Registry(tmp_path / "registry")
    monkeypatch.setattr(glyphs, "fetch", made.fetch)
    monkeypatch.setattr(glyphs, "TYPEFACES", FACES)
    monkeypatch.setattr(glyphs, "_COUNTS", {"train": (1, 3), "test": (1, 2)})
    return made


def named(table):
    return [f"{label} {design}" for label, design in zip(table.labels, table.extra["design"], strict=True)]


def test_the_table(registry, tmp_path):
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
    same(table, read_table(tmp_path / "out" / "images.csv"))


def test_the_pictures(registry, tmp_path):
    table = build_glyphs(tmp_path / "out", size=96)
    sizes = {}
    for name, file in zip(named(table), table.files(), strict=True):
        with Image.open(file) as picture:
            assert picture.size == (96, 96)
            ink = np.array(picture) < 128
        sizes[name] = (ink.any(0).sum(), ink.any(1).sum())
    # 80 pixels are 1000 units; the first file of a typeface draws, and the second font of the collection
    assert sizes == dict(zip(EXPECTED, [(72, 8), (4, 72), (8, 72), (72, 24), (16, 72)], strict=True))


def test_the_folder(registry, tmp_path):
    build_glyphs(tmp_path / "out")
    found = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file())
    pictures = [f"images/{name[2:4].zfill(3)}/{name.replace(' ', '-')}.png" for name in EXPECTED]
    notices = [f"licences/{name}.txt" for name in ("fonts-one", "fonts-two", "unicode-data")]
    assert found == sorted(["LICENCES.md", "data.json", "images.csv", *pictures, *notices])
    assert (tmp_path / "out" / "licences" / "fonts-one.txt").read_text() == "the notice of one"
    text = (tmp_path / "out" / "LICENCES.md").read_text()
    assert "| flat | fonts-one 1-1 (apt) | MIT | 2 |" in text
    assert "unicode-data 15.0.0-1 (apt) brought" in text
    state = json.loads((tmp_path / "out" / "data.json").read_text())
    nothing = {"like": None, "typefaces": None, "classes": None}
    assert state["settings"] == {"data": "glyphs", **nothing, "size": 48, "any_version": False}


def test_only_what_is_asked_for_is_fetched(registry, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(glyphs, "fetch", lambda packages, **_: asked.extend(packages) or registry.fetch(packages))
    table = build_glyphs(tmp_path / "out", typefaces=["tall", "flat", "tall"])
    assert asked == [UNICODE_DATA, ONE]
    assert named(table) == [name for name in EXPECTED if "slim" not in name]


def test_a_finished_folder_is_read_at_once(registry, tmp_path):
    first = build_glyphs(tmp_path / "out")
    (tmp_path / "out" / ".work").mkdir()  # as a kill at the very end leaves it
    before = {path: os.stat(path).st_mtime_ns for path in first.files()}
    same(build_glyphs(tmp_path / "out"), first)
    assert registry.calls == 1
    assert {path: os.stat(path).st_mtime_ns for path in first.files()} == before
    assert not (tmp_path / "out" / ".work").exists()


def test_pictures_that_went_away_are_drawn_again(registry, tmp_path, monkeypatch):
    first = build_glyphs(tmp_path / "out")
    whole = Path(first.files()[3]).read_bytes()
    os.remove(first.files()[2])
    os.truncate(first.files()[3], 0)  # as a machine that went down leaves it
    kept = os.stat(first.files()[1]).st_mtime_ns
    usage = shutil.disk_usage(tmp_path)._replace(free=2 * glyphs._BYTES)  # for these two, not for all five
    monkeypatch.setattr(glyphs.shutil, "disk_usage", lambda path: usage)
    same(build_glyphs(tmp_path / "out"), first)
    assert os.path.exists(first.files()[2])
    assert Path(first.files()[3]).read_bytes() == whole
    assert os.stat(first.files()[1]).st_mtime_ns == kept


@pytest.mark.parametrize("step", ["_survey", "_write", "_table", "finished"])
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
    if step == "_write":
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


def test_other_settings_and_other_folders_are_refused(registry, tmp_path):
    build_glyphs(tmp_path / "out")
    refusal(lambda: build_glyphs(tmp_path / "out", size=32), "size 48 (not 32)")
    refusal(lambda: build_glyphs(tmp_path / "out", classes=2), "classes null (not 2)")
    refusal(lambda: build_glyphs(tmp_path / "out", any_version=True), "any_version false (not true)")
    refusal(lambda: build_glyphs(tmp_path), "holds something else")
    assert registry.calls == 1


def test_so_many_classes(registry, tmp_path):
    assert named(build_glyphs(tmp_path / "out", classes=2)) == EXPECTED
    refusal(lambda: build_glyphs(tmp_path / "more", classes=3), "classes=3 needs 2 of the train split, 1 can be had")


def test_like_sop(registry, tmp_path, monkeypatch):
    refusal(lambda: build_glyphs(tmp_path / "out", like="sop"), "like='sop' needs 11,318 train classes", "0 can be had")
    for module in (glyphs, glyph_choice):
        monkeypatch.setattr(module, "LIKE_SOP", {"train": (1, 2), "test": (1, 2)})
    monkeypatch.setattr(glyph_choice, "_KNOWN", 2)
    table = build_glyphs(tmp_path / "out", like="sop")
    assert sorted(table.labels.tolist()) == ["U+6C34"] * 2 + ["U+91D1"] * 2


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"like": "cub"}, InputError, "like must be 'sop' or nothing, got 'cub'"),
        ({"like": "sop", "classes": 4}, InputError, "leave out classes, or like"),
        ({"classes": 1}, InputError, "classes must be at least 2"),
        ({"classes": 2.5}, InputTypeError, "classes must be a whole number, got 2.5"),
        ({"classes": "9"}, InputTypeError, "classes must be a number"),
        ({"size": 7}, InputError, "size must be at least 8 and at most 512, got 7"),
        ({"size": 48.0}, InputTypeError, "size must be a whole number"),
        ({"size": True}, InputTypeError, "size must be a number"),
        ({"typefaces": "flat"}, InputTypeError, "typefaces must be a list of names or 'small', got 'flat'"),
        ({"typefaces": 5}, InputTypeError, "typefaces must be a list of names"),
        ({"typefaces": [3, "flat"]}, InputTypeError, "typefaces must be a list of names"),
        ({"typefaces": ["flat", "tal"]}, InputError, "typefaces has 'tal', which is none; did you mean 'tall'?"),
        ({"typefaces": ["flat", "xyz"]}, InputError, "use some of flat, tall, slim"),
        ({"typefaces": []}, InputError, "two or more"),
        ({"typefaces": ["flat", "flat"]}, InputError, "two or more"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_wrong_arguments(registry, tmp_path, given, kind, message):
    with pytest.raises(kind) as caught:
        build_glyphs(tmp_path / "out", **given)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()
    assert registry.calls == 0


def test_typefaces_without_a_common_character(registry, tmp_path):
    archive(registry.two, {"slim.ttc": collection({}, {KING: (0, 0, 9, 9)})})
    refusal(lambda: build_glyphs(tmp_path / "out", typefaces=["slim", "tall"]), "no character is in two")


def test_a_font_that_went_away_or_is_none(registry, tmp_path):
    archive(registry.two, {"fat.ttc": b""})
    refusal(lambda: build_glyphs(tmp_path / "out"), "fonts-two", "has no file slim.ttc", "leave that typeface out")
    archive(registry.two, {"slim.ttc": b"nonsense"})
    refusal(lambda: build_glyphs(tmp_path / "other"), "slim.ttc of fonts-two 1-1", "is no font", "leave slim out")


def test_another_version_is_said(registry, tmp_path):
    registry.two = registry.two.rename(registry.folder / TWO.file_name("any"))
    note = {"archive": "fonts-two_1%3a2.0-1_all.deb"}
    (registry.folder / TWO.file_name("any.deb.json").removesuffix(".deb")).write_text(json.dumps(note))
    build_glyphs(tmp_path / "out", any_version=True)
    packages = json.loads((tmp_path / "out" / "data.json").read_text())["packages"]
    found = {package["name"]: (package["version"], package["sha256"]) for package in packages}
    assert found["fonts-one"] == ("1-1", "0" * 64)
    assert found["fonts-two"][0] == "1:2.0-1"
    assert len(set(found["fonts-two"][1])) > 1


def test_the_counts_are_checked(registry, tmp_path, monkeypatch):
    monkeypatch.setattr(glyphs, "_COUNTS", {"train": (1, 4), "test": (1, 2)})
    refusal(
        lambda: build_glyphs(tmp_path / "out"), "the train split has 1 classes and 3 images, not 1 and 4: this Pillow"
    )
    for given in ({"size": 32}, {"classes": 2}, {"typefaces": ["flat", "tall"]}, {"any_version": True}):
        build_glyphs(tmp_path / "-".join(given), **given)  # other counts are not known
    monkeypatch.setattr(glyphs, "_COUNTS", {"train": (1, 3), "test": (1, 3)})
    monkeypatch.setattr(glyphs, "_TOLERANCE", 0.4)
    with pytest.warns(
        FrontrankWarning, match=r"the test split has 1 classes and 2 images, not 1 and 3, as this Pillow"
    ):
        build_glyphs(tmp_path / "out")


def test_no_room(registry, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=4000)
    monkeypatch.setattr(glyphs.shutil, "disk_usage", lambda path: usage)
    refusal(lambda: build_glyphs(tmp_path / "out"), "out has 0 MB of room, 0 MB are needed")


def test_the_errors_of_a_registry_pass(registry, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise InputError("apt-get is not here; use Debian or Ubuntu")

    monkeypatch.setattr(glyphs, "fetch", fail)
    assert refusal(lambda: build_glyphs(tmp_path / "out")) == "apt-get is not here; use Debian or Ubuntu"
    monkeypatch.setattr(glyphs, "fetch", registry.fetch)
    assert named(build_glyphs(tmp_path / "out")) == EXPECTED  # the folder is not spoilt


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """24 classes of real typefaces."""
    require_packages(TEST_PACKAGES)
    out = tmp_path_factory.mktemp("glyphs") / "out"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return build_glyphs(out, typefaces="small", classes=24, size=32)


def test_real_typefaces(real):
    assert {row["split"]: row["classes"] for row in real.counts()} == {"train": 12, "test": 12}
    assert {row["least"] >= 2 and row["most"] <= len(SMALL) for row in real.counts()} == {True}
    assert set(real.extra["design"].tolist()) == set(SMALL)
    assert {TYPEFACES[name].licence for name in SMALL} == set(real.extra["licence"].tolist())
    for label, split in zip(real.labels.tolist(), real.splits.tolist(), strict=True):
        assert split_of(int(label[2:], 16)) == split
    state = json.loads((real.root / "data.json").read_text())
    assert {package["name"] for package in state["packages"]} == {package.name for package in TEST_PACKAGES}


def test_real_pictures_are_distinct_and_have_ink(real):
    seen = set()
    for file in real.files():
        with Image.open(file) as picture:
            assert picture.size == (32, 32)
            pixels = np.array(picture)
        assert 0.02 < (pixels < 128).mean() < 0.7
        seen.add(pixels.tobytes())
    assert len(seen) == len(real)


def test_real_drawings_of_a_character_are_alike(real):
    pixels = []
    for file in real.files():
        with Image.open(file) as picture:
            pixels.append(255.0 - np.array(picture.reduce(2), dtype=float).ravel())
    x = np.array(pixels)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    scores = x @ x.T
    np.fill_diagonal(scores, -1)
    assert (real.labels[scores.argmax(1)] == real.labels).mean() > 0.8


KILLED = """
import pickle, time
from frontrank.data import glyphs
with open(sys.argv[1], "rb") as file:
    out, faces, archives = pickle.load(file)
glyphs.TYPEFACES, glyphs.fetch = faces, lambda packages, **_: [archives[package] for package in packages]
glyphs._write = lambda *_: (print("all fonts are looked at", flush=True), time.sleep(300))
glyphs.build_glyphs(out)
"""


def test_a_killed_build_goes_on(registry, tmp_path):
    """A real kill, in the middle of the work, of another process."""
    out, given = tmp_path / "out", tmp_path / "given"
    given.write_bytes(pickle.dumps((out, FACES, {ONE: registry.one, TWO: registry.two, UNICODE_DATA: registry.data})))
    command = [sys.executable, "-c", BARE + KILLED, str(given)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "all fonts are looked at\n"
        process.send_signal(signal.SIGKILL)
    assert json.loads((out / "data.json").read_text())["finished"] is False
    assert len(list(out.glob(".work/*/*.npy"))) == 4
    assert named(build_glyphs(out)) == EXPECTED
    assert not (out / ".work").exists()
