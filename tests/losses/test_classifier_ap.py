import pytest
import torch

import frontrank as fr
from tests.errors import refusal
from tests.reference.classifier_ap import classifier_ap

SETTINGS = {"lam": 6.0, "margin": 0.15, "across_classes": 0.4}


def batches(*shapes, share=0.3):
    made = []
    for shape in shapes:
        targets = torch.rand(shape) < share
        targets[0, 0] = True
        made.append((torch.randn(shape, dtype=torch.float64), targets))
    return made


def gradient(function, scores):
    scores = scores.detach().clone().requires_grad_()
    value = function(scores)
    return value.detach(), torch.autograd.grad(value, scores)[0]


def test_by_hand():
    """Class columns: AP (1 + 2/3) / 2 and 1/3; all pairs by score: yes no no yes no yes."""
    scores = torch.tensor([[0.9, 0.2], [0.3, 0.8], [0.4, 0.1]])
    targets = torch.tensor([[1, 0], [1, 0], [0, 1]])
    columns = ((1 + 2 / 3) / 2 + 1 / 3) / 2
    across = (1 / 1 + 2 / 4 + 3 / 6) / 3
    for weight in (0.0, 1 / 3, 1.0):
        loss = fr.ClassifierAP(margin=0.0, across_classes=weight)(scores, targets)
        assert loss.item() == pytest.approx(1 - (1 - weight) * columns - weight * across)


@pytest.mark.parametrize("shape", [(5, 1), (1, 4), (12, 3), (60, 5)])
@pytest.mark.parametrize("rows", [None, 2])
def test_equals_reference(shape, rows, rows_per_block):
    if rows is not None:
        rows_per_block(rows)
    [(scores, targets)] = batches(shape)
    actual = gradient(lambda s: fr.ClassifierAP(**SETTINGS)(s, targets), scores)
    expected = gradient(lambda s: classifier_ap([(s, targets)], **SETTINGS), scores)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-10, atol=1e-10)


def test_relative_to_the_length_of_each_list():
    """As the authors' code has it: ranks from 1/n to 1 are lam x n, n the items of a class or of all classes."""
    [(scores, targets)] = batches((60, 5))
    actual = gradient(lambda s: fr.ClassifierAP(2.0, 0.15, across_classes=0.4, relative=True)(s, targets), scores)

    def expected(s):
        classes = classifier_ap([(s, targets)], lam=2.0 * 60, margin=0.15, across_classes=0.0)
        return 0.6 * classes + 0.4 * classifier_ap([(s, targets)], lam=2.0 * 300, margin=0.15, across_classes=1.0)

    for a, e in zip(actual, gradient(expected, scores), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-10, atol=1e-10)
    counted = gradient(lambda s: fr.ClassifierAP(2.0, 0.15, across_classes=0.4)(s, targets), scores)
    assert not torch.allclose(actual[1], counted[1])


def test_past_batches_join_the_lists():
    loss = fr.ClassifierAP(memory=2, **SETTINGS)
    seen = []
    for scores, targets in batches((6, 3), (4, 3), (9, 3), (5, 3), (1, 3)):
        seen = [*seen[-2:], (scores, targets)]
        actual = gradient(lambda s, t=targets: loss(s, t), scores)
        expected = gradient(lambda s, t=targets, past=seen[:-1]: classifier_ap([*past, (s, t)], **SETTINGS), scores)
        for a, e in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, e, rtol=1e-10, atol=1e-10)


def test_no_gradient_flows_into_past_batches():
    loss = fr.ClassifierAP(memory=3, **SETTINGS)
    (first, t1), (second, t2) = batches((6, 3), (4, 3))
    first.requires_grad_()
    second.requires_grad_()
    loss(first, t1)
    loss(second, t2).backward()
    assert first.grad is None
    assert (second.grad != 0).any()


def test_memory_is_not_changed_from_outside():
    loss = fr.ClassifierAP(memory=3, **SETTINGS)
    (first, t1), (second, t2) = batches((6, 3), (4, 3))
    expected = classifier_ap([(first.clone(), t1.clone()), (second, t2)], **SETTINGS)
    loss(first, t1)
    first.fill_(7)
    t1.fill_(False)
    torch.testing.assert_close(loss(second, t2), expected)


def test_evaluation_has_no_memory():
    loss = fr.ClassifierAP(memory=3, **SETTINGS)
    (first, t1), (second, t2), (third, t3) = batches((6, 3), (4, 3), (5, 3))
    loss(first, t1)
    loss.eval()
    torch.testing.assert_close(loss(second, t2), classifier_ap([(second, t2)], **SETTINGS))
    loss.train()
    torch.testing.assert_close(loss(third, t3), classifier_ap([(first, t1), (third, t3)], **SETTINGS))


@pytest.mark.parametrize("how", ["memory=0", "reset"])
def test_without_memory_batches_do_not_know_each_other(how):
    loss = fr.ClassifierAP(memory=0 if how == "memory=0" else 3, **SETTINGS)
    (first, t1), (second, t2) = batches((6, 3), (4, 3))
    loss(first, t1)
    if how == "reset":
        loss.reset()
    torch.testing.assert_close(loss(second, t2), classifier_ap([(second, t2)], **SETTINGS))


def test_other_number_of_classes_than_remembered():
    loss = fr.ClassifierAP(memory=3)
    (first, t1), (second, t2) = batches((6, 3), (4, 2))
    loss(first, t1)
    refusal(lambda: loss(second, t2), "reset")
    loss.reset()
    assert torch.isfinite(loss(second, t2))


def test_a_failed_call_is_not_remembered():
    loss = fr.ClassifierAP(memory=3, **SETTINGS)
    [(scores, targets)] = batches((6, 3))
    refusal(lambda: loss(scores, targets[:5]))
    torch.testing.assert_close(loss(scores, targets), classifier_ap([(scores, targets)], **SETTINGS))


@pytest.mark.parametrize("kind", [torch.bool, torch.int64, torch.uint8, torch.float32])
def test_targets_of_any_kind_that_is_0_or_1(kind):
    [(scores, targets)] = batches((6, 3))
    expected = fr.ClassifierAP(**SETTINGS)(scores, targets)
    torch.testing.assert_close(fr.ClassifierAP(**SETTINGS)(scores, targets.to(kind)), expected)


def test_classes_without_a_positive_are_left_out_and_counted():
    [(scores, targets)] = batches((8, 4), share=0.5)
    targets[:, 2] = False
    loss = fr.ClassifierAP(memory=0, across_classes=0.0)
    keep = [0, 1, 3]
    expected = fr.ClassifierAP(memory=0, across_classes=0.0)(scores[:, keep], targets[:, keep])
    torch.testing.assert_close(loss(scores, targets), expected)
    assert loss.last == {"classes_used": 3, "classes_skipped": 1}


def test_smaller_memory_keeps_the_latest_batches():
    (first, t1), (second, t2), (third, t3) = batches((6, 3), (5, 3), (4, 3))
    long, short = fr.ClassifierAP(memory=2, **SETTINGS), fr.ClassifierAP(memory=1, **SETTINGS)
    long(first, t1)
    long(second, t2)
    short.load_state_dict(long.state_dict())
    torch.testing.assert_close(short(third, t3), classifier_ap([(second, t2), (third, t3)], **SETTINGS))
