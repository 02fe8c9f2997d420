"""A process that writes to an index until it is killed, and sends what it has done; see test_journal.

Before and after each call it sends (is it done, names, version); the version of names that are deleted is None. Item
and vector of a name in a version can be computed, so that a reader can check them.
"""

import numpy as np

from frontrank.retrieval import embedded
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item

DIM = 16


def vector_of(name, version):
    seed = int.from_bytes(f"{name} {version}".encode(), "big") % (1 << 63)
    return np.random.default_rng(seed).standard_normal(DIM)


def item_of(name, version):
    return Item(name, f"{name}.jpg", f"class {version}", None, {"version": version})


def write(folder, seed, pipe):
    """Write for ever."""
    embedded._LEAST_DEAD = 20 if seed % 2 else 500  # so that the index is rewritten very often, or often
    rng = np.random.default_rng(seed)
    with Index(folder, dim=DIM) as index:
        pipe.send("open")
        for version in range(seed * 1_000_000, (seed + 1) * 1_000_000):
            names = [f"item {i}" for i in rng.choice(200, rng.integers(1, 60), replace=False)]
            kind = rng.choice(["upsert", "delete", "save"], p=[0.72, 0.2, 0.08])
            change = ([] if kind == "save" else names), (version if kind == "upsert" else None)
            pipe.send((False, *change))
            if kind == "upsert":
                index.upsert([vector_of(name, version) for name in names], [item_of(name, version) for name in names])
            elif kind == "delete":
                index.delete(names)
            else:
                index.save(f"{folder}.copy", overwrite=True)
            pipe.send((True, *change))
