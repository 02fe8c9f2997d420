"""What a comparison's command line means, and what is refused before any work."""

from pathlib import Path

import pytest

from frontrank.comparison.plan import DEFAULT_LOSSES, named_loss, read_plan, split_list
from frontrank.errors import InputError
from frontrank.losses.registry import presets
from frontrank.settings import LossConfig, find_recipe, read_config, read_recipe, value_of, values_of
from frontrank.training.run import build_loss

TABLE = Path("images.csv")


def plan_of(losses=None, overrides=None, recipe=None, **others):
    return read_plan(recipe, {"data.path": "photos", **(overrides or {})}, losses=losses, **others)


def losses_of(plan):
    return {way.name: build_loss(plan.config(way, way.lrs[0], 0, TABLE).loss, 3, 8) for way in plan.ways}


# Losses


def test_every_named_loss_is_what_its_name_says():
    found = losses_of(plan_of(",".join(presets())))
    assert list(found) == list(presets())
    for variant in ("O", "I_u", "I_b", "D_s", "D_q"):
        assert f"PenalizedNegatives(variant='{variant}'" in str(found[f"PNP-{variant}"])
    for name in ("SmoothAP", "FastAP", "QuantizedAP", "BlackboxAP"):
        assert type(found[name]).__name__ == name
    for weighting in ("log", "loglog"):
        assert f"Recall(weighting='{weighting}')" in str(found[f"BlackboxRecall-{weighting}"])
    peers = {
        name: (type(found[name].loss).__name__, found[name].miner and type(found[name].miner).__name__)
        for name in ("contrastive", "triplet", "triplet-hard", "multi-similarity")
    }
    assert peers == {
        "contrastive": ("ContrastiveLoss", None),
        "triplet": ("TripletMarginLoss", "BatchEasyHardMiner"),
        "triplet-hard": ("TripletMarginLoss", "BatchHardMiner"),
        "multi-similarity": ("MultiSimilarityLoss", "MultiSimilarityMiner"),
    }
    assert found["triplet"].loss.margin == 0.2
    assert found["triplet"].miner.neg_strategy == "semihard"


def test_by_default_there_is_one_of_each_family():
    plan = plan_of()
    assert ",".join(way.name for way in plan.ways) == DEFAULT_LOSSES
    assert set(split_list(DEFAULT_LOSSES)) <= set(presets())


def test_settings_in_brackets():
    plan = plan_of("PNP-D_q(alpha=2, temperature=5e-2),PNP(variant=I_b,b=4), triplet(margin=0.1,miner=BatchHardMiner)")
    found = losses_of(plan)
    first, second, third = found.values()
    assert (first.metric.alpha, first.relaxation.temperature) == (2, 0.05)
    assert (second.metric.variant, second.metric.b) == ("I_b", 4)
    assert (third.loss.margin, type(third.miner).__name__) == (0.1, "BatchHardMiner")
    assert list(found)[2] == "triplet(margin=0.1,miner=BatchHardMiner)"
    other = losses_of(plan_of("pml.NTXentLoss(temperature=0.2),pml.ProxyAnchorLoss,multi-similarity(alpha=3)"))
    assert other["pml.NTXentLoss(temperature=0.2)"].loss.temperature == 0.2
    assert other["multi-similarity(alpha=3)"].loss.alpha == 3


def test_any_metric_on_any_relaxation():
    recipe = read_recipe(find_recipe("emoji-demo"))  # which has a variant and a temperature
    names = [
        "RankLoss(metric=Recall,temperature=0.1)",
        "RankLoss(metric=PenalizedNegatives,variant=O,relaxation=Blackbox)",
    ]
    found = losses_of(plan_of(",".join([*names, "RankLoss"]), {"loss.lam": "2"}, recipe))
    assert [str(each) for each in found.values()] == [
        "RankLoss(metric=Recall(weighting='loglog'), relaxation=Sigmoid(temperature=0.1), include_query=False)",
        "RankLoss(metric=PenalizedNegatives(variant='O', alpha=4.0, b=2.0), relaxation=Blackbox(lam=2.0, margin=0.02), "
        "include_query=False)",
        "RankLoss(metric=AveragePrecision(), relaxation=Sigmoid(temperature=0.02), include_query=False)",
    ]
    with pytest.raises(InputError, match="there is no setting 'mode'; RankLoss has metric, relaxation, include_query"):
        plan_of("RankLoss(mode=1)")
    with pytest.raises(InputError, match=r"--loss\.metric does not go with several losses"):
        plan_of("RankLoss", {"loss.metric": "Recall"})


