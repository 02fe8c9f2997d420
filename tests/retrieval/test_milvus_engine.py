import os
import secrets
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontrank.errors import InputError
from frontrank.retrieval import milvus as milvus_engine
from frontrank.retrieval import milvus as milvus_server
from frontrank.retrieval.items import Condition, Item, parse_filter
from frontrank.retrieval.milvus import MilvusAddress, MilvusEngine, MilvusServer, to_expression
from tests.retrieval import engine_cases, servers
from tests.retrieval.index_engines import halves, some_items

USER, PASSWORD = servers.MILVUS_USER


def url_of(collection="", user=USER, password=PASSWORD, address=None, options=""):
    host, port = address or servers.milvus()
    return f"milvus://{user}:{password}@{host}:{port}/{collection or 't' + secrets.token_hex(8)}{options}"


def removed(engine):
    engine._server.ask("drop_collection")
    engine.close()


@pytest.fixture
def make():
    made = []

    def create(dim=8, settings=b"settings", **where):
        url = url_of(**where)
        made.append(MilvusEngine.create(url, dim, settings))
        return made[-1], url

    yield create
    for engine in made:
        removed(engine)


@pytest.fixture(scope="module")
def hostile():
    engine, kept = MilvusEngine.create(url_of(), 4, b""), engine_cases.hostile_items()
    engine.add(np.repeat(np.eye(1, 4, dtype=np.float32), len(kept), 0), kept)
    yield engine, kept
    removed(engine)


@pytest.fixture(scope="module")
def empty():
    engine = MilvusEngine.create(url_of(options="?exact=true"), 4, b"")
    yield engine
    removed(engine)


def one_line(error, *secret):
    text = str(error.value)
    assert "\n" not in text
    for hidden in (f":{PASSWORD}", *secret):
        assert hidden not in text
    return text


def test_the_server_is_on_loopback_only():
    host, port = servers.milvus()
    assert host == "127.0.0.1"
    listening = [
        line.split()[1]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        if Path(table).exists()
        for line in Path(table).read_text().splitlines()[1:]
        if line.split()[3] == "0A"
    ]
    assert f"0100007F:{port:04X}" in listening
    assert not [place for place in listening if place.endswith(f":{19530:04X}") and port != 19530]
    ours = os.readlink("/proc/self/ns/net")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text() == "milvus\n":
                assert os.readlink(process / "ns" / "net") != ours
        except OSError:
            continue  # it has ended, or is another user's


@given(engine_cases.filters)
def test_filters_mean_what_matches_says(hostile, chosen):
    engine_cases.check_filter(*hostile, chosen)


def test_every_hostile_value_is_found_alone(hostile):
    for value in (*engine_cases.HOSTILE, *engine_cases.NUMBERS):
        for field in ("path", "label", "a"):
            engine_cases.check_filter(*hostile, (Condition(field, "=", (value,)),))
        engine_cases.check_filter(*hostile, tuple(Condition(field, "!=", (value,)) for field in ("category", "b")))


def test_values_are_counted_as_filters_see_them(hostile):
    engine, kept = hostile
    for field in engine_cases.FIELDS:
        counts = engine.values(field)
        assert sum(counts.values()) == sum(item.value(field) is not None for item in kept)
    assert all(engine.count((Condition("a", "=", (text,)),)) >= count for text, count in engine.values("a").items())


@given(st.text())
def test_no_text_ends_a_literal(text):
    written = to_expression([Condition("label", "=", ("x" + text,))])
    if written is not None:
        assert written.count('"') == 2
        assert written.isascii()
        assert written.isprintable()


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("label=cat", '(label in ["cat"])'),
        ("label!=cat|a'b", '(label not in ["cat", "a\\u0027b"])'),
        ("path=", '(path in [""])'),
        ("label=", None),
        ("label!=", ""),
        ("id>3", None),
        ("n<=2", '(metadata["number"]["n"] <= 2.0)'),
        ("n=x", '(metadata["text"]["n"] in ["x"])'),
        ("n=2", '(metadata["text"]["n"] in ["2"] or metadata["number"]["n"] in [2.0])'),
        ("n=true", '(metadata["flag"]["n"] == true or metadata["text"]["n"] in ["true"])'),
        ("n!=x", '((not (exists metadata["text"]["n"]) or not (metadata["text"]["n"] in ["x"])))'),
    ],
)
def test_conditions_as_milvus_reads_them(text, written):
    assert to_expression([parse_filter(text)]) == written


def test_several_conditions_as_milvus_reads_them():
    both = [parse_filter("label=cat"), parse_filter("path=a.jpg")]
    assert to_expression(both) == '(label in ["cat"]) and (path in ["a.jpg"])'
    assert to_expression([*both, parse_filter("label>3")]) is None
    assert to_expression([]) == ""
    assert to_expression([Condition("a", "=", ("\x00",))]) is None


@given(st.lists(engine_cases.items, min_size=1, max_size=4, unique_by=lambda item: item.id))
@settings(max_examples=15)
def test_items_come_back_as_they_were(empty, given_items):
    engine_cases.check_round_trip(empty, given_items)


