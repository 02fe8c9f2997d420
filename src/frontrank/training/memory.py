"""A memory of past embeddings: a gallery larger than the batch, at no cost in activations."""

from collections.abc import Mapping

import torch
from torch import Tensor

from frontrank.errors import InputError, InputTypeError


class EmbeddingMemory:
    """The latest `size` embeddings and their labels, first in, first out.

    size: in items. RaMBO's memory of the last tau batches (Sec. 4.3, there of scores) is size = tau * batch size.
    dim:  of the embeddings; None takes it from the first that are added

    `gallery` puts the batch before the memory. Gradients reach the batch only, as queries and as gallery; what is
    remembered is what the weights gave at its time. This is the cross-batch memory of X. Wang, H. Zhang, W. Huang,
    M. R. Scott: Cross-Batch Memory for Embedding Learning, CVPR 2020, for any loss. Several processes remember the
    same as long as each adds the batch of all of them.

    >>> memory = EmbeddingMemory(size=3)
    >>> memory.add(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([5, 6]))
    >>> memory.add(torch.tensor([[0.6, 0.8], [0.8, 0.6]]), torch.tensor([7, 8]))
    >>> embeddings, labels, candidates = memory.gallery(torch.tensor([[0.0, 1.0]]), torch.tensor([9]))
    >>> labels, candidates
    (tensor([9, 6, 7, 8]), tensor([[False,  True,  True,  True]]))
    """

    def __init__(self, size: int, dim: int | None = None) -> None:
        for name, value in (("size", size), ("dim", 1 if dim is None else dim)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a whole number, at least 1, got {value!r}")
        self.size = size
        self.dim = dim
        self._embeddings = torch.empty(0, dim or 0)
        self._labels = torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self._labels)

    def __repr__(self) -> str:
        return f"EmbeddingMemory(size={self.size}, dim={self.dim}), {len(self)} held"

    def add(self, embeddings: Tensor, labels: Tensor) -> None:
        """Remember a batch [item, dim], [item]; the oldest beyond `size` are forgotten. Halves are kept in float32."""
        embeddings, labels = self._checked(embeddings.detach(), labels.detach())
        self.dim = embeddings.shape[1]
        first = max(0, len(self) - max(0, self.size - len(labels)))
        past = [self._embeddings[first:].to(embeddings)] if len(self) else []
        self._embeddings = torch.cat([*past, embeddings[-self.size :]])
        self._labels = torch.cat([self._labels[first:].to(labels.device), labels[-self.size :]])

    def gallery(
        self, embeddings: Tensor, labels: Tensor, include_query: bool = False
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """(ref_emb, ref_labels, candidates) of a loss whose queries are a batch: the batch, then the memory.

        candidates: boolean [query, gallery], which keeps every query out of its own list; None with include_query
        """
        wide, labels = self._checked(embeddings, labels)
        ref_emb = torch.cat([wide, self._embeddings.to(wide)]) if len(self) else wide
        ref_labels = torch.cat([labels, self._labels.to(labels.device)])
        if include_query:
            return ref_emb, ref_labels, None
        candidates = torch.ones(len(labels), len(ref_labels), dtype=torch.bool, device=embeddings.device)
        return ref_emb, ref_labels, candidates.fill_diagonal_(False)

    def state_dict(self) -> dict[str, Tensor]:
        """What is held, oldest first."""
        return {"embeddings": self._embeddings.clone(), "labels": self._labels.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Hold what another memory held; the newest of it where that one was larger."""
        if set(state) != {"embeddings", "labels"}:
            raise InputError(f"state of a memory must have embeddings and labels, got {sorted(state)}")
        again = EmbeddingMemory(self.size, self.dim)
        if len(state["labels"]):
            again.add(state["embeddings"], state["labels"])
        self.__dict__ = again.__dict__

    def _checked(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if embeddings.dim() != 2:
            raise InputError(f"embeddings must have the shape (items, dimensions), got {tuple(embeddings.shape)}")
        if not embeddings.is_floating_point():
            raise InputTypeError(f"embeddings must be floating point, got {embeddings.dtype}; use embeddings.float()")
        if labels.is_floating_point() or labels.is_complex():
            raise InputTypeError(f"labels must be whole numbers, got {labels.dtype}; use labels.long()")
        if labels.shape != embeddings.shape[:1]:
            raise InputError(
                f"labels has the shape {tuple(labels.shape)} but embeddings has {len(embeddings)} rows; "
                "give one label per row"
            )
        if self.dim is not None and embeddings.shape[1] != self.dim:
            raise InputError(
                f"embeddings has {embeddings.shape[1]} dimensions but the memory has {self.dim}; use a new memory"
            )
        wide = embeddings if embeddings.dtype == torch.float64 else embeddings.float()
        return wide, labels.to(embeddings.device, torch.int64)