def test_shared_settings_of_the_loss_go_to_those_that_have_them():
    plan = plan_of("PNP-D_s,SmoothAP(temperature=0.5),FastAP,triplet", {"loss.temperature": "0.1", "loss.bins": "7"})
    found = losses_of(plan)
    assert found["PNP-D_s"].relaxation.temperature == 0.1
    assert found["SmoothAP(temperature=0.5)"].relaxation.temperature == 0.5  # its own
    assert found["FastAP"].bins == 7
    assert "loss.temperature" not in plan.ways[3].settings


def test_a_recipe_gives_what_all_share():
    recipe = read_recipe(find_recipe("pnp-sop"))
    plan = plan_of("PNP-O,SmoothAP,contrastive", {"epochs": "3"}, recipe)
    configs = [plan.config(way, 1e-5, 0, TABLE) for way in plan.ways]
    assert [config.loss.name for config in configs] == ["PNP", "SmoothAP", "pml.ContrastiveLoss"]
    assert [value_of(config, "loss.variant") for config in configs] == ["O", None, None]
    assert [value_of(config, "loss.temperature") for config in configs] == [0.01, 0.01, None]
    assert configs[0].loss.alpha == 4.0
    assert {(c.epochs, c.model.backbone, c.optimizer.milestones) for c in configs} == {
        (3, "resnet50.tv_in1k", (120, 220, 250, 280))
    }


def test_what_a_recipe_says_of_its_own_loss_is_not_for_the_others():
    recipe = {"loss.name": "pml.TripletMarginLoss", "loss.options": {"margin": 0.7}, "loss.miner": "BatchHardMiner"}
    plan = plan_of("contrastive,PNP", recipe={**recipe, "loss.variant": "O"})
    configs = [plan.config(way, 1e-5, 0, TABLE) for way in plan.ways]
    assert [config.loss for config in configs] == [LossConfig("pml.ContrastiveLoss"), LossConfig("PNP")]


def test_words_of_a_loss():
    assert named_loss("triplet(margin=1e-1)") == {
        "loss.name": "pml.TripletMarginLoss",
        "loss.miner": "BatchEasyHardMiner",
        "loss.options": "{margin: 1e-1}",
    }
    assert split_list(" a(b=[1,2],c={d: 1, e: 2}),, f , ") == ["a(b=[1,2],c={d: 1, e: 2})", "f"]


# Axes


def test_axes_make_a_grid():
    plan = plan_of(None, {"loss.name": "SmoothAP"}, axes=["batches.per_class=2,4", "loss.temperature=0.1,1"])
    assert plan.axes == ("batches.per_class", "loss.temperature")
    assert [way.name for way in plan.ways] == [
        "batches.per_class=2, loss.temperature=0.1",
        "batches.per_class=2, loss.temperature=1",
        "batches.per_class=4, loss.temperature=0.1",
        "batches.per_class=4, loss.temperature=1",
    ]
    configs = [plan.config(way, 1e-5, 0, TABLE) for way in plan.ways]
    assert [(c.batches.per_class, c.loss.temperature) for c in configs] == [(2, 0.1), (2, 1.0), (4, 0.1), (4, 1.0)]
    assert {config.loss.name for config in configs} == {"SmoothAP"}
    assert len({way.folder for way in plan.ways}) == 4


def test_an_axis_of_each_loss():
    plan = plan_of("PNP-D_q,SmoothAP", axes=["loss.temperature=0.1,1"])
    assert [way.name for way in plan.ways] == [
        "PNP-D_q, loss.temperature=0.1",
        "PNP-D_q, loss.temperature=1",
        "SmoothAP, loss.temperature=0.1",
        "SmoothAP, loss.temperature=1",
    ]
    assert plan.config(plan.ways[3], 1e-5, 0, TABLE).loss.name == "SmoothAP"
    one = plan_of("FastAP", axes=["loss.bins=5,10"])
    assert [way.name for way in one.ways] == ["loss.bins=5", "loss.bins=10"]
    assert [plan.config(way, 1e-5, 0, TABLE).loss.bins for way in one.ways] == [5, 10]
    assert {plan.config(way, 1e-5, 0, TABLE).loss.name for way in one.ways} == {"FastAP"}


def test_a_value_that_is_that_of_the_base_is_a_point_as_well():
    """As the chart over the axis needs it."""
    plan = plan_of(axes=["batches.per_class=2,4,8"])
    assert [way.settings["batches.per_class"] for way in plan.ways] == [2, 4, 8]
    assert plan.base.batches.per_class == 4
    plan = plan_of(axes=["optimizer.lr=1e-5,1e-4"])
    assert [(way.lrs, way.settings) for way in plan.ways] == [
        ((1e-5,), {"optimizer.lr": 1e-5}),
        ((1e-4,), {"optimizer.lr": 1e-4}),
    ]
    assert plan.config(plan.ways[1], 0.5, 0, TABLE).optimizer.lr == 0.5


