"""Losses by the names that a command line has for them.

A loss is written as a name of `NAMED_LOSSES`, a class of ours, or pml.NAME of pytorch-metric-learning, with settings of
its own in brackets where they are not its defaults: "PNP-D_q(alpha=2,temperature=0.05)", "triplet(margin=0.1)".
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from frontrank.build import LOSSES, PARTS, PEERS, settings_of_loss
from frontrank.errors import InputError
from frontrank.settings import settings

NAMED_LOSSES: dict[str, dict[str, Any]] = {
    **{f"PNP-{variant}": {"name": "PNP", "variant": variant} for variant in ("O", "I_u", "I_b", "D_s", "D_q")},
    "SmoothAP": {"name": "SmoothAP"},
    "FastAP": {"name": "FastAP"},
    "QuantizedAP": {"name": "QuantizedAP"},
    "BlackboxRecall-log": {"name": "BlackboxRecall", "weighting": "log"},
    "BlackboxRecall-loglog": {"name": "BlackboxRecall", "weighting": "loglog"},
    "BlackboxAP": {"name": "BlackboxAP"},
    "contrastive": {"name": "pml.ContrastiveLoss"},
    "triplet": {"name": "pml.TripletMarginLoss", "options": {"margin": 0.2}, "miner": "BatchEasyHardMiner"},
    "triplet-hard": {"name": "pml.TripletMarginLoss", "options": {"margin": 0.2}, "miner": "BatchHardMiner"},
    "multi-similarity": {"name": "pml.MultiSimilarityLoss", "miner": "MultiSimilarityMiner"},
}
DEFAULT_LOSSES = "PNP-D_q,PNP-D_s,SmoothAP,FastAP,QuantizedAP,BlackboxRecall-loglog,contrastive,triplet"


def named_loss(text: str) -> dict[str, str]:
    """The settings that a loss on the command line stands for, as words.

    >>> named_loss("PNP-D_q(alpha=2)")
    {'loss.name': 'PNP', 'loss.variant': 'D_q', 'loss.alpha': '2'}
    """
    match = re.fullmatch(r"([^()]+?)\s*(?:\((.*)\))?", text.strip(), re.DOTALL)
    if match is None:
        raise InputError(f"--losses {text!r} cannot be read; write NAME or NAME(setting=value,setting=value)")
    name, inside = match[1], match[2] or ""
    preset = NAMED_LOSSES.get(name) or ({"name": name} if name in LOSSES or name.startswith(PEERS) else None)
    if preset is None:
        raise InputError(f"--losses: there is no loss {name!r}{_nearest_loss(name)}")
    words = {f"loss.{key}": value for key, value in preset.items() if key != "options"}
    options = dict(preset.get("options", {}))
    for part in split_list(inside):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or not value:
            raise InputError(f"--losses {text!r}: {part!r} is no setting; write NAME(setting=value)")
        if words["loss.name"].startswith(PEERS) and key != "miner":
            options[key] = value
        elif f"loss.{key}" not in settings():
            has = ", ".join(each.removeprefix("loss.") for each in settings_of(words))
            raise InputError(f"--losses {text!r}: there is no setting {key!r}; {name} has {has}")
        else:
            words[f"loss.{key}"] = value
    if options:
        words["loss.options"] = "{" + ", ".join(f"{key}: {value}" for key, value in options.items()) + "}"
    return words


def settings_of(words: Mapping[str, str]) -> tuple[str, ...]:
    """The settings that a loss has, by their full names; words: what stands for it."""
    if words["loss.name"].startswith(PEERS):
        return "loss.options", "loss.miner"
    parts = {part: words.get(f"loss.{part}") for part in PARTS}
    return tuple(f"loss.{name}" for name in settings_of_loss(words["loss.name"], parts))


def _nearest_loss(name: str) -> str:
    known = {each.lower(): each for each in (*NAMED_LOSSES, *LOSSES)}
    near = get_close_matches(name.lower(), known, 1, 0.4)
    return f"; did you mean {known[near[0]]}?" if near else f"; there are {', '.join(NAMED_LOSSES)}, and {PEERS}NAME"


def split_list(text: str) -> list[str]:
    """The parts between commas, but for those within brackets.

    >>> split_list("PNP-D_q(alpha=2,b=3), triplet")
    ['PNP-D_q(alpha=2,b=3)', 'triplet']
    """
    parts, depth = [""], 0
    for mark in text:
        depth += (mark in "([{") - (mark in ")]}")
        if mark == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += mark
    return [part.strip() for part in parts if part.strip()]
