"""Settings: what they take, how recipes and command lines are read, and what comes back from a file."""

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Literal, get_origin

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from frontrank import settings as module
from frontrank.detection.settings import DetectConfig
from frontrank.errors import InputError
from frontrank.losses.registry import LOSSES, arguments
from frontrank.settings import (
    BatchConfig,
    DataConfig,
    LossConfig,
    OptimizerConfig,
    TrainConfig,
    as_yaml,
    check_config,
    find_recipe,
    read_config,
    read_recipe,
    recipe_names,
    settings,
    value_of,
    values_of,
)
from tests.errors import message_of

SETTINGS = settings()
OF_LOSS = [name for name in SETTINGS if name.startswith("loss.") and name != "loss.name"]
KINDS = pytest.mark.parametrize("kind", [TrainConfig, DetectConfig])


@pytest.fixture
def recipe(tmp_path):
    """A function that reads a text as a recipe."""

    def read(text):
        path = tmp_path / "r.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_recipe(path)

    return read


# The settings


@KINDS
def test_every_field_is_a_setting_with_help_and_a_possible_default(kind):
    known = settings(kind)
    own = {name: setting for name, setting in known.items() if kind is DetectConfig or name not in OF_LOSS}
    assert values_of(kind()) == {name: setting.default for name, setting in own.items()}
    assert read_config(None, None, kind) == read_config({}, {}, kind) == kind()
    assert all(setting.name == name and setting.help.isprintable() and setting.help for name, setting in known.items())
    with pytest.raises(TypeError):
        settings(kind)["epochs"] = None


def test_every_argument_of_every_loss_is_a_setting():
    for name in LOSSES:
        for argument, entry in arguments(name).items():
            help_text = SETTINGS[f"loss.{argument}"].help
            assert f"{name} {entry.default}" in help_text
    assert list(SETTINGS)[:2] == ["data.path", "data.layout"]
    assert list(SETTINGS)[-1] == "device"


# Values


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ("optimizer: {lr: 1e-5}", "optimizer.lr", 1e-5),
        ("optimizer: {lr: '0.5'}", "optimizer.lr", 0.5),
        ("loss: {variant: null}", "loss.variant", "D_q"),
        ("loss: {alpha: 3}", "loss.alpha", 3.0),
        ("loss: {name: FastAP}", "loss.alpha", None),
        ("loss: {include_query: yes}", "loss.include_query", True),
        ("data: {path: 'été, $HOME, [x'}", "data.path", "été, $HOME, [x"),
        ("optimizer: {milestones: [3, 5]}", "optimizer.milestones", (3, 5)),
        ("loss: {name: pml.X, options: {a: 1e-3, b: true, c: 'x'}}", "loss.options", {"a": 1e-3, "b": True, "c": "x"}),
        ("# nothing\n", "log_every", 10),
        ("\ufeffepochs: 3", "epochs", 3),
        ("loss:\n  <<: {b: 1, alpha: 3}\n  b: 3\n", "loss.b", 3.0),
        (["1e-5"], "optimizer.lr", 1e-5),
        (["null"], "loss.alpha", 4.0),
        (["O"], "loss.variant", "O"),
        (["null"], "loss.distance", None),
        (["2020-01-01"], "data.path", "2020-01-01"),
        (["False"], "data.flip", False),
        (["[3, 5]"], "optimizer.milestones", (3, 5)),
    ],
)
def test_values_of_a_recipe_or_a_command_line(recipe, given, name, value):
    config = read_config(recipe(given)) if isinstance(given, str) else read_config({}, {name: given[0]})
    assert (value_of(config, name), type(value_of(config, name))) == (value, type(value))


