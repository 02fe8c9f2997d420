"""Reports of a real small run: the images, the two models, what is kept, and what is refused."""

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import frontrank as fr
from frontrank.data.table import read_table
from frontrank.reporting import run as run_report
from frontrank.reporting.run import write_run_report
from frontrank.settings import read_config, read_recipe
from frontrank.training.embedding import embed_table
from frontrank.training.run import build_run, frozen_model, train
from tests.errors import refusal
from tests.pictures import glyph_pictures
from tests.training.runs import config_of

pytestmark = pytest.mark.training


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with a table of pictures, `data/images.csv`, and a run on it, `run`."""
    folder = tmp_path_factory.mktemp("reports")
    table = glyph_pictures(folder / "data", classes=20)
    licence = np.where(table.categories == "greek", "OFL-1.1", "Apache-2.0")
    design = np.array([Path(path).stem for path in table.paths])
    replace(table, extra={"licence": licence, "design": design}).save(folder / "data" / "images.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        train(_config(folder), folder / "run", quiet=True)
    return folder


@pytest.fixture(autouse=True)
def _own_cache(work, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(work / "cache"))


@pytest.fixture(autouse=True)
def _short(request, monkeypatch):
    """A short page with all that is to be shown in words, and a map without t-SNE; not for the page itself."""
    if "real_page" in request.fixturenames:
        return

    def short_page(findings, facts):
        titles = [side.title for side in findings.sides]
        return f'<!doctype html><meta name="generator" content="Frontrank">{facts} {titles} {findings.notes}'

    monkeypatch.setattr("frontrank.reporting.run.render_run_page", short_page)
    monkeypatch.setattr("frontrank.reporting.findings._tsne", lambda: None)


@pytest.fixture
def real_page():
    """The page as it is."""


_number = itertools.count()


@pytest.fixture
def run(work):
    """A copy of the run beside it, so that its images are found."""
    return shutil.copytree(work / "run", work / f"run-{next(_number)}")


def _config(work, **groups):
    return config_of(str(work / "data" / "images.csv"), epochs=1, **groups)


def text_of(run, *arguments, **options):
    """The text of a report."""
    return write_run_report(run, *arguments, show=False, **options).path.read_text(encoding="utf-8")


def embedded(model, table):
    return embed_table(model, table, workers=0, show=False)


def change_splits(run, old, new):
    """Rewrite the run's images: those of some split have another one."""
    table = read_table(run / "images.csv")
    replace(table, splits=np.where(table.splits == old, new, table.splits)).save(run / "images.csv", overwrite=True)


def test_report_of_a_run(run, monkeypatch):
    report = write_run_report(run, show=False)
    table = read_table(run / "images.csv").of("test")
    names = ["R@1", "mAP", "dists@intra"]
    after = fr.evaluate(embedded(fr.Embedder.load(run / "model"), table), table.labels, metrics=names)
    config = read_config(read_recipe(run / "config.yaml"))
    before = fr.evaluate(embedded(frozen_model(config), table), table.labels, metrics=names)
    assert report.path == run / "report.html"
    assert {name: report.after[name] for name in names} == dict(after)
    assert {name: report.before[name] for name in names} == dict(before)
    assert report.change["R@1"].a == before["R@1"]
    page = report.path.read_text(encoding="utf-8")
    for text in ("'PNP-D_s on data'", "'OFL-1.1': 16", "8 unseen classes", "'trained with PNP-D_s'"):
        assert text in page
    assert [path.name for path in report.numbers] == ["report.before.json", "report.after.json"]
    assert fr.Report.load(report.numbers[1]).metrics == report.after.metrics
    monkeypatch.setattr(run_report, "embed_table", None)  # a second one embeds nothing
    again = write_run_report(run, show=False)
    assert (again.after.metrics, again.before.metrics) == (report.after.metrics, report.before.metrics)
    assert len(list((run / "report").iterdir())) == 2


def test_the_page_itself(run, real_page):
    page = text_of(run)
    assert page.lower().lstrip().startswith("<!doctype html>")
    for text in ("PNP-D_s on data", "OFL-1.1", "8 unseen classes", "random weights", "data:image/", "t-SNE"):
        assert text in page
    assert len(text_of(run)) > 10_000  # known as a report, so it is replaced


def test_another_model_is_embedded_anew_and_the_old_one_dropped(run):
    write_run_report(run, show=False, before=False)
    model = fr.Embedder.load(run / "model")
    with torch.no_grad():
        model.head.linear.weight.mul_(torch.linspace(-1, 1, 16)[:, None])
    model.save(run / "model", overwrite=True)
    report = write_run_report(run, show=False, before=False)
    table = read_table(run / "images.csv").of("test")
    assert report.after["mAP"] == fr.evaluate(embedded(model.eval(), table), table.labels, metrics=["mAP"])["mAP"]
    assert len(list((run / "report").iterdir())) == 1


def test_held_out_classes_stand_in_for_test_images(run):
    change_splits(run, "test", "train")
    report = write_run_report(run, show=False)
    assert report.after.queries == len(read_table(run / "images.csv").of("validation"))
    assert "held-out" in report.notes[0]
    change_splits(run, "validation", "train")
    refusal(lambda: write_run_report(run, show=False), "--data")


