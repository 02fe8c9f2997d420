"""A network of timm, and its features as maps."""

import contextlib
import difflib
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from frontrank.errors import InputError
from frontrank.models import resnet_v1

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
    resnet_v1.register()
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
