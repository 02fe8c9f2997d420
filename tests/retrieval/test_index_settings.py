"""The contract of an index, as to what it is made with and given: the same on every engine."""

import numpy as np
import pytest
import torch

from frontrank.errors import FrontrankError, InputError, InputTypeError
from frontrank.retrieval import Whitening
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item
from tests.retrieval.index_engines import ENGINES, check_hits, halves, some_items


def test_the_model_of_a_query(make):
    index = make(model="abc")
    index.search(halves(1), model="abc")
    index.search(halves(1))
    with pytest.raises(InputError, match=r"model has the fingerprint xyz, but .* was made with abc; search with that"):
        index.search(halves(1), model="xyz")
    with pytest.raises(InputError, match=r"model cannot be compared: .* was made without one"):
        make().search(halves(1), model="abc")
    with pytest.raises(InputTypeError, match="model must be the fingerprint of a model, got 3"):
        index.search(halves(1), model=3)


@pytest.mark.parametrize(
    ("embeddings", "error", "message"),
    [
        (np.ones((2, 7)), InputError, r"embeddings has 7 dimensions, the index has 8; use the model it was made with"),
        (np.ones(8), InputError, r"embeddings must have the shape \(rows, 8\), got \(8,\)"),
        (np.ones((3, 8)), InputError, "embeddings has 3 rows, items has 2; give one embedding per item"),
        (np.ones((2, 8), int), InputTypeError, "embeddings must be floating point numbers, got int64"),
        (np.array([[1.0] * 8, [0.0] * 8]), InputError, "embeddings: the row of 'b' is all zeros"),
        (np.array([[1.0] * 8, [np.nan] * 8]), InputError, "embeddings: the row of 'b' has NaN or infinite values"),
        (np.array([[np.inf] * 8, [1.0] * 8]), InputError, "embeddings: the row of 'a' has NaN or infinite values"),
        ("text", InputTypeError, "embeddings must be floating point numbers"),
    ],
)
def test_embeddings_that_cannot_be_kept(make, embeddings, error, message):
    index = make()
    for call in (index.add, index.upsert):
        with pytest.raises(error, match=message):
            call(embeddings, [Item("a"), Item("b")])
    assert index.count() == 0


@pytest.mark.parametrize("scale", [1e-300, 1e-40, 1e40, 1e300])
def test_very_small_and_very_large_rows(make, scale):
    index = make()
    index.add(halves(1).astype(np.float64) * scale, [Item("a")])
    assert index.search(halves(1).astype(np.float64) / scale, 1)[0].scores.tolist() == [1.0]


KINDS = {
    "tensor": torch.tensor,
    "half": lambda rows: torch.tensor(rows).half(),
    "bfloat16": lambda rows: torch.tensor(rows).bfloat16(),
    "float64": np.float64,
    "list": list,
    "fortran": np.asfortranarray,
}


@pytest.mark.parametrize("convert", KINDS.values(), ids=KINDS)
def test_embeddings_of_any_kind(make, convert):
    index = make()
    index.add(convert(halves(5)), some_items(5))
    assert index.search(convert(halves(5)), 1)[2].scores.tolist() == [1.0]


def test_arguments_of_the_wrong_kind(filled):
    index, _ = filled
    for call, message in [
        (lambda: index.search(halves(1), k=0), "k must be at least 1"),
        (lambda: index.search(halves(1), k=1.5), "k must be a whole number"),
        (lambda: index.search(halves(1)[0]), r"queries must have the shape \(rows, 8\)"),
        (lambda: index.search(np.zeros((2, 8))), r"queries: row 0 \(from 0\) is all zeros"),
        (lambda: index.search(np.ones((2, 9))), "queries has 9 dimensions, the index has 8"),
        (lambda: index.search(halves(1), filter="label"), "filter 'label' cannot be read"),
        (lambda: index.search(halves(1), filter=3), "filter must be text"),
        (lambda: index.search(halves(1), expand=True), r"expansion must be \(k, alpha\)"),
        (lambda: index.search(halves(1), expand=(0, 1)), "k of expansion must be at least 1"),
        (lambda: index.search(halves(1), expand=(1, -1)), "alpha of expansion must be at least 0"),
        (lambda: index.delete("item-1"), "ids must be a list of text"),
        (lambda: index.get([3]), "id must be text"),
        (lambda: index.vectors("abc"), "ids must be a list of text"),
        (lambda: index.add(halves(1), ["a"]), "items must be of the class Item"),
        (lambda: index.items(after=""), "id '' has 0 characters"),
        (lambda: index.items(limit=-1), "limit must be at least 0"),
        (lambda: index.values("a b"), "field is 'a b'; use id, path"),
    ]:
        with pytest.raises(FrontrankError, match=message) as found:
            call()
        assert "\n" not in str(found.value)
    assert index.count() == 60


def test_settings(engine, make):
    whitening = Whitening.fit(np.random.default_rng(0).standard_normal((30, 8)), dim=3, power=0.3)
    settings = make(model="abc", whitening=whitening, expansion=(5, 3)).settings
    assert (settings.dim, settings.stored_dim, settings.model, settings.expansion) == (8, 3, "abc", (5, 3.0))
    assert torch.equal(settings.whitening.components, whitening.components)
    assert settings.engine == ("faiss" if engine.name == "memory" else engine.name)
    assert "search" in settings.facts


