import os
import secrets
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontrank.errors import InputError
from frontrank.retrieval import milvus
from frontrank.retrieval.items import Condition, Item, parse_filter
from frontrank.retrieval.milvus import MilvusAddress, MilvusEngine, MilvusServer, to_expression
from tests.retrieval import engines, servers
from tests.retrieval.engines import halves, some_items

USER, PASSWORD = servers.MILVUS_USER


def url_of(collection="", user=USER, password=PASSWORD, address=None, options=""):
    host, port = address or servers.milvus()
    return f"milvus://{user}:{password}@{host}:{port}/{collection or 't' + secrets.token_hex(8)}{options}"


def remove(engine):
    engine._server.ask("drop_collection")
    engine.close()


@pytest.fixture
def make():
    created = []

    def create(dim=8, settings=b"settings", **where):
        url = url_of(**where)
        created.append(MilvusEngine.create(url, dim, settings))
        return created[-1], url

    yield create
    for engine in created:
        remove(engine)


@pytest.fixture(scope="module")
def shared():
    engine = MilvusEngine.create(url_of(), 8, b"settings")
    yield engine
    remove(engine)


@pytest.fixture
def engine(shared):
    """An empty engine, one for all tests."""
    yield shared
    shared.delete([item.id for item in shared.scan(None, 1000)])


@pytest.fixture(scope="module")
def hostile():
    engine, items = MilvusEngine.create(url_of(), 4, b""), engines.hostile_items()
    engine.add(np.repeat(np.eye(1, 4, dtype=np.float32), len(items), 0), items)
    yield engine, items
    remove(engine)


@pytest.fixture(scope="module")
def empty():
    engine = MilvusEngine.create(url_of(options="?exact=true"), 4, b"")
    yield engine
    remove(engine)


def check_message(error, *secret):
    """One line without a password."""
    text = str(error.value)
    assert "\n" not in text
    for hidden in (f":{PASSWORD}", *secret):
        assert hidden not in text


@pytest.mark.servers
def test_the_server_of_the_tests_is_on_loopback_only():
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


@pytest.mark.servers
@given(engines.filters)
@settings(max_examples=40)
def test_filters_mean_what_matches_says(hostile, conditions):
    engines.check_filter(*hostile, conditions)


@pytest.mark.servers
def test_every_hostile_value_is_found(hostile):
    for value in (*engines.HOSTILE, *engines.NUMBERS):
        engines.check_filter(*hostile, (Condition("label", "=", (value,)),))
        engines.check_filter(*hostile, (Condition("a", "=", (value,)), Condition("path", "!=", (value,))))
        engines.check_filter(*hostile, tuple(Condition(field, "!=", (value,)) for field in ("category", "b")))


@pytest.mark.servers
def test_values_are_counted_as_filters_see_them(hostile):
    engine, items = hostile
    for field in engines.FIELDS:
        assert sum(engine.values(field).values()) == sum(item.value(field) is not None for item in items)
    for text, count in list(engine.values("a").items())[::4]:
        assert engine.count((Condition("a", "=", (text,)),)) >= count


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
        ("n=x", '(metadata["text"]["n"] in ["x"])'),
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
    assert to_expression([*both, parse_filter("label>3")]) is None
    assert to_expression([]) == ""
    assert to_expression([Condition("a", "=", ("\x00",))]) is None


@pytest.mark.servers
@given(engines.item_lists)
@settings(max_examples=12)
def test_items_come_back_as_they_were(empty, items):
    engines.check_round_trip(empty, items)


