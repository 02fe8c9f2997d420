"""The exact ranks of the positives at any scale, without a query x gallery matrix.

The scores of the positives are computed first, in float64. Then tiles of scores, some queries by some items, are
multiplied and each item is counted where it stands at or above a positive. The counts are those of float64 arithmetic,
whatever the order of the sums, the sizes of the tiles, the number of threads or the device; scores that float64 cannot
tell apart are ties, and an item tied with a positive stands before it.

Few positives: tiles are multiplied in the dtype of the embeddings and each item is compared with each positive.
Rounding could decide only inside a band of known width around the positive's score; the items there are scored again in
float64. Nothing is masked: what is not in a query's list, and the positives, are taken out of the counts afterwards.

Many positives: such bands would hold too many items. So tiles are multiplied in float64 and rounded to even numbers of
2^-30, which are quick to sort, and the bounds of the positives are sorted among them as odd numbers: the places of the
odd numbers are the counts. What is not a negative is masked. The few items that are rounded to the same number as a
positive are scored again.

Where the queries are their own gallery, a tile of scores serves the queries of its rows and those of its columns:
half of the multiplications.

On a CPU each thread has tiles of its own: most of what is done to one is too small to be shared by threads.
"""

import contextvars
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cache, cached_property, partial
from typing import TypeVar

import torch
from torch import Tensor

from frontrank.progress import progress
from frontrank.ranking.metrics import Ranks
from frontrank.ranking.ranks import count_positives, make_ranks
from frontrank.ranking.relevance import Lists, Positives, Relevance
from frontrank.ranking.shares import current_share, own_queries
from frontrank.ranking.steps import FEW, argsort_rows, odd_places, sort_rows_
from frontrank.ranking.tiles import tiling_of
from frontrank.ranking.vectors import CHUNK, Chunk, Vectors, exact_scores, full_precision, quick_scores, slack

_CELL = 64  # items looked at together: where the highest is below all positives, none is counted
_HELD = 1 << 24  # numbers of the queries' rows held (64 MiB in float32, twice)
_PAIRS = 1 << 23  # positives ranked in one pass over the gallery
_SOME = 64  # beyond FEW, up to here items are compared where few are near the positives; else they are sorted
_SOME_AT_ONCE = 256  # the same on an accelerator, for which sorting tiles takes many waits
_RUN = 2048  # queries, and items, of a tile that is sorted: in longer runs there is less to search
_PROBE = 1024  # items on which the way is chosen, with one of 16 queries
_MOST_COMPARISONS = 8.0  # of an item with positives, where they cost as much as sorting
_OPEN = 500  # comparisons that take as long as one pair scored in float64
_SLAB = 256  # queries multiplied in float64, and sorted, together: few calls, and little beside the tile
_LISTED = 128  # queries whose listed items are multiplied together
_UNIT = 2.0**15  # rows of this length have products in whole numbers of 2^-30
_LOWEST = -(1 << 31)  # below all of these
_FEW_PAIRS = 64  # so few pairs are scored in float64 at once
_REDO = 64  # one comparison of so many left open: cheaper to multiply the tile again in float64
_SHARED = 6  # times as many blocks as processes that share an evaluation ...
_LEAST_SHARED = 128  # ... unless they are smaller than this
_MOST_THREADS = 16  # that have tiles of their own, about 40 MB each; more threads share these
_DENSE = 64  # times as long as a product takes a pair that is scored by itself

Use = Callable[[Tensor, Ranks], None]
T = TypeVar("T")


def exact_ranks(
    queries: Vectors,
    gallery: Vectors | None,
    relevance: Relevance,
    removed: Lists | None,
    use: Use,
    show: bool | None = None,
) -> None:
    """Hand the ranks of every query that has a positive to `use(query indices, ranks)`, a few queries at a time.

    gallery: None if the queries are their own gallery; a query is then not in its own list
    removed: items that are not in a query's list; none of them is a positive
    """
    items = queries if gallery is None else gallery
    with torch.no_grad(), full_precision(queries.device):
        symmetric = gallery is None and len(_groups(relevance.counts)) == 1
        relevance = relevance if symmetric else own_queries(relevance)
        counts = relevance.counts
        groups = _groups(counts)
        work = len(items) ** 2 / 2 if symmetric else len(items) * int((counts > 0).sum())
        with progress("ranking", work, show) as step:
            for rows in groups:
                blocks = _blocks(queries, items, rows, relevance, removed, own=gallery is None, all_=symmetric)
                counting = (
                    _counting_among_themselves(queries, blocks)
                    if symmetric
                    else _counting_in_gallery(queries, items, blocks)
                )
                for pairs in _side_by_side(counting, queries.device):
                    step(pairs)
                if symmetric:
                    blocks = _of_this_share(blocks)
                ranking = (partial(block.ranks, some) for block in blocks for some in block.parts())
                for some, ranks in _side_by_side(ranking, queries.device):
                    use(some, ranks)


