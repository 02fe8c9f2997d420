"""Reports of real small runs: the images, the two models, what is kept, and what is refused."""

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
from frontrank.errors import InputError
from frontrank.reporting import run as run_report
from frontrank.reporting.run import write_run_report
from frontrank.settings import read_config, read_recipe
from frontrank.training.embedding import embed_table
from frontrank.training.run import build_run, frozen_model, train
from tests.pictures import glyph_pictures
from tests.training.runs import config_of


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
    """A short page with all that is to be shown in words, and a quick map; not for tests of the page itself."""
    if "real_page" in request.fixturenames:
        return

    def short_page(findings, facts):
        titles = [side.title for side in findings.sides]
        return f'<!doctype html><meta name="generator" content="Frontrank">{facts} {titles} {findings.notes}'

    monkeypatch.setattr("frontrank.reporting.run.run_page", short_page)
    for rounds in ("_ROUNDS", "_FEWER_ROUNDS"):
        monkeypatch.setattr(f"frontrank.reporting.findings.{rounds}", 250)


@pytest.fixture
def real_page():
    """The page as it is."""


_number = itertools.count()


@pytest.fixture
def run(work):
    """A copy of the run beside it, so that its images are found."""
    target = work / f"run-{next(_number)}"
    shutil.copytree(work / "run", target)
    return target


def _config(work, **groups):
    return config_of(str(work / "data" / "images.csv"), epochs=1, **groups)


def embedded(model, table):
    return embed_table(model, table, workers=0, show=False)


