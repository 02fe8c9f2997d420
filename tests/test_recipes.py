"""The recipes against the settings of the papers, which are written here by hand. Figures: tests/test_ledger.py."""

import math
import re
from functools import cache

import pytest
import torch

from frontrank.detection.run import build_classifier_loss
from frontrank.detection.settings import DetectConfig
from frontrank.losses import registry
from frontrank.settings import (
    TrainConfig,
    as_yaml,
    find_recipe,
    read_config,
    read_recipe,
    recipe_names,
    settings,
    value_of,
)
from tests.errors import refusal

R50 = {"model.backbone": "resnet50.tv_in1k", "model.dim": 512, "model.pooling": "average"}
R18 = R50 | {"model.backbone": "resnet18.tv_in1k"}
STEPS = {"optimizer.schedule": "multistep", "optimizer.gamma": 0.3, "iterations": 0}
CONSTANT = {"optimizer.schedule": "constant", "optimizer.milestones": (), "iterations": 0}
ADAM = {"optimizer.name": "adam", "optimizer.lr": 1e-5, "optimizer.weight_decay": 4e-4, "optimizer.head_lr": 1.0}
IMAGES = {"data.resize": 256, "data.size": 224, "data.augment": "crop", "data.flip": True, "data.merge_classes": 1}
WHOLE = {"batches.chunk": 0, "batches.memory": 0, "batches.accumulate": 1}
BALANCED = WHOLE | {"batches.kind": "balanced", "batches.per_class": 4}
PAIRS = WHOLE | {"batches.kind": "categories", "batches.categories": 2, "batches.per_group": 5, "batches.groups": 0}

PNP = {
    **(R50 | ADAM | IMAGES | BALANCED | STEPS),
    **{"loss.name": "PNP", "loss.variant": "D_q", "loss.alpha": 4.0, "loss.temperature": 0.01, "seed": 0},
    **{"optimizer.milestones": (120, 220, 250, 280), "epochs": 400, "batches.size": 112},
}
SMOOTH = R50 | ADAM | IMAGES | BALANCED | STEPS | {"loss.name": "SmoothAP", "loss.temperature": 0.01}
FASTAP = {
    **(IMAGES | ADAM | PAIRS | CONSTANT),
    **{"optimizer.weight_decay": 0.0, "optimizer.head_lr": 10.0, "batches.per_class": 0, "epochs": 30},
    **{"loss.name": "FastAP", "loss.bins": 10, "loss.distance": "squared"},
}
RAMBO = {
    **(R50 | IMAGES | ADAM | CONSTANT),
    **{"batches.size": 128, "batches.per_class": 4, "batches.memory": 7 * 128, "optimizer.head_lr": 10.0},
    **{"loss.name": "BlackboxRecall", "loss.lam": 4.0, "loss.margin": 0.2},
}
RECALL = {
    **(R50 | ADAM | IMAGES | BALANCED | STEPS | {"model.pooling": "gem", "model.layer_norm": True}),
    **{"loss.name": "RecallAtK", "loss.temperature": 0.01, "batches.size": 4000, "batches.chunk": 200},
    **{"data.augment": "resized-crop"},
}
ROADMAP = {
    **(R50 | ADAM | IMAGES | PAIRS | STEPS | {"data.resize": 288, "data.size": 256, "data.augment": "resized-crop"}),
    **{"loss.name": "ROADMAP", "batches.size": 128, "batches.per_class": 4, "batches.per_group": 10},
    **{"optimizer.head_lr": 2.0, "optimizer.weight_decay": 1e-4, "optimizer.milestones": (30, 70), "epochs": 100},
}
HAPPIER = {
    **(R50 | ADAM | IMAGES | BALANCED | {"data.augment": "resized-crop", "model.layer_norm": True}),
    **{"loss.name": "HierarchicalAP", "loss.temperature": 0.01, "loss.alpha": 1.0, "batches.size": 256},
    **{"optimizer.schedule": "cosine", "optimizer.head_lr": 2.0, "epochs": 100, "metric": "H-AP"},
}
INAT = {"data.layout": "inaturalist", "optimizer.milestones": (40, 70), "epochs": 90}
VEHICLES = {"data.layout": "vehicleid"}
LONG = {"optimizer.milestones": (200, 300), "epochs": 400}
CHUNKS = {"batches.size": 256, "batches.chunk": 96}
FACES = SMOOTH | CONSTANT | {"data.layout": "vggface2", "batches.size": 224, "epochs": 5, "metric": "mAP"}
SHOP = {"data.layout": "in-shop", "batches.per_group": 2}
SOP = {"data.layout": "sop"}
PAIRS_OF_5 = {"batches.kind": "categories", "batches.per_group": 5}
CARS = VEHICLES | {"batches.per_group": 1}

