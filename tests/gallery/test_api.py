"""The JSON API: its answers, its errors, and its own description."""

import numpy as np
import pytest

from frontrank.errors import InputError
from frontrank.gallery import GalleryIndex, Limits, create_app, service
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item
from tests.gallery.samples import (
    DIM,
    client_of,
    embed,
    index_of,
    items_of,
    line,
    picture,
    sent,
    shown_of,
    soon,
    written,
)

RED = written(picture("red"))
WRONG_FILTERS = (
    "label",
    "label<red",
    "a.b=c",
    "label;drop table=1",
    "label=red\0",
    "<script>=1",
    "year>=1e999",
    "x" * 65 + "=1",
)


def ids(answer):
    return [row["id"] for row in answer["results"]]


def test_search_from_an_item(client):
    answer = client.get("/api/v1/search", params={"item": "red/0.png", "k": 3}).json()
    assert ids(answer)[:2] == ["red/1.png", "red/2.png"]
    assert [row["place"] for row in answer["results"]] == [1, 2, 3]
    assert [row["relevant"] for row in answer["results"]] == [True, True, False]
    assert answer["query"] == {
        "id": "red/0.png", "label": "red", "category": "coloured", "metadata": {"year": 2000, "kind": "first"}
    }  # fmt: skip
    assert (answer["average_precision"], answer["complete"], answer["relevant"]) == (1.0, True, 2)
    assert answer["precision_recall"] == [{"recall": 0.5, "precision": 1.0}, {"recall": 1.0, "precision": 1.0}]
    assert (answer["looked"], answer["label"], answer["index"], answer["upload"]) == (11, "red", "colours", None)


def test_search_from_an_upload_and_again_by_its_name(client):
    answer = sent(client, RED, k=3).json()
    assert ids(answer) == ["red/0.png", "red/1.png", "red/2.png"]
    assert (answer["query"], answer["average_precision"], answer["results"][0]["relevant"]) == (None, None, None)
    again = client.get("/api/v1/search", params={"upload": answer["upload"], "k": 3}).json()
    assert again | {"milliseconds": 0} == answer | {"milliseconds": 0}
    labelled = client.get("/api/v1/search", params={"upload": answer["upload"], "label": "red"}).json()
    assert (labelled["average_precision"], labelled["relevant"]) == (1.0, 3)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["label=blue|green"], {"blue", "green"}),
        (["label!=blue", "category=coloured"], {"red", "green"}),
        (["year>=2001", "label=grey"], {"grey"}),
        (["nothing=1"], set()),
        (["label='red' or 1=1"], set()),  # only text
    ],
)
def test_filters(client, filters, expected):
    answer = client.get("/api/v1/search", params={"item": "red/0.png", "filter": filters}).json()
    assert {row["label"] for row in answer["results"]} - {"red"} == expected - {"red"}


@pytest.mark.parametrize("text", WRONG_FILTERS, ids=lambda text: repr(text)[:24])
def test_filters_that_cannot_be_read(client, text):
    params = {"item": "red/0.png", "filter": text}
    response = client.get("/api/v1/search", params=params)
    assert (response.status_code, list(response.json())) == (422, ["detail"])
    assert "\n" not in response.json()["detail"]
    page = client.get("/", params=params)
    assert page.status_code == 422
    assert "<script>" not in page.text
    assert sent(client, b"no image", filter=text).json() == response.json()  # before the picture is decoded


@pytest.mark.parametrize(
    ("path", "params", "status", "name"),
    [
        ("/search", {}, 422, "item"),
        ("/search", {"item": "red/0.png", "upload": "x"}, 422, "upload"),
        ("/search", {"item": "nothing"}, 404, "id"),
        ("/search", {"upload": "nothing"}, 410, "upload"),
        ("/search", {"item": "red/0.png", "index": "other"}, 404, "colours"),
        ("/search", {"item": "red/0.png", "k": 201}, 422, "k:"),
        ("/search", {"item": "x" * 513}, 422, "item:"),
        ("/search", {"item": "a\0b"}, 422, "control"),
        ("/search", {"item": "red/0.png", "filter": ["label=a"] * 17}, 422, "filter:"),
        ("/item", {}, 422, "id:"),
        ("/values", {"field": "a b"}, 422, "field"),
        ("/hardest", {"index": "other"}, 404, "index"),
        ("/nothing", {}, 404, "page"),
        ("/search/", {}, 404, "page"),
    ],
)
def test_errors_are_one_line_of_json(client, path, params, status, name):
    response = client.get(f"/api/v1{path}", params=params)
    assert response.status_code == status
    assert list(response.json()) == ["detail"]
    assert name in response.json()["detail"]
    assert "\n" not in response.json()["detail"]


