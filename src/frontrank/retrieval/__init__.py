"""Search: an index over three engines; adapters, whitening, query expansion, re-ranking, clusters."""

from frontrank.retrieval.adapter import Adapter
from frontrank.retrieval.clusters import kmeans_labels
from frontrank.retrieval.engine import Hits
from frontrank.retrieval.expansion import augment_database, expand_queries
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Condition, Item, parse_filter
from frontrank.retrieval.neighbours import nearest
from frontrank.retrieval.rerank import rerank
from frontrank.retrieval.whitening import Whitening

__all__ = [
    "Adapter",
    "Condition",
    "Hits",
    "Index",
    "Item",
    "Whitening",
    "augment_database",
    "expand_queries",
    "kmeans_labels",
    "nearest",
    "parse_filter",
    "rerank",
]