EXPECTED = {
    "recall-at-k-sop": RECALL | SOP | {"optimizer.lr": 2e-4, "optimizer.milestones": (25, 50), "epochs": 55},
    "recall-at-k-inaturalist": RECALL | INAT | {"optimizer.lr": 1e-4},
    "recall-at-k-vehicleid": RECALL | INAT | VEHICLES | {"optimizer.lr": 1e-4},
    "roadmap-sop": ROADMAP | SOP,
    "roadmap-inaturalist": ROADMAP
    | ADAM
    | IMAGES
    | BALANCED
    | INAT
    | {"data.augment": "resized-crop", "batches.size": 384, "batches.per_group": 5, "optimizer.head_lr": 2.0},
    "happier-sop": HAPPIER
    | SOP
    | PAIRS
    | {"batches.per_class": 4, "optimizer.lr": 5e-5, "optimizer.weight_decay": 1e-4},
    "happier-inaturalist": HAPPIER | {"data.layout": "inaturalist"},
    "pnp-sop": PNP | SOP,
    "pnp-sop-384": PNP | SOP | {"batches.size": 384},
    "pnp-sop-merged": PNP | SOP | {"data.merge_classes": 3},
    "pnp-vehicleid": PNP | VEHICLES,
    "pnp-vehicleid-384": PNP | VEHICLES | {"batches.size": 384},
    "pnp-vehicleid-merged": PNP | VEHICLES | {"data.merge_classes": 3},
    "pnp-inaturalist": PNP | INAT | {"batches.size": 224},
    "smooth-ap-vehicleid": SMOOTH | VEHICLES | LONG | {"batches.size": 384},
    "smooth-ap-inaturalist": SMOOTH | INAT | {"batches.size": 224, "optimizer.head_lr": 2.0},
    "smooth-ap-inaturalist-384": SMOOTH | INAT | {"batches.size": 384, "optimizer.head_lr": 2.0},
    "smooth-ap-sop": SMOOTH | SOP | PAIRS | LONG | {"batches.size": 224, "batches.per_class": 4},
    "smooth-ap-sop-384": SMOOTH | SOP | PAIRS | LONG | {"batches.size": 384, "batches.per_class": 4},
    "smooth-ap-vggface2-senet50": FACES
    | {"model.backbone": "legacy_seresnet50", "model.dim": 256, "data.resize": 224, "data.size": 224},
    "smooth-ap-vggface2-arcface": FACES | {"model.backbone": "resnet50", "data.resize": 112, "data.size": 112},
    "fastap-sop-r18": FASTAP | SOP | R18 | {"batches.size": 256},
    "fastap-sop-r50": FASTAP | SOP | R50 | {"batches.size": 96},
    "fastap-sop-r50-128d": FASTAP | SOP | R50 | {"batches.size": 96, "model.dim": 128},
    "fastap-sop-r50-256": FASTAP | SOP | R50 | CHUNKS,
    "fastap-in-shop-r18": FASTAP | R18 | SHOP | {"batches.size": 256},
    "fastap-in-shop-r50": FASTAP | R50 | SHOP | {"batches.size": 96},
    "fastap-in-shop-r50-256": FASTAP | R50 | SHOP | CHUNKS,
    "fastap-vehicleid-r18": FASTAP | R18 | CARS | {"batches.size": 256, "batches.groups": math.ceil(110178 / 256)},
    "fastap-vehicleid-r50": FASTAP | R50 | CARS | {"batches.size": 96, "batches.groups": math.ceil(110178 / 96)},
    "fastap-vehicleid-r50-256": FASTAP | R50 | CARS | CHUNKS | {"batches.groups": math.ceil(110178 / 256)},
    "apq-landmarks": {
        **{"data.layout": "landmarks-clean", "data.size": 800, "data.augment": "landmarks"},
        **{"batches.kind": "all-classes", "batches.size": 4096, "batches.chunk": 4, "metric": "mAP"},
        **{"model.backbone": "resnet101.tv_in1k", "model.pooling": "gem", "model.dim": 0},
        **{"loss.name": "QuantizedAP", "loss.bins": 20, "loss.balance_classes": True, "loss.tie_aware": False},
        **{"optimizer.name": "adam", "optimizer.lr": 1e-4, "optimizer.weight_decay": 1e-6},
        **{"optimizer.schedule": "linear", "iterations": 200},
    },
    "rambo-cub-log": RAMBO | {"data.layout": "cub", "batches.kind": "balanced", "loss.weighting": "log"},
    "rambo-cub-loglog": RAMBO | {"data.layout": "cub", "batches.kind": "balanced", "loss.weighting": "loglog"},
    "rambo-sop-log": RAMBO | SOP | PAIRS_OF_5 | {"loss.weighting": "log"},
    "rambo-sop-loglog": RAMBO | SOP | PAIRS_OF_5 | {"loss.weighting": "loglog"},
    "rambo-in-shop-log": RAMBO | SHOP | {"batches.kind": "categories", "loss.weighting": "log"},
    "rambo-in-shop-loglog": RAMBO | SHOP | {"batches.kind": "categories", "loss.weighting": "loglog"},
}