def without_embedding(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("embedded again")

    monkeypatch.setattr(run_report, "embed_table", fail)


def change_splits(run, old, new):
    """Rewrite the run's images: those of some split have another one."""
    table = read_table(run / "images.csv")
    replace(table, splits=np.where(table.splits == old, new, table.splits)).save(run / "images.csv", overwrite=True)


def test_report_of_a_run(run):
    written = write_run_report(run, show=False)
    table = read_table(run / "images.csv").of("test")
    names = ["R@1", "mAP", "dists@intra"]
    after = fr.evaluate(embedded(fr.Embedder.load(run / "model"), table), table.labels, metrics=names)
    config = read_config(read_recipe(run / "config.yaml"))
    before = fr.evaluate(embedded(frozen_model(config), table), table.labels, metrics=names)
    assert written.path == run / "report.html"
    for name in names:
        assert written.after[name] == after[name]
        assert written.before[name] == before[name]
    assert written.change["R@1"].a == before["R@1"]
    page = written.path.read_text(encoding="utf-8")
    assert "title='PNP-D_s on data'" in page
    assert "'OFL-1.1': 16" in page
    assert "['test_resnet with random weights', 'trained with PNP-D_s']" in page
    assert [path.name for path in written.numbers] == ["report.before.json", "report.after.json"]
    assert fr.Report.load(written.numbers[1]).metrics == written.after.metrics
    assert written.notes == ("the map shows all 64 images by t-SNE",)


def test_the_page_itself(run, real_page):
    page = write_run_report(run, show=False).path.read_text(encoding="utf-8")
    assert page.lower().lstrip().startswith("<!doctype html>")
    for text in ("PNP-D_s on data", "OFL-1.1", "8 unseen classes", "test_resnet with random weights", "data:image/"):
        assert text in page
    assert write_run_report(run, show=False).path.stat().st_size > 10_000  # known as a report, so it is replaced


def test_columns_of_the_data_survive_into_the_run(run):
    table = read_table(run / "images.csv")
    assert set(table.extra) == {"licence", "design"}
    assert set(table.extra["licence"]) == {"OFL-1.1", "Apache-2.0"}
    assert len(set(table.categories)) == 4
    assert len(set(table.extra["design"])) == 8


def test_a_second_report_embeds_nothing_and_says_the_same(run, monkeypatch):
    first = write_run_report(run, show=False)
    without_embedding(monkeypatch)
    again = write_run_report(run, show=False)
    assert again.after.metrics == first.after.metrics
    assert again.before.metrics == first.before.metrics
    assert len(list((run / "report").iterdir())) == 2


def test_another_model_is_embedded_anew_and_the_old_one_dropped(run, monkeypatch):
    write_run_report(run, show=False, before=False)
    model = fr.Embedder.load(run / "model")
    with torch.no_grad():
        model.head.linear.weight.mul_(torch.linspace(-1, 1, 16)[:, None])
    model.save(run / "model", overwrite=True)
    written = write_run_report(run, show=False, before=False)
    table = read_table(run / "images.csv").of("test")
    assert written.after["mAP"] == fr.evaluate(embedded(model.eval(), table), table.labels, metrics=["mAP"])["mAP"]
    assert len(list((run / "report").iterdir())) == 1


def test_held_out_classes_stand_in_for_test_images(run):
    change_splits(run, "test", "train")
    written = write_run_report(run, show=False)
    assert written.after.queries == len(read_table(run / "images.csv").of("validation"))
    assert written.notes[0].startswith("the run has no test images: these are its held-out classes")
    assert "held-out classes" in written.path.read_text(encoding="utf-8")


def test_without_test_images_and_held_out_classes_there_is_nothing_to_report(run):
    for split in ("test", "validation"):
        change_splits(run, split, "train")
    with pytest.raises(InputError, match="neither test images nor held-out classes; give images by --data"):
        write_run_report(run, show=False)


def test_report_on_other_images(run, work, tmp_path):
    table = read_table(work / "data" / "images.csv").of("train")
    replace(table, splits=np.full(len(table), "train")).save(tmp_path / "mine.csv")
    written = write_run_report(run, tmp_path / "mine.html", data=tmp_path / "mine.csv", show=False)
    assert written.after.queries == len(table)
    trained = len(read_table(run / "images.csv").of("train"))
    assert written.notes[0] == f"{trained} of the 96 images were trained on: the figures are too good"
    assert written.path == tmp_path / "mine.html"
    assert {path.name for path in tmp_path.iterdir()} == {
        "mine.csv", "mine.html", "mine.before.json", "mine.after.json",
    }  # fmt: skip
    assert not (run / "report.html").exists()
    page = written.path.read_text(encoding="utf-8")
    assert "title='PNP-D_s on mine'" in page
    assert "'images': '96 of 12 classes of mine', 'trained on': " in page
    assert f"'{trained} images of" in page
    assert " classes of data'" in page


def test_credits_beside_the_images_are_taken_over(run, work, tmp_path):
    (work / "data" / "LICENCES.md").write_text("drawn by Ann")
    try:
        assert "credits='drawn by Ann'" in write_run_report(run, before=False, show=False).path.read_text("utf-8")
        table = read_table(work / "data" / "images.csv")
        table.save(tmp_path / "mine.csv")
        own = write_run_report(run, data=tmp_path / "mine.csv", before=False, show=False)
        assert "credits=''" in own.path.read_text("utf-8")
    finally:
        (work / "data" / "LICENCES.md").unlink()


def test_classes_that_chose_the_checkpoint_are_not_unseen(run, tmp_path):
    table = read_table(run / "images.csv").of("validation")
    replace(table, splits=np.full(len(table), "test")).save(tmp_path / "held.csv")
    page = write_run_report(run, data=tmp_path / "held.csv", before=False, show=False).path.read_text("utf-8")
    assert "unseen" not in page


def test_unseen_classes_are_called_so_and_known_ones_are_not(run, work):
    seen = write_run_report(run, show=False, before=False)
    assert "8 unseen classes" in seen.path.read_text(encoding="utf-8")
    same = write_run_report(run, data=work / "data" / "images.csv", show=False, before=False)
    assert "8 unseen classes" in same.path.read_text(encoding="utf-8")  # its test images
    table = read_table(run / "images.csv")
    replace(table, splits=np.where(np.arange(len(table)) % 2, "train", "test")).save(run / "images.csv", overwrite=True)
    page = write_run_report(run, show=False, before=False).path.read_text(encoding="utf-8")
    assert "20 classes" in page
    assert "unseen" not in page


def test_only_the_trained_model(run):
    write_run_report(run, show=False)
    written = write_run_report(run, before=False, show=False)
    assert written.before is None
    assert written.change is None
    assert written.numbers == (run / "report.after.json",)
    assert not (run / "report.before.json").exists()  # it would be of another report


def test_first_weights_that_are_gone_leave_one_side_and_a_note(run):
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("weights: none", "weights: /gone/away.safetensors"))
    written = write_run_report(run, show=False)
    assert written.before is None
    assert written.notes[0].startswith("the model before training is not shown: weights '/gone/away.safetensors'")


def test_random_weights_are_those_the_run_began_with(work, run):
    config = _config(work)
    began = build_run(config, work / "unused", torch.device("cpu"), quiet=True).model
    frozen = frozen_model(config)
    assert frozen.settings.dim == 0
    assert all(
        torch.equal(a, b) for a, b in zip(began.backbone.parameters(), frozen.backbone.parameters(), strict=True)
    )
    assert "test_resnet with random weights" in write_run_report(run, show=False).path.read_text(encoding="utf-8")


def test_making_the_first_model_leaves_the_random_numbers_alone(work):
    state = torch.get_rng_state()
    frozen_model(_config(work))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dim", [16, 8], ids=["its own head", "another head"])
def test_a_saved_model_is_taken_with_its_head_where_that_goes_on(work, tmp_path, dim):
    torch.manual_seed(5)
    saved = fr.Embedder("test_resnet", dim=16, image_size=32, resize=32, pooling="gem")
    saved.save(tmp_path / "saved")
    model = {"weights": str(tmp_path / "saved"), "pooling": "gem", "dim": dim}
    found = frozen_model(_config(work, model=model))
    table = read_table(work / "data" / "images.csv").of("test").rows(np.arange(6))
    if dim == 16:
        assert np.array_equal(embedded(found, table), embedded(saved.eval(), table))
    else:
        assert found.settings.dim == 0
        assert torch.equal(next(found.backbone.parameters()), next(saved.backbone.parameters()))