def test_item(client):
    answer = client.get("/api/v1/item", params={"id": "grey/2.png"}).json()
    assert answer == {
        "id": "grey/2.png", "label": "grey", "category": "colourless", "metadata": {"year": 2002, "kind": "plain"}
    }  # fmt: skip


def test_values(client):
    answer = client.get("/api/v1/values", params={"field": "kind"}).json()
    assert answer["values"] == [{"value": "plain", "items": 8}, {"value": "first", "items": 4}]
    assert client.get("/api/v1/values", params={"limit": 1}).json()["distinct"] == 4
    assert client.get("/api/v1/values", params={"field": "nothing"}).json()["values"] == []


def test_stats(client):
    answer = client.get("/api/v1/stats").json()
    (index,) = answer["indexes"]
    assert (index["name"], index["items"], index["dim"], index["takes_uploads"]) == ("colours", 12, DIM, True)
    assert answer["searches"] == 0


def test_without_a_model_only_items_can_be_searched_from(folder):
    client = client_of(shown_of(folder, embed=None))
    assert sent(client, RED).status_code == 422
    assert client.get("/api/v1/search", params={"item": "red/0.png"}).status_code == 200


def test_a_model_that_is_not_that_of_the_index_is_refused(folder):
    index = index_of(folder, model="one")
    for model in ("another", ""):
        with pytest.raises(InputError, match="model"):
            create_app([GalleryIndex("colours", index, embed, (folder,), model=model)])
    assert sent(client_of(GalleryIndex("colours", index, embed, (folder,), model="one")), RED).status_code == 200


@pytest.mark.parametrize(
    ("found", "status"),
    [(np.full(DIM, np.nan), 422), (np.zeros(DIM), 422), (np.ones(DIM + 1), 503), (np.ones((1, DIM)), 200)],
)
def test_embeddings_that_cannot_be_used_and_a_row(folder, found, status):
    assert sent(client_of(shown_of(folder, embed=lambda image: found)), RED).status_code == status


@pytest.mark.parametrize(
    "path", ["/api/v1/search?item=red/0.png", "/api/v1/values", "/?item=a", "/picture?id=red/0.png"]
)
def test_an_index_that_fails_tells_only_the_log(folder, caplog, path):
    shown = shown_of(folder)
    client = client_of(shown)
    shown.index.close()
    response = client.get(path)
    assert response.status_code == 503
    assert "closed" not in response.text
    assert "closed" in caplog.text


def test_what_another_process_indexes_is_found_after_a_while(folder, tmp_path, monkeypatch):
    with Index(tmp_path / "index", dim=DIM) as writing, Index.load(tmp_path / "index") as reading:
        slow = client_of(GalleryIndex("colours", reading, embed))
        monkeypatch.setattr(service, "REFRESH_SECONDS", 0.0)
        quick = client_of(GalleryIndex("colours", reading, embed))
        assert ids(sent(slow, RED).json()) == []
        writing.add(embed(picture("red"))[None], [Item("a new one", label="red")])
        assert ids(sent(slow, RED).json()) == []
        assert ids(sent(quick, RED).json()) == ["a new one"]


def test_the_error_of_an_index_is_one_line_of_the_log(folder, caplog, monkeypatch):
    shown = shown_of(folder)

    def broken(names):
        raise InputError("broken\r\nGET /forged 200 1 ms\x1b[31m\x85\u2028")

    monkeypatch.setattr(shown.index, "get", broken)
    assert client_of(shown).get("/api/v1/item", params={"id": "a"}).status_code == 503
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "broken" in message
    assert message.isprintable()


