"""From settings to objects: losses, devices, batches, images; what a run leaves in its folder, and what is refused."""

import csv
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import frontrank as fr
from frontrank.data.samplers import AllClassesBatches, BalancedBatches, CategoryBatches
from frontrank.data.table import ImageTable, read_table
from frontrank.errors import FrontrankWarning, InputError
from frontrank.samples.build import start_build
from frontrank.settings import BatchConfig, DataConfig, LossConfig, ModelConfig, read_config, read_recipe
from frontrank.training import distributed
from frontrank.training import images as run_images
from frontrank.training import run as build
from frontrank.training.defaults import fill_batches
from frontrank.training.embedding import embed_table
from frontrank.training.gradient import SharedLabels
from frontrank.training.logs import read_log
from tests.data.published_trees import TREES
from tests.errors import message_of
from tests.training.runs import config_of, differences, last_state, small_table, steps_with

CPU = torch.device("cpu")
PEER = {"variant": None, "temperature": None}  # settings that a loss of another package does not have


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FRONTRANK_CACHE", raising=False)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return small_table(tmp_path_factory.mktemp("glyphs"))


@pytest.fixture
def out(tmp_path):
    return tmp_path / "run"


# Devices


def test_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert distributed.build_device("auto") == distributed.build_device("cpu") == CPU
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert distributed.build_device("auto") == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert distributed.build_device("auto") == distributed.build_device("cuda") == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert distributed.build_device("auto") == distributed.build_device("cuda") == torch.device("cuda", 3)
    monkeypatch.setenv("LOCAL_RANK", "4")
    assert "process 5" in message_of(distributed.build_device, "cuda")
    assert distributed.build_device("cpu") == CPU


@pytest.mark.parametrize("name", ["cuda:7", "gpu", "", "meta"])
def test_devices_that_cannot_be_used(name):
    assert message_of(distributed.build_device, name).startswith(f"device {name!r}")


# Batches


def table_of(labels, categories=None):
    nothing = np.full(len(labels), "")
    paths = np.array([f"{i}.png" for i in range(len(labels))])
    categories = nothing if categories is None else np.array(categories)
    return ImageTable("images", paths, np.array(labels), categories, np.full(len(labels), "train"), nothing)


MANY = [f"{i // 5}" for i in range(200)]  # 40 classes of 5


@pytest.mark.parametrize(
    ("labels", "settings", "size"),
    [
        (MANY, {}, 112),
        (MANY, {"size": 60}, 60),
        (MANY, {"per_class": 5}, 110),  # a multiple of 5
        (MANY[:50], {"per_class": 4}, 40),  # 10 classes of 4
        (MANY[:50], {}, 50),  # few classes: all 5 images of each
        (MANY[:50], {"kind": "categories", "per_class": 0}, 40),  # whole classes: as if of 4
        (MANY[:50], {"kind": "all-classes"}, 48),  # not more than there are
        (MANY, {"kind": "all-classes", "per_class": 3}, 111),
    ],
)
def test_the_batch_size_that_is_left_open(labels, settings, size):
    assert fill_batches(BatchConfig(**settings), table_of(labels)).size == size


def test_kinds_of_batches():
    table = table_of(MANY, [f"kind {i // 50}" for i in range(200)])
    categories = BatchConfig("categories", size=24, per_class=0, categories=3, per_group=2, groups=4)
    groups = {"categories_per_batch": 3, "batches_per_group": 2, "groups_per_epoch": 4}
    expected = {
        BatchConfig(size=16, per_class=4): BalancedBatches(table.labels, 16, 4, seed=3),
        BatchConfig("all-classes", size=80): AllClassesBatches(table.labels, 80, seed=3),
        categories: CategoryBatches(table.labels, table.categories, 24, None, **groups, seed=3),
    }
    for config, sampler in expected.items():
        built = build.build_sampler(config, table, 3)
        assert type(built) is type(sampler)
        assert list(built.global_batches()) == list(sampler.global_batches())
    config = BatchConfig("categories", size=16, per_class=4)
    assert len(build.build_sampler(config, table, 3)) == 6 * 5  # groups 0 is all pairs of four categories
    assert "batches.kind" in message_of(build.build_sampler, config, table_of(MANY), 0)


# Images


