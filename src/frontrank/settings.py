"""Settings by name: read from a recipe (a YAML file of those that differ from the defaults) and from a command line."""

import os
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from frontrank import config_detection
from frontrank.config import TrainConfig, problems, value_of
from frontrank.config_detection import DetectConfig
from frontrank.errors import InputError

_OPTIONS = "loss.options"
Kind = Any  # TrainConfig or DetectConfig, the class itself
Config = TypeVar("Config", TrainConfig, DetectConfig)


@dataclass(frozen=True)
class _Use:
    """What else is known of a kind of settings: what they cannot be, their command, how their recipes' names begin."""

    problems: Callable[[Any], list[str]]
    command: str
    recipes: str


_USES: Mapping[Kind, _Use] = {
    TrainConfig: _Use(problems, "frontrank train", ""),
    DetectConfig: _Use(config_detection.problems, "frontrank detect train", "detect-"),
}


@dataclass(frozen=True)
class Setting:
    """One setting, by its full name such as "loss.temperature"."""

    name: str
    type: Any
    default: Any
    help: str

    @property
    def takes(self) -> str:
        """What it takes, in words."""
        return _in_words(self.type)


@cache
def settings(kind: Kind = TrainConfig) -> Mapping[str, Setting]:
    """Every setting by its full name, in the order of the classes.

    kind: TrainConfig, of retrieval, or DetectConfig; so in all functions here

    >>> settings()["optimizer.lr"].default
    1e-05
    """
    return MappingProxyType({setting.name: setting for setting in _settings(kind, "")})


def _kind(config: TrainConfig | DetectConfig) -> Kind:
    return type(config)


def _settings(group: Any, prefix: str) -> Iterator[Setting]:
    hints = get_type_hints(group)
    for each in fields(group):
        if is_dataclass(hints[each.name]):
            yield from _settings(hints[each.name], f"{prefix}{each.name}.")
        else:
            yield Setting(prefix + each.name, hints[each.name], each.default, each.metadata["help"])


def find_recipe(name: str | os.PathLike[str], kind: Kind = TrainConfig) -> Path:
    """The file of a recipe: a path that exists, or the name of a recipe that comes with the package."""
    path = Path(name)
    if os.path.isfile(path):
        return path
    known = _recipes(kind)
    if (found := known.get(str(name).removesuffix(".yaml"))) is not None:
        return found
    if os.path.isdir(path):
        raise InputError(f"recipe {path} is a folder; give a YAML file in it, or the name of a recipe")
    for other in _USES:
        if path.stem in _recipes(other):
            raise InputError(f"recipe {path.stem} is for {_USES[other].command}; use that, or another recipe")
    near = get_close_matches(path.stem, known, 1)
    remedy = f"did you mean {near[0]}?" if near else f"give a YAML file, or a name of {_USES[kind].command} --recipes"
    raise InputError(f"there is no recipe {_short(repr(str(name)))}; {remedy}")


def recipe_names(kind: Kind = TrainConfig) -> dict[str, str]:
    """The recipes that come with the package: name and title, which is the first line of the file."""
    titles = {}
    for name, path in _recipes(kind).items():
        with path.open(encoding="utf-8") as file:
            titles[name] = file.readline().lstrip("# ").strip()
    return titles


def read_recipe(path: Path, kind: Kind = TrainConfig) -> dict[str, Any]:
    """The settings of a YAML file, by their full names."""
    yaml = _yaml()
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _loader(yaml))
        return _unique(_flat({} if content is None else content, "", kind))
    except InputError as error:
        raise InputError(f"recipe {path}: {error}") from error
    except OSError as error:
        raise InputError(f"recipe {path} cannot be read ({error.strerror}); give the path of a YAML file") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or a date such as 2020-13-01
        said = _short(" ".join(str(error).split()), 200)
        raise InputError(f"recipe {path} is not YAML ({said}); correct it there") from error