# Detectors: RaMBO, Table 5

VOC = {
    **{"batch": 8, "epochs": 12, "iterations": 0, "optimizer.name": "sgd", "optimizer.lr": 0.1, "optimizer.gamma": 0.1},
    **{"optimizer.schedule": "multistep", "optimizer.milestones": (9,), "optimizer.momentum": 0.9},
    **{"data.short_side": 600, "data.long_side": 1000, "data.validation": 0.0, "data.flip": True},
    **{"model.weights": "pretrained", "model.samples": 256, "model.positives": 0.25, "model.trainable_layers": 3},
}
AP_LOSS = {
    **{"loss.name": "RaMBO", "loss.lam": 0.05, "loss.margin": 0.15, "loss.memory": 7},
    **{"loss.across_classes": pytest.approx(1 / 3), "loss.weight": 1.0},
}
ROWS = {
    "r50-voc07": {"model.backbone": "resnet50", "data.layout": "voc07"},
    "r50-voc0712": {"model.backbone": "resnet50", "data.layout": "voc0712"},
    "r101-voc0712": {"model.backbone": "resnet101", "data.layout": "voc0712"},
    "x101-voc0712": {"model.backbone": "resnext101_32x4d", "data.layout": "voc0712"},
}
DETECTORS = {
    f"detect-{row}-{loss}": VOC | own | settings_of_loss
    for row, own in ROWS.items()
    for loss, settings_of_loss in (("rambo", AP_LOSS), ("cross-entropy", {"loss.name": "cross-entropy"}))
}

OURS = ("emoji-demo", "detect-emoji-cross-entropy", "detect-emoji-rambo")  # of no paper
of_papers = pytest.mark.parametrize("name", [*EXPECTED, *DETECTORS])
PARTS = ["title", "command", "expected", "hardware", "follows", "not known", "limits", "checkpoint"]


def kind_of(name):
    return DetectConfig if name.startswith("detect-") else TrainConfig


def recipe_of(name):
    return read_recipe(find_recipe(name, kind_of(name)), kind_of(name))


@cache
def config_of(name):
    return read_config(recipe_of(name), None, kind_of(name))


def comments(name):
    """The comments that open a recipe, by the word each part begins with."""
    header = re.split(r"\n\n", find_recipe(name, kind_of(name)).read_text(encoding="utf-8"))[0].splitlines()
    assert all(line.startswith("#") for line in header)
    parts, last = {"title": header[0][2:]}, ""
    for line in header[2:]:
        last = line[2:13].strip() or last
        parts[last] = f"{parts.get(last, '')} {line[14:].strip()}".strip()
    return parts


def test_there_are_these_recipes_each_for_its_command():
    names = sorted([*EXPECTED, *DETECTORS, *OURS])
    assert list(recipe_names()) == [name for name in names if not name.startswith("detect-")]
    assert list(recipe_names(DetectConfig)) == [name for name in names if name.startswith("detect-")]
    refusal(lambda: find_recipe("detect-emoji-rambo"), "frontrank detect train")
    refusal(lambda: find_recipe("pnp-sop", DetectConfig), "frontrank train")


