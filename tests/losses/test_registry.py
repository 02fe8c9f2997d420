"""Losses by name: what the registry reads from the sources is what the classes have."""

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest

import frontrank as fr
from frontrank import losses
from frontrank.errors import InputError
from frontrank.losses import registry
from frontrank.losses.registry import LOSSES, PARTS, arguments, build
from tests.cases import CASES

CLASSES = {  # everything whose signature is read: its class, and its arguments as they are read
    **{name: (getattr(losses, name), registry._signature(loss.module, name)) for name, loss in LOSSES.items()},
    **{
        f"{part} {name}": (getattr(import_module(module), name), registry._signature(module, name))
        for part, kinds in PARTS.items()
        for name, module in kinds.items()
    },
}
OTHER = {  # of each setting: a value that is the default of no loss
    **{"variant": "I_b", "alpha": 2.0, "b": 3.0, "temperature": 0.5, "include_query": True, "bins": 7, "lam": 2.0},
    **{"distance": "euclidean", "tie_aware": True, "balance_classes": True, "weighting": "log", "margin": 0.5},
    **{
        "ks": (3,),
        "rank_temperature": 2.0,
        "rho": 7.0,
        "delta": 0.3,
        "calibration": 0.5,
        "positive": 0.7,
        "negative": 0.2,
    },
}


@pytest.mark.parametrize("name", CLASSES)
def test_the_signature_of_the_source_is_that_of_the_class(name):
    kind, known = CLASSES[name]
    plain = {kind: kind for kind in (int, float, bool, tuple[int, ...])}
    assert {argument: (each.type, each.default) for argument, each in known.items()} == {
        each.name: (plain.get(each.annotation, str), None if each.default is each.empty else each.default)
        for each in inspect.signature(kind).parameters.values()
    }


def test_every_loss_has_a_reference():
    assert {type(case.build()).__name__ for case in CASES} >= set(LOSSES)


def test_every_setting_of_every_loss_has_help():
    for name in LOSSES:
        parts = dict.fromkeys(PARTS)
        assert all(argument.help for argument in registry._signature(LOSSES[name].module, name).values()), name
        assert set(arguments(name, parts)) <= set(registry.all_arguments())
    assert all(next(iter(having.values())).help for having in registry.all_arguments().values())


def test_the_public_names_are_those_of_the_registry():
    tree = ast.parse(Path(losses.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    imports = {alias.asname: node.module for node in block.body for alias in node.names}
    assert imports == {
        name: loss.module for name, loss in {**LOSSES, **registry.CLASSIFIER_LOSSES, **registry.OTHER_LOSSES}.items()
    }
    assert sorted(imports) == losses.__all__
    assert all(getattr(losses, name).__name__ == name for name in losses.__all__)
    with pytest.raises(AttributeError):
        _ = losses.NoLoss


@pytest.mark.parametrize("name", LOSSES)
def test_every_setting_reaches_its_loss(name):
    kind = getattr(fr, name)
    assert type(build(name, {})) is kind
    if name == "RankLoss":
        return
    own = {key: OTHER[key] for key in arguments(name)}
    assert str(build(name, {})) == str(kind())
    assert str(build(name, own)) == str(kind(**own))
    for key, value in own.items():
        assert str(build(name, {key: value})) == str(kind(**{key: value})) != str(kind())
    for key in OTHER.keys() - own.keys():
        with pytest.raises(InputError, match=rf"loss\.{key} .*{name}"):
            build(name, {key: OTHER[key]})


@pytest.mark.parametrize(
    ("settings", "metric", "relaxation"),
    [
        ({}, "AveragePrecision()", "Sigmoid(temperature=0.01)"),
        ({"relaxation": "Blackbox", "lam": 2.0}, "AveragePrecision()", "Blackbox(lam=2.0, margin=0.2)"),
        ({"relaxation": "Bins", "bins": 5}, "AveragePrecision()", "Bins(bins=5)"),
        (
            {"metric": "PenalizedNegatives", "variant": "I_b", "b": 3.0, "temperature": 0.1},
            "PenalizedNegatives(variant='I_b', alpha=4.0, b=3.0)",
            "Sigmoid(temperature=0.1)",
        ),
        ({"metric": "Recall", "weighting": "log"}, "Recall(weighting='log')", "Sigmoid(temperature=0.01)"),
    ],
)
def test_any_metric_on_any_relaxation(settings, metric, relaxation):
    for include_query in (False, True):
        loss = build("RankLoss", {**settings, "include_query": include_query})
        assert (repr(loss.metric), repr(loss.relaxation)) == (metric, relaxation)
        assert loss.include_query is include_query


@pytest.mark.parametrize(
    ("name", "settings", "match"),
    [
        ("RankLoss", {"metric": "Recal"}, "loss.metric .*Recall"),
        ("RankLoss", {"relaxation": "Exact"}, "loss.relaxation .*Sigmoid, SupRank, Bins"),
        ("RankLoss", {"relaxation": "Blackbox", "temperature": 0.1}, "loss.temperature"),
        ("RankLoss", {"variant": "O"}, "loss.variant"),
        ("RankLoss", {"metric": "Recall", "weighting": "lin"}, "weighting"),
        ("SmoothAP", {"metric": "Recall"}, "loss.metric"),
        ("smoothap", {}, "loss.name .*SmoothAP"),
        ("zzz", {}, "loss.name .*RankLoss, and pml.NAME"),
        ("PNP-D_q", {"variant": "O"}, "loss.variant"),
    ],
)
def test_what_cannot_be_built(name, settings, match):
    with pytest.raises(InputError, match=match):
        build(name, settings)


def test_presets():
    for preset, settings in registry.presets().items():
        name = settings["name"]
        own = {key: value for key, value in settings.items() if key != "name"}
        registry.check_arguments(name, own)
        if name in LOSSES:
            assert registry.preset_name(name, {**{k: a.default for k, a in arguments(name).items()}, **own}) == preset
            assert repr(build(preset, {})) == repr(build(name, own))
    assert registry.preset_name("pml.ContrastiveLoss", {}) == "ContrastiveLoss"
