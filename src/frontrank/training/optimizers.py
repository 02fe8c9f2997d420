"""Optimizers and learning rates, from an `OptimizerConfig`."""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from frontrank.checks import check_integer
from frontrank.settings import OptimizerConfig

Named = Iterable[tuple[str, nn.Parameter]]


def build_optimizer(
    config: OptimizerConfig,
    backbone: Named,
    head: Named,
    loss_parameters: Iterable[nn.Parameter] = (),
    without_decay: Collection[str] = (),
    depths: Mapping[str, int] | None = None,
) -> torch.optim.Optimizer:
    """Return the optimizer of a model and its loss.

    backbone, head: (name, parameter) pairs, as of `named_parameters()`
    without_decay:  names of parameters that adamw must not shrink, such as position embeddings
    depths:         blocks after that of a parameter of the backbone, by name: each multiplies its lr by layer_decay

    The head learns at lr x head_lr, the loss at lr x head_lr x loss_lr. Parameters that need no gradient are left out.
    adam and sgd add weight_decay times the parameter to the gradient of all parameters, as the papers do. adamw shrinks
    weights apart from the gradient, but no biases and norms (fewer than two dimensions).

    >>> model = nn.Linear(2, 3)
    >>> config = OptimizerConfig("adam", lr=1e-5, head_lr=10.0)
    >>> [group["lr"] for group in build_optimizer(config, [], model.named_parameters()).param_groups]
    [0.0001]
    """
    head_lr = config.lr * config.head_lr
    parts: dict[str, tuple[Named, float]] = {
        "backbone": (backbone, config.lr),
        "head": (head, head_lr),
        "loss": ((("", each) for each in loss_parameters), head_lr * config.loss_lr),
    }
    groups: dict[tuple[str, float, float], dict[str, Any]] = {}
    for part, (parameters, lr) in parts.items():
        for name, parameter in parameters:
            if parameter.requires_grad:
                exempt = config.name == "adamw" and (parameter.ndim <= 1 or name in without_decay)
                decay = 0.0 if exempt else config.weight_decay
                rate = lr * config.layer_decay ** (depths or {}).get(name, 0)
                settings = {"lr": rate, "initial_lr": rate, "weight_decay": decay, "part": part, "params": []}
                groups.setdefault((part, decay, rate), settings)["params"].append(parameter)
    if config.name == "sgd":
        return torch.optim.SGD(groups.values(), lr=config.lr, momentum=config.momentum)
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.name](groups.values(), lr=config.lr)


def learning_rate(config: OptimizerConfig, step: int, steps: int, milestone_steps: float = 1) -> float:
    """Return the factor of the learning rates in a step, counted from 0, of `steps` in all.

        constant   1
        multistep  gamma ^ (milestones reached)     a milestone is reached as its epoch, counted from 0, begins
        linear     1 - step / steps                 AP_Q, Sec. 4.2
        cosine     (1 + cos(pi step / steps)) / 2

    times (step + 1) / warmup in the first `warmup` steps.

    milestone_steps: steps of an epoch, if milestones count epochs; need not be whole

    >>> config = OptimizerConfig(schedule="multistep", milestones=(2, 4), gamma=0.3, warmup=0)
    >>> [round(learning_rate(config, step, 10, milestone_steps=2), 4) for step in (0, 3, 4, 7, 8, 9)]
    [1.0, 1.0, 0.3, 0.3, 0.09, 0.09]
    """
    factor = 1.0
    if config.schedule == "multistep":
        factor = config.gamma ** sum(step > milestone * milestone_steps - 1e-6 for milestone in config.milestones)
    elif config.schedule == "linear":
        factor = 1 - step / steps
    elif config.schedule == "cosine":
        factor = (1 + math.cos(math.pi * step / steps)) / 2
    return factor * min(1.0, (step + 1) / config.warmup) if config.warmup else factor


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set the learning rate of every group to its first one times the factor."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def check_warmup(config: OptimizerConfig, steps: int) -> None:
    """Raise if the warmup is longer than a run of so many steps."""
    check_integer("optimizer.warmup", config.warmup, at_most=steps)


def clip_gradient(optimizer: torch.optim.Optimizer, most: float) -> float:
    """Make the gradient no longer than `most`, if that is not 0, and return the norm that it had."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    return float(nn.utils.clip_grad_norm_(parameters, most or math.inf))
