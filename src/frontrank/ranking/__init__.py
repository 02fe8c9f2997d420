"""The pure core: scores to ranks of the positives to metrics, and the binned route. Needs torch only."""

from frontrank.ranking.exact import exact_ranks
from frontrank.ranking.histograms import Bins, binned_average_precision, cumulative_histogram, position_slopes
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
    precision_at,
    r_precision,
    recall_at,
    reciprocal_rank,
    trapezoid_average_precision,
)
from frontrank.ranking.ranks import Blackbox, Exact, Relaxation, Sigmoid, Slopes
from frontrank.ranking.relevance import LabelRelevance, Lists, MatrixRelevance, Positives, Relevance
from frontrank.ranking.stream import Objective, embedding_loss, score_loss, unit_rows
from frontrank.ranking.vectors import Chunk, Vectors, exact_scores, slack

__all__ = [
    "AveragePrecision",
    "Bins",
    "Blackbox",
    "Chunk",
    "Exact",
    "FunctionMetric",
    "IntegratedPenalty",
    "LabelRelevance",
    "Lists",
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
    "Vectors",
    "average_precision",
    "binned_average_precision",
    "cumulative_histogram",
    "embedding_loss",
    "exact_ranks",
    "exact_scores",
    "map_at_r",
    "position_slopes",
    "precision",
    "precision_at",
    "r_precision",
    "recall_at",
    "reciprocal_rank",
    "score_loss",
    "slack",
    "trapezoid_average_precision",
    "unit_rows",
]