def test_report_on_other_images(run, work, tmp_path):
    table = read_table(work / "data" / "images.csv").of("train")
    replace(table, splits=np.full(len(table), "train")).save(tmp_path / "mine.csv")
    (tmp_path / "LICENCES.md").write_text("drawn by Ann")
    report = write_run_report(run, tmp_path / "mine.html", data=tmp_path / "mine.csv", show=False)
    trained = len(read_table(run / "images.csv").of("train"))
    assert report.after.queries == len(table)
    assert report.notes[0].startswith(f"{trained} of the 96")
    assert {path.name for path in tmp_path.glob("mine.*")} == {
        "mine.csv", "mine.html", "mine.before.json", "mine.after.json",
    }  # fmt: skip
    assert not (run / "report.html").exists()
    page = report.path.read_text(encoding="utf-8")
    for text in ("'PNP-D_s on mine'", "'96 of 12 classes of mine'", f"'{trained} images of", "'drawn by Ann'"):
        assert text in page
    assert "credits=''" in text_of(run, before=False)


def test_only_the_trained_model(run):
    write_run_report(run, show=False)
    report = write_run_report(run, before=False, show=False)
    assert (report.before, report.change, report.numbers) == (None, None, (run / "report.after.json",))
    assert not (run / "report.before.json").exists()  # it would be of another report
    (run / "report.before.json").write_text("{}")  # something else stays
    write_run_report(run, before=False, overwrite=True, show=False)
    assert (run / "report.before.json").read_text() == "{}"


def test_first_weights_that_are_gone_leave_one_side_and_a_note(run):
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("weights: none", "weights: /gone/away.safetensors"))
    report = write_run_report(run, show=False)
    assert report.before is None
    assert "/gone/away.safetensors" in report.notes[0]


def test_random_weights_are_those_the_run_began_with(work):
    config = _config(work)
    began = build_run(config, work / "unused", torch.device("cpu"), quiet=True).model
    state = torch.get_rng_state()
    frozen = frozen_model(config)
    assert torch.equal(torch.get_rng_state(), state)
    assert frozen.settings.dim == 0
    assert all(
        torch.equal(a, b) for a, b in zip(began.backbone.parameters(), frozen.backbone.parameters(), strict=True)
    )
    norms = list(frozen_model(_config(work, model={"layer_norm": True})).head.modules())
    assert not any(isinstance(module, torch.nn.LayerNorm) for module in norms)  # it starts anew


@pytest.mark.parametrize("dim", [16, 8], ids=["its own head", "another head"])
def test_a_saved_model_is_taken_with_its_head_where_that_goes_on(work, tmp_path, dim):
    torch.manual_seed(5)
    saved = fr.Embedder("test_resnet", dim=16, image_size=32, resize=32, pooling="gem")
    saved.save(tmp_path / "saved")
    frozen = frozen_model(_config(work, model={"weights": str(tmp_path / "saved"), "pooling": "gem", "dim": dim}))
    table = read_table(work / "data" / "images.csv").of("test").rows(np.arange(6))
    if dim == 16:
        assert np.array_equal(embedded(frozen, table), embedded(saved.eval(), table))
    else:
        assert frozen.settings.dim == 0
        assert torch.equal(next(frozen.backbone.parameters()), next(saved.backbone.parameters()))


def test_something_else_is_not_replaced(run):
    (run / "report.html").write_text("<!doctype html><title>mine</title>")
    refusal(lambda: write_run_report(run, show=False), "report.html")
    assert (run / "report.html").read_text() == "<!doctype html><title>mine</title>"
    for name in ("report.after.json", "report.before.json"):
        (run / name).write_text("{}")
        refusal(lambda: write_run_report(run, overwrite=True, show=False), name)
        assert (run / name).read_text() == "{}"
        (run / name).unlink()
    assert not (run / "report").exists()  # refused before the work
    assert "Frontrank" in text_of(run, overwrite=True)


REFUSED = {
    "not there": ("nothing", None, "nothing"),
    "a file": ("run.json", None, "run.json"),
    "no run": ("model", None, "config"),
    "a folder as page": ("", "model", "model"),
    "no such folder": ("", "x/y.html", "x"),
}


@pytest.mark.parametrize(("where", "out", "name"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(work, where, out, name):
    run = work / "run"
    refusal(lambda: write_run_report(run / where, out and run / out, show=False), name)


def test_what_is_missing_is_named(run, monkeypatch):
    lost = next(iter(read_table(run / "images.csv").of("test").files()))
    Path(lost).rename(lost + ".away")
    try:
        refusal(lambda: write_run_report(run, show=False), Path(lost).name)
    finally:
        Path(lost + ".away").rename(lost)
    with monkeypatch.context() as patch:
        patch.setitem(__import__("sys").modules, "jinja2", None)
        refusal(lambda: write_run_report(run, show=False), "frontrank[report]")
    shutil.rmtree(run / "model")
    refusal(lambda: write_run_report(run, show=False), "--resume")


def test_little_is_needed_beside_model_and_images(run):
    facts = json.loads((run / "run.json").read_text())
    for name in ("steps", "best", "before", "best_step", "metric"):
        del facts[name]
    (run / "run.json").write_text(json.dumps(facts))
    assert "not finished" in text_of(run, before=False)
    (run / "log.jsonl").unlink()
    (run / "run.json").write_text("[1]")
    assert "train --recipe" in text_of(run, before=False)
