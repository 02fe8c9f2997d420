"""The memory of past embeddings: what it holds, and what gallery it makes."""

import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import frontrank as fr
from frontrank.errors import InputError, InputTypeError
from frontrank.training import EmbeddingMemory
from tests.training.steps import DIM, past


def rows(n, start=0, dim=2):
    """Embeddings that say where they come from, and labels likewise."""
    numbers = torch.arange(start, start + n)
    return numbers[:, None].expand(n, dim).float().clone(), numbers + 100


def content(memory):
    state = memory.state_dict()
    assert len(memory) == len(state["labels"])
    assert state["embeddings"][:, 0].tolist() == [label - 100 for label in state["labels"].tolist()]
    return state["labels"].tolist()


@given(st.integers(1, 12), st.lists(st.integers(0, 15), min_size=1, max_size=8))
def test_holds_the_newest(size, batches):
    memory, seen = EmbeddingMemory(size), []
    for n in batches:
        memory.add(*rows(n, len(seen)))
        seen += range(len(seen), len(seen) + n)
        assert content(memory) == [100 + each for each in seen[-size:]]


def test_nothing_is_shared_with_what_was_added():
    memory, (embeddings, labels) = EmbeddingMemory(4), rows(4)
    memory.add(embeddings.requires_grad_(), labels)
    with torch.no_grad():
        embeddings.fill_(7)
    labels.fill_(7)
    state = memory.state_dict()
    assert content(memory) == [100, 101, 102, 103]
    assert not state["embeddings"].requires_grad
    state["embeddings"].fill_(9)
    assert content(memory) == [100, 101, 102, 103]
    assert memory.state_dict()["embeddings"].untyped_storage().nbytes() == 4 * 2 * 4


@pytest.mark.parametrize(
    ("given_dtype", "stored"),
    [(torch.float16, torch.float32), (torch.bfloat16, torch.float32), (torch.float64, torch.float64)],
    ids=str,
)
def test_dtypes(given_dtype, stored):
    memory, (embeddings, labels) = EmbeddingMemory(4), rows(3)
    memory.add(embeddings.to(given_dtype), labels.int())
    assert memory.state_dict()["embeddings"].dtype == stored
    assert memory.state_dict()["labels"].dtype == torch.int64
    ref_emb, ref_labels = memory.gallery(embeddings.to(given_dtype))
    assert (ref_emb.dtype, ref_labels.dtype) == (stored, torch.int64)
    ref_emb, _ = memory.gallery(embeddings)  # the gallery is as wide as the batch
    assert ref_emb.dtype == torch.float32


def test_gallery_is_the_memory_alone():
    memory = EmbeddingMemory(3)
    memory.add(*rows(5))
    ref_emb, ref_labels = memory.gallery(rows(2, 50)[0].requires_grad_())
    assert ref_emb[:, 0].tolist() == [2, 3, 4]
    assert ref_labels.tolist() == [102, 103, 104]
    assert not ref_emb.requires_grad
    assert memory.share_with_positive(torch.tensor([104, 104, 104, 7])) == 0.75
    assert EmbeddingMemory(3).share_with_positive(torch.tensor([104])) == 0
    levels = EmbeddingMemory(3)
    levels.add(torch.randn(2, 2), torch.tensor([[1, 5], [2, 5]]))
    queries = torch.tensor([[1, 5], [7, 5], [8, 6], [9, 6]])
    assert [levels.share_with_positive(queries, graded) for graded in (False, True)] == [0.25, 0.5]


def test_a_positive_of_the_past_is_found():
    """Two queries, each alone of its class in the batch: the memory gives one of them a positive."""
    loss, memory = fr.SmoothAP(), EmbeddingMemory(4)
    memory.add(torch.tensor([[1.0, 0.0], [0.8, 0.6]]), torch.tensor([1, 3]))
    batch, labels = torch.tensor([[0.6, 0.8], [0.0, 1.0]]), torch.tensor([1, 2])
    ref_emb, ref_labels = memory.gallery(batch)
    value = loss(batch, labels, ref_emb=ref_emb, ref_labels=ref_labels)
    # the positive (0.6) comes after the item of class 3 (0.96): AP is 1/2
    torch.testing.assert_close(value, torch.tensor(1 / 2))
    assert loss.last == {"queries_used": 1, "queries_skipped": 1}


# The state


def through_a_file(state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("added", [(), (3,), (4, 4), (30,)], ids=str)
@pytest.mark.parametrize("dim", [None, DIM])
def test_state_goes_on_as_it_was(added, dim):
    memory, again = EmbeddingMemory(10, dim), EmbeddingMemory(10, dim)
    for seed, n in enumerate(added):
        memory.add(*past(n, seed, torch.float32))
    again.add(*past(2, 99, torch.float32))  # is forgotten
    again.load_state_dict(through_a_file(memory.state_dict()))
    for each in (memory, again):
        each.add(*past(7, 50, torch.float32))
    for name, value in memory.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name
        assert again.state_dict()[name].dtype == value.dtype


def test_a_smaller_memory_takes_the_newest():
    memory, small = EmbeddingMemory(10), EmbeddingMemory(4)
    memory.add(*rows(9))
    small.load_state_dict(memory.state_dict())
    assert content(small) == [105, 106, 107, 108]
    assert small.size == 4


# What is refused


@pytest.mark.parametrize(
    ("arguments", "name"), [((0,), "size"), ((2.0,), "size"), ((True,), "size"), ((3, 0), "dim")], ids=str
)
def test_sizes_that_are_not_valid(arguments, name):
    with pytest.raises((InputError, InputTypeError), match=name):
        EmbeddingMemory(*arguments)


BAD = {
    "one dimension": (torch.zeros(3), torch.arange(3), InputError, "embeddings"),
    "whole numbers": (torch.zeros(3, 2).long(), torch.arange(3), InputTypeError, "embeddings"),
    "float labels": (torch.zeros(3, 2), torch.zeros(3), InputTypeError, "labels"),
    "few labels": (torch.zeros(3, 2), torch.arange(2), InputError, "labels"),
    "another dimension": (torch.zeros(3, 5), torch.arange(3), InputError, "embeddings"),
}


@pytest.mark.parametrize("call", ["add", "load_state_dict"])
@pytest.mark.parametrize("name", BAD)
def test_batches_that_do_not_fit(name, call):
    embeddings, labels, error, argument = BAD[name]
    memory = EmbeddingMemory(6)
    memory.add(*rows(3))
    arguments = [{"embeddings": embeddings, "labels": labels}] if call == "load_state_dict" else [embeddings, labels]
    with pytest.raises(error, match=argument):
        getattr(memory, call)(*arguments)
    with pytest.raises(InputError, match="state"):
        memory.load_state_dict({"embeddings": embeddings})
    assert content(memory) == [100, 101, 102]
