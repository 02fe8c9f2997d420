import itertools
import json
import os
import sys
import time
import warnings
from dataclasses import asdict

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file

import frontrank
from frontrank.errors import InputError, InputTypeError
from frontrank.models import Embedder, storage
from tests.errors import refusal
from tests.models.small import images, names, small

FILES = ["README.md", "config.json", "model.safetensors"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A saved model, and its folder; not to be changed."""
    torch.manual_seed(0)
    model = small(pooling="gem", dropout=0.1, batch_norm="frozen").eval()
    folder = tmp_path_factory.mktemp("saved") / "model"
    model.save(folder)
    return model, folder


@pytest.fixture
def copy(saved, tmp_path):
    """A copy of the folder, to be damaged."""
    (tmp_path / "model").mkdir()
    for name in FILES:
        (tmp_path / "model" / name).write_bytes((saved[1] / name).read_bytes())
    return tmp_path / "model"


@pytest.mark.parametrize(
    ("backbone", "settings"),
    [
        ("test_resnet", {"pooling": "gem", "layer_norm": True, "dropout": 0.5, "batch_norm": "train"}),
        ("test_resnet", {"dim": 0, "mean": (0.1, 0.2, 0.3), "std": (1 / 3, 0.2, 0.1), "resize": 99}),
        ("test_vit", {"pooling": "rmac", "drop_path_rate": 0.1}),
        ("test_resnet", {"pooling": "flat", "stage": 3}),
    ],
    ids=["gem", "no-head", "vit", "flat"],
)
def test_comes_back_as_it_was(tmp_path, backbone, settings):
    model = small(backbone, **settings)
    model(images(4))  # where BatchNorm learns, its statistics change
    model.save(tmp_path / "m")
    again = Embedder.load(str(tmp_path / "m"))
    assert not again.training
    assert again.settings == model.settings
    assert again.fingerprint == model.fingerprint
    assert again.origin == str(tmp_path / "m")
    x = images()
    assert torch.equal(again(x), model.eval()(x))
    assert again.state_dict().keys() == model.state_dict().keys()
    assert names(tmp_path) == ["m"]
    assert names(tmp_path / "m") == FILES


def test_config_and_card(saved):
    model, folder = saved
    assert json.loads((folder / "config.json").read_text()) == {
        "format": "frontrank.model",
        "format_version": 1,
        "frontrank_version": frontrank.__version__,
        "fingerprint": model.fingerprint,
        "settings": json.loads(json.dumps(asdict(model.settings))),
    }
    front, text = (folder / "README.md").read_text().split("---\n")[1:3]
    assert front.startswith("library_name: frontrank\n")
    assert "test_resnet, gem pooling, 8" in text
    assert model.fingerprint in text


def test_the_fingerprint_depends_on_what_embeddings_depend_on():
    tensors = {"a": torch.arange(4.0), "b": torch.zeros(0)}
    base = {"pooling": "max", "dropout": 0.1, "batch_norm": "train", "image_size": 64}
    first = storage.fingerprint(base, tensors)
    assert storage.fingerprint({**base, "dropout": 0.2, "batch_norm": "frozen"}, tensors) == first
    assert storage.fingerprint(dict(reversed(base.items())), dict(reversed(tensors.items()))) == first
    others = [
        storage.fingerprint({**base, "pooling": "average"}, tensors),
        storage.fingerprint(base, {**tensors, "a": torch.arange(4.0).view(2, 2)}),
        storage.fingerprint(base, {**tensors, "a": torch.arange(4.0).view(torch.int32)}),
        storage.fingerprint(base, {"c": tensors["a"], "b": tensors["b"]}),
    ]
    assert len({first, *others}) == 5


class TestSaving:
    def test_overwrites_if_asked_and_keeps_other_files(self, copy):
        write_other_files(copy)
        model, before = small(), (copy / "config.json").read_bytes()
        refusal(lambda: model.save(copy), "model")
        assert (copy / "config.json").read_bytes() == before
        model.save(copy, overwrite=True)
        assert Embedder.load(copy).fingerprint == model.fingerprint
        assert names(copy) == sorted([*FILES, "notes.txt", "logs"])
        assert has_other_files(copy)
        assert names(copy.parent) == ["model"]

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_never_overwrites_anything_else(self, tmp_path, overwrite):
        (tmp_path / "config.json").write_text('{"format": "other"}')
        refusal(lambda: small().save(tmp_path, overwrite=overwrite), tmp_path.name)
        assert names(tmp_path) == ["config.json"]
        refusal(lambda: small().save(tmp_path / "config.json", overwrite=overwrite), "config.json")

    def test_an_empty_folder_and_one_whose_parents_are_missing(self, tmp_path):
        model = small()
        model.save(tmp_path)
        assert names(tmp_path) == FILES
        model.save(tmp_path / "a" / "b")
        assert names(tmp_path / "a" / "b") == FILES
        for folder, error in ((tmp_path / "config.json" / "m", InputError), (3, InputTypeError)):
            with pytest.raises(error, match=r"config\.json|folder"):
                model.save(folder)

    @pytest.mark.parametrize("step", ["Card.render", "_put_in_place"])
    @pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()], ids=["disk", "stop"])
    def test_leaves_nothing_half_done(self, saved, copy, monkeypatch, step, error):
        def fail(*_):
            raise error

        monkeypatch.setattr(f"frontrank.models.storage.{step}", fail)
        expected = InputError if isinstance(error, OSError) else KeyboardInterrupt
        for folder in (copy, copy.parent / "new"):
            with pytest.raises(expected):
                small().save(folder, overwrite=True)
        assert names(copy.parent) == ["model"]
        assert Embedder.load(copy).fingerprint == saved[0].fingerprint


def edit(folder, group=None, **changes):
    config = json.loads((folder / "config.json").read_text())
    (config if group is None else config[group]).update(changes)
    (folder / "config.json").write_text(json.dumps(config))
    return config


def sign_again(folder):
    """Make the fingerprint right for what the files now hold."""
    edit(folder, fingerprint=storage.fingerprint(edit(folder)["settings"], load_file(folder / "model.safetensors")))


class TestLoading:
    def refuse(self, path, name, **more):
        """Assert that a folder is refused by an error of one line with this name in it."""
        with pytest.raises((InputError, InputTypeError), match=name) as caught:
            Embedder.load(path, **more)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
    def test_a_missing_file(self, copy, name):
        (copy / name).unlink()
        self.refuse(copy, name)

    @pytest.mark.parametrize("damage", [lambda x: b"", lambda x: x[:200], lambda x: x[:-1] + bytes([x[-1] ^ 1])])
    def test_damaged_weights(self, copy, damage):
        path = copy / "model.safetensors"
        path.write_bytes(damage(path.read_bytes()))
        self.refuse(copy, r"model\.safetensors")

    @pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"[" * 200_000, b'{"format": "other"}'])
    def test_a_config_of_something_else(self, copy, content):
        (copy / "config.json").write_bytes(content)
        self.refuse(copy, r"config\.json")

    @pytest.mark.parametrize(
        ("name", "value"), [("format_version", 2), ("format_version", None), ("settings", []), ("fingerprint", 3)]
    )
    def test_parts_of_the_config(self, copy, name, value):
        edit(copy, **{name: value})
        self.refuse(copy, r"config\.json")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("backbone", "resnet5O"),
            ("image_size", "large"),
            ("backbone_options", {"checkpoint_path": "x.pth"}),
            ("new", 1),
        ],
        ids=str,
    )
    def test_settings_that_are_not_valid(self, copy, name, value):
        edit(copy, "settings", **{name: value})
        self.refuse(copy, "fingerprint")
        sign_again(copy)
        self.refuse(copy, "checkpoint_path" if "checkpoint" in str(value) else name)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *(("backbone_options", {name: "nope"}) for name in ("act_layer", "block", "layers", "block_args")),
            ("backbone_options", {"stem_width": 0}),
            ("backbone", "hf-hub:somebody/model"),  # a file does not decide what is fetched
            ("image_size", 10**6),
            ("resize", 10**9),
            ("backbone", "vit_giant_patch14_reg4_dinov2"),
            *(("backbone_options", {"layers": layers}) for layers in ([5_000] * 4, [10**10, 1, 1, 1])),
            ("backbone_options", {"channels": [10**6] * 4}),
            ("mean", [1, None, 2]),
        ],
        ids=str,
    )
    def test_hostile_settings_with_a_valid_fingerprint(self, copy, name, value, monkeypatch):
        monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
        edit(copy, "settings", **{name: value})
        sign_again(copy)
        self.refuse(copy, r"^\S*config\.json ")

    def test_a_large_picture_takes_no_memory_before_there_is_one(self, copy):
        edit(copy, "settings", image_size=4096, resize=4096)
        sign_again(copy)
        start = time.process_time()
        assert Embedder.load(copy).image_size == 4096
        assert time.process_time() - start < 3

    def test_weights_of_another_model(self, copy):
        tensors = load_file(copy / "model.safetensors")
        del tensors["head.linear.bias"]
        save_file(tensors, copy / "model.safetensors")
        sign_again(copy)
        self.refuse(copy, r"model\.safetensors")

    def test_paths(self, copy, saved, monkeypatch):
        self.refuse(copy / "README.md", r"README\.md")
        self.refuse(copy / "none", "none")
        self.refuse("./some/model", "some/model")
        self.refuse(None, "path")
        self.refuse(copy, "nonsense", device="nonsense")
        monkeypatch.chdir(copy)
        assert Embedder.load(".").fingerprint == saved[0].fingerprint

    def test_without_safetensors(self, copy, monkeypatch):
        for name in ("safetensors", "safetensors.torch"):
            monkeypatch.setitem(sys.modules, name, None)
        self.refuse(copy, "safetensors")
        refusal(lambda: small().save(copy.parent / "new"), "safetensors")


class TestHub:
    def test_fetches_the_three_files(self, saved, monkeypatch):
        asked = []

        def snapshot_download(name, **more):
            asked.append((name, sorted(more["allow_patterns"])))
            return str(saved[1])

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        assert Embedder.load("someone/some-model").fingerprint == saved[0].fingerprint
        assert asked == [("someone/some-model", FILES)]
        assert small(pooling="gem", weights="someone/some-model").origin.endswith(str(saved[1]))

    def test_fails(self, monkeypatch):
        def snapshot_download(name, **more):
            raise huggingface_hub.errors.LocalEntryNotFoundError("no connection\nmore")

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        refusal(lambda: Embedder.load("a/b"), "a/b", "(no connection)")


# Saves that are killed at any of their steps, and what the next one makes of it


STEPS = {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.chmod", "open"}
KILLED = 9
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


def save(folder, number, overwrite=True):
    tensors = {"number": torch.tensor([number])}
    storage.save_model(folder, storage.EMBEDDER, {}, tensors, storage.Card(("task",), "", "", {}), overwrite)


def load(folder):
    return int(storage.read_model(storage.find_model(folder))[1]["number"])


def save_and_die(folder, number, step):
    """Save in a process that ends, with nothing cleaned up, before this step; return whether it came to that."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads; none is needed here
        process = os.fork()
    if process == 0:
        seen = [0]

        def count(event, _):
            if event in STEPS:
                seen[0] += 1
                if seen[0] == step:
                    os._exit(KILLED)

        try:
            sys.addaudithook(count)
            save(folder, number)
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    assert status in (0, KILLED)
    return status == KILLED


def write_other_files(folder):
    (folder / "notes.txt").write_text("mine")
    (folder / "logs").mkdir()
    (folder / "logs" / "a").write_text("log")
    return folder


def save_with_other_files(parent):
    save(parent / "model", 1)
    return write_other_files(parent / "model")


def has_other_files(folder):
    return (folder / "notes.txt").read_text() == "mine" and (folder / "logs" / "a").read_text() == "log"


def kill_at_every_step(parent, begin):
    """Yield the folder of a save that is killed before its first step, its second one, ...; the last is not."""
    for step in itertools.count(1):
        folder = begin(parent / f"{step}")
        killed = save_and_die(folder, 2, step)
        yield folder
        if not killed:
            return


def later(monkeypatch):
    now = time.time() + 7200
    monkeypatch.setattr(time, "time", lambda: now)


@pytest.mark.processes
@needs_fork
def test_a_killed_save_that_replaces_a_model(tmp_path, monkeypatch):
    outcomes = []
    for folder in kill_at_every_step(tmp_path, save_with_other_files):
        outcomes.append(load(folder) if folder.exists() else None)
        if outcomes[-1] is None:
            refusal(lambda folder=folder: load(folder), ".model.frontrank-old")
        refusal(lambda folder=folder: save(folder, 3, overwrite=False), "model")
        assert load(folder) == (outcomes[-1] or 1)
        assert has_other_files(folder)
        save(folder, 3)
        assert load(folder) == 3
        with monkeypatch.context() as patch:
            later(patch)
            save(folder, 4)
        assert load(folder) == 4
        assert has_other_files(folder)
        assert names(folder.parent) == ["model"]
    assert len(outcomes) > 10
    assert outcomes.count(None) == 1  # between the two renames
    assert outcomes == sorted(outcomes, key=[1, None, 2].index)
    assert {1, 2} <= set(outcomes)


@pytest.mark.processes
@needs_fork
def test_a_killed_save_of_a_new_model(tmp_path):
    outcomes = []
    for folder in kill_at_every_step(tmp_path, lambda parent: parent / "model"):
        outcomes.append(folder.exists() and load(folder) == 2)
        save(folder, 3)
        assert load(folder) == 3
    assert len(outcomes) > 5
    assert outcomes == sorted(outcomes)
    assert outcomes[-1]


def test_leftovers_of_processes_that_may_be_alive_are_kept(tmp_path, monkeypatch):
    ours, other = tmp_path / ".m[1].abc.frontrank-new", tmp_path / ".other.abc.frontrank-new"
    for folder in (ours, other):
        (folder / "model").mkdir(parents=True)
    save(tmp_path / "m[1]", 1)
    assert ours.exists()
    later(monkeypatch)
    save(tmp_path / "m[1]", 2)
    assert not ours.exists()
    assert other.exists()


def test_nothing_is_overwritten_by_what_is_put_back(tmp_path):
    folder = save_with_other_files(tmp_path)
    folder.rename(tmp_path / ".model.frontrank-old")
    save(tmp_path / "new", 2)
    (tmp_path / "new").rename(folder)
    (folder / "notes.txt").write_text("later")
    save(folder, 3)
    assert (folder / "notes.txt").read_text() == "later"
    assert (folder / "notes.txt.old").read_text() == "mine"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_stopped_by_hand_between_the_renames(tmp_path, monkeypatch, moment):
    folder = save_with_other_files(tmp_path)
    rename = type(folder).rename

    def stop(self, target):
        if not self.parent.name.endswith(".frontrank-new"):
            return rename(self, target)
        if moment == "after":
            rename(self, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(type(folder), "rename", stop)
    with pytest.raises(KeyboardInterrupt):
        save(folder, 2)
    assert load(folder) == (1 if moment == "before" else 2)
    assert has_other_files(folder)
    assert names(tmp_path) == ["model"]