def test_the_command_line_stands_over_the_recipe_and_that_over_the_defaults():
    recipe = {"epochs": 3, "seed": 4, "loss.name": "pml.X", "loss.options": {"a": 1}, "optimizer.milestones": [1, 2]}
    words = {"epochs": "5", "loss.options": "{b: 2}"}
    own = {"loss": LossConfig("pml.X", options={"b": 2}), "optimizer": OptimizerConfig(milestones=(1, 2))}
    assert read_config(recipe, words) == replace(TrainConfig(), epochs=5, seed=4, **own)
    assert recipe["optimizer.milestones"] == [1, 2]  # what is given is not changed
    assert read_config({"epochs": "x", "data.augment": None}, {"epochs": "5", "data.augment": "none"}).epochs == 5
    assert "epochs" in message_of(read_config, {"iterations": 9}, {"epochs": "5"})
    assert "epochs" in message_of(read_config, {}, {"epochs": "[3"})


def test_a_recipe_imports_nothing(recipe, tmp_path, monkeypatch):
    (tmp_path / "trap_of_recipes.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    trap = "{class_path: trap_of_recipes.Trap}"
    config = read_config(recipe(f"loss: {{name: pml.X, options: {{miner: {trap}}}}}"))
    assert config.loss.options == {"miner": {"class_path": "trap_of_recipes.Trap"}}
    assert "loss.alpha" in message_of(read_config, recipe(f"loss: {{alpha: {trap}}}"))
    assert "r.yaml" in message_of(recipe, "epochs: !!python/object/apply:os.getcwd []")
    assert "trap_of_recipes" not in sys.modules


# Values that are not valid


WRONG = {int: "many", float: "much", bool: "maybe", str: 3, tuple: "4", dict: "x", Literal: "other"}
OUTSIDE = {"above": 0, "at_least": -1, "at_most": 1}  # from the bound


def kind_of(setting):
    return get_origin(setting.type) or setting.type


@KINDS
def test_every_setting_refuses_what_it_does_not_take(kind):
    for name, setting in settings(kind).items():
        loss = {}
        if name in OF_LOSS and kind is TrainConfig:
            loss = {"loss.name": next(x for x in (*LOSSES, "pml.X") if name.removeprefix("loss.") in arguments(x))}
            loss |= {"loss.metric": "AveragePrecision", "loss.relaxation": "Sigmoid"} if "RankLoss" in loss else {}
        outside = [bound + OUTSIDE[side] for side, bound in setting.bounds.items()]
        for wrong in (WRONG[kind_of(setting)], ["a", {}], *outside):
            assert name in message_of(read_config, {**loss, name: wrong}, None, kind)
        if name not in OF_LOSS or kind is DetectConfig:
            assert name in message_of(read_config, {name: None}, None, kind)


@pytest.mark.parametrize(
    "text",
    [
        "model.weights: no",
        "data.path: 2020-01-01",
        "epochs: 5.5",
        "data.flip: 1",
        "optimizer.lr: .nan",
        "loss.bins: 3",
        "loss.name: SmothAP",
    ],
)
def test_values_a_recipe_cannot_have(recipe, text):
    assert text.split(":")[0] in message_of(read_config, recipe(text))


@pytest.mark.parametrize(
    ("first", "second", "loss"),
    [
        ({"loss.name": "PNP-D_s"}, {}, LossConfig("PNP", variant="D_s")),
        ({"loss.name": "PNP-D_s", "loss.b": 3}, {"loss.name": "PNP-O"}, LossConfig("PNP", variant="O", b=3.0)),
        ({"loss.name": "PNP", "loss.variant": "I_b"}, {"loss.name": "PNP-O"}, LossConfig("PNP", variant="O")),
        ({"loss.name": "PNP-D_s"}, {"loss.variant": "O"}, LossConfig("PNP", variant="O")),
        ({"loss.name": "PNP-D_s"}, {"loss.name": "SmoothAP"}, LossConfig("SmoothAP")),
        ({}, {"loss.name": "triplet-hard"}, LossConfig("triplet-hard")),
    ],
)
def test_a_preset_stands_for_settings_of_its_loss(first, second, loss):
    config = read_config(first, second)
    assert config.loss == loss
    assert read_config(values_of(config)) == config
    assert config.loss.name in LOSSES or config.loss.name.startswith("pml.")


@pytest.mark.parametrize("name", ["Pnp", "pnp-d_Q", "SmoothAp"])
def test_names_of_losses_are_found_in_any_case(name):
    message = message_of(read_config, {"loss.name": name})
    assert "loss.name" in message
    assert {"Pnp": "PNP", "pnp-d_Q": "PNP-D_q", "SmoothAp": "SmoothAP"}[name] in message.split("mean", 1)[1]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"data": DataConfig(resize=0, size=0)}, ["data.resize", "data.size"]),
        ({"batches": BatchConfig(size=110, per_class=4)}, ["batches.size", "112"]),
        ({"data": DataConfig(resize=30, size=32)}, ["data.resize", "data.size"]),
        ({"batches": BatchConfig(per_class=1)}, ["batches.per_class"]),
        ({"batches": BatchConfig(kind="categories", per_class=1)}, ["batches.per_class"]),
        ({"batches": BatchConfig(size=112, chunk=113)}, ["batches.chunk", "batches.size"]),
        ({"optimizer": OptimizerConfig(lr=float("inf"))}, ["optimizer.lr"]),
        ({"optimizer": OptimizerConfig(schedule="multistep")}, ["optimizer.milestones"]),
        ({"optimizer": OptimizerConfig(milestones=(3, 2))}, ["optimizer.milestones"]),
        ({"patience": 2, "data": DataConfig(validation=0.0)}, ["patience", "data.validation"]),
        ({"loss": LossConfig("SmoothAP", variant="O")}, ["loss.variant", "SmoothAP"]),
        ({"loss": LossConfig("RankLoss", metric="Recal")}, ["loss.metric", "Recall"]),
        ({"loss": LossConfig("PNP", zzz=1)}, ["loss.zzz", "PNP"]),
        ({"log": "wandb,tensorbord"}, ["log", "tensorboard"]),
        ({"epochs": 0, "seed": -1, "device": 3}, ["epochs", "seed", "device"]),  # all at once
    ],
)
def test_configs_of_python_are_checked_too(changes, names):
    message = message_of(check_config, replace(TrainConfig(), **changes))
    assert all(name in message for name in names)