@pytest.mark.parametrize("name", TREES)
def test_layouts_of_published_data_sets(tmp_path, name):
    TREES[name](tmp_path / "set")
    config = DataConfig(path=str(tmp_path / "set"))
    assert str(tmp_path / "set") in message_of(run_images.build_images, config)  # it has few of the images
    (tmp_path / "set" / "images.csv").write_text("path,label\n")  # of whoever has it; the data set stays one
    for layout in ("auto", name):
        with pytest.warns(FrontrankWarning):
            table = run_images.build_images(replace(config, layout=layout, allow_partial=True))
        assert table.name == fr.data.published.PUBLISHED[name].title


def two_classes(folder):
    for name in ("a/1.png", "b/1.png"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).touch()
    return DataConfig(path=str(folder))


def test_layouts_of_a_user(tmp_path):
    config = two_classes(tmp_path / "own")
    for layout in ("auto", "folder"):
        assert run_images.build_images(replace(config, layout=layout)).labels.tolist() == ["a", "b"]
    run_images.build_images(config).save(tmp_path / "own.csv")
    for layout in ("auto", "table"):
        table = run_images.build_images(DataConfig(path=str(tmp_path / "own.csv"), layout=layout))
        assert (table.paths.tolist(), table.name) == (["own/a/1.png", "own/b/1.png"], "own")


def test_a_folder_with_a_table_of_its_own(tmp_path):
    """It is what `frontrank data` builds; a folder of classes stays one, whatever else lies in it."""
    own = tmp_path / "own"
    config = two_classes(own)
    (own / "other.csv").write_text("path,label\na/1.png,other\n")
    (own / "a" / "images.csv").write_text("path,label\n1.png,deeper\n")
    assert run_images.build_images(config).labels.tolist() == ["a", "b"]
    (own / "images.csv").write_text("path,label,split\na/1.png,x,test\n")
    for layout in ("auto", "table"):
        table = run_images.build_images(replace(config, layout=layout))
        assert (table.paths.tolist(), table.labels.tolist(), table.splits.tolist()) == (["a/1.png"], ["x"], ["test"])
        assert (table.root, table.name) == (own, "own")
    assert run_images.build_images(DataConfig(path=str(own / "images.csv"))).files() == table.files()
    assert run_images.build_images(replace(config, layout="folder")).labels.tolist() == ["a", "b"]


@pytest.mark.parametrize("text", ["", "file,size\na/1.png,3\n", "path,label\n,x\n"])
def test_a_table_beside_classes_that_is_about_something_else(tmp_path, text):
    config = two_classes(tmp_path / "own")
    (tmp_path / "own" / "images.csv").write_text(text)
    guessed, asked = (
        message_of(run_images.build_images, replace(config, layout=layout)) for layout in ("auto", "table")
    )
    assert guessed.startswith(asked)  # and then says how it came to be read
    assert "images.csv" in guessed.removeprefix(asked)


@pytest.mark.parametrize("lost", [False, True], ids=["begun", "lost table"])
def test_a_data_set_that_is_not_finished(tmp_path, lost):
    """Its pictures are no classes of a user, and there may be few of them."""
    out = tmp_path / "my emoji"
    settings = {"data": "emoji", "designs": "all", "skin_tones": True, "size": 20, "classes": None, "typefaces": ["a"]}
    with start_build(out, settings):
        (out / "images" / "1F600").mkdir(parents=True)
        (out / "images" / "1F600" / "noto.png").write_bytes(b"x")
    state = json.loads((out / "data.json").read_text())
    if lost:
        (out / "data.json").write_text(json.dumps({**state, "finished": True}))
    else:
        (out / "images.csv").write_text("path,label\nimages/1F600/noto.png,1F600\n")
    command = f"frontrank data emoji '{out}' --designs all --skin-tones --size 20 --typefaces a"
    for layout in ("auto", "folder", "table"):
        assert command in message_of(run_images.build_images, DataConfig(path=str(out), layout=layout))
    if not lost:
        assert command in message_of(run_images.build_images, DataConfig(path=str(out / "images.csv")))
        (out / "data.json").write_text(json.dumps({**state, "finished": True}))
        assert len(run_images.build_images(DataConfig(path=str(out)))) == 1
    else:
        (out / "data.json").write_text('{"finished": false}')  # of somebody else
        assert run_images.build_images(DataConfig(path=str(out))).labels.tolist() == ["images/1F600"]