@of_papers
def test_settings_are_the_papers(name):
    expected, config = (EXPECTED | DETECTORS)[name], config_of(name)
    assert {key: value_of(config, key) for key in expected} == expected


@pytest.mark.parametrize("name", [*EXPECTED, *DETECTORS, *OURS])
def test_holds_only_what_differs_from_the_defaults(name, tmp_path):
    kind, recipe = kind_of(name), recipe_of(name)
    assert not [key for key, value in recipe.items() if settings(kind)[key].default == value]
    (tmp_path / "changed.yaml").write_text(as_yaml(config_of(name), changed_only=True), encoding="utf-8")
    assert read_config(read_recipe(tmp_path / "changed.yaml", kind), None, kind) == config_of(name)
    lines = find_recipe(name, kind).read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if len(line) > 120 and not line.startswith("# command")]
    assert not [line for line in lines if line != line.rstrip()]
    assert set(re.findall(r"--([a-z]+\.[a-z_]+)", "\n".join(lines))) <= set(settings(kind))


@pytest.mark.parametrize("name", [*EXPECTED, "emoji-demo"])
def test_leaves_nothing_to_be_chosen_by_the_images(name):
    open_settings = {key for key, setting in settings().items() if setting.default == "auto"}
    open_settings -= {"data.layout", "device", "model.batch_norm"}
    assert open_settings <= set(recipe_of(name))
    named = ("data.resize", "batches.size", "optimizer.name", "optimizer.weight_decay")
    assert all(key in recipe_of(name) or key == "optimizer.name" for key in named)
    assert config_of(name).optimizer.name == "adam"


@of_papers
def test_opens_with_what_a_reader_needs(name):
    parts, kind = comments(name), kind_of(name)
    assert parts["title"] == recipe_names(kind)[name]
    assert list(parts) == [part for part in PARTS if part in parts]
    assert set(PARTS) - set(parts) <= {"limits"}
    assert re.match(rf"{kind.command} --recipe {name} --data PATH_TO/\S+ --out runs/{name}( |$)", parts["command"])
    assert parts["expected"].startswith(("R@1 ", "mAP ", "AP50 "))
    assert re.search(
        r"(PNP|Smooth-AP|FastAP|AP_Q|RaMBO|ROADMAP), Tables? \d|(Recall@k|HAPPIER), ResNet", parts["expected"]
    )
    assert re.search(r"\d GB", parts["hardware"])


@pytest.mark.parametrize("name", EXPECTED)
def test_batches_come_out_even_and_the_loss_takes_its_settings(name):
    config = config_of(name)
    batches = config.batches
    shares = batches.categories if batches.kind == "categories" else 1
    assert batches.size % shares == 0
    if batches.kind != "all-classes" and batches.per_class:
        assert (batches.size // shares) % batches.per_class == 0
    loss = registry.build(config.loss.name, config.loss.settings)
    assert torch.isfinite(loss(torch.eye(4), torch.tensor([0, 0, 1, 1])))


def test_backbones_and_weights():
    import timm

    for backbone in {config_of(name).model.backbone for name in EXPECTED}:
        assert timm.is_model(backbone), backbone
        assert "." not in backbone or backbone in timm.list_pretrained(backbone.split(".")[0] + ".*"), backbone
    own = {name for name in EXPECTED if config_of(name).model.weights != "pretrained"}
    assert own == {"smooth-ap-vggface2-senet50", "smooth-ap-vggface2-arcface"}
    for name in own:
        assert f"--model.weights {config_of(name).model.weights}" in comments(name)["command"]


@pytest.mark.parametrize("row", [*ROWS, "emoji"])
def test_detectors_train_with_all_but_the_loss_equal(row):
    one, other = (recipe_of(f"detect-{row}-{loss}") for loss in ("cross-entropy", "rambo"))
    differ = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
    chosen = {"loss.weight", "loss.warmup"} if row == "emoji" else set()  # for each loss, see docs/results.md
    assert differ == {"loss.name"} | chosen
    build_classifier_loss(config_of(f"detect-{row}-rambo").loss)


def test_lists_of_scores_are_as_long_as_the_papers():
    """320k scores (Sec. 5.2): of this batch and tau others, of 20 classes."""
    config = config_of("detect-r50-voc07-rambo")
    assert 320e3 < config.model.samples * config.batch * (1 + config.loss.memory) * 20 < 330e3
