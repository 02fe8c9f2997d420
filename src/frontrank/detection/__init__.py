"""Object detection: finding and naming things in pictures, trained with the AP loss of RaMBO or with cross-entropy."""

from frontrank.detection.classifier_loss import ProposalAP
from frontrank.detection.evaluation import Detections, evaluate_detections
from frontrank.detection.finding import find_objects
from frontrank.detection.model import Detector, DetectorSettings
from frontrank.detection.reading import read_scenes
from frontrank.detection.scenes import SceneTable

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
