"""A process that writes to an index until it is killed, and sends what was acknowledged; see test_journal.

Before a call it sends `? name version` for each item to put, or `? - name` to delete; as soon as the call has returned,
`+ name version` or `- name`. Item and vector of a name in a version can be computed, so that a reader can check them.
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
        pipe.send(["open"])
        for version in range(seed * 1_000_000, (seed + 1) * 1_000_000):
            names = [f"item {i}" for i in rng.choice(200, rng.integers(1, 60), replace=False)]
            after = []
            if rng.random() < 0.2:
                pipe.send([f"? - {name}" for name in names])
                index.delete(names)
                after = [f"- {name}" for name in names]
            elif rng.random() < 0.1:
                index.save(f"{folder}.copy", overwrite=True)
            else:
                pipe.send([f"? {name} {version}" for name in names])
                index.upsert([vector_of(name, version) for name in names], [item_of(name, version) for name in names])
                after = [f"+ {name} {version}" for name in names]
            pipe.send([*after, "."])
