"""Any sequence of writes, on an index in a folder, does what it does to a dictionary."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from frontrank.retrieval import embedded as faiss_engine
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item, read_filter
from tests.retrieval.index_engines import Model, halves

NAMES = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=5, unique=True)
KEPT = st.fixed_dictionaries(
    {}, optional={"n": st.integers(0, 3), "t": st.sampled_from(["x", "1"]), "b": st.booleans()}
)
FILTERS = st.sampled_from([(), "n>1", "n!=1", "t=1|x", "b=true", "label=x", "label!=x"])


class IndexMachine(RuleBasedStateMachine):
    """Two open indexes of one folder, written to by turns, and the model of them."""

    def __init__(self):
        super().__init__()
        self.least, faiss_engine._LEAST_DEAD = faiss_engine._LEAST_DEAD, 2
        self.folder = Path(tempfile.mkdtemp())
        self.indexes = [Index(self.folder / "index", dim=8), Index(self.folder / "index")]
        self.model, self.seed = Model(), 0

    def teardown(self):
        faiss_engine._LEAST_DEAD = self.least
        for index in self.indexes:
            index.close()
        shutil.rmtree(self.folder)

    @rule(which=st.integers(0, 1), names=NAMES, kept=KEPT, label=st.sampled_from([None, "x", "y"]))
    def upsert(self, which, names, kept, label):
        self.seed += 1
        rows, items = halves(len(names), seed=self.seed), [Item(name, label=label, metadata=kept) for name in names]
        self.indexes[which].upsert(rows, items)
        self.model.upsert(rows, items)

    @rule(which=st.integers(0, 1), names=NAMES)
    def delete(self, which, names):
        assert self.indexes[which].delete(names) == self.model.delete(names)

    @rule(which=st.integers(0, 1))
    def open_again(self, which):
        self.indexes[which].close()
        self.indexes[which] = Index.load(self.folder / "index")

    @rule(which=st.integers(0, 1), filter=FILTERS, k=st.integers(1, 9))
    def search(self, which, filter, k):
        index, conditions = self.indexes[which], read_filter(filter)
        index.refresh()
        query = halves(1, seed=99)
        (hits,) = index.search(query, k, filter=filter)
        assert list(zip(hits.scores.tolist(), hits.ids, strict=True)) == self.model.best(query[0], k, conditions)
        assert index.count(filter) == len(self.model.best(query[0], 99, conditions))

    @invariant()
    def same_items(self):
        for index in self.indexes:
            index.refresh()
            names = sorted(self.model.rows)
            assert list(index.items()) == [self.model.rows[name][1] for name in names]
            if names:
                np.testing.assert_array_equal(index.vectors(names), [self.model.rows[name][0] for name in names])


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=15, stateful_step_count=15)
