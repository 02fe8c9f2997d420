"""The heads are torchvision's but for one loss, and that one is right where nothing is there to be ranked too."""

import copy
import warnings

import pytest
import torch
from torchvision.ops import batched_nms, clip_boxes_to_image

import frontrank as fr
from frontrank.detection.model import ProposalAP, RankedRoIHeads, class_targets, ranked_scores
from frontrank.errors import FrontrankWarning, InputError
from tests.detection.small import CLASSES, pictures, torchvision_heads
from tests.reference.classifier_ap import classifier_ap

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
    own, other = gradients(ours, found["loss_box_reg"]), gradients(theirs, expected["loss_box_reg"])
    assert all(torch.equal(a, b) for a, b in zip(own, other, strict=True))
    assert ours.state_dict().keys() == theirs.state_dict().keys()


def test_without_another_loss_it_is_the_cross_entropy():
    expected, found = losses_of(torchvision_heads().train(), pictures()), losses_of(ranked(loss=False), pictures())
    assert torch.equal(found["loss_classifier"], expected["loss_classifier"])


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


def test_background_is_a_negative_of_every_class():
    logits = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 2.0], [0.0, -5.0, -5.0]], dtype=torch.float64)
    labels = torch.tensor([1, 2, 0])
    for label in (1, 2):
        changed = logits.clone()
        changed[2, label] = 3.0
        before, after = (ProposalAP(fr.ClassifierAP(), "logits")(x, labels) for x in (logits, changed))
        assert float(before) == 0.0
        # its class falls from rank 1 to 2, and in the one list both positives do so: 1/2, and (1/2 + 2/3) / 2
        assert float(after) == pytest.approx(2 / 3 * 0.25 + 1 / 3 * (1 - (1 / 2 + 2 / 3) / 2))


def test_targets_and_scores():
    assert class_targets(torch.tensor([0, 3, 1]), 3).tolist() == [
        [False] * 3,
        [False, False, True],
        [True, False, False],
    ]
    logits = torch.randn(5, 4).bfloat16()
    assert ranked_scores(logits, "softmax").dtype == torch.float32
    assert ranked_scores(logits.double(), "logits").tolist() == logits.double()[:, 1:].tolist()
    with pytest.raises(InputError, match="scores must be one of softmax, logits, got 'sigmoid'"):
        ProposalAP(fr.ClassifierAP(), "sigmoid")


def test_past_proposals_join_the_lists():
    heads = ranked()
    for seed in range(9):
        losses_of(heads, pictures(seed=seed), seed)
    loss = heads.classifier_loss
    assert len(loss.state_dict()["_extra_state"]["scores"]) == 7
    alone = ranked()
    one, other = (losses_of(each, pictures(seed=20))["loss_classifier"] for each in (heads, alone))
    assert one.item() != other.item()
    again = ranked()
    again.classifier_loss.load_state_dict(loss.state_dict())
    assert again.classifier_loss.state_dict()["_extra_state"]["scores"][0].shape[1] == CLASSES


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


def test_no_positive_now_but_some_remembered():
    """Negatives of this batch stand before objects of earlier ones: there is a loss, and a gradient."""
    heads = ranked("logits")
    losses_of(heads, pictures())
    losses = losses_of(heads, empty(pictures(seed=8), {0, 1, 2}))
    assert losses["loss_classifier"].item() > 0.0
    assert sum(float(each.abs().sum()) for each in gradients(heads, losses["loss_classifier"])) > 0.0


def test_some_pictures_without_objects():
    heads = ranked()
    losses = losses_of(heads, empty(pictures(), {1}))
    assert all(torch.isfinite(each) for each in losses.values())
    assert sum(float(each.abs().sum()) for each in gradients(heads, losses["loss_classifier"])) > 0


def test_classes_that_are_absent_are_left_out():
    features, proposals, shapes, targets = pictures()
    targets = [{"boxes": each["boxes"], "labels": torch.full_like(each["labels"], 2)} for each in targets]
    heads = ranked()
    losses = losses_of(heads, (features, proposals, shapes, targets))
    assert torch.isfinite(losses["loss_classifier"])
    assert heads.classifier_loss.last == {"classes_used": 1, "classes_skipped": CLASSES - 1}