@pytest.mark.servers
def test_settings_are_stored_and_replaced(make):
    large = np.random.default_rng(0).bytes(3_000_000)
    engine, url = make(settings=large)
    again = MilvusEngine.open(url)
    assert (again.dim, again.describe()["search"]) == (8, "hnsw")
    assert again.read_settings() == large
    assert again.count(()) == 0
    assert again.scan(None, 10) == []
    for new in (b"\x00new", b""):
        engine.write_settings(new)
        again.refresh()
        assert again.read_settings() == new
    assert len(list(again._scan(milvus.SETTINGS, ["id"]))) == 1
    again.close()
    engine.add(halves(3), some_items(3))  # its connection is still there
    engine.write_settings(b"some")
    (part,) = {row["id"] for row in engine._scan(milvus.SETTINGS, ["id"])} - {milvus._HEAD}
    engine._delete([part], milvus.SETTINGS)
    with pytest.raises(InputError, match=r"^settings"):  # a part is missing
        engine.read_settings()
    engine._delete([milvus._HEAD], milvus.SETTINGS)
    with pytest.raises(InputError, match="no settings"):
        engine.read_settings()
    assert engine.count(()) == 3


@pytest.mark.servers
def test_collections_that_cannot_be_created_or_opened(make, monkeypatch):
    assert MilvusEngine.open(url_of()) is None
    engine, url = make()
    with pytest.raises(InputError, match="exists already"):
        MilvusEngine.create(url, 8, b"")
    client = engine._server._client
    name = "other" + secrets.token_hex(4)
    client.create_collection(name, dimension=4)
    for call in (MilvusEngine.open, lambda url: MilvusEngine.create(url, 4, b"")):
        with pytest.raises(InputError, match=f"collection {name} "):
            call(url_of(name))
    client.drop_collection(name)
    url, ask = url_of(), MilvusServer.ask

    def kill(server, call, *arguments, **options):
        if call == "create_index":
            raise KeyboardInterrupt
        return ask(server, call, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(MilvusServer, "ask", kill)
        with pytest.raises(KeyboardInterrupt):
            MilvusEngine.create(url, 8, b"")
    with pytest.raises(InputError, match="not created completely"):
        MilvusEngine.open(url)


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
        with pytest.raises(InputError, match="full"):
            engine.add(halves(35), some_items(35, "new"))
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
def test_equal_scores_are_ordered_by_id_however_many(engine):
    names = [f"{i:03d}" for i in np.random.default_rng(0).permutation(300)]
    engine.add(np.repeat(halves(1), 300, 0), [Item(name) for name in names])
    queries = np.concatenate([halves(1), halves(1, seed=1)])
    for k in (1, 7, 299, 300, 16_384):
        for hits in engine.search(queries, k, ()):
            assert list(hits.ids) == sorted(names)[:k]


@pytest.mark.servers
def test_long_lists_and_vectors_of_hits(engine, monkeypatch):
    monkeypatch.setattr(milvus, "LONGEST_LIST", 20)
    engine.add(halves(25), some_items(25))
    with pytest.raises(InputError, match=r"^k .*20"):
        engine.search(halves(1), 20, ())
    assert len(engine.search(halves(1), 20, (parse_filter("n<15"),))[0]) == 15
    assert len(engine.search(halves(1), 19, ())[0]) == 19
    (hits,) = engine.search(halves(1, seed=1), 5, (), with_vectors=True)
    np.testing.assert_array_equal(hits.vectors, engine.vectors(list(hits.ids)))
    assert engine.search(halves(1), 5, (parse_filter("label>1"),), with_vectors=True)[0].vectors.shape == (0, 8)


@pytest.mark.servers
@pytest.mark.parametrize("exact", ["true", "false"])
def test_finds_nearly_all_that_is_near(make, exact):
    engine, _ = make(dim=24, options=f"?exact={exact}")
    vectors = engines.clustered(3000, 24)
    engine.add(vectors[:2500], some_items(2500))
    engine.prepare()
    engine.upsert(vectors[2000:], some_items(3000)[2000:])
    queries = engines.clustered(30, 24, seed=1)

    def recall(queries, k, text=None, keep=None):
        conditions = () if text is None else (parse_filter(text),)
        return engines.recall(lambda some, k: engine.search(some, k, conditions), vectors, queries, k, keep)

    least = 1 if exact == "true" else 0.95
    assert recall(queries, 10) >= least
    assert recall(queries, 10, "n<300", np.arange(3000) < 300) >= least
    assert recall(queries, 3, "n=7|17|2027", np.isin(np.arange(3000), [7, 17, 2027])) == 1
    assert recall(queries[:3], 3000) == 1
    assert engine.describe()["search"] == ("exact" if exact == "true" else "hnsw")
    assert engine.describe()["server"].startswith("Milvus 2.")


@pytest.mark.servers
def test_threads_search_while_others_write(engine):
    rows = halves(200)
    engine.add(rows[:100], some_items(100))

    def work(place):
        if place == 0:
            engine.add(rows[100:], some_items(200)[100:])
            return engine.delete([f"item-{i}" for i in range(150, 200)])
        return [len(hits) for _ in range(3) for hits in engine.search(rows[:4], 30, ())]

    results = engines.in_threads(work, 6)
    assert results[0] == 50
    assert all(result == [30] * 12 for result in results[1:])
    assert engine.count(()) == 150


@pytest.mark.servers
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"password": "wrong-secret"}, "refuses"),
        ({"options": "?database=nowhere"}, "database not found"),
        ({"options": "?token=wrong-secret", "user": "", "password": ""}, "refuses"),
        ({"address": ("127.0.0.1", 9)}, "milvus://127.0.0.1:9 "),
        ({"address": ("no-such-host.invalid", 9)}, "milvus://no-such-host.invalid:9 "),
        ({"address": ("[::1]", 9)}, r"milvus://\[::1\]:9 "),
    ],
    ids=["password", "database", "token", "port", "host", "ipv6"],
)
def test_a_server_that_cannot_be_used(change, message):
    with pytest.raises(InputError, match=message) as error:
        MilvusEngine.open(url_of(**change))
    check_message(error, "wrong-secret")


