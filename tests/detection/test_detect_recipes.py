"""The recipes of detectors against the figures of the paper, written here by hand."""

import re

import pytest

from frontrank.detection.run import build_classifier_loss
from frontrank.detection.settings import DetectConfig
from frontrank.errors import InputError
from frontrank.settings import as_yaml, find_recipe, read_config, read_recipe, recipe_names, settings, value_of
from tests.test_recipes import said

PAPER = {
    **{"batch": 8, "epochs": 12, "iterations": 0, "optimizer.name": "sgd", "optimizer.lr": 0.1, "optimizer.gamma": 0.1},
    **{"optimizer.schedule": "multistep", "optimizer.milestones": (9,), "optimizer.momentum": 0.9},
    **{"data.short_side": 600, "data.long_side": 1000, "data.validation": 0.0, "data.flip": True},
    **{"model.weights": "pretrained", "model.samples": 256, "model.positives": 0.25, "model.trainable_layers": 3},
}
RAMBO = {
    **{"loss.name": "RaMBO", "loss.lam": 0.5, "loss.margin": 0.15, "loss.memory": 7},
    **{"loss.across_classes": pytest.approx(1 / 3), "loss.weight": 1.0},
}
ROWS = {  # Table 5: backbone, layout, cross-entropy, RaMBO
    "r50-voc07": ("resnet50", "voc07", 74.2, 75.7),
    "r50-voc0712": ("resnet50", "voc0712", 80.4, 81.4),
    "r101-voc0712": ("resnet101", "voc0712", 82.4, 82.9),
    "x101-voc0712": ("resnext101_32x4d", "voc0712", 83.2, 83.6),
}
EXPECTED, FIGURES = {}, {}
for row, (backbone, layout, cross_entropy, rambo) in ROWS.items():
    same = PAPER | {"model.backbone": backbone, "data.layout": layout}
    EXPECTED[f"detect-{row}-rambo"], FIGURES[f"detect-{row}-rambo"] = same | RAMBO, rambo
    EXPECTED[f"detect-{row}-cross-entropy"] = same | {"loss.name": "cross-entropy"}
    FIGURES[f"detect-{row}-cross-entropy"] = cross_entropy

OURS = ("detect-emoji-cross-entropy", "detect-emoji-rambo")  # of no paper
every = pytest.mark.parametrize("name", [*EXPECTED, *OURS])
of_the_paper = pytest.mark.parametrize("name", EXPECTED)


def config_of(name):
    return read_config(read_recipe(find_recipe(name, DetectConfig), DetectConfig), None, DetectConfig)


def test_there_are_these_recipes_and_they_are_kept_apart():
    assert list(recipe_names(DetectConfig)) == sorted([*EXPECTED, *OURS])
    assert not [name for name in recipe_names() if name.startswith("detect-")]
    with pytest.raises(InputError, match="recipe detect-emoji-rambo is for frontrank detect train; use that"):
        find_recipe("detect-emoji-rambo")
    with pytest.raises(InputError, match="recipe pnp-sop is for frontrank train; use that"):
        find_recipe("pnp-sop", DetectConfig)


@of_the_paper
def test_settings_are_the_papers(name):
    config = config_of(name)
    assert {key: value_of(config, key) for key in EXPECTED[name]} == EXPECTED[name]


@pytest.mark.parametrize("row", [*ROWS, "emoji"])
def test_both_losses_train_with_all_else_equal(row):
    one, other = (read_recipe(find_recipe(f"detect-{row}-{loss}", DetectConfig), DetectConfig)
                  for loss in ("cross-entropy", "rambo"))  # fmt: skip
    differ = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
    chosen = {"loss.weight", "loss.warmup"} if row == "emoji" else set()  # for each loss, see docs/results.md
    assert differ == {"loss.name"} | chosen


@every
def test_holds_only_what_differs_from_the_defaults(name, tmp_path):
    recipe = read_recipe(find_recipe(name, DetectConfig), DetectConfig)
    assert not [key for key, value in recipe.items() if settings(DetectConfig)[key].default == value]
    (tmp_path / "changed.yaml").write_text(as_yaml(config_of(name), changed_only=True), encoding="utf-8")
    assert read_recipe(tmp_path / "changed.yaml", DetectConfig) == recipe
    build_classifier_loss(config_of(name).loss)


@of_the_paper
def test_opens_with_what_a_reader_needs(name, monkeypatch):
    monkeypatch.setattr("tests.test_recipes.find_recipe", lambda each: find_recipe(each, DetectConfig))
    parts = said(name)
    assert parts["title"] == recipe_names(DetectConfig)[name]
    assert list(parts) == [
        *("title", "command", "expected", "hardware", "follows", "not known", "limits", "checkpoint")
    ]
    assert parts["command"] == f"frontrank detect train --recipe {name} --data PATH_TO/VOCdevkit --out runs/{name}"
    assert parts["expected"].startswith(f"AP50 {FIGURES[name]} ")
    assert "RaMBO, Table 5" in parts["expected"]
    assert "has not been run" in parts["expected"]
    assert "compare with both, AP50 and AP50-07" in parts["expected"]


def test_the_lists_are_as_long_as_the_papers():
    """320k scores (Sec. 5.2): of this batch and tau others, of 20 classes."""
    config = config_of("detect-r50-voc07-rambo")
    assert 320e3 < config.model.samples * config.batch * (1 + config.loss.memory) * 20 < 330e3


@every
def test_lines_can_be_read(name):
    lines = find_recipe(name, DetectConfig).read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if len(line) > 120 and not line.startswith("# command")]
    assert not [line for line in lines if line != line.rstrip()]
    named = set(re.findall(r"--([a-z]+\.[a-z_]+)", "\n".join(lines)))
    assert named <= set(settings(DetectConfig))