def test_images_that_cannot_be(tmp_path):
    here = str(tmp_path)
    assert "--data" in message_of(run_images.build_images, DataConfig())
    assert f"--data {here}/nowhere" in message_of(run_images.build_images, DataConfig(path=f"{here}/nowhere"))
    assert "images.csv" in message_of(run_images.build_images, DataConfig(path=here, layout="table"))
    assert "rparis6k" in message_of(run_images.build_images, DataConfig(path=here, layout="rparis"))
    assert "data.layout 'zzz'" in message_of(run_images.build_images, DataConfig(path=here, layout="zzz"))


def test_the_images_of_a_run(images, tmp_path):
    config = config_of(images, data={"validation": 0.2, "merge_classes": 2})
    table = run_images.split_images(fr.data.read_table(images), config)
    run = run_images.check_run_images(table, config, remember=True, show=False)
    assert set(run.used.splits) == {"train", "validation"}
    assert set(run.all.splits) == {"train", "validation", "test"}
    assert len(set(run.used.of("validation").labels)) == 2
    merged = set(run.used.of("train").labels)  # the other ten, in pairs such as U+0042+U+0043
    assert [label.count("+") for label in merged] == [3] * 5
    assert [path.name[:8] for path in (tmp_path / "cache" / "frontrank").iterdir()] == ["checked-"]


def test_splits_that_cannot_be(images):
    table = fr.data.read_table(images)
    only = replace(table, splits=np.full(len(table), "test"))
    assert f"--data {images}" in message_of(run_images.split_images, only, config_of(images))
    assert "data.test" in message_of(run_images.split_images, table, config_of(images, data={"test": 0.3}))
    training = table.of("train")
    splits = training.splits.astype("U10")
    splits[np.unique(training.labels, return_index=True)[1][:3]] = "validation"  # three classes of one image
    assert "validation" in message_of(run_images.split_images, replace(training, splits=splits), config_of(images))
    one = training.rows(training.labels == training.labels[0])
    assert "class" in message_of(run_images.split_images, one, config_of(images))


def test_what_is_remembered_is_by_root_and_share(tmp_path, monkeypatch):
    def cache(path, rank=0, world=1):
        return run_images.image_check_cache(path, rank, world)

    one, other = cache(tmp_path / "a"), cache(tmp_path / "b")
    assert one != other
    assert one == cache(tmp_path / "b" / ".." / "a")
    assert len({cache(tmp_path / "a", rank, world) for rank, world in ((0, 1), (0, 2), (1, 2), (0, 3))}) == 4
    assert one.parent == tmp_path / "cache" / "frontrank"
    assert cache(tmp_path / os.fsdecode(b"caf\xe9")) not in (one, None)  # not UTF-8
    (tmp_path / "file").touch()
    monkeypatch.setenv("FRONTRANK_CACHE", str(tmp_path / "file" / "cache"))
    assert cache(tmp_path) is None


def test_the_digest_of_images(images):
    table = fr.data.read_table(images)
    assert run_images.table_digest(table) == run_images.table_digest(
        replace(table, root=Path("elsewhere"), name="other")
    )
    for column in ("paths", "labels", "splits"):
        changed = getattr(table, column).copy()
        changed[3] = "x"
        assert run_images.table_digest(table) != run_images.table_digest(replace(table, **{column: changed}))


# Models and runs


def test_every_setting_reaches_the_model():
    config = ModelConfig("test_resnet", "none", "gem", 6, "train", layer_norm=True, dropout=0.3, stage=2)
    model = build.build_model(config, DataConfig(resize=48, size=40))
    settings = {"pooling": "gem", "dim": 6, "batch_norm": "train", "layer_norm": True, "dropout": 0.3, "stage": 2}
    expected = fr.Embedder("test_resnet", weights=None, image_size=40, resize=48, **settings)
    assert model.settings == expected.settings
    assert str(model) == str(expected)