def test_nothing_there():
    assert MilvusEngine.open(url_of()) is None


def test_settings_are_kept_and_replaced(make):
    large = np.random.default_rng(0).bytes(3_000_000)
    engine, url = make(settings=large)
    again = MilvusEngine.open(url)
    assert (again.dim, again.describe()["search"]) == (8, "hnsw")
    assert again.read_settings() == large
    assert again.count(()) == 0
    assert again.scan(None, 10) == []
    engine.write_settings(b"\x00new")
    again.refresh()
    assert again.read_settings() == b"\x00new"
    assert len(list(again._scan(milvus_server.SETTINGS, ["id"]))) == 2
    engine.write_settings(b"")
    again.refresh()
    assert again.read_settings() == b""
    again.close()
    engine.add(halves(3), some_items(3))  # whose connection is still there
    engine._server.ask("delete", filter='id != "x"', partition_name=milvus_server.SETTINGS)
    with pytest.raises(InputError, match="has no settings"):
        engine.read_settings()
    assert engine.count(()) == 3


def test_a_collection_that_is_there(make):
    engine, url = make()
    with pytest.raises(InputError, match="is there already; open it, or choose another name"):
        MilvusEngine.create(url, 8, b"")
    client = engine._server._client
    name = "other" + secrets.token_hex(4)
    client.create_collection(name, dimension=4)
    for call in (MilvusEngine.open, lambda url: MilvusEngine.create(url, 4, b"")):
        with pytest.raises(InputError, match=f"collection {name} of milvus://.* is not a Frontrank index"):
            call(url_of(name))
    client.drop_collection(name)


def test_one_that_was_not_created_to_its_end(monkeypatch):
    url, ask = url_of(), MilvusServer.ask

    def killed(server, call, *arguments, **options):
        if call == "create_index":
            raise KeyboardInterrupt
        return ask(server, call, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(MilvusServer, "ask", killed)
        with pytest.raises(KeyboardInterrupt):
            MilvusEngine.create(url, 8, b"")
    with pytest.raises(InputError, match="was not created to its end; remove it, or choose another name"):
        MilvusEngine.open(url)


def test_writes_go_in_batches_and_additions_are_taken_back(make, monkeypatch):
    monkeypatch.setattr(milvus_engine, "_ROWS", 10)
    engine, _ = make()
    engine.add(halves(35), some_items(35))
    assert [item.id for item in engine.scan(None, 100)] == sorted(item.id for item in some_items(35))
    ask, sent = engine._server.ask, []

    def failing(call, **options):
        if call == "upsert":
            sent.append(len(options["data"]))
            if len(sent) == 3:
                raise InputError("the server is full")
        return ask(call, **options)

    monkeypatch.setattr(engine._server, "ask", failing)
    with pytest.raises(InputError, match="the server is full"):
        engine.add(halves(35), some_items(35, "new"))
    assert sent == [10, 10, 10]
    assert engine.count(()) == 35


def test_texts_that_are_too_long(make):
    engine, _ = make()
    long = "é" * 33_000
    items = [Item("p", long), Item("l", label=long), Item("c", category=long), Item("m", metadata={"x": long, "y": 1})]
    for item, name in zip(items, ("path", "label", "category", "metadata"), strict=True):
        with pytest.raises(InputError, match=f"{name} of '.' is longer than the 65535 bytes of Milvus; shorten it"):
            engine.add(halves(2), [Item("fine"), item])
    assert engine.count(()) == 0
    kept = Item("x" * 512, "é" * 32_000, metadata={"x": "é" * 10_000})
    engine.add(halves(1), [kept])
    assert engine.get([kept.id]) == [kept]


def test_equal_scores_are_ordered_by_id_however_many(make):
    engine, _ = make()
    names = [f"{i:03d}" for i in np.random.default_rng(0).permutation(300)]
    engine.add(np.repeat(halves(1), 300, 0), [Item(name) for name in names])
    queries = np.concatenate([halves(1), halves(1, seed=1)])
    for k in (1, 7, 299, 300, 16_384):
        for hits in engine.search(queries, k, ()):
            assert list(hits.ids) == sorted(names)[:k]


def test_a_list_that_is_too_long(make, monkeypatch):
    monkeypatch.setattr(milvus_engine, "LONGEST_LIST", 20)
    engine, _ = make()
    engine.add(halves(25), some_items(25))
    with pytest.raises(InputError, match="k must be less than 20 with Milvus, as 25 items match; lower it"):
        engine.search(halves(1), 20, ())
    assert len(engine.search(halves(1), 20, (parse_filter("n<15"),))[0]) == 15
    assert len(engine.search(halves(1), 19, ())[0]) == 19


@pytest.mark.parametrize("exact", ["true", "false"])
def test_it_finds_nearly_all_that_is_near(make, exact):
    engine, _ = make(dim=24, options=f"?exact={exact}")
    vectors = engine_cases.clustered(3000, 24)
    engine.add(vectors[:2500], some_items(2500))
    engine.prepare()
    engine.upsert(vectors[2000:], some_items(3000)[2000:])
    queries = engine_cases.clustered(30, 24, seed=1)
    least = 1 if exact == "true" else 0.95
    assert engine_cases.recall(engine, vectors, queries, 10) >= least
    assert engine_cases.recall(engine, vectors, queries, 10, (parse_filter("n<300"),), np.arange(3000) < 300) >= least
    few = (parse_filter("n=7|17|2027"),)
    assert engine_cases.recall(engine, vectors, queries, 3, few, np.isin(np.arange(3000), [7, 17, 2027])) == 1
    assert engine_cases.recall(engine, vectors, queries[:3], 3000) == 1
    assert engine.describe()["search"] == ("exact" if exact == "true" else "hnsw")
    assert engine.describe()["server"].startswith("Milvus 2.")


def test_threads_search_while_others_write(make):
    engine, _ = make()
    rows = halves(200)
    engine.add(rows[:100], some_items(100))

    def work(place):
        if place == 0:
            engine.add(rows[100:], some_items(200)[100:])
            return engine.delete([f"item-{i}" for i in range(150, 200)])
        return [len(hits) for _ in range(5) for hits in engine.search(rows[:4], 30, ())]

    results = engine_cases.in_threads(work, 8)
    assert results[0] == 50
    assert all(result == [30] * 20 for result in results[1:])
    assert engine.count(()) == 150


def test_vectors_of_hits(make):
    engine, _ = make()
    engine.add(halves(20), some_items(20))
    (hits,) = engine.search(halves(1, seed=1), 5, (), with_vectors=True)
    np.testing.assert_array_equal(hits.vectors, engine.vectors(list(hits.ids)))
    assert engine.search(halves(1), 5, (parse_filter("label>1"),), with_vectors=True)[0].vectors.shape == (0, 8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"password": "wrong-secret"}, "refuses the connection"),
        ({"options": "?database=nowhere"}, "refuses the connection .*database not found"),
        ({"options": "?token=wrong-secret", "user": "", "password": ""}, "refuses the connection"),
        (
            {"address": ("127.0.0.1", 9)},
            "milvus://127.0.0.1:9 does not answer; start the server, or correct host and port",
        ),
        ({"address": ("no-such-host.invalid", 9)}, "milvus://no-such-host.invalid:9 does not answer"),
        ({"address": ("[::1]", 9)}, r"milvus://\[::1\]:9 does not answer"),
    ],
    ids=["password", "database", "token", "port", "host", "ipv6"],
)
def test_a_server_that_cannot_be_used(change, message):
    with pytest.raises(InputError, match=message) as error:
        MilvusEngine.open(url_of(**change))
    one_line(error, "wrong-secret")