def test_titles_of_an_axis():
    assert plan_of(axes=["loss.temperature=0.1,1"]).title == "loss.temperature on photos"
    plan = plan_of("PNP-D_q,SmoothAP", axes=["loss.temperature=0.1,1", "batches.per_class=2,4"])
    assert plan.title == "loss.temperature, batches.per_class of 2 losses on photos"
    assert plan.losses == ["PNP-D_q", "SmoothAP"]


@pytest.mark.parametrize(
    ("axis", "losses", "message"),
    [
        ("loss.b=2,4", None, "loss.b has no effect on PNP with loss.variant D_q; leave it out, or give --losses PNP-I"),
        ("loss.b=2,4", "PNP-I_b,PNP-D_s", "no effect on PNP-D_s with loss.variant D_s; .* give --losses PNP-I_b"),
        ("loss.alpha=2,4", "PNP-D_s", "loss.alpha has no effect on PNP-D_s with loss.variant D_s; .* --losses PNP-D_q"),
        ("optimizer.gamma=0.1,0.3", None, "with optimizer.schedule constant; .* --optimizer.schedule multistep"),
        ("optimizer.momentum=0.1,0.3", None, "with optimizer.name adam; leave it out, or give --optimizer.name sgd"),
    ],
    ids=["b of D_q", "b of D_s", "alpha of D_s", "gamma", "momentum"],
)
def test_an_axis_without_effect_is_refused(axis, losses, message):
    with pytest.raises(InputError, match=message):
        plan_of(losses, axes=[axis])


def test_an_axis_with_effect():
    for axis, losses in (("loss.b=2,4", "PNP-I_b"), ("loss.alpha=2,4", "PNP-D_q"), ("loss.alpha=2,4", None)):
        assert len(plan_of(losses, axes=[axis]).ways) == 2


def test_an_axis_of_learning_rates_is_not_searched():
    plan = plan_of(axes=["optimizer.lr=1e-4,1e-3"])
    assert [way.lrs for way in plan.ways] == [(1e-4,), (1e-3,)]
    assert plan.config(plan.ways[1], plan.ways[1].lrs[0], 0, TABLE).optimizer.lr == 1e-3


# Learning rates, seeds, budgets


def test_learning_rates():
    assert plan_of("SmoothAP").ways[0].lrs == (3.3e-6, 1e-5, 3e-5)
    assert plan_of("SmoothAP", {"optimizer.lr": "0.003"}).ways[0].lrs == (0.001, 0.003, 0.009)
    assert plan_of("SmoothAP", lrs="1e-3, 1e-4").ways[0].lrs == (1e-4, 1e-3)


def test_the_settings_of_a_run():
    plan = plan_of(
        "SmoothAP", {"seed": "5", "data.test": "0.5", "data.merge_classes": "3", "epochs": "7"}, search_steps=9
    )
    config = plan.config(plan.ways[0], 0.5, 2, TABLE)
    assert (config.seed, config.optimizer.lr, config.epochs, config.iterations) == (7, 0.5, 7, 0)
    assert (config.data.path, config.data.layout, config.data.test, config.data.merge_classes) == (
        "images.csv", "table", 0.0, 1,
    )  # fmt: skip
    assert plan.config(plan.ways[0], 0.5, 0, TABLE, search=True).iterations == 9
    changed = {"data.path", "data.layout", "data.test", "data.check", "data.merge_classes", "seed", "optimizer.lr"}
    base, own = values_of(plan.base), values_of(config)
    assert {name for name in own if own[name] != base[name]} == changed | {"loss.name"}


def test_paths_are_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights.pth").touch()
    plan = plan_of("SmoothAP", {"model.weights": "weights.pth"})
    assert plan.base.data.path == str(tmp_path / "photos")
    assert plan.base.model.weights == str(tmp_path / "weights.pth")
    assert plan.title == "1 loss on photos"
    assert plan_of("SmoothAP,FastAP", {"data.path": "emoji/images.csv"}).title == "2 losses on emoji"


# Refusals


