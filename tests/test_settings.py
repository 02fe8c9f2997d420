import sys
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from frontrank import settings as module
from frontrank.errors import FrontrankError, InputError
from frontrank.settings import (
    BatchConfig,
    DataConfig,
    LossConfig,
    OptimizerConfig,
    TrainConfig,
    as_yaml,
    find_recipe,
    read_config,
    read_recipe,
    recipe_names,
    settings,
    value_of,
    values_of,
)

SETTINGS = settings()


def refusal(call, *args, **more):
    """The message of the InputError, which is one line of printable text."""
    with pytest.raises(InputError) as caught:
        call(*args, **more)
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.fixture
def recipe(tmp_path):
    """A function that reads a text as a recipe."""

    def read(text):
        path = tmp_path / "r.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_recipe(path)

    return read


# The settings


def test_every_field_is_a_setting_with_its_default():
    defaults = TrainConfig()
    assert {name: value_of(defaults, name) for name in SETTINGS} == {
        name: setting.default for name, setting in SETTINGS.items()
    }
    assert values_of(defaults) == {name: setting.default for name, setting in SETTINGS.items()}
    groups = [each for each in fields(TrainConfig) if is_dataclass(value_of(defaults, each.name))]
    inside = sum(len(fields(value_of(defaults, group.name))) for group in groups)
    assert len(SETTINGS) == len(fields(TrainConfig)) - len(groups) + inside
    assert list(SETTINGS)[:2] == ["data.path", "data.layout"]
    assert list(SETTINGS)[-1] == "device"


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_says_in_a_line_what_it_is(name):
    setting = SETTINGS[name]
    assert setting.name == name
    assert setting.help
    assert setting.help.isprintable()
    assert setting.takes


def test_the_settings_cannot_be_changed():
    with pytest.raises(TypeError):
        settings()["epochs"] = None


def test_the_defaults_are_possible():
    assert TrainConfig().problems() == []
    assert read_config() == read_config({}, {}) == TrainConfig()


@pytest.mark.parametrize(
    ("name", "takes"),
    [
        ("epochs", "a whole number"),
        ("loss.bins", "a whole number"),
        ("optimizer.lr", "a number"),
        ("loss.alpha", "a number"),
        ("data.flip", "true or false"),
        ("data.path", "text"),
        ("loss.variant", "text"),
        ("data.broken", "fail or skip"),
        ("optimizer.name", "adam, adamw or sgd"),
        ("optimizer.milestones", "a list such as [120, 220]"),
        ("loss.options", "a mapping such as {margin: 0.1}"),
    ],
)
def test_what_a_setting_takes(name, takes):
    assert SETTINGS[name].takes == takes


