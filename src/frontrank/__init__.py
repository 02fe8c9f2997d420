"""Frontrank: train image search that puts the right images first."""

from frontrank import evaluation, ranking
from frontrank.errors import FrontrankError
from frontrank.evaluation import Report, compare, evaluate, evaluate_revisited, evaluate_scores, protocols
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
from frontrank.retrieval import Whitening, augment_database, expand_queries, rerank

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
    "Report",
    "SmoothAP",
    "Whitening",
    "augment_database",
    "compare",
    "evaluate",
    "evaluate_revisited",
    "evaluate_scores",
    "evaluation",
    "expand_queries",
    "protocols",
    "ranking",
    "rerank",
]
