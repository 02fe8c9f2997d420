"""Optimizers and learning rates, from an `OptimizerConfig`."""

import math
from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from torch import nn

from frontrank.checks import check_choice, check_integer, check_number
from frontrank.errors import InputError
from frontrank.settings import OptimizerConfig

_NAMES = ("adam", "adamw", "sgd")
_SCHEDULES = ("constant", "multistep", "linear", "cosine")
Unit = Literal["epochs", "iterations"]
Named = Iterable[tuple[str, nn.Parameter]]


def build_optimizer(
    config: OptimizerConfig,
    backbone: Named,
    head: Named,
    loss_parameters: Iterable[nn.Parameter] = (),
    undecayed: Collection[str] = (),
) -> torch.optim.Optimizer:
    """Return the optimizer of a model and its loss.

    backbone, head: (name, parameter) pairs, as of `named_parameters()`
    undecayed: names of parameters that adamw must not shrink, such as position embeddings

    Head and loss learn at lr x head_lr. Parameters that need no gradient are left out. adam and sgd add weight_decay
    times the parameter to the gradient of all parameters, as the papers do. adamw shrinks weights apart from the
    gradient, but no biases and norms (fewer than two dimensions).

    >>> model = nn.Linear(2, 3)
    >>> config = OptimizerConfig(lr=1e-5, head_lr=10.0)
    >>> [group["lr"] for group in build_optimizer(config, [], model.named_parameters()).param_groups]
    [0.0001]
    """
    check_optimizer(config)
    parts: dict[str, tuple[Named, float]] = {
        "backbone": (backbone, config.lr),
        "head": (head, config.lr * config.head_lr),
        "loss": (((str(place), each) for place, each in enumerate(loss_parameters)), config.lr * config.head_lr),
    }
    groups: dict[tuple[str, float], dict[str, Any]] = {}
    seen: dict[int, str] = {}
    for part, (parameters, lr) in parts.items():
        for name, parameter in parameters:
            if not parameter.requires_grad:
                continue
            full_name = f"{part}.{name}"
            if id(parameter) in seen:
                raise InputError(f"{full_name} and {seen[id(parameter)]} are one parameter; give every parameter once")
            seen[id(parameter)] = full_name
            exempt = config.name == "adamw" and (parameter.ndim <= 1 or name in undecayed)
            decay = 0.0 if exempt else config.weight_decay
            settings = {"lr": lr, "initial_lr": lr, "weight_decay": decay, "part": part, "params": []}
            groups.setdefault((part, decay), settings)["params"].append(parameter)
    if not groups:
        raise InputError("backbone and head have no parameter that needs a gradient; unfreeze some")
    if config.name == "sgd":
        return torch.optim.SGD(groups.values(), lr=config.lr, momentum=config.momentum)
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[config.name](groups.values(), lr=config.lr)


def learning_rate(
    config: OptimizerConfig, step: int, steps: int, steps_per_epoch: float = 1, milestone_unit: Unit = "epochs"
) -> float:
    """Return the factor of the learning rates in a step, counted from 0, of `steps` in all.

        constant   1
        multistep  gamma ^ (milestones reached)     a milestone is reached as its epoch, counted from 0, begins
        linear     1 - step / steps                 AP_Q, Sec. 4.2
        cosine     (1 + cos(pi step / steps)) / 2

    times (step + 1) / warmup in the first `warmup` steps.

    steps_per_epoch: steps of an epoch, for milestones in epochs; need not be whole
    milestone_unit:  "iterations" counts milestones in steps

    >>> config = OptimizerConfig(schedule="multistep", milestones=(2, 4), gamma=0.3)
    >>> [round(learning_rate(config, step, 10, steps_per_epoch=2), 4) for step in (0, 3, 4, 7, 8, 9)]
    [1.0, 1.0, 0.3, 0.3, 0.09, 0.09]
    """
    check_optimizer(config, steps)
    check_integer("step", step, at_least=0, at_most=steps)
    check_number("steps_per_epoch", steps_per_epoch, above=0)
    check_choice("milestone_unit", milestone_unit, get_args(Unit))
    factor = 1.0
    if config.schedule == "multistep":
        unit = steps_per_epoch if milestone_unit == "epochs" else 1
        factor = config.gamma ** sum(step > milestone * unit - 1e-6 for milestone in config.milestones)
    elif config.schedule == "linear":
        factor = 1 - step / steps
    elif config.schedule == "cosine":
        factor = (1 + math.cos(math.pi * step / steps)) / 2
    return factor * min(1.0, (step + 1) / config.warmup) if config.warmup else factor


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set the learning rate of every group to its first one times the factor."""
    check_number("factor", factor, at_least=0)
    for group in optimizer.param_groups:
        if "initial_lr" not in group:
            raise InputError("optimizer has a group without initial_lr; make it with build_optimizer")
        group["lr"] = group["initial_lr"] * factor


def check_optimizer(config: OptimizerConfig, steps: int | None = None) -> None:
    """Raise for settings that are not valid.

    steps: of the whole run, if known
    """
    check_choice("optimizer.name", config.name, _NAMES)
    check_choice("optimizer.schedule", config.schedule, _SCHEDULES)
    for name in ("lr", "head_lr", "gamma"):
        check_number(f"optimizer.{name}", getattr(config, name), above=0)
    for name in ("weight_decay", "clip", "momentum"):
        check_number(f"optimizer.{name}", getattr(config, name), at_least=0)
    if config.momentum >= 1:
        raise InputError(f"optimizer.momentum must be less than 1, got {config.momentum}")
    check_integer("optimizer.warmup", config.warmup, at_least=0)
    for milestone in config.milestones:
        check_integer("each of optimizer.milestones", milestone, at_least=1)
    if any(later <= earlier for earlier, later in pairwise(config.milestones)):
        raise InputError(f"optimizer.milestones must rise, got {list(config.milestones)}; sort them, each once")
    if config.schedule == "multistep" and not config.milestones:
        raise InputError("optimizer.milestones is empty; list when multistep must lower the learning rate")
    if steps is not None:
        check_integer("steps", steps, at_least=1)
        check_integer("optimizer.warmup", config.warmup, at_most=steps)


def clip_gradient(optimizer: torch.optim.Optimizer, most: float) -> float:
    """Make the gradient no longer than `most`, if that is not 0, and return the norm that it had."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    return float(nn.utils.clip_grad_norm_(parameters, most or math.inf))