# Values


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("optimizer: {lr: 1e-5}", "optimizer.lr", 1e-5),
        ("optimizer: {lr: 1}", "optimizer.lr", 1.0),
        ("optimizer: {lr: '0.5'}", "optimizer.lr", 0.5),
        ("optimizer.lr: 3e-4", "optimizer.lr", 3e-4),
        ("loss: {variant: O}", "loss.variant", "O"),
        ("loss: {variant: null}", "loss.variant", None),
        ("loss: {alpha: ~}", "loss.alpha", None),
        ("loss: {alpha: 4}", "loss.alpha", 4.0),
        ("loss: {bins: 10}", "loss.bins", 10),
        ("loss: {include_query: yes}", "loss.include_query", True),
        ("model: {weights: none}", "model.weights", "none"),
        ("model: {weights: 'no'}", "model.weights", "no"),
        ("model: {weights: '1'}", "model.weights", "1"),
        ("model: {weights: 'null'}", "model.weights", "null"),
        ("model: {weights: a/b=c --d}", "model.weights", "a/b=c --d"),
        ("data: {path: 'été, $HOME, [x'}", "data.path", "été, $HOME, [x"),
        ("data: {augment: none}", "data.augment", "none"),
        ("data: {flip: off}", "data.flip", False),
        ("data: {flip: false}", "data.flip", False),
        ("epochs: 7", "epochs", 7),
        ("optimizer: {milestones: [3, 5]}", "optimizer.milestones", (3, 5)),
        ("optimizer: {milestones: []}", "optimizer.milestones", ()),
        (
            "loss: {options: {margin: 1e-3, swap: true, kind: 'x'}}",
            "loss.options",
            {"margin": 1e-3, "swap": True, "kind": "x"},
        ),
        ("loss: {options: null}", "loss.options", None),
        ("loss:", "loss.name", "PNP"),
        ("", "epochs", 50),
        ("# nothing\n", "epochs", 50),
        ("\ufeffepochs: 3", "epochs", 3),
    ],
)
def test_values_of_a_recipe(recipe, text, name, value):
    found = value_of(read_config(recipe(text)), name)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "word", "value"),
    [
        ("optimizer.lr", "1e-5", 1e-5),
        ("loss.alpha", "null", None),
        ("loss.variant", "O", "O"),
        ("model.weights", "none", "none"),
        ("model.weights", "null", "null"),
        ("model.weights", "no", "no"),
        ("data.path", "2020-01-01", "2020-01-01"),
        ("data.path", "a: b", "a: b"),
        ("data.path", "--x", "--x"),
        ("data.path", "", ""),
        ("data.flip", "False", False),
        ("data.flip", "yes", True),
        ("epochs", "7", 7),
        ("optimizer.milestones", "[3, 5]", (3, 5)),
        ("loss.options", "{margin: 1e-3}", {"margin": 1e-3}),
        ("loss.options", "null", None),
        ("device", "cuda:1", "cuda:1"),
    ],
)
def test_values_of_a_command_line(name, word, value):
    found = value_of(read_config({}, {name: word}), name)
    assert (found, type(found)) == (value, type(value))


def test_the_command_line_stands_over_the_recipe_and_that_over_the_defaults():
    config = read_config(
        {"epochs": 3, "seed": 4, "loss.options": {"a": 1}, "optimizer.milestones": [1, 2]},
        {"epochs": "5", "loss.options": "{b: 2}"},
    )
    assert config == replace(
        TrainConfig(),
        epochs=5,
        seed=4,
        loss=LossConfig(options={"b": 2}),
        optimizer=OptimizerConfig(milestones=(1, 2)),
    )


def test_a_value_of_the_recipe_that_is_replaced_can_be_anything():
    words = {"epochs": "5", "loss.options": "{}", "data.augment": "none"}
    config = read_config({"epochs": "x", "loss.options": 3, "data.augment": None}, words)
    assert (config.epochs, config.loss.options, config.data.augment) == (5, {}, "none")


def test_what_is_given_is_not_changed():
    options = {"loss": {"class_path": "torch.nn.Linear"}, "margin": "1e-3"}
    given = {"loss.options": options, "optimizer.milestones": [2]}
    words = {"epochs": "3", "loss.options": "{a: 1}"}
    read_config(given, words)
    assert given == {
        "loss.options": {"loss": {"class_path": "torch.nn.Linear"}, "margin": "1e-3"},
        "optimizer.milestones": [2],
    }
    assert words == {"epochs": "3", "loss.options": "{a: 1}"}
    assert read_config(given).loss.options == {"loss": {"class_path": "torch.nn.Linear"}, "margin": 1e-3}


