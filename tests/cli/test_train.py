"""`frontrank train`: from its options to a run's folder, and what it refuses before it works."""

import json
import os
import re
import shlex
import shutil
import signal
import warnings
from pathlib import Path

import numpy as np
import pytest

import frontrank as fr
from frontrank.cli import _parser, training
from frontrank.cli import train as command
from frontrank.errors import FrontrankWarning, InputError
from frontrank.settings import LossConfig, read_config, read_recipe, recipe_names, settings
from frontrank.training import loop
from frontrank.training.run import RetrievalRun
from tests.cli.images import EACH, TEST, TINY, TRAIN, picture, published, tree


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    """A current folder with my_photos in it."""
    folder = tmp_path / "here"
    shutil.copytree(made / "my_photos", folder / "my_photos")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def refused(run, here):
    """A function that runs the command and gives the one line it refuses by; nothing is written."""

    def line(*words):
        before = tree(here)
        found = run("train", *words)
        assert (found.status, found.out) == (2, ""), found.err
        assert found.err.count("\n") == 1
        assert found.err.startswith("frontrank train: ")
        assert tree(here) == before
        return found.err.removeprefix("frontrank train: ").rstrip("\n")

    return line


def config_in(folder):
    return read_config(read_recipe(Path(folder) / "config.yaml"))


def plan(found):
    """The lines of a plan by name, and the settings that are printed last."""
    assert found.status == 0, found.err
    before, recipe = found.out.split("\nsettings, as a recipe:\n\n")
    lines = dict(line.split(maxsplit=1) for line in before.split("\n\n")[1].splitlines())
    Path("printed.yaml").write_text(recipe)
    return lines, read_config(read_recipe(Path("printed.yaml")))


# Help


def examples():
    shown = command.EPILOG.split("examples:\n")[1].split("\n\n")[0].replace("\\\n", " ")
    return [" ".join(line.split()) for line in shown.splitlines()]


@pytest.mark.parametrize("example", examples())
def test_examples_of_the_help(here, run, example):
    """As they stand they parse; with a small network and few steps they run, on few images."""
    words = shlex.split(example)
    words = words[words.index("frontrank") + 1 :]
    parser, commands = _parser()
    command.add_arguments(commands["train"])
    commands["train"].read(parser, words)

    if "--resume" in words:
        assert run("train", "--data", "my_photos", "--out", "runs/first", *TINY).status == 0
        small = []
    else:
        small = TINY if "my_photos" in words else [*TINY, "--data.validation", "0", "--batches.chunk", "4"]
    if "Stanford_Online_Products" in words:
        published("sop", here / "Stanford_Online_Products")
        small = [*small, "--allow-partial"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FrontrankWarning)
        found = run(*words, *small)
    assert found.status == 0, found.err
    assert ("trained 2 steps" in found.out) != ("--dry-run" in words)
    assert (here / "runs").exists() != ("--dry-run" in words)


def test_help_shows_every_setting_with_its_default(run):
    found = run("train", "--help")
    assert found.status == 0
    assert found.out.endswith(command.EPILOG)
    said = " ".join(found.out.split())
    for name, setting in settings().items():
        if name in ("data.path", "data.allow_partial"):
            continue
        default = "" if setting.default in (None, ()) else f" [{setting.default}]"
        assert f"--{name} VALUE " in said
        assert re.sub(r"\s", "", setting.help + default) in re.sub(r"\s", "", said)
    assert "--data.path" not in said
    for title in ("data: the images:", "batches: the batches:", "the run:", "loss: the loss:"):
        assert f"\n{title}" in found.out
    assert max(map(len, found.out.splitlines())) <= 84


def test_recipes_are_listed(run):
    found = run("train", "--recipes")
    assert (found.status, found.err) == (0, "")
    listed = [re.split(r"  +", line) for line in found.out.splitlines()]
    assert listed == [list(pair) for pair in recipe_names().items()]
    assert "pnp-sop" in dict(listed)


# Settings: defaults < recipe < command line


