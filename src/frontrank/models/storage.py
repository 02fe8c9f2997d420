"""A saved model: a folder with weights, settings and a card, in the layout of the Hugging Face hub."""

import contextlib
import glob
import hashlib
import json
import math
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from frontrank.checks import import_extra
from frontrank.errors import InputError, InputTypeError
from frontrank.files import PathLike, as_path, folder_lock, load_json, remove_stale, write_errors
from frontrank.models.backbone import first_line
from frontrank.version import __version__

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
_VERSION = 1
_KINDS = {"frontrank.model": "Embedder", "frontrank.detector": "Detector"}  # the class that writes each format
EMBEDDER, DETECTOR = _KINDS
_NEW, _OLD = ".frontrank-new", ".frontrank-old"  # endings of the folders beside a model that is being replaced
_TRAINING_SETTINGS = ("batch_norm", "dropout")
_LATER_SETTINGS = {"interpolation": "bilinear"}  # at this value a model is the same as before there was the setting
_SPARE_NUMBERS, _SPARE_STEPS = 10_000_000, 100_000  # for what is made beside the weights while a network is built
_SIZES = ("size", "steps", "end")  # arguments of functions that make tensors
_PURPOSE = "saving and loading a model"
_CARD = """---
library_name: frontrank
{licence}pipeline_tag: {task}
tags:
{tags}
---

# {name}

{text}

```python
{code}
```

| | |
|---|---|
{rows}
{evaluation}"""
_EVALUATION = """
## Evaluation

{data}{queries} queries; the interval holds the value of 95 % of resampled sets of queries.

| metric | value | 95 % interval |
|---|---|---|
{rows}
"""


class Card(NamedTuple):
    """What the README of a saved model says; the first of its tags is the task, `facts` are rows of a table.

    evaluation: a section about metrics, by `evaluation_text`
    """

    tags: tuple[str, ...]
    text: str
    code: str
    facts: Mapping[str, str]
    licence: str = ""
    evaluation: str = ""

    def render(self, name: str, config: Mapping[str, Any]) -> str:
        """Return the README of a model with this name and `config.json`."""
        task, *tags = self.tags
        facts = {**self.facts, "fingerprint": config["fingerprint"], "frontrank": config["frontrank_version"]}
        rows = "\n".join(f"| {title} | {fact} |" for title, fact in facts.items())
        lines = "\n".join(f"- {tag}" for tag in ("frontrank", *tags))
        licence = f"license: {self.licence}\n" if self.licence else ""
        text = {"name": name, "text": self.text, "code": self.code, "evaluation": self.evaluation}
        return _CARD.format(task=task, tags=lines, rows=rows, licence=licence, **text)


def evaluation_text(report: Any, data: str) -> str:
    """Return the section of a card about a report of `frontrank.evaluate`, with its intervals."""
    if not hasattr(report, "intervals"):
        raise InputTypeError(f"report must be what frontrank.evaluate returns, got {type(report).__name__}")
    ranges = {name: f"{low:.4f} to {high:.4f}" for name, (low, high) in report.intervals.items()}
    rows = "\n".join(f"| {name} | {value:.4f} | {ranges.get(name, '')} |" for name, value in report.items())
    return _EVALUATION.format(rows=rows, queries=report.queries, data=f"Images: {data}. " if data else "")


