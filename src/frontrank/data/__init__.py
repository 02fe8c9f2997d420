"""What a user has on disk: embeddings, labels and ids, read without ever unpickling anything."""

from frontrank.data.embedding_files import EmbeddingFile, check_ids, read_embeddings, read_labels

__all__ = ["EmbeddingFile", "check_ids", "read_embeddings", "read_labels"]