def test_a_recipe_by_path_and_settings_on_top(here, run):
    (here / "my.yaml").write_text(
        "loss: {name: SmoothAP, temperature: 0.5}\noptimizer.lr: 1e-3\nmodel.dim: 4\ndata.path: elsewhere\n"
    )
    found = run("train", "--recipe", "my.yaml", "--data", "my_photos", *TINY, "--loss.temperature", "2e-2")
    assert found.status == 0, found.err
    config = config_in("runs/my")  # named after the recipe
    assert config.loss == LossConfig("SmoothAP", temperature=0.02)
    assert (config.optimizer.lr, config.model.dim, config.batches.size) == (1e-3, 8, 8)
    assert config.optimizer.weight_decay == 4e-4
    assert config.data.path == str(here / "my_photos")


def test_a_recipe_by_name_and_its_data(here, run):
    (here / "photos.yaml").write_text("data: {path: my_photos, merge_classes: 2}\nbatches.per_class: 2\n")
    _, config = plan(run("train", "--recipe", "photos.yaml", "--dry-run", *TINY, "--batches.size", "4"))
    assert (config.data.path, config.data.merge_classes, config.batches.per_class) == ("my_photos", 2, 2)
    lines, config = plan(run("train", "--recipe", "pnp-sop", "--data", "my_photos", "--data.layout", "folder",
                             "--dry-run", *TINY))  # fmt: skip
    expected = {**read_recipe(fr.settings.find_recipe("pnp-sop")), "data.path": "my_photos", "data.layout": "folder"}
    words = dict(zip([word.removeprefix("--") for word in TINY[::2]], TINY[1::2], strict=True))
    assert config == read_config(expected, words)
    assert lines["out"] == "runs/pnp-sop"


def test_short_names_of_two_settings(here, run):
    others = [word for name, value in zip(TINY[::2], TINY[1::2], strict=True) for word in (name, value)
              if name not in ("--model.backbone", "--model.weights")]  # fmt: skip
    words = ["train", "--data", "my_photos", "--dry-run", *others]
    _, config = plan(run(*words, "--backbone", "test_resnet", "--weights", "none"))
    assert (config.model.backbone, config.model.weights) == ("test_resnet", "none")
    same = run(*words, "--backbone", "test_resnet", "--model.backbone", "test_resnet", "--model.weights", "none")
    assert plan(same)[1] == config


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--backbone resnet18 --model.backbone test_resnet", "--backbone is resnet18 and --model.backbone, the same "
         "setting, is test_resnet; leave one out"),
        ("--weights none --model.weights package", "--weights is none and --model.weights, the same setting, is "
         "package; leave one out"),
    ],
    ids=["backbone", "weights"],
)  # fmt: skip
def test_a_short_name_and_another_value(refused, words, message):
    assert refused("--data", "my_photos", *words.split()) == message
    assert refused("--resume", "my_photos", *words.split()) == message


