"""Object detection: finding and naming things in pictures, trained with the AP loss of RaMBO or with cross-entropy.

The names below are imported when they are used, so that `frontrank.detection.settings` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from frontrank.detection.data import SceneTable, read_scenes
    from frontrank.detection.evaluation import Detections, evaluate_detections
    from frontrank.detection.model import Detector, DetectorSettings, ProposalAP, find_objects

__all__ = [
    "Detections",
    "Detector",
    "DetectorSettings",
    "ProposalAP",
    "SceneTable",
    "evaluate_detections",
    "find_objects",
    "read_scenes",
]

_MODULES = {
    **dict.fromkeys(("SceneTable", "read_scenes"), "data"),
    **dict.fromkeys(("Detections", "evaluate_detections"), "evaluation"),
    **dict.fromkeys(("Detector", "DetectorSettings", "ProposalAP", "find_objects"), "model"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'frontrank.detection' has no attribute {name!r}")
    return getattr(import_module(f"frontrank.detection.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
