"""`frontrank data`: what `check` counts, reports and saves; what the builders of data sets get and print."""

import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import frontrank as fr
from frontrank.samples import emoji, glyphs, scenes
from tests.cli.images import EACH, TEST, TINY, TRAIN, published
from tests.samples import fake_emoji

ALL = (len(TRAIN) + len(TEST)) * EACH


# check


@pytest.fixture
def check(here, run):
    return lambda *words, **ends: run("data", "check", *words, **ends)


def test_broken_images_are_all_listed(check, here):
    whole = here / "my_photos" / "test" / "cup" / "1.png"
    (here / "my_photos" / "train" / "line\nbreak" / "0.png").write_bytes(b"no picture")
    whole.write_bytes(whole.read_bytes()[:-900])
    result = check("my_photos", "--save", "good.csv")
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert f"2 of {ALL} images" in result.err
    lines = [line.split(".png")[0] for line in result.out.splitlines() if line.startswith("broken: ")]
    assert lines == ["broken: test/cup/1", r"broken: 'train/line\nbreak/0"]
    table = fr.data.read_table("good.csv")
    assert len(table) == ALL - 2
    assert all(Path(file).is_file() for file in table.files())
    assert check("my_photos", "--quick").out.count("\nbroken: ") == 1  # which reads headers only


def test_leakage(check, here):
    """A copy, stored larger, and a file under two labels."""
    copy = np.zeros((32, 32, 3), np.uint8)
    copy[:, 16:], copy[20:] = 200, 90
    for name, side in (("train/it's/0.png", 32), ("test/cup/0.png", 64)):
        Image.fromarray(copy).resize((side, side), Image.Resampling.NEAREST).save(here / "my_photos" / name)
    shutil.copy("my_photos/train/#5/1.png", "my_photos/train/-x/1.png")
    Image.new("RGB", (32, 32), "red").save("my_photos/test/plate/3.png")
    result = check("my_photos", "--leakage", status=0)
    lines = result.out.splitlines()[3:]
    assert [line.rpartition(" ")[2] for line in lines[::3]] == ["1", "1"]  # near-duplicates, files of two labels
    assert lines[1].split("  ")[1:3] == ["train/it's/0.png", "test/cup/0.png"]
    assert lines[2].startswith("1 images are")  # too plain
    assert lines[4].split() == ["train/#5/1.png", "train/-x/1.png"]


@pytest.mark.training
def test_a_saved_table_can_be_trained_on(check, here, run):
    (here / "lists").mkdir()
    assert check("my_photos", "--save", "lists/photos.parquet").status == 0
    assert run("train", "--data", "lists/photos.parquet", *TINY, "--quiet", "--out", "run").status == 0
    assert len(fr.data.read_table("run/images.csv")) == ALL
    rows = [line.split()[:3] for line in check("lists/photos.parquet").out.splitlines()[1:3]]
    assert rows == [["train", "24", "6"], ["test", "12", "3"]]


@pytest.mark.parametrize("name", ["vehicleid", "ijb-c", "roxford5k"])
def test_published_data_sets(check, here, name):
    published(name, here / "set")
    assert check("set").status == 2  # it is not complete
    result = check("set", "--allow-partial", "--layout", name)
    if name == "roxford5k":  # its pictures are smaller here than the boxes of its queries
        assert (result.status, "broken: " in result.out) == (2, True)
    else:
        assert result.status == 0
    result = check("set", "--allow-partial", "--save", "set.csv")
    if name == "vehicleid":
        assert len(fr.data.read_table("set.csv")) == 8
    else:  # a frame is in several rows, or labels do not show what is relevant
        assert (result.status, Path("set.csv").exists()) == (2, False)
        assert "--save" in result.err


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("nowhere", "nowhere"),
        ("my_photos --workers 0", "--workers"),
        ("my_photos --layout sopp", "sop?"),
        ("my_photos/train --leakage", "--leakage"),
        ("my_photos --save mine.csv", "--save mine.csv"),
    ],
)
def test_refusals_of_check(here, refused, monkeypatch, words, name):
    monkeypatch.setattr("frontrank.data.check_images", lambda *_, **__: pytest.fail("it reads before it refuses"))
    (here / "mine.csv").write_text("mine")
    refused(["data", "check", *words.split()], name)


# emoji, glyphs, emoji-scenes


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """An empty folder, and small packages of emoji."""
    originals = fake_emoji.write_archives(tmp_path / "packages")
    monkeypatch.setattr(emoji, "fetch", lambda packages, show=None: [originals[package] for package in packages])
    monkeypatch.setattr(emoji, "COUNTS", {})
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.mark.training
def test_emoji_are_built_and_trained_on(packages, run):
    result = run("data", "emoji", "my emoji")
    assert (result.status, result.err) == (0, "")
    table = fr.data.read_table("my emoji/images.csv")
    assert result.out.startswith(f"{table.describe()}\n\n")
    assert "my emoji/LICENCES.md" in result.out
    again = run("data", "emoji", "my emoji")
    assert (again.out, again.err) == (result.out, "")
    words = shlex.split(result.out.splitlines()[-1])
    assert words[:2] == ["next:", "frontrank"]
    words = words[2 : words.index("--backbone")] + words[words.index("--out") :]  # a small network instead
    assert run(*words, *TINY, "--quiet").status == 0
    assert Path("runs/first/model").is_dir()
    shutil.move("my emoji", "moved")
    assert run("data", "check", "moved").status == 0


def test_options_of_emoji(packages, run):
    words = ("data", "emoji", "out", "--classes", 4, "--size", 20)
    assert run(*words, "--skin-tones").status == 0
    table = fr.data.read_table("out/images.csv")
    assert len(set(table.labels)) == 4
    assert fr.data.read_image(table.files()[0]).size == (20, 20)
    assert "skin_tones" in run(*words).err  # it is built with other settings


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("glyphs-sop --like sop", {"like": "sop"}),
        ("few --classes 100 --typefaces ' small'", {"classes": 100, "typefaces": "small"}),
        ("few --typefaces 'uming, ukai ,'", {"typefaces": ["uming", "ukai"]}),
        ("few --size 20 --any-version", {"size": 20, "any_version": True}),
    ],
)
def test_options_of_glyphs(tmp_path, run, monkeypatch, words, settings):
    calls, table = [], fr.ImageTable(tmp_path, ["a/1.png"], ["a"], [""], ["test"], [""])
    monkeypatch.setattr(glyphs, "build_glyphs", lambda out, **options: calls.append((out, options)) or table)
    result = run("data", "glyphs", *shlex.split(words))
    assert calls == [(words.split()[0], {"any_version": False, **settings})]
    assert f"next: frontrank train --data {words.split()[0]} " in result.out


def test_options_of_scenes(run, monkeypatch):
    calls, counts = [], ((2000, 500), (6856, 1767), (173, 45))
    counts = scenes.SceneCounts(*({"train": train, "test": test} for train, test in counts))
    monkeypatch.setattr(scenes, "build_emoji_scenes", lambda out, **options: calls.append((out, options)) or counts)
    result = run("data", "emoji-scenes", "my scenes")
    assert "train   2,000    6,856        173" in result.out
    assert result.out.endswith(" --data 'my scenes'\n")
    assert run("data", "emoji-scenes", "out", "--scenes", "40", "--size", "96", "--seed", "3").status == 0
    assert calls == [("my scenes", {}), ("out", {"scenes": 40, "size": 96, "seed": 3})]