def _groups(counts: Tensor) -> list[slice]:
    """Return ranges of queries with about as many positives as are ranked at once."""
    group = (counts.cumsum(0) - counts) // _PAIRS
    edges = [0, *(1 + (group[1:] != group[:-1]).nonzero()[:, 0]).tolist(), len(counts)]
    return [slice(start, stop) for start, stop in itertools.pairwise(edges)]


def _counting_in_gallery(queries: Vectors, gallery: Vectors, blocks: "list[_Block]") -> Iterator[Callable[[], float]]:
    """Count all items of the gallery, read once for as many queries as fit into memory."""
    for loaded in _load_blocks(queries, blocks):
        for where in gallery.chunks():
            items = gallery.read(where)
            for block, rows in loaded:
                size = block.most_items(items)
                for i in range(0, len(items), size):
                    yield partial(_count_, _Tile(rows, items[i : i + size], 0, where.start + i), block)


def _counting_among_themselves(queries: Vectors, blocks: "list[_Block]") -> Iterator[Callable[[], float]]:
    """Count all queries as items of each other, a pair of blocks at a time, those of this share."""
    share, start = current_share(), 0
    starts = [0, *itertools.accumulate(len(block.queries) for block in blocks)]
    turn = itertools.count()  # shares take the pairs in turn
    for loaded in _load_blocks(queries, blocks):
        for j, other in enumerate(blocks[start:]):
            items = loaded[j][1] if j < len(loaded) else queries.read(other.queries)
            for i, (block, rows) in enumerate(loaded[: j + 1]):
                if share is not None and next(turn) % share.parts != share.part:
                    continue
                yield partial(_count_, _Tile(rows, items, starts[start + i], starts[start + j]), block, other)
        start += len(loaded)


def _count_(tile: "_Tile", block: "_Block", other: "_Block | None" = None) -> float:
    """Count the items of a tile, and its queries as items of the other block; return how many pairs were new."""
    block.count_(tile)
    if other is not None and other is not block:
        other.count_(tile, swapped=True)
    rows, items = tile.sides
    return len(rows) * len(items) / (2 if other is block else 1)


def _of_this_share(blocks: "list[_Block]") -> "list[_Block]":
    """The blocks of this share, with what all shares have counted."""
    share = current_share()
    if share is None:
        return blocks
    for block in blocks:
        block.counts = share.add(block.counts)
    return blocks[share.part :: share.parts]


def _side_by_side(calls: Iterable[Callable[[], T]], device: torch.device) -> Iterator[T]:
    """Make calls and yield what they return, in their order; on a CPU several threads make one call each at a time."""
    threads = torch.get_num_threads()
    workers = min(threads, _MOST_THREADS) if device.type == "cpu" and tiling_of(device).waits else 1
    calls = iter(calls)
    first = list(itertools.islice(calls, 2))
    calls = itertools.chain(first, calls)
    if workers == 1 or len(first) < 2:
        yield from (call() for call in calls)
        return
    mode = torch.inference_mode if torch.is_inference_mode_enabled() else torch.no_grad  # each thread has its own
    results: deque[Future[T]] = deque()

    def make(call: Callable[[], T]) -> T:
        with mode():
            return call()

    try:
        with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads // workers,)) as pool:
            try:
                for call in calls:
                    results.append(pool.submit(contextvars.copy_context().run, make, call))
                    if len(results) > workers:
                        yield results.popleft().result()
                while results:
                    yield results.popleft().result()
            finally:
                for result in results:  # if there was an error, or an interruption
                    result.cancel()
    finally:
        torch.set_num_threads(threads)  # a thread's number is partly that of all