@overload
def read_config(recipe: Mapping[str, Any] | None = None, overrides: Mapping[str, str] | None = None) -> TrainConfig: ...
@overload
def read_config(
    recipe: Mapping[str, Any] | None, overrides: Mapping[str, str] | None, kind: type[Config]
) -> Config: ...
def read_config(
    recipe: Mapping[str, Any] | None = None, overrides: Mapping[str, str] | None = None, kind: Any = TrainConfig
) -> Any:
    """The settings of a recipe, and on top of them overrides as they stand on a command line.

    >>> read_config({"loss.name": "SmoothAP"}, {"loss.temperature": "1e-2"}).loss.temperature
    0.01
    >>> read_config({}, {"loss.temprature": "0.1"})
    Traceback (most recent call last):
    frontrank.errors.InputError: there is no setting loss.temprature; did you mean loss.temperature?
    """
    parser = _parser(kind)
    for name in [*(recipe or {}), *(overrides or {})]:
        _require_known(name, kind)
    words = dict(overrides or {})
    given = {name: value for name, value in (recipe or {}).items() if name not in words}
    for name, value in given.items():
        if value is None and settings(kind)[name].default is not None:
            raise _refusal(name, None, kind)
    options = _options(given.pop(_OPTIONS, None), words.pop(_OPTIONS, None))
    try:
        parsed = parser.parse_object(_nested(given))
        if words:
            parsed = parser.parse_args([f"--{name}={value}" for name, value in words.items()], namespace=parsed)
        config = parser.instantiate(parsed)
    except Exception as error:  # of argparse or jsonargparse: several kinds, of one meaning
        raise _refusal_of(error, given | words, kind) from error
    config = kind(**{each.name: config[each.name] for each in fields(kind)})
    if kind is TrainConfig:
        config = replace(config, loss=replace(config.loss, options=options))
    check_config(config)
    if "epochs" in words and config.iterations:
        raise InputError(f"epochs has no effect beside iterations, which is {config.iterations}; set that, or 0")
    return config


def check_config(config: TrainConfig | DetectConfig) -> None:
    """Refuse settings that cannot be, also where they were made in Python."""
    kind = _kind(config)
    for setting in settings(kind).values():
        if not _fits(value_of(config, setting.name), setting.type):
            raise _refusal(setting.name, value_of(config, setting.name), kind)
    if said := "; ".join(_USES[kind].problems(config)):
        raise InputError(said)


def _fits(value: Any, kind: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(each, inner[0]) for each in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin or kind)


def as_yaml(config: TrainConfig | DetectConfig, *, changed_only: bool = False) -> str:
    """The settings as a recipe: all of them, or those that are not the defaults."""
    values = values_of(config)
    if changed_only:
        values = {name: value for name, value in values.items() if value != settings(_kind(config))[name].default}
    return str(_yaml().safe_dump(_nested(values), sort_keys=False, allow_unicode=True))


def values_of(config: TrainConfig | DetectConfig) -> dict[str, Any]:
    """The value of every setting by its full name."""
    return {name: value_of(config, name) for name in settings(_kind(config))}


@cache
def _parser(kind: Kind) -> Any:
    try:
        from jsonargparse import ArgumentParser
    except ImportError as error:
        raise InputError("settings are read by jsonargparse; pip install 'frontrank[train]'") from error
    parser = ArgumentParser(exit_on_error=False, default_env=False)
    parser.add_class_arguments(kind, None)
    return parser


def _yaml() -> Any:
    try:
        import yaml  # type: ignore[import-untyped]
    except ImportError as error:
        raise InputError("recipes are read by PyYAML; pip install 'frontrank[train]'") from error
    return yaml


def _loader(yaml: Any) -> Any:
    """PyYAML's safe loader, which of a key that stands twice takes the last, taught to refuse it."""

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if twice := [key for key in keys if keys.count(key) > 1]:
                lines = [key.start_mark.line + 1 for key, _ in node.value if key.value == twice[0]]
                raise InputError(f"{twice[0]} stands twice, in lines {lines[0]} and {lines[1]}; leave one out")
            return super().construct_mapping(node, deep)

    return Loader


def _recipes(kind: Kind) -> dict[str, Path]:
    """The recipes that come with the package: inside it, or, in a checkout, beside its sources."""
    others = tuple(use.recipes for other, use in _USES.items() if other is not kind and use.recipes)
    package = Path(__file__).parent
    folders = [package / "recipes"]
    if (package.parents[1] / "pyproject.toml").is_file():
        folders.append(package.parents[1] / "recipes")
    found = {path.stem: path for folder in folders for path in folder.glob("*.yaml")}
    own = _USES[kind].recipes
    return {name: found[name] for name in sorted(found) if name.startswith(own) and not name.startswith(others)}


