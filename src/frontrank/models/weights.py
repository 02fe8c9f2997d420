"""Weights to begin with: timm's pretrained ones, those of a package, a file, or a saved model."""

import logging
import os
import pickle
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from frontrank.errors import InputError
from frontrank.models import storage
from frontrank.models.backbone import build_backbone, first_line
from frontrank.models.package_weights import SOURCES, package_weights, source_of

WORDS = ("none", "pretrained", "package")  # never taken for paths, even where files are called so
_ENDINGS = (".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".tar")
_NESTED = ("state_dict", "model", "model_state_dict")
_PREFIXES = ("module.", "backbone.", "model.")
_CLASSIFIERS = ("fc.", "head.", "classifier.", "last_linear.", "head_dist.", "attn_pool.")


def find_weights(weights: str | os.PathLike[str] | None, backbone: str) -> tuple[Path | str | None, Mapping[str, Any]]:
    """Where weights are, None for random ones, and settings that come along: a saved model's, a package's colours."""
    if weights == "package":
        source = source_of(backbone)
        return weights, {"mean": source.mean, "std": source.std}
    if weights is None or weights in WORDS:
        return (None if weights == "none" else weights), {}
    path = storage.as_path("weights", weights)
    if path.is_file():
        return path, {}
    if not path.is_dir():
        storage.refuse_half_saved(path)
        _refuse_names_of_timm(str(weights))
        if path.suffix.lower() in _ENDINGS or not storage.is_hub_name(str(weights)):
            remedy = "give one that is there, user/name of a Frontrank model on the hub, pretrained, package, or none"
            raise InputError(f"weights {str(path)!r} is no file or folder; {remedy}")
    folder = storage.find(path)
    return folder, storage.read_config(folder)["settings"]


def load_weights(model: Any, source: Path | str | None) -> str:
    """Put weights into an embedder; a sentence of what was loaded.

    source: as `find_weights` found it
    """
    if source is None:
        return "random weights"
    if not isinstance(source, Path):
        return _load_package(model) if source == "package" else _load_pretrained(model)
    if source.is_dir():
        return _load_folder(model, source)
    count = load_backbone(model.backbone, read_weights(source), str(source))
    return f"backbone from {source} ({count} tensors); the head starts anew"


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, by name; a pickle that would run code is refused.

    A file of torch may hold them plainly, or under "state_dict" or "model".
    """
    if path.suffix.lower() == ".safetensors":
        return storage.read_safetensors(path)
    if path.suffix.lower() not in _ENDINGS:
        raise InputError(f"{path} has an ending that is not known; give a .safetensors, .pth, .pt or .bin file")
    found: Any = _unpickle(path)
    while isinstance(found, Mapping) and not _all_tensors(found):
        inner = next((name for name in _NESTED if isinstance(found.get(name), Mapping)), None)
        if inner is None:
            break
        found = found[inner]
    if not _all_tensors(found):
        raise InputError(f"{path} holds no weights by name; save the state_dict() of a model")
    return dict(found)


def load_backbone(backbone: Any, tensors: Mapping[str, Tensor], named: str) -> int:
    """Load tensors by name, all of the backbone's and no others, its classifier apart; how many.

    named: what to call their source in a message
    """
    own = backbone.state_dict()
    tensors = _without_prefix(tensors, own)
    if "norm.weight" in own and "norm.weight" not in tensors:  # the same norm, where timm pools before it
        tensors = {re.sub(r"^fc_norm\.", "norm.", name): x for name, x in tensors.items()}
    misfit = _misfit(backbone, own, tensors)
    if misfit:
        raise InputError(f"{named} does not fit the backbone: {misfit}; give the weights of this backbone")
    both = own.keys() & tensors.keys()
    broken = sorted(name for name in both if not bool(tensors[name].isfinite().all()))
    if broken:
        raise InputError(f"{named} has numbers that are not finite, e.g. in {broken[0]}; give other weights")
    backbone.load_state_dict({name: tensors[name] for name in both}, strict=False)
    return len(both)


def _misfit(backbone: Any, own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> str:
    """What is wrong with the tensors, in words; nothing where they can be loaded."""
    spare = {name for name, p in backbone.named_parameters() if not p.requires_grad}  # no embedding depends on them
    missing = [n for n in own if n not in tensors and n not in spare and not n.endswith("num_batches_tracked")]
    classifier = (*_CLASSIFIERS, *_classifiers_of(backbone))
    extra = [name for name in tensors if name not in own and not name.startswith(classifier)]
    other = [name for name in own if name in tensors and tensors[name].shape != own[name].shape]
    found = ((missing, "missing"), (extra, "unknown to it"), (other, "of another shape"))
    said = (f"{len(names)} tensors are {what} ({', '.join(names[:3])})" for names, what in found if names)
    return ", ".join(said)


def _load_pretrained(model: Any) -> str:
    name, size, options = model.settings.backbone, model.settings.image_size, model.settings.backbone_options
    try:
        with quiet_hub():
            source = build_backbone(name, size, options, pretrained=True, pooled=True)
    except Exception as error:  # no such weights, no network, a full disk: timm and the hub's client raise many kinds
        raise InputError(
            f"weights: timm's pretrained {name} cannot be had ({first_line(error)}); "
            f"give {'package, ' if name in SOURCES else ''}a file or folder of weights, or none"
        ) from error
    load_backbone(model.backbone, source.state_dict(), f"timm's pretrained {name}")
    return f"{pretrained_title(name, source)}; the head starts anew"


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Within, the hub's client says nothing of each try that fails: the failure is told once, by whoever catches it."""
    hub = logging.getLogger("huggingface_hub")
    level = hub.level
    hub.setLevel(logging.ERROR)
    try:
        yield
    finally:
        hub.setLevel(level)


def pretrained_title(name: str, model: Any) -> str:
    """What to call the pretrained weights that timm took for a model: its name with their tag."""
    tag = model.pretrained_cfg.get("tag")
    return f"timm's pretrained {name.partition('.')[0]}{f'.{tag}' if tag else ''}"


def _load_package(model: Any) -> str:
    name = model.settings.backbone
    source = source_of(name)
    load_backbone(model.backbone, package_weights(name), f"{source.package}")
    changed = _changed_colours(model, {"mean": source.mean, "std": source.std})
    return f"ImageNet weights of {name} from {source}; the head starts anew{changed}"


def _load_folder(model: Any, folder: Path) -> str:
    settings, tensors = storage.read(folder)
    backbone = {name: x for name, x in tensors.items() if name.startswith("backbone.")}
    load_backbone(model.backbone, backbone, str(folder / storage.WEIGHTS))
    theirs = {name: x for name, x in tensors.items() if name not in backbone}
    own = {name: x for name, x in model.state_dict().items() if not name.startswith("backbone.")}
    same = {name: x.shape for name, x in theirs.items()} == {name: x.shape for name, x in own.items()}
    changed = _changed_colours(model, settings)
    if not same or settings.get("pooling") != model.pooling.kind:
        return f"backbone of {folder}; the head starts anew, being another one there{changed}"
    model.load_state_dict(theirs, strict=False)
    return f"backbone and head of {folder}{changed}"


def _changed_colours(model: Any, settings: Mapping[str, Any]) -> str:
    """What to say where a model has not the colours that its weights were trained with."""
    colours = ((name, list(settings.get(name) or ()), list(getattr(model, name))) for name in ("mean", "std"))
    return "".join(f"; {name} is {new}, not its own {old}" for name, old, new in colours if old != new)


def _refuse_names_of_timm(weights: str) -> None:
    name = re.sub(r"^(hf[-_]hub:)?(timm/)?", "", weights)
    if name == weights and not re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)?", name):
        return
    import timm

    known = timm.is_model(name)
    if known or name != weights:
        example = name if known else "resnet50.a1_in1k"
        raise InputError(
            f"weights {weights!r} is no file or folder, and timm's weights are not given by name here; "
            f'give their name as the backbone, e.g. backbone="{example}", weights="pretrained", or a file of weights'
        )