# Names


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("loss.temprature", "loss.temperature"),
        ("temperature", "loss.temperature"),
        ("loss.lr", "optimizer.lr"),
        ("batch.size", "batches.size"),
        ("loss.options.swap_all_of", "loss.options"),
        ("xyzzy", "frontrank train --help"),
        ("loss", "loss.name"),
    ],
)
def test_names_that_are_not_settings(name, near):
    for message in (message_of(read_config, {name: 1}), message_of(read_config, {}, {name: "1"})):
        assert name in message
        assert near in message


# Recipes


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("epochs: 3\nlos: 1", "los"),
        ("loss: {nam: PNP}", "loss.name"),
        ("loss: [name]", "loss"),
        ("- epochs", "epochs"),
        ("epochs: 3\nseed: 1\nepochs: 4", "epochs .* 1 and 3"),
        ("loss:\n  name: PNP\n  b: 1\n  b: 1", "b .* 3 and 4"),
        ("loss: {name: PNP}\nloss.name: PNP", "loss.name"),
        ("epochs: 3\n\tseed: 1", "YAML"),
        (b"path: \xff\xfe", "YAML"),
        ("epochs: 3\n---\nepochs: 4", "YAML"),
        ("[" * 500, "YAML"),
        ("[" * 100_000, "brackets"),
        ("\n".join(f"k{number}: 1" for number in range(60_000)), "characters"),
        ("a: &a [1, 1]\nb: &b [*a, *a]\nseed: [*b, *b]", r"\*a"),  # such lines, nested, are billions of values
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_recipes_that_cannot_be_read(recipe, tmp_path, text, name):
    with pytest.raises(InputError, match=f"r.yaml.*{name}"):
        recipe(text)


