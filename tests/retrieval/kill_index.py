"""A process that writes to an index until it is killed, and says what was acknowledged; see test_index_crashes.

It sends a line as soon as a call returned: `+ name version` for an item that was put, `- name` for one that was
deleted; and the same with a `?` before the call. What item and vector a name has in a
version can be computed, so that a reader can check them.
"""

import numpy as np

from frontrank.retrieval import embedded as faiss_engine
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item

DIM = 16


def vector_of(name, version):
    seed = int.from_bytes(f"{name} {version}".encode(), "big") % (1 << 63)
    return np.random.default_rng(seed).standard_normal(DIM)


def item_of(name, version):
    return Item(name, f"{name}.jpg", f"class {version}", None, {"version": version})


def write(folder, seed, pipe):
    """Write for ever, and tell the other end of the pipe."""
    faiss_engine._LEAST_DEAD = 20 if seed % 2 else 500  # so that the index is written anew very often, or often
    rng = np.random.default_rng(seed)
    with Index(folder, dim=DIM) as index:
        pipe.send(["open"])
        for version in range(seed * 1_000_000, (seed + 1) * 1_000_000):
            names = [f"item {i}" for i in rng.choice(200, rng.integers(1, 60), replace=False)]
            if rng.random() < 0.2:
                said = [f"? - {name}" for name in names], [f"- {name}" for name in names]
                pipe.send(said[0])
                index.delete(names)
            elif rng.random() < 0.1:
                index.save(f"{folder}.copy", overwrite=True)
                said = [], []
            else:
                said = [f"? {name} {version}" for name in names], [f"+ {name} {version}" for name in names]
                pipe.send(said[0])
                index.upsert([vector_of(name, version) for name in names], [item_of(name, version) for name in names])
            pipe.send([*said[1], "."])
