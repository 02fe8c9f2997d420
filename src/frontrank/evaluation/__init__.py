"""Exact evaluation: metrics of embeddings over full rankings, protocols of the data sets, reports."""

from frontrank.evaluation import protocols
from frontrank.evaluation.compare import Comparison, Difference, compare, table_of
from frontrank.evaluation.diagnostics import APError, BatchMAP, ap_error, minibatch_map
from frontrank.evaluation.evaluate import evaluate, evaluate_scores
from frontrank.evaluation.report import Report
from frontrank.evaluation.revisited import GroundTruth, evaluate_revisited, read_ground_truth

__all__ = [
    "APError",
    "BatchMAP",
    "Comparison",
    "Difference",
    "GroundTruth",
    "Report",
    "ap_error",
    "compare",
    "evaluate",
    "evaluate_revisited",
    "evaluate_scores",
    "minibatch_map",
    "protocols",
    "read_ground_truth",
    "table_of",
]
