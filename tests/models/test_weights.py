import os
import pickle
import urllib.error

import huggingface_hub
import pytest
import timm
import torch
from safetensors.torch import save_file

from frontrank.errors import InputError, InputTypeError
from tests.models.small import images, small


@pytest.fixture(scope="module")
def source():
    """timm's own model with its classifier, and numbers in its statistics."""
    torch.manual_seed(1)
    model = timm.create_model("test_resnet", num_classes=5)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_()
    return model


def same_features(model, source):
    x = images()
    with torch.no_grad():
        return torch.equal(model.backbone.forward_features(x), source.eval().forward_features(x))


PREFIXES = ["", "module.", "backbone.", "model.", "module.model.", "model.backbone."]
WRAPPED = {
    "plain": lambda state: state,
    "state_dict": lambda state: {"epoch": 3, "state_dict": state},
    "model": lambda state: {"model": state, "optimizer": {"lr": 0.1}},
    "both": lambda state: {"model": {"state_dict": state, "best": 1.0}},
}


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("wrapped", WRAPPED)
def test_files_of_torch(source, tmp_path, prefix, wrapped):
    state = {prefix + name: x for name, x in source.state_dict().items()}
    torch.save(WRAPPED[wrapped](state), tmp_path / "w.pth")
    model = small(weights=tmp_path / "w.pth").eval()
    assert same_features(model, source)
    count = len(model.backbone.state_dict())
    assert model.origin == f"backbone from {tmp_path / 'w.pth'} ({count} tensors); the head starts anew"


def test_safetensors(source, tmp_path):
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    assert same_features(small(weights=str(tmp_path / "w.safetensors")).eval(), source)


@pytest.mark.parametrize("name", ["w.SAFETENSORS", "w.PTH", "w.Bin"])
def test_endings_in_capitals(source, tmp_path, name):
    (save_file if name.endswith("S") else torch.save)(source.state_dict(), tmp_path / name)
    assert same_features(small(weights=tmp_path / name).eval(), source)


def test_what_stands_beside_the_backbone_is_left_out(source, tmp_path):
    state = {f"backbone.{name}": x for name, x in source.state_dict().items()}
    torch.save(state | {"proxies": torch.zeros(3), "head.linear.weight": torch.zeros(4, 4)}, tmp_path / "w.pt")
    assert same_features(small(weights=tmp_path / "w.pt").eval(), source)


def test_old_files_without_counts_of_batches_and_in_half_precision(source, tmp_path):
    state = {n: x for n, x in source.state_dict().items() if not n.endswith("num_batches_tracked")}
    torch.save({n: x.half() for n, x in state.items()}, tmp_path / "w.bin", _use_new_zipfile_serialization=False)
    model = small(weights=tmp_path / "w.bin")
    assert all(
        torch.equal(model.backbone.state_dict()[n], x.half().float()) for n, x in state.items() if n[:3] != "fc."
    )


def test_parameters_that_are_not_used_may_be_missing(tmp_path):
    source = timm.create_model("test_convnext", num_classes=0)
    state = {n: x for n, x in source.state_dict().items() if not n.startswith("head.")}
    torch.save(state, tmp_path / "w.pth")
    assert same_features(small("test_convnext", weights=tmp_path / "w.pth").eval(), source)


def test_a_norm_that_timm_keeps_behind_its_pooling(tmp_path):
    source = timm.create_model("test_vit", num_classes=0, global_pool="avg", img_size=64)
    torch.nn.init.normal_(source.fc_norm.weight)
    torch.save(source.state_dict(), tmp_path / "w.pth")
    model = small("test_vit", weights=tmp_path / "w.pth")
    assert torch.equal(model.backbone.norm.weight, source.fc_norm.weight)


class TestMisfits:
    def test_another_model(self, source, tmp_path):
        torch.save(source.state_dict(), tmp_path / "w.pth")
        with pytest.raises(InputError, match=r"w.pth does not fit the backbone: \d+ tensors are missing \(") as caught:
            small("test_vit", weights=tmp_path / "w.pth")
        assert "unknown to it (conv1.0.weight, " in str(caught.value)
        assert str(caught.value).endswith("; give the weights of this backbone")
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda s: s.pop("bn1.weight"), r"backbone: 1 tensors are missing \(bn1.weight\); give"),
            (lambda s: s.update(odd=torch.zeros(1)), r"backbone: 1 tensors are unknown to it \(odd\); give"),
            (
                lambda s: s.update({"bn1.bias": torch.zeros(3)}),
                r"backbone: 1 tensors are of another shape \(bn1.bias\); give",
            ),
            (
                lambda s: s.update({"bn1.bias": s["bn1.bias"] / 0}),
                r"w.pth has numbers that are not finite, e.g. in bn1.bias",
            ),
        ],
        ids=["missing", "extra", "shape", "nan"],
    )
    def test_one_tensor(self, source, tmp_path, change, said):
        state = dict(source.state_dict())
        change(state)
        torch.save(state, tmp_path / "w.pth")
        with pytest.raises(InputError, match=said):
            small(weights=tmp_path / "w.pth")


