import json
from pathlib import Path

import numpy as np
import pytest

from frontrank.data.built import Source, finished, started
from frontrank.data.folders import read_table
from frontrank.data.image_table import ImageTable
from frontrank.packages import Package
from tests.data.files import refusal

SETTINGS = {"data": "boxes", "size": 8, "classes": None}
ART, NAMES = Package("npm", "@art/boxes", "1.2", "a" * 64, 1.5), Package("apt", "names", "3-1", "b" * 64, 2)
SOURCES = [Source("round", ART, "MIT"), Source("flat", ART, "CC-BY-4.0")]


def table_in(folder):
    paths = ["images/a-flat.png", "images/a-round.png", "images/b-flat.png"]
    extra = {"design": np.array(["flat", "round", "flat"]), "licence": np.array(["CC-BY-4.0", "MIT", "CC-BY-4.0"])}
    return ImageTable(
        Path(folder), np.array(paths), list("aab"), ["x"] * 3, ["train", "train", "test"], [""] * 3, extra
    )


def built(folder, settings=SETTINGS):
    assert started(folder, settings) is None
    return finished(folder, table_in(folder), settings, SOURCES, [NAMES], "Drawn by hand.")


@pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
def test_a_folder_from_begin_to_end(tmp_path, there):
    out = tmp_path / "deep" / "out"
    if there:
        out.mkdir(parents=True)
    assert started(out, SETTINGS) is None
    assert json.loads((out / "data.json").read_text()) == {
        "format": "frontrank.data.1",
        "finished": False,
        "settings": SETTINGS,
    }
    assert started(out, SETTINGS) is None  # to be gone on with
    table = built(out)
    assert table.name == "boxes"
    for again in (table, started(str(out), SETTINGS), read_table(out / "images.csv")):
        assert again.paths.tolist() == table_in(out).paths.tolist()
        assert again.labels.tolist() == ["a", "a", "b"]
        assert again.splits.tolist() == ["train", "train", "test"]
        assert again.extra["licence"].tolist() == ["CC-BY-4.0", "MIT", "CC-BY-4.0"]
        assert again.root == out
    assert sorted(path.name for path in out.iterdir()) == ["LICENCES.md", "data.json", "images.csv"]


def test_what_a_finished_folder_says(tmp_path):
    built(tmp_path / "out")
    state = json.loads((tmp_path / "out" / "data.json").read_text())
    assert state["finished"] is True
    assert state["settings"] == SETTINGS
    assert [(row["split"], row["classes"], row["images"]) for row in state["counts"]] == [
        ("train", 1, 2),
        ("test", 1, 1),
    ]
    assert state["packages"] == [
        {"client": "npm", "name": "@art/boxes", "version": "1.2", "sha256": "a" * 64},
        {"client": "apt", "name": "names", "version": "3-1", "sha256": "b" * 64},
    ]


def test_the_licences(tmp_path):
    built(tmp_path / "out")
    text = (tmp_path / "out" / "LICENCES.md").read_text()
    assert text.startswith("# Licences of the boxes pictures\n")
    assert "\nDrawn by hand.\n" in text
    assert "| flat | @art/boxes 1.2 (npm) | CC-BY-4.0 | 2 |\n| round | @art/boxes 1.2 (npm) | MIT | 1 |\n" in text
    assert "\nnames 3-1 (apt) brought" in text


def test_a_table_that_went_away_is_built_again(tmp_path):
    built(tmp_path / "out")
    (tmp_path / "out" / "images.csv").unlink()
    assert started(tmp_path / "out", SETTINGS) is None
    assert len(built(tmp_path / "out")) == 3


@pytest.mark.parametrize("done", [False, True], ids=["begun", "finished"])
def test_other_settings(tmp_path, done):
    out = tmp_path / "out"
    built(out) if done else started(out, SETTINGS)
    before = {path: path.read_bytes() for path in out.iterdir()}
    refusal(lambda: started(out, {**SETTINGS, "size": 16}), "out is built with size 8 (not 16); give another folder")
    refusal(lambda: started(out, {**SETTINGS, "data": "emoji"}), "data boxes (not emoji)")
    refusal(lambda: started(out, {**SETTINGS, "like": "sop"}), "like null (not sop)")
    refusal(
        lambda: started(out, {"data": "boxes", "size": 8, "classes": ["a" * 99]}), 'classes null (not ["aaa', "...)"
    )
    assert {path: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize(
    "files",
    [
        {"holiday.jpg": "x"},
        {".hidden": ""},
        {"data.json": "{}"},
        {"data.json": "[1"},
        {"data.json": '"text"'},
        {"data.json": '{"format": "frontrank.data.1", "settings": 3, "finished": true}'},
        {"data.json": '{"format": "another", "settings": {}, "finished": true}'},
        {"data.json": '{"format": "frontrank.data.1", "settings": {}}'},
    ],
    ids=["picture", "hidden", "empty", "cut", "text", "settings", "format", "unfinished"],
)
def test_a_folder_of_something_else(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    refusal(lambda: started(tmp_path, SETTINGS), "holds something else; give a new folder")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files


def test_no_folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    refusal(lambda: started(tmp_path / "file", SETTINGS), "file is a file; give a new folder")
    refusal(lambda: started(tmp_path / "file" / "below", SETTINGS), "below cannot be used (")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    refusal(lambda: started(tmp_path / "link", SETTINGS), "link")
    assert (tmp_path / "file").read_text() == "mine"


def test_no_room(tmp_path, monkeypatch):
    started(tmp_path / "out", SETTINGS)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    refusal(lambda: finished(tmp_path / "out", table_in(tmp_path / "out"), SETTINGS, SOURCES), "No space left", "room")
    monkeypatch.undo()
    assert started(tmp_path / "out", SETTINGS) is None
