"""The backbones of a detector by name, each with a feature pyramid on top: torchvision's, timm's, and a small one."""

import contextlib
from collections import OrderedDict
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.resnet import Bottleneck, ResNet
from torchvision.ops.feature_pyramid_network import FeaturePyramidNetwork, LastLevelMaxPool

from frontrank.detection.small_backbone import CHANNELS, SmallBackbone
from frontrank.errors import InputError

SMALL = "small"
TIMM = "timm."  # before a name of timm
OF_TIMM_ONLY = "resnext101_32x4d"  # RaMBO's X101, which torchvision can build but has no weights of
RESNETS = (
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnext50_32x4d"),
    *(OF_TIMM_ONLY, "resnext101_32x8d", "resnext101_64x4d", "wide_resnet50_2", "wide_resnet101_2"),
)
MOBILE = {  # layers at 1/4, 1/8, 1/16, 1/32
    **{"mobilenet_v2": (2, 4, 7, 18), "mobilenet_v3_large": (2, 4, 7, 16), "mobilenet_v3_small": (1, 2, 4, 12)}
}
_PROBE = 256  # side of the picture that tells how much smaller each map is
_STRIDES = (4, 8, 16, 32)  # of maps that a pyramid is built on


class Pyramid(nn.Module):
    """A feature pyramid on a body that gives a list of maps."""

    def __init__(self, body: nn.Module, widths: list[int], channels: int) -> None:
        super().__init__()
        self.body = body
        self.fpn = FeaturePyramidNetwork(widths, channels, LastLevelMaxPool())
        self.out_channels = channels

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return self.fpn(OrderedDict((str(place), each) for place, each in enumerate(self.body(images))))


def build_backbone(name: str, channels: int) -> nn.Module:
    """The backbone of this name with random weights; `body` is what pretrained weights are for, `fpn` the pyramid."""
    if name == SMALL:
        return Pyramid(SmallBackbone(), list(CHANNELS), channels)
    if name.startswith(TIMM):
        return _of_timm(name.removeprefix(TIMM), channels)
    if name in RESNETS:
        body = ResNet(Bottleneck, [3, 4, 23, 3], groups=32, width_per_group=4) if name == OF_TIMM_ONLY else _plain(name)
        widths = [body.inplanes // 8 * 2**place for place in range(4)]
        return BackboneWithFPN(body, {f"layer{place + 1}": str(place) for place in range(4)}, widths, channels)
    if name in MOBILE:
        layers = _plain(name).features
        widths = [layers[place].out_channels for place in MOBILE[name]]
        return BackboneWithFPN(layers, {str(place): str(n) for n, place in enumerate(MOBILE[name])}, widths, channels)
    known = [SMALL, *RESNETS, *MOBILE]
    near = get_close_matches(name, known, 1)
    remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}, and {TIMM}NAME of timm"
    raise InputError(f"backbone {name!r} is not known; {remedy}")


def strides_of(backbone: nn.Module) -> dict[str, int]:
    """How many pixels apart the places of each map are, by the map's name."""
    mode = backbone.training
    backbone.eval()
    try:
        with torch.no_grad():
            maps: Mapping[str, Tensor] = backbone(torch.zeros(1, 3, _PROBE, _PROBE))
    finally:
        backbone.train(mode)
    return {name: round(_PROBE / each.shape[-1]) for name, each in maps.items()}


def freeze_first_layers(backbone: nn.Module, name: str, trainable: int) -> None:
    """Leave all but the last `trainable` of a ResNet's five parts (stem, layer1 .. layer4) as they are.

    Other backbones are trained as a whole.
    """
    if name not in RESNETS:
        return
    trained = ("layer4", "layer3", "layer2", "layer1", ("conv1", "bn1"))[:trainable]
    starts = tuple(start for each in trained for start in ([each] if isinstance(each, str) else each))
    for parameter_name, parameter in backbone.get_submodule("body").named_parameters():
        parameter.requires_grad_(parameter_name.startswith(starts) if starts else False)


def _plain(name: str) -> Any:
    return models.get_model(name, weights=None)


def _of_timm(name: str, channels: int) -> Pyramid:
    try:
        import timm
    except ImportError:
        raise InputError(f"backbone {TIMM}{name} needs timm; pip install 'frontrank[train]'") from None
    if not timm.is_model(name):
        near = ", ".join(get_close_matches(name, timm.list_models(), 3, 0.4)) or "none"
        raise InputError(f"backbone {TIMM}{name} is not a model of timm; nearest: {near}")
    said = ""
    with contextlib.suppress(RuntimeError, AttributeError, TypeError):
        body: Any = timm.create_model(name, pretrained=False, features_only=True)
        reductions = body.feature_info.reduction()
        places = [place for place, each in enumerate(reductions) if each in _STRIDES]
        if len({reductions[place] for place in places}) > 1:
            body = timm.create_model(name, pretrained=False, features_only=True, out_indices=tuple(places))
            return Pyramid(body, body.feature_info.channels(), channels)
        said = ", being all of one size"
    raise InputError(f"backbone {TIMM}{name} gives no maps for a pyramid{said}; take a convolutional one")
