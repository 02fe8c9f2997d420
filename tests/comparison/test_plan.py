"""The plan of a comparison: ways to train from a command line, and what is refused before any work."""

import json
from pathlib import Path

import pytest

from frontrank.comparison.plan import Plan, read_plan
from frontrank.errors import InputError
from frontrank.losses.registry import presets
from frontrank.settings import LossConfig, find_recipe, read_recipe, value_of, values_of
from frontrank.training.run import build_loss

TABLE = Path("images.csv")


def plan_of(losses=None, overrides=None, recipe=None, **others):
    return read_plan(recipe, {"data.path": "photos", **(overrides or {})}, losses=losses, **others)


def configs_of(plan):
    return [plan.config(way, way.lrs[0], 0, TABLE) for way in plan.ways]


def losses_of(plan):
    return {way.name: build_loss(config.loss, 3, 8) for way, config in zip(plan.ways, configs_of(plan), strict=True)}


def test_losses_of_the_command_line():
    plan = plan_of("PNP-D_q(alpha=2, temperature=5e-2),triplet(margin=0.1,miner=BatchHardMiner),pml.ProxyAnchorLoss")
    assert [way.name for way in plan.ways][1:] == ["triplet(margin=0.1,miner=BatchHardMiner)", "pml.ProxyAnchorLoss"]
    first, second, _ = losses_of(plan).values()
    assert (first.metric.alpha, first.relaxation.temperature) == (2, 0.05)
    assert (second.loss.margin, type(second.miner).__name__) == (0.1, "BatchHardMiner")
    assert len({way.folder for way in plan.ways}) == 3
    assert len(plan_of().ways) > 4  # by default one of each family


def test_every_named_loss_is_what_its_name_says():
    losses = losses_of(plan_of(",".join(presets())))
    assert list(losses) == list(presets())
    for variant in ("O", "I_u", "I_b", "D_s", "D_q"):
        assert losses[f"PNP-{variant}"].metric.variant == variant
    for weighting in ("log", "loglog"):
        assert losses[f"BlackboxRecall-{weighting}"].metric.weighting == weighting
    peers = {name: (type(one.loss).__name__, one.miner) for name, one in losses.items() if hasattr(one, "miner")}
    assert {name: (loss, miner and type(miner).__name__) for name, (loss, miner) in peers.items()} == {
        "contrastive": ("ContrastiveLoss", None),
        "triplet": ("TripletMarginLoss", "BatchEasyHardMiner"),
        "triplet-hard": ("TripletMarginLoss", "BatchHardMiner"),
        "multi-similarity": ("MultiSimilarityLoss", "MultiSimilarityMiner"),
    }
    assert (losses["triplet"].loss.margin, losses["triplet"].miner.neg_strategy) == (0.2, "semihard")


def test_shared_settings_of_the_loss_go_to_those_that_have_them():
    plan = plan_of("PNP-D_s,SmoothAP(temperature=0.5),FastAP,triplet", {"loss.temperature": "0.1", "loss.bins": "7"})
    losses = losses_of(plan)
    assert losses["PNP-D_s"].relaxation.temperature == 0.1
    assert losses["SmoothAP(temperature=0.5)"].relaxation.temperature == 0.5  # its own
    assert losses["FastAP"].bins == 7
    assert "loss.temperature" not in plan.ways[3].settings


def test_a_recipe_gives_what_all_share_but_not_its_own_loss():
    plan = plan_of("PNP-O,SmoothAP,contrastive", {"epochs": "3"}, read_recipe(find_recipe("pnp-sop")))
    configs = configs_of(plan)
    assert [config.loss.name for config in configs] == ["PNP", "SmoothAP", "pml.ContrastiveLoss"]
    assert [value_of(config, "loss.variant") for config in configs] == ["O", None, None]
    assert [value_of(config, "loss.temperature") for config in configs] == [0.01, 0.01, None]
    assert {(c.epochs, c.model.backbone) for c in configs} == {(3, "resnet50.tv_in1k")}
    recipe = {"loss.name": "pml.TripletMarginLoss", "loss.options": {"margin": 0.7}, "loss.miner": "BatchHardMiner"}
    configs = configs_of(plan_of("contrastive,PNP", recipe={**recipe, "loss.variant": "O"}))
    assert [config.loss for config in configs] == [LossConfig("pml.ContrastiveLoss"), LossConfig("PNP")]


# Axes


def test_axes_make_a_grid():
    plan = plan_of(None, {"loss.name": "SmoothAP"}, axes=["batches.per_class=2,4", "loss.temperature=0.1,1"])
    assert plan.axes == ("batches.per_class", "loss.temperature")
    assert plan.ways[1].name == "batches.per_class=2, loss.temperature=1"
    configs = configs_of(plan)
    assert [(c.batches.per_class, c.loss.temperature) for c in configs] == [(2, 0.1), (2, 1.0), (4, 0.1), (4, 1.0)]
    assert {config.loss.name for config in configs} == {"SmoothAP"}
    assert [way.settings["batches.per_class"] for way in plan.ways] == [2, 2, 4, 4]  # 4 is also that of the base