def test_a_recipe_imports_nothing(recipe, tmp_path, monkeypatch):
    (tmp_path / "trap_of_recipes.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    config = read_config(recipe("loss: {options: {miner: {class_path: trap_of_recipes.Trap}}}"))
    assert config.loss.options == {"miner": {"class_path": "trap_of_recipes.Trap"}}
    assert "trap_of_recipes" not in sys.modules
    assert "not YAML" in refusal(recipe, "epochs: !!python/object/apply:os.getcwd []")


# Values that cannot be


WRONG = {int: "many", float: "much", bool: "maybe", str: 3, tuple: "4", dict: "x", Literal: "other"}


def kind_of(setting):
    kind = setting.type
    if type(None) in get_args(kind):
        kind = next(each for each in get_args(kind) if each is not type(None))
    return get_origin(kind) or kind


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_refuses_what_it_does_not_take(name):
    setting = SETTINGS[name]
    wrong = WRONG[kind_of(setting)]
    quotes = "; put it in quotes" if wrong == 3 else ""
    assert refusal(read_config, {name: wrong}) == f"{name} takes {setting.takes}, got {wrong!r}{quotes}"
    assert refusal(read_config, {name: ["a", {}]}) == f"{name} takes {setting.takes}, got ['a', {{}}]"
    if wrong != 3:
        assert refusal(read_config, {name: 1}, {name: wrong}) == f"{name} takes {setting.takes}, got {wrong!r}"


@pytest.mark.parametrize("name", SETTINGS)
def test_only_settings_without_a_default_can_be_nothing(name):
    if SETTINGS[name].default is None:
        assert value_of(read_config({name: None}), name) is None
    else:
        said = f"{name} takes {SETTINGS[name].takes}, got nothing; leave it out for its default"
        assert refusal(read_config, {name: None}) == said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("loss: {name: 1}", "loss.name takes text, got 1; put it in quotes"),
        ("model: {weights: no}", "model.weights takes text, got False; put it in quotes"),
        ("model: {weights: null}", "model.weights takes text, got nothing; leave it out for its default"),
        ("data: {path: 2020-01-01}", "data.path takes text, got datetime.date(2020, 1, 1); put it in quotes"),
        ("data: {path: {a: b}}", "data.path takes text, got {'a': 'b'}"),
        ("epochs: 5.5", "epochs takes a whole number, got 5.5"),
        ("epochs: true", "epochs takes a whole number, got True"),
        ("epochs: '1e3'", "epochs takes a whole number, got '1e3'"),
        ("data: {flip: 1}", "data.flip takes true or false, got 1"),
        ("optimizer: {milestones: 5}", "optimizer.milestones takes a list such as [120, 220], got 5"),
        ("optimizer: {milestones: [1.5]}", "optimizer.milestones takes a list such as [120, 220], got [1.5]"),
        ("loss: {options: {1: 2}}", "loss.options takes a mapping such as {margin: 0.1}, got {1: 2}"),
        ("loss: {options: [1]}", "loss.options takes a mapping such as {margin: 0.1}, got [1]"),
        ("loss: {options: 0}", "loss.options takes a mapping such as {margin: 0.1}, got 0"),
        (f"data: {{augment: {'x' * 99}}}", f"crop, resized-crop, landmarks, shift or none, got '{'x' * 79}..."),
    ],
    ids=lambda value: value[:30],
)
def test_values_a_recipe_cannot_have(recipe, text, message):
    assert refusal(read_config, recipe(text)).endswith(message)


@pytest.mark.parametrize("word", ["[1", "[1]", "x", "", "{a: 1, a: 2}", "{1: 2}", "2020-13-01", "0"])
def test_options_on_a_command_line_are_a_mapping(word):
    if not word:
        assert read_config({}, {"loss.options": word}).loss.options is None
        return
    said = f"loss.options takes a mapping such as {{margin: 0.1}}, got {word!r}"
    assert refusal(read_config, {"loss.options": {"a": 1}}, {"loss.options": word}) == said


@pytest.mark.parametrize("first", ["first", 'first Parser key "loss":', 'first Parser key "seed":'])
def test_what_the_library_says_of_something_else_is_one_line(first, monkeypatch):
    class Parser:
        def parse_object(self, _):
            raise RuntimeError(f"{first}\n  second " + "x" * 400)

    monkeypatch.setattr(module, "_parser", lambda kind: Parser())
    said = refusal(read_config, {"epochs": 3})
    assert said.startswith(f"{first} second xxx")
    assert said.endswith("xxx...")
    assert len(said) == 303


# Names


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("loss.temprature", "there is no setting loss.temprature; did you mean loss.temperature?"),
        ("temperature", "there is no setting temperature; did you mean loss.temperature?"),
        ("lr", "there is no setting lr; did you mean optimizer.lr?"),
        ("loss.lr", "there is no setting loss.lr; did you mean optimizer.lr?"),
        ("batch.size", "there is no setting batch.size; did you mean batches.size?"),
        ("dat.size", "there is no setting dat.size; did you mean data.size?"),
        ("epoch", "there is no setting epoch; did you mean epochs?"),
        ("loss.options.swap_all_of", "there is no setting loss.options.swap_all_of; did you mean loss.options?"),
        ("xyzzy", "there is no setting xyzzy; frontrank train --help lists them"),
        ("x" * 99, f"there is no setting {'x' * 80}...; frontrank train --help lists them"),
        ("loss", "loss is a group of settings; name one of them, such as loss.name"),
        ("optimizer", "optimizer is a group of settings; name one of them, such as optimizer.name"),
    ],
)
def test_names_that_are_not_settings(name, message):
    assert refusal(read_config, {name: 1}) == message
    assert refusal(read_config, {}, {name: "1"}) == message


