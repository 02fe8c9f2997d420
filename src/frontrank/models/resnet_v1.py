"""ResNet-50 as Keras has it: its network, which timm lacks, and its weights from a file of TensorFlow.js."""

import json
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from frontrank.errors import InputError

NAME = "resnet50_v1"
MEAN = (123.68 / 255, 116.779 / 255, 103.939 / 255)  # of red, green and blue: what was taken off before training
STD = (0.229, 0.224, 0.225)  # nothing was divided by then; so that inputs are about 1 large, the first kernel takes it
_EPS = 1e-3  # of Keras' BatchNorm; timm's is 1e-5
_DEPTHS = (3, 4, 6, 3)


def register() -> None:
    """Make the network known to timm by its name, once."""
    from timm.models import generate_default_cfgs, is_model, register_model

    if not is_model(NAME):
        config = {"num_classes": 1000, "input_size": (3, 224, 224), "pool_size": (7, 7), "crop_pct": 0.875}
        names = {"first_conv": "conv1", "classifier": "fc", "interpolation": "bilinear"}
        # timm looks for a variable of this name in the module of the function that it registers
        globals()["default_cfgs"] = generate_default_cfgs({NAME: {**config, **names, "mean": MEAN, "std": STD}})
        register_model(resnet50_v1)


def resnet50_v1(pretrained: bool = False, **options: Any) -> Any:
    """timm's ResNet-50 with the stride of a stage in its first 1x1 convolution, not in the 3x3 one."""
    from timm.models import build_model_with_cfg
    from timm.models.resnet import Bottleneck, ResNet

    own = {"block": Bottleneck, "layers": _DEPTHS, "norm_layer": partial(nn.BatchNorm2d, eps=_EPS)}
    model: Any = build_model_with_cfg(ResNet, NAME, pretrained, **{**own, **options})
    for block in model.modules():
        if isinstance(block, Bottleneck):
            block.conv1.stride, block.conv2.stride = block.conv2.stride, (1, 1)
    return model


def read_tfjs(files: Mapping[str, bytes], named: str) -> dict[str, Tensor]:
    """The tensors of a TensorFlow.js model, by name.

    files: `model.json`, and beside it the shards, which are one long row of little-endian float32 numbers cut in pieces
    named: what to call their source in a message
    """
    try:
        groups = json.loads(files["model.json"])["weightsManifest"]
        found = {}
        for group in groups:
            numbers = np.frombuffer(b"".join(files[path] for path in group["paths"]), "<f4")
            ends = np.cumsum([math.prod(entry["shape"]) for entry in group["weights"]])
            if any(entry["dtype"] != "float32" or "quantization" in entry for entry in group["weights"]):
                raise ValueError("numbers that are not float32")
            if len(numbers) != ends[-1]:
                raise ValueError(f"{len(numbers)} numbers where {ends[-1]} are expected")
            for entry, values in zip(group["weights"], np.split(numbers, ends[:-1]), strict=True):
                found[entry["name"]] = torch.from_numpy(values.astype(np.float32).reshape(entry["shape"]))
        return found
    except (KeyError, IndexError, TypeError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{named} holds no TensorFlow.js model that can be read ({what}); give another") from error


def from_keras(tensors: Mapping[str, Tensor], named: str) -> dict[str, Tensor]:
    """Weights of Keras' ResNet-50 by the names and in the layout of `resnet50_v1`, its classifier among them.

    Biases of convolutions go into the means of the BatchNorm behind them, and what Keras does to colours (blue first,
    from 0 to 255) into the first kernel.
    """
    try:
        found = {}
        for keras, norm, conv, bn in _places():
            found[f"{conv}.weight"] = tensors[f"{keras}/kernel"].permute(3, 2, 0, 1)
            found[f"{bn}.weight"], found[f"{bn}.bias"] = tensors[f"{norm}/gamma"], tensors[f"{norm}/beta"]
            found[f"{bn}.running_mean"] = tensors[f"{norm}/moving_mean"] - tensors[f"{keras}/bias"]
            found[f"{bn}.running_var"] = tensors[f"{norm}/moving_variance"]
        found["fc.weight"], found["fc.bias"] = tensors["fc1000/kernel"].T, tensors["fc1000/bias"]
    except KeyError as error:
        raise InputError(f"{named} does not hold Keras' ResNet-50: {error} is missing; give another") from error
    scale = torch.tensor([255 * std for std in STD])[:, None, None]
    found["conv1.weight"] = found["conv1.weight"].flip(1) * scale
    return {name: x.contiguous() for name, x in found.items()}


def _places() -> list[tuple[str, str, str, str]]:
    """Keras' names of each convolution and its BatchNorm, and timm's."""
    places = [("conv1", "bn_conv1", "conv1", "bn1")]
    for stage, depth in enumerate(_DEPTHS, 1):
        for index in range(depth):
            block, own = f"{stage + 1}{'abcdef'[index]}_branch", f"layer{stage}.{index}"
            if index == 0:
                places.append((f"res{block}1", f"bn{block}1", f"{own}.downsample.0", f"{own}.downsample.1"))
            for number, letter in enumerate("abc", 1):
                places.append(
                    (f"res{block}2{letter}", f"bn{block}2{letter}", f"{own}.conv{number}", f"{own}.bn{number}")
                )
    return places