def _load_blocks(queries: Vectors, blocks: "list[_Block]") -> "Iterator[list[tuple[_Block, Chunk]]]":
    """Yield blocks with their rows, as many at a time as fit into memory."""
    longest = max((len(block.queries) for block in blocks), default=1)
    size = max(1, _HELD // (queries.dim * longest))
    for i in range(0, len(blocks), size):
        yield [(block, queries.read(block.queries)) for block in blocks[i : i + size]]


class _Tile:
    """Some queries and some items, with their first places in the gallery, and the scores of all pairs in two forms."""

    def __init__(self, rows: Chunk, items: Chunk, first_row: int, first_item: int) -> None:
        self.sides, self.first = (rows, items), (first_row, first_item)

    @cached_property
    def scores(self) -> Tensor:
        """In the dtype of the embeddings [query, item]."""
        rows, items = self.sides
        return rows.unit @ items.unit.T

    @cached_property
    def whole(self) -> Tensor:
        """In even numbers of 2^-30, rounded from float64 [query, item]."""
        rows, items = self.sides
        first, second = rows.exact_unit(_UNIT), items.exact_unit(_UNIT)
        whole = torch.empty(len(rows), len(items), dtype=torch.int32, device=first.device)
        slab = first.new_empty(_SLAB * len(items))  # once, since new memory takes time
        for i in range(0, len(rows), _SLAB):
            some = slice(i, i + _SLAB)
            start = i if rows is items else 0
            shape = len(first[some]), len(items) - start
            whole[some, start:] = torch.mm(first[some], second[start:].T, out=slab[: shape[0] * shape[1]].view(shape))
            if start:
                whole[some, :start] = whole[:start, some].T
            whole[some, start:] &= -2
        return whole


class _Block:
    """Some queries, the exact scores of their positives, and the counts of items at or above each.

    bound:     an item at or above it in float64 stands at or above the positive [query, positive]
    low, high: around it, the band in which the rounding of a tile could decide [positive, query]
    own:       how many items are the query itself, which is at or above every bound
    removed:   exact scores of other items that are not in the list, or None [query, item]
    """

    def __init__(
        self, queries: Tensor, exact: Tensor, positives: Positives, own: int, removed: Tensor | None, like: Tensor
    ) -> None:
        self.queries, self.exact, self._positives = queries, exact, positives
        self._own, self._removed, self._adding = own, removed, threading.Lock()
        dim, dtype = like.shape[1], like.dtype
        self.bound = exact - 2 * slack(dim, torch.float64)
        band = slack(dim, dtype) + torch.finfo(dtype).eps if dtype != torch.float64 else 0.0
        self.low = (self.bound - band).T.to(like, memory_format=torch.contiguous_format)
        self.high = (self.bound + band).T.to(like, memory_format=torch.contiguous_format) if band else self.low
        self._lowest = self.low.amin(0) if len(self.low) else self.low.new_full((len(queries),), torch.inf)
        self.counts = torch.zeros_like(exact.T)  # [positive, query]

    def most_items(self, items: Chunk) -> int:
        """How many items make a tile with these queries."""
        return tiling_of(items.unit).block

    def comparisons(self, scores: Tensor) -> float:
        """How many comparisons with positives an item of a tile takes, and what rounding leaves open as such."""
        share = (_cells(scores, False)[1] >= self._lowest[:, None]).double().mean()
        left = (_at_or_above(scores, self.low) - _at_or_above(scores, self.high)).sum() / scores.numel()
        return float(share * len(self.low) + _OPEN * left)

    def count_(self, tile: _Tile, swapped: bool = False) -> None:
        """Count the items of a tile; if swapped, these queries are its items."""
        rows, items = tile.sides[::-1] if swapped else tile.sides
        scores = tile.scores
        if not tiling_of(scores).waits:
            self._count_at_once_(rows, items, scores.T if swapped else scores)
            return
        cells, highest = _cells(scores, swapped)
        query, group = (highest >= self._lowest[:, None]).nonzero().T
        cells = cells[query, group]  # only these hold anything to count [cell, item]
        low, high = self.low[:, query], self.high[:, query]
        sums = _at_or_above(cells, high)
        if self.low is not self.high:
            left = _at_or_above(cells, low).sub_(sums)  # rounding could decide these
            many = int(left.sum())
            if many * _REDO > scores.numel():
                self._recount_(rows, items)
                return
            if many:
                k, cell = left.nonzero().T
                inside = (cells[cell] >= low[k, cell, None]) & (cells[cell] < high[k, cell, None])
                pair, place = inside.nonzero().T
                k, cell = k[pair], cell[pair]
                self._settle_(rows, items, k, query[cell], group[cell] * _CELL + place)
        with self._adding:
            self.counts.index_add_(1, query.to(self.counts.device), sums.to(self.counts))

    def _count_at_once_(self, rows: Chunk, items: Chunk, scores: Tensor) -> None:
        """Compare all items with as many positives at once as memory allows, waiting once for these."""
        sums, left = [], []
        size = max(1, 4 * tiling_of(scores).tile // scores.numel())
        for first, low, high in zip(
            itertools.count(0, size), self.low.split(size), self.high.split(size), strict=False
        ):
            above = scores >= high[:, :, None]  # [positive, query, item]
            sums.append(above.sum(2))
            left.append((above ^ (scores >= low[:, :, None])).nonzero())
            left[-1][:, 0] += first
        if sum(map(len, left)) * _REDO > scores.numel():
            self._recount_(rows, items)
        elif sums:
            with self._adding:
                self.counts += torch.cat(sums).to(self.counts)
            self._settle_(rows, items, *torch.cat(left).T)

    def _settle_(self, rows: Chunk, items: Chunk, k: Tensor, query: Tensor, item: Tensor) -> None:
        """Compare items with positives again, in float64."""
        k, query, item = (x.to(self.exact.device) for x in (k, query, item))
        bound = self.bound[query, k]
        above = _scores_again(rows, items, query, item, lambda s, off: (s - bound).abs() > off) >= bound
        with self._adding:
            self.counts.index_put_((k, query), above.to(self.counts), accumulate=True)

    def _recount_(self, rows: Chunk, items: Chunk) -> None:
        """Count the items of a tile by scores in float64."""
        scores = rows.exact_unit() @ items.exact_unit().T
        above = _at_or_above(scores, self.bound.T.contiguous())
        with self._adding:
            self.counts += above

    def parts(self) -> list[slice]:
        """The queries that are ranked together."""
        return [slice(None)] if self.exact.shape[1] else []

    def ranks(self, some: slice) -> tuple[Tensor, Ranks]:
        """Some queries, and what stands before each of their positives, once all items have been counted."""
        exact, bound, valid = (x[some] for x in (self.exact, self.bound, self._positives.valid))
        positives = torch.where(valid, exact, -torch.inf)
        before = self.counts.T[some] - (_exactly_at_or_above(positives, bound) + self._own)
        if self._removed is not None:
            before -= _exactly_at_or_above(self._removed[some], bound)
        return self.queries[some], self._ranks(some, before.clamp_(min=0))

    def _ranks(self, some: slice, before: Tensor) -> Ranks:
        """What stands before each positive of some queries, given the negatives before it [query, positive]."""
        positives = self._positives.rows(some)
        if positives.grades is not None:
            in_order = _in_order(self.exact[some], self.bound[some], before, positives)
            return make_ranks(count_positives(in_order, positives), before, positives)
        place = torch.arange(before.shape[1], dtype=before.dtype, device=before.device).expand_as(before)
        order = argsort_rows(torch.where(positives.valid, before * len(place.T) + place, torch.inf))
        return make_ranks(torch.empty_like(before).scatter_(1, order, place)[:, :, None], before, positives)


class _LargeBlock(_Block):
    """The same for many positives: the items of a tile are sorted together with the bounds of the positives.

    A bound is the odd number after the even one that items are rounded to [query, bound in ascending order].

    places: those in the gallery of what is not a negative, so many of each query, one query's after the other's
    """

    def __init__(
        self, queries: Tensor, exact: Tensor, positives: Positives, many: Tensor, places: Tensor, dim: int
    ) -> None:
        self.queries, self.exact = queries, exact
        self._positives = replace(positives, index=positives.index[:0])  # large, and not needed again
        self._off, self._adding = 2 * slack(dim, torch.float64), threading.Lock()
        self._edges = sort_rows_((self.bound * _UNIT**2).int() | 1)
        self.counts = torch.zeros_like(self._edges)
        self._places = int(places.max()) + 1
        slab, query = (
            f(torch.arange(len(many), device=many.device), _SLAB) for f in (torch.floor_divide, torch.remainder)
        )
        slab, query = (x.repeat_interleave(many) for x in (slab, query))
        self._out = slab.mul_(self._places).add_(places).mul_(_SLAB).add_(query)
        sort_rows_(self._out[None])

    @property
    def bound(self) -> Tensor:  # type: ignore[override]
        return self.exact - self._off

    def most_items(self, items: Chunk) -> int:
        return _RUN

    def count_(self, tile: _Tile, swapped: bool = False) -> None:
        rows, items = tile.sides[::-1] if swapped else tile.sides
        first, size, each = tile.first[0 if swapped else 1], len(items), self._edges.shape[1]
        ends = torch.arange(size, size + _SLAB * (size + each), size + each, device=self._edges.device)[:, None]
        last = ends + torch.arange(-1, each - 1, device=ends.device)  # where an edge stands that no item is above
        for i, out in zip(range(0, len(rows), _SLAB), self._out_of_tile(first, size), strict=True):
            some = slice(i, i + _SLAB)
            edges = self._edges[some]
            scores = tile.whole[:, some].contiguous().T.contiguous() if swapped else tile.whole[some]
            ordered = torch.cat([scores, edges], 1)
            ordered[out] = _LOWEST
            before = odd_places(sort_rows_(ordered), each).sub_(1)
            above = last[: len(edges)] - before
            tied = ordered.take(before.clamp_(min=0)).add_(1) == edges  # of equal edges the first
            query = tied.any(1).nonzero()[:, 0]
            if len(query):
                equal = edges[query]
                pair, k = tied[query].gather(1, torch.searchsorted(equal, equal)).nonzero().T
                if len(pair) * _REDO > ordered.numel():
                    above = self._count_again(rows[some], items, some, out)
                else:
                    self._add_tied_(rows[some], items, some, scores, query[pair], k, out[1] * _SLAB + out[0])
            with self._adding:
                self.counts[some] += above

    def _out_of_tile(self, first: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Query of a slab, and item of a tile, of what is not a negative, for each slab."""
        before = torch.arange(0, len(self._edges), _SLAB) // _SLAB * self._places
        ends = before[:, None] + torch.tensor([first, first + size]).clamp_(max=self._places)
        parts = torch.searchsorted(self._out, ends.to(self._out.device, non_blocking=True) * _SLAB)
        for start, (i, j) in zip((before + first).tolist(), parts.tolist(), strict=True):
            out = self._out[i:j]
            yield out % _SLAB, out // _SLAB - start

    def _bounds(self, queries: slice | Tensor) -> Tensor:
        """The bounds of some queries in ascending order, in float64."""
        return sort_rows_(self.exact[queries] - self._off)

    def _count_again(self, rows: Chunk, items: Chunk, some: slice, out: tuple[Tensor, Tensor]) -> Tensor:
        """How many items are at or above the bounds of some queries, by scores in float64."""
        scores = rows.exact_unit() @ items.exact_unit().T
        scores[out] = -torch.inf
        return len(items) - torch.searchsorted(sort_rows_(scores), self._bounds(some))

    def _add_tied_(
        self, rows: Chunk, items: Chunk, some: slice, scores: Tensor, query: Tensor, k: Tensor, out: Tensor
    ) -> None:
        """Count the items that are rounded to the same number as a bound, unless they are out or below it.

        out: what is not a negative, as item * _SLAB + query, in ascending order
        """
        edges, counts = self._edges[some], self.counts[some]
        for here, edge in zip(query.split(_SLAB), k.split(_SLAB), strict=True):
            pair, item = (scores[here] == edges[here, edge, None] - 1).nonzero().T
            here, edge, bound = here[pair], edge[pair], self._bounds(some.start + here).gather(1, edge[:, None])[pair]
            at_or_above = exact_scores(rows, items, here, item) >= bound[:, 0]
            pair = item * _SLAB + here
            at_or_above &= torch.searchsorted(out, pair) == torch.searchsorted(out, pair, right=True)
            with self._adding:
                counts.index_put_((here, edge), at_or_above.to(counts), accumulate=True)

    def parts(self) -> list[slice]:
        size = _SLAB if tiling_of(self.exact).waits else len(self.exact)
        return [slice(i, i + size) for i in range(0, len(self.exact), size)]

    def ranks(self, some: slice) -> tuple[Tensor, Ranks]:
        exact = self.exact[some]
        before = torch.empty_like(exact).scatter_(1, argsort_rows(exact), self.counts[some].double())
        return self.queries[some], self._ranks(some, before)


def _in_order(exact: Tensor, bound: Tensor, before: Tensor, positives: Positives) -> Tensor:
    """Numbers in the order of the positives [query, positive]: by the negatives before them, then by score.

    Where nothing stands between positives, their order matters to grades only; and there, what float64 cannot tell
    apart is tied.
    """
    order = exact.argsort(1, descending=True)
    order = order.gather(1, before.gather(1, order).argsort(dim=1, stable=True))
    drop, more = (x.gather(1, order).diff(dim=1) for x in (exact, before))
    apart = ((-drop > (exact - bound)[:, :1]) | (more > 0)).cumsum(1)
    return torch.zeros_like(exact).scatter_(1, order[:, 1:], -apart.to(exact))


def _scores_again(
    rows: Chunk, items: Chunk, query: Tensor, item: Tensor, sure: Callable[[Tensor, float], Tensor]
) -> Tensor:
    """Scores of pairs, in float64 unless `sure(scores, how far off they can be)` of quicker ones [pair]."""
    if len(query) < _FEW_PAIRS or not tiling_of(rows.unit).waits:
        return exact_scores(rows, items, query, item)
    scores = quick_scores(rows, items, query, item).to(query.device)
    unsure = (~sure(scores, slack(64, torch.float32))).nonzero()[:, 0]
    scores[unsure] = exact_scores(rows, items, query[unsure], item[unsure])
    return scores


def _cells(scores: Tensor, swapped: bool) -> tuple[Tensor, Tensor]:
    """A tile as a view [query, group, item], the last group filled up, and each group's highest [query, group]."""
    if missing := -scores.shape[0 if swapped else 1] % _CELL:
        scores = torch.nn.functional.pad(scores, (0, 0, 0, missing) if swapped else (0, missing), value=-torch.inf)
    if swapped:
        return scores.T.unflatten(1, (-1, _CELL)), scores.unflatten(0, (-1, _CELL)).amax(1).T
    cells = scores.unflatten(1, (-1, _CELL))
    return cells, cells.amax(2)


def _at_or_above(items: Tensor, edges: Tensor) -> Tensor:
    """How many items [row, item] are at or above each edge of their row [edge, row]."""
    sums, above = torch.empty_like(edges), torch.empty_like(items)
    for edge, out in zip(edges[:, :, None], sums, strict=True):
        torch.sum(torch.ge(items, edge, out=above), 1, out=out)
    return sums


def _exactly_at_or_above(scores: Tensor, bounds: Tensor) -> Tensor:
    """How many scores [query, item] are at or above each bound [query, positive]."""
    return scores.shape[1] - torch.searchsorted(scores.sort(1)[0], bounds.contiguous())


def _blocks(
    queries: Vectors,
    gallery: Vectors,
    rows: slice,
    relevance: Relevance,
    removed: Lists | None,
    own: bool,
    all_: bool,
) -> list[_Block]:
    """The queries of a range in blocks, those with as many positives together; only those that have any, or all."""
    counts = relevance.counts
    size, run, share = tiling_of(queries.device).block, _RUN, current_share()
    if all_ and share is not None:  # so many pairs of blocks that shares of them are even
        size = run = min(size, max(_LEAST_SHARED, len(counts[rows]) // (_SHARED * share.parts)))
    parts: list[Tensor] = []
    edges = counts.new_tensor([0, FEW, max(FEW, _SOME)])
    chosen = rows.start + (torch.arange(len(counts[rows])) if all_ else counts[rows].nonzero()[:, 0])
    for chunk in chosen.split(8 * _RUN):
        kind = torch.bucketize(counts[chunk], edges)
        parts += chunk[kind == 0].split(size)
        for i, most_queries in enumerate((size, size, run), 1):
            parts += _like_together(chunk[kind == i], relevance, own).split(most_queries)
    parts = [part for part in parts if len(part)]
    place = None
    if all_:
        ordered = torch.cat(parts)
        place = torch.empty_like(ordered)
        place[ordered] = torch.arange(len(ordered))
    probe = cache(lambda: gallery.read(torch.arange(0, len(gallery), -(-len(gallery) // _PROBE))))
    making = (partial(_block, queries, gallery, some, relevance, removed, own, place, probe) for some in parts)
    return list(_side_by_side(making, queries.device))


def _like_together(queries: Tensor, relevance: Relevance, own: bool) -> Tensor:
    """Queries ordered by how many positives they have, and those with the same positives together."""
    if not len(queries):
        return queries
    first = torch.cat([relevance.positives(some).index.amin(1) for some in queries.split(_RUN)])
    ordered = queries[(first.minimum(queries) if own else first).argsort(stable=True)]
    return ordered[relevance.counts[ordered].argsort(stable=True)]


def _block(
    queries: Vectors,
    gallery: Vectors,
    some: Tensor,
    relevance: Relevance,
    removed: Lists | None,
    own: bool,
    place: Tensor | None,
    probe: Callable[[], Chunk],
) -> _Block:
    """place: of each item in the order in which items are counted, if that is not theirs; probe: reads some items"""
    rows = queries.read(some)
    if not int(relevance.counts[some[0]]):  # items only
        nothing = rows.length.new_empty(len(some), 0)
        return _Block(some, nothing, Positives(nothing.long(), nothing.bool()), 0, None, rows.unit)
    listed = [relevance.positives(some), *([] if removed is None else [removed.positives(some)])]
    exact = _pair_scores(rows, gallery, listed[0])
    positives = listed[0].to(exact.device)
    exact = torch.where(positives.valid, exact, exact[:, :1])  # a row's first is never padding
    number = exact.shape[1]
    waits = tiling_of(rows.unit).waits
    if number > (_SOME if waits else _SOME_AT_ONCE) or (number > FEW and waits and _many_near(rows, exact, probe())):
        out = torch.cat([of.index for of in listed] + [some[:, None]] * own, 1)
        is_out = torch.cat([of.valid for of in listed] + [torch.ones(len(some), 1, dtype=torch.bool)] * own, 1)
        places = (out if place is None else place[out])[is_out].to(exact.device)
        return _LargeBlock(some, exact, positives, is_out.sum(1).to(exact.device), places, queries.dim)
    removed_scores = _pair_scores(rows, gallery, listed[1]) if removed is not None else None
    return _Block(some, exact, positives, int(own), removed_scores, rows.unit)


def _many_near(rows: Chunk, exact: Tensor, probe: Chunk) -> bool:
    """Whether so many items are near the positives, or above, that sorting costs less than comparing."""
    some = slice(0, None, 16)
    queries, nothing = rows[some], exact.new_empty(0, 0)
    block = _Block(nothing, exact[some], Positives(nothing, nothing), 0, None, queries.unit)
    return block.comparisons(queries.unit @ probe.unit.T) > _MOST_COMPARISONS


def _pair_scores(rows: Chunk, gallery: Vectors, listed: Positives) -> Tensor:
    """Exact scores of queries (rows) with the items listed for each [query, item]; -inf for padding."""
    scores = rows.length.new_full(listed.index.shape, -torch.inf)
    place = torch.zeros(len(gallery), dtype=torch.long)
    tiling = tiling_of(rows.unit)
    size = _LISTED if tiling.groups == 1 else tiling.block  # an accelerator is slow at many small products
    for i in range(0, len(rows), size):
        some, valid, index = rows[i : i + size], listed.valid[i : i + size], listed.index[i : i + size]
        item = index[valid]
        is_listed = torch.zeros(len(gallery), dtype=torch.bool)
        is_listed[item] = True
        needed = is_listed.nonzero()[:, 0]
        place[needed] = torch.arange(len(needed))
        places, chunks = place[index], len(needed) > CHUNK
        for start in range(0, len(needed), CHUNK):
            items = gallery.read(needed[start : start + CHUNK])
            at = (places - start).to(scores.device, non_blocking=True)
            here = valid & (places // CHUNK == start // CHUNK) if chunks else valid
            if len(items) * len(some) <= len(item) * _DENSE:
                products = some.exact_unit() @ items.exact_unit().T
                inside = here.to(scores.device, non_blocking=True)
                of_slab = products.gather(1, at.clamp_(0, len(items) - 1))
                scores[i : i + size] = torch.where(inside, of_slab, scores[i : i + size])
            else:
                query, k = here.nonzero().T.to(scores.device, non_blocking=True)
                scores[i : i + size][query, k] = exact_scores(some, items, query, at[query, k])
    return scores
