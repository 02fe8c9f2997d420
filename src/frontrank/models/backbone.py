"""A network of timm, and its features: as published, as tokens or as maps. Also ResNet-50 as Keras has it."""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from frontrank.checks import import_extra
from frontrank.errors import InputError
from frontrank.models.pooling import TOKEN_POOLINGS

_OWN_OPTIONS = "exportable feature_cfg features_only global_pool img_size in_chans num_classes scriptable"
_FILE_OPTIONS = "cache_dir checkpoint_path pretrained pretrained_cfg pretrained_cfg_overlay"
_RESERVED_OPTIONS = {*_OWN_OPTIONS.split(), *_FILE_OPTIONS.split()}


def build_backbone(
    name: str, image_size: int, options: Mapping[str, Any], *, pretrained: bool = False, pooled: bool = False
) -> Any:
    """Build the model of timm with this name, without its classifier; its weights are random unless pretrained.

    pooled: with timm's own pooling, whose last norm may stand elsewhere; pretrained weights have this form

    A model for one size of images is built for `image_size`; if it can resize its position embeddings in every call
    (dynamic_img_size), it takes other sizes too.
    """
    timm = import_extra("timm", "train", "building a model")
    config = pretrained_config(name)
    reserved = sorted(_RESERVED_OPTIONS & set(options))
    if reserved:
        raise InputError(f"{reserved[0]} is not an option of a backbone here; leave it out")
    more = {**options, "pretrained": pretrained, "num_classes": 0}
    if config.fixed_input_size and image_size != config.input_size[-1]:
        more["img_size"] = image_size
    tries = [more if pooled else {**more, "global_pool": ""}]
    if not pooled:  # a few models cannot be built without their pooling; it is not used
        tries.append(more)
    if config.fixed_input_size and "dynamic_img_size" not in options:
        tries = [{**each, "dynamic_img_size": True} for each in tries] + tries
    while True:
        try:
            backbone = timm.create_model(name, **tries.pop(0))
            break
        except Exception as error:  # options that are wrong raise of every kind
            if tries and (isinstance(error, AssertionError) or "'dynamic_img_size'" in str(error)):
                continue
            if pretrained:
                raise
            raise _build_error(name, image_size, options, error) from error
    check_image_size(backbone, name, image_size, image_size)
    return backbone


def pretrained_config(name: str) -> Any:
    """Return timm's description of the weights it has for a model: their colours, image size and interpolation."""
    timm = import_extra("timm", "train", "building a model")
    register_keras_resnet50()
    if isinstance(name, str) and timm.is_model(name):
        with contextlib.suppress(RuntimeError):  # no weights of that tag, the part after the point
            return timm.get_pretrained_cfg(name) or timm.models.PretrainedCfg()
    raise unknown_backbone(name)


def unknown_backbone(name: str, prefix: str = "") -> InputError:
    """Return the error for a name that timm does not know, with the names that are nearest to it, all with a prefix."""
    timm = import_extra("timm", "train", "building a model")
    known = timm.list_pretrained() if "." in str(name) else timm.list_models()
    near = ", ".join(prefix + each for each in get_close_matches(str(name)[:100], known, 3, 0.4))
    return InputError(f"backbone {prefix + str(name)!r:.100} is not a model of timm; nearest: {near or 'none'}")


def _build_error(name: str, image_size: int, options: Mapping[str, Any], error: Exception) -> InputError:
    reason = first_line(error)
    unknown = [option for option in options if f"'{option}'" in reason]
    if unknown:
        return InputError(f"{unknown[0]} is not a setting of the model, nor an option of {name}; check the spelling")
    fault = f"backbone {name} cannot be built at {image_size} px with these options ({reason})"
    return InputError(f"{fault}; give another image_size, or other options")


def check_image_size(backbone: Any, name: str, height: int, width: int) -> None:
    """Raise if images of this size cannot be cut into the patches of a transformer."""
    patches = getattr(backbone, "patch_embed", None)
    side = getattr(patches, "patch_size", None)
    if not isinstance(side, tuple | list) or getattr(patches, "dynamic_img_pad", False):
        return
    for given, patch in zip((height, width), side, strict=True):
        if given % patch:
            below = given - given % patch
            near = f"{below} or {below + patch}" if below else f"{patch}"
            raise InputError(f"image_size: {name} takes multiples of {patch} px, got {given}; give {near}")


