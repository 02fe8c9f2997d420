"""The exact ranks of the positives at any scale: counted, never sorted, no query x gallery matrix.

The scores of the positives are computed first, in float64. Then tiles of scores, a block of queries by a block of
items, are multiplied in the dtype of the embeddings and each item is counted where it stands at or above a positive.
Rounding could decide a comparison only inside a band of known width around the positive's score; the few items
there are scored again in float64. So the counts are those of float64 arithmetic, whatever the order of the sums, the
sizes of the blocks, the number of threads or the device; scores that float64 cannot tell apart are ties, and an item
tied with a positive stands before it.

Nothing is masked in the tiles. What is not in a query's list, and the positives themselves, are counted with the rest
and taken out of the counts afterwards.

Where the queries are their own gallery, a tile of scores serves the queries of its rows and those of its columns:
half of the multiplications.
"""

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from frontrank.progress import progress
from frontrank.ranking.metrics import Ranks
from frontrank.ranking.ranks import count_positives, make_ranks
from frontrank.ranking.relevance import Lists, Positives, Relevance
from frontrank.ranking.shares import current_share, own_queries
from frontrank.ranking.steps import places
from frontrank.ranking.tiles import row_tiles, tiling_of
from frontrank.ranking.vectors import CHUNK, Chunk, Vectors, exact_scores, full_precision, quick_scores, slack

_CELL = 64  # items looked at together: where the highest is below all positives, none is counted
_HELD = 1 << 24  # numbers of the queries' rows held (64 MiB in float32, twice)
_PAIRS = 1 << 23  # positives ranked in one pass over the gallery
FEW = 40  # up to here each item is compared with each positive; beyond, it finds its place among them
_FEW_PAIRS = 64  # so few pairs are scored in float64 at once
_REDO = 64  # one comparison of so many left open: cheaper to multiply the tile again in float64

Use = Callable[[Tensor, Ranks], None]


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
        symmetric = gallery is None and len(_groups(relevance.counts)) == 1 and int(relevance.counts.max()) <= FEW
        relevance = relevance if symmetric else own_queries(relevance)
        counts = relevance.counts
        groups = _groups(counts)
        work = len(items) ** 2 / 2 if symmetric else len(items) * int((counts > 0).sum())
        with progress("ranking", work, show) as step:
            for rows in groups:
                blocks = _blocks(queries, items, rows, relevance, removed, own=gallery is None, all_=symmetric)
                if symmetric:
                    blocks = _count_among_themselves(queries, blocks, step)
                else:
                    _count_in_gallery(queries, items, blocks, step)
                for block in blocks:
                    if block.exact.shape[1]:
                        use(block.queries, block.ranks())


def _groups(counts: Tensor) -> list[slice]:
    """Return ranges of queries with about as many positives as are ranked at once."""
    group = (counts.cumsum(0) - counts) // _PAIRS
    edges = [0, *(1 + (group[1:] != group[:-1]).nonzero()[:, 0]).tolist(), len(counts)]
    return [slice(start, stop) for start, stop in itertools.pairwise(edges)]


def _count_in_gallery(
    queries: Vectors, gallery: Vectors, blocks: "list[_Block]", step: Callable[[float], None]
) -> None:
    """Count all items of the gallery, read once for as many queries as fit into memory."""
    for loaded in _load_blocks(queries, blocks):
        for where in gallery.chunks():
            items = gallery.read(where)
            for block, rows in loaded:
                for part in block.parts(items):
                    block.count_(rows, part, rows.unit @ part.unit.T)
                step(len(rows) * len(items))


def _count_among_themselves(queries: Vectors, blocks: "list[_Block]", step: Callable[[float], None]) -> "list[_Block]":
    """Count all queries as items of each other, a pair of blocks at a time; return the blocks of this share."""
    share, start = current_share(), 0
    turn = itertools.count()  # shares take the pairs in turn
    for loaded in _load_blocks(queries, blocks):
        for j, other in enumerate(blocks[start:]):
            items = loaded[j][1] if j < len(loaded) else queries.read(other.queries)
            for block, rows in loaded[: j + 1]:
                if share is not None and next(turn) % share.parts != share.part:
                    continue
                scores = rows.unit @ items.unit.T
                block.count_(rows, items, scores)
                if block is not other:
                    other.count_(items, rows, scores, swapped=True)
                step(len(rows) * len(items) / (2 if block is other else 1))
        start += len(loaded)
    if share is None:
        return blocks
    for block in blocks:
        block.counts = share.add(block.counts)
    return blocks[share.part :: share.parts]