def fingerprint(settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return a SHA-256 of weights, by name, and of the settings that embeddings depend on."""
    lasting = {
        name: value
        for name, value in settings.items()
        if name not in _TRAINING_SETTINGS and _LATER_SETTINGS.get(name) != value
    }
    digest = hashlib.sha256(json.dumps(lasting, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save_model(
    folder: PathLike, kind: str, settings: Mapping[str, Any], tensors: Mapping[str, Tensor], card: Card, overwrite: bool
) -> None:
    """Write the three files to a folder that appears when all of them are there; kind: EMBEDDER or DETECTOR."""
    safetensors = import_extra("safetensors.torch", "train", _PURPOSE)
    target = as_folder("folder", folder).absolute()
    target = target.resolve() if target.is_symlink() else target
    with write_errors(target):
        _clean_up(target)
        _check_target(target, overwrite)
        own = {name: x.detach().cpu().contiguous().clone() for name, x in tensors.items()}  # no shared memory
        config = {
            "format": kind,
            "format_version": _VERSION,
            "frontrank_version": __version__,
            "fingerprint": fingerprint(settings, own),
            "settings": dict(settings),
        }
        target.parent.mkdir(parents=True, exist_ok=True)
        room = Path(tempfile.mkdtemp(_NEW, f".{target.name}.", target.parent))
        with folder_lock(room), contextlib.ExitStack() as leftovers:  # who can have the lock knows that this has ended
            leftovers.callback(shutil.rmtree, room, ignore_errors=True)
            unfinished = room / target.name  # inside, for the usual permissions: those of the room are its owner's
            unfinished.mkdir()
            safetensors.save_file(own, unfinished / WEIGHTS, {"format": "pt"})
            (unfinished / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            (unfinished / WEIGHTS).chmod((unfinished / CONFIG).stat().st_mode)  # else its owner alone could read it
            (unfinished / CARD).write_text(card.render(target.name, config), encoding="utf-8")
            _put_in_place(unfinished, target)


def as_folder(name: str, path: object) -> Path:
    """Return a user's path of a folder, which may be the working folder."""
    return Path() if str(path) == "." else as_path(name, path)


def find_model(path: PathLike) -> Path:
    """Return the folder of this name; fetch it from the hub if there is none and the name is like `user/name`."""
    folder = as_folder("path", path)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise InputError(f"{folder} is a file; give the folder of a saved model")
    refuse_half_saved(folder)
    if not is_hub_name(str(path)):
        raise InputError(f"{folder} does not exist; give the folder of a saved model, or user/name of one on the hub")
    hub = import_extra("huggingface_hub", "train", f"{folder} does not exist here, and fetching it from the hub")
    try:
        return Path(hub.snapshot_download(str(path), allow_patterns=[WEIGHTS, CONFIG, CARD]))
    except Exception as error:  # the hub's client, its http library and the disk all have errors of their own
        reason = f"cannot be fetched from the hub ({first_line(error)})"
        raise InputError(f"{path} does not exist here, and {reason}; check the name and the connection") from error


def push_model(name: str, save: Callable[[Path], None], private: bool) -> str:
    """Put the files that `save` writes to a folder on the hub as `user/name`, and return the address."""
    if not isinstance(name, str) or not is_hub_name(name):
        raise InputError(f"name must be user/name on the hub, such as me/shoes, got {name!r}")
    hub = import_extra("huggingface_hub", "train", "pushing a model to the hub")
    with tempfile.TemporaryDirectory() as room:
        folder = Path(room) / name.split("/")[1]
        save(folder)
        try:
            api = hub.HfApi()
            api.create_repo(name, private=private, exist_ok=True)
            api.upload_folder(repo_id=name, folder_path=folder, commit_message=f"Model of frontrank {__version__}")
        except Exception as error:  # the hub's client and its http library have errors of their own
            reason = f"{name} cannot be pushed to the hub ({first_line(error)})"
            raise InputError(f"{reason}; log in with hf auth login, and check the name and the connection") from error
    return f"{api.endpoint}/{name}"


def refuse_half_saved(folder: Path) -> None:
    """Raise with the place of the previous model, if a save of this folder was killed between its two renames."""
    if is_model(old := _old(folder.resolve())):
        raise InputError(f"{folder} is missing, since a save was killed; rename {old}, the previous model, to that")


def is_hub_name(text: str) -> bool:
    """Return whether a text is like `user/name` of a model on the hub."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", text) is not None


def is_model(folder: Path) -> bool:
    """Return whether a folder holds a saved model, of any kind and version."""
    try:
        config = load_json(folder / CONFIG)
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("format") in list(_KINDS)


def read_model(folder: Path, kind: str = EMBEDDER) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read settings and weights of a saved model, and check them against its fingerprint."""
    config = read_model_config(folder, kind)
    tensors = read_safetensors(folder / WEIGHTS)
    if fingerprint(config["settings"], tensors) != config["fingerprint"]:
        text = f"{folder / WEIGHTS} and {CONFIG} beside it do not belong together: the fingerprint differs"
        raise InputError(f"{text}; copy or save the model again")
    return config["settings"], tensors


class WeightLimit(TorchDispatchMode):
    """Raise ValueError inside it if a network that is being built needs far more than its saved weights explain."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._numbers = 4 * sum(tensor.numel() for tensor in tensors.values()) + _SPARE_NUMBERS
        self._steps = 500 * len(tensors) + _SPARE_STEPS

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count a step, and the numbers of the tensor that it makes, before it is done."""
        inputs, kwargs = function._schema.arguments, kwargs or {}
        self._steps -= 1
        if inputs and inputs[0].name != "self" and kwargs.get("device") != torch.device("meta"):
            sizes = {each.name: value for each, value in zip(inputs, args, strict=False) if each.name in _SIZES}
            self._numbers -= max(
                (math.prod(x) if isinstance(x, list | tuple) else int(x) for x in sizes.values()), default=0
            )
            self._steps -= sizes.get("steps", 0)  # a list of numbers, one for each layer
        if self._numbers < 0 or self._steps < 0:
            raise ValueError(f"they describe a far larger network than {WEIGHTS} holds")
        return function(*args, **kwargs)


def restore_weights(network: nn.Module, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Load the weights of a saved model into a network that was built from its settings."""
    try:
        network.load_state_dict(tensors)
    except RuntimeError:
        text = f"{folder / WEIGHTS} does not hold the weights that {CONFIG} beside it describes"
        raise InputError(f"{text}; save the model again") from None


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a file."""
    safetensors = import_extra("safetensors", "train", _PURPOSE)
    load_file = import_extra("safetensors.torch", "train", _PURPOSE).load_file
    try:
        return load_file(path)
    except (OSError, safetensors.SafetensorError, ValueError, KeyError) as error:
        raise InputError(f"{path} is damaged, or not a safetensors file ({error}); fetch or save it again") from error


def read_model_config(folder: Path, kind: str = EMBEDDER) -> dict[str, Any]:
    """Read the `config.json` of a saved model of this kind."""
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise InputError(f"{folder} has no {name}; give the folder of a saved model")
    path = folder / CONFIG
    try:
        config = load_json(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error}); save the model again") from error
    if not isinstance(config, dict) or config.get("format") not in list(_KINDS):
        raise InputError(f"{path} is not of a Frontrank model; give a folder that {_KINDS[kind]}.save wrote")
    if config["format"] != kind:
        other, wanted = _KINDS[config["format"]], _KINDS[kind]
        raise InputError(f"{folder} holds a model of {other}; give a folder that {wanted}.save wrote")
    if (given := config.get("format_version")) != _VERSION:
        raise InputError(f"{path} has version {given!r:.20} of the format, not {_VERSION}; update frontrank")
    if not isinstance(config.get("settings"), dict) or not isinstance(config.get("fingerprint"), str):
        raise InputError(f"{path} is damaged: settings or fingerprint are missing; save the model again")
    return config


def _check_target(target: Path, overwrite: bool) -> None:
    if target.exists() and not target.is_dir():
        raise InputError(f"{target} is a file; give another folder")
    if target.is_dir() and any(target.iterdir()):
        if not is_model(target):
            raise InputError(f"{target} holds something other than a model; give another folder")
        if not overwrite:
            raise InputError(f"{target} exists already; give another folder, or overwrite=True")


def _put_in_place(unfinished: Path, target: Path) -> None:
    """Rename a finished folder to the target; other files of the folder that it replaces move into it.

    If the process is killed anywhere in here, `_clean_up` before the next save finishes or undoes this.
    """
    if not is_model(target):
        unfinished.replace(target)
        return
    old = _old(target)
    try:
        target.rename(old)
        unfinished.rename(target)
    except BaseException:
        _clean_up(target)
        raise
    _empty_into(old, target)


def _clean_up(target: Path) -> None:
    """Undo or finish a save that was killed, and remove what old killed saves left beside the target."""
    remove_stale(target.parent.glob(f".{glob.escape(target.name)}.*{_NEW}"))
    old = _old(target)
    if is_model(target) and old.is_dir():
        _empty_into(old, target)
    elif is_model(old) and not target.exists():
        old.rename(target)


def _empty_into(old: Path, target: Path) -> None:
    """Move other files than those of a model from the old folder to the target, then remove the old folder."""
    for other in old.iterdir():
        if other.name not in (WEIGHTS, CONFIG, CARD):
            place = target / other.name
            other.rename(place.with_name(f"{other.name}.old") if place.exists() else place)
    shutil.rmtree(old)


def _old(target: Path) -> Path:
    """Return where a model is while a new one takes its place."""
    return target.parent / f".{target.name}{_OLD}"