def test_a_layer_norm_that_starts_anew_is_left_out(work):
    found = frozen_model(_config(work, model={"layer_norm": True}))
    assert not any(isinstance(module, torch.nn.LayerNorm) for module in found.head.modules())


def test_file_of_weights_that_changed_is_read_again(run, tmp_path):
    from safetensors.torch import save_file

    model = fr.Embedder("test_resnet", dim=0, image_size=32, resize=32)
    save_file(model.backbone.state_dict(), tmp_path / "w.safetensors")
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("weights: none", f"weights: {tmp_path / 'w.safetensors'}"))
    first = write_run_report(run, show=False)
    other = {
        name: x + 0.1 * torch.randn_like(x) if x.ndim > 1 else x for name, x in model.backbone.state_dict().items()
    }
    save_file(other, tmp_path / "w.safetensors")
    again = write_run_report(run, show=False)
    assert again.before["mAP"] != first.before["mAP"]
    assert again.after["mAP"] == first.after["mAP"]


def test_a_page_of_something_else_is_not_replaced(run):
    (run / "report.html").write_text("<!doctype html><title>mine</title>")
    with pytest.raises(InputError, match="is no report of Frontrank; choose another name, or add --overwrite"):
        write_run_report(run, show=False)
    assert (run / "report.html").read_text() == "<!doctype html><title>mine</title>"
    assert not (run / "report").exists()  # refused before the work
    assert "Frontrank" in write_run_report(run, overwrite=True, show=False).path.read_text()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["report.after.json", "report.before.json"])
def test_numbers_of_something_else_are_never_replaced(run, name, overwrite):
    (run / name).write_text("{}")
    with pytest.raises(InputError, match="is no report of Frontrank; choose another name for the page by --out"):
        write_run_report(run, overwrite=overwrite, show=False)
    assert (run / name).read_text() == "{}"
    assert not (run / "report").exists()


def test_numbers_of_something_else_stay_where_a_report_has_one_side(run):
    (run / "report.before.json").write_text("{}")
    for overwrite in (False, True):
        write_run_report(run, before=False, overwrite=overwrite, show=False)
        assert (run / "report.before.json").read_text() == "{}"


def test_nothing_is_lost_where_the_page_cannot_be_made(run, monkeypatch):
    first = write_run_report(run, show=False)
    kept = first.path.read_bytes()

    def fail(*_):
        raise InputError("no")

    monkeypatch.setattr("frontrank.reporting.run.run_page", fail)
    with pytest.raises(InputError, match="no"):
        write_run_report(run, show=False)
    assert first.path.read_bytes() == kept


REFUSED = {
    "not there": (lambda run: run / "nothing", None, "is not there, or no folder; give the folder of a run"),
    "a file": (lambda run: run / "run.json", None, "is not there, or no folder"),
    "no run": (lambda run: run / "model", None, "holds no run .there is no config.yaml.; give the folder"),
    "a folder as page": (lambda run: run, lambda run: run / "model", "is a folder; name a file"),
    "no such folder": (lambda run: run, lambda run: run / "x" / "y.html", "is not there; make it first"),
}


@pytest.mark.parametrize(("where", "out", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refusals(work, where, out, message):
    run = work / "run"
    with pytest.raises(InputError, match=message) as error:
        write_run_report(where(run), out and out(run), show=False)
    assert "\n" not in str(error.value)


def test_a_missing_library_is_told_before_the_work(run, monkeypatch):
    monkeypatch.setattr(run_report, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"a report needs jinja2; pip install 'frontrank\[report\]'"):
        write_run_report(run, show=False)
    assert not (run / "report").exists()


def test_a_run_without_a_model_is_told_to_go_on(run):
    shutil.rmtree(run / "model")
    with pytest.raises(InputError, match="has no model yet; go on with the run: frontrank train --resume"):
        write_run_report(run, show=False)


def test_a_missing_picture_is_named(run, work):
    table = read_table(run / "images.csv")
    lost = next(iter(table.of("test").files()))
    Path(lost).rename(lost + ".away")
    try:
        with pytest.raises(InputError, match=Path(lost).name):
            write_run_report(run, show=False)
    finally:
        Path(lost + ".away").rename(lost)


def test_little_is_needed_beside_model_and_images(run):
    (run / "log.jsonl").unlink()
    (run / "run.json").write_text("[1]")
    shutil.rmtree(run / "checkpoints")
    page = write_run_report(run, before=False, show=False).path.read_text(encoding="utf-8")
    assert "frontrank train --recipe" in page


def test_numbers_of_runs_that_were_stopped(run):
    facts = json.loads((run / "run.json").read_text())
    for name in ("steps", "best", "before", "best_step", "metric"):
        del facts[name]
    (run / "run.json").write_text(json.dumps(facts))
    assert "not finished" in write_run_report(run, before=False, show=False).path.read_text(encoding="utf-8")
