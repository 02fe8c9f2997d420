"""Exact evaluation: metrics of embeddings over full rankings, protocols of the data sets, reports."""

from frontrank.evaluation.compare import Comparison, Difference, compare, table_of
from frontrank.evaluation.evaluate import evaluate, evaluate_scores
from frontrank.evaluation.report import Report

__all__ = ["Comparison", "Difference", "Report", "compare", "evaluate", "evaluate_scores", "table_of"]
