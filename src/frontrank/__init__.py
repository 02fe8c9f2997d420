"""Frontrank: train image search that puts the right images first."""

from frontrank import ranking
from frontrank.errors import FrontrankError
from frontrank.losses import (
    PNP,
    BlackboxAP,
    BlackboxRecall,
    ClassifierAP,
    FastAP,
    QuantizedAP,
    RankLoss,
    SmoothAP,
)

__version__ = "0.1.0"

__all__ = [
    "PNP",
    "BlackboxAP",
    "BlackboxRecall",
    "ClassifierAP",
    "FastAP",
    "FrontrankError",
    "QuantizedAP",
    "RankLoss",
    "SmoothAP",
    "ranking",
]
