"""`frontrank detect`: train, evaluate and predict with a small detector, and what they refuse."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch

from frontrank.cli import detect as command
from frontrank.cli import parse
from frontrank.detection import Detector, DetectorSettings
from frontrank.detection.evaluation import DetectionReport
from frontrank.detection.settings import DetectConfig, SceneConfig
from frontrank.settings import as_yaml, read_config, read_recipe, recipe_names, settings
from tests.cli.conftest import examples, listing
from tests.detection.runs import draw_scenes
from tests.detection.scenes import write_voc

CLASSES = ("cat", "dog", "elk")
TINY = shlex.split(
    "--backbone small --weights none --model.channels 16 --model.head_dim 16 --model.anchor_scale 4 "
    "--model.proposals 40 --model.proposals_test 30 --model.samples 16 --data.short_side 48 --data.long_side 64 "
    "--data.workers 0 --batch 4 --iterations 2 --device cpu"
)


# train


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return draw_scenes(tmp_path_factory.mktemp("drawn"))


@pytest.fixture
def here(drawn, tmp_path, monkeypatch):
    """A current folder with scenes in it."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "scenes").symlink_to(drawn)
    monkeypatch.chdir(folder)
    return folder


def test_help_names_every_setting_and_its_examples_name_recipes(run):
    text = run("detect", "train", "--help").out
    names = [name for name in settings(DetectConfig) if name not in ("data.path", "data.allow_partial")]
    assert [name for name in names if f"--{name} " not in text] == []
    recipes = [parse(words)[1].recipe for words in examples(command._train.__doc__)]
    assert {recipe for recipe in recipes if recipe} <= {*recipe_names(DetectConfig)}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("--loss.name AP", "loss.name"),
        ("--weights package", "weights"),
        ("--out scenes --dry-run", "--out scenes"),
        ("--recipe pnp-sop", "pnp-sop"),
    ],
)
def test_refusals_of_train(here, refused, words, name):
    given = words.split(" ")
    small = [word for pair in zip(TINY[::2], TINY[1::2], strict=True) if pair[0] not in given for word in pair]
    refused(["detect", "train", "--data", "scenes", *small, *given], name)


def test_dry_run_prints_the_plan_and_writes_nothing(here, run):
    before = listing()
    result = run("detect", "train", "--data", "scenes", *TINY, "--dry-run", "--data.validation", "0.25", status=0)
    assert listing() == before
    text, _, recipe = result.out.partition("settings, as a recipe:\n\n")
    lines = dict(line.split(None, 1) for line in text.splitlines() if line[:1].isalpha() and "  " in line)
    assert re.search("9 .*train.* 3 held out", text)
    assert lines["batches"].startswith("4 pictures each, 2 ")
    assert "ProposalAP(" in lines["loss"]
    assert "1,536 scores" in lines["lists"]  # 4 pictures x 16 proposals x 3 classes, and seven such batches
    assert lines["out"].startswith("runs/")
    (here / "plan.yaml").write_text(recipe)
    config = read_config(read_recipe(here / "plan.yaml", DetectConfig), None, DetectConfig)
    assert (config.batch, config.data.validation, config.model.batch_norm) == (4, 0.25, "train")
    result = run("detect", "train", "--data", "scenes", *TINY, "--dry-run", "--loss.name", "cross-entropy")
    assert "scores" not in next(line for line in result.out.splitlines() if line.startswith("lists"))


@pytest.mark.training
def test_what_a_run_prints_and_leaves(here, run):
    words = ("detect", "train", "--data", "scenes", *TINY, "--data.validation", "0.25", "--out", "my run")
    result = run(*words, status=0)
    first, second = result.out.splitlines()
    assert re.fullmatch(r"trained 2 steps; .* AP50 \d\.\d{4} .* \(step \d\)", first)
    assert second.split("    ")[0] == "detector: 'my run/model'"
    assert "step 1/2" in result.err  # a line per logged step, if there is no terminal
    assert Detector.load("my run/model").classes == ("blue", "green", "red")
    assert json.loads(Path("my run/run.json").read_text())["steps"] == 2
    again = run(*words)
    assert (again.status, "--resume" in again.err) == (2, True)