def _options(of_recipe: Any, word: str | None) -> dict[str, Any] | None:
    """The arguments of another library's loss. Not left to jsonargparse, which imports what a `class_path` names."""
    value = of_recipe
    if word is not None:
        yaml = _yaml()
        try:
            value = yaml.load(word, _loader(yaml))
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise _refusal(_OPTIONS, word, TrainConfig) from error
    if value is not None and not (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
        raise _refusal(_OPTIONS, value if word is None else word, TrainConfig)
    return None if value is None else {name: _number_or(each) for name, each in value.items()}


def _number_or(value: Any) -> Any:
    """To PyYAML 1e-5 is a text: here it is a number, as in every other setting."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?e[-+]?\d+", value, re.IGNORECASE):
        return float(value)
    return value


def _flat(content: Any, prefix: str, kind: Kind) -> Iterator[tuple[str, Any]]:
    """Full names and values of a nested mapping."""
    if not isinstance(content, Mapping):
        what = f"{prefix[:-1]} holds settings, and" if prefix else "a recipe holds settings by name;"
        raise InputError(f"{what} {_short(repr(content))} has no names; write name: value lines")
    for key, value in content.items():
        name = f"{prefix}{key}"
        if name in _groups(kind):
            yield from _flat({} if value is None else value, name + ".", kind)
        else:
            _require_known(name, kind)
            yield name, value


def _unique(pairs: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse loss.name beside name within loss."""
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise InputError(f"{name} stands twice; leave one out")
        values[name] = value
    return values


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *groups, last = name.split(".")
        part = nested
        for group in groups:
            part = part.setdefault(group, {})
        part[last] = value
    return nested


@cache
def _groups(kind: Kind) -> Mapping[str, str]:
    """Each group of settings, and the first of them."""
    groups: dict[str, str] = {}
    for name in settings(kind):
        groups.setdefault(name.rpartition(".")[0], name)
    del groups[""]
    return MappingProxyType(groups)


def _require_known(name: str, kind: Kind) -> None:
    known = settings(kind)
    if name in known:
        return
    if name in _groups(kind):
        raise InputError(f"{name} is a group of settings; name one of them, such as {_groups(kind)[name]}")
    near = _nearest(name, list(known))
    remedy = f"did you mean {near}?" if near else f"{_USES[kind].command} --help lists them"
    raise InputError(f"there is no setting {_short(name)}; {remedy}")


def _nearest(name: str, known: list[str]) -> str:
    """The setting whose own name is nearest, and of those of one name the one whose group is; else by the full name."""
    own = {each: each.rpartition(".")[2] for each in known}
    near = get_close_matches(name.rpartition(".")[2], list(own.values()), 1)
    alike = [each for each in known if own[each] in near]
    return next(iter(get_close_matches(name, alike, 1, cutoff=0) or get_close_matches(name, known, 1)), "")


def _refusal_of(error: Exception, given: Mapping[str, Any], kind: Kind) -> InputError:
    """One line from the several of the library."""
    found = re.search(r'Parser key "([\w.]+)"', str(error))
    if found is None or found[1] not in given:
        return InputError(_short(" ".join(str(error).split()), 300))
    return _refusal(found[1], given[found[1]], kind)


def _refusal(name: str, value: Any, kind: Kind) -> InputError:
    setting = settings(kind)[name]
    if value is None:
        return InputError(f"{name} takes {setting.takes}, got nothing; leave it out for its default")
    quotes = "; put it in quotes" if setting.takes == "text" and not isinstance(value, Mapping | list) else ""
    return InputError(f"{name} takes {setting.takes}, got {_short(repr(value))}{quotes}")


def _short(text: str, most: int = 80) -> str:
    return text if len(text) <= most else f"{text[:most]}..."


def _in_words(kind: Any) -> str:
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_in_words(each) for each in get_args(kind) if each is not type(None))
    if get_origin(kind) is Literal:
        *most, last = get_args(kind)
        return f"{', '.join(most)} or {last}"
    if get_origin(kind) is tuple:
        return "a list such as [120, 220]"
    if get_origin(kind) is dict:
        return "a mapping such as {margin: 0.1}"
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "text")
