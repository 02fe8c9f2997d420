"""Labels decide, never the layout of the batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import BATCHES, BY_NAME, NAMES, random_embeddings, random_labels, value_and_gradients

TIGHT = {"rtol": 1e-9, "atol": 1e-9}


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10)
@given(
    sizes=st.lists(st.integers(1, 15), min_size=1, max_size=5).filter(lambda s: max(s) > 1),
    seed=st.integers(0, 10**6),
    new_names=st.permutations(range(5)),
)
def test_order_of_the_batch_and_names_of_the_classes(name, sizes, seed, new_names):
    labels = random_labels(sizes, seed)
    embeddings = random_embeddings(len(labels), seed + 1)
    loss = BY_NAME[name].build()
    value, gradient = value_and_gradients(loss, embeddings, {"labels": labels})
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed + 2))
    renamed = torch.tensor(new_names)[torch.unique(labels, return_inverse=True)[1]] - 2
    moved_value, moved_gradient = value_and_gradients(loss, embeddings[order], {"labels": renamed[order]})
    torch.testing.assert_close(moved_value, value, **TIGHT)
    torch.testing.assert_close(moved_gradient, gradient[order], **TIGHT)


@pytest.mark.parametrize("name", NAMES)
def test_order_of_the_gallery(name):
    embeddings, more = BATCHES[3]()
    loss = BY_NAME[name].build()
    value, of_queries, of_items = value_and_gradients(loss, embeddings, more)
    order = torch.randperm(len(more["ref_emb"]))
    moved = {**more, "ref_emb": more["ref_emb"][order], "ref_labels": more["ref_labels"][order]}
    moved_value, moved_of_queries, moved_of_items = value_and_gradients(loss, embeddings, moved)
    torch.testing.assert_close(moved_value, value, **TIGHT)
    torch.testing.assert_close(moved_of_queries, of_queries, **TIGHT)
    torch.testing.assert_close(moved_of_items, of_items[order], **TIGHT)


@pytest.mark.parametrize("name", NAMES)
def test_labels_are_a_relevant_matrix(name):
    """The two ways to say the same, which take different ways through the code."""
    for batch in BATCHES[:4]:
        embeddings, more = batch()
        same = more["labels"][:, None] == more.get("ref_labels", more["labels"])
        by_matrix = {key: value for key, value in more.items() if key != "ref_labels"} | {"relevant": same}
        one = value_and_gradients(BY_NAME[name].build(), embeddings, more)
        other = value_and_gradients(BY_NAME[name].build(), embeddings, by_matrix)
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, **TIGHT)


@pytest.mark.parametrize("name", NAMES)
def test_length_of_the_embeddings_does_not_matter(name):
    embeddings, more = BATCHES[0]()
    scale = torch.rand(len(embeddings), 1, dtype=torch.float64) * 100 + 0.01
    loss = BY_NAME[name].build()
    value, gradient = value_and_gradients(loss, embeddings, more)
    scaled_value, scaled_gradient = value_and_gradients(loss, embeddings * scale, more)
    torch.testing.assert_close(scaled_value, value, **TIGHT)
    torch.testing.assert_close(scaled_gradient * scale, gradient, **TIGHT)
    along = (gradient * embeddings).sum(1)
    torch.testing.assert_close(along, torch.zeros_like(along), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_are_left_as_they_are(name):
    embeddings, more = BATCHES[8]()
    before = {key: value.clone() for key, value in {"embeddings": embeddings, **more}.items()}
    value_and_gradients(BY_NAME[name].build(), embeddings, more)
    BY_NAME[name].build()(embeddings, **more)
    for key, value in {"embeddings": embeddings, **more}.items():
        assert torch.equal(value, before[key]), key
    if "balanced" in name:
        return
    scores, relevant = torch.rand(4, 9), torch.rand(4, 9) < 0.5
    before = scores.clone(), relevant.clone()
    BY_NAME[name].build().of_scores(scores, relevant)
    BY_NAME[name].build().of_scores(scores.requires_grad_(), relevant).backward()
    assert torch.equal(scores.detach(), before[0])
    assert torch.equal(relevant, before[1])