@pytest.mark.parametrize(
    ("axis", "losses", "remedy"),
    [
        ("loss.b=2,4", None, "PNP-I_b"),
        ("loss.alpha=2,4", "PNP-D_s", "PNP-D_q"),
        ("optimizer.momentum=0.1,0.3", None, "--optimizer.name sgd"),
    ],
)
def test_an_axis_without_effect_is_refused(axis, losses, remedy):
    with pytest.raises(InputError, match=f"{axis.split('=')[0]} .*{remedy}"):
        plan_of(losses, axes=[axis])
    assert len(plan_of("PNP-I_b", axes=["loss.b=2,4"]).ways) == 2  # it has an effect there


# Learning rates, seeds, budgets


def test_learning_rates():
    assert plan_of("SmoothAP").ways[0].lrs == (5e-5, 1.5e-4, 4.5e-4)
    assert plan_of("SmoothAP", {"optimizer.lr": "0.003"}).ways[0].lrs == (0.001, 0.003, 0.009)
    assert plan_of("SmoothAP", lrs="1e-3, 1e-4").ways[0].lrs == (1e-4, 1e-3)
    assert [way.lrs for way in plan_of(axes=["optimizer.lr=1e-4,1e-3"]).ways] == [(1e-4,), (1e-3,)]  # no search


def test_the_settings_of_a_run():
    plan = plan_of(
        "SmoothAP", {"seed": "5", "data.test": "0.5", "data.merge_classes": "3", "epochs": "7"}, search_steps=9
    )
    config = plan.config(plan.ways[0], 0.5, 2, TABLE)
    assert (config.seed, config.optimizer.lr, config.epochs, config.iterations) == (7, 0.5, 7, 0)
    assert (config.data.path, config.data.layout, config.data.merge_classes) == ("images.csv", "table", 1)
    assert plan.config(plan.ways[0], 0.5, 0, TABLE, search=True).iterations == 9
    differing = {"data.path", "data.layout", "data.test", "data.check", "data.merge_classes", "seed", "optimizer.lr"}
    base, own = values_of(plan.base), values_of(config)
    assert {name for name in own if own[name] != base[name]} == differing | {"loss.name"}


def test_a_plan_is_read_back_as_it_was():
    losses = "PNP-D_q(alpha=2),triplet(margin=0.1)"
    plan = plan_of(losses, lrs="1e-3,1e-2", seeds=2, reference="PNP-D_q(alpha=2)")
    assert Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan


# What is refused: the argument that is named, and the name it may have meant

REFUSED = [
    ({"losses": "PNP-Dq"}, {}, "PNP-Dq.*PNP-D_q"),
    ({"losses": "SmoothAP,SmoothAP"}, {}, "--losses.*SmoothAP"),
    ({"losses": "PNP-D_q(alpha)"}, {}, "'alpha'"),
    ({"losses": "SmoothAP,FastAP(bins=0)"}, {}, "FastAP.*bins"),
    ({"losses": "triplet(margn=1)"}, {}, "margn.*margin"),
    ({"losses": "PNP-D_q"}, {"loss.variant": "O"}, "--loss.variant"),
    ({"losses": "PNP-D_q"}, {"loss.bins": "3"}, "--loss.bins"),
    ({"axes": ["loss.temperature="]}, {}, "--axis"),
    ({"axes": ["loss.temprature=1,2"]}, {}, "loss.temprature.*loss.temperature"),
    ({"axes": ["loss.temperature=1,1"]}, {}, "--axis loss.temperature"),
    ({"axes": ["loss.temperature=1", "loss.temperature=2"]}, {}, "--axis loss.temperature"),
    ({"axes": ["batches.per_class=3,4"]}, {"batches.size": "16"}, "batches.size 16"),
    ({"axes": ["seed=1,2"]}, {}, "--axis seed.*--seeds"),
    ({"axes": ["data.merge_classes=1,3"]}, {}, "--axis data.merge_classes"),
    ({"lrs": "1e-3,x"}, {}, "--lr.*x"),
    ({"lrs": "0"}, {}, "--lr"),
    ({"lrs": "1e-3,0.001"}, {}, "--lr.*0.001"),
    ({"lrs": "1"}, {"optimizer.lr": "2"}, "--optimizer.lr"),
    ({"seeds": 0}, {}, "--seeds"),
    ({"search_steps": -1}, {}, "--search-iterations"),
    ({"search_steps": 5}, {"optimizer.schedule": "multistep", "optimizer.milestones": "[3]"}, "--search-iterations"),
    ({"reference": "PNP-Dq"}, {}, "--reference.*PNP-D_q"),
    ({}, {"optimizer.schedule": "multistep"}, "optimizer.milestones"),
]


@pytest.mark.parametrize(("arguments", "overrides", "names"), REFUSED, ids=[str(row[:2]) for row in REFUSED])
def test_refused(arguments, overrides, names):
    with pytest.raises(InputError, match=names) as refusal:
        plan_of(overrides=overrides, **arguments)
    assert "\n" not in str(refusal.value)