def _load_blocks(queries: Vectors, blocks: "list[_Block]") -> "Iterator[list[tuple[_Block, Chunk]]]":
    """Yield blocks with their rows, as many at a time as fit into memory."""
    size = max(1, _HELD // (queries.dim * tiling_of(queries.device).block))
    for i in range(0, len(blocks), size):
        yield [(block, queries.read(block.queries)) for block in blocks[i : i + size]]


class _Block:
    """Some queries, the exact scores of their positives, and the counts of items at or above each.

    bound:     an item at or above it in float64 stands at or above the positive [query, positive]
    low, high: around it, the band in which the rounding of a tile could decide [positive, query]
    """

    def __init__(
        self, queries: Tensor, exact: Tensor, positives: Positives, removed: Tensor | None, like: Tensor
    ) -> None:
        self.queries, self.exact, self._positives, self._removed = queries, exact, positives, removed
        dim, dtype = like.shape[1], like.dtype
        self.bound = exact - 2 * slack(dim, torch.float64)
        band = slack(dim, dtype) + torch.finfo(dtype).eps if dtype != torch.float64 else 0.0
        self.low = (self.bound - band).to(like).T.contiguous()
        self.high = (self.bound + band).to(like).T.contiguous() if band else self.low
        self._lowest = self.low.amin(0) if len(self.low) else self.low.new_full((len(queries),), torch.inf)
        self.counts = torch.zeros_like(exact.T)  # [positive, query]

    def parts(self, items: Chunk) -> list[Chunk]:
        """The items of a chunk in pieces that make a tile with these queries."""
        size = tiling_of(items.unit).block
        return [items[i : i + size] for i in range(0, len(items), size)]

    def count_(self, rows: Chunk, items: Chunk, scores: Tensor, swapped: bool = False) -> None:
        """Count the items of a tile of scores [query, item], or [item, query] if swapped."""
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
        self.counts.index_add_(1, query.to(self.counts.device), sums.to(self.counts))

    def _settle_(self, rows: Chunk, items: Chunk, k: Tensor, query: Tensor, item: Tensor) -> None:
        """Compare items with positives again, in float64."""
        k, query, item = (x.to(self.exact.device) for x in (k, query, item))
        bound = self.bound[query, k]
        above = _scores_again(rows, items, query, item, lambda s, off: (s - bound).abs() > off) >= bound
        self.counts.index_put_((k, query), above.to(self.counts), accumulate=True)

    def _recount_(self, rows: Chunk, items: Chunk) -> None:
        """Count the items of a tile by scores in float64."""
        scores = rows.exact_unit() @ items.exact_unit().T
        self.counts += _at_or_above(scores, self.bound.T.contiguous())

    def ranks(self) -> Ranks:
        """What stands before each positive, once all items have been counted."""
        positives = self._positives
        before = self.counts.T - _exactly_at_or_above(self.exact.masked_fill(~positives.valid, -torch.inf), self.bound)
        if self._removed is not None:
            before -= _exactly_at_or_above(self._removed, self.bound)
        return make_ranks(count_positives(self.exact, positives), before.clamp_(min=0), positives)


class _LargeBlock(_Block):
    """The same for many positives: each item finds its place among the ordered edges of all bands."""

    def __init__(
        self, queries: Tensor, exact: Tensor, positives: Positives, removed: Tensor | None, like: Tensor
    ) -> None:
        super().__init__(queries, exact, positives, removed, like)
        self._ordered, self._order = self.bound.sort(1)
        self._places = torch.zeros_like(torch.nn.functional.pad(exact, (1, 0)))  # items that pass k bounds
        bands = [self.low.T] if self.low is self.high else [self.low.T, self.high.T]
        self._edges, order = torch.cat(bands, 1).sort(1)
        low = torch.nn.functional.pad((order < exact.shape[1]).cumsum(1), (1, 0))  # low edges passed at each place
        high = torch.arange(low.shape[1], device=low.device) - low if len(bands) == 2 else low
        self._passed = torch.where(low == high, low, -1)  # bounds passed; unknown inside a band

    def parts(self, items: Chunk) -> list[Chunk]:
        return [items]  # the table that finds places is made anew for each tile

    def count_(self, rows: Chunk, items: Chunk, scores: Tensor, swapped: bool = False) -> None:
        scores = scores.T.contiguous() if swapped else scores
        exact: Tensor | None = None
        for tile in row_tiles(scores):
            if exact is None and not self._count_rows_(rows, items, scores[tile], tile):
                exact = rows.exact_unit() @ items.exact_unit().T  # for all tiles from here: the next ones are alike
            if exact is not None:
                again = places(exact[tile], self._ordered[tile])
                self._places[tile] += _histogram(again, self._places.shape[1]).to(self._places)

    def _count_rows_(self, rows: Chunk, items: Chunk, scores: Tensor, tile: slice) -> bool:
        """Count the items for some of the queries, unless rounding could decide too many comparisons."""
        passed, counted = self._passed[tile], self._places[tile]
        place = places(scores, self._edges[tile])
        held = _histogram(place, passed.shape[1])
        many = int(held.masked_fill(passed >= 0, 0).sum())
        if many * _REDO > scores.numel():
            return False
        counted.scatter_add_(1, passed.clamp(min=0).to(counted.device), held.masked_fill(passed < 0, 0).to(counted))
        if many:
            query, item = (passed.gather(1, place.long()) < 0).nonzero().to(counted.device).T
            for some, them in zip(query.split(1024), item.split(1024), strict=True):
                bounds = self._ordered[tile][some]

                def place_of(scores: Tensor, bounds: Tensor = bounds) -> Tensor:
                    return torch.searchsorted(bounds, scores[:, None], right=True)[:, 0]

                again = _scores_again(
                    rows[tile], items, some, them, lambda s, off: place_of(s - off) == place_of(s + off)
                )
                counted.index_put_((some, place_of(again)), torch.ones_like(again), accumulate=True)
        return True

    def ranks(self) -> Ranks:
        at_or_above = self._places.flip(1).cumsum(1).flip(1)[:, 1:]
        self.counts = torch.empty_like(self.exact).scatter_(1, self._order, at_or_above).T
        return super().ranks()


def _scores_again(
    rows: Chunk, items: Chunk, query: Tensor, item: Tensor, sure: Callable[[Tensor, float], Tensor]
) -> Tensor:
    """Scores of pairs, in float64 unless `sure(scores, how far off they can be)` of quicker ones [pair]."""
    if len(query) < _FEW_PAIRS:
        return exact_scores(rows, items, query, item)
    scores = quick_scores(rows, items, query, item).to(query.device)
    unsure = (~sure(scores, slack(64, torch.float32))).nonzero()[:, 0]
    scores[unsure] = exact_scores(rows, items, query[unsure], item[unsure])
    return scores


def _histogram(place: Tensor, size: int) -> Tensor:
    """How many items of each row [row, item] have each place [row, size]."""
    rows = torch.arange(len(place), dtype=place.dtype, device=place.device)[:, None] * size
    return torch.bincount((place + rows).flatten(), minlength=len(place) * size).view(len(place), size)


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
    counts = relevance.counts[rows]
    size = tiling_of(queries.device).block
    blocks: list[_Block] = []
    for chunk in (rows.start + (torch.arange(len(counts)) if all_ else counts.nonzero()[:, 0])).split(16 * size):
        ordered = chunk[relevance.counts[chunk].argsort(stable=True)]
        none = int((relevance.counts[ordered] == 0).sum())
        parts = [some for part in (ordered[:none], ordered[none:]) if len(part) for some in part.split(size)]
        blocks += [_block(queries, gallery, some, relevance, removed, own) for some in parts]
    return blocks


def _block(
    queries: Vectors, gallery: Vectors, some: Tensor, relevance: Relevance, removed: Lists | None, own: bool
) -> _Block:
    rows = queries.read(some)
    if not int(relevance.counts[some[0]]):  # items only
        nothing = rows.length.new_empty(len(some), 0)
        return _Block(some, nothing, Positives(nothing.long(), nothing.bool()), None, rows.unit)
    positives = relevance.positives(some)
    exact = _pair_scores(rows, gallery, positives)
    out = [exact_scores(rows, rows, *(torch.arange(len(some), device=exact.device),) * 2)[:, None]] if own else []
    if removed is not None:
        out.append(_pair_scores(rows, gallery, removed.positives(some)))
    positives = positives.to(exact.device)
    exact = torch.where(positives.valid, exact, exact[:, :1])  # a row's first is never padding
    kind = _Block if exact.shape[1] <= FEW else _LargeBlock
    return kind(some, exact, positives, torch.cat(out, 1) if out else None, rows.unit)


def _pair_scores(rows: Chunk, gallery: Vectors, listed: Positives) -> Tensor:
    """Exact scores of queries (rows) with the items listed for each [query, item]; -inf for padding."""
    scores = rows.length.new_full(listed.index.shape, -torch.inf)
    query, k = listed.valid.nonzero().T
    item = listed.index[query, k]
    if len(item) * 16 > len(rows) * len(gallery):  # long lists: cheaper to multiply with all
        for where in gallery.chunks():
            products = rows.exact_unit() @ gallery.read(where).exact_unit().T
            here = (item >= where.start) & (item < where.stop)
            scores[query[here], k[here]] = products[query[here], item[here] - where.start]
        return scores
    for some in torch.arange(len(item)).split(CHUNK):
        needed, at = item[some].unique(return_inverse=True)
        pairs = (query[some].to(scores.device), at.to(scores.device))
        scores[query[some], k[some]] = exact_scores(rows, gallery.read(needed), *pairs)
    return scores
