"""The pure core: scores to ranks of the positives to metrics, and the binned route. Needs torch only."""

from frontrank.ranking.histograms import binned_average_precision, cumulative_histogram, position_slopes
from frontrank.ranking.metrics import (
    AveragePrecision,
    FunctionMetric,
    IntegratedPenalty,
    PairMetric,
    PenalizedNegatives,
    Ranks,
    Recall,
    average_precision,
    map_at_r,
    precision,
    r_precision,
    recall_at,
)
from frontrank.ranking.ranks import Blackbox, Exact, Relaxation, Sigmoid, Slopes
from frontrank.ranking.relevance import LabelRelevance, MatrixRelevance, Positives, Relevance
from frontrank.ranking.stream import Objective, embedding_loss, score_loss, unit_rows

__all__ = [
    "AveragePrecision",
    "Blackbox",
    "Exact",
    "FunctionMetric",
    "IntegratedPenalty",
    "LabelRelevance",
    "MatrixRelevance",
    "Objective",
    "PairMetric",
    "PenalizedNegatives",
    "Positives",
    "Ranks",
    "Recall",
    "Relaxation",
    "Relevance",
    "Sigmoid",
    "Slopes",
    "average_precision",
    "binned_average_precision",
    "cumulative_histogram",
    "embedding_loss",
    "map_at_r",
    "position_slopes",
    "precision",
    "r_precision",
    "recall_at",
    "score_loss",
    "unit_rows",
]
