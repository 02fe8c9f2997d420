"""Object detection: finding and naming things in pictures, trained with the AP loss of RaMBO or with cross-entropy."""

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
