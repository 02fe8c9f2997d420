import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from frontrank.samples.folder import Source, begun, finished, started, unfinished

from frontrank.data.table import ImageTable, read_table
from frontrank.packages import Package
from frontrank.samples import folder as module
from tests.data.files import refusal
from tests.data.test_image_table import same

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
    with begun(folder, settings):
        draw(folder)
        return finished(folder, table_in(folder), settings, SOURCES, [NAMES], "Drawn by hand.")


def draw(folder):
    for path in table_in(folder).files():
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_bytes(b"drawn")


@pytest.mark.parametrize("there", [False, True], ids=["new", "empty"])
def test_a_folder_from_begin_to_end(tmp_path, there):
    out = tmp_path / "deep" / "out"
    if there:
        out.mkdir(parents=True)
    assert started(out, SETTINGS) is None
    assert out.exists() == there  # nothing is written before it has to be
    with begun(out, SETTINGS):
        assert json.loads((out / "data.json").read_text()) == {
            "format": "frontrank.data.1",
            "finished": False,
            "settings": SETTINGS,
        }
    assert started(out, SETTINGS) is None  # to be gone on with
    table = built(out)
    same(table, read_table(out / "images.csv"))
    assert table.name == "boxes"
    for again in (table, started(str(out), SETTINGS), read_table(out / "images.csv")):
        assert again.paths.tolist() == table_in(out).paths.tolist()
        assert again.labels.tolist() == ["a", "a", "b"]
        assert again.splits.tolist() == ["train", "train", "test"]
        assert again.extra["licence"].tolist() == ["CC-BY-4.0", "MIT", "CC-BY-4.0"]
        assert again.root == out
    assert sorted(path.name for path in out.iterdir()) == ["LICENCES.md", "data.json", "images", "images.csv"]


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
    if done:
        built(out)
    else:
        with begun(out, SETTINGS):
            draw(out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    other = {**SETTINGS, "size": 16}
    how = "is built with" if done else "was begun with"
    refusal(lambda: started(out, other), f"out {how} size 8 (not 16); give another folder, or delete it")
    refusal(lambda: begun(out, other).__enter__(), f"out {how} size 8 (not 16)")
    refusal(lambda: started(out, {**SETTINGS, "data": "emoji"}), "data boxes (not emoji)")
    refusal(lambda: started(out, {**SETTINGS, "like": "sop"}), "like null (not sop)")
    refusal(
        lambda: started(out, {"data": "boxes", "size": 8, "classes": ["a" * 99]}), 'classes null (not ["aaa', "...)"
    )
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_settings_that_drew_nothing_bind_nobody(tmp_path):
    """A call that was refused, or could not fetch: the next may ask for something else."""
    out, other = tmp_path / "out", {**SETTINGS, "size": 16}
    with begun(out, SETTINGS):
        (out / ".work").mkdir()
        (out / ".work" / "of-size-8").touch()
    with begun(out, SETTINGS):
        assert (out / ".work" / "of-size-8").exists()
    assert started(out, other) is None
    with begun(out, other):
        assert json.loads((out / "data.json").read_text())["settings"] == other
        assert not (out / ".work").exists()
    built(out)


def test_what_a_killed_build_left(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / ".data.json.123").write_text("{")  # killed in its first moment
    built(out)
    assert not (out / ".data.json.123").exists()
    for name in (".data.json.1", ".images.csv.2", ".LICENCES.md.3"):
        (out / name).touch()
    with begun(out, SETTINGS):
        assert not list(out.glob(".*"))


def test_a_state_that_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    def full(self, text, encoding):
        self.touch()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        refusal(
            lambda: begun(tmp_path / "out", SETTINGS).__enter__(), "out cannot be used (No space", "make room there"
        )
    assert list((tmp_path / "out").iterdir()) == []


def test_two_at_once(tmp_path, monkeypatch):
    """The second is refused, whatever it asks for; unless the first is about to end."""
    out, other = tmp_path / "out", {**SETTINGS, "size": 16}  # though nothing is drawn yet
    with ThreadPoolExecutor(1) as pool:
        with begun(out, SETTINGS):
            monkeypatch.setattr(module, "_PATIENCE", 0.1)
            for settings in (SETTINGS, other):
                entering = begun(out, settings)
                refusal(entering.__enter__, "out is being built by another process; wait for its end")
            assert json.loads((out / "data.json").read_text())["settings"] == SETTINGS
            monkeypatch.setattr(module, "_PATIENCE", 60.0)
            waiting = pool.submit(built, out)
        assert len(waiting.result()) == 3


@pytest.mark.parametrize("name", ["a", 'a "b"', "a, b", "a\nb", "水", "long" * 40])
def test_the_table_is_read_as_any_other(tmp_path, name):
    """Whether quickly or not, and names may be anything."""
    out = tmp_path / "out"
    with begun(out, SETTINGS):
        draw(out)
        table = table_in(out)
        table.extra["name"] = np.array([name, "", "c"])
        finished(out, table, SETTINGS, SOURCES)
    again = started(out, SETTINGS)
    same(again, read_table(out / "images.csv"))
    assert again.extra["name"].tolist() == [name, "", "c"]
    assert again.extra["name"].dtype == read_table(out / "images.csv").extra["name"].dtype
    assert (again.name, again.root) == ("boxes", out)


def test_a_table_that_was_changed(tmp_path):
    """Rows that somebody took out are not put back without asking, nor is another set taken for this one."""
    built(tmp_path / "out")
    path = tmp_path / "out" / "images.csv"
    text = path.read_bytes()
    path.write_bytes(text[: text.rindex(b"images/")])
    refusal(lambda: started(tmp_path / "out", SETTINGS), "images.csv is not as it was written; delete it, and run this")
    path.write_bytes(text)
    assert len(started(tmp_path / "out", SETTINGS)) == 3


@pytest.mark.parametrize(
    "lose", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")], ids=["gone", "empty"]
)
def test_a_picture_that_was_lost(tmp_path, lose):
    built(tmp_path / "out")
    lose(tmp_path / "out" / "images" / "a-round.png")
    assert started(tmp_path / "out", SETTINGS) is None
    assert len(built(tmp_path / "out")) == 3


def test_the_command_that_goes_on(tmp_path):
    out = tmp_path / "a b"
    settings = {"data": "x", "like": None, "any_version": True, "tones": False, "names": ["p", "q"], "size": 8}
    assert unfinished(out) is None
    with begun(out, settings):
        draw(out)
        assert unfinished(out) == f"frontrank data x '{out}' --any-version --names p,q --size 8"
        finished(out, table_in(out), settings, SOURCES)
    assert unfinished(out) is None
    (out / "images.csv").unlink()
    assert unfinished(out) == f"frontrank data x '{out}' --any-version --names p,q --size 8"


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
    refusal(lambda: begun(tmp_path / "file" / "below", SETTINGS).__enter__(), "below cannot be used (", "give another")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    refusal(lambda: started(tmp_path / "link", SETTINGS), "link")
    assert (tmp_path / "file").read_text() == "mine"


def test_no_room(tmp_path, monkeypatch):
    with begun(tmp_path / "out", SETTINGS):
        draw(tmp_path / "out")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    refusal(lambda: finished(tmp_path / "out", table_in(tmp_path / "out"), SETTINGS, SOURCES), "No space left", "room")
    monkeypatch.undo()
    assert started(tmp_path / "out", SETTINGS) is None
