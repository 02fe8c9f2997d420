"""A network of timm, and its features as maps."""

import contextlib
import difflib
import json
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from frontrank.errors import InputError

# ==== ResNet-50 as Keras has it: its network, which timm lacks, and its weights from a file of TensorFlow.js.


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


# ==== A network of timm, and its features as maps.


_OWN = {
    "exportable",
    "feature_cfg",
    "features_only",
    "global_pool",
    "img_size",
    "in_chans",
    "num_classes",
    "scriptable",
}
_FILES = {"cache_dir", "checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay"}  # timm would read


def build_backbone(
    name: str, image_size: int, options: Mapping[str, Any], *, pretrained: bool = False, pooled: bool = False
) -> Any:
    """timm's model of this name without its classifier, with random weights unless pretrained.

    pooled: with timm's own pooling, whose last norm may stand elsewhere; the form that pretrained weights are for
    """
    timm = _timm()
    config = _pretrained_config(timm, name)
    reserved = sorted((_OWN | _FILES) & set(options))
    if reserved:
        raise InputError(f"{reserved[0]} is not an option of a backbone here; leave it out")
    more = dict(options)
    if config is not None and config.fixed_input_size and image_size != config.input_size[-1]:
        more["img_size"] = image_size
    if not pooled:
        more["global_pool"] = ""
    try:
        try:
            return timm.create_model(name, pretrained=pretrained, num_classes=0, **more)
        except AssertionError:  # a few models cannot be built without their pooling; it is not used
            more.pop("global_pool", None)
            return timm.create_model(name, pretrained=pretrained, num_classes=0, **more)
    except (TypeError, AssertionError, ValueError, RuntimeError) as error:
        if pretrained:
            raise
        raise _not_built(name, image_size, options, error) from error


def _timm() -> Any:
    try:
        import timm
    except ImportError:
        raise InputError("building a model needs timm; pip install 'frontrank[train]'") from None
    register()
    return timm


def _pretrained_config(timm: Any, name: str) -> Any:
    """timm's description of the weights it has for a model; None where it has none."""
    if isinstance(name, str) and timm.is_model(name):
        with contextlib.suppress(RuntimeError):  # no weights of that tag, the part after the point
            return timm.get_pretrained_cfg(name)
    known = timm.list_pretrained() if "." in str(name) else timm.list_models()
    near = difflib.get_close_matches(str(name), known, 3, 0.4)
    raise InputError(f"backbone {name!r} is not a model of timm; nearest: {', '.join(near) or 'none'}")


def _not_built(name: str, image_size: int, options: Mapping[str, Any], error: Exception) -> InputError:
    said = first_line(error)
    if "img_size" in said:
        return InputError(f"image_size: {name} does not take images of {image_size} px; leave it at timm's own size")
    strange = [option for option in options if f"'{option}'" in said]
    if strange:
        return InputError(f"{strange[0]} is no setting of the model, and no option of {name}; look for a typing error")
    return InputError(f"backbone {name} cannot be built at {image_size} px with these options ({said})")


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or its kind."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def feature_maps(backbone: Any, images: Tensor, stage: int = 0) -> Tensor:
    """Features [image, channel, height, width]; [image, channel, place] if tokens fit no grid.

    stage: the one they are taken after, from 1, as timm counts them; 0 is after the last layer
    Class and register tokens of a transformer are left out: they have no place in the image.
    """
    if stage:
        (found,) = backbone.forward_intermediates(
            images, indices=[stage - 1], stop_early=True, intermediates_only=True, output_fmt="NCHW"
        )
        return found
    features: Tensor = backbone.forward_features(images)
    if features.ndim == 4:
        return features.permute(0, 3, 1, 2) if getattr(backbone, "output_fmt", "") == "NHWC" else features
    has_class = getattr(backbone, "cls_token", None) is not None
    places = features[:, getattr(backbone, "num_prefix_tokens", int(has_class)) :].transpose(1, 2)
    count, (height, width) = places.shape[2], images.shape[2:]
    rows = round(math.sqrt(count * height / width))
    return places.unflatten(2, (rows, count // rows)) if rows and count % rows == 0 else places


def examine(backbone: Any, name: str, image_size: int, stage: int = 0) -> tuple[torch.Size, set[nn.Parameter]]:
    """The shape of one image's feature maps, and the parameters they depend on.

    Some models of timm keep parameters that only their own head would use.
    """
    mode = backbone.training
    backbone.eval()  # a single blank image must not change the statistics, nor draw random numbers
    try:
        maps = feature_maps(backbone, torch.zeros(1, 3, image_size, image_size), stage)
        shape = maps.shape
        if 0 in shape:
            raise ValueError("only class tokens")
    except (AttributeError, AssertionError, IndexError, RuntimeError, TypeError, ValueError) as error:
        after = f" after stage {stage}" if stage else ""
        raise InputError(
            f"backbone {name} gives no feature map{after} for images of {image_size} px ({first_line(error)}); "
            f"give another {'stage, ' if stage else ''}image_size or backbone"
        ) from error
    finally:
        backbone.train(mode)
    return shape, _parameters_behind(maps)


def _parameters_behind(result: Tensor) -> set[nn.Parameter]:
    seen, waiting, found = {result.grad_fn}, [result.grad_fn], set()
    while waiting:
        node: Any = waiting.pop()
        if isinstance(getattr(node, "variable", None), nn.Parameter):
            found.add(node.variable)
        for before, _ in getattr(node, "next_functions", ()):
            if before is not None and before not in seen:
                seen.add(before)
                waiting.append(before)
    return found