REFUSALS = [
    ({"losses": "smoothap"}, {}, "there is no loss 'smoothap'; did you mean SmoothAP?"),
    ({"losses": "PNP-Dq"}, {}, "there is no loss 'PNP-Dq'; did you mean PNP-D_q?"),
    ({"losses": "xyz"}, {}, "there is no loss 'xyz'; there are PNP-O"),
    ({"losses": "pml.TripletMargin"}, {}, "no loss 'TripletMargin'; did you mean TripletMarginLoss?"),
    ({"losses": "SmoothAP,SmoothAP"}, {}, "--losses has SmoothAP twice"),
    ({"losses": ","}, {}, "--losses names none"),
    ({"losses": "PNP-D_q(alpha)"}, {}, "'alpha' is no setting; write NAME(setting=value)"),
    ({"losses": "PNP-D_q(alpha=)"}, {}, "'alpha=' is no setting"),
    ({"losses": "PNP-D_q(alpa=2)"}, {}, "there is no setting 'alpa'; PNP-D_q has variant, alpha"),
    ({"losses": "PNP-D_q(alpha=x)"}, {}, "loss.alpha must be a number"),
    ({"losses": "PNP-D_q(alpha=0)"}, {}, "PNP-D_q(alpha=0): alpha must be"),
    ({"losses": "SmoothAP(bins=3)"}, {}, "loss.bins is not a setting of SmoothAP"),
    ({"losses": "triplet(margn=1)"}, {}, "TripletMarginLoss has no argument 'margn'; did you mean margin?"),
    ({"losses": "triplet(miner=Hard)"}, {}, "triplet(miner=Hard): pytorch-metric-learning has no miner 'Hard'"),
    ({"losses": "PNP-D_q(alpha=2"}, {}, "cannot be read; write NAME or NAME(setting=value"),
    ({"losses": "PNP-D_q"}, {"loss.variant": "O"}, "--loss.variant does not go with several losses"),
    ({"losses": "PNP-D_q"}, {"loss.name": "PNP"}, "--loss.name does not go with several losses"),
    ({"losses": "PNP-D_q"}, {"loss.bins": "3"}, "--loss.bins is not a setting of any of the losses"),
    ({"losses": "PNP-D_q"}, {"loss.temprature": "3"}, "--loss.temprature is not a setting of any of the losses"),
    ({"axes": ["loss.temperature"]}, {}, "--axis 'loss.temperature' has no values"),
    ({"axes": ["loss.temperature="]}, {}, "has no values; write --axis loss.temperature=0.001,0.01,0.1"),
    ({"axes": ["loss.temprature=1,2"]}, {}, "there is no setting loss.temprature; did you mean loss.temperature?"),
    ({"axes": ["loss.temperature=1,x"]}, {}, "loss.temperature must be a number"),
    ({"axes": ["loss.temperature=1,1"]}, {}, "--axis loss.temperature has 1 twice"),
    ({"axes": ["loss.temperature=1", "loss.temperature=2"]}, {}, "--axis loss.temperature stands twice"),
    ({"axes": ["loss.bins=1,2"]}, {}, "loss.bins is not a setting of PNP"),
    ({"axes": ["batches.per_class=3,4"]}, {"batches.size": "16"}, "batches.size 16 is not a multiple"),
    ({"axes": ["seed=1,2"]}, {}, "--axis seed cannot vary in a comparison; give --seeds"),
    ({"axes": ["loss.name=PNP,FastAP"]}, {}, "--axis loss.name cannot vary in a comparison; give --losses"),
    ({"axes": ["data.merge_classes=1,3"]}, {}, "make a comparison for each"),
    ({"lrs": "1e-3,x"}, {}, "--lr takes numbers with commas, such as 1e-4,3e-4,1e-3, got 'x'"),
    ({"lrs": "0"}, {}, "--lr must be finite and greater than 0, got 0"),
    ({"lrs": "inf"}, {}, "--lr must be finite"),
    ({"lrs": "nan"}, {}, "--lr must be finite"),
    ({"lrs": "1e-3,0.001"}, {}, "--lr has 0.001 twice"),
    ({"lrs": ","}, {}, "--lr names none"),
    ({"lrs": "1"}, {"optimizer.lr": "2"}, "--optimizer.lr has no effect beside --lr"),
    ({"seeds": 0}, {}, "--seeds must be at least 1, got 0"),
    ({"search_steps": -1}, {}, "--search-iterations must be"),
    (
        {"search_steps": 5},
        {"optimizer.schedule": "multistep", "optimizer.milestones": "[3]"},
        "--search-iterations does not go with milestones",
    ),
    ({"reference": "PNP-Dq"}, {}, "--reference 'PNP-Dq' is none of the ways to train; did you mean PNP-D_q?"),
    ({"reference": "zzz"}, {}, "is none of the ways to train; there are PNP-D_q, PNP-D_s"),
    ({}, {"iterations": "-1"}, "iterations must be"),
    ({}, {"optimizer.schedule": "multistep"}, "optimizer.schedule multistep needs optimizer.milestones"),
]


@pytest.mark.parametrize(("arguments", "overrides", "message"), REFUSALS, ids=[row[2][:60] for row in REFUSALS])
def test_refused(arguments, overrides, message):
    with pytest.raises(InputError) as refusal:
        plan_of(overrides=overrides, **arguments)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_what_is_refused_is_really_checked_for_every_way():
    """A wrong one at the end of the list is found before the first is trained."""
    with pytest.raises(InputError, match="FastAP"):
        plan_of("SmoothAP,PNP-D_q,FastAP(bins=0)")
    assert read_config({}, {}).optimizer.lr == 1e-5