REFUSALS = [  # words after --data my_photos, message
    ("--los.name PNP", "there is no option --los.name; did you mean --loss.name? See frontrank train --help"),
    ("--loss.temprature=0.1", "there is no option --loss.temprature; did you mean --loss.temperature? See"),
    ("--reciep x", "there is no option --reciep; did you mean --recipe? See"),
    ("--dryrun", "there is no option --dryrun; did you mean --dry-run? See"),
    ("extra", "'extra' is one argument too many; see"),
    ("--recipe pnp-sopp", "there is no recipe 'pnp-sopp'; did you mean pnp-sop?"),
    ("--recipe nothing.yaml", "there is no recipe 'nothing.yaml'; give a YAML file, or a name of frontrank train"),
    ("--recipe my_photos", "recipe my_photos is a folder; give a YAML file in it"),
    ("--data.layout fodler", "data.layout 'fodler' is not known; did you mean folder?"),
    ("--data.layout ", "data.layout '' is not known"),
    ("--data.layout sop", "my_photos"),
    ("--data.layout table", "my_photos is a folder"),
    ("--loss.name SmoothAPP", "loss.name 'SmoothAPP' is not known; did you mean SmoothAP?"),
    ("--loss.name SmoothAP --loss.alpha 2", "loss.alpha is not a setting of SmoothAP, which has temperature, include"),
    ("--loss.temperature -1", "temperature must be"),
    ("--epochs many", "epochs must be"),
    ("--epochs 0", "epochs must be"),
    ("--optimizer.lr nan", "optimizer.lr must be"),
    ("--data.flip perhaps", "data.flip must be"),
    ("--batches.kind balancd", "did you mean balanced"),
    ("--batches.size 6", "batches.size 6 is not a multiple of batches.per_class 4; make it one, such as 8"),
    ("--epochs 0 --seed -1", "seed must be"),
    ("--model.backbone test_resnett --model.weights none", "test_resnett"),
    ("--model.weights nowhere.safetensors", "nowhere.safetensors"),
    ("--model.weights package", "weights: no package holds weights of test_resnet; give one of the backbones tf_"),
    ("--device cuda:9", "device 'cuda:9' cannot be used"),
    ("--device rocket", "device 'rocket' cannot be used"),
    ("--metric R@x", "R@x"),
    ("--out my_photos", "--out my_photos is not empty; choose another name"),
    ("--out my_photos --dry-run", "--out my_photos is not empty; choose another name"),
    ("--out my_photos/train/it's/0.png", "--out my_photos/train/it's/0.png is a file; choose another name"),
    ("--out my_photos/train/it's/0.png/run", "--out my_photos/train/it's/0.png/run cannot be written to"),
    ("--batches.kind categories", "batches.kind categories needs images with categories"),
    ("--batches.size 112", "needs 28 classes, but labels holds 4"),
    ("--data.merge_classes 9", "9"),
]


@pytest.mark.parametrize(("words", "message"), REFUSALS)
def test_refused_in_one_line(refused, words, message):
    given = words.split(" ")
    small = [word for pair in zip(TINY[::2], TINY[1::2], strict=True) if pair[0] not in given for word in pair]
    assert message in refused("--data", "my_photos", *small, *given)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "there are no images; give --data, a folder of images by class"),
        ("--recipe pnp-sop", "there are no images; give --data"),
        ("--data nowhere", "--data nowhere is not there; give a folder"),
        ("--data my_photos --loss.temperature", "argument --loss.temperature: expected one argument; see"),
        ("--resume my_photos", "--resume my_photos holds no run (there is no config.yaml); give the folder of --out"),
        ("--resume nowhere", "--resume nowhere holds no run"),
    ],
)
def test_refused_without_more(refused, words, message):
    assert message in refused(*words.split())


@pytest.mark.parametrize("flag", ["--recipe pnp-sop", "--out other", "--dry-run", "--allow-partial"])
def test_what_does_not_go_with_resume(refused, flag):
    said = refused("--resume", "my_photos", *flag.split())
    assert said == f"{flag.split()[0]} does not go with --resume, which takes all from the run's folder; leave it out"


# The plan


def test_dry_run_says_all_and_writes_nothing(here, run, tmp_path):
    before = tree(tmp_path)
    found = run("train", "--data", "my_photos", "--dry-run", *TINY, "--batches.size", "0", "--quiet")
    assert tree(tmp_path) == before  # neither here nor in the cache
    assert found.err == ""
    lines, config = plan(found)
    # of 6 training classes of 4 images two are held out; the other four make one batch
    assert [line.split()[:3] for line in found.out.splitlines()[1:4]] == [
        ["train", "16", "4"],
        ["validation", "8", "2"],
        ["test", "12", "3"],
    ]
    assert lines["batches"] == "16 images each (balanced), 1 an epoch; 2 steps"
    assert re.fullmatch(r"test_resnet, [\d.]+ M weights, 8 dimensions; .*", lines["model"])
    assert lines["loss"].startswith("PNP(")
    assert lines["device"] == "cpu, 1 process(es), float32"
    assert re.fullmatch(
        r"images of a batch 0 MB; activations about [\d.]+ MB per image; "
        r"about [\d,]+ images fit at once, 16 are needed",
        lines["memory"],
    )
    assert lines["out"] == "runs/my_photos-PNP"
    words = dict(zip([word.removeprefix("--") for word in TINY[::2]], TINY[1::2], strict=True))
    assert config == read_config({}, {**words, "data.path": "my_photos", "batches.size": "16"})