# Recipes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs: 3\nlos: 1", "there is no setting los; did you mean loss.b?"),
        ("los: {name: PNP}", "there is no setting los;"),
        ("loss: {nam: PNP}", "there is no setting loss.nam; did you mean loss.name?"),
        ("loss: PNP", "loss holds settings, and 'PNP' has no names; write name: value lines"),
        ("loss: [name]", "loss holds settings, and ['name'] has no names; write name: value lines"),
        ("- epochs", "a recipe holds settings by name; ['epochs'] has no names; write name: value lines"),
        ("epochs", "a recipe holds settings by name; 'epochs' has no names; write name: value lines"),
        ("[]", "a recipe holds settings by name; [] has no names"),
        ("0", "a recipe holds settings by name; 0 has no names"),
        ("1: 2", "there is no setting 1;"),
        ("epochs: 3\nseed: 1\nepochs: 4", "epochs stands twice, in lines 1 and 3; leave one out"),
        ("loss:\n  name: PNP\n  b: 1\n  b: 1", "b stands twice, in lines 3 and 4; leave one out"),
        ("loss: {b: 1}\nepochs: 3\nloss: {alpha: 2}", "loss stands twice, in lines 1 and 3; leave one out"),
        ("loss: {options: {a: 1, a: 2}}", "a stands twice, in lines 1 and 1; leave one out"),
        ("loss: {name: PNP}\nloss.name: PNP", "loss.name stands twice; leave one out"),
    ],
    ids=lambda value: value[:30],
)
def test_recipes_that_cannot_be(recipe, tmp_path, text, message):
    said = refusal(recipe, text)
    assert said.startswith(f"recipe {tmp_path / 'r.yaml'}: ")
    assert message in said