# evaluate, predict, report


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A detector that knows nothing, and scenes of its classes."""
    folder = tmp_path_factory.mktemp("detect")
    torch.manual_seed(0)
    small = {"channels": 8, "head_dim": 8, "proposals": 20, "proposals_test": 10, "samples": 8, "score_threshold": 0.0}
    detector = Detector.build(DetectorSettings(CLASSES, "small", "train", short_side=64, long_side=64, **small))
    detector.save(folder / "model")
    pictures = {f"{at}": [(CLASSES[at % 2], (5 * at + 1, 30 - 5 * at, 5 * at + 21, 50 - 5 * at), 0)] for at in range(6)}
    names = list(pictures)
    write_voc(folder / "scenes", pictures, {"trainval": names[:2], "test": names[2:]}, size=(64, 64))
    return folder


@pytest.fixture
def evaluate(run, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *words, **ends: run("detect", "evaluate", *words, "--device", "cpu", "--workers", "0", **ends)


def test_evaluate(place, evaluate):
    words = [place / "model", "--data", place / "scenes", "--json", "ap.json", "--page", "p.html"]
    result = evaluate(*words, status=0)
    assert "4 pictures, 4 objects" in result.out
    assert re.search("not .* means: elk", result.out)
    assert "report: p.html " in result.out
    report = DetectionReport.load("ap.json")
    assert (list(report.per_class), report.pictures) == (list(CLASSES), 4)
    assert "Frontrank" in Path("p.html").read_text()
    assert evaluate(*words).status == 2
    assert "| class" in evaluate(*words, "--force", "--quiet", "--table", "markdown").out


def test_evaluate_a_run(place, evaluate, tmp_path):
    """The data of a run are known, and the pictures it trained on."""
    run = tmp_path / "run"
    Detector.load(place / "model").save(run / "model")
    (run / "config.yaml").write_text(as_yaml(DetectConfig(data=SceneConfig(path=str(place / "scenes")))))
    lines = [{"step": step, "epoch": 1, "time": 0.0, "loss": 1 / step, "classifier": 0.5} for step in (1, 2, 3)]
    (run / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    trained, held_out = (place / f"scenes/JPEGImages/{name}.jpg" for name in (2, 3))
    (run / "scenes.csv").write_text(f"path,split\n{trained},train\n{held_out},validation\n")
    result = evaluate(run, "--page", run / "report.html", "--json", "ap.json", "--quiet")
    notes = DetectionReport.load("ap.json").notes
    assert [re.search("1 of the 4 .*(trained|held-out)", note)[1] for note in notes] == ["trained", "held-out"]
    assert result.err == "".join(f"note: {note}\n" for note in notes)  # although it is to be quiet
    page = (run / "report.html").read_text()
    assert notes[0] in page
    assert evaluate(run, "--page", run / "report.html").status == 0  # a report may replace a report


@pytest.fixture
def one_file(place, tmp_path):
    """A run on a single JSON file of COCO; a function that says which pictures it held out."""
    pictures = sorted((place / "scenes/JPEGImages").iterdir())
    images = [{"id": number, "file_name": str(path)} for number, path in enumerate(pictures)]
    objects = [{"image_id": image["id"], "category_id": 1, "bbox": [9, 9, 20, 20]} for image in images]
    content = {"images": images, "annotations": objects, "categories": [{"id": 1, "name": "cat"}]}
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


def test_a_run_on_one_file_is_evaluated_on_what_it_held_out(one_file, evaluate):
    """A file has no splits: as a whole it is what was trained on."""
    result = evaluate(one_file(2))
    assert "2 pictures, 2 objects" in result.out
    assert result.err.startswith("note: 2 of the 2 ")
    result = evaluate(one_file(2), "--split", "train")
    assert "6 pictures, 6 objects" in result.out
    assert "note: 4 of the 6 " in result.err
    run = one_file(0)
    result = evaluate(run)
    assert (result.status, "--data" in result.err) == (2, True)
    for words in (["--split", "train"], ["--data", run.parent / "mine.json"]):
        assert "note: 6 of the 6 " in evaluate(run, *words).err


def test_report_of_a_run(one_file, run):
    """`frontrank report` writes the page of a detector as well."""
    folder = one_file(2)
    result = run("report", folder, "--device", "cpu", status=0)
    assert result.err.startswith("note: 2 of the 2 ")
    assert "2 pictures, 2 objects" in result.out
    assert f"\nreport: {folder / 'report.html'} " in result.out
    assert f"frontrank detect evaluate {folder}" in (folder / "report.html").read_text(encoding="utf-8")
    again = run("report", folder, "--no-before")
    assert (again.status, "--no-before" in again.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("evaluate {place}/model", "--data"),
        ("evaluate {place}/model --data {place}/none", "none"),
        ("evaluate {place}/model --data {place}/scenes --json ap.txt", "--json ap.txt"),
        ("evaluate {place}/model --data {place}/scenes --page mine.html", "mine.html"),
        ("evaluate {place}/model --data gnus", "gnu"),
        ("evaluate run", "--resume"),
        ("predict {place}/model a.jpg --out out --score 2", "--score"),
    ],
)
def test_refusals_of_evaluate_and_predict(place, refused, tmp_path, monkeypatch, words, name):
    monkeypatch.chdir(tmp_path)
    Path("mine.html").write_text("mine")
    Path("run").mkdir()
    Path("run/config.yaml").touch()  # a run without a detector
    write_voc(tmp_path / "gnus", {"a": [("gnu", (1, 1, 9, 9), 0)]}, {"train": ["a"], "test": ["a"]})
    refused(["detect", *words.format(place=place).split()], name)


def test_predict(place, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("detect", "predict", place / "model", place / "scenes/JPEGImages", "--out", "out", "--device", "cpu")
    result = run(*words, "--score", "0", status=0)
    rows = json.loads(Path("out/detections.json").read_text())
    assert re.fullmatch(f"{len(rows):,} boxes .*6 pictures: out/detections.json\n", result.out)
    assert len(list(Path("out/drawn").iterdir())) == 6
    assert {row["category"] for row in rows} <= set(CLASSES)
    again = run(*words)
    assert (again.status, again.err.count("\n")) == (2, 1)
    assert run(*words, "--force", "--no-drawn", "--quiet").status == 0