@pytest.mark.parametrize(
    ("most", "words", "said"),
    [
        (8, "", "; about 8 images fit at once, 8 are needed"),
        (7, "", "; about 7 images fit at once, but 8 are asked for: set batches.chunk to 7 or less (the gradient"),
        (7, "--batches.chunk 7", "; about 7 images fit at once, 7 are needed"),
        (6, "--batches.chunk 7", "; about 6 images fit at once, but 7 are asked for: set batches.chunk to 6 or less"),
        (0, "", "; about 0 images fit at once; use a smaller model, data.size, or another device"),
        (None, "", "; this device does not tell how much it has"),
    ],
)
def test_what_fits_into_memory(here, run, monkeypatch, most, words, said):
    monkeypatch.setattr(training, "images_that_fit", lambda model, images, device: (2_500_000, most))
    lines, _ = plan(run("train", "--data", "my_photos", "--dry-run", *TINY, *words.split()))
    assert lines["memory"].startswith("images of a batch 0 MB; activations about 2.5 MB per image" + said)


# Runs


def test_what_a_run_prints_and_leaves(here, run, monkeypatch):
    monkeypatch.setattr("sys.argv", ["frontrank", "train", "--data", "my_photos"])
    found = run("train", "--data", "my_photos", *TINY)
    assert found.status == 0, found.err
    first, *rest, second = found.out.splitlines()
    said = r"trained 2 steps; held-out classes: (\d\.\d{4}) before, (\d\.\d{4}) at the best checkpoint \(step (\d)\)"
    before, best, step = re.fullmatch(said, first).groups()
    folder = Path("runs/my_photos-PNP")
    assert rest == ([] if float(best) > float(before) else [
        "the training did not help on the held-out classes: try another learning rate, or more steps"
    ])  # fmt: skip
    facts = json.loads((folder / "run.json").read_text())
    assert (f"{facts['before']:.4f}", f"{facts['best']:.4f}", str(facts["best_step"])) == (before, best, step)
    assert facts["command"] == "frontrank train --data my_photos"
    assert second == f"model: {folder}/model    try: frontrank evaluate {folder}/model --data PATH"
    assert re.search(r"step +1/2|1 of 2|validation", found.err)  # a line per logged step, where there is no terminal
    table = fr.data.read_table(folder / "images.csv")
    assert set(table.rows(table.splits != "test").labels) == set(TRAIN)  # spaces, quotes, line breaks and all
    assert set(table.of("test").labels) == set(TEST)
    assert all(Path(file).is_file() for file in table.files())
    assert fr.Embedder.load(folder / "model").dim == 8
    again = run("train", "--data", "my_photos", *TINY)
    assert again.status == 2
    assert again.err == (
        f"frontrank train: --out {folder} holds a run; go on with --resume {folder}, or choose another name\n"
    )


def test_quiet_prints_the_result_only(here, run):
    found = run("train", "--data", "my_photos", *TINY, "--quiet", "--data.validation", "0", "--out", "my run")
    assert (found.status, found.err) == (0, "")
    assert found.out == (
        "trained 2 steps; there were no held-out classes to choose a checkpoint by\n"
        "model: 'my run/model'    try: frontrank evaluate 'my run/model' --data PATH\n"
    )


def test_early_stop_is_said(here, run, monkeypatch):
    values = iter([0.5, 0.46, 0.42])
    monkeypatch.setattr(RetrievalRun, "evaluate", lambda self: {"R@1": next(values), "mAP": 0.1})
    found = run("train", "--data", "my_photos", *TINY, "--iterations", "40", "--patience", "1", "--quiet")
    assert found.out.startswith("trained 8 steps, stopped early; held-out classes: 0.5000 before, 0.4600 at the best")
    assert "\nthe training did not help on the held-out classes: try" in found.out


def test_the_other_processes_print_nothing(here, run, monkeypatch):
    monkeypatch.setattr(training, "train", lambda *_, **__: loop.Standing(step=2))
    monkeypatch.setenv("RANK", "1")
    assert run("train", "--data", "my_photos").out == ""


