"""The losses by name. A new loss is its file and one line of `LOSSES`.

The rest follows from its class: settings on the command line and in recipes, their checks, `frontrank train --help`,
`frontrank compare --losses`, and the tests over all losses. Signature and docstring are read from the source, as help
and settings must not wait for torch. So the arguments of `__init__` are int, float, bool or text with plain defaults,
and the docstring has a line `argument: what it is` for each, which is its help.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from frontrank.checks import suggestion
from frontrank.errors import InputError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Loss:
    """A loss: the module of its class, and names for some of its settings."""

    module: str
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


LOSSES: dict[str, Loss] = {
    "PNP": Loss("frontrank.losses.pnp", {f"PNP-{v}": {"variant": v} for v in ("O", "I_u", "I_b", "D_s", "D_q")}),
    "SmoothAP": Loss("frontrank.losses.smooth_ap"),
    "FastAP": Loss("frontrank.losses.fastap"),
    "QuantizedAP": Loss("frontrank.losses.quantized_ap"),
    "BlackboxRecall": Loss(
        "frontrank.losses.rambo",
        {f"BlackboxRecall-{weighting}": {"weighting": weighting} for weighting in ("log", "loglog")},
    ),
    "BlackboxAP": Loss("frontrank.losses.rambo"),
    "RecallAtK": Loss("frontrank.losses.recall_at_k"),
    "SupAP": Loss("frontrank.losses.roadmap"),
    "ROADMAP": Loss("frontrank.losses.roadmap"),
    "PairMargin": Loss("frontrank.losses.roadmap"),
    "SmoothNDCG": Loss("frontrank.losses.roadmap"),
    "HierarchicalAP": Loss("frontrank.losses.happier"),
    "RankLoss": Loss("frontrank.losses.rank_loss"),
}
OTHER_LOSSES = {"CombinedLoss": Loss("frontrank.losses.rank_loss")}  # made of other losses, in Python only
CLASSIFIER_LOSSES = {"ClassifierAP": Loss("frontrank.losses.rambo")}  # of scores per class; frontrank.detection uses it
PARTS = {  # of RankLoss: class and module; the first is the default
    "metric": {
        "AveragePrecision": "frontrank.ranking.metrics",
        "PenalizedNegatives": "frontrank.ranking.metrics",
        "Recall": "frontrank.ranking.metrics",
        "RecallAtK": "frontrank.ranking.metrics",
        "NDCG": "frontrank.ranking.metrics",
        "HierarchicalAP": "frontrank.ranking.metrics",
        "MeanAveragePrecisionAtR": "frontrank.ranking.metrics",
    },
    "relaxation": {
        "Sigmoid": "frontrank.ranking.ranks",
        "SupRank": "frontrank.ranking.ranks",
        "Bins": "frontrank.ranking.histograms",
        "Blackbox": "frontrank.ranking.ranks",
    },
}
PEERS = "pml."  # prefix of the losses of pytorch-metric-learning
PEER_PRESETS: dict[str, dict[str, Any]] = {
    "contrastive": {"name": "pml.ContrastiveLoss"},
    "triplet": {"name": "pml.TripletMarginLoss", "options": {"margin": 0.2}, "miner": "BatchEasyHardMiner"},
    "triplet-hard": {"name": "pml.TripletMarginLoss", "options": {"margin": 0.2}, "miner": "BatchHardMiner"},
    "multi-similarity": {"name": "pml.MultiSimilarityLoss", "miner": "MultiSimilarityMiner"},
}


@dataclass(frozen=True)
class Argument:
    """An argument of a loss."""

    type: Any
    default: Any
    help: str


_PEER_ARGUMENTS = {
    "options": Argument(dict[str, Any], None, "arguments of the loss, as {name: value}"),
    "miner": Argument(str, None, "a miner of pytorch-metric-learning"),
}


def presets() -> dict[str, dict[str, Any]]:
    """Return the names that a loss can have in a report, with the settings that each stands for.

    >>> presets()["PNP-D_s"]
    {'name': 'PNP', 'variant': 'D_s'}
    """
    ours = {
        preset: {"name": name, **settings}
        for name, loss in LOSSES.items()
        for preset, settings in (loss.presets or {name: {}}).items()
    }
    return ours | PEER_PRESETS


def read_preset(name: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return a loss and its settings, where the name may be that of a preset, which stands for some of them.

    >>> read_preset("PNP-D_q", {"alpha": 2.0})
    ('PNP', {'alpha': 2.0, 'variant': 'D_q'})
    """
    own = dict(presets().get(name, {}))
    loss = own.pop("name", name)
    for key, value in own.items():
        if settings.get(key) not in (None, value):
            fault = f"loss.name {name} stands for loss.{key} {value}, and loss.{key} is {settings[key]}"
            raise InputError(f"{fault}; leave it out, or give loss.name {loss}")
    return loss, {**settings, **own}


def preset_name(name: str, settings: Mapping[str, Any]) -> str:
    """Return the preset that has these settings, or the name of the loss.

    >>> preset_name("PNP", {"variant": "D_s", "temperature": 0.1})
    'PNP-D_s'
    """
    known = LOSSES[name].presets if name in LOSSES else {}
    fits = [preset for preset, own in known.items() if own.items() <= settings.items()]
    return fits[0] if fits else name.removeprefix(PEERS)


