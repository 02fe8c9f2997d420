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
    "data": ("SceneTable", "read_scenes"),
    "evaluation": ("Detections", "evaluate_detections"),
    "model": ("Detector", "DetectorSettings", "ProposalAP", "find_objects"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"frontrank.detection.{module}"), name)
    raise AttributeError(f"module 'frontrank.detection' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
