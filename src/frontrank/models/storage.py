"""A model as a folder, in the layout of the Hugging Face hub: weights, settings, a card."""

import contextlib
import glob
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from frontrank.errors import InputError, InputTypeError

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
_VERSION = 1
_KINDS = {"frontrank.model": "Embedder", "frontrank.detector": "Detector"}  # what writes each format
EMBEDDER, DETECTOR = _KINDS
_NEW, _OLD = ".frontrank-new", ".frontrank-old"  # endings of the folders beside a model that is being replaced
_STALE_SECONDS = 3600.0  # an unfinished folder of this age is of a process that was killed
_ONLY_IN_TRAINING = ("batch_norm", "dropout")


def fingerprint(settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """A sha256 of weights, by name, and of the settings that embeddings depend on."""
    kept = {name: value for name, value in settings.items() if name not in _ONLY_IN_TRAINING}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save(
    folder: str | os.PathLike[str],
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    dim: int,
    overwrite: bool,
    kind: str = EMBEDDER,
    card: Callable[[str, Mapping[str, Any]], str] | None = None,
) -> None:
    """Write the three files to a folder that appears when all are there.

    kind: the format, EMBEDDER or DETECTOR
    card: what the README says, made of the folder's name and of what `config.json` holds; None is an embedder's
    """
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise _no_safetensors() from None
    target = as_path("folder", folder).absolute()
    target = target.resolve() if target.is_symlink() else target
    try:
        _clean_up(target)
        _check_target(target, overwrite)
        own = {name: x.detach().cpu().contiguous().clone() for name, x in tensors.items()}  # no shared memory
        config = describe(settings, own, kind)
        if not target.parent.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
        room = Path(tempfile.mkdtemp(_NEW, f".{target.name}.", target.parent))
        try:
            unfinished = room / target.name  # inside, for the usual permissions: those of the room are its owner's
            unfinished.mkdir()
            save_file(own, unfinished / WEIGHTS, {"format": "pt"})
            (unfinished / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            (unfinished / WEIGHTS).chmod((unfinished / CONFIG).stat().st_mode)  # else its owner alone could read it
            text = _card(target.name, config, dim) if card is None else card(target.name, config)
            (unfinished / CARD).write_text(text, encoding="utf-8")
            _put_in_place(unfinished, target)
        finally:
            shutil.rmtree(room, ignore_errors=True)
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror or error}; give another folder") from error


def describe(settings: Mapping[str, Any], tensors: Mapping[str, Tensor], kind: str = EMBEDDER) -> dict[str, Any]:
    """What `config.json` holds."""
    try:
        ours = version("frontrank")
    except PackageNotFoundError:  # run from a source tree that was never installed
        ours = "unknown"
    return {
        "format": kind,
        "format_version": _VERSION,
        "frontrank_version": ours,
        "fingerprint": fingerprint(settings, tensors),
        "settings": dict(settings),
    }


def find(path: str | os.PathLike[str]) -> Path:
    """The folder of this name, fetched from the hub if there is none and it reads like `user/name`."""
    folder = as_path("path", path)
    if folder.is_dir():
        return folder
    if folder.exists():
        raise InputError(f"{folder} is a file; give the folder of a saved model")
    refuse_half_saved(folder)
    if not is_hub_name(str(path)):
        raise InputError(f"{folder} is not there; give the folder of a saved model, or user/name of one on the hub")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise InputError(
            f"{folder} is no folder here, and the hub needs huggingface_hub; pip install 'frontrank[train]'"
        ) from None
    try:
        return Path(snapshot_download(str(path), allow_patterns=[WEIGHTS, CONFIG, CARD]))
    except Exception as error:  # the hub's client, its http library and the disk all have errors of their own
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"{path} is no folder here, and could not be had from the hub ({said}); check the name and the connection"
        ) from error


def refuse_half_saved(folder: Path) -> None:
    """Say where the model of a missing folder is, if a save was killed between its two renames."""
    if is_model(old := _old(folder.resolve())):
        raise InputError(f"{folder} is not there, since a save was killed; rename {old}, the model before it, to that")


def is_hub_name(text: str) -> bool:
    """Whether a text reads like `user/name` of a model on the hub."""
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", text) is not None


def is_model(folder: Path) -> bool:
    """Whether a folder holds a saved model, of any kind and version."""
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("format") in list(_KINDS)


