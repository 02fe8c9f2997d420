"""Epochs, the place in an epoch and the shares of processes: the same for all three samplers."""

import json
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from frontrank.data.samplers import AllClassesBatches, BalancedBatches, CategoryBatches, shard_bounds
from frontrank.errors import InputError, InputTypeError

LABELS = np.repeat(np.arange(9), [5, 3, 7, 6, 2, 4, 4, 9, 5])
KINDS = LABELS % 3
SAMPLERS = {
    "balanced": lambda labels=LABELS, **more: BalancedBatches(labels, 8, 4, **more),
    "shrinking": lambda labels=LABELS, **more: BalancedBatches(labels, 8, 4, small="shrink", **more),
    "whole-categories": lambda labels=LABELS, **more: CategoryBatches(labels, KINDS, 11, batches_per_group=2, **more),
    "categories": lambda labels=LABELS, **more: CategoryBatches(labels, KINDS, 8, 2, groups_per_epoch=2, **more),
    "all-classes": lambda labels=LABELS, **more: AllClassesBatches(labels, 20, batches_per_epoch=5, **more),
}
each = pytest.mark.parametrize("build", SAMPLERS.values(), ids=SAMPLERS.keys())
any_sampler = st.sampled_from(sorted(SAMPLERS)).map(SAMPLERS.get)


@given(st.integers(0, 50), st.integers(1, 9))
def test_shares_are_those_of_array_split(size, world_size):
    bounds = [shard_bounds(size, rank, world_size) for rank in range(world_size)]
    expected = [part.tolist() for part in np.array_split(np.arange(size), world_size)]
    assert [list(range(*bound)) for bound in bounds] == expected


@each
def test_a_seed_and_an_epoch_say_it_all(build):
    first = list(build(seed=3))
    assert list(build(seed=3)) == first
    assert list(build(seed=4)) != first
    assert list(build(seed=2**40 + 3)) != first
    later = build(seed=3)
    later.set_epoch(1)
    assert list(later) != first


@each
def test_each_pass_is_the_next_epoch(build):
    batches = build()
    passes = [list(batches) for _ in range(3)]
    assert (batches.epoch, batches.position) == (3, 0)
    assert passes[0] != passes[1] != passes[2]
    assert {len(found) for found in passes} == {len(batches)}
    for epoch in (2, 0, 1):
        batches.set_epoch(epoch)
        assert list(batches) == passes[epoch]


def test_epochs_of_different_seeds_are_not_the_same_ones_shifted():
    found = set()
    for seed in range(5):
        batches = BalancedBatches(LABELS, 8, 4, seed=seed)
        found |= {str(list(batches)) for _ in range(5)}
    assert len(found) == 25


@given(any_sampler, st.integers(0, 3), st.data())
def test_resumed_at_any_batch_it_goes_on_as_it_would_have(build, epoch, data):
    whole = build()
    whole.set_epoch(epoch)
    done = data.draw(st.integers(0, len(whole)))
    taken = iter(whole)
    before = list(islice(taken, done))
    state = json.loads(json.dumps(whole.state_dict()))
    after = list(taken) + list(whole)
    resumed = build()
    resumed.load_state_dict(state)
    rest = len(resumed) - done
    assert list(resumed.global_batches()) == (after[:rest] or after[rest:])
    found = list(resumed) + list(resumed)
    assert found[: len(after)] == after
    whole.set_epoch(epoch)
    assert before + after[:rest] == list(whole)


@each
def test_position_counts_the_batches_handed_out(build):
    batches = build()
    taken = iter(batches)
    for count in range(1, 3):
        next(taken)
        assert batches.state_dict()["position"] == batches.position == count
        assert batches.state_dict()["epoch"] == 0
    batches.set_epoch(0)
    assert batches.position == 2
    batches.set_epoch(5)
    assert (batches.epoch, batches.position) == (5, 0)


@each
def test_a_state_of_a_given_batch(build):
    expected = list(build())
    ahead = build()
    list(ahead)
    resumed = build()
    resumed.load_state_dict(ahead.state_dict(epoch=0, position=1))
    resumed.set_epoch(0)
    assert list(resumed) == expected[1:]
    resumed.load_state_dict(ahead.state_dict(epoch=0, position=len(expected)))
    assert (resumed.epoch, resumed.position) == (1, 0)


@each
def test_looking_at_the_batches_moves_nothing(build):
    batches = build()
    looked = list(batches.global_batches())
    assert (batches.epoch, batches.position) == (0, 0)
    taken = iter(batches)
    next(taken)
    half_seen = batches.global_batches()
    next(taken)
    assert list(half_seen) == looked[1:]
    assert list(batches.global_batches()) == looked[2:]
    assert list(taken) == looked[2:]


@given(any_sampler, st.integers(1, 5), st.integers(0, 3))
def test_processes_share_each_batch(build, world_size, seed):
    ranks = [build(seed=seed, rank=rank, world_size=world_size) for rank in range(world_size)]
    whole = list(build(seed=seed))
    shares = list(zip(*ranks, strict=True))
    assert [[row for part in parts for row in part] for parts in shares] == whole
    assert all(parts[-1] for parts in shares)
    assert all(list(rank.global_batches()) == list(ranks[0].global_batches()) for rank in ranks)


@each
def test_resumed_on_another_number_of_processes(build):
    batches = build(rank=0, world_size=2)
    next(iter(batches))
    resumed = build(rank=1, world_size=3)
    resumed.load_state_dict(batches.state_dict())
    assert list(resumed.global_batches()) == list(build())[1:]


