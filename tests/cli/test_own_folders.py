"""Folders as users have them: two classes, an image per class, fifty thousand files; from training to the report."""

import os

import numpy as np
import pytest
from PIL import Image

import frontrank as fr
from tests.cli.images import TINY, picture


def many(root, classes, each, pictures=20):
    """Files of a few pictures under many names: what matters here is how many there are."""
    originals = []
    for seed in range(pictures):
        path = root.parent / "originals" / f"{seed}.png"
        picture(path, seed, 10 * seed, side=16)
        originals.append(path)
    for number in range(classes):
        folder = root / f"class {number:05d}"
        folder.mkdir(parents=True)
        for i in range(each):
            os.link(originals[number % pictures], folder / f"{i}.png")
    return root


def of_classes(root, counts):
    """Pictures of a colour per class."""
    for number, (name, count) in enumerate(counts.items()):
        for i in range(count):
            picture(root / name / f"{i}.png", 100 * number + i, 60 * number + 40)
    return root


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_two_classes_train_without_held_out_ones_and_say_how(here, run):
    of_classes(here / "photos", {"cats": 6, "dogs": 5})
    refused = run("train", "--data", "photos", *TINY, "--out", "first", "--quiet")
    assert refused.status == 2
    assert "data.validation" in refused.err
    trained = run("train", "--data", "photos", *TINY, "--data.validation", 0, "--out", "first", "--quiet")
    assert trained.status == 0, trained.err
    assert "no held-out classes" in trained.out
    reported = run("report", "first", "--data", "photos", "--quiet")
    assert reported.status == 0, reported.err
    assert "11 of the 11 images were trained on" in (here / "first/report.html").read_text()


@pytest.mark.parametrize("command", ["train", "compare"])
def test_an_image_per_class_is_refused(here, run, command):
    of_classes(here / "photos", {f"bird {i}": 1 for i in range(12)})
    found = run(command, "--data", "photos", *TINY, "--out", "first")
    assert found.status == 2
    assert len(found.err.splitlines()) == 1
    assert "class" in found.err
    assert "two images" in found.err or "at least 2" in found.err
    assert not (here / "first").exists()


def test_an_image_per_class_among_others_is_trained_around(here, run):
    of_classes(here / "photos", {**{f"bird {i}": 4 for i in range(12)}, **{f"rare {i}": 1 for i in range(5)}})
    assert run("train", "--data", "photos", *TINY, "--out", "first", "--quiet").status == 0
    assert run("report", "first", "--quiet").status == 0


@pytest.mark.slow
def test_fifty_thousand_files(here, run):
    many(here / "photos", 5_000, 10)
    checked = run("data", "check", "photos", "--quick")
    assert checked.status == 0, checked.err
    assert "all 50,000 images can be read" in checked.out
    settings = ["--data.check", "quick", "--data.validation", "0.01", "--data.test", "0.04"]
    words = [word for word in TINY if word not in ("--data.validation", "0.34")]
    trained = run("train", "--data", "photos", *words, *settings, "--out", "first", "--quiet")
    assert trained.status == 0, trained.err
    table = fr.data.read_table("first/images.csv")
    assert len(table) == 50_000
    assert len(table.of("test")) == 2_000
    reported = run("report", "first", "--quiet")
    assert reported.status == 0, reported.err
    assert (here / "first/report.html").stat().st_size < 5_000_000
    with Image.open(here / "photos/class 00000/0.png") as image:
        assert np.asarray(image).shape == (16, 16, 3)