def test_ctrl_c_saves_and_says_how_to_go_on(here, run, monkeypatch):
    own = loop.take_step

    def step(run, standing, *rest):
        result = own(run, standing, *rest)
        if standing.step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return result

    monkeypatch.setattr(loop, "take_step", step)
    words = ["train", "--data", "my_photos", *TINY, "--iterations", "4", "--out", "my run", "--quiet"]
    found = run(*words)
    assert (found.status, found.out) == (130, "")
    assert found.err == (
        "\nstopping after this step, to save the run (again: stop at once) ...\n"
        "frontrank train: stopped at step 2 of 4, and saved; go on with: frontrank train --resume 'my run'\n"
    )
    monkeypatch.setattr(loop, "take_step", own)
    found = run("train", "--resume", "my run", "--quiet")
    assert found.out.startswith("trained 4 steps; ")
    found = run("train", "--resume", "my run", "--iterations", "6", "--data", "my_photos/../my_photos", "--quiet")
    assert found.out.startswith("trained 6 steps; ")
    assert config_in("my run").iterations == 6
    found = run("train", "--resume", "my run", "--loss.name", "SmoothAP")
    assert (found.status, found.out) == (2, "")
    assert found.err.startswith("frontrank train: --loss.name ")


def test_ctrl_c_before_the_first_step(here, run, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "train", interrupt)
    found = run("train", "--data", "my_photos")
    assert (found.status, found.out, found.err) == (130, "", "frontrank train: interrupted\n")


# Images


def test_a_published_data_set_that_is_not_complete(here, run, refused):
    published("sop", here / "sop")
    small = [*TINY, "--data.validation", "0", "--quiet"]
    said = refused("--data", "sop", *small)
    assert said.startswith(
        "Stanford Online Products in sop is not as published: train has 4 images of 3 classes instead of 59,551 images"
    )
    (here / "sop" / "cabinet_final" / "333_0.JPG").unlink()
    assert "1 listed image is missing: cabinet_final/333_0.JPG" in refused("--data", "sop", *small)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        shown = warnings.showwarning
        found = run("train", "--data", "sop", *small, "--allow-partial")
        assert warnings.showwarning is shown
    assert found.status == 0, found.err
    assert found.err.startswith("frontrank train: warning: Stanford Online Products in sop is not as published: ")
    assert found.err.endswith("; going on with the 6 images that are there\n")
    assert found.err.count("\n") == 1
    assert ".py" not in found.err
    assert config_in("runs/sop-PNP").data.allow_partial
    assert len(fr.data.read_table("runs/sop-PNP/images.csv").of("train")) == 3  # what is left


def test_other_warnings_keep_their_place(here, run, monkeypatch):
    def warn(options):
        warnings.warn("of another library", UserWarning, stacklevel=1)

    monkeypatch.setattr(training, "run", warn)
    with pytest.warns(UserWarning, match="of another library") as kept:
        found = run("train", "--data", "my_photos")
    assert (found.err, kept[0].filename) == ("", __file__)


def test_one_class_and_no_images(here, refused):
    shutil.copytree("my_photos/train/it's", "one/only")
    small = [*TINY, "--batches.size", "0"]
    assert "the training split has 1 classes of two images or more" in refused("--data", "one", *small)
    assert "class" in refused("--data", "one", *small, "--data.validation", "0")
    (here / "empty").mkdir()
    assert refused("--data", "empty", *TINY).startswith("empty has no images but no files; images end in .jpg")
    shutil.copytree("my_photos/test", "tested/test")
    assert refused("--data", "tested", *TINY) == (
        "--data tested has no images to train with; give some the split train"
    )


