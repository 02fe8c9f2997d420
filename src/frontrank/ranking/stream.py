"""One pass over blocks of queries: the loss and its gradient together, the score matrix never held.

Queries are independent given the embeddings. For a block of them the pass computes the scores, the loss and
the slopes in the scores, adds what they mean for the embeddings, and drops the block. Only the gradient with
respect to the embeddings is kept; backward scales it. So the gradient is linear in the incoming one, whatever
the relaxation, and a graph can be used twice.

Where the batch is its own gallery and its classes are small, the score of (a, b) is that of (b, a), so a pair of
blocks is multiplied back once for both directions: two thirds of the multiplications.

Processes that share a loss score a part of the queries of each block, and tell each other the few numbers that describe
their slopes: each has its part of the multiplications.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from frontrank.ranking.ranks import ItemSlopes, Slopes
from frontrank.ranking.relevance import LabelRelevance, Positives, Relevance
from frontrank.ranking.shares import current_share, own_queries
from frontrank.ranking.steps import FEW
from frontrank.ranking.tiles import tiling_of


class Objective(Protocol):
    """A loss for each query of a few."""

    def __call__(self, scores: Tensor, positives: Positives, weights: Tensor | None) -> tuple[Tensor, Slopes | None]:
        """The loss of each query [query] from its scores [query, gallery], which are used up.

        If weights [query] are given, also the slopes of (losses * weights).sum(), and the scores are left
        prepared for them; None where there is no gradient.
        """
        ...


def embedding_loss(
    embeddings: Tensor, gallery: Tensor | None, relevance: Relevance, objective: Objective, weights: Tensor
) -> Tensor:
    """Sum over queries of weight x objective on cosine scores, differentiable in both embeddings.

    embeddings: [query, dim]; gallery: [item, dim], or None if the queries are their own gallery
    weights:    [query], for the queries that have a positive; others are not looked at
    """
    return _OnePass.apply(embeddings, gallery, relevance, objective, weights, torch.is_grad_enabled())


def score_loss(scores: Tensor, relevance: Relevance, objective: Objective, weights: Tensor) -> Tensor:
    """The same for given scores [query, gallery], differentiable in them."""
    return _OnePassOfScores.apply(scores, relevance, objective, weights, torch.is_grad_enabled())


class _OnePass(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        embeddings: Tensor,
        gallery: Tensor | None,
        relevance: Relevance,
        objective: Objective,
        weights: Tensor,
        grad_enabled: bool,
    ) -> Tensor:
        wants = [grad_enabled and needed for needed in ctx.needs_input_grad[:2]]
        with torch.autocast(embeddings.device.type, enabled=False):
            if gallery is not None:
                total, grads = _with_gallery(embeddings, gallery, relevance, objective, weights, wants)
            else:
                total, grads = _among_themselves(embeddings, relevance, objective, weights, wants[0])
        ctx.save_for_backward(*grads)
        ctx.dtypes = [x.dtype for x in (embeddings, gallery) if x is not None]
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grads: list[Tensor | None] = [None] * 6
        for i, (saved, dtype) in enumerate(zip(ctx.saved_tensors, ctx.dtypes, strict=False)):
            if ctx.needs_input_grad[i]:
                grads[i] = (saved * grad).to(dtype)
        return tuple(grads)


class _OnePassOfScores(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, relevance: Relevance, objective: Objective, weights: Tensor, grad_enabled: bool
    ) -> Tensor:
        wants = grad_enabled and ctx.needs_input_grad[0]
        with torch.autocast(scores.device.type, enabled=False):
            wide = _wide(scores)
            total, grads = wide.new_zeros(()), torch.zeros_like(wide) if wants else wide.new_empty(0)
            for block in _blocks(relevance, wide.shape[1]):
                of_block = wide.index_select(0, block)
                out = torch.empty_like(of_block) if wants else None
                loss, has_gradient = _block(of_block, relevance.positives(block), objective, weights[block], out)
                total += loss
                if out is not None and has_gradient:
                    grads.index_copy_(0, block, out)
        ctx.save_for_backward(grads)
        ctx.dtype = scores.dtype
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return (ctx.saved_tensors[0] * grad).to(ctx.dtype), None, None, None, None


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _blocks(relevance: Relevance, items: int) -> tuple[Tensor, ...]:
    """Blocks of the queries that have a positive; those with as many of them are together: little padding."""
    counts = relevance.counts
    rows = tiling_of(counts).block_rows(items)
    if not relevance.used:
        return ()
    if relevance.used == len(counts) <= rows:  # one block, in any order
        return (torch.arange(len(counts), device=counts.device),)
    used = counts.nonzero()[:, 0]
    return used[counts[used].argsort(stable=True)].split(rows)


def _block(
    scores: Tensor, positives: Positives, objective: Objective, weights: Tensor, out: Tensor | None
) -> tuple[Tensor, bool]:
    """Return the weighted loss of a block of queries, and whether it has a gradient, which is written to out."""
    losses, slopes = objective(scores, positives, None if out is None else weights)
    if slopes is not None and out is not None:
        slopes.of_items.add_(scores, out.zero_())
        out.scatter_add_(1, positives.index, slopes.of_positives)
    return losses @ weights, slopes is not None


def _with_gallery(
    embeddings: Tensor,
    gallery: Tensor,
    relevance: Relevance,
    objective: Objective,
    weights: Tensor,
    wants: list[bool],
) -> tuple[Tensor, list[Tensor]]:
    """The loss of queries against a gallery of their own, and the gradients of both.

    A gallery may be too large to copy: not its rows but their products are scaled to length 1.
    """
    relevance = own_queries(relevance)
    queries, undo_queries = unit_rows(embeddings)
    items, scale, shrink = _scale_rows(gallery)
    total = queries.new_zeros(())
    grads = [torch.zeros_like(x) if want else x.new_empty(0) for x, want in zip((queries, items), wants, strict=True)]
    blocks = _blocks(relevance, len(items))
    buffers = items.new_empty(2, len(blocks[0]) if blocks else 0, len(items))
    for block in blocks:
        of_block = queries[block]
        scores, slopes = buffers[:, : len(block)]
        torch.mm(of_block, items.T, out=scores).mul_(scale.T)
        out = slopes if any(wants) else None
        loss, has_gradient = _block(scores, relevance.positives(block), objective, weights[block], out)
        total += loss
        if out is None or not has_gradient:
            continue
        slopes *= scale.T
        if wants[0]:
            grads[0][block] = slopes @ items
        if wants[1]:
            grads[1].addmm_(slopes.T, of_block)
    if wants[0]:
        undo_queries(grads[0])
    if wants[1]:
        for rows in _slices(items):
            projected = _project_(grads[1][rows], items[rows] * scale[rows])
            if shrink is not None:
                projected.mul_(shrink[rows])
    return total, grads


def _among_themselves(
    embeddings: Tensor, relevance: Relevance, objective: Objective, weights: Tensor, wants: bool
) -> tuple[Tensor, list[Tensor]]:
    """The loss of a batch that is its own gallery, and its gradient."""
    share = current_share()
    parts = 1 if share is None else share.parts
    if not isinstance(relevance, LabelRelevance) or relevance.most > FEW or relevance.used < parts:
        total, grads = _with_gallery(embeddings, embeddings, relevance, objective, weights, [wants, wants])
        return total, [grads[0].add_(grads[1])] if wants else []
    order, relevance, bounds = relevance.classes_together(parts * tiling_of(embeddings).block_rows(len(embeddings)))
    if len(bounds) > 1 and bounds[-1][1] - bounds[-1][0] < parts:  # every share has a row of every block
        bounds[-2:] = [(bounds[-2][0], bounds[-1][1])]
    items, undo = unit_rows(embeddings if order is None else embeddings[order])
    weights = weights if order is None else weights[order]
    total = items.new_zeros(())
    grad = torch.zeros_like(items) if wants else items.new_empty(0)
    earlier: list[tuple[slice, ItemSlopes]] = []
    longest = max((-(-(j - i) // parts) for i, j in bounds), default=0)
    buffers = items.new_empty(2 if wants else 1, longest, len(items))
    for start, stop in bounds:
        block, before = slice(start, stop), slice(0, start)
        own = block if share is None else share.rows(start, stop)
        here = slice(own.start - start, own.stop - start)
        scores = torch.mm(items[own], items.T, out=buffers[0, : own.stop - own.start])
        of_block = relevance.positives(torch.arange(start, stop, device=items.device))
        positives = of_block if share is None else of_block.rows(here)
        losses, slopes = objective(scores, positives, weights[own] if wants else None)
        total += losses @ weights[own]
        if slopes is None:
            continue
        # slopes of pairs (these queries, seen): as queries, and as items of the other queries seen
        pairs = buffers[1, : own.stop - own.start, :stop].zero_()
        slopes.of_items.add_(scores[:, :stop], pairs)
        for queries, of_items in earlier:
            of_items.add_(scores[:, queries], pairs[:, queries], dim=1)
        pairs.scatter_add_(1, positives.index, slopes.of_positives)
        of_items = slopes.of_items
        if share is None:
            pairs[:, block].add_(pairs[:, block].T.contiguous())
        else:
            join = partial(share.join, rows=here, count=stop - start)
            of_items = of_items.of_all(join)
            of_items.add_(scores[:, block], pairs[:, block], dim=1)
            _add_as_items_(pairs[:, block], own, of_block, join(slopes.of_positives))
        grad[own].addmm_(pairs, items[:stop])
        if start:
            grad[before].addmm_(pairs[:, before].T, items[own])
        earlier.append((block, of_items))
    if not wants:
        return total, []
    grad = undo(grad)
    return total, [grad if order is None else torch.empty_like(grad).index_copy_(0, order, grad)]


def _add_as_items_(pairs: Tensor, own: slice, positives: Positives, slopes: Tensor) -> None:
    """Add the slopes of positives [query, positive] to their pairs with the queries [item, query], for own items."""
    is_own = (positives.index >= own.start) & (positives.index < own.stop)
    item = (positives.index - own.start).clamp_(0, len(pairs) - 1)
    pairs.scatter_add_(0, item.T, (slopes * is_own).T)


def unit_rows(x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Rows of length 1, in float32 or wider, and the function that takes a gradient back through it, in place.

    Right for rows of any finite length. A row of zeros stays zero. Rows shorter than sqrt(tiny) of their dtype
    receive no gradient: it would be larger than the dtype can hold.
    """
    raw, scale, shrink = _scale_rows(x)
    unit = raw * scale

    def undo(grad: Tensor) -> Tensor:
        back = scale if shrink is None else scale * shrink
        for rows in _slices(unit):
            _project_(grad[rows], unit[rows]).mul_(back[rows])
        return grad

    return unit, undo


