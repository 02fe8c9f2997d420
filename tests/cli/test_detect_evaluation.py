"""`frontrank detect evaluate` and `predict` with a small detector, on scenes of three classes."""

import argparse
import json
import warnings

import numpy as np
import pytest
import torch

from frontrank.cli.detect_options import add_evaluate_arguments, add_predict_arguments, run_evaluate, run_predict
from frontrank.detection.evaluation import DetectionReport
from frontrank.detection.model import Detector, DetectorSettings
from frontrank.errors import InputError
from frontrank.settings import as_yaml
from tests.detection.scenes import write_voc

CLASSES = ("cat", "dog", "elk")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A detector that knows nothing, and scenes of it."""
    folder = tmp_path_factory.mktemp("detect")
    torch.manual_seed(0)
    small = {"channels": 8, "head_dim": 8, "proposals": 20, "proposals_test": 10, "samples": 8, "score_threshold": 0.0}
    detector = Detector.build(DetectorSettings(CLASSES, "small", "train", short_side=64, long_side=64, **small))
    detector.save(folder / "model")
    rng = np.random.default_rng(0)
    pictures = {}
    for number in range(6):
        left, top = (int(edge) for edge in rng.integers(1, 30, 2))
        pictures[f"{number}"] = [(CLASSES[number % 2], (left, top, left + 20, top + 20), 0)]
    names = list(pictures)
    write_voc(folder / "scenes", pictures, {"trainval": names[:2], "test": names[2:]}, size=(64, 64))
    return folder


def call(words, command="evaluate"):
    add, run = {"evaluate": (add_evaluate_arguments, run_evaluate), "predict": (add_predict_arguments, run_predict)}[
        command
    ]
    parser = argparse.ArgumentParser()
    add(parser)
    options = parser.parse_args(
        [*map(str, words), "--device", "cpu", *(["--workers", "0"] if command == "evaluate" else [])]
    )
    run(options)


def test_evaluate(place, tmp_path, capsys):
    words = [place / "model", "--data", place / "scenes", "--json", tmp_path / "ap.json", "--page", tmp_path / "p.html"]
    call(words)
    said = capsys.readouterr()
    assert "model on scenes" in said.out
    assert "4 pictures, 4 objects; in percent" in said.out
    assert "not in the means: elk" in said.out
    assert f"report: {tmp_path / 'p.html'}" in said.out
    report = DetectionReport.load(tmp_path / "ap.json")
    assert list(report.per_class) == list(CLASSES)
    assert report.pictures == 4
    assert "Frontrank" in (tmp_path / "p.html").read_text()
    with pytest.raises(InputError, match=r"--json .*ap.json exists already; choose another name, or add --force"):
        call(words)
    call([*words, "--force", "--quiet", "--table", "markdown"])
    assert "| class" in capsys.readouterr().out


def test_evaluate_a_run(place, tmp_path, capsys):
    """The data of a run are known, and the pictures it trained on."""
    from frontrank.detection.settings import DetectConfig, SceneConfig

    run = tmp_path / "run"
    Detector.load(place / "model").save(run / "model")
    (run / "config.yaml").write_text(as_yaml(DetectConfig(data=SceneConfig(path=str(place / "scenes")))))
    lines = [{"step": step, "epoch": 1, "time": 0.0, "loss": 1 / step, "classifier": 0.5} for step in (1, 2, 3)]
    (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    seen, held_out = (place / f"scenes/JPEGImages/{name}.jpg" for name in (2, 3))
    (run / "scenes.csv").write_text(f"path,split\n{seen},train\n{held_out},validation\n")
    call([run, "--page", run / "report.html", "--json", tmp_path / "ap.json", "--quiet"])
    said = capsys.readouterr()
    assert "run on scenes" in said.out
    notes = [
        "1 of the 4 pictures were trained on: the figures are too good",
        "1 of the 4 pictures are held-out pictures, which also chose the checkpoint: the figures may be too good",
    ]
    assert said.err == "".join(f"note: {note}\n" for note in notes)  # although it is to be quiet
    assert DetectionReport.load(tmp_path / "ap.json").notes == tuple(notes)
    page = (run / "report.html").read_text()
    assert "RaMBO on scenes" in page
    assert "Parts of the loss" in page
    assert "too good" in page
    call([run, "--page", run / "report.html"])  # a report may replace a report


@pytest.fixture
def one_file(place, tmp_path):
    """A run on a single JSON file of COCO, and a function that says which pictures it held out."""
    from frontrank.detection.settings import DetectConfig, SceneConfig

    pictures = sorted((place / "scenes/JPEGImages").iterdir())
    content = {
        "images": [{"id": number, "file_name": str(path)} for number, path in enumerate(pictures)],
        "annotations": [
            {"image_id": number, "category_id": 1, "bbox": [9, 9, 20, 20]} for number, _ in enumerate(pictures)
        ],
        "categories": [{"id": 1, "name": "cat"}],
    }
    (tmp_path / "mine.json").write_text(json.dumps(content))
    run = tmp_path / "run"
    Detector.load(place / "model").save(run / "model")
    data = SceneConfig(path=str(tmp_path / "mine.json"), workers=0)
    (run / "config.yaml").write_text(as_yaml(DetectConfig(data=data)))
    (run / "run.json").write_text(json.dumps({"kind": "detection"}))

    def hold_out(count):
        rows = [f"{path},{'validation' if row < count else 'train'}\n" for row, path in enumerate(pictures)]
        (run / "scenes.csv").write_text("path,split\n" + "".join(rows))
        return run

    return hold_out


def test_a_run_on_one_file_is_evaluated_on_what_it_held_out(one_file, capsys):
    """A file has no splits: as a whole it is what was trained on."""
    call([one_file(2)])
    said = capsys.readouterr()
    assert "2 pictures, 2 objects; in percent" in said.out
    assert said.err.startswith("note: 2 of the 2 pictures are held-out pictures, which also chose the checkpoint")
    call([one_file(2), "--split", "train"])
    said = capsys.readouterr()
    assert "6 pictures, 6 objects; in percent" in said.out
    assert "note: 4 of the 6 pictures were trained on" in said.err


def test_a_run_on_all_of_one_file_is_refused(one_file, tmp_path, capsys):
    run = one_file(0)
    with pytest.raises(InputError, match=r"mine.json"):
        call([run])
    call([run, "--split", "train"])
    assert "note: 6 of the 6 pictures were trained on: the figures are too good" in capsys.readouterr().err
    call([run, "--data", tmp_path / "mine.json"])
    assert "note: 6 of the 6 pictures were trained on" in capsys.readouterr().err


def test_report_of_a_run(one_file, run):
    """`frontrank report` writes the page of a detector as well."""
    folder = one_file(2)
    found = run("report", folder, "--device", "cpu")
    assert found.status == 0, found.err
    assert found.err.startswith("note: 2 of the 2 pictures are held-out pictures")
    assert "2 pictures, 2 objects; in percent" in found.out
    assert found.out.endswith(f"report: {folder / 'report.html'}    open it in a browser\n")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "RaMBO on mine" in page
    assert f"frontrank detect evaluate {folder}\n" in page or f"frontrank detect evaluate {folder}<" in page
    again = run("report", folder, "--no-before")
    assert again.status == 2
    assert "--no-before is of a model that ranks" in again.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["{place}/model"], "does not say which pictures it is for; give --data"),
        (["{place}/none", "--data", "{place}/scenes"], "none is not there"),
        (["{place}/model", "--data", "{place}/none"], "none is not there; give the folder of a data set"),
        (["{place}/model", "--data", "{place}/scenes", "--json", "ap.txt"], "--json ap.txt must end in .json"),
        (["{place}/model", "--data", "{place}/scenes", "--json", "{place}/no/ap.json"], "the folder .*no is not there"),
        (["{place}/model", "--data", "{place}/scenes", "--batch", "0"], "--batch must be at least 1, got 0"),
        (["{place}/model", "--data", "{place}/scenes", "--layout", "voc07"], "has no VOC2007"),
    ],
)
def test_what_is_refused(place, words, said):
    with pytest.raises(InputError, match=said):
        call([word.format(place=place) for word in words])


def test_a_run_without_a_detector(place, tmp_path):
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(InputError, match="detect train --resume"):
        call([tmp_path])


def test_classes_the_detector_does_not_know(place, tmp_path):
    write_voc(tmp_path / "gnus", {"a": [("gnu", (1, 1, 9, 9), 0)]}, {"train": ["a"], "test": ["a"]})
    with pytest.raises(InputError, match="gnus has objects of gnu, not known here; give data of cat, dog, elk"):
        call([place / "model", "--data", tmp_path / "gnus"])


def test_a_page_that_is_somebody_elses(place, tmp_path):
    (tmp_path / "p.html").write_text("mine")
    with pytest.raises(InputError, match="is no report of Frontrank"):
        call([place / "model", "--data", place / "scenes", "--page", tmp_path / "p.html"])
    assert (tmp_path / "p.html").read_text() == "mine"


def test_predict(place, tmp_path, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call([place / "model", place / "scenes/JPEGImages", "--out", tmp_path / "out", "--score", "0"], "predict")
    said = capsys.readouterr()
    rows = json.loads((tmp_path / "out/detections.json").read_text())
    assert f"{len(rows):,} boxes in 6 pictures: {tmp_path / 'out/detections.json'}" in said.out
    assert len(list((tmp_path / "out/drawn").iterdir())) == 6
    assert {row["category"] for row in rows} <= set(CLASSES)
    with pytest.raises(InputError, match="is not empty"):
        call([place / "model", place / "scenes/JPEGImages", "--out", tmp_path / "out"], "predict")
    with pytest.raises(InputError, match="--score must be at least 0 and at most 1, got 2"):
        call([place / "model", "a.jpg", "--out", tmp_path / "other", "--score", "2"], "predict")