def test_query_expansion_can_be_switched(folder):
    plain, expanding = (
        client_of(GalleryIndex("a", index_of(folder, expansion=how), embed)) for how in (None, (3, 0.0))
    )

    def score(client, **params):
        answer = client.get("/api/v1/search", params={"item": "red/0.png", "k": 1, **params})
        return answer.json()["results"][0]["score"]

    assert score(plain) == score(plain, expand="off") == score(expanding, expand="off")
    assert score(plain, expand="on") != score(plain)
    assert score(expanding) == score(expanding, expand="on") != score(expanding, expand="off")


@pytest.mark.parametrize("expansion", [None, (3, 1.0)], ids=["plain", "expanding"])
def test_an_item_of_a_whitened_index_is_searched_from_without_a_model(folder, expansion):
    items, vectors, index = whitened(folder, expansion)
    client = client_of(GalleryIndex("white", index))
    for item, vector in zip(items, vectors, strict=True):
        answer = client.get("/api/v1/search", params={"item": item.id, "k": 20}).json()
        (hits,) = index.search(vector[None], 20)  # from the embedding, which the index whitens
        assert [(row["id"], row["score"]) for row in answer["results"]] == [
            (found.id, pytest.approx(float(score), abs=1e-6))
            for found, score in zip(hits.items, hits.scores, strict=True)
            if found.id != item.id
        ]
    if expansion is None:
        (own,) = index.search(index.vectors(["red/0.png"]), 1, stored=True)
        assert (own.ids, own.scores[0]) == (("red/0.png",), pytest.approx(1.0))
        hardest = soon(lambda: client.get("/api/v1/hardest").json(), lambda answer: answer["state"] != "running")
        assert (hardest["state"], hardest["done"], len(hardest["hardest"])) == ("done", 12, 12)


def whitened(folder, expansion=None):
    """Items, their embeddings, and an index that whitens them to fewer dimensions."""
    from frontrank.retrieval.whitening import Whitening

    items = items_of(folder)
    vectors = np.stack([embed(picture(item.label, 8 * int(item.id[-5]))) for item in items]).astype(np.float32)
    vectors += np.random.default_rng(0).normal(0, 5, vectors.shape).astype(np.float32)
    index = Index(dim=DIM, whitening=Whitening.fit(vectors, dim=4), expansion=expansion)
    index.add(vectors, items)
    return items, vectors, index


def test_an_item_that_is_deleted_while_it_is_looked_up(folder, monkeypatch):
    shown = shown_of(folder)
    client = client_of(shown)
    vectors = shown.index.vectors

    def delete_first(names):
        shown.index.delete(names)
        return vectors(names)

    monkeypatch.setattr(shown.index, "vectors", delete_first)
    assert client.get("/api/v1/search", params={"item": "red/0.png"}).status_code == 404


def test_an_item_of_the_other_index_is_embedded_again(folder):
    first = index_of(folder)
    other = Index(dim=DIM)
    other.add(np.eye(DIM, dtype=np.float32)[:1], [Item("only here", "blue/1.png", "blue")])
    client = client_of(GalleryIndex("first", first, embed), GalleryIndex("other", other, roots=(folder,)))
    answer = client.get("/api/v1/search", params={"item": "only here", "index": "first", "k": 1}).json()
    assert (ids(answer), answer["query"], answer["relevant"]) == (["blue/1.png"], None, 3)
    response = client.get("/api/v1/search", params={"item": "red/0.png", "index": "other"})
    assert response.status_code == 404  # there is no model of the other index


def test_a_lower_bound_is_called_one():
    index = line(["far", *["near"] * 28, "far"])
    client = client_of(GalleryIndex("line", index), limits=Limits(results=5, depth=10))
    answer = client.get("/api/v1/search", params={"item": "0", "k": 5}).json()
    assert (answer["relevant"], answer["complete"], answer["looked"]) == (1, False, 10)
    assert answer["average_precision"] == 0.0


@pytest.mark.parametrize("names", [[], ["a", "b", "c"], ["a", "a"]], ids=str)
def test_indexes_are_one_or_two_of_different_names(folder, names):
    with pytest.raises(InputError, match="indexes"):
        create_app([shown_of(folder, name) for name in names])