@pytest.mark.parametrize(
    "text",
    [
        "epochs: [3",
        "epochs: 3\n\tseed: 1",
        "a: b: c",
        "epochs: *nothing",
        b"path: \xff\xfe",
        b"path: \x00",
        "epochs: 2020-13-01",
        "? [a]\n: 1",
        "epochs: 3\n---\nepochs: 4",
        "[" * 500,
        "!!map x",
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_files_that_are_not_yaml(recipe, tmp_path, text):
    said = refusal(recipe, text)
    assert said.startswith(f"recipe {tmp_path / 'r.yaml'} is not YAML (")
    assert said.endswith("); correct it there")
    assert len(said) < len(str(tmp_path)) + 300


def test_anchors_and_merged_groups_are_yaml(recipe):
    assert recipe("loss: &a {b: 1}\n") == {"loss.b": 1}
    assert recipe("loss:\n  <<: {b: 1, alpha: 2}\n  b: 3\n") == {"loss.b": 3, "loss.alpha": 2}


def test_files_that_cannot_be_read(tmp_path):
    remedy = "; give the path of a YAML file"
    said = refusal(read_recipe, tmp_path / "none.yaml")
    assert said == f"recipe {tmp_path / 'none.yaml'} cannot be read (No such file or directory){remedy}"
    assert refusal(read_recipe, tmp_path) == f"recipe {tmp_path} cannot be read (Is a directory){remedy}"


def test_a_recipe_is_found_by_path_or_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("epochs: 3")
    (tmp_path / "pnp-sop-384").mkdir()
    assert find_recipe("mine.yaml") == Path("mine.yaml")
    assert find_recipe(tmp_path / "mine.yaml") == tmp_path / "mine.yaml"
    assert find_recipe("pnp-sop") == find_recipe("pnp-sop.yaml")
    assert find_recipe("pnp-sop").name == "pnp-sop.yaml"
    assert find_recipe("pnp-sop-384").name == "pnp-sop-384.yaml"
    (tmp_path / "pnp-sop.yaml").write_text("epochs: 3")
    assert find_recipe("pnp-sop.yaml") == Path("pnp-sop.yaml")
    assert find_recipe("pnp-sop") != Path("pnp-sop.yaml")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pnp-spo", "there is no recipe 'pnp-spo'; did you mean pnp-sop?"),
        ("my/pnp-spo.yaml", "there is no recipe 'my/pnp-spo.yaml'; did you mean pnp-sop?"),
        ("xyzzy", "there is no recipe 'xyzzy'; give a YAML file, or a name of frontrank train --recipes"),
        ("a\nb\0", r"there is no recipe 'a\nb\x00'; give a YAML file, or a name of frontrank train --recipes"),
        ("x" * 5000, f"there is no recipe '{'x' * 79}...; give a YAML file, or a name of frontrank train --recipes"),
        (".", "recipe . is a folder; give a YAML file in it, or the name of a recipe"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_recipes_that_are_not_there(name, message):
    assert refusal(find_recipe, name) == message


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


@pytest.mark.parametrize(
    ("library", "call", "message"),
    [
        ("jsonargparse", read_config, "settings are read by jsonargparse; pip install 'frontrank[train]'"),
        ("yaml", lambda: read_recipe(Path("x")), "recipes are read by PyYAML; pip install 'frontrank[train]'"),
        ("yaml", lambda: as_yaml(TrainConfig()), "recipes are read by PyYAML; pip install 'frontrank[train]'"),
    ],
    ids=["jsonargparse", "yaml-read", "yaml-write"],
)
def test_a_library_that_is_missing(library, call, message, monkeypatch):
    module._parser.cache_clear()
    monkeypatch.setitem(sys.modules, library, None)
    assert refusal(call) == message


# Settings written as a recipe


def test_all_settings_or_the_changed_ones():
    config = replace(
        TrainConfig(),
        loss=LossConfig("FastAP", bins=10, options={"a": [1, None]}),
        optimizer=OptimizerConfig(lr=1e-5, milestones=(1, 2), schedule="multistep"),
        epochs=3,
    )
    assert as_yaml(config, changed_only=True) == (
        "loss:\n  name: FastAP\n  bins: 10\n  options:\n    a:\n    - 1\n    - null\n"
        "optimizer:\n  schedule: multistep\n  milestones:\n  - 1\n  - 2\nepochs: 3\n"
    )
    assert as_yaml(TrainConfig(), changed_only=True) == "{}\n"
    whole = yaml.safe_load(as_yaml(config))
    assert list(whole) == [each.name for each in fields(TrainConfig)]
    assert list(whole["data"]) == [each.name for each in fields(DataConfig)]
    assert whole["loss"]["options"] == {"a": [1, None]}
    assert as_yaml(replace(TrainConfig(), data=DataConfig(path="été"))).startswith("data:\n  path: été\n")


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
words = texts.filter(lambda text: text.strip().lower() not in ("", "null", "~"))  # those are "not given"
numbers = st.floats(1e-9, 1e9, allow_nan=False)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "no", "1", "null", "é"])
)
SPECIAL = {
    "data.resize": st.integers(512, 999),
    "data.size": st.integers(1, 512),
    "data.validation": st.floats(0.01, 0.9),
    "data.test": st.floats(0.0, 0.9),
    "batches.size": st.integers(1, 400).map(lambda times: 12 * times),
    "batches.per_class": st.sampled_from([2, 3, 4, 6, 12]),
    "batches.chunk": st.integers(0, 12),
    "model.dropout": st.floats(0, 0.99),
    "optimizer.momentum": st.floats(0, 1),
    "optimizer.gamma": st.floats(0.001, 1),
    "optimizer.milestones": st.sets(st.integers(1, 999), min_size=1).map(lambda found: tuple(sorted(found))),
    "loss.options": st.none()
    | st.dictionaries(st.sampled_from(["a", "no", "1", "x y"]), leaves | st.lists(leaves, max_size=2)),
    "seed": st.integers(0, 2**31 - 1),
}


