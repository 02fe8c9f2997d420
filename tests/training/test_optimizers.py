import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from frontrank.errors import InputError
from frontrank.settings import OptimizerConfig
from frontrank.training.optimizers import build_optimizer, check_warmup, learning_rate, set_learning_rate


@pytest.fixture
def parts():
    backbone = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    return backbone, nn.Linear(4, 2), nn.Parameter(torch.ones(5, 2))


def build(config, parts, **more):
    backbone, head, proxies = parts
    return build_optimizer(config, list(backbone.named_parameters()), head.named_parameters(), [proxies], **more)


def settings_of(optimizer, parameter):
    (group,) = [group for group in optimizer.param_groups if any(each is parameter for each in group["params"])]
    return group["lr"], group["weight_decay"]


# Groups


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("sgd", torch.optim.SGD)])
def test_all_parameters_decay_and_the_head_learns_faster(name, kind, parts):
    config = OptimizerConfig(name=name, lr=0.01, head_lr=5.0, loss_lr=2.0, weight_decay=4e-4, momentum=0.7)
    optimizer = build(config, parts, without_decay={"0.weight"})  # which adamw alone reads
    assert type(optimizer) is kind
    backbone, head, proxies = parts
    assert [settings_of(optimizer, each) for each in backbone.parameters()] == [(0.01, 4e-4)] * 4
    assert [settings_of(optimizer, each) for each in head.parameters()] == [(0.05, 4e-4)] * 2
    assert settings_of(optimizer, proxies) == (0.1, 4e-4)
    assert [group["part"] for group in optimizer.param_groups] == ["backbone", "head", "loss"]
    assert [group["initial_lr"] for group in optimizer.param_groups] == [0.01, 0.05, 0.1]
    if name == "sgd":
        assert [group["momentum"] for group in optimizer.param_groups] == [0.7] * 3


def test_adamw_decays_no_biases_and_norms_and_no_names_that_it_spares(parts):
    config = OptimizerConfig(name="adamw", lr=0.01, head_lr=2.0, weight_decay=0.1)
    optimizer = build(config, parts)
    assert type(optimizer) is torch.optim.AdamW
    backbone, head, proxies = parts
    assert settings_of(optimizer, backbone[0].weight) == (0.01, 0.1)
    for each in (backbone[0].bias, backbone[1].weight, backbone[1].bias):
        assert settings_of(optimizer, each) == (0.01, 0.0)
    assert settings_of(optimizer, head.weight) == settings_of(optimizer, proxies) == (0.02, 0.1)
    assert settings_of(optimizer, head.bias) == (0.02, 0.0)
    spared = build(config, parts, without_decay={"0.weight"})
    assert settings_of(spared, backbone[0].weight) == (0.01, 0.0)
    assert settings_of(spared, head.weight) == (0.02, 0.1)


def test_frozen_parameters_and_empty_parts_are_left_out(parts):
    backbone, head, _ = parts
    backbone.requires_grad_(False)
    head.bias.requires_grad_(False)
    optimizer = build_optimizer(
        OptimizerConfig(lr=1e-5, head_lr=1.0), backbone.named_parameters(), head.named_parameters()
    )
    ((only,),) = [group["params"] for group in optimizer.param_groups]
    assert only is head.weight


def step_once(name, **settings):
    """A weight of 2 and a bias of 1 after one step at lr 0.1 with gradients 0.5 and 0."""
    module = nn.Linear(1, 1)
    with torch.no_grad():
        module.weight.fill_(2.0)
        module.bias.fill_(1.0)
    optimizer = build_optimizer(
        OptimizerConfig(name=name, lr=0.1, head_lr=1.0, **settings), module.named_parameters(), []
    )
    module.weight.grad, module.bias.grad = torch.full((1, 1), 0.5), torch.zeros(1)
    optimizer.step()
    return module.weight.item(), module.bias.item()


def test_a_step_by_hand():
    # sgd: 2 - .1 (.5 + .2 x 2), 1 - .1 (.2 x 1); adam goes lr towards the sign of gradient + decay; adamw decays apart
    assert step_once("sgd", weight_decay=0.2) == pytest.approx((1.91, 0.98))
    assert step_once("adam", weight_decay=0.2) == pytest.approx((1.9, 0.9))
    assert step_once("adam", weight_decay=0.0) == pytest.approx((1.9, 1.0))
    assert step_once("adamw", weight_decay=0.2) == pytest.approx((2 * (1 - 0.1 * 0.2) - 0.1, 1.0))


# Schedules


def factors(steps, *, milestone_steps=1, **settings):
    config = OptimizerConfig(**{"schedule": "constant", "warmup": 0, **settings})
    return [learning_rate(config, step, steps, milestone_steps) for step in range(steps)]


def test_multistep():
    settings = {"schedule": "multistep", "milestones": (1, 3), "gamma": 0.5}
    assert factors(10, milestone_steps=2, **settings) == [1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25]
    assert factors(5, **settings) == [1, 0.5, 0.5, 0.25, 0.25]
    # 10 batches, 3 of them a step: epochs end after 3.33, 6.67 and exactly 10 steps
    assert factors(12, milestone_steps=10 / 3, **settings) == [1.0] * 4 + [0.5] * 6 + [0.25] * 2
    for accumulate in (3, 7, 11):  # whole epochs are hit however they are divided
        config = OptimizerConfig(schedule="multistep", milestones=(accumulate,), gamma=0.5, warmup=0)
        assert [learning_rate(config, step, 10**6, 39 / accumulate) for step in (38, 39)] == [1, 0.5]


def test_warmup():
    assert factors(5, warmup=4) == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert factors(4, warmup=2, schedule="linear") == [0.5, 0.75, 0.5, 0.25]
    assert factors(3, warmup=2, schedule="multistep", milestones=(1,), gamma=0.1) == pytest.approx([0.5, 0.1, 0.1])
    check_warmup(OptimizerConfig(warmup=10), 10)
    with pytest.raises(InputError, match=r"optimizer\.warmup"):
        check_warmup(OptimizerConfig(warmup=10), 9)


TORCH = {
    "constant": ({}, lambda optimizer: lr_scheduler.ConstantLR(optimizer, factor=1.0)),
    "multistep": (
        {"milestones": (2, 5, 11), "gamma": 0.3},
        lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [2, 5, 11], gamma=0.3),
    ),
    "linear": ({}, lambda optimizer: lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=20)),
    "cosine": ({}, lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)),
}


@pytest.mark.parametrize("name", TORCH)
def test_the_same_as_torch(name, parts):
    settings, scheduler_of = TORCH[name]
    config = OptimizerConfig(schedule=name, lr=0.1, head_lr=3.0, warmup=0, **settings)
    ours, theirs = build(config, parts), build(config, parts)
    scheduler = scheduler_of(theirs)
    for step in range(20):
        set_learning_rate(ours, learning_rate(config, step, 20))
        expected = [group["lr"] for group in theirs.param_groups]
        assert [group["lr"] for group in ours.param_groups] == pytest.approx(expected, abs=1e-12)
        theirs.step()
        scheduler.step()