def test_a_copy_in_a_folder(engine, filled, tmp_path):
    index, model = filled
    index.delete(["item-3"])
    model.delete(["item-3"])
    index.save(tmp_path / "copy")
    with Index.load(tmp_path / "copy") as copy:
        assert list(copy.items()) == list(index.items())
        assert copy.settings.dim == 8
        for query in halves(3, seed=8):
            check_hits(ENGINES[1], copy.search(query[None], 5)[0], model.best(query, 5))
    with pytest.raises(InputError, match=r"copy exists already; give another folder, or overwrite=True"):
        index.save(tmp_path / "copy")
    index.delete(["item-4"])
    index.save(tmp_path / "copy", overwrite=True)
    with Index.load(tmp_path / "copy") as copy:
        assert copy.count() == 58
        copy.save(tmp_path / "copy" / ".." / "copy")  # where it is already
        copy.delete(["item-5"])
        assert copy.count() == 57


def test_a_closed_index(make):
    index = make()
    with index:
        assert "8 dimensions, 0 items" in repr(index)
    index.close()
    assert "closed" in repr(index)
    for call in (index.count, lambda: index.search(halves(1)), lambda: index.add(halves(1), [Item("a")])):
        with pytest.raises(InputError, match="is closed; open it again"):
            call()


def test_opened_again(durable):
    whitening = Whitening.fit(np.random.default_rng(0).standard_normal((30, 8)))
    index = durable(model="abc", whitening=whitening, expansion=(5, 3.0))
    rows, items = np.random.default_rng(1).standard_normal((30, 8)), some_items(30)
    index.add(rows, items)
    index.upsert(rows[:3], items[10:13])
    index.delete(["item-4", "item-20"])
    before = index.search(rows[:5], 30), list(index.items()), index.labels()
    index.close()
    again = durable.again(index)
    assert list(again.items()) == before[1]
    assert again.labels() == before[2]
    for hits, expected in zip(again.search(rows[:5], 30, model="abc"), before[0], strict=True):
        assert hits.ids == expected.ids
        assert hits.scores.tolist() == expected.scores.tolist()
    assert torch.equal(again.settings.whitening.mean, whitening.mean)
    assert again.settings.expansion == (5, 3.0)
    again.add(rows[4:5], [items[4]])
    assert again.count() == 29


def test_settings_that_differ_are_refused_by_name(durable):
    rng = np.random.default_rng(0)
    first, second = (Whitening.fit(rng.standard_normal((30, 8)), dim=4) for _ in range(2))
    whitened, plain = durable(model="abc", whitening=first, expansion=(5, 3.0)), durable()
    durable.again(whitened, dim=8, model="abc", whitening=first, expansion=(5, 3))
    for index, settings, message in [
        (plain, {"dim": 9}, "dim is 9, but .* was made with 8; leave dim out, or make another index"),
        (whitened, {"model": "xyz"}, "model is xyz, but .* was made with abc"),
        (plain, {"model": "xyz"}, "model is xyz, but .* was made without one"),
        (whitened, {"whitening": second}, r"whitening is Whitening\(.*\), but .* was made with Whitening"),
        (plain, {"whitening": first}, "whitening is .* was made without one"),
        (whitened, {"expansion": (5, 2.0)}, r"expansion is \(5, 2.0\), but .* was made with \(5, 3.0\)"),
        (plain, {"expansion": (5, 2.0)}, r"expansion is \(5, 2.0\), but .* was made without one"),
    ]:
        with pytest.raises(InputError, match=message):
            durable.again(index, **settings)


def test_notes_of_several_who_have_it_open(durable):
    index = durable(model="abc")
    other = durable.again(index)
    index.note(model="runs/first", roots=["a", "b"])
    other.note(roots="c")
    assert other.settings.notes == durable.again(index).settings.notes == {"model": "runs/first", "roots": "c"}
    index.note(model="runs/first")
    assert index.settings.notes == other.settings.notes
    assert index.settings.model == "abc"
    with pytest.raises(FrontrankError, match="note 'roots' must be a text or several texts, got 3"):
        index.note(roots=3)
    assert index.settings.notes == other.settings.notes


def test_settings_that_cannot_be(make):
    whitening = Whitening.fit(np.random.default_rng(0).standard_normal((30, 6)))
    for settings, message in [
        ({"dim": 0}, "dim must be at least 1"),
        ({"dim": 2.0}, "dim must be a whole number"),
        ({"dim": None}, "needs dim, the dimensions|holds no index; make one by"),
        ({"whitening": whitening}, "whitening is of 6 dimensions, but dim is 8"),
        ({"whitening": 3}, "whitening must be a Whitening, got 3"),
        ({"model": 3}, "model must be the fingerprint"),
        ({"expansion": 3}, r"expansion must be \(k, alpha\)"),
    ]:
        with pytest.raises(FrontrankError, match=message):
            make(**settings)
