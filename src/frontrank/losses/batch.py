"""Checks of the arguments of a loss, before any computation, and who is relevant to whom."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from frontrank.errors import InputError, InputTypeError
from frontrank.ranking import LabelRelevance, LevelRelevance, MatrixRelevance, Relevance, is_nested
from frontrank.ranking.relevance import MOST_LEVELS

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Batch:
    """Embeddings with their relevance; `gallery` is None where the batch is its own gallery."""

    embeddings: Tensor
    gallery: Tensor | None
    labels: Tensor | None
    relevance: Relevance


def read_batch(
    embeddings: Tensor,
    labels: Tensor | None,
    ref_emb: Tensor | None,
    ref_labels: Tensor | None,
    relevant: Tensor | None,
    candidates: Tensor | None,
    include_query: bool | Literal["negative"] = False,
    graded: bool = False,
    by_level: bool = False,
) -> Batch:
    """Check the arguments of a loss and work out who is relevant to whom.

    include_query:    "negative" keeps each query in its own list, but not as a positive
    graded, by_level: whether the loss looks at grades, and counts each; without grades the finest level is used
    """
    _check_embeddings("embeddings", embeddings)
    rows = len(embeddings)
    if ref_emb is not None:
        _check_embeddings("ref_emb", ref_emb)
        if ref_emb.shape[1] != embeddings.shape[1]:
            raise InputError(
                f"ref_emb has {ref_emb.shape[1]} dimensions and embeddings has {embeddings.shape[1]}; "
                "both must come from the same model"
            )
        if ref_emb.device != embeddings.device:
            raise InputError(
                f"ref_emb is on {ref_emb.device} and embeddings on {embeddings.device}; move one to the other"
            )
        if (ref_emb.dtype == torch.float64) != (embeddings.dtype == torch.float64):
            raise InputTypeError(
                f"ref_emb is {ref_emb.dtype} and embeddings is {embeddings.dtype}; convert one: .double() or .float()"
            )
    elif ref_labels is not None:
        raise InputError("ref_labels was given without ref_emb; give both, or neither")
    columns = rows if ref_emb is None else len(ref_emb)
    device = embeddings.device
    if labels is not None:
        labels = _labels("labels", labels, rows, "embeddings", device)
    if ref_labels is not None:
        ref_labels = _labels("ref_labels", ref_labels, columns, "ref_emb", device)
    if candidates is not None:
        candidates = _mask("candidates", candidates, rows, columns, device)
    own = ref_emb is None and include_query is not True
    listed = include_query == "negative"
    if relevant is not None:
        relevant = _relevant(relevant, rows, columns, device, graded, by_level)
        return Batch(embeddings, ref_emb, labels, MatrixRelevance(relevant, candidates, own, listed, by_level))
    if labels is None:
        raise InputError("labels is missing; give labels, or a matrix as relevant")
    if ref_emb is not None and ref_labels is None:
        raise InputError("ref_emb was given without ref_labels; give both, or a matrix as relevant")
    gallery_labels = labels if ref_labels is None else ref_labels
    if labels.shape[1:] != gallery_labels.shape[1:]:
        raise InputError(
            f"labels has the shape {tuple(labels.shape)} and ref_labels {tuple(gallery_labels.shape)}; "
            "both must have the same levels"
        )
    if labels.dim() == 2 and not graded:
        labels, gallery_labels = labels[:, 0], gallery_labels[:, 0]
    if labels.dim() == 1:
        if candidates is None:
            return Batch(embeddings, ref_emb, labels, LabelRelevance(labels, gallery_labels, own, listed))
        same = labels[:, None] == gallery_labels[None, :]
        return Batch(embeddings, ref_emb, labels, MatrixRelevance(same, candidates, own, listed))
    finest = labels[:, 0]
    if candidates is None and is_nested(torch.cat([labels, gallery_labels])):
        return Batch(embeddings, ref_emb, finest, LevelRelevance(labels, gallery_labels, own, by_level))
    grades = sum(a[:, None] == b[None, :] for a, b in zip(labels.T, gallery_labels.T, strict=True))
    return Batch(embeddings, ref_emb, finest, MatrixRelevance(grades.float(), candidates, own, listed, by_level))


def _check_embeddings(name: str, x: Tensor) -> None:
    _check_floats(name, x)
    if x.dim() != 2 or x.shape[1] == 0:
        raise InputError(f"{name} must have the shape (items, dimensions), got {tuple(x.shape)}")
    _check_finite(name, x)


def _check_floats(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise InputTypeError(f"{name} must be a torch tensor, got {type(x).__name__}; use torch.as_tensor({name})")
    if x.dtype not in _FLOATS:
        raise InputTypeError(f"{name} must be floating point, got {x.dtype}; use {name}.float()")


def _check_finite(name: str, x: Tensor) -> None:
    if math.isfinite(x.detach().sum()):  # a sum overflows more easily than it hides a NaN
        return
    if bad := (~torch.isfinite(x)).any(1).nonzero()[:, 0].tolist():
        raise InputError(
            f"{name} of shape {tuple(x.shape)} has NaN or infinite values in {len(bad)} rows (first: {bad[:5]}); "
            "look at the learning rate, mixed precision or the inputs of the model"
        )


def read_labels_of_rows(name: str, labels: Tensor, length: int, of: str, device: torch.device) -> Tensor:
    """Return labels of some rows, of what `of` names, as whole numbers [row] or [row, level] on a device."""
    labels = as_tensor(name, labels, device)
    if labels.dtype.is_floating_point or labels.dtype.is_complex:
        raise InputTypeError(f"{name} must be whole numbers, got {labels.dtype}; use {name}.long()")
    if labels.dim() not in (1, 2) or (labels.dim() == 2 and labels.shape[1] == 0):
        raise InputError(
            f"{name} must have the shape (items,), or (items, levels) with the finest level first, "
            f"got {tuple(labels.shape)}; for several labels per item give a matrix as relevant"
        )
    if len(labels) != length:
        raise InputError(f"{name} has {len(labels)} entries but {of} has {length} rows; give one label per row")
    return labels.long()


def _labels(name: str, labels: Tensor, length: int, of: str, device: torch.device) -> Tensor:
    labels = read_labels_of_rows(name, labels, length, of, device)
    if labels.dim() == 2 and labels.shape[1] > 2 and _is_one_hot(labels):
        raise InputError(
            f"{name} of shape {tuple(labels.shape)} has 0 and 1 only, as if it were one-hot; use {name}.argmax(1), "
            "or give a matrix of who is relevant as relevant"
        )
    return labels


def _is_one_hot(labels: Tensor) -> bool:
    """Whether rows of labels have one 1 and otherwise 0, and could not be classes of nested levels."""
    ones = ((labels == 0) | (labels == 1)).all() & (labels.sum(1) == 1).all()
    return bool(ones) and not is_nested(labels)


def _mask(name: str, mask: Tensor, rows: int, columns: int, device: torch.device) -> Tensor:
    mask = as_tensor(name, mask, device)
    if mask.dtype != torch.bool:
        raise InputTypeError(f"{name} must be boolean, got {mask.dtype}; use {name}.bool()")
    if mask.shape != (rows, columns):
        raise InputError(
            f"{name} must have the shape (queries, gallery) = ({rows}, {columns}), got {tuple(mask.shape)}"
        )
    return mask


def _relevant(relevant: Tensor, rows: int, columns: int, device: torch.device, graded: bool, by_level: bool) -> Tensor:
    """Check a matrix of who is relevant to whom: boolean, or grades >= 0, which stay only if the loss uses them."""
    relevant = as_tensor("relevant", relevant, device)
    if relevant.dtype == torch.bool or relevant.dtype.is_complex or relevant.shape != (rows, columns):
        is_mask = relevant.dtype.is_complex or relevant.dtype == torch.bool
        return _mask("relevant", relevant if is_mask else relevant > 0, rows, columns, device)
    if not relevant.dtype.is_floating_point:
        relevant = relevant.float()
    if not bool((torch.isfinite(relevant) & (relevant >= 0)).all()):
        wrong = relevant[~(torch.isfinite(relevant) & (relevant >= 0))][0].item()
        raise InputError(f"relevant must have grades >= 0, got {wrong}; 0 means not relevant")
    if not graded:
        return relevant > 0
    if by_level and (count := len(relevant.unique())) > MOST_LEVELS + 1:
        raise InputError(
            f"relevant has {count - 1:,} different grades, at most {MOST_LEVELS} can be counted; round them"
        )
    return relevant


def read_scores(
    scores: Tensor, relevant: Tensor, candidates: Tensor | None, graded: bool = False, by_level: bool = False
) -> Relevance:
    """Check given scores [query, gallery] and work out who is relevant to whom."""
    check_scores(scores)
    rows, columns = scores.shape
    relevant = _relevant(relevant, rows, columns, scores.device, graded, by_level)
    if candidates is not None:
        candidates = _mask("candidates", candidates, rows, columns, scores.device)
    return MatrixRelevance(relevant, candidates, own=False, by_level=by_level)


def check_scores(scores: Tensor) -> None:
    """Raise an error if scores are not a matrix of finite floating point numbers."""
    _check_floats("scores", scores)
    if scores.dim() != 2:
        raise InputError(f"scores must be a matrix, got the shape {tuple(scores.shape)}")
    _check_finite("scores", scores)


def as_tensor(name: str, value: object, device: torch.device) -> Tensor:
    """Return a tensor of a tensor, an array or nested lists of numbers."""
    try:
        return torch.as_tensor(value, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputTypeError(
            f"{name} must be a tensor or an array of numbers, all rows of one length, got {type(value).__name__}"
        ) from error
