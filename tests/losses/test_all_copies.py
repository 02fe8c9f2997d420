"""What outlives a process: pickles, copies, state_dicts; and what a user reads: repr."""

import copy
import io
import pickle

import pytest
import torch

import frontrank as fr
from tests.cases import BY_NAME, NAMES, unequal_classes, value_and_gradients

WAYS = {"pickle": lambda loss: pickle.loads(pickle.dumps(loss)), "deepcopy": copy.deepcopy}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_round_trip(name, way):
    embeddings, more = unequal_classes()
    loss = BY_NAME[name].build()
    for _ in range(2):  # new, and after a call
        again = WAYS[way](loss)
        assert type(again) is type(loss)
        assert again.last == loss.last
        assert repr(again) == repr(loss)
        results = (value_and_gradients(each, embeddings, more) for each in (again, loss))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert not BY_NAME[name].build().load_state_dict(loss.state_dict()).missing_keys
    assert not list(loss.parameters())


def batch(items):
    targets = torch.rand(items, 3) < 0.4
    targets[0] = True
    return torch.randn(items, 3), targets


@pytest.mark.parametrize("way", [*WAYS, "state_dict", "file"])
def test_memory_of_a_classifier(way):
    loss = fr.ClassifierAP(memory=2, lam=5.0)
    for items in (4, 5, 6):
        loss(*batch(items))
    if way in WAYS:
        again = WAYS[way](loss)
    else:
        state = loss.state_dict()
        if way == "file":
            buffer = io.BytesIO()
            torch.save(state, buffer)
            buffer.seek(0)
            state = torch.load(buffer, weights_only=True)
        again = fr.ClassifierAP(memory=2, lam=5.0)
        again.load_state_dict(state)
    scores, targets = batch(7)
    expected = loss(scores, targets)
    assert again(scores, targets) == expected
    alone = fr.ClassifierAP(memory=2, lam=5.0)(scores, targets)
    assert alone != expected, "the memory makes no difference: nothing was tested"


def test_copies_have_a_memory_of_their_own():
    loss = fr.ClassifierAP(memory=3)
    again = copy.deepcopy(loss)
    by_state = fr.ClassifierAP(memory=3)
    by_state.load_state_dict(loss.state_dict())
    loss(*batch(4))
    scores, targets = batch(5)
    alone = fr.ClassifierAP(memory=3)(scores, targets)
    assert again(scores, targets) == alone
    assert by_state(scores, targets) == alone


SHOWN = [
    (fr.PNP(), ["PNP", "D_q", "4.0", "0.01", "include_query=False"]),
    (fr.FastAP(bins=12, distance="euclidean"), ["FastAP", "bins=12", "euclidean"]),
    (fr.BlackboxRecall(), ["BlackboxRecall", "loglog", "lam=4.0", "margin=0.2"]),
    (fr.ClassifierAP(), ["ClassifierAP", "lam=0.5", "margin=0.15", "memory=7", "0.333"]),
    (fr.RankLoss(fr.ranking.Recall("log"), fr.ranking.Exact()), ["RankLoss", "Recall", "'log'", "Exact"]),
]


@pytest.mark.parametrize(("loss", "parts"), SHOWN, ids=lambda x: type(x).__name__)
def test_repr_shows_the_settings(loss, parts):
    """That it shows every setting of the losses by name is tested with their registry."""
    assert [part for part in parts if part not in repr(loss)] == []