def _unpickle(path: Path) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} is damaged, or holds Python objects beside tensors, and unpickling those could run any code; "
            "save only the state_dict(), best as .safetensors"
        ) from error
    except Exception as error:  # whatever reading a damaged zip or pickle comes to
        raise InputError(f"{path} is damaged, or no file of torch; fetch or save it again") from error


def _all_tensors(found: object) -> bool:
    return (
        isinstance(found, Mapping)
        and len(found) > 0
        and all(isinstance(name, str) and isinstance(x, Tensor) for name, x in found.items())
    )


def _without_prefix(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The part under the prefix that makes most names the backbone's: what wrappers of modules put before them."""
    prefixes = {""}
    for name in tensors:
        prefix = ""
        while (piece := next((p for p in _PREFIXES if name.startswith(p, len(prefix))), None)) is not None:
            prefix += piece
            prefixes.add(prefix)
    parts = [{n[len(p) :]: x for n, x in tensors.items() if n.startswith(p)} for p in sorted(prefixes)]
    return max(parts, key=lambda part: len(part.keys() & own.keys()))


def _classifiers_of(backbone: Any) -> tuple[str, ...]:
    said = (backbone.pretrained_cfg or {}).get("classifier") or ()
    return tuple(f"{name}." for name in ((said,) if isinstance(said, str) else said))