def test_a_token():
    host, port = servers.milvus()
    assert MilvusEngine.open(f"milvus://{host}:{port}/nothing?token={USER}:{PASSWORD}") is None


def test_a_server_that_goes_away(make, monkeypatch, capfd):
    _, url = make()
    with servers.Relay(servers.milvus()) as relay:
        engine = MilvusEngine.open(url_of(url.rpartition("/")[2], address=relay.address))
        engine.add(halves(3), some_items(3))
        monkeypatch.setattr(milvus_server, "_ANSWER_SECONDS", 2)  # not before: a busy server may take longer
        relay.cut()
        for call in (lambda: engine.count(()), lambda: engine.add(halves(1), [Item("new")])):
            with pytest.raises(InputError, match="does not answer; start the server") as error:
                call()
            one_line(error)
        engine.close()
    assert "Traceback" not in capfd.readouterr().err


def test_a_collection_that_was_removed_meanwhile(make):
    engine, _ = make()
    engine._server.ask("drop_collection")
    with pytest.raises(InputError, match=r"cannot do that: .*not found") as error:
        engine.count(())
    one_line(error)
    engine._server.create(8)


@pytest.mark.parametrize(
    "url",
    [
        "milvus://",
        "milvus://host",
        "milvus:///name",
        "milvus://host:port/name",
        "milvus://host:99999/name",
        "milvus://[host/name",
        "milvus://me:pa@ss@host/name",
        "milvus://me:pa/ss@host/name",
        "milvus://host/a-b",
        "milvus://host/1a",
        "milvus://host/a/b",
        "milvus://host/name?other=1",
        "milvus://host/name?exact=yes",
        "milvus://host/name?secure=",
    ],
)
def test_a_url_that_cannot_be_read(url):
    with pytest.raises(InputError, match=r"url (must be like milvus://host:port/collection|has )") as error:
        MilvusAddress.read(url)
    one_line(error, "pa@", "pa/")


def test_what_a_url_says():
    address = MilvusAddress.read("milvus://me:a%40b@host:5/name?secure=true&database=x&token=t%3Au")
    assert (address.user, address.password, address.token, address.database) == ("me", "a@b", "t:u", "x")
    assert (address.place, address.collection, address.secure, address.exact) == ("host:5", "name", True, False)
    assert "a@b" not in repr(address)
    assert "t:u" not in repr(address)


def test_without_pymilvus(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(InputError, match=r"pip install 'frontrank\[milvus\]'"):
        MilvusEngine.open("milvus://host/name")
