"""What all studies do alike: they run into a folder and refuse wrong ones; a whole run is tested with the command."""

import json
import re
from dataclasses import replace

import pytest

from frontrank.errors import InputError
from studies.study import Effort, read_results, run_study
from tests.studies.samples import STUB


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize(
    ("folders", "others"), [([], ["mine.txt"]), (["work"], ["README.md"]), ([], ["results.json"])], ids=str
)
def test_files_of_the_user_are_left_alone(tmp_path, folders, others):
    for name in folders:
        (tmp_path / name).mkdir()
    for name in others:
        (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match=re.escape(str(tmp_path))):
        run_study(STUB, tmp_path, Effort(tmp_path / "work"), "x")
    assert {path.name for path in tmp_path.iterdir()} == {*folders, *others}
    assert files(tmp_path) == dict.fromkeys(others, b"mine")


def test_empty_folders_of_a_study_are_removed(tmp_path):
    """Nested ones, too; what has a file in it stays, and so does what existed before."""
    (tmp_path / "out" / "work" / "mine").mkdir(parents=True)

    def refuse(effort):
        assert effort.work.parent.is_dir()  # a folder that cannot be written to is refused before any work
        (effort.work / "epochs" / "deep").mkdir(parents=True)
        (effort.work / "kept" / "empty").mkdir(parents=True)
        (effort.work / "kept" / "run.json").write_text("{}")
        raise InputError("--data is wrong")

    for name, expected in (("out", {"mine", "kept", "kept/run.json"}), ("new", {"kept", "kept/run.json"})):
        out = tmp_path / name
        with pytest.raises(InputError, match="--data"):
            run_study(replace(STUB, measure=refuse), out, Effort(out / "work"), "x")
        assert {path.relative_to(out / "work").as_posix() for path in (out / "work").rglob("*")} == expected


def test_a_folder_that_cannot_be_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(InputError, match="--out"):
        run_study(STUB, tmp_path, Effort(tmp_path / "work"), "x")


@pytest.mark.parametrize(
    "content",
    [None, b"no JSON", b"[]", json.dumps({"study": STUB.name}).encode(), b"\xff\xfe\x00"],
    ids=["nothing", "no JSON", "a list", "half", "bytes"],
)
def test_results_that_cannot_be_read(content, tmp_path):
    path = tmp_path / "results.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"results\.json"):
        read_results(path, STUB.name)
