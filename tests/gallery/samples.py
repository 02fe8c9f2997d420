"""A small collection for the page: plain pictures of four colours in a folder, in a real index in memory."""

import io
import struct
import time
import zlib

import numpy as np
from fastapi.testclient import TestClient
from PIL import Image

from frontrank.errors import FrontrankError
from frontrank.gallery import GalleryIndex, Limits, create_app
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item

COLOURS = {"red": (220, 30, 30), "green": (30, 190, 40), "blue": (30, 40, 220), "grey": (128, 128, 128)}
EACH = 3
DIM = 12
TOKEN = "a-long-enough-token"
BASE = "http://127.0.0.1:8000"


def embed(picture):
    """The colours of the four quarters."""
    return np.asarray(picture.resize((2, 2), Image.Resampling.BOX), dtype=np.float32).ravel() - 100.0


def picture(colour, shade=0, size=(24, 20)):
    rgb = tuple(min(255, value + shade) for value in COLOURS.get(colour, colour))
    return Image.new("RGB", size, rgb)


def items_of(folder):
    """Pictures written as folder/<label>/<number>.png, and their items; year is 2000, 2001, ..."""
    found = []
    for label in COLOURS:
        (folder / label).mkdir(parents=True, exist_ok=True)
        for number in range(EACH):
            path = f"{label}/{number}.png"
            picture(label, 8 * number).save(folder / path)
            category = "colourless" if label == "grey" else "coloured"
            metadata = {"year": 2000 + number, "kind": "plain"} if number else {"year": 2000, "kind": "first"}
            found.append(Item(path, path, label, category, metadata))
    return found


def index_of(folder, embed=embed, items=None, **settings):
    items = items_of(folder) if items is None else items
    vectors = np.stack([embed(Image.open(folder / item.path).convert("RGB")) for item in items])
    index = Index(dim=vectors.shape[1], **settings)
    index.add(vectors, items)
    return index


def shown_of(folder, name="colours", **more):
    return GalleryIndex(name, index_of(folder), **{"embed": embed, "roots": (folder,), **more})


def client_of(*shown, limits=None, token=None, headers=None, base=BASE, **more):
    app = create_app(shown, limits=limits or Limits(), token=token, **more)
    return TestClient(app, base_url=base, headers=headers, follow_redirects=False)


def written(image, kind="png", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def sent(client, data, name="a.png", kind="image/png", **params):
    return client.post("/api/v1/search", files={"image": (name, data, kind)}, params=params)


def soon(ask, right):
    """What is answered as soon as it is right; a busy machine may take a while."""
    deadline = time.monotonic() + 60
    while not right(found := ask()):
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.02)
    return found


def chunk(kind, data):
    """A chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, *chunks, depth=8, colour=2, interlace=0):
    """A PNG of any header, right or wrong."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(chunks) + chunk(b"IEND", b"")


def line(labels):
    """An index of items on an arc, in the order of the labels."""
    angles = np.linspace(0, 1, len(labels))
    index = Index(dim=2)
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    index.add(vectors, [Item(str(i), label=label) for i, label in enumerate(labels)])
    return index


def break_method(index, name, when):
    """Let a method of an index fail at some calls."""
    method, calls = getattr(index, name), []

    def fail(*given, **more):
        calls.append(given)
        if when(len(calls)):
            raise FrontrankError("secret")
        return method(*given, **more)

    setattr(index, name, fail)