def _scale_rows(x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """(raw, scale, shrink): raw * scale has rows of length 1, and d raw / d x is shrink; the latter two [row, 1].

    raw is x itself, and shrink None, unless squares of its elements would leave the range of its dtype.
    """
    raw = _wide(x)
    length = torch.linalg.vector_norm(raw, dim=1, keepdim=True)
    least = torch.finfo(x.dtype).tiny ** 0.5
    shortest, longest = torch.stack(length.aminmax()).tolist() if len(x) else (1, 1)
    if shortest >= least and longest <= 1 / least:
        return raw, length.reciprocal_(), None
    largest = raw.abs().amax(1, keepdim=True)
    raw = raw / largest.masked_fill(largest == 0, 1)
    length = torch.linalg.vector_norm(raw, dim=1, keepdim=True)
    short = largest < least
    return raw, 1 / length.masked_fill(length == 0, 1), (1 / largest.masked_fill(short, 1)).masked_fill_(short, 0)


def _slices(rows: Tensor) -> list[slice]:
    size = max(128, tiling_of(rows).tile // (4 * rows.shape[1]))  # what is made for one stays in the cache
    return [slice(i, i + size) for i in range(0, len(rows), size)]


def _project_(grad: Tensor, rows: Tensor) -> Tensor:
    """Take the part of a gradient along its row of length 1 out: the length has no influence."""
    return grad.addcmul_(rows, torch.linalg.vecdot(grad, rows)[:, None], value=-1)
