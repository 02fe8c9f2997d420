"""What all studies do alike: run into a folder, write files, refuse wrong ones, say a verdict."""

import json
import re
from dataclasses import replace

import pytest

from frontrank.errors import InputError
from studies import study_named
from studies.study import AGREES, AGREES_IN_PART, DOES_NOT_AGREE, Effort, read_results, run_study, verdict
from tests.studies.samples import RESULTS, STUB


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_study_writes_results_figures_and_page(tmp_path):
    out, study = tmp_path / "deep" / "out", replace(STUB, draw=study_named(STUB.name).draw)
    page = run_study(study, out, Effort(out / "work", quick=True, seed=4), "python -m studies x")
    saved = read_results(out / "results.json", STUB.name)
    assert (saved["found"], saved["quick"], saved["seed"]) == (RESULTS, True, 4)
    assert set(files(out)) == {"results.json", "README.md", "indicator.svg", "indicator.png"}
    assert page.read_text(encoding="utf-8").startswith(f"# {STUB.title}\n\n*Smooth-AP, Fig. 2.*")


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


def test_the_verdict_on_several_claims():
    assert verdict([True, True]) == AGREES
    assert verdict([True, False]) == AGREES_IN_PART
    assert verdict([False]) == DOES_NOT_AGREE
    with pytest.raises(ValueError, match="claim"):
        verdict([])