def test_broken_images(here, run, refused):
    bad = Path("my_photos/train/it's/1.png")
    bad.write_bytes(b"no picture")
    said = refused("--data", "my_photos", *TINY)
    assert said.startswith(f"1 of {len(TRAIN) * EACH} images cannot be read: train/it's/1.png ")
    assert said.endswith("; replace them, or leave them out (data.broken skip)")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        found = run("train", "--data", "my_photos", *TINY, "--data.broken", "skip", "--data.check", "quick", "--quiet")
    assert re.fullmatch(
        r"frontrank train: warning: 1 of 24 images cannot be read: train/it's/1.png .*; left out, and listed in "
        r"runs/my_photos-PNP/broken.csv\n",
        found.err,
    )
    assert found.status == 0, found.err
    table = fr.data.read_table("runs/my_photos-PNP/images.csv")
    kept = table.rows(table.splits != "test").paths.tolist()
    assert len(kept) == len(TRAIN) * EACH - 1
    assert not any(path.endswith("it's/1.png") for path in kept)


def test_broken_test_images_do_not_matter(here, run):
    Path("my_photos/test/cup/1.png").write_bytes(b"no picture")
    assert run("train", "--data", "my_photos", *TINY, "--quiet").status == 0


def test_names_that_are_not_utf8(here, run):
    """The folder of images may have such a name, and is then refused in a line; no run is left that could go on."""
    name = os.fsdecode(b"caf\xe9")
    shutil.copytree("my_photos/train/it's", f"my_photos/train/{name}")
    found = run("train", "--data", "my_photos", *TINY, "--quiet", "--out", "run")
    assert (found.status, found.err.count("\n")) == (2, 1)
    assert "run/images.csv cannot hold a name that is not UTF-8" in found.err
    assert list(Path("run").iterdir()) == []
    assert run("train", "--data", "my_photos", *TINY, "--quiet", "--dry-run").status == 0


def test_good_images_are_remembered(here, run, tmp_path):
    assert run("train", "--data", "my_photos", *TINY, "--quiet").status == 0
    (kept,) = (tmp_path / "cache" / "frontrank").iterdir()
    assert len(json.loads(kept.read_text())["good"]) == len(TRAIN) * EACH


@pytest.mark.parametrize("where", ["below-a-file", "no-cache"])
def test_a_cache_that_cannot_be_written(here, run, monkeypatch, tmp_path, where):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "cache"))
    if where == "no-cache":
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = run("train", "--data", "my_photos", *TINY, "--quiet")
    assert (found.status, found.err) == (0, "")
    assert (tmp_path / "home" / ".cache" / "frontrank").is_dir() == (where == "no-cache")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_and_categories(here, run, ending):
    for category in range(3):
        for label in range(3):
            for i in range(EACH):
                picture(Path(f"shop/kind {category}/{label}/{i}.png"), 10 * label + i, 60 * category)
    table = fr.data.read_folder("shop")
    table.save(f"shop.{ending}")
    words = [*TINY, "--batches.kind", "categories", "--data.validation", "0.2", "--quiet"]
    configs, models = [], []
    for data in ("shop", f"shop.{ending}"):
        found = run("train", "--data", data, *words, "--out", f"run-{data}")
        assert (found.status, found.err) == (0, "")
        kept = fr.data.read_table(f"run-{data}/images.csv")
        assert set(kept.categories) == {"kind 0", "kind 1", "kind 2"}
        models.append(fr.Embedder.load(f"run-{data}/model").state_dict())
        configs.append(config_in(f"run-{data}").data.path)
    assert configs == [str(here / "shop"), str(here / f"shop.{ending}")]
    assert all(np.array_equal(models[0][name], models[1][name]) for name in models[0])


def test_validation_images_of_the_user(here, run):
    """They are taken as they are, and the test images are not."""
    shutil.move("my_photos/test", "my_photos/val")
    found = run("train", "--data", "my_photos", *TINY, "--quiet")
    assert found.status == 0
    kept = fr.data.read_table("runs/my_photos-PNP/images.csv")
    assert set(kept.of("validation").labels) == set(TEST)
    assert len(kept.of("train")) == len(TRAIN) * EACH


def test_a_missing_library_is_one_line(here, refused, monkeypatch):
    def missing(*_):
        raise InputError("a recipe needs yaml; pip install 'frontrank[train]'")

    monkeypatch.setattr(training, "read_config", missing)
    assert refused("--data", "my_photos").endswith("pip install 'frontrank[train]'")
