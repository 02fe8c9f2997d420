"""The pages as HTML: what they show, that users' text is only text, and that they can be read by all."""

import re
import threading
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

from frontrank.gallery import GalleryIndex, Limits
from frontrank.gallery import service as facets
from frontrank.gallery.pages import static_files
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item
from tests.gallery.samples import client_of, embed, line, picture, shown_of, soon, written
from tests.reporting.samples import parsed, plain

RED = written(picture("red"))
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</title><script>alert(1)</script>",
    "javascript:alert(1)",
    "{{ 7000 * 7001 }}{% raw %}",
    "line\nbreak\ttab",
    "x" * 3000,
    "]]><!--",
)


class Read:
    """The elements of a page with their attributes, and all text."""

    def __init__(self, text):
        page = parsed(text)
        self.elements, self.text = [(one.tag, one.attributes) for one in page.all()], plain(page.text)

    def all(self, name, /, **wanted):
        return [a for n, a in self.elements if n == name and all(a.get(k) == v for k, v in wanted.items())]


def read(client, path, status=200, **params):
    response = client.get(path, params=params or None)
    assert response.status_code == status
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    return Read(response.text)


def settled(client, path):
    """A page once it is not drawn anew any more."""
    return soon(lambda: read(client, path), lambda page: "data-poll" not in str(page.elements))


def hit_links(page):
    return [a["href"] for a in page.all("a") if "data-swap" in a and "title" in a]


def test_state_is_kept_in_every_link(client):
    page = read(client, "/", item="red/0.png", k=12, filter=["category=coloured"], expand="off")
    link = hit_links(page)[0]
    assert parse_qs(urlsplit(link).query) == {
        "item": ["red/1.png"], "k": ["12"], "filter": ["category=coloured"], "expand": ["off"]
    }  # fmt: skip
    (state,) = page.all("input", name="state")
    assert parse_qs(state["value"])["filter"] == ["category=coloured"]
    assert page.all("option", value="category=coloured")[0].keys() >= {"selected"}


def test_filters_that_are_in_no_list_stay_in_their_field(client):
    page = read(client, "/", item="red/0.png", filter="year>=2001")
    assert [a["value"] for a in page.all("input", name="filter")] == ["year>=2001", ""]


def test_an_upload_leads_to_its_page(client):
    response = client.post("/upload", files={"image": ("a.png", RED)}, data={"state": "item=blue%2F0.png&k=12"})
    assert response.status_code == 303
    name = parse_qs(urlsplit(response.headers["location"]).query)
    assert set(name) == {"upload", "k"}
    page = read(client, response.headers["location"])
    assert "Uploaded picture" in page.text
    assert client.get(f"/uploaded/{name['upload'][0]}").status_code == 200
    assert "✓ right" in read(client, response.headers["location"] + "&label=red").text


@pytest.mark.parametrize("state", ["k=0", "item=%00"])
def test_a_state_that_cannot_be_read(client, state):
    assert client.post("/upload", files={"image": ("a.png", RED)}, data={"state": state}).status_code == 422


def test_an_upload_that_is_gone_says_so(folder):
    client = client_of(shown_of(folder), limits=Limits(kept_uploads=1))
    first, second = (client.post("/upload", files={"image": ("a.png", RED)}).headers["location"] for _ in range(2))
    assert read(client, first, status=410).all("h1")
    assert read(client, second).all("h1")


def test_an_item_of_one_index_without_a_model_for_the_other(folder):
    client = client_of(shown_of(folder), GalleryIndex("few", line("AB")))
    upload = client.post("/upload", files={"image": ("a", RED)}).headers["location"]
    for page in (read(client, "/", item="red/1.png"), read(client, upload)):
        assert len(page.all("p", **{"class": "empty card"})) == 1  # why the other has no results


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: repr(text)[:24])
def test_text_of_users_is_only_text(folder, text):
    name = "".join(each for each in text if each.isprintable())[:512]
    path = "red/0.png"
    items = [
        Item(name, path, text, text, {"note": text}),
        Item("other", path, text, "plain", {"note": "plain"}),
        Item("third", path, "plain", text, {"note": text}),
    ]
    index = Index(dim=2)
    index.add(np.array([[1, 0], [0.9, 0.1], [0, 1]], np.float32), items)
    client = client_of(GalleryIndex("texts", index, lambda image: embed(image)[:2], (folder,)))
    for params in (
        {},
        {"item": name},
        {"item": "third", "filter": f"note={name[:500]}"},
        {"item": "third", "label": name},
    ):
        page = read(client, "/", **params)
        assert {a.get("src", "").split("?")[0] for a in page.all("script")} == {"/static/base.js", "/static/gallery.js"}
        assert {a["src"].split("?")[0] for a in page.all("img")} <= {"/picture"}
        assert not [a for _, a in page.elements for key in a if key.startswith("on")]
        assert "49007000" not in page.text
    page = settled(client, "/hardest")
    assert len(hit_links(page)) == 2
    assert len(page.all("script")) == 2


def test_an_index_without_items():
    client = client_of(GalleryIndex("empty", Index(dim=2)))
    assert read(client, "/").all("p", **{"class": "empty card"})
    assert settled(client, "/hardest").all("p", **{"class": "empty card"})


def test_only_queries_with_something_to_find_are_said_to_be_shown():
    assert re.search("3 queries .* the 2 ", settled(client_of(GalleryIndex("some", line("AAC"))), "/hardest").text)


def test_the_sizes_of_indexes_are_shown(folder):
    text = read(client_of(shown_of(folder), GalleryIndex("few", line("ABC"))), "/").text
    assert re.search("colours, 12 .*few, 3 ", text)


def test_text_of_a_url_is_only_text(client):
    for name in ("item", "upload", "side", "k", "expand"):
        response = client.get("/", params={name: HOSTILE[0]})
        assert response.status_code in (404, 410, 422)
        assert len(Read(response.text).all("script")) == 2


def test_costs_are_explained_where_there_are_some(client):
    assert "costs" in read(client_of(GalleryIndex("costly", line("ABA"))), "/", item="0").text
    assert "costs" not in read(client, "/", item="red/0.png").text  # all right ones come first


def test_a_page_does_not_wait_for_its_lists(folder, monkeypatch):
    monkeypatch.setattr(facets, "_FACET_WAIT", 0.05)
    shown, go_on = shown_of(folder), threading.Event()
    values = shown.index.values
    monkeypatch.setattr(shown.index, "values", lambda field: go_on.wait(60) and values(field))
    client = client_of(shown, limits=Limits(workers=1))
    try:
        for path in ("/", "/?item=red/0.png", "/?item=red/0.png&filter=label%3Dblue"):
            page = read(client, path)
            assert not page.all("option", value="label=blue")
        assert page.all("input", name="filter", value="label=blue")  # no list, but the filter holds
    finally:
        go_on.set()
    soon(lambda: read(client, "/?item=red/0.png"), lambda page: page.all("option", value="label=blue"))


def test_the_api_page_tells_of_every_route(client):
    page = read(client, "/api")
    for path in client.get("/api/v1/openapi.json").json()["paths"]:
        assert path in page.text
    references = {a["href"][1:] for a in page.all("a") if a.get("href", "").startswith("#")} - {"main"}
    assert references <= {a.get("id") for _, a in page.elements}


@pytest.mark.parametrize("name", static_files())
def test_files_of_the_page_load_nothing(name):
    text = static_files()[name].decode("utf-8").replace("http://www.w3.org/2000/svg", "")
    assert not [word for word in ("http:", "https:", "@import", "innerHTML", "eval(") if word in text]
