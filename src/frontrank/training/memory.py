"""A memory of past embeddings: a second gallery beside the batch, at no cost in activations."""

from collections.abc import Mapping

import torch
from torch import Tensor

from frontrank.checks import check_integer
from frontrank.errors import InputError, InputTypeError
from frontrank.losses.batch import read_labels_of_rows


class EmbeddingMemory:
    """The latest `size` embeddings and their labels, first in, first out.

    size: number of items. RaMBO's memory of the last tau batches (Sec. 4.3, there of scores) is tau * batch size.
    dim:  dimension of the embeddings; None takes it from the first ones

    The memory is a gallery of its own: the queries of a batch rank the batch, and they rank the memory. In one list of
    both, a model could rank the batch first by moving away from its past, without telling classes apart. Gradients
    reach the batch only; past embeddings stay as the weights of their time computed them. This is the cross-batch
    memory of X. Wang, H. Zhang, W. Huang, M. R. Scott: Cross-Batch Memory for Embedding Learning, CVPR 2020, for any
    loss. Several processes have the same memory as long as each adds the batch of all of them.

    >>> memory = EmbeddingMemory(size=3)
    >>> memory.add(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([5, 6]))
    >>> memory.add(torch.tensor([[0.6, 0.8], [0.8, 0.6]]), torch.tensor([7, 8]))
    >>> embeddings, labels = memory.gallery(torch.tensor([[0.0, 1.0]]))
    >>> labels
    tensor([6, 7, 8])
    >>> memory.share_with_positive(torch.tensor([5, 8]))
    0.5
    """

    def __init__(self, size: int, dim: int | None = None) -> None:
        self.size = check_integer("size", size, at_least=1)
        self.dim = None if dim is None else check_integer("dim", dim, at_least=1)
        self._embeddings = torch.empty(0, dim or 0)
        self._labels = torch.empty(0, dtype=torch.int64)
        self.has_warned = False  # of few positives, once

    def __len__(self) -> int:
        return len(self._labels)

    def __repr__(self) -> str:
        return f"EmbeddingMemory(size={self.size}, dim={self.dim}), {len(self)} held"

    def add(self, embeddings: Tensor, labels: Tensor) -> None:
        """Add a batch [item, dim], [item] or [item, level], and forget the oldest beyond `size`.

        Half precision becomes float32.
        """
        embeddings, labels = self._check(embeddings.detach(), labels.detach())
        self.dim = embeddings.shape[1]
        first = max(0, len(self) - max(0, self.size - len(labels)))
        past = [self._embeddings[first:].to(embeddings)] if len(self) else []
        if past and self._labels.shape[1:] != labels.shape[1:]:
            raise InputError(
                f"labels has the shape {tuple(labels.shape)}, other levels than the memory; use a new memory"
            )
        self._embeddings = torch.cat([*past, embeddings[-self.size :]])
        past_labels = [self._labels[first:].to(labels.device)] if past else []
        self._labels = torch.cat([*past_labels, labels[-self.size :]])

    def gallery(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """Return ref_emb and ref_labels for a loss whose queries are these embeddings, on their device and as wide."""
        wide, _ = self._check(embeddings, torch.zeros(len(embeddings), dtype=torch.int64))
        return self._embeddings.to(wide), self._labels.to(wide.device)

    def share_with_positive(self, labels: Tensor, graded: bool = False) -> float:
        """Return the share of queries of which the memory holds a positive.

        graded: at any level of the labels; otherwise at the finest
        """
        if not len(self):
            return 0.0
        queries, known = (x.view(len(x), -1).T for x in (labels, self._labels.to(labels.device)))
        levels = zip(queries, known, strict=True) if graded else [(queries[0], known[0])]
        return float(torch.stack([torch.isin(*each) for each in levels]).any(0).float().mean())

    def state_dict(self) -> dict[str, Tensor]:
        """Return the embeddings and labels in the memory, oldest first."""
        return {"embeddings": self._embeddings.clone(), "labels": self._labels.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over the content of another memory; the newest of it if that one was larger."""
        if set(state) != {"embeddings", "labels"}:
            raise InputError(f"state must have embeddings and labels, got {sorted(state)}")
        loaded = EmbeddingMemory(self.size, self.dim)
        if len(state["labels"]):
            loaded.add(state["embeddings"], state["labels"])
        self.__dict__ = loaded.__dict__

    def _check(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if embeddings.dim() != 2:
            raise InputError(f"embeddings must have the shape (items, dimensions), got {tuple(embeddings.shape)}")
        if not embeddings.is_floating_point():
            raise InputTypeError(f"embeddings must be floating point, got {embeddings.dtype}; use embeddings.float()")
        labels = read_labels_of_rows("labels", labels, len(embeddings), "embeddings", embeddings.device)
        if self.dim is not None and embeddings.shape[1] != self.dim:
            raise InputError(
                f"embeddings has {embeddings.shape[1]} dimensions but the memory has {self.dim}; use a new memory"
            )
        wide = embeddings if embeddings.dtype == torch.float64 else embeddings.float()
        return wide, labels