def test_the_process_group_says_the_rank(monkeypatch):
    batches = BalancedBatches(LABELS, 8, 4)
    whole = next(batches.global_batches())
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
    assert next(iter(batches)) == whole[6:]
    assert next(iter(BalancedBatches(LABELS, 8, 4, rank=0, world_size=2))) == whole[:4]
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 9)
    with pytest.raises(InputError, match="world_size 9 is more than the 8 images"):
        BalancedBatches(LABELS, 8, 4)


@pytest.mark.parametrize("workers", [0, 2])
def test_in_a_loader(workers):
    batches = CategoryBatches(LABELS, KINDS, 8, 2, batches_per_group=2)
    expected = list(batches.global_batches())
    loader = DataLoader(torch.from_numpy(LABELS), batch_sampler=batches, num_workers=workers)
    assert len(loader) == 6
    assert [batch.tolist() for batch in loader] == [LABELS[batch].tolist() for batch in expected]
    assert (batches.epoch, batches.position) == (1, 0)
    expected = list(batches.global_batches())
    assert [batch.tolist() for batch in loader] == [LABELS[batch].tolist() for batch in expected]


def other_row(labels):
    return np.concatenate([[8], labels[1:]])


@pytest.mark.parametrize(
    ("state_of", "into"),
    [
        pytest.param(BalancedBatches(other_row(LABELS), 8, 4), BalancedBatches(LABELS, 8, 4), id="label"),
        pytest.param(BalancedBatches(LABELS, 8, 4, seed=1), BalancedBatches(LABELS, 8, 4), id="seed"),
        pytest.param(BalancedBatches(LABELS, 12, 4), BalancedBatches(LABELS, 8, 4), id="size"),
        pytest.param(BalancedBatches(LABELS, 8, 2), BalancedBatches(LABELS, 8, 4), id="per_class"),
        pytest.param(BalancedBatches(LABELS, 8, 4, small="drop"), BalancedBatches(LABELS, 8, 4), id="small"),
        pytest.param(BalancedBatches(LABELS, 8, 4, batches_per_epoch=3), BalancedBatches(LABELS, 8, 4), id="batches"),
        pytest.param(CategoryBatches(LABELS, KINDS, 8, 4), CategoryBatches(LABELS, KINDS, 8), id="whole"),
        pytest.param(CategoryBatches(LABELS, KINDS, 9), CategoryBatches(LABELS, KINDS, 8), id="category size"),
        pytest.param(CategoryBatches(LABELS, LABELS % 2, 8), CategoryBatches(LABELS, KINDS, 8), id="category"),
        pytest.param(CategoryBatches(LABELS, KINDS, 8, None, 1), CategoryBatches(LABELS, KINDS, 8), id="together"),
        pytest.param(CategoryBatches(LABELS, KINDS, 8, None, 2, 6), CategoryBatches(LABELS, KINDS, 8), id="repeats"),
        pytest.param(
            CategoryBatches(LABELS, KINDS, 8, groups_per_epoch=3), CategoryBatches(LABELS, KINDS, 8), id="groups"
        ),
        pytest.param(AllClassesBatches(LABELS, 20), AllClassesBatches(LABELS, 19), id="all size"),
        pytest.param(
            AllClassesBatches(LABELS, 20, batches_per_epoch=9), AllClassesBatches(LABELS, 20), id="all batches"
        ),
        pytest.param(AllClassesBatches(LABELS, 20), BalancedBatches(LABELS, 20), id="sampler"),
    ],
)
def test_the_state_of_something_else_is_refused(state_of, into):
    with pytest.raises(
        InputError, match=r"taken with other labels, settings or seed than this .*Batches has"
    ) as raised:
        into.load_state_dict(state_of.state_dict())
    assert "\n" not in str(raised.value)
    assert (into.epoch, into.position) == (0, 0)


@each
def test_the_same_classes_under_other_names_are_the_same(build):
    renamed = build(np.array([f"class {label}" for label in LABELS]))
    renamed.load_state_dict(build().state_dict(epoch=2, position=1))
    assert (renamed.epoch, renamed.position) == (2, 1)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        pytest.param({"epoch": -1}, InputError, "epoch must be at least 0", id="epoch"),
        pytest.param({"epoch": 0.5}, InputTypeError, "epoch must be a whole number", id="half"),
        pytest.param({"position": 99}, InputError, "position must be from 0 to 8, got 99", id="position"),
        pytest.param({"position": None}, InputTypeError, "position must be a whole number", id="None"),
    ],
)
def test_a_damaged_state_is_refused(change, error, message):
    batches = BalancedBatches(LABELS, 8, 4)
    with pytest.raises(error, match=message):
        batches.load_state_dict({**batches.state_dict(), **change})
    assert (batches.epoch, batches.position) == (0, 0)


@pytest.mark.parametrize("key", ["epoch", "position", "fingerprint"])
def test_a_state_with_something_missing_is_refused(key):
    batches = BalancedBatches(LABELS, 8, 4)
    state = {name: value for name, value in batches.state_dict().items() if name != key}
    with pytest.raises(InputError, match=f"state has no '{key}'; give what state_dict"):
        batches.load_state_dict(state)


def test_a_state_of_another_kind_is_refused():
    with pytest.raises(InputTypeError, match=r"state must be what state_dict.* returned, got None"):
        BalancedBatches(LABELS, 8, 4).load_state_dict(None)


def test_epochs_and_positions_out_of_range():
    batches = BalancedBatches(LABELS, 8, 4)
    with pytest.raises(InputError, match="epoch must be at least 0, got -1"):
        batches.set_epoch(-1)
    with pytest.raises(InputError, match="position must be from 0 to 8, got 9"):
        batches.state_dict(position=9)
    with pytest.raises(InputTypeError, match=r"epoch must be a whole number, got 1\.0"):
        batches.state_dict(epoch=1.0)
    batches.set_epoch(np.int64(2))
    assert type(batches.state_dict()["epoch"]) is int