class Evil:
    def __reduce__(self):
        return os.system, ("touch hacked",)


class TestFilesThatAreRefused:
    def read(self, path):
        with pytest.raises((InputError, InputTypeError)) as caught:
            small(weights=path)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def test_code(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        torch.save({"state_dict": {}, "args": Evil()}, "zip.pth")
        with open("plain.pt", "wb") as file:
            pickle.dump(Evil(), file, protocol=2)
        for path in ("zip.pth", "plain.pt"):
            said = self.read(path)
            assert said.startswith(f"{path} is damaged, or holds Python objects beside tensors")
            assert said.endswith("save only the state_dict(), best as .safetensors")
        assert not (tmp_path / "hacked").exists()

    @pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
    @pytest.mark.parametrize("kept", [0, 1, 100, 5000])
    def test_damaged(self, source, tmp_path, name, kept):
        path = tmp_path / name
        (save_file if name.endswith("s") else torch.save)(source.state_dict(), path)
        path.write_bytes(path.read_bytes()[:kept])
        assert self.read(path).startswith(f"{path} is damaged, or ")

    def test_text(self, tmp_path):
        (tmp_path / "w.pth").write_text("hello, this is no file of torch")
        assert self.read(tmp_path / "w.pth").endswith("is damaged, or no file of torch; fetch or save it again")

    @pytest.mark.parametrize(
        "content", [{}, {"epoch": 3}, [torch.zeros(2)], torch.zeros(2), {3: torch.zeros(2)}], ids=repr
    )
    def test_nothing_by_name(self, tmp_path, content):
        torch.save(content, tmp_path / "w.pth")
        assert self.read(tmp_path / "w.pth").endswith("holds no weights by name; save the state_dict() of a model")

    def test_names_of_files(self, tmp_path):
        (tmp_path / "w.zip").write_text("")
        assert "has an ending that is not known; give a .safetensors, .pth" in self.read(tmp_path / "w.zip")
        assert self.read("nowhere.pth").startswith("weights 'nowhere.pth' is no file or folder; give one that is there")
        for name in ("runs/w.pth", "runs/W.PTH", "./runs/model", "runs/first/model"):
            assert self.read(name).endswith("user/name of a Frontrank model on the hub, pretrained, package, or none")
        assert self.read("") == "weights must be a path, got ''"
        assert self.read(7) == "weights must be a path, got 7"
        assert "has no config.json; give the folder of a saved model" in self.read(tmp_path)

    @pytest.mark.parametrize(
        ("given", "backbone"),
        [
            ("resnet50", "resnet50"),
            ("resnet50.a1_in1k", "resnet50.a1_in1k"),
            ("timm/resnet50.a1_in1k", "resnet50.a1_in1k"),
            ("hf-hub:timm/resnet18.a1_in1k", "resnet18.a1_in1k"),
            ("hf_hub:someone/something", "resnet50.a1_in1k"),
        ],
    )
    def test_names_of_timm(self, given, backbone):
        said = self.read(given)
        assert said.startswith(f"weights {given!r} is no file or folder, and timm's weights are not given by name here")
        assert f'; give their name as the backbone, e.g. backbone="{backbone}", weights="pretrained"' in said


def test_none_by_its_name():
    assert small(weights="none").origin == "random weights"


class TestPretrained:
    @pytest.fixture
    def hub(self, monkeypatch, source):
        """timm's create_model, whose pretrained models come from memory."""
        create, asked = timm.create_model, []

        def create_model(name, pretrained=False, **more):
            if not pretrained:
                return create(name, pretrained=False, **more)
            asked.append((name, more))
            model = create(name, pretrained=False, **more)
            model.load_state_dict({n: x for n, x in source.state_dict().items() if n[:3] != "fc."})
            return model

        monkeypatch.setattr(timm, "create_model", create_model)
        return asked

    def test_is_loaded(self, hub, source):
        model = small(weights="pretrained").eval()
        assert same_features(model, source)
        assert model.origin == "timm's pretrained test_resnet.r160_in1k; the head starts anew"
        assert hub == [("test_resnet", {"num_classes": 0})]
        assert model.settings.batch_norm == "frozen"

    def test_a_tag_is_passed_on(self, hub):
        assert "test_resnet.r160_in1k;" in small("test_resnet.r160_in1k", weights="pretrained").origin
        assert hub[0][0] == "test_resnet.r160_in1k"

    @pytest.mark.parametrize(
        "error",
        [
            urllib.error.URLError("no route"),
            OSError("offline\nand more"),
            RuntimeError("No pretrained weights exist"),
            ValueError("odd"),
        ],
        ids=["url", "os", "none", "value"],
    )
    def test_cannot_be_had(self, monkeypatch, error):
        create = timm.create_model

        def create_model(name, pretrained=False, **more):
            if pretrained:
                raise error
            return create(name, pretrained=False, **more)

        monkeypatch.setattr(timm, "create_model", create_model)
        with pytest.raises(InputError, match=r"^weights: timm's pretrained test_resnet cannot be had \(") as caught:
            small(weights="pretrained")
        assert str(caught.value).endswith("); give a file or folder of weights, or none")
        assert "\n" not in str(caught.value)


class TestFolders:
    def test_the_same_model(self, tmp_path):
        first = small(pooling="gem", layer_norm=True).eval()
        with torch.no_grad():
            first.pooling.power.fill_(2.0)
        first.save(tmp_path / "m")
        second = small(pooling="gem", layer_norm=True, dropout=0.2, weights=tmp_path / "m").eval()
        x = images()
        assert torch.equal(first(x), second(x))
        assert second.origin == f"backbone and head of {tmp_path / 'm'}"

    @pytest.mark.parametrize("change", [{"dim": 9}, {"dim": 0}, {"pooling": "max"}, {"pooling": "gem"}], ids=str)
    def test_another_head(self, tmp_path, change):
        first = small().eval()
        first.save(tmp_path / "m")
        second = small(weights=tmp_path / "m", **change).eval()
        assert same_features(second, first.backbone)
        assert second.origin == f"backbone of {tmp_path / 'm'}; the head starts anew, being another one there"
        if change == {"pooling": "max"}:
            assert not torch.equal(first.head.linear.weight, second.head.linear.weight)

    def test_another_backbone(self, tmp_path):
        small().save(tmp_path / "m")
        with pytest.raises(InputError, match=r"model.safetensors does not fit the backbone: "):
            small("test_vit", weights=tmp_path / "m")

    def test_its_colours_are_kept(self, tmp_path):
        colours = {"mean": (0.0, 0.5, 1.0), "std": (1.0, 2.0, 3.0)}
        small(**colours).save(tmp_path / "m")
        for more in ({}, colours, {"mean": [0, 0.5, 1]}):
            model = small(weights=tmp_path / "m", **more)
            assert (model.mean, model.std) == (model.settings.mean, model.settings.std) == tuple(colours.values())
            assert model.origin == f"backbone and head of {tmp_path / 'm'}"

    def test_other_colours_are_told(self, tmp_path):
        small(mean=(0.0, 0.5, 1.0)).save(tmp_path / "m")
        model = small(weights=tmp_path / "m", mean=(0.1, 0.2, 0.3))
        assert model.mean == (0.1, 0.2, 0.3)
        said = "; mean is [0.1, 0.2, 0.3], not its own [0.0, 0.5, 1.0]"
        assert model.origin == f"backbone and head of {tmp_path / 'm'}{said}"
        model = small(weights=tmp_path / "m", dim=0, mean=(0.1, 0.2, 0.3), std=(1.0, 1.0, 1.0))
        assert model.origin.endswith(f"another one there{said}; std is [1.0, 1.0, 1.0], not its own [0.5, 0.5, 0.5]")

    def test_a_model_on_the_hub(self, tmp_path, monkeypatch):
        first, asked = small(mean=(0.1, 0.2, 0.3)).eval(), []
        first.save(tmp_path / "m")

        def snapshot_download(name, **more):
            asked.append(name)
            return str(tmp_path / "m")

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        second = small(weights="someone/some-model").eval()
        assert asked == ["someone/some-model"]
        assert torch.equal(second(x := images()), first(x))
        assert (second.mean, second.settings.batch_norm) == ((0.1, 0.2, 0.3), "frozen")

    def test_a_save_that_was_killed_is_told(self, tmp_path):
        small().save(tmp_path / ".m.frontrank-old")
        with pytest.raises(InputError, match=r"m is not there, since a save was killed; rename .*\.m\.frontrank-old,"):
            small(weights=tmp_path / "m")
