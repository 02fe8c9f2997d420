import secrets
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontrank.errors import InputError
from frontrank.retrieval import milvus
from frontrank.retrieval.items import Condition, Item, parse_filter
from frontrank.retrieval.milvus import MilvusAddress, MilvusEngine, MilvusServer, to_expression
from tests.errors import refusal
from tests.retrieval.engines import halves, some_items
from tests.retrieval.servers import milvus_url
from tests.retrieval.test_engine import check_message


@pytest.fixture(scope="module")
def shared():
    engine = MilvusEngine.create(milvus_url(), 8, b"settings")
    yield engine
    engine._server.ask("drop_collection")
    engine.close()


@pytest.fixture
def engine(shared):
    """An empty engine, one for all tests."""
    yield shared
    shared.delete([item.id for item in shared.scan(None, 1000)])


@given(st.text())
def test_no_text_ends_a_literal(text):
    expression = to_expression([Condition("label", "=", ("x" + text,))])
    if expression is not None:
        assert expression.count('"') == 2
        assert expression.isascii()
        assert expression.isprintable()


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("label=cat", '(label in ["cat"])'),
        ("label!=cat|a'b", '(label not in ["cat", "a\\u0027b"])'),
        ("path=", '(path in [""])'),
        ("label=", None),
        ("label!=", ""),
        ("id>3", None),
        ("n<=2", '(metadata["number"]["n"] <= 2.0)'),
        ("n=2", '(metadata["text"]["n"] in ["2"] or metadata["number"]["n"] in [2.0])'),
        ("n=true", '(metadata["flag"]["n"] == true or metadata["text"]["n"] in ["true"])'),
        ("n!=x", '((not (exists metadata["text"]["n"]) or not (metadata["text"]["n"] in ["x"])))'),
    ],
)
def test_conditions_as_milvus_reads_them(text, expression):
    assert to_expression([parse_filter(text)]) == expression


def test_several_conditions_as_milvus_reads_them():
    both = [parse_filter("label=cat"), parse_filter("path=a.jpg")]
    assert to_expression(both) == '(label in ["cat"]) and (path in ["a.jpg"])'
    never = Condition("a", "=", ("\x00",))
    assert (to_expression([*both, never]), to_expression([never]), to_expression([])) == (None, None, "")


@pytest.mark.servers
def test_collections_that_are_not_an_index(engine, monkeypatch):
    client = engine._server._client
    name = "other" + secrets.token_hex(4)
    client.create_collection(name, dimension=4)
    for call in (MilvusEngine.open, lambda url: MilvusEngine.create(url, 4, b"")):
        refusal(lambda call=call: call(milvus_url(name)), f"collection {name} ")
    client.drop_collection(name)
    url, ask = milvus_url(), MilvusServer.ask

    def kill(server, call, *arguments, **options):
        if call == "create_index":
            raise KeyboardInterrupt
        return ask(server, call, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(MilvusServer, "ask", kill)
        with pytest.raises(KeyboardInterrupt):
            MilvusEngine.create(url, 8, b"")
    refusal(lambda: MilvusEngine.open(url), "not created completely")
    removed = MilvusEngine.create(milvus_url(), 8, b"")
    removed._server.ask("drop_collection")
    with pytest.raises(InputError, match="not found") as error:
        removed.count(())
    check_message(error)
    removed.close()


@pytest.mark.servers
def test_writes_go_in_batches_and_additions_are_taken_back(engine, monkeypatch):
    monkeypatch.setattr(milvus, "_ROWS", 10)
    engine.add(halves(35), some_items(35))
    assert [item.id for item in engine.scan(None, 100)] == sorted(item.id for item in some_items(35))
    ask, sizes = engine._server.ask, []

    def fail(call, **options):
        if call == "upsert":
            sizes.append(len(options["data"]))
            if len(sizes) == 3:
                raise InputError("full")
        return ask(call, **options)

    with monkeypatch.context() as patch:
        patch.setattr(engine._server, "ask", fail)
        refusal(lambda: engine.add(halves(35), some_items(35, "new")), "full")
    assert sizes == [10, 10, 10]
    assert engine.count(()) == 35


@pytest.mark.servers
def test_texts_that_are_too_long(engine):
    long = "é" * 33_000
    items = [Item("p", long), Item("l", label=long), Item("c", category=long), Item("m", metadata={"x": long, "y": 1})]
    for item, name in zip(items, ("path", "label", "category", "metadata"), strict=True):
        with pytest.raises(InputError, match=rf"^{name} of"):
            engine.add(halves(2), [Item("fine"), item])
    assert engine.count(()) == 0
    longest = Item("x" * 512, "é" * 32_000, metadata={"x": "é" * 10_000})
    engine.add(halves(1), [longest])
    assert engine.get([longest.id]) == [longest]


@pytest.mark.servers
def test_equal_scores_are_ordered_by_id_however_many(engine, monkeypatch):
    names = [f"{i:03d}" for i in np.random.default_rng(0).permutation(300)]
    engine.add(np.repeat(halves(1), 300, 0), [Item(name, metadata={"n": int(name)}) for name in names])
    queries = np.concatenate([halves(1), halves(1, seed=1)])
    for k in (1, 7, 299, 300, 16_384):
        for hits in engine.search(queries, k, ()):
            assert list(hits.ids) == sorted(names)[:k]
    monkeypatch.setattr(milvus, "LONGEST_LIST", 20)
    with pytest.raises(InputError, match=r"^k .*20"):
        engine.search(halves(1), 20, ())
    assert len(engine.search(halves(1), 20, (parse_filter("n<15"),))[0]) == 15
    assert len(engine.search(halves(1), 19, ())[0]) == 19


@pytest.mark.parametrize("loads", [1, 3])
def test_waits_for_graphs_of_the_segments_that_are_left(monkeypatch, loads):
    """A merge of segments drops deleted rows: fewer rows are loaded than the server has built graphs of."""
    merged, small = SimpleNamespace(segment_id=2, num_rows=3669), SimpleNamespace(segment_id=3, num_rows=900)
    loaded = [[SimpleNamespace(segment_id=place, num_rows=3000, index_id=7)] for place in range(3 - loads, 3)]
    answers = {
        "flush": lambda: None,
        "describe_index": lambda: {"pending_index_rows": 0, "total_rows": 5002},
        "list_persistent_segments": lambda: [merged, small],
        "list_loaded_segments": lambda: loaded.pop(0),
    }
    server = SimpleNamespace(ask=lambda call, **arguments: answers[call]())
    sleeps = []
    monkeypatch.setattr(milvus.time, "sleep", sleeps.append)
    MilvusEngine(server, 8, is_exact=False).prepare()
    assert loaded == []
    assert len(sleeps) == (loads if loads > 1 else 0)  # the last one is for what the graphs replace


def test_the_parts_of_a_url():
    address = MilvusAddress.read("milvus://me:a%40b@host:5/name?secure=true&database=x&token=t%3Au")
    assert (address.user, address.password, address.token, address.database) == ("me", "a@b", "t:u", "x")
    assert (address.place, address.collection, address.secure, address.exact) == ("host:5", "name", True, False)
    assert "a@b" not in repr(address)
    assert "t:u" not in repr(address)