@pytest.mark.parametrize("loss", [True, False])
def test_no_proposal_at_all(loss):
    features, _, shapes, targets = empty(pictures(), {0, 1, 2})
    heads = ranked(loss=loss)
    losses = losses_of(heads, (features, [torch.zeros(0, 4, dtype=torch.float64)] * 3, shapes, targets))
    assert {name: each.item() for name, each in losses.items()} == {"loss_classifier": 0.0, "loss_box_reg": 0.0}
    # every weight has a gradient, of zeros: DistributedDataParallel waits for all of them
    for each in torch.autograd.grad(sum(losses.values()), list(heads.parameters())):
        assert float(each.abs().sum()) == 0.0


def test_nothing_of_a_batch_is_kept():
    heads = ranked()
    losses_of(heads, pictures())
    assert heads._predicted is None
    assert heads._labels == []
    kept = heads.classifier_loss.state_dict()["_extra_state"]["scores"]
    assert not any(each.requires_grad for each in kept)


def test_a_copy_has_hooks_of_its_own():
    heads = ranked()
    other = copy.deepcopy(heads)
    losses_of(other, pictures())
    assert heads.classifier_loss.state_dict()["_extra_state"]["scores"] == []
    assert len(other.classifier_loss.state_dict()["_extra_state"]["scores"]) == 1


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
        boxes, scores, labels = [], [], []
        for row in range(len(own)):
            for label in range(1, CLASSES + 1):
                boxes.append(clip_boxes_to_image(moved[row, label][None], shapes[0])[0])
                scores.append(torch.sigmoid(logits[rows][row, label]))
                labels.append(label)
        boxes, scores, labels = torch.stack(boxes), torch.stack(scores), torch.tensor(labels)
        best = batched_nms(boxes, scores, labels, 0.5)[:12]
        assert len(best) == 12
        torch.testing.assert_close(one["scores"], scores[best])
        torch.testing.assert_close(one["boxes"], boxes[best])
        assert one["labels"].tolist() == labels[best].tolist()


def test_by_logits_no_class_is_lost_where_its_scores_begin_low():
    """Ranking does not say where the scores of a class begin; all of them may be far below any threshold."""
    heads, batch = ranked("logits", detections_per_img=1000).eval(), pictures()[:3]
    before = heads(*batch)[0]
    with torch.no_grad():
        heads.box_predictor.cls_score.bias[2] -= 20.0
    for one, other in zip(before, heads(*batch)[0], strict=True):
        boxes = [each["boxes"][each["labels"] == 2] for each in (one, other)]
        assert len(boxes[0]) > 5
        assert torch.equal(*boxes)
        assert other["scores"][other["labels"] == 2].max().item() < 1e-6


@pytest.mark.parametrize("scores", ["softmax", "logits"])
def test_no_proposals_and_no_detections(scores):
    features, proposals, shapes, _ = pictures()
    nothing = torch.zeros(0, 4, dtype=torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ranked(scores).eval()(features, [nothing, proposals[1], nothing], shapes)[0]
    assert [len(each["scores"]) > 0 for each in found] == [False, True, False]
    assert found[0]["boxes"].shape == (0, 4)
    none = ranked("softmax", score_thresh=1.1).eval()(features, proposals, shapes)[0]
    assert [len(each["scores"]) for each in none] == [0, 0, 0]


@pytest.mark.parametrize("scores", ["logits", "softmax"])
def test_what_the_first_steps_can_learn_from(scores):
    """Scores are nearly the same: with the whole margin no negative gives way, positives only change places."""
    generator = torch.Generator().manual_seed(0)
    logits = (0.03 * torch.randn(512, 21, generator=generator)).requires_grad_()
    labels = torch.randint(1, 21, (512,), generator=generator) * (torch.rand(512, generator=generator) < 0.15)
    loss = ProposalAP(fr.ClassifierAP(relative=True), scores, warmup=10)
    moved = {}
    for step in (0, 10):
        loss.begin_step(step)
        (slopes,) = torch.autograd.grad(loss(logits, labels), [logits])
        moved[step] = float((slopes[labels == 0] != 0).any(1).float().mean())
        loss.ap.reset()
    assert moved[0] > 0.5
    assert moved[10] == 0
