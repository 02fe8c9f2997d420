"""Models: a network of timm, a pooling and a head, that turn images into embeddings; saved, loaded and exported."""

from frontrank.models.embedder import Embedder, Settings
from frontrank.models.pooling import Pooling, gem, rmac

__all__ = ["Embedder", "Pooling", "Settings", "gem", "rmac"]