def read(folder: Path, kind: str = EMBEDDER) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Settings and weights of a saved model, checked against its fingerprint."""
    config = read_config(folder, kind)
    tensors = read_safetensors(folder / WEIGHTS)
    if fingerprint(config["settings"], tensors) != config["fingerprint"]:
        raise InputError(
            f"{folder / WEIGHTS} and {CONFIG} beside it do not belong together: their fingerprint is another one; "
            "copy or save the model again"
        )
    return config["settings"], tensors


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file."""
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise _no_safetensors() from None
    try:
        return load_file(path)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise InputError(f"{path} is damaged, or no safetensors file ({error}); fetch or save it again") from error


def as_path(name: str, path: object) -> Path:
    """A path, of what can be one."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise InputTypeError(f"{name} must be a path, got {path!r}")
    return Path(path)


def read_config(folder: Path, kind: str = EMBEDDER) -> dict[str, Any]:
    """What the `config.json` of a saved model of this kind holds."""
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise InputError(f"{folder} has no {name}; give the folder of a saved model")
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error}); save the model again") from error
    if not isinstance(config, dict) or config.get("format") not in list(_KINDS):
        raise InputError(f"{path} describes no Frontrank model; give a folder that {_KINDS[kind]}.save wrote")
    if config["format"] != kind:
        raise InputError(
            f"{folder} holds a model of {_KINDS[config['format']]}; give a folder that {_KINDS[kind]}.save wrote"
        )
    if config.get("format_version") != _VERSION:
        raise InputError(
            f"{path} has version {config.get('format_version')} of the format, this is {_VERSION}; update frontrank"
        )
    if not isinstance(config.get("settings"), dict) or not isinstance(config.get("fingerprint"), str):
        raise InputError(f"{path} is damaged: settings or fingerprint are missing; save the model again")
    return config


def _check_target(target: Path, overwrite: bool) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise InputError(f"{target} is a file; give another folder")
    if not any(target.iterdir()):
        return
    if not is_model(target):
        raise InputError(f"{target} holds something else than a model; give another folder")
    if not overwrite:
        raise InputError(f"{target} exists already; give another folder, or overwrite=True")


def _put_in_place(unfinished: Path, target: Path) -> None:
    """Rename a finished folder; what else was in the one it replaces goes with it.

    If the process is killed anywhere in here, `_clean_up` before the next save finds out how far it came.
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
    """Undo or finish what a save that was killed left beside the target, and remove what it left for nothing."""
    for room in target.parent.glob(f".{glob.escape(target.name)}.*{_NEW}"):
        with contextlib.suppress(OSError):  # gone in the meantime
            if time.time() - room.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(room)
    old = _old(target)
    if is_model(target) and old.is_dir():
        _empty_into(old, target)
    elif is_model(old) and not target.exists():
        old.rename(target)


def _empty_into(old: Path, target: Path) -> None:
    for other in old.iterdir():
        if other.name not in (WEIGHTS, CONFIG, CARD):
            place = target / other.name
            other.rename(place.with_name(f"{other.name}.old") if place.exists() else place)
    shutil.rmtree(old)


def _old(target: Path) -> Path:
    """Where a model is while a new one takes its place."""
    return target.parent / f".{target.name}{_OLD}"


def _card(name: str, config: Mapping[str, Any], dim: int) -> str:
    settings = config["settings"]
    colours = "\n".join(f"| {key} | {', '.join(f'{x:g}' for x in settings[key])} |" for key in ("mean", "std"))
    return f"""---
library_name: frontrank
pipeline_tag: image-feature-extraction
tags:
- frontrank
- image-retrieval
- metric-learning
- {settings["backbone"]}
---

# {name}

An image embedder: {settings["backbone"]}, {settings["pooling"]} pooling, {dim} dimensions, vectors of length 1.
The cosine of two embeddings says how alike two images are.

```python
import frontrank as fr

model = fr.Embedder.load("path/of/this/folder")
embeddings = model(images)  # [image, 3, {settings["image_size"]}, {settings["image_size"]}]
```

| | |
|---|---|
| images | made {settings["resize"]} px large, the middle {settings["image_size"]} px taken |
{colours}
| fingerprint | {config["fingerprint"]} |
| frontrank | {config["frontrank_version"]} |
"""


def _no_safetensors() -> InputError:
    return InputError("saving and loading a model needs safetensors; pip install 'frontrank[train]'")