def test_a_recipe_is_found_by_path_or_name(tmp_path, monkeypatch):
    assert "none.yaml" in message_of(read_recipe, tmp_path / "none.yaml")
    assert str(tmp_path) in message_of(find_recipe, tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("epochs: 3")
    (tmp_path / "pnp-sop-384").mkdir()
    assert find_recipe("mine.yaml") == Path("mine.yaml")
    assert find_recipe("pnp-sop") == find_recipe("pnp-sop.yaml")
    assert find_recipe("pnp-sop").name == "pnp-sop.yaml"
    assert find_recipe("pnp-sop-384").name == "pnp-sop-384.yaml"
    (tmp_path / "pnp-sop.yaml").write_text("epochs: 3")
    assert find_recipe("pnp-sop.yaml") == Path("pnp-sop.yaml")
    assert find_recipe("pnp-sop") != Path("pnp-sop.yaml")


def test_recipes_of_an_installed_package_lie_inside_it(tmp_path, monkeypatch):
    package = tmp_path / "lib" / "site-packages" / "frontrank"
    for folder in (package / "recipes", tmp_path / "lib" / "recipes"):
        folder.mkdir(parents=True)
    (package / "recipes" / "b.yaml").write_text("# The second: R@1 2\n# more\n", encoding="utf-8")
    (package / "recipes" / "a.yaml").write_text("#   The first  \n", encoding="utf-8")
    (package / "recipes" / "notes.txt").write_text("")
    (tmp_path / "lib" / "recipes" / "other.yaml").write_text("# of somebody else\n")
    monkeypatch.setattr(module, "__file__", str(package / "settings.py"))
    assert list(recipe_names().items()) == [("a", "The first"), ("b", "The second: R@1 2")]
    assert find_recipe("b") == package / "recipes" / "b.yaml"
    (tmp_path / "lib" / "pyproject.toml").write_text("")
    assert list(recipe_names()) == ["a", "b", "other"]


def test_without_yaml(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    module._yaml.cache_clear()
    assert "frontrank[train]" in message_of(as_yaml, TrainConfig())
    module._yaml.cache_clear()


# Settings written as a recipe


def test_all_settings_or_the_changed_ones():
    config = replace(
        TrainConfig(),
        loss=LossConfig("FastAP", bins=11, distance="squared"),
        optimizer=OptimizerConfig(weight_decay=0.01, milestones=(1, 2), schedule="multistep"),
        epochs=3,
    )
    assert as_yaml(config, changed_only=True) == (
        "loss:\n  name: FastAP\n  bins: 11\noptimizer:\n  schedule: multistep\n  milestones:\n  - 1\n  - 2\nepochs: 3\n"
    )
    assert as_yaml(TrainConfig(), changed_only=True) == "{}\n"
    whole = yaml.safe_load(as_yaml(config))
    assert list(whole) == [each.name for each in fields(TrainConfig)]
    assert list(whole["data"]) == [each.name for each in fields(DataConfig)]
    assert whole["loss"] == {"name": "FastAP", "bins": 11, "distance": "squared"}
    assert as_yaml(replace(TrainConfig(), data=DataConfig(path="été"))).startswith("data:\n  path: été\n")


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["no", "1e5", "é"])
options = st.dictionaries(st.sampled_from(["a", "no", "1", "x y"]), leaves | st.lists(leaves, max_size=2))


@examples(max_examples=20)
@given(
    path=texts, name=texts.map("pml.{}".format), options=options, lr=st.floats(1e-9, 1e9), changed_only=st.booleans()
)
def test_settings_come_back_as_they_were(path, name, options, lr, changed_only, tmp_path_factory):
    """Texts and numbers of any kind; all settings together: the recipes, in tests/test_recipes.py."""
    data, optimizer = DataConfig(path=path), OptimizerConfig(lr=lr)
    config = replace(TrainConfig(), data=data, loss=LossConfig(name, options=options), optimizer=optimizer)
    file = tmp_path_factory.getbasetemp() / "settings.yaml"
    file.write_text(as_yaml(config, changed_only=changed_only), encoding="utf-8", newline="")
    values = read_recipe(file)
    assert read_config(values) == config
    if changed_only:
        assert not [name for name, value in values.items() if value == SETTINGS[name].default]