def values_for(name):
    setting = SETTINGS[name]
    if name in SPECIAL:
        return SPECIAL[name]
    if kind_of(setting) is Literal:
        return st.sampled_from(get_args(setting.type))
    given_ones = {int: st.integers(2, 2000), float: numbers, bool: st.booleans(), str: texts}[kind_of(setting)]
    if setting.default is None:
        return st.none() | (words if kind_of(setting) is str else given_ones)
    return given_ones


@st.composite
def configs(draw):
    values = draw(
        st.fixed_dictionaries(
            {"optimizer.milestones": SPECIAL["optimizer.milestones"]},
            optional={name: values_for(name) for name in SETTINGS if name != "optimizer.milestones"},
        )
    )
    values = {"data.resize": 999} | values
    config = TrainConfig()
    for name, value in values.items():
        group, _, last = name.rpartition(".")
        config = (
            replace(config, **{group: replace(value_of(config, group), **{last: value})})
            if group
            else replace(config, **{last: value})
        )
    return config if config.batches.size % config.batches.per_class == 0 else replace(config, batches=BatchConfig())


@examples(max_examples=20)
@given(config=configs(), changed_only=st.booleans())
def test_settings_come_back_as_they_were(config, changed_only, tmp_path_factory):
    assert config.problems() == []
    path = tmp_path_factory.getbasetemp() / "settings.yaml"
    path.write_text(as_yaml(config, changed_only=changed_only), encoding="utf-8", newline="")
    values = read_recipe(path)
    assert read_config(values) == config
    if changed_only:
        assert all(
            value != SETTINGS[name].default for name, value in values_of(read_config(values)).items() if name in values
        )
    else:
        assert list(values) == list(SETTINGS)


# What cannot be


def changed(**groups):
    config = TrainConfig()
    for name, value in groups.items():
        value = replace(getattr(config, name), **value) if isinstance(value, dict) else value
        config = replace(config, **{name: value})
    return config


