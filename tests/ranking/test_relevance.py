import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frontrank.ranking import LabelRelevance, MatrixRelevance, Positives

labels = st.lists(st.integers(-3, 6), min_size=1, max_size=40).map(torch.tensor)


def read(relevance, queries):
    """The positives of each query as a set, after a check of the padding."""
    positives = relevance.positives(torch.tensor(queries))
    sets = []
    for index, valid, q in zip(positives.index, positives.valid, queries, strict=True):
        real = index[valid].tolist()
        assert len(real) == len(set(real)) == relevance.counts[q]
        assert set(index.tolist()) == set(real), "padding repeats a real positive"
        sets.append(set(real))
    assert positives.valid.any(0).all(), "no wider than the longest row"
    return sets


def assert_same(relevance, relevant):
    expected = [set(row.nonzero()[:, 0].tolist()) for row in relevant]
    assert relevance.counts.tolist() == [len(one) for one in expected]
    used = [q for q, one in enumerate(expected) if one]
    if used:
        assert read(relevance, used) == [expected[q] for q in used]
        some = used[::-2]
        assert read(relevance, some) == [expected[q] for q in some]


def relevant_to(y, own):
    """Who is relevant in a batch that is its own gallery."""
    same = y[:, None] == y
    return same & ~torch.eye(len(y), dtype=torch.bool) if own else same


@pytest.mark.parametrize("own", [True, False])
@given(y=labels)
def test_labels_of_a_batch_that_is_its_own_gallery(own, y):
    assert_same(LabelRelevance(y, y, own=own), relevant_to(y, own))


@given(labels, labels)
def test_labels_of_another_gallery(y, z):
    assert_same(LabelRelevance(y, z, own=False), y[:, None] == z)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@given(n=st.integers(1, 12), share=st.floats(0, 1), seed=st.integers(0, 999))
def test_matrix(own, masked, n, share, seed):
    generator = torch.Generator().manual_seed(seed)
    relevant = torch.rand(n, n, generator=generator) < share
    candidates = torch.rand(n, n, generator=generator) < 0.7 if masked else None
    kept = relevant.clone()
    expected = relevant & ~torch.eye(n, dtype=torch.bool) if own else relevant
    expected = expected & candidates if masked else expected
    assert_same(MatrixRelevance(relevant, candidates, own), expected)
    assert torch.equal(relevant, kept)


def test_who_is_in_the_list():
    """Query 1 of 4: item 1 is itself, item 2 its positive, item 3 is no candidate."""
    candidates = torch.tensor([[True, True, True, False]])
    positives = Positives(torch.tensor([[2]]), torch.tensor([[True]]), torch.tensor([1]), candidates)
    scores = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    out = -float("inf")
    assert torch.equal(positives.keep_listed_(scores.clone()), torch.tensor([[0.1, out, 0.3, out]]))
    assert torch.equal(positives.keep_negatives_(scores.clone()), torch.tensor([[0.1, out, out, out]]))


def test_own_is_left_out_of_the_list():
    y = torch.tensor([0, 1, 0])
    queries = torch.tensor([2, 0])
    assert torch.equal(LabelRelevance(y, y, own=True).positives(queries).own, queries)
    assert LabelRelevance(y, y, own=False).positives(queries).own is None


@pytest.mark.parametrize("own", [True, False])
@given(y=labels, rows=st.integers(1, 20))
def test_blocks_of_whole_classes(own, y, rows):
    relevance = LabelRelevance(y, y, own=own)
    order, moved, bounds = relevance.classes_together(rows)
    order = torch.arange(len(y)) if order is None else order
    assert sorted(order.tolist()) == list(range(len(y)))
    covered = [place for start, stop in bounds for place in range(start, stop)]
    assert len(covered) == len(set(covered))
    used = set(relevance.counts.nonzero()[:, 0].tolist())
    assert {int(order[place]) for place in covered} == used, "every used query exactly once"
    blocks = [set(y[order[start:stop]].tolist()) for start, stop in bounds]
    assert sum(len(block) for block in blocks) == len(set().union(*blocks)), "no class is cut"
    for (start, stop), block in zip(bounds, blocks, strict=True):
        assert stop > start
        assert stop - start <= rows or len(block) == 1, "larger only for one large class"
    assert_same(moved, relevant_to(y[order], own))