def takes_any_size(backbone: Any) -> bool:
    """Whether a backbone takes images of other sizes than that it was built for."""
    config: Mapping[str, Any] = backbone.pretrained_cfg or {}
    return not config.get("fixed_input_size") or bool(getattr(backbone, "dynamic_img_size", False))


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or its kind if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


@contextlib.contextmanager
def module_mode(module: nn.Module, training: bool = False) -> Iterator[None]:
    """Put a module into the mode of evaluation, or of training, and back into its own afterwards."""
    mode = module.training
    module.train(training)
    try:
        yield
    finally:
        module.train(mode)


def read_features(backbone: Any, images: Tensor, pooling: str, stage: int = 0) -> Tensor:
    """Return what a pooling works on: vectors [image, feature] of the backbone's own head or tokens, or its maps.

    Only this function runs a backbone: whatever reads its features in another way belongs here.
    """
    if pooling == "native":
        return native_features(backbone, images)
    if pooling in TOKEN_POOLINGS:
        return token_features(backbone, images, average=pooling != "cls")
    return feature_maps(backbone, images, stage)


def feature_maps(backbone: Any, images: Tensor, stage: int = 0) -> Tensor:
    """Return features [image, channel, height, width]; [image, channel, place] if the tokens fit no grid.

    stage: take them after this stage, counted from 1 as timm does; 0 is after the last layer

    Class and register tokens of a transformer are left out: they have no place in the image.
    """
    if stage:
        (maps,) = backbone.forward_intermediates(
            images, indices=[stage - 1], stop_early=True, intermediates_only=True, output_fmt="NCHW"
        )
        return maps
    features: Tensor = backbone.forward_features(images)
    if features.ndim == 4:
        return features.permute(0, 3, 1, 2) if getattr(backbone, "output_fmt", "") == "NHWC" else features
    places = features[:, _prefix_tokens(backbone) :].transpose(1, 2)
    count, (height, width) = places.shape[2], images.shape[2:]
    rows = round(math.sqrt(count * height / width))
    return places.unflatten(2, (rows, count // rows)) if rows and count % rows == 0 else places


def native_features(backbone: Any, images: Tensor) -> Tensor:
    """Return [image, feature] as the network's authors meant it: by timm's own pooling and norm, before the classifier.

    Under autocast only the layers before that pooling run in lower precision.
    """
    features = backbone.forward_features(images)
    with no_autocast(images.device.type) as lower:
        if lower and isinstance(features, Tensor):
            features = features.float()
        return backbone.forward_head(features, pre_logits=True)


def token_features(backbone: Any, images: Tensor, average: bool = False) -> Tensor:
    """Return the class token [image, channel]; with `average`, the mean of all patch tokens beside it."""
    tokens: Tensor = backbone.forward_features(images)
    tokens = tokens if tokens.dtype == torch.float64 else tokens.float()
    first = tokens[:, 0]
    return torch.cat([first, tokens[:, _prefix_tokens(backbone) :].mean(1)], 1) if average else first


def has_class_token(backbone: Any) -> bool:
    """Whether a backbone is a transformer with a class token."""
    return getattr(backbone, "cls_token", None) is not None


def _prefix_tokens(backbone: Any) -> int:
    """Return the number of tokens before those of the patches: class, distillation and register tokens."""
    return int(getattr(backbone, "num_prefix_tokens", has_class_token(backbone)))


@contextlib.contextmanager
def no_autocast(device: str) -> Iterator[bool]:
    """Switch autocast off, and yield whether it was on."""
    on = device != "meta" and torch.is_autocast_enabled(device)
    with torch.autocast(device, enabled=False) if on else contextlib.nullcontext():
        yield on


def examine_backbone(
    backbone: Any, name: str, image_size: int, pooling: str, stage: int = 0
) -> tuple[torch.Size, set[nn.Parameter]]:
    """Return the shape of one image's features, and the parameters behind them; timm's own heads have others."""
    if pooling in TOKEN_POOLINGS and not has_class_token(backbone):
        raise InputError(f"pooling {pooling} needs a class token, and {name} has none; give native or average")
    size = (1, 3, image_size, image_size)
    try:
        with module_mode(backbone):  # a single blank image must not change the statistics, nor draw random numbers
            try:
                features, used = _trace_features(backbone, size, pooling, stage)
            except Exception:  # a few networks look at numbers
                features = read_features(backbone, torch.zeros(size), pooling, stage)
                used = _parameters_behind(features)
        if 0 in features.shape:
            raise ValueError("only class tokens")
    except Exception as error:
        after = f" after stage {stage}" if stage else ""
        what = "vectors" if pooling in ("native", *TOKEN_POOLINGS) else "feature map"
        text = f"backbone {name} has no {what}{after} for images of {image_size} px with pooling {pooling}"
        remedy = f"give another {'stage, ' if stage else ''}pooling, image_size or backbone"
        raise InputError(f"{text} ({first_line(error)}); {remedy}") from error
    return features.shape, used


class _Features(nn.Module):
    """What `read_features` returns, as a module."""

    def __init__(self, backbone: nn.Module, pooling: str, stage: int) -> None:
        super().__init__()
        self.backbone, self._pooling, self._stage = backbone, pooling, stage

    def forward(self, images: Tensor) -> Tensor:
        return read_features(self.backbone, images, self._pooling, self._stage)


def _trace_features(
    backbone: nn.Module, size: tuple[int, ...], pooling: str, stage: int
) -> tuple[Tensor, set[nn.Parameter]]:
    """Return features of an image without numbers, and the parameters behind them: no size takes time or memory."""
    network = _Features(backbone, pooling, stage)
    weights = dict(network.named_parameters())
    copies = {name: nn.Parameter(torch.empty_like(p, device="meta"), p.requires_grad) for name, p in weights.items()}
    buffers = {name: torch.empty_like(buffer, device="meta") for name, buffer in network.named_buffers()}
    features: Tensor = torch.func.functional_call(network, {**copies, **buffers}, torch.empty(size, device="meta"))
    behind = _parameters_behind(features)
    return features, {weights[name] for name, copy in copies.items() if copy in behind}


def _parameters_behind(result: Tensor) -> set[nn.Parameter]:
    """Return the parameters that a tensor was computed from."""
    seen, waiting, parameters = {result.grad_fn}, [result.grad_fn], set()
    while waiting:
        node: Any = waiting.pop()
        if isinstance(getattr(node, "variable", None), nn.Parameter):
            parameters.add(node.variable)
        for before, _ in getattr(node, "next_functions", ()):
            if before is not None and before not in seen:
                seen.add(before)
                waiting.append(before)
    return parameters


# ResNet-50 as Keras has it, and its weights from a model of TensorFlow.js


KERAS_RESNET50 = "resnet50_v1"
KERAS_MEAN = (123.68 / 255, 116.779 / 255, 103.939 / 255)  # of red, green and blue, subtracted before training
KERAS_STD = (0.229, 0.224, 0.225)  # Keras divides by nothing; the first kernel makes up for this
_KERAS_EPS = 1e-3  # of Keras' BatchNorm; timm's is 1e-5
_KERAS_DEPTHS = (3, 4, 6, 3)


def register_keras_resnet50() -> None:
    """Make the network known to timm by its name, once."""
    from timm.models import generate_default_cfgs, is_model, register_model

    if not is_model(KERAS_RESNET50):
        sizes = {"num_classes": 1000, "input_size": (3, 224, 224), "pool_size": (7, 7), "crop_pct": 0.875}
        names = {"first_conv": "conv1", "classifier": "fc", "interpolation": "bilinear"}
        config = {**sizes, **names, "mean": KERAS_MEAN, "std": KERAS_STD}
        # timm looks for a variable of this name in the module of the function that it registers
        globals()["default_cfgs"] = generate_default_cfgs({KERAS_RESNET50: config})
        register_model(resnet50_v1)


def resnet50_v1(pretrained: bool = False, **options: Any) -> Any:
    """Build timm's ResNet-50 with the stride of a stage in its first 1x1 convolution, not in the 3x3 one."""
    from timm.models import build_model_with_cfg
    from timm.models.resnet import Bottleneck, ResNet

    own = {"block": Bottleneck, "layers": _KERAS_DEPTHS, "norm_layer": partial(nn.BatchNorm2d, eps=_KERAS_EPS)}
    model: Any = build_model_with_cfg(ResNet, KERAS_RESNET50, pretrained, **{**own, **options})
    for block in model.modules():
        if isinstance(block, Bottleneck):
            block.conv1.stride, block.conv2.stride = block.conv2.stride, (1, 1)
    return model


def read_tfjs(files: Mapping[str, bytes], title: str) -> dict[str, Tensor]:
    """Read the tensors of a TensorFlow.js model, by name.

    files: `model.json`, and beside it the shards: one long row of little-endian float32 numbers, cut in pieces
    title: the name of their source in an error message
    """
    try:
        groups = json.loads(files["model.json"])["weightsManifest"]
        tensors = {}
        for group in groups:
            numbers = np.frombuffer(b"".join(files[path] for path in group["paths"]), "<f4")
            ends = np.cumsum([math.prod(entry["shape"]) for entry in group["weights"]])
            if any(entry["dtype"] != "float32" or "quantization" in entry for entry in group["weights"]):
                raise ValueError("numbers that are not float32")
            if len(numbers) != ends[-1]:
                raise ValueError(f"{len(numbers)} numbers where {ends[-1]} are expected")
            for entry, values in zip(group["weights"], np.split(numbers, ends[:-1]), strict=True):
                tensors[entry["name"]] = torch.from_numpy(values.astype(np.float32).reshape(entry["shape"]))
        return tensors
    except (KeyError, IndexError, TypeError, ValueError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise InputError(f"{title} is not a TensorFlow.js model that can be read ({reason}); give another") from error


def convert_keras_resnet50(tensors: Mapping[str, Tensor], title: str) -> dict[str, Tensor]:
    """Return weights of Keras' ResNet-50 with the names and the layout of `resnet50_v1`, with its classifier.

    Biases of convolutions go into the means of the BatchNorm behind them. What Keras does to colours (blue first,
    from 0 to 255) goes into the first kernel.
    """
    try:
        weights = {}
        for keras, norm, conv, bn in _keras_layers():
            weights[f"{conv}.weight"] = tensors[f"{keras}/kernel"].permute(3, 2, 0, 1)
            weights[f"{bn}.weight"], weights[f"{bn}.bias"] = tensors[f"{norm}/gamma"], tensors[f"{norm}/beta"]
            weights[f"{bn}.running_mean"] = tensors[f"{norm}/moving_mean"] - tensors[f"{keras}/bias"]
            weights[f"{bn}.running_var"] = tensors[f"{norm}/moving_variance"]
        weights["fc.weight"], weights["fc.bias"] = tensors["fc1000/kernel"].T, tensors["fc1000/bias"]
    except KeyError as error:
        raise InputError(f"{title} does not hold Keras' ResNet-50: {error} is missing; give another") from error
    scale = torch.tensor([255 * std for std in KERAS_STD])[:, None, None]
    weights["conv1.weight"] = weights["conv1.weight"].flip(1) * scale
    return {name: x.contiguous() for name, x in weights.items()}


def _keras_layers() -> list[tuple[str, str, str, str]]:
    """Return Keras' names of each convolution and its BatchNorm, and timm's names of both."""
    layers = [("conv1", "bn_conv1", "conv1", "bn1")]
    for stage, depth in enumerate(_KERAS_DEPTHS, 1):
        for index in range(depth):
            block, own = f"{stage + 1}{'abcdef'[index]}_branch", f"layer{stage}.{index}"
            if index == 0:
                layers.append((f"res{block}1", f"bn{block}1", f"{own}.downsample.0", f"{own}.downsample.1"))
            for n, letter in enumerate("abc", 1):
                layers.append((f"res{block}2{letter}", f"bn{block}2{letter}", f"{own}.conv{n}", f"{own}.bn{n}"))
    return layers
