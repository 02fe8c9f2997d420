"""From settings to objects: losses, devices, images, batches, and what a run's folder says of it."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import frontrank as fr
from frontrank.data.samplers import AllClassesBatches, BalancedBatches, CategoryBatches
from frontrank.data.table import ImageTable
from frontrank.errors import FrontrankWarning, InputError
from frontrank.samples.folder import begun
from frontrank.settings import BatchConfig, DataConfig, ModelConfig
from frontrank.training import loop as run_images
from frontrank.training import run as build
from frontrank.training import run as run_folder
from tests.data.published_trees import TREES
from tests.training.runs import config_of, small_table


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FRONTRANK_CACHE", raising=False)


def refusal(call, *args, **more):
    with pytest.raises(InputError) as caught:
        call(*args, **more)
    assert str(caught.value).isprintable()
    return str(caught.value)


# Losses

# Devices


def test_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert build.build_device("auto") == build.build_device("cpu") == torch.device("cpu")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert build.build_device("auto") == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert build.build_device("auto") == build.build_device("cuda") == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert build.build_device("auto") == build.build_device("cuda") == torch.device("cuda", 3)
    monkeypatch.setenv("LOCAL_RANK", "4")
    assert refusal(build.build_device, "cuda") == (
        "process 5 of this machine has no GPU of its own, there are 4; start fewer"
    )
    assert build.build_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["cuda:7", "gpu", "", "cpu:x", "meta"])
def test_devices_that_cannot_be_used(name):
    said = refusal(build.build_device, name)
    assert said.startswith(f"device {name!r} cannot be used (")
    assert said.endswith("); use auto, cpu, or a device of this machine")


def test_processes_leave_nothing_behind():
    with build.processes("cpu") as device:
        assert device == torch.device("cpu")
    assert not torch.distributed.is_initialized()


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
        (MANY, {"per_class": 2}, 80),  # 40 classes of two
        (MANY, {"per_class": 5}, 110),  # a multiple of 5
        (MANY[:50], {}, 40),  # 10 classes of 4
        (MANY[:50], {"kind": "categories"}, 40),
        (MANY[:50], {"kind": "categories", "per_class": 0}, 40),  # whole classes: as if of 4
        (MANY[:50], {"kind": "all-classes"}, 48),  # not more than there are
        (MANY, {"kind": "all-classes"}, 112),
        (MANY, {"kind": "all-classes", "per_class": 3}, 111),
    ],
)
def test_the_batch_size_that_is_left_open(labels, settings, size):
    config = BatchConfig(**settings)
    assert build.sized_batches(config, table_of(labels)) == replace(config, size=size)


def test_kinds_of_batches():
    categories = [f"kind {i // 50}" for i in range(200)]
    table = table_of(MANY, categories)
    found = build.build_sampler(BatchConfig(size=16), table, 3)
    assert type(found) is BalancedBatches
    assert list(found.global_batches()) == list(BalancedBatches(table.labels, 16, 4, seed=3).global_batches())
    found = build.build_sampler(BatchConfig("all-classes", size=80), table, 3)
    assert type(found) is AllClassesBatches
    assert list(found.global_batches()) == list(AllClassesBatches(table.labels, 80, seed=3).global_batches())
    config = BatchConfig("categories", size=24, per_class=0, categories=3, per_group=2, groups=4)
    found = build.build_sampler(config, table, 3)
    expected = CategoryBatches(
        table.labels,
        table.categories,
        24,
        None,
        categories_per_batch=3,
        batches_per_group=2,
        groups_per_epoch=4,
        seed=3,
    )
    assert type(found) is CategoryBatches
    assert list(found.global_batches()) == list(expected.global_batches())
    config = BatchConfig("categories", size=16)
    assert len(build.build_sampler(config, table, 3)) == 6 * 5  # groups 0 is all pairs of four categories
    said = refusal(build.build_sampler, config, table_of(MANY), 0)
    assert said == "batches.kind categories needs images with categories; use batches.kind balanced"


# Images


@pytest.mark.parametrize("name", TREES)
def test_layouts_of_published_data_sets(tmp_path, name):
    TREES[name](tmp_path / "set")
    config = DataConfig(path=str(tmp_path / "set"))
    assert "is not as published" in refusal(build.build_images, config)
    (tmp_path / "set" / "images.csv").write_text("path,label\n")  # of whoever has it; the data set stays one
    for layout in ("auto", name):
        with pytest.warns(FrontrankWarning, match="is not as published"):
            found = build.build_images(replace(config, layout=layout, allow_partial=True))
        assert found.name == fr.data.published.PUBLISHED[name].title


def test_layouts_of_a_user(tmp_path):
    for name in ("a/1.png", "b/1.png"):
        (tmp_path / "own" / name).parent.mkdir(parents=True)
        (tmp_path / "own" / name).touch()
    config = DataConfig(path=str(tmp_path / "own"))
    for layout in ("auto", "folder"):
        assert build.build_images(replace(config, layout=layout)).labels.tolist() == ["a", "b"]
    build.build_images(config).save(tmp_path / "own.csv")
    for layout in ("auto", "table"):
        found = build.build_images(DataConfig(path=str(tmp_path / "own.csv"), layout=layout))
        assert (found.paths.tolist(), found.name) == (["own/a/1.png", "own/b/1.png"], "own")


def test_a_folder_with_a_table_of_its_own(tmp_path):
    """It is what `frontrank data` builds; a folder of classes stays one, whatever else lies in it."""
    own = tmp_path / "own"
    for name in ("a/1.png", "b/1.png"):
        (own / name).parent.mkdir(parents=True)
        (own / name).touch()
    config = DataConfig(path=str(own))
    (own / "other.csv").write_text("path,label\na/1.png,other\n")
    (own / "a" / "images.csv").write_text("path,label\n1.png,deeper\n")
    assert build.build_images(config).labels.tolist() == ["a", "b"]
    (own / "images.csv").write_text("path,label,split\na/1.png,x,test\n")
    for layout in ("auto", "table"):
        found = build.build_images(replace(config, layout=layout))
        assert (found.paths.tolist(), found.labels.tolist(), found.splits.tolist()) == (["a/1.png"], ["x"], ["test"])
        assert (found.root, found.name) == (own, "own")
    same = build.build_images(DataConfig(path=str(own / "images.csv")))
    assert (same.files(), same.name) == (found.files(), "own")
    assert build.build_images(replace(config, layout="folder")).labels.tolist() == ["a", "b"]


@pytest.mark.parametrize(
    "text", ["", "file,size\na/1.png,3\n", "path,label\n", "path,label\na/1.png\n", "path,label\n,x\n"]
)
def test_a_table_beside_classes_that_is_about_something_else(tmp_path, text):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").touch()
    (tmp_path / "images.csv").write_text(text)
    said = refusal(build.build_images, DataConfig(path=str(tmp_path)))
    assert "images.csv" in said or f"{tmp_path.name}" in said
    assert said.endswith("; or, if images.csv is not about these images, move it away")
    assert "move it away" not in refusal(build.build_images, DataConfig(path=str(tmp_path), layout="table"))
    assert build.build_images(DataConfig(path=str(tmp_path), layout="folder")).labels.tolist() == ["a"]


@pytest.mark.parametrize("lost", [False, True], ids=["begun", "lost table"])
def test_a_data_set_that_is_not_finished(tmp_path, lost):
    """Its pictures are no classes of a user, and there may be few of them."""
    out = tmp_path / "my emoji"
    settings = {"data": "emoji", "designs": "all", "skin_tones": True, "size": 20, "classes": None, "typefaces": ["a"]}
    with begun(out, settings):
        (out / "images" / "1F600").mkdir(parents=True)
        (out / "images" / "1F600" / "noto.png").write_bytes(b"x")
    state = json.loads((out / "data.json").read_text())
    if lost:
        (out / "data.json").write_text(json.dumps({**state, "finished": True}))
    else:
        (out / "images.csv").write_text("path,label\nimages/1F600/noto.png,1F600\n")
    for layout in ("auto", "folder", "table"):
        said = refusal(build.build_images, DataConfig(path=str(out), layout=layout))
        command = f"frontrank data emoji '{out}' --designs all --skin-tones --size 20 --typefaces a"
        assert said == f"--data {out} is not finished yet; go on with it: {command}"
    if not lost:
        assert command in refusal(build.build_images, DataConfig(path=str(out / "images.csv")))
        (out / "data.json").write_text(json.dumps({**state, "finished": True}))
        assert len(build.build_images(DataConfig(path=str(out)))) == 1
    else:
        (out / "data.json").write_text('{"finished": false}')  # of somebody else
        assert build.build_images(DataConfig(path=str(out))).labels.tolist() == ["images/1F600"]


def test_a_folder_without_a_table_is_none(tmp_path):
    said = refusal(build.build_images, DataConfig(path=str(tmp_path), layout="table"))
    assert "images.csv" in said


def test_images_that_cannot_be(tmp_path):
    here = str(tmp_path)
    assert refusal(build.build_images, DataConfig()).startswith("there are no images; give --data, a folder")
    assert "nowhere is not there; give a folder" in refusal(build.build_images, DataConfig(path=f"{here}/nowhere"))
    said = refusal(build.build_images, DataConfig(path=here, layout="rparis"))
    assert said == "data.layout 'rparis' is not known; did you mean rparis6k?"
    assert refusal(build.build_images, DataConfig(path=here, layout="zzz")) == "data.layout 'zzz' is not known"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return small_table(tmp_path_factory.mktemp("glyphs"))


def test_the_images_of_a_run(images, tmp_path):
    config = config_of(images, data={"validation": 0.2, "merge_classes": 2})
    whole = run_images.split_images(fr.data.read_table(images), config)
    found = run_images.check_run_images(whole, config, remember=True, show=False)
    assert set(found.used.splits) == {"train", "validation"}
    assert set(found.all.splits) == {"train", "validation", "test"}
    assert len(set(found.used.of("validation").labels)) == 2
    merged = set(found.used.of("train").labels)  # the other ten, in pairs such as U+0042+U+0043
    assert [label.count("+") for label in merged] == [3] * 5
    assert [path.name[:8] for path in (tmp_path / "cache" / "frontrank").iterdir()] == ["checked-"]
    only = replace(fr.data.read_table(images), splits=np.full(160, "test"))
    assert "has no images to train with; give some the split train" in refusal(run_images.split_images, only, config)


def test_what_is_remembered_is_by_root_and_share(tmp_path, monkeypatch):
    def memory(path, rank=0, world=1):
        return run_images.checked_images_file(path, rank, world)

    one, other = memory(tmp_path / "a"), memory(tmp_path / "b")
    assert one != other
    assert one == memory(tmp_path / "b" / ".." / "a")
    assert len({memory(tmp_path / "a", rank, world) for rank, world in ((0, 1), (0, 2), (1, 2), (0, 3))}) == 4
    assert one.parent == tmp_path / "cache" / "frontrank"
    assert memory(tmp_path / os.fsdecode(b"caf\xe9")) not in (one, None)  # not UTF-8
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert memory(tmp_path).parent == tmp_path / "home" / ".cache" / "frontrank"
    monkeypatch.setenv("FRONTRANK_CACHE", str(tmp_path / "own"))
    assert memory(tmp_path).parent == tmp_path / "own"
    monkeypatch.setenv("FRONTRANK_CACHE", "")
    monkeypatch.setattr(Path, "expanduser", _no_home)
    assert memory(tmp_path) is None


def _no_home(path):
    raise RuntimeError("Could not determine home directory.")


def test_images_whose_digest_is_the_same(images):
    table = fr.data.read_table(images)
    assert run_images.digest(table) == run_images.digest(replace(table, root=Path("elsewhere"), name="other"))
    for column in ("paths", "labels", "splits"):
        changed = getattr(table, column).copy()
        changed[3] = "x"
        assert run_images.digest(table) != run_images.digest(replace(table, **{column: changed}))


# Models and runs


def test_every_setting_reaches_the_model():
    config = ModelConfig("test_resnet", "none", "gem", 6, "train", layer_norm=True, dropout=0.3, stage=2)
    model = build.build_model(config, DataConfig(resize=48, size=40))
    expected = fr.Embedder(
        "test_resnet",
        weights=None,
        pooling="gem",
        dim=6,
        batch_norm="train",
        layer_norm=True,
        dropout=0.3,
        image_size=40,
        resize=48,
        stage=2,
    )
    assert model.settings == expected.settings
    assert (model.dim, model.image_size, model.resize) == (6, 40, 48)
    assert str(model) == str(expected)
    assert str(model) != str(build.build_model(replace(config, pooling="max"), DataConfig(resize=48, size=40)))


def test_a_run_in_other_layouts_and_the_same_weights(images, tmp_path):
    config = config_of(
        images, channels_last=True, loss={"name": "pml.ProxyAnchorLoss", "variant": None, "temperature": None}
    )
    runs = [build.build_run(config, tmp_path / "run", torch.device("cpu"), quiet=True) for _ in range(2)]
    states = [run.model.state_dict() for run in runs]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    convolutions = [weight for weight in runs[0].model.parameters() if weight.ndim == 4 and weight.shape[-1] > 1]
    assert convolutions[0].is_contiguous(memory_format=torch.channels_last)
    assert [tuple(each.shape) for each in runs[0].loss.parameters()] == [(10, 16)]
    held = {id(weight) for group in runs[0].optimizer.param_groups for weight in group["params"]}
    assert {id(weight) for weight in runs[0].loss.parameters()} <= held
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "R@0"}, "R@0"),
        ({"loss": {"name": "SmothAP"}}, "did you mean SmoothAP?"),
        ({"model": {"backbone": "resnet5000"}}, "resnet5000"),
    ],
)
def test_what_is_misspelt_is_found_before_images_are_decoded(images, tmp_path, monkeypatch, changes, message):
    def work(*_, **__):
        raise AssertionError("decoded")

    monkeypatch.setattr(build, "check_run_images", work)
    said = refusal(build.build_run, config_of(images, **changes), tmp_path, torch.device("cpu"))
    assert message in said


# What a run's folder says


def test_facts_of_a_run(images, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["frontrank", "train", "--data", "x"])
    run = build.build_run(config_of(images, seed=5), tmp_path / "run", torch.device("cpu"), quiet=True)
    run_folder.write_beginning(run)
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (facts["command"], facts["device"], facts["processes"]) == ("frontrank train --data x", "cpu", 1)
    assert facts["seed"] == 5
    assert {"python", "frontrank", "torch", "timm", "numpy", "pillow"} <= facts["versions"].keys()
    assert facts["machine"]
    assert "best" not in facts
    standing = build.Standing(step=7, before=0.25, best=0.5, best_step=3)
    run_folder.write_end(run, standing)
    after = json.loads((tmp_path / "run" / "run.json").read_text())
    ends = {"metric": "R@1", "steps": 7, "before": 0.25, "best": 0.5, "best_step": 3}
    assert after == facts | ends


def test_the_commit_is_of_the_package_and_of_no_other_repository(tmp_path, monkeypatch):
    def git(*words):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    file = tmp_path / "src" / "run_folder.py"
    file.parent.mkdir()
    file.write_text("")
    monkeypatch.setattr(run_folder, "__file__", str(file))
    assert run_folder._commit() is None  # no repository
    git("init", "-q")
    (tmp_path / "other").write_text("")
    git("add", "other")
    git("commit", "-qm", "a repository that the package was installed in, and is no part of")
    assert run_folder._commit() is None
    git("add", "src")
    git("commit", "-qm", "the package's own")
    assert run_folder._commit() == git("rev-parse", "HEAD")


def test_without_git_there_is_no_commit(monkeypatch):
    def missing(*_, **__):
        raise FileNotFoundError(2, "No such file or directory", "git")

    monkeypatch.setattr(subprocess, "run", missing)
    assert run_folder._commit() is None


def test_a_folder_with_hidden_files_only_is_new(tmp_path):
    (tmp_path / ".DS_Store").touch()
    run_folder.require_new(tmp_path)
    run_folder.require_new(tmp_path / "none")
    (tmp_path / "mine").touch()
    assert refusal(run_folder.require_new, tmp_path).endswith("is not empty; choose another name")
