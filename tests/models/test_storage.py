import json
import sys

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file

import frontrank
from frontrank.errors import InputError, InputTypeError
from frontrank.models import Embedder, storage
from tests.models.small import images, small

FILES = ["README.md", "config.json", "model.safetensors"]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A saved model, and its folder; not to be changed."""
    torch.manual_seed(0)
    model = small(pooling="gem", dropout=0.1, batch_norm="frozen").eval()
    folder = tmp_path_factory.mktemp("kept") / "model"
    model.save(folder)
    return model, folder


@pytest.fixture
def copy(kept, tmp_path):
    """A copy of the folder, to be damaged."""
    (tmp_path / "model").mkdir()
    for name in FILES:
        (tmp_path / "model" / name).write_bytes((kept[1] / name).read_bytes())
    return tmp_path / "model"


@pytest.mark.parametrize(
    ("backbone", "settings"),
    [
        ("test_resnet", {"pooling": "gem", "layer_norm": True, "dropout": 0.5, "batch_norm": "train"}),
        ("test_resnet", {"dim": 0, "mean": (0.1, 0.2, 0.3), "std": (1 / 3, 0.2, 0.1), "resize": 99}),
        ("test_vit", {"pooling": "rmac", "drop_path_rate": 0.1}),
        ("test_convnext", {"pooling": "max"}),
    ],
    ids=["gem", "no-head", "vit", "convnext"],
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


def test_a_model_in_half_precision_channels_last_and_training(tmp_path):
    model = small().to(memory_format=torch.channels_last).bfloat16()
    model.save(tmp_path / "m")
    assert model.training
    again = Embedder.load(tmp_path / "m")
    assert again.head.linear.weight.dtype == torch.float32
    assert torch.equal(again.head.linear.weight, model.head.linear.weight.float())
    assert again(images()).isfinite().all()


def test_config(kept):
    model, folder = kept
    config = json.loads((folder / "config.json").read_text())
    assert config["format"] == "frontrank.model"
    assert config["format_version"] == 1
    assert config["frontrank_version"] == frontrank.__version__
    assert config["fingerprint"] == model.fingerprint
    assert config["settings"] == {
        "backbone": "test_resnet",
        "pooling": "gem",
        "dim": 8,
        "batch_norm": "frozen",
        "layer_norm": False,
        "dropout": 0.1,
        "image_size": 64,
        "resize": 73,
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
        "backbone_options": {},
        "stage": 0,
    }


def test_all_files_can_be_read_by_the_same_people(kept):
    assert len({(kept[1] / name).stat().st_mode for name in FILES}) == 1


def test_card(kept):
    model, folder = kept
    card = (folder / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: frontrank\n")
    front, text = card.split("---\n")[1:3]
    assert "tags:\n- frontrank\n- image-retrieval\n" in front
    assert "test_resnet, gem pooling, 8 dimensions" in text
    assert model.fingerprint in text


class TestFingerprint:
    def test_changes_with_weights_and_settings_that_matter(self):
        model = small()
        first = model.fingerprint
        assert len(first) == 64
        assert model.eval().fingerprint == first
        with torch.no_grad():
            model.head.linear.bias[3] += 1e-6
        assert model.fingerprint != first

    def test_depends_on_what_embeddings_depend_on(self):
        tensors = {"a": torch.arange(4.0), "b": torch.zeros(0)}
        base = {"pooling": "max", "dropout": 0.1, "batch_norm": "train", "image_size": 64}
        first = storage.fingerprint(base, tensors)
        assert storage.fingerprint({**base, "dropout": 0.2, "batch_norm": "frozen"}, tensors) == first
        assert storage.fingerprint(dict(reversed(base.items())), dict(reversed(tensors.items()))) == first
        others = [
            storage.fingerprint({**base, "pooling": "average"}, tensors),
            storage.fingerprint({**base, "image_size": 65}, tensors),
            storage.fingerprint(base, {**tensors, "a": torch.arange(4.0).view(2, 2)}),
            storage.fingerprint(base, {**tensors, "a": torch.arange(4.0).view(torch.int32)}),
            storage.fingerprint(base, {"c": tensors["a"], "b": tensors["b"]}),
        ]
        assert len({first, *others}) == 6


class TestSaving:
    def test_a_folder_in_the_way(self, kept, copy):
        before = (copy / "config.json").read_bytes()
        with pytest.raises(InputError, match=r"model exists already; give another folder, or overwrite=True$"):
            small().save(copy)
        assert (copy / "config.json").read_bytes() == before

    def test_overwrites_if_told_to_and_keeps_what_else_is_there(self, copy):
        (copy / "notes.txt").write_text("mine")
        (copy / "logs").mkdir()
        (copy / "logs" / "a").write_text("log")
        model = small()
        model.save(copy, overwrite=True)
        assert Embedder.load(copy).fingerprint == model.fingerprint
        assert names(copy) == sorted([*FILES, "notes.txt", "logs"])
        assert (copy / "logs" / "a").read_text() == "log"
        assert names(copy.parent) == ["model"]

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_never_overwrites_anything_else(self, tmp_path, overwrite):
        (tmp_path / "config.json").write_text('{"format": "other"}')
        with pytest.raises(InputError, match=r"holds something else than a model; give another folder$"):
            small().save(tmp_path, overwrite=overwrite)
        assert names(tmp_path) == ["config.json"]
        with pytest.raises(InputError, match=r"config.json is a file; give another folder$"):
            small().save(tmp_path / "config.json", overwrite=overwrite)

    def test_an_empty_folder_and_one_whose_parents_are_missing(self, tmp_path):
        model = small()
        model.save(tmp_path)
        assert names(tmp_path) == FILES
        model.save(tmp_path / "a" / "b")
        assert names(tmp_path / "a" / "b") == FILES

    def test_through_a_link(self, copy):
        link = copy.parent / "latest"
        link.symlink_to(copy)
        model = small()
        model.save(link, overwrite=True)
        assert link.is_symlink()
        assert Embedder.load(copy).fingerprint == model.fingerprint

    @pytest.mark.parametrize("step", ["_card", "_put_in_place"])
    @pytest.mark.parametrize(
        "error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["disk", "stop"]
    )
    def test_leaves_nothing_half_done(self, kept, copy, monkeypatch, step, error):
        def fail(*_):
            raise error

        monkeypatch.setattr(storage, step, fail)
        expected = InputError if isinstance(error, OSError) else KeyboardInterrupt
        for folder in (copy, copy.parent / "new"):
            with pytest.raises(expected):
                small().save(folder, overwrite=True)
        assert names(copy.parent) == ["model"]
        assert Embedder.load(copy).fingerprint == kept[0].fingerprint

    def test_the_old_model_comes_back_if_the_new_one_cannot_take_its_place(self, kept, copy, monkeypatch):
        rename = type(copy).rename

        def only_old(self, target):
            if not self.parent.name.endswith(".frontrank-new"):
                return rename(self, target)
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(type(copy), "rename", only_old)
        with pytest.raises(InputError, match=r"model cannot be written: Input/output error; give another folder$"):
            small().save(copy, overwrite=True)
        assert names(copy.parent) == ["model"]
        assert Embedder.load(copy).fingerprint == kept[0].fingerprint

    def test_what_is_no_path(self):
        with pytest.raises(InputTypeError, match=r"^folder must be a path, got 3$"):
            small().save(3)

    def test_below_a_file(self, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(InputError, match=r"file/m cannot be written: Not a directory; give another folder$"):
            small().save(tmp_path / "file" / "m")


def edit(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    for name, value in changes.items():
        (config["settings"] if name in config["settings"] else config)[name] = value
    (folder / "config.json").write_text(json.dumps(config))


def sign_again(folder):
    """Make the fingerprint right for what the files now hold."""
    config = json.loads((folder / "config.json").read_text())
    config["fingerprint"] = storage.fingerprint(config["settings"], load_file(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(config))


class TestLoading:
    def refused(self, path, **more):
        with pytest.raises((InputError, InputTypeError)) as caught:
            Embedder.load(path, **more)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    @pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
    def test_a_missing_file(self, copy, name):
        (copy / name).unlink()
        assert self.refused(copy) == f"{copy} has no {name}; give the folder of a saved model"

    @pytest.mark.parametrize("size", [0, 7, 8, 200, 20000, -1])
    def test_truncated_weights(self, copy, size):
        path = copy / "model.safetensors"
        path.write_bytes(path.read_bytes()[:size])
        assert self.refused(copy).startswith(f"{path} is damaged, or no safetensors file (")

    def test_a_flipped_bit(self, copy):
        path = copy / "model.safetensors"
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data)
        said = self.refused(copy)
        assert said.startswith(
            f"{path} and config.json beside it do not belong together: their fingerprint is another one"
        )

    @pytest.mark.parametrize("text", ["", "{", "\udcff", "[" * 3], ids=["empty", "cut", "bytes", "list"])
    def test_no_json(self, copy, text):
        (copy / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
        assert self.refused(copy).startswith(f"{copy / 'config.json'} cannot be read as JSON (")

    @pytest.mark.parametrize("text", ["[]", "3", "{}", '{"format": "other"}'])
    def test_json_of_something_else(self, copy, text):
        (copy / "config.json").write_text(text)
        expected = "config.json describes no Frontrank model; give a folder that Embedder.save wrote"
        assert self.refused(copy).endswith(expected)

    @pytest.mark.parametrize("version", [2, None, "1"])
    def test_another_version(self, copy, version):
        edit(copy, format_version=version)
        assert self.refused(copy).endswith(f"has version {version} of the format, this is 1; update frontrank")

    @pytest.mark.parametrize(("name", "value"), [("settings", None), ("settings", []), ("fingerprint", 3)])
    def test_parts_of_the_config(self, copy, name, value):
        edit(copy, **{name: value})
        assert self.refused(copy).endswith("is damaged: settings or fingerprint are missing; save the model again")

    def test_settings_changed_by_hand(self, copy):
        edit(copy, pooling="max")
        assert "do not belong together" in self.refused(copy)

    @pytest.mark.parametrize(
        ("name", "value", "said"),
        [
            ("backbone", "resnet5O", r"cannot be used: backbone 'resnet5O' is not a model of timm"),
            ("backbone", 3, r"cannot be used: backbone 3 is not a model of timm"),
            ("image_size", "large", r"cannot be used: image_size must be a whole number"),
            ("mean", None, None),
            ("backbone_options", {"checkpoint_path": "x.pth"}, r"cannot be used: checkpoint_path is not an option"),
            ("backbone_options", {"weights": "x.pth"}, r"is damaged or not of this version: backbone_options is amiss"),
            ("backbone_options", {"dim": 3}, r"is damaged or not of this version: backbone_options is amiss"),
            ("backbone_options", None, r"is damaged or not of this version: backbone_options is amiss"),
        ],
        ids=lambda value: str(value)[:30],
    )
    def test_settings_that_cannot_be(self, copy, name, value, said):
        edit(copy, **{name: value})
        sign_again(copy)
        if said is None:
            assert Embedder.load(copy).mean == (0.5, 0.5, 0.5)
        else:
            assert said in self.refused(copy)

    def test_an_unknown_setting(self, copy):
        config = json.loads((copy / "config.json").read_text())
        config["settings"]["new"] = 1
        (copy / "config.json").write_text(json.dumps(config))
        sign_again(copy)
        assert self.refused(copy).endswith("is damaged or not of this version: new is amiss; save the model again")

    def test_weights_of_another_model(self, copy):
        tensors = load_file(copy / "model.safetensors")
        del tensors["head.linear.bias"]
        save_file(tensors, copy / "model.safetensors")
        sign_again(copy)
        assert "does not hold the weights that config.json beside it describes" in self.refused(copy)

    @pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
    def test_a_device_that_is_not_there(self, copy, device):
        assert self.refused(copy, device=device).startswith(f"device {device} cannot be used (")

    def test_paths(self, copy):
        assert self.refused(copy / "README.md").endswith("README.md is a file; give the folder of a saved model")
        assert "is not there; give the folder of a saved model, or user/name" in self.refused(copy / "none")
        assert "is not there" in self.refused("./some/model")
        assert self.refused(None) == "path must be a path, got None"

    def test_without_safetensors(self, copy, monkeypatch):
        for name in ("safetensors", "safetensors.torch"):
            monkeypatch.setitem(sys.modules, name, None)
        expected = "saving and loading a model needs safetensors; pip install 'frontrank[train]'"
        assert self.refused(copy) == expected
        with pytest.raises(InputError, match="needs safetensors"):
            small().save(copy.parent / "new")


class TestHub:
    def test_fetches_the_three_files(self, kept, monkeypatch):
        asked = []

        def snapshot_download(name, **more):
            asked.append((name, sorted(more["allow_patterns"])))
            return str(kept[1])

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        assert Embedder.load("someone/some-model").fingerprint == kept[0].fingerprint
        assert asked == [("someone/some-model", FILES)]

    def test_fails(self, monkeypatch):
        def snapshot_download(name, **more):
            raise huggingface_hub.errors.LocalEntryNotFoundError("no connection\nmore")

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        with pytest.raises(
            InputError, match=r"^a/b is no folder here, and could not be had from the hub \(no connection\)"
        ):
            Embedder.load("a/b")

    def test_needs_its_client(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        with pytest.raises(InputError, match=r"the hub needs huggingface_hub; pip install 'frontrank\[train\]'$"):
            Embedder.load("a/b")

    def test_a_folder_comes_first(self, kept, copy, monkeypatch):
        monkeypatch.chdir(copy.parent.parent)
        name = f"{copy.parent.name}/model"
        assert Embedder.load(name).fingerprint == kept[0].fingerprint
