"""`frontrank train`: from its options to a run's folder, and what it refuses before it works."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

import frontrank as fr
from frontrank.cli.train import _print_result
from frontrank.settings import LossConfig, find_recipe, read_config, read_recipe, recipe_names, settings
from frontrank.training import defaults, loop
from frontrank.training import run as training_run
from tests.cli.images import EACH, TEST, TINY, TRAIN, picture, published, tree

WORDS = dict(zip([word.removeprefix("--") for word in TINY[::2]], TINY[1::2], strict=True))


@pytest.fixture
def train(here, run):
    """A function that trains on my_photos for a moment."""
    return lambda *words, **ends: run("train", "--data", "my_photos", *TINY, *words, **ends)


def config_in(folder):
    return read_config(read_recipe(Path(folder) / "config.yaml"))


def plan(result):
    """The lines of a plan by name, and the settings that are printed last."""
    assert result.status == 0, result.err
    before, recipe = result.out.split("\nsettings, as a recipe:\n\n")
    lines = dict(line.split(maxsplit=1) for line in before.split("\n\n")[1].splitlines())
    Path("printed.yaml").write_text(recipe)
    return lines, read_config(read_recipe(Path("printed.yaml")))


# Help


def test_help_shows_every_setting_with_its_default(run):
    result = run("train", "--help")
    text = " ".join(result.out.split())
    for name, setting in settings().items():
        if name not in ("data.path", "data.allow_partial"):
            default = "" if setting.default in (None, ()) else f" [{setting.default}]"
            assert f"--{name} VALUE " in text
            assert re.sub(r"\s", "", setting.help + default) in re.sub(r"\s", "", text)
    assert "--data.path" not in text
    assert [title for title in ("data", "batches", "the run", "loss") if f"\n{title}:" not in result.out] == []


def test_recipes_are_listed(run):
    result = run("train", "--recipes")
    assert (result.status, result.err) == (0, "")
    assert [tuple(re.split(r"  +", line)) for line in result.out.splitlines()] == [*recipe_names().items()]


# Settings: defaults < recipe < command line


@pytest.mark.training
def test_a_recipe_by_path_and_settings_on_top(here, train):
    (here / "my.yaml").write_text(
        "loss: {name: SmoothAP, temperature: 0.5}\noptimizer.lr: 1e-3\nmodel.dim: 4\ndata.path: elsewhere\n"
    )
    train("--recipe", "my.yaml", "--loss.temperature", "2e-2", status=0)
    config = config_in("runs/my")  # named after the recipe
    assert config.loss == LossConfig("SmoothAP", temperature=0.02)
    assert (config.optimizer.lr, config.model.dim, config.batches.size) == (1e-3, 8, 8)
    assert config.optimizer.weight_decay == 0.01
    assert config.data.path == str(here / "my_photos")


def test_a_recipe_by_name_and_its_data(here, run, train):
    (here / "photos.yaml").write_text("data: {path: my_photos, merge_classes: 2}\nbatches.per_class: 2\n")
    _, config = plan(run("train", "--recipe", "photos.yaml", "--dry-run", *TINY, "--batches.size", "4"))
    assert (config.data.path, config.data.merge_classes, config.batches.per_class) == ("my_photos", 2, 2)
    lines, config = plan(train("--recipe", "pnp-sop", "--data.layout", "folder", "--dry-run"))
    words = {"data.path": "my_photos", "data.layout": "folder", "data.interpolation": "bilinear"}
    expected = {**read_recipe(find_recipe("pnp-sop")), **words}
    assert config == read_config(expected, WORDS)
    assert lines["out"] == "runs/pnp-sop"


# Refusals


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("--data.layout fodler", "folder?"),
        ("--loss.name SmoothAPP", "SmoothAP?"),
        ("--batches.size 7", "batches.size"),
        ("--backbone resnet18 --model.backbone test_resnet", "--backbone"),
        ("--model.weights nowhere.safetensors", "nowhere.safetensors"),
        ("--device rocket", "rocket"),
        ("--metric R@x", "R@x"),
        ("--out my_photos --dry-run", "--out my_photos"),
        ("--out my_photos/train/it's/0.png/run", "0.png/run"),
        ("--batches.size 112", "112"),
        ("--data.merge_classes 9", "9"),
    ],
)
def test_refusals(here, refused, words, name):
    given = words.split(" ")
    small = [word for option, value in WORDS.items() if f"--{option}" not in given for word in (f"--{option}", value)]
    refused(["train", "--data", "my_photos", *small, *given], name)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("", "--data"),
        ("--recipe pnp-sop", "--data"),
        ("--data nowhere", "--data nowhere"),
        ("--resume my_photos", "--resume my_photos"),
        ("--resume my_photos --dry-run", "--dry-run"),
    ],
)
def test_refusals_without_more(here, refused, words, name):
    refused(["train", *words.split()], name)


# The plan


def test_dry_run_prints_the_plan_and_writes_nothing(train, tmp_path):
    before = tree(tmp_path)
    result = train("--dry-run", "--batches.size", "0", "--quiet")
    assert tree(tmp_path) == before  # neither here nor in the cache
    assert result.err == ""
    lines, config = plan(result)
    # of 6 training classes of 4 images two are held out; the other four make one batch
    assert [line.split()[:3] for line in result.out.splitlines()[1:4]] == [
        ["train", "16", "4"],
        ["validation", "8", "2"],
        ["test", "12", "3"],
    ]
    assert lines["batches"].startswith("16 images each (balanced), 1 ")
    assert re.fullmatch(r"test_resnet, [\d.]+ M weights, 8 dimensions; .*", lines["model"])
    assert lines["loss"].startswith("PNP(")
    assert (lines["device"], lines["precision"]) == ("cpu, 1 process(es)", "float32")
    assert re.search(r" [\d.]+ MB .* [\d,]+ .*, 16 ", lines["memory"])
    assert lines["out"] == "runs/my_photos-PNP"
    assert "auto" not in (config.epochs, config.head, config.optimizer.lr, config.optimizer.warmup, config.data.flip)
    assert (config.data.path, config.batches.size, config.data.size) == ("my_photos", 16, 32)


@pytest.mark.parametrize(
    ("most", "words", "end"),
    [
        (8, "", "8 are needed"),
        (7, "--batches.chunk 0", "batches.chunk to 7"),
        (7, "--batches.chunk 7", "7 are needed"),
        (0, "", "another device"),
        (None, "", "not known"),
    ],
)
def test_what_fits_into_memory(train, monkeypatch, most, words, end):
    monkeypatch.setattr(defaults, "images_that_fit", lambda model, images, device: (2_500_000, most))
    lines, _ = plan(train("--dry-run", *words.split()))
    assert re.search(rf"2\.5 MB per image; .*{end}", lines["memory"])


# Runs


@pytest.mark.training
def test_what_a_run_prints_and_leaves(train, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["frontrank", "train", "--data", "my_photos"])
    result = train(status=0)
    lines = result.out.splitlines()
    pattern = r"trained 2 steps; .* (\d\.\d{4}) before, (\d\.\d{4}) .* \(step (\d)\).*"
    before, best, step = re.fullmatch(pattern, lines[0]).groups()
    assert len(lines) == (3 if best <= before else 2)  # with what to try
    folder = Path("runs/my_photos-PNP")
    facts = json.loads((folder / "run.json").read_text())
    assert (f"{facts['before']:.4f}", f"{facts['best']:.4f}", str(facts["best_step"])) == (before, best, step)
    assert facts["command"] == "frontrank train --data my_photos"
    assert lines[-1].startswith(f"model: {folder}/model ")
    assert re.search(r"step +1/2|1 of 2|validation", result.err)  # a line per logged step, if there is no terminal
    table = fr.data.read_table(folder / "images.csv")
    assert set(table.rows(table.splits != "test").labels) == set(TRAIN)  # spaces, quotes, line breaks and all
    assert set(table.of("test").labels) == set(TEST)
    assert all(Path(file).is_file() for file in table.files())
    assert fr.Embedder.load(folder / "model").dim == 8
    (cache,) = (tmp_path / "cache" / "frontrank").iterdir()  # images that were read are not checked again
    assert len(json.loads(cache.read_text())["good"]) == len(TRAIN) * EACH
    again = train()
    assert again.status == 2
    assert f"--resume {folder}" in again.err


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"best": 0.9, "best_step": 0, "best_tie_breaker": 0.5}, "that of step 0"),
        ({"best": 0.9, "best_step": 20, "best_tie_breaker": 0.5}, "--optimizer.lr"),
        ({"best": 0.9, "best_step": 20, "best_tie_breaker": 0.6}, "mAP"),  # the metric may be as high as it can be
        ({"best": 0.91, "best_step": 20}, ""),
        ({"best": 0.93, "best_step": 20, "frozen": 0.9}, "frozen backbone"),
        ({"best": 0.94, "best_step": 20, "frozen": 0.9}, ""),
    ],
    ids=str,
)
def test_a_run_says_what_won_and_what_to_try(values, words, capsys):
    if "frozen" in values:
        reading = {"stage": 0, "pooling": "native", "tie_breaker": 0.5, "margin": 1 / 32}
        values["frozen"] = reading | {"value": values["frozen"]}
    _print_result(loop.Standing(step=20, before=0.9, before_tie_breaker=0.5, **values), Path("runs/first"))
    _, *verdict, model = capsys.readouterr().out.splitlines()
    assert len(verdict) == bool(words)
    assert words in "".join(verdict)
    assert model.startswith("model: ")


@pytest.mark.training
def test_quiet_prints_the_result_only(train, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))  # which cannot be written
    result = train("--quiet", "--data.validation", "0", "--out", "my run")
    assert (result.status, result.err) == (0, "")
    first, second = result.out.splitlines()
    assert first.startswith("trained 2 steps; ")
    assert second.startswith("model: 'my run/model' ")


@pytest.mark.training
def test_an_early_stop_is_printed(train, monkeypatch):
    values = iter([0.4, 0.46, 0.42])
    monkeypatch.setattr(training_run.RetrievalRun, "evaluate", lambda self: {"R@1": next(values), "mAP": 0.1})
    result = train("--iterations", "40", "--patience", "1", "--quiet")
    assert re.match(r"trained 8 steps.* 0\.4000 .* 0\.4600 .*\n", result.out)


def test_the_other_processes_print_nothing(here, run, monkeypatch):
    monkeypatch.setattr(training_run, "train", lambda *_, **__: loop.Standing(step=2))
    monkeypatch.setenv("RANK", "1")
    assert run("train", "--data", "my_photos").out == ""


@pytest.mark.training
def test_ctrl_c_saves_and_says_how_to_go_on(train, run, monkeypatch):
    own = loop.take_step

    def step(run, standing, *rest):
        result = own(run, standing, *rest)
        if standing.step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return result

    monkeypatch.setattr(loop, "take_step", step)
    result = train("--iterations", "4", "--out", "my run", "--quiet")
    assert (result.status, result.out) == (130, "")
    assert result.err.splitlines()[-1].endswith("frontrank train --resume 'my run'")
    monkeypatch.setattr(loop, "take_step", own)
    result = run("train", "--resume", "my run", "--quiet")
    assert result.out.startswith("trained 4 steps; ")
    result = run("train", "--resume", "my run", "--iterations", "6", "--data", "my_photos/../my_photos", "--quiet")
    assert result.out.startswith("trained 6 steps; ")
    assert config_in("my run").iterations == 6
    result = run("train", "--resume", "my run", "--loss.name", "SmoothAP")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert "--loss.name" in result.err
    damaged = sorted(Path("my run/checkpoints").iterdir())
    for path in damaged:
        path.write_bytes(b"damaged")
    result = run("train", "--resume", "my run", "--quiet")
    assert (result.status, all(path.name in result.err for path in damaged)) == (2, True)
    assert run("train", "--resume", "my run", "--restart", "--loss.name", "SmoothAP").status == 2
    assert sorted(Path("my run/checkpoints").iterdir()) == damaged  # what is refused deletes nothing
    result = run("train", "--resume", "my run", "--restart", "--quiet")
    assert result.out.startswith("trained 6 steps; ")


# Images


@pytest.mark.training
def test_a_published_data_set_that_is_not_complete(here, run, refused):
    published("sop", here / "sop")
    words = ["train", "--data", "sop", *TINY, "--data.validation", "0", "--quiet"]
    refused(words, "59,551")
    (here / "sop" / "cabinet_final" / "333_0.JPG").unlink()
    refused(words, "cabinet_final/333_0.JPG")
    result = run(*words, "--allow-partial", status=0)
    assert "Stanford Online Products" in result.err
    assert result.err.count("\n") == 1
    assert ".py" not in result.err
    assert config_in("runs/sop-PNP").data.allow_partial
    assert len(fr.data.read_table("runs/sop-PNP/images.csv").of("train")) == 3  # what is left


def test_names_that_are_not_utf8(train):
    """A folder of images may have such a name, and is refused in one line; what is left counts as no run."""
    shutil.copytree("my_photos/train/it's", f"my_photos/train/{os.fsdecode(b'caf' + bytes([0xE9]))}")
    result = train("--quiet", "--out", "run")
    assert (result.status, result.err.count("\n")) == (2, 1)
    assert "run/images.csv" in result.err
    assert [path.name for path in Path("run").iterdir()] == ["run.json"]
    assert train("--quiet", "--dry-run").status == 0


@pytest.mark.slow
def test_fifty_thousand_files(tmp_path, monkeypatch, run):
    """From the check to the report, with a few pictures under many names."""
    monkeypatch.chdir(tmp_path)
    originals = [tmp_path / "originals" / f"{seed}.png" for seed in range(20)]
    for seed, path in enumerate(originals):
        picture(path, seed, 10 * seed, side=16)
    for number in range(5_000):
        folder = tmp_path / "photos" / f"class {number:05d}"
        folder.mkdir(parents=True)
        for i in range(10):
            os.link(originals[number % 20], folder / f"{i}.png")
    result = run("data", "check", "photos", "--quick", status=0)
    assert "50,000 images" in result.out
    shares = ["--data.check", "quick", "--data.validation", "0.01", "--data.test", "0.04"]
    result = run("train", "--data", "photos", *TINY, *shares, "--out", "first", "--quiet", status=0)
    table = fr.data.read_table("first/images.csv")
    assert (len(table), len(table.of("test"))) == (50_000, 2_000)
    assert run("report", "first", "--quiet").status == 0
    assert (tmp_path / "first/report.html").stat().st_size < 5_000_000