def arguments(name: str, parts: Mapping[str, Any] | None = None) -> dict[str, Argument]:
    """Return the arguments that a loss, or a preset of it, has, by name, in the order of its signature.

    parts: metric and relaxation of a RankLoss, whose arguments are those of its parts too

    >>> list(arguments("SmoothAP"))
    ['temperature', 'include_query']
    >>> list(arguments("RankLoss", {"relaxation": "Blackbox"}))
    ['metric', 'relaxation', 'include_query', 'lam', 'margin']
    """
    name, parts = read_preset(name, parts or {})
    if name.startswith(PEERS):
        return dict(_PEER_ARGUMENTS)
    if name not in LOSSES:
        near = suggestion(name, [*LOSSES, *presets()]) or f"; there are {', '.join(LOSSES)}, and {PEERS}NAME"
        raise InputError(f"loss.name {name!r} is not known{near}")
    own = dict(_signature(LOSSES[name].module, name))
    for part in own.keys() & PARTS.keys():
        choices = tuple(PARTS[part])
        own[part] = Argument(Literal[choices], choices[0], own[part].help)
    for part in (part for part in PARTS if part in own):
        own |= _signature(*_find_part(part, parts))
    return own


def all_arguments() -> dict[str, dict[str, Argument]]:
    """Return the arguments of all losses: argument, then loss; the losses of pytorch-metric-learning are pml.NAME."""
    table: dict[str, dict[str, Argument]] = {}
    for name in (*LOSSES, f"{PEERS}NAME"):
        own = arguments(name)
        for part in own.keys() & PARTS.keys():
            for kind, module in PARTS[part].items():
                own = {**_signature(module, kind), **own}
        for argument, entry in own.items():
            table.setdefault(argument, {})[name] = entry
    return table


def check_arguments(name: str, settings: Mapping[str, Any]) -> None:
    """Raise an error if a loss does not have one of these settings."""
    known = arguments(name, settings)
    for setting in settings:
        if setting not in known:
            raise InputError(f"loss.{setting} is not a setting of {name}, which has {', '.join(known)}; leave it out")


def build(name: str, settings: Mapping[str, Any]) -> "nn.Module":
    """Return the loss of this name, which may be a preset, with these settings, the others at their defaults.

    >>> build("RankLoss", {"metric": "Recall", "weighting": "log", "temperature": 0.1})
    RankLoss(metric=Recall(weighting='log'), relaxation=Sigmoid(temperature=0.1), include_query=False)
    """
    check_arguments(name, settings)
    name, settings = read_preset(name, settings)
    own = _signature(LOSSES[name].module, name)
    given = {key: value for key, value in settings.items() if key in own}
    for part in (part for part in PARTS if part in own):
        module, kind = _find_part(part, settings)
        of_part = {key: settings[key] for key in _signature(module, kind) if key in settings}
        given[part] = getattr(import_module(module), kind)(**of_part)
    loss: nn.Module = getattr(import_module(LOSSES[name].module), name)(**given)
    return loss


def _find_part(part: str, chosen: Mapping[str, Any]) -> tuple[str, str]:
    """Return the module and the class of the metric or relaxation of a RankLoss."""
    kinds = PARTS[part]
    kind = chosen.get(part) or next(iter(kinds))
    if not isinstance(kind, str) or kind not in kinds:
        near = suggestion(str(kind), kinds) or f"; there are {', '.join(kinds)}"
        raise InputError(f"loss.{part} {kind!r} is not known{near}")
    return kinds[kind], kind


@cache
def _signature(module: str, name: str) -> Mapping[str, Argument]:
    """Read the arguments of a class from its source: those of `__init__`, or the fields of a dataclass."""
    body = next(node for node in _parse(module).body if isinstance(node, ast.ClassDef) and node.name == name)
    rows: list[tuple[str, ast.expr | None, ast.expr | None]]
    init = next((node for node in body.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"), None)
    if init is None:
        lines = [node for node in body.body if isinstance(node, ast.AnnAssign)]
        lines = [node for node in lines if "ClassVar" not in ast.unparse(node.annotation)]
        rows = [(node.target.id, node.annotation, node.value) for node in lines if isinstance(node.target, ast.Name)]
    else:
        own = init.args.args[1:]
        defaults = [None] * (len(own) - len(init.args.defaults)) + init.args.defaults
        rows = [(arg.arg, arg.annotation, default) for arg, default in zip(own, defaults, strict=True)]
    plain = {"int": int, "float": float, "bool": bool, "tuple[int, ...]": tuple[int, ...]}
    text = ast.get_docstring(body) or ""
    result = {}
    for argument, annotation, default in rows:
        kind = plain.get(ast.unparse(annotation), str) if annotation else str
        value = None if default is None else ast.literal_eval(default)
        line = re.search(rf"^(?:\w+, )*{argument}(?:, \w+)*: +(.+)$", text, re.MULTILINE)
        result[argument] = Argument(kind, value, line[1] if line else "")
    return result


@cache
def _parse(module: str) -> ast.Module:
    file = Path(__file__).parents[1].joinpath(*module.split(".")[1:]).with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))
