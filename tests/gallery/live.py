"""The page as people meet it: served on this machine, over pictures that some queries are easy and some hard for."""

import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import numpy as np
import pytest
import uvicorn
from PIL import Image

from frontrank.gallery import GalleryIndex, Limits, create_app
from frontrank.gallery.app import Connection
from frontrank.retrieval.items import Item
from tests.gallery.samples import COLOURS, embed, index_of

EACH = 9
LIMITS = Limits(upload_bytes=100_000)


@dataclass(frozen=True)
class Site:
    """A server that runs, and what it serves."""

    url: str
    folder: Path
    items: tuple

    def of(self, **asked):
        """The URL of a page."""
        return f"{self.url}/?{urlencode(asked, doseq=True)}"


def brightness(picture):
    """The brightness of the four quarters: a worse embedding than that of `samples`, which has their colours."""
    return np.asarray(picture.convert("L").resize((2, 2), Image.Resampling.BOX), dtype=np.float32).ravel() - 100.0


def pictures_in(folder):
    """Pictures of four quarters, each near the colour that is the label, and their items."""
    lot, found = np.random.default_rng(0), []
    for label, colour in COLOURS.items():
        (folder / label).mkdir()
        for number in range(EACH):
            quarters = np.clip(np.array(colour) + lot.normal(0, 90, (2, 2, 3)), 0, 255).astype(np.uint8)
            path = f"{label}/{number}.png"
            Image.fromarray(quarters).resize((64, 64), Image.Resampling.NEAREST).save(folder / path)
            category = "colourless" if label == "grey" else "coloured"
            found.append(Item(path, path, label, category, {"name": f"{label} {number}", "year": 2000 + number % 3}))
    return tuple(found)


def ranked_by_hand(site, query, embed, keep=lambda item: True):
    """(id, cosine, whether its label is the query's) of all other items that are kept, best first."""
    vectors = {item.id: embed(Image.open(site.folder / item.path)).astype(np.float64) for item in site.items}
    labels = {item.id: item.label for item in site.items}
    unit = {name: vector / np.linalg.norm(vector) for name, vector in vectors.items()}
    kept = [item.id for item in site.items if item.id != query and keep(item)]
    found = [(name, float(unit[name] @ unit[query]), labels[name] == labels[query]) for name in kept]
    return sorted(found, key=lambda row: -row[1])


def verdict_by_hand(site, query, name):
    """The word on a result: right, half right (another label of the query's category) or wrong."""
    one, other = (next(item for item in site.items if item.id == each) for each in (query, name))
    if one.label == other.label:
        return "right"
    return "half right: of the same category" if one.category == other.category else "wrong"


def curve_by_hand(ranked):
    """(recall, precision) at each right item of a ranked list."""
    places = [place for place, (_, _, right) in enumerate(ranked, 1) if right]
    return [(n / len(places), n / place) for n, place in enumerate(places, 1)]


def ap_by_hand(ranked):
    return sum(precision for _, precision in curve_by_hand(ranked)) / len(curve_by_hand(ranked))


@contextmanager
def running(app, port=0):
    """The URL of an application that is served until the end of the block; port 0 takes a free one."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()  # who asks before the server is up waits for it
    server = uvicorn.Server(uvicorn.Config(app, http=Connection, ws="none", log_level="error", access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield "http://{}:{}".format(*listener.getsockname())
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def shown_in(folder, items, *names):
    """Indexes of the pictures by name: colours, and brightness, which expands its queries."""
    ways = {"colours": (embed, {}), "brightness": (brightness, {"expansion": (3, 2.0)})}
    for name in names:
        way, settings = ways[name]
        yield GalleryIndex(name, index_of(folder, way, items, **settings), embed=way, roots=(folder,))


@contextmanager
def site_of(folder, items, *names, port=0, **settings):
    app = create_app(tuple(shown_in(folder, items, *names)), limits=LIMITS, **settings)
    with running(app, port) as url:
        yield Site(url, folder, items)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quarters")
    return folder, pictures_in(folder)


@pytest.fixture(scope="module")
def one(pictures):
    """A page of one index."""
    with site_of(*pictures, "colours") as site:
        yield site


@pytest.fixture(scope="module")
def two(pictures):
    """A page of two indexes."""
    with site_of(*pictures, "brightness", "colours") as site:
        yield site


def hits(page, side=0):
    """The ids of the results that a page shows, best first."""
    links = page.locator(".side").nth(side).locator(".hit a")
    return links.evaluate_all("(all) => all.map((one) => new URL(one.href).searchParams.get('item'))")


def ap_text(ranked):
    """The average precision of a ranked list as the page writes it."""
    return f"{100 * ap_by_hand(ranked):.1f}\N{NARROW NO-BREAK SPACE}%"


def asked(**wanted):
    """For wait_for_url: a URL that asks for all of this; None for what it must not say."""
    return lambda url: all(parse_qs(urlsplit(url).query).get(name) == value for name, value in wanted.items())