def test_a_run_in_other_layouts_and_the_same_weights(images, out):
    loss = {**PEER, "name": "pml.ProxyAnchorLoss"}
    runs = [build.build_run(config_of(images, channels_last=True, loss=loss), out, CPU, quiet=True) for _ in range(2)]
    assert differences(runs[0].model.state_dict(), runs[1].model.state_dict()) == []
    convolutions = [weight for weight in runs[0].model.parameters() if weight.ndim == 4 and weight.shape[-1] > 1]
    assert convolutions[0].is_contiguous(memory_format=torch.channels_last)
    assert [tuple(each.shape) for each in runs[0].loss.parameters()] == [(10, 16)]
    held = {id(weight) for group in runs[0].optimizer.param_groups for weight in group["params"]}
    assert {id(weight) for weight in runs[0].loss.parameters()} <= held
    assert not out.exists()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"metric": "R@0"}, "R@0"),
        ({"loss": {"name": "SmothAP"}}, "SmoothAP?"),
        ({"loss": {"bins": 10}}, "loss.bins"),
        ({"batches": {"kind": "category"}}, "batches.kind"),
        ({"batches": {"size": 112}}, "batch_size"),
        ({"optimizer": {"warmup": 1000}}, "optimizer.warmup"),
        ({"loss": {**PEER, "name": "pml.TripletMarginLoss", "options": {"margin": "x"}}}, "loss.options"),
        ({"loss": {**PEER, "name": "pml.ProxyAnchorLoss"}, "batches": {"memory": 8}}, "batches.memory"),
        ({"loss": {**PEER, "name": "pml.NPairsLoss"}, "batches": {"memory": 8}}, "batches.memory"),
    ],
    ids=str,
)
def test_settings_are_checked_before_images_are_decoded(images, out, monkeypatch, changes, match):
    monkeypatch.setattr(build, "check_run_images", None)
    assert match in message_of(build.build_run, config_of(images, **changes), out, CPU)


# The folder of a run


@pytest.mark.training
def test_what_a_run_leaves(images, out, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["frontrank", "train", "--data", "a b"])
    config = config_of(images, epochs=2, seed=5)
    standing = fr.train(config, out, quiet=True)
    assert standing.step == 10  # of 10 training classes, 8 images each make 5 batches of 4 x 4, twice
    names = {"config.yaml", "run.json", "images.csv", "log.jsonl", "tensorboard", "checkpoints", "model"}
    assert {path.name for path in out.iterdir()} == names
    chosen = {"precision": "float32", "channels_last": True}  # by device and network
    assert read_config(read_recipe(out / "config.yaml")) == replace(config, **chosen)
    facts = json.loads((out / "run.json").read_text())
    assert (facts["command"], facts["device"], facts["processes"]) == ("frontrank train --data 'a b'", "cpu", 1)
    assert {"python", "frontrank", "torch", "timm", "numpy", "pillow"} <= facts["versions"].keys()
    assert (facts["seed"], facts["broken_images"]) == (5, 0)
    assert facts["machine"]
    results = {"metric": "R@1", "steps": 10, "before": standing.before, "best": standing.best}
    assert results.items() <= facts.items()
    assert facts["best_step"] == standing.best_step
    assert set(fr.data.read_table(out / "images.csv").splits) == {"train", "validation", "test"}
    logged = {"loss", "queries_used", "queries_skipped", "AP error", "gradient norm", "learning rate", "images/s"}
    assert logged <= set(read_log(out / "log.jsonl")[1])
    assert steps_with(out, "validation R@1") == steps_with(out, "validation mAP") == [0, 5, 10]
    assert any((out / "tensorboard").iterdir())
    assert fr.Embedder.load(out / "model").dim == 16
    assert str(out) in message_of(fr.train, config, out)  # it holds a run


@pytest.mark.training
def test_runs_are_the_same_and_workers_do_not_matter(images, tmp_path):
    for name, workers in (("a", 0), ("b", 0), ("c", 2)):
        fr.train(config_of(images, iterations=3, data={"workers": workers}), tmp_path / name, quiet=True)
    states = [last_state(tmp_path / name) for name in "abc"]
    assert differences(states[0], states[1]) == []
    assert differences(states[0], states[2]) == []


@pytest.mark.training
def test_a_run_continues_from_another_folder_with_more_steps(images, tmp_path, monkeypatch):
    fr.Embedder("test_resnet", dim=16, image_size=32, resize=32).save(tmp_path / "start")
    monkeypatch.chdir(tmp_path)
    fr.train(config_of(os.path.relpath(images), iterations=1, model={"weights": "start"}), "run", quiet=True)
    before = (tmp_path / "run" / "config.yaml").read_text()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for overrides, match in (({"loss.temperature": "1"}, "--loss.temperature"), ({"epochs": "20"}, "--iterations")):
        assert match in message_of(fr.resume, tmp_path / "run", overrides, quiet=True)
    assert fr.resume(tmp_path / "run", {"iterations": "2"}, quiet=True).step == 2
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (len(facts["resumed"]), facts["steps"]) == (1, 2)
    assert fr.resume(tmp_path / "run", quiet=True).step == 2  # the new number of steps is kept
    (tmp_path / "run" / "config.yaml").write_text(before.replace("dim: 16", "dim: 8"))
    assert "config.yaml" in message_of(fr.resume, tmp_path / "run", quiet=True)
    assert "dim: 8" in (tmp_path / "run" / "config.yaml").read_text()  # nothing was written


