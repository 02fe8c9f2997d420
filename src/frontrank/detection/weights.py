"""First weights of a detector: torchvision's or timm's of ImageNet, those of a package, a file, a saved detector."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torchvision import models

from frontrank.detection.backbones import OF_TIMM_ONLY, TIMM
from frontrank.errors import InputError
from frontrank.models import storage
from frontrank.models.backbone import first_line
from frontrank.models.package_weights import package_weights, source_of
from frontrank.models.weights import WORDS, pretrained_title, quiet_hub, read_weights

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
X101 = f"{OF_TIMM_ONLY}.gluon_in1k"  # of ImageNet alone: what timm takes without a tag has seen more pictures
_COUNTERS = "num_batches_tracked"  # of norms: no weights, and not in all files
_NEW_HEAD = "roi_heads.box_predictor."
_OLD_NAMES = {  # of torchvision's detectors, as in its published files
    r"(fpn\.(?:inner|layer)_blocks\.\d+)\.(weight|bias)$": r"\1.0.\2",
    r"(rpn\.head\.conv)\.(weight|bias)$": r"\1.0.0.\2",
}


def colours_of(backbone: str, weights: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of the colours that weights were trained with."""
    if weights == "package":
        source = source_of(_timm_name(backbone))
        return source.mean, source.std
    if Path(weights).is_dir() and weights not in WORDS:
        settings = storage.read_config(Path(weights), storage.DETECTOR)["settings"]
        return tuple(settings["mean"]), tuple(settings["std"])
    name = _pretrained_name(backbone) if weights != "none" else None
    return _timm_colours(name) if name is not None else (IMAGENET_MEAN, IMAGENET_STD)


def _timm_colours(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Those of timm's pretrained weights; ImageNet's where it does not say."""
    with suppress(ImportError, RuntimeError):  # no timm, or no such model: refused where the network is built
        import timm

        config = timm.get_pretrained_cfg(name)
        if config is not None:
            return tuple(config.mean), tuple(config.std)
    return IMAGENET_MEAN, IMAGENET_STD


def load_weights(network: nn.Module, backbone: str, weights: str) -> str:
    """Put first weights into a detector's network; a sentence of what was loaded."""
    body = network.get_submodule("backbone.body")
    if weights == "none":
        return "random weights"
    if weights == "package":
        source = source_of(_timm_name(backbone))
        _load(body, package_weights(_timm_name(backbone)), str(source.package))
        return f"ImageNet weights of {backbone} from {source}; pyramid and heads start anew"
    if weights == "pretrained":
        tensors, named = _pretrained(backbone, body)
        _load(body, tensors, named)
        return f"{named}; pyramid and heads start anew"
    path = Path(weights)
    if path.is_dir():
        return _load_detector(network, storage.read(path, storage.DETECTOR)[1], weights)
    if not path.is_file():
        raise InputError(
            f"weights {weights!r} is no file or folder; give one that is there, pretrained, package, or none"
        )
    tensors = read_weights(path)
    if any(name.startswith("roi_heads.") for name in tensors):
        return _load_detector(network, tensors, weights)
    _load(body, tensors, weights)
    return f"backbone from {weights}; pyramid and heads start anew"


def _timm_name(backbone: str) -> str:
    if not backbone.startswith(TIMM):
        raise InputError(f"weights package are by timm's names; give backbone {TIMM}NAME, such as timm.mobilenetv2_100")
    return backbone.removeprefix(TIMM)


def _load_detector(network: nn.Module, tensors: Mapping[str, Tensor], named: str) -> str:
    """All weights of another detector; the last layer too, where it has as many classes."""
    for old, new in _OLD_NAMES.items():
        tensors = {re.sub(old, new, name): x for name, x in tensors.items()}
    own = network.state_dict()
    last = [name for name in own if name.startswith(_NEW_HEAD)]
    same = all(name in tensors and tensors[name].shape == own[name].shape for name in last)
    _load(network, {n: x for n, x in tensors.items() if same or n not in last}, named, () if same else (_NEW_HEAD,))
    return f"all of {named}" if same else f"all of {named} but the last layer, which starts anew"


def _load(module: nn.Module, tensors: Mapping[str, Tensor], named: str, anew: tuple[str, ...] = ()) -> None:
    """Load by name all that the module has; what is of a classifier, and the module has not, is left out.

    anew: how names begin that need not be there
    """
    own = module.state_dict()
    missing = [n for n in own if n not in tensors and not n.endswith(_COUNTERS) and not (anew and n.startswith(anew))]
    other = [name for name in own if name in tensors and tensors[name].shape != own[name].shape]
    if missing or other:
        what = f"{len(missing)} tensors are missing ({missing[0]})" if missing else f"{other[0]} has another shape"
        raise InputError(f"{named} does not fit the backbone: {what}; give the weights of this backbone")
    kept = {name: tensors[name] for name in own if name in tensors}
    broken = [name for name, each in kept.items() if not bool(each.isfinite().all())]
    if broken:
        raise InputError(f"{named} has numbers that are not finite, e.g. in {broken[0]}; give other weights")
    module.load_state_dict(kept, strict=False)


def _pretrained_name(backbone: str) -> str | None:
    """What timm calls the pretrained weights of a backbone; None where they are torchvision's."""
    return X101 if backbone == OF_TIMM_ONLY else backbone.removeprefix(TIMM) if backbone.startswith(TIMM) else None


def _pretrained(backbone: str, body: Any) -> tuple[Mapping[str, Tensor], str]:
    """Weights of ImageNet by the names of the backbone's body, and what to call them."""
    if backbone == OF_TIMM_ONLY:
        return _of_timm(X101)
    if backbone.startswith(TIMM):  # some have other names where they give maps
        return _of_timm(backbone.removeprefix(TIMM), features_only=True, out_indices=body.feature_info.out_indices)
    try:
        weights: Any = models.get_model_weights(backbone)["IMAGENET1K_V1"]
    except (ValueError, KeyError):
        raise InputError(f"weights: there are no pretrained ones of {backbone}; give a file, or none") from None
    try:
        tensors = weights.get_state_dict(progress=False, check_hash=True)
    except Exception as error:  # no network, a full disk, a damaged file: torch's hub raises many kinds
        raise _not_had(f"torchvision's {backbone}", error) from error
    if backbone.startswith("mobilenet"):
        tensors = {name.removeprefix("features."): x for name, x in tensors.items()}
    return tensors, f"torchvision's {backbone}.IMAGENET1K_V1"


def _of_timm(name: str, **more: Any) -> tuple[Mapping[str, Tensor], str]:
    import timm

    try:
        with quiet_hub():
            model = timm.create_model(name, pretrained=True, **more)
    except Exception as error:  # timm and the hub's client raise many kinds
        raise _not_had(f"timm's pretrained {name}", error) from error
    return model.state_dict(), pretrained_title(name, model)


def _not_had(what: str, error: Exception) -> InputError:
    return InputError(f"weights: {what} cannot be had ({first_line(error)}); give a file of weights, package, or none")
