"""What is done to embeddings before and after a search: whitening, query expansion, re-ranking, clusters."""

from frontrank.retrieval.clusters import kmeans_labels
from frontrank.retrieval.expansion import augment_database, expand_queries
from frontrank.retrieval.neighbours import nearest
from frontrank.retrieval.rerank import rerank
from frontrank.retrieval.whitening import Whitening

__all__ = ["Whitening", "augment_database", "expand_queries", "kmeans_labels", "nearest", "rerank"]