@pytest.mark.training
def test_a_run_continues_with_moved_images_and_not_with_others(tmp_path):
    table = small_table(tmp_path / "glyphs")
    fr.train(config_of(table, epochs=1), tmp_path / "run", quiet=True)
    assert "--epochs" in message_of(fr.resume, tmp_path / "run", {"iterations": "20"}, quiet=True)
    (tmp_path / "glyphs").rename(tmp_path / "moved")
    table = tmp_path / "moved" / "images.csv"
    assert fr.resume(tmp_path / "run", {"epochs": "2", "data.path": str(table)}, quiet=True).step == 10
    saved = fr.data.read_table(tmp_path / "run" / "images.csv")
    assert all(Path(file).is_file() for file in saved.files())
    text = table.read_text()
    name = next(line for line in text.splitlines() if ",train," in line).split(",")[0]
    (table.parent / name).rename(table.parent / f"{name}.png")
    table.write_text(text.replace(f"{name},", f"{name}.png,"))  # as many images of as many classes
    assert "step-00000010" in message_of(fr.resume, tmp_path / "run", {"epochs": "3"}, quiet=True)


@pytest.mark.training
def test_broken_images_end_the_run_before_it_starts_or_are_left_out(tmp_path, out):
    table = small_table(tmp_path / "glyphs")
    names = [str(path) for path in fr.data.read_table(table).of("train").paths[:5]]
    for name in names:
        (tmp_path / "glyphs" / name).write_bytes(b"")
    assert names[0] in message_of(fr.train, config_of(table, data={"broken": "fail"}), out)
    assert not out.exists()
    with pytest.warns(FrontrankWarning, match=r"broken\.csv") as caught:
        fr.train(config_of(table, iterations=1), out, quiet=True)
    assert all(name in str(caught[0].message) for name in names[:3])
    with (out / "broken.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["path", "reason"]
    assert [path for path, _ in rows] == sorted(names)
    assert json.loads((out / "run.json").read_text())["broken_images"] == 5
    assert len(fr.data.read_table(out / "images.csv")) == len(fr.data.read_table(table)) - 5


def test_no_image_is_left(images, monkeypatch):
    broken = [(str(path), "is empty") for path in fr.data.read_table(images).of("train").paths]
    config = config_of(images, data={"validation": 0.0})
    monkeypatch.setattr(run_images, "check_images", lambda *_, **__: type("Checked", (), {"broken": broken}))
    said = message_of(run_images.check_run_images, fr.data.read_table(images), config, remember=False, show=False)
    assert str(Path(images).parent) in said


@pytest.mark.training
def test_an_image_that_breaks_during_the_run(tmp_path, out):
    table = small_table(tmp_path / "glyphs")
    name = next(str(path) for path in fr.data.read_table(table).of("train").paths)
    (tmp_path / "glyphs" / name).unlink()
    assert Path(name).name in message_of(fr.train, config_of(table, data={"check": "none"}), out, quiet=True)


def test_folders_that_are_not_new(tmp_path, out):
    (tmp_path / ".DS_Store").touch()
    build.require_new(tmp_path)  # hidden files only
    build.require_new(out)
    out.mkdir()
    for name in ("run.json", "images.csv"):  # of a run that was killed before it wrote its settings
        (out / name).write_text("{}")
        build.require_new(out)
    (out / "run.json").unlink()
    assert str(out) in message_of(build.require_new, out)  # somebody's own images.csv
    (tmp_path / "mine").touch()
    assert str(tmp_path) in message_of(build.require_new, tmp_path)
    assert "mine" in message_of(build.require_new, tmp_path / "mine")
    (tmp_path / "config.yaml").touch()
    assert f"--resume {tmp_path}" in message_of(build.require_new, tmp_path)
    assert "mine/run" in message_of(build.make_folder, tmp_path / "mine" / "run")


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_what_is_no_run_cannot_continue(name, tmp_path):
    (tmp_path / "empty").mkdir()
    assert f"--resume {tmp_path / name}" in message_of(fr.resume, tmp_path / name)


def test_facts_that_are_damaged(tmp_path):
    for text in ("{", "[1]"):
        (tmp_path / "run.json").write_text(text)
        assert build.read_facts(tmp_path, {"seed": 1}) == {"seed": 1}


@pytest.mark.processes
def test_the_commit_is_of_the_package_and_of_no_other_repository(tmp_path, monkeypatch):
    def git(*words):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    file = tmp_path / "src" / "run.py"
    file.parent.mkdir()
    file.write_text("")
    monkeypatch.setattr(build, "__file__", str(file))
    assert build._commit() is None  # no repository
    git("init", "-q")
    (tmp_path / "other").write_text("")
    git("add", "other")
    git("commit", "-qm", "a repository that the package was installed in, and is no part of")
    assert build._commit() is None
    git("add", "src")
    git("commit", "-qm", "the package's own")
    assert build._commit() == git("rev-parse", "HEAD")
    monkeypatch.setenv("PATH", "")
    assert build._commit() is None  # no git


def test_a_loss_of_levels_says_which_it_lacks(images, out, tmp_path):
    table = read_table(images)
    replace(table, categories=np.arange(len(table)).astype(str)).save(tmp_path / "table.csv")
    config = config_of(str(tmp_path / "table.csv"), loss=LossConfig("HierarchicalAP"), iterations=1)
    with pytest.warns(FrontrankWarning, match="HierarchicalAP .* column category"):
        build.build_run(config, out, torch.device("cpu"), quiet=True)


# Images of several labels


def lists_of(path, folder):
    """A table in which every second training image also has the label of the next class."""
    table = read_table(path)
    classes = sorted(set(table.labels))
    labels = [
        [label, classes[(classes.index(label) + 1) % len(classes)]] if row % 2 else label
        for row, label in enumerate(table.labels.tolist())
    ]
    splits = np.where(np.arange(len(table)) % 8 < 2, "validation", table.splits)
    replace(table, labels=labels, splits=splits).save(folder / "lists.csv")
    return str(folder / "lists.csv")


@pytest.mark.training
def test_training_on_several_labels_per_image(images, out, tmp_path):
    path = lists_of(images, tmp_path)
    config = config_of(path, epochs=1, head="auto", loss=LossConfig("SupAP"))
    build.train(config, out, quiet=True)
    held_out = read_table(path).of("validation")
    embeddings = embed_table(fr.Embedder.load(out / "model"), held_out, workers=0, show=False)
    report = fr.evaluate(embeddings, held_out.label_sets())
    name = "validation R@1"
    values = [line[name] for line in read_log(out / "log.jsonl") if name in line]
    assert report["R@1"] == pytest.approx(max(values), abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"batches": {"memory": 64}}, "batches.memory"),
        ({"batches": {"kind": "categories"}}, "batches.kind"),
        ({"loss": LossConfig("pml.MultiSimilarityLoss")}, "loss.name"),
        ({"data": {"merge_classes": 2}}, "merge_classes"),
    ],
)
def test_settings_that_need_one_label(images, out, tmp_path, changes, name):
    with pytest.raises(InputError, match=name):
        build.train(config_of(lists_of(images, tmp_path), **changes), out, quiet=True)


def test_two_images_are_relevant_to_each_other_if_they_share_a_label():
    members, generator = torch.tensor([[0, 1], [1, -1], [2, 0], [3, -1]]), torch.Generator().manual_seed(0)
    batch, labels = torch.randn(9, 4, generator=generator), torch.tensor([0, 1, 2, 3, 0, 1, 2, 3, 0])
    sets = [{0, 1}, {1}, {2, 0}, {3}]
    relevant = torch.tensor([[bool(sets[a] & sets[b]) for b in labels] for a in labels])
    loss = SharedLabels(fr.SmoothAP(), members)
    assert torch.equal(loss(batch, labels), fr.SmoothAP()(batch, relevant=relevant))
    against = loss(batch[:4], labels[:4], ref_emb=batch[4:], ref_labels=labels[4:])
    assert torch.equal(against, fr.SmoothAP()(batch[:4], ref_emb=batch[4:], relevant=relevant[:4, 4:]))
