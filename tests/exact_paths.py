"""Small blocks and chunks, so that all paths of the exact evaluation run on small data; and which were taken."""

import sys
from dataclasses import replace

import torch

from frontrank.ranking import exact, tiles, vectors

SMALL = {"block": 7, "cell": 4, "chunk": 16, "pairs_at_once": 5, "run": 11, "slab": 3}


def set_sizes(
    monkeypatch,
    block=None,
    held=None,
    pairs=None,
    few=None,
    cell=None,
    redo=None,
    chunk=None,
    pairs_at_once=None,
    run=None,
    slab=None,
    dense=None,
):
    """Set how many queries, numbers, positives, ... are worked on at once; None leaves it as it is."""
    sizes = {"_HELD": held, "_PAIRS": pairs, "FEW": few, "_CELL": cell, "_REDO": redo, "CHUNK": chunk, "_RUN": run}
    sizes |= {"_SLAB": slab, "_LISTED": slab, "_DENSE": dense}
    for name, size in sizes.items():
        if size is not None:
            monkeypatch.setattr(exact, name, size)
    if few is not None:
        monkeypatch.setattr(exact, "_SOME", few)
    if chunk is not None:
        for kind in (vectors.Vectors, vectors.VectorParts):
            monkeypatch.setattr(kind.chunks, "__defaults__", (chunk,))
    if block is not None:
        monkeypatch.setattr(tiles, "CPU", replace(tiles.CPU, block=block))
    if pairs_at_once is not None:
        monkeypatch.setattr(vectors, "_PAIRS", pairs_at_once)


def caller():
    """The function of the package that made the call that is being noted."""
    return sys._getframe(3).f_code.co_name


def taken(monkeypatch):
    """A list that names the paths taken from here on, in order."""
    paths = []

    def note(owner, name, path):
        real = getattr(owner, name)

        def noted(*args, **more):
            paths.append(path(*args, **more) if callable(path) else path)
            return real(*args, **more)

        monkeypatch.setattr(owner, name, noted)

    note(exact, "_counting_among_themselves", "symmetric")
    note(exact, "_counting_in_gallery", "gallery")
    note(exact, "_cells", lambda scores, swapped: "swapped" if swapped else "few")
    note(exact._Block, "_settle_", "settled")
    note(exact._Block, "_recount_", "again")
    note(exact._LargeBlock, "count_", lambda *_, swapped=False: "many swapped" if swapped else "many")
    note(exact._LargeBlock, "_add_tied_", "many settled")
    note(exact._LargeBlock, "_count_again", "many again")
    note(exact, "exact_scores", lambda *_: {"_pair_scores": "looked up"}.get(caller()))
    note(exact.Chunk, "exact_unit", lambda *_: {"_pair_scores": "multiplied"}.get(caller()))
    note(torch.nn.functional, "pad", lambda *_, **more: "padded" if more else "")
    return paths