@pytest.mark.servers
def test_a_token():
    host, port = servers.milvus()
    assert MilvusEngine.open(f"milvus://{host}:{port}/nothing?token={USER}:{PASSWORD}") is None


@pytest.mark.servers
def test_a_server_or_a_collection_that_goes_away(make, monkeypatch, capfd):
    direct, url = make()
    with servers.Relay(servers.milvus()) as relay:
        engine = MilvusEngine.open(url_of(url.rpartition("/")[2], address=relay.address))
        engine.add(halves(3), some_items(3))
        monkeypatch.setattr(milvus, "_ANSWER_SECONDS", 2)  # not before: a busy server may take longer
        relay.cut()
        for call in (lambda: engine.count(()), lambda: engine.add(halves(1), [Item("new")])):
            with pytest.raises(InputError, match="does not answer") as error:
                call()
            check_message(error)
        engine.close()
    monkeypatch.undo()
    direct._server.ask("drop_collection")
    with pytest.raises(InputError, match="not found") as error:
        direct.count(())
    check_message(error)
    direct._server.create(8)
    assert "Traceback" not in capfd.readouterr().err


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
        "milvus://host/name?other=1",
        "milvus://host/name?exact=yes",
    ],
)
def test_a_url_that_cannot_be_read(url):
    with pytest.raises(InputError, match=r"^url") as error:
        MilvusAddress.read(url)
    check_message(error, "pa@", "pa/")


def test_the_parts_of_a_url():
    address = MilvusAddress.read("milvus://me:a%40b@host:5/name?secure=true&database=x&token=t%3Au")
    assert (address.user, address.password, address.token, address.database) == ("me", "a@b", "t:u", "x")
    assert (address.place, address.collection, address.secure, address.exact) == ("host:5", "name", True, False)
    assert "a@b" not in repr(address)
    assert "t:u" not in repr(address)


def test_without_pymilvus(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(InputError, match=r"frontrank\[milvus\]"):
        MilvusEngine.open("milvus://host/name")
