"""Frontrank: train image search that puts the right images first."""

from frontrank import evaluation, ranking
from frontrank.config import TrainConfig
from frontrank.data import AllClassesBatches, BalancedBatches, CategoryBatches, ImageTable
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
from frontrank.models import Embedder
from frontrank.retrieval import Index, Item, Whitening, augment_database, expand_queries, rerank
from frontrank.training import EmbeddingMemory, embed_table, gather, multistage_backward
from frontrank.training.run import resume, train

__version__ = "0.1.0"

__all__ = [
    "PNP",
    "AllClassesBatches",
    "BalancedBatches",
    "BlackboxAP",
    "BlackboxRecall",
    "CategoryBatches",
    "ClassifierAP",
    "Embedder",
    "EmbeddingMemory",
    "FastAP",
    "FrontrankError",
    "ImageTable",
    "Index",
    "Item",
    "QuantizedAP",
    "RankLoss",
    "Report",
    "SmoothAP",
    "TrainConfig",
    "Whitening",
    "augment_database",
    "compare",
    "embed_table",
    "evaluate",
    "evaluate_revisited",
    "evaluate_scores",
    "evaluation",
    "expand_queries",
    "gather",
    "multistage_backward",
    "protocols",
    "ranking",
    "rerank",
    "resume",
    "train",
]