NAN = float("nan")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (changed(data={"validation": 0.91}), "data.validation must be from 0 to 0.9, got 0.91"),
        (changed(data={"validation": -0.1}), "data.validation must be from 0 to 0.9, got -0.1"),
        (changed(data={"merge_classes": 0}), "data.merge_classes must be at least 1, got 0"),
        (
            changed(data={"resize": 0, "size": 0}),
            "data.resize must be at least 1, got 0; data.size must be at least 1, got 0",
        ),
        (changed(data={"size": 300}), "data.resize 256 is smaller than data.size 300; make it as large"),
        (changed(data={"workers": -1}), "data.workers must be at least 0, got -1"),
        (changed(batches={"size": -4}), "batches.size must be at least 0, got -4"),
        (
            changed(batches={"size": 110}),
            "batches.size 110 is not a multiple of batches.per_class 4; make it one, such as 112",
        ),
        (
            changed(batches={"size": 2}),
            "batches.size 2 is not a multiple of batches.per_class 4; make it one, such as 4",
        ),
        (changed(batches={"per_class": 0}), "batches.per_class must be at least 2, got 0"),
        (changed(batches={"per_class": 1}), "batches.per_class must be at least 2, got 1"),
        (changed(batches={"per_class": -3}), "batches.per_class must be at least 0, got -3"),
        (
            changed(batches={"per_class": 1, "kind": "categories"}),
            "batches.per_class must be at least 2, or 0 for whole classes, got 1",
        ),
        (changed(batches={"categories": 0}), "batches.categories must be at least 1, got 0"),
        (changed(batches={"groups": -1}), "batches.groups must be at least 0, got -1"),
        (changed(batches={"per_group": 0}), "batches.per_group must be at least 1, got 0"),
        (changed(batches={"chunk": -1}), "batches.chunk must be at least 0, got -1"),
        (
            changed(batches={"size": 112, "chunk": 113}),
            "batches.chunk 113 is more than batches.size 112; make it less, or 0",
        ),
        (changed(batches={"accumulate": 0}), "batches.accumulate must be at least 1, got 0"),
        (changed(batches={"memory": -1}), "batches.memory must be at least 0, got -1"),
        (changed(batches={"memory_after": -1}), "batches.memory_after must be at least 0, got -1"),
        (changed(model={"dim": -1}), "model.dim must be at least 0, got -1"),
        (changed(model={"dropout": 1.0}), "model.dropout must be from 0 to 0.99, got 1.0"),
        (changed(loss={"alpha": NAN}), "loss.alpha must be a finite number, got nan"),
        (changed(optimizer={"lr": 0.0}), "optimizer.lr must be greater than 0, got 0.0"),
        (changed(optimizer={"lr": -1e-5}), "optimizer.lr must be at least 0, got -1e-05"),
        (changed(optimizer={"lr": NAN}), "optimizer.lr must be a finite number, got nan"),
        (changed(optimizer={"lr": float("inf")}), "optimizer.lr must be a finite number, got inf"),
        (changed(optimizer={"head_lr": -1.0}), "optimizer.head_lr must be at least 0, got -1.0"),
        (changed(optimizer={"weight_decay": -1.0}), "optimizer.weight_decay must be at least 0, got -1.0"),
        (changed(optimizer={"momentum": 1.5}), "optimizer.momentum must be from 0 to 1, got 1.5"),
        (changed(optimizer={"clip": -1.0}), "optimizer.clip must be at least 0, got -1.0"),
        (changed(optimizer={"gamma": 0.0}), "optimizer.gamma must be greater than 0, got 0.0"),
        (changed(optimizer={"gamma": 1.1}), "optimizer.gamma must be from 0 to 1, got 1.1"),
        (changed(optimizer={"warmup": -1}), "optimizer.warmup must be at least 0, got -1"),
        (
            changed(optimizer={"schedule": "multistep"}),
            "optimizer.schedule multistep needs optimizer.milestones, such as [120, 220]",
        ),
        (changed(optimizer={"milestones": (3, 2)}), "optimizer.milestones must grow from at least 1, got [3, 2]"),
        (changed(optimizer={"milestones": (2, 2)}), "optimizer.milestones must grow from at least 1, got [2, 2]"),
        (changed(optimizer={"milestones": (0, 2)}), "optimizer.milestones must grow from at least 1, got [0, 2]"),
        (changed(epochs=0), "epochs must be at least 1, got 0"),
        (changed(iterations=-1), "iterations must be at least 0, got -1"),
        (changed(evaluate_every=0), "evaluate_every must be at least 1, got 0"),
        (changed(evaluations=0), "evaluations must be at least 1, got 0"),
        (changed(patience=-1), "patience must be at least 0, got -1"),
        (changed(checkpoint_every=0), "checkpoint_every must be at least 1, got 0"),
        (changed(log_every=0), "log_every must be at least 1, got 0"),
        (changed(seed=2**31), "seed must be from 0 to 2147483647, got 2147483648"),
        (changed(seed=-1), "seed must be from 0 to 2147483647, got -1"),
        (changed(patience=2, data={"validation": 0.0}), "patience needs held-out classes; set data.validation above 0"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_each_problem_is_named(config, message):
    assert "; ".join(config.problems()) == message
    assert refusal(read_config, values_of(config)) == message


@pytest.mark.parametrize(
    "config",
    [
        changed(data={"validation": 0.0}),
        changed(data={"validation": 0.9, "size": 256, "workers": 0}),
        changed(batches={"kind": "categories", "size": 97, "per_class": 0}),
        changed(batches={"kind": "categories", "size": 97, "per_class": 2}),
        changed(batches={"kind": "all-classes", "size": 97, "per_class": 1}),
        changed(batches={"size": 4, "chunk": 4}),
        changed(batches={"size": 0, "chunk": 999}),
        changed(model={"dim": 0, "dropout": 0.99}),
        changed(optimizer={"gamma": 1.0, "milestones": (1,), "head_lr": 0.0, "weight_decay": 0.0, "momentum": 0.0}),
        changed(iterations=10**400, seed=2**31 - 1, patience=1),
    ],
    ids=range(10),
)
def test_what_can_be(config):
    assert config.problems() == []


def test_all_problems_are_told_at_once():
    config = changed(epochs=0, data={"size": 300}, optimizer={"lr": -1.0})
    assert config.problems() == [
        "optimizer.lr must be at least 0, got -1.0",
        "epochs must be at least 1, got 0",
        "data.resize 256 is smaller than data.size 300; make it as large",
    ]
    assert issubclass(InputError, FrontrankError)
