"""Pictures of items: only indexed ones, only below the roots, never the file itself."""

import io
import os
import re

import numpy as np
import pytest
from PIL import Image

from frontrank.errors import InputError
from frontrank.gallery import Limits, Shown
from frontrank.gallery import pictures as files
from frontrank.gallery.pictures import Pictures, find_file
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item
from tests.gallery.hostile import FORMS, REFUSED
from tests.gallery.samples import BASE, client_of, picture, shown_of

SECRET = "the secret"


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A root with a good picture and many traps, and what must not be reached outside of it."""
    top = tmp_path_factory.mktemp("tree")
    root, outside = top / "root", top / "outside"
    (root / "sub").mkdir(parents=True)
    outside.mkdir()
    picture("red").save(root / "sub" / "good.png")
    picture("blue").save(outside / "other.png")
    picture("blue").save(top / "root-2.png")
    (root / "text.png").write_text(SECRET)
    (root / "drawing.svg").write_text(f"<svg xmlns='http://www.w3.org/2000/svg'><!-- {SECRET} --></svg>")
    (root / "page.html").write_text(f"<html>{SECRET}")
    (root / "empty.png").touch()
    (root / "link.png").symlink_to(outside / "other.png")
    (root / "near.png").symlink_to("sub/good.png")
    (root / "link-folder").symlink_to(outside)
    (root / "sub" / "link-out").symlink_to("../../outside")
    (root / "link-of-link.png").symlink_to("link.png")
    (root / "dangling.png").symlink_to(root / "nowhere.png")
    (root / "loop.png").symlink_to("loop.png")
    (root / "circle-a").symlink_to("circle-b")
    (root / "circle-b").symlink_to("circle-a")
    os.mkfifo(root / "pipe.png")
    (root / "device.png").symlink_to("/dev/zero")
    return top


def said(response):
    """The one line that a refusal says, in JSON or on a page."""
    if response.headers["content-type"] == "application/json":
        line = response.json()["detail"]
    else:
        (line,) = re.findall(r'<p class="lead">(.*)</p>', response.text)
    assert "\n" not in line
    return line


TRAPS = (
    "",
    ".",
    "..",
    "/",
    "sub",
    "sub/",
    "text.png",
    "drawing.svg",
    "page.html",
    "empty.png",
    "link.png",
    "link-of-link.png",
    "link-folder/other.png",
    "link-folder",
    "dangling.png",
    "loop.png",
    "circle-a/a.png",
    "pipe.png",
    "device.png",
    "nowhere.png",
    "../outside/other.png",
    "sub/../../outside/other.png",
    "../root-2.png",
    "../../../../../../../../etc/passwd",
    "/etc/passwd",
    "/dev/zero",
    "/proc/self/environ",
    "file:///etc/passwd",
    "http://127.0.0.1:1/a.png",
    "\\\\server\\share\\a.png",
    "C:\\Windows\\win.ini",
    "~/.ssh/id_rsa",
    "$HOME/a.png",
    "sub/good.png/x",
    "sub/good.png\n",
    "%2e%2e/outside/other.png",
    "%2e%2e%2foutside%2fother.png",
    "..\\outside\\other.png",
    "..//outside//other.png",
    "..../outside/other.png",
    "\uff0e\uff0e/outside/other.png",
    "./././../outside/other.png",
    "sub/link-out/other.png",
    "sub/hard/../../../outside/other.png",
    "sub%2fgood.png",
    "x" * 300,
    "a/" * 3000,
    "{outside}/other.png",
    "{outside}/../outside/other.png",
)


@pytest.fixture(scope="module")
def tree_client(tree):
    """A page of one good picture, and of items that the traps are the paths of."""
    items = [Item("good", "sub/good.png")]
    items += [Item(f"trap {i}", path.replace("{outside}", str(tree / "outside"))) for i, path in enumerate(TRAPS)]
    index = Index(dim=2)
    index.add(np.ones((len(items), 2), np.float32), items)
    with client_of(Shown("traps", index, roots=(tree / "root",))) as found:
        assert found.get("/picture", params={"id": "good"}).status_code == 200
        yield found


@pytest.mark.parametrize("path", TRAPS, ids=lambda path: repr(path)[:40])
def test_no_file_beyond_the_root_and_none_that_is_no_picture(tree, tree_client, path):
    response = tree_client.get("/picture", params={"id": f"trap {TRAPS.index(path)}"})
    assert response.status_code == 404
    assert said(response).startswith("The picture of this item ")
    assert SECRET not in response.text
    assert str(tree) not in response.text


@pytest.mark.parametrize(
    "path",
    ["sub/good.png", "sub/../sub/good.png", "./sub/good.png", "near.png", "{root}/sub/good.png", "sub/good.png/"],
)
def test_a_good_picture_is_found_by_any_of_its_paths(tree, path):
    path = path.replace("{root}", str(tree / "root"))
    top = (tree / "root").resolve()
    assert find_file(path, [tree / "nowhere", tree / "root"]) == (top, top / "sub" / "good.png")


@pytest.mark.parametrize("swapped", ["sub/a.png", "sub"], ids=["the file", "its folder"])
def test_a_link_that_appears_after_the_file_was_found(tmp_path, monkeypatch, swapped):
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root, outside):
        (folder / "sub").mkdir(parents=True)
        picture("red").save(folder / "sub" / "a.png")

    def find_and_swap(path, roots):
        found = find_file(path, roots)
        (root / swapped).rename(tmp_path / "away")
        (root / swapped).symlink_to(outside / swapped)
        return found

    monkeypatch.setattr(files, "find_file", find_and_swap)
    with pytest.raises(InputError, match="not below a folder that may be shown"):
        Pictures(10**6, 10**6).picture("sub/a.png", [root], "small")


def test_without_roots_nothing_is_shown(tree):
    with pytest.raises(InputError, match="not below a folder that may be shown"):
        find_file(str(tree / "root" / "sub" / "good.png"), [])


def test_a_root_may_be_a_link(tree, tmp_path):
    (tmp_path / "link").symlink_to(tree / "root")
    assert find_file("sub/good.png", [tmp_path / "link"])[1].name == "good.png"


IDS = (
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "/etc/passwd",
    "red/0.png/../../../etc/passwd",
    "red/0.png\x00.html",
    "red/0.png\n",
    "red/0.png ",
    "RED/0.PNG",
    "red\\0.png",
    "red/0",
    "*",
    "%",
    "_",
    "'",
    "' OR '1'='1",
    "'; DROP TABLE items; --",
    '" or id != "',
    'id == "a" || true',
    "{{7*7}}",
    "${7*7}",
    "<script>alert(1)</script>",
    "\x1b[31mred",
    "\x7f",
    "\x80",
    "\u202e",
    "\ufeff",
    "\U0001f600",
    "x" * 512,
    "x" * 513,
    "x" * 4000,
    "null",
    "None",
    "0",
    "-1",
    "1e999",
    "[]",
)


@pytest.mark.parametrize("name", IDS, ids=lambda name: repr(name)[:30])
@pytest.mark.parametrize("path", ["/picture", "/api/v1/item", "/api/v1/search", "/"])
def test_ids_that_nobody_has(client, path, name):
    response = client.get(path, params={"id" if path in ("/picture", "/api/v1/item") else "item": name})
    assert response.status_code in (404, 422)
    assert said(response)
    assert "root:" not in response.text
    assert "<script>alert" not in response.text


UPWARDS = (
    "../", "..%2f", "%2e%2e/", "%2e%2e%2f", "%2E%2E%2F", ".%2e/", "%252e%252e%252f", "..%252f", "%25252e%25252e%25252f",
    "..%5c", "%2e%2e%5c", "..%255c", "%c0%ae%c0%ae%c0%af", "..%c0%af", "..%e0%80%af", "%ef%bc%8e%ef%bc%8e%ef%bc%8f",
    "..%e2%88%95", "..;/", "....//", "..%00/", "..%0d%0a/", "/%2e%2e/", "//", "%2f", "file:%2f%2f%2f",
)  # fmt: skip
PLACES = ("/static/", "/uploaded/", "/picture/", "/api/v1/", "/")


@pytest.mark.parametrize("upwards", UPWARDS)
@pytest.mark.parametrize("place", PLACES)
def test_no_way_up_from_any_page(tree_client, place, upwards):
    for target in (4 * upwards + "outside/other.png", upwards + "text.png", 8 * upwards + "etc/passwd"):
        response = tree_client.get(BASE + place + target)
        assert response.status_code in (404, 410)
        assert said(response)
        assert SECRET not in response.text
        assert "root:" not in response.text


NOWHERE = (
    "/static/../app.py",
    "/static/%2e%2e/app.py",
    "/static/..%2ftemplates%2fframe.html.j2",
    "/static/gallery.css/",
    "/static/gallery.css%00.png",
    "/static/GALLERY.CSS",
    "/static/%00",
    "/static/",
    "/static",
    "/templates/frame.html.j2",
    "/uploaded/",
    "/uploaded/nothing",
    "/etc/passwd",
    "/.git/config",
    "/.env",
    "/docs",
    "/redoc",
    "/openapi.json",
    "/%0d%0aSet-Cookie:a=b",
)


@pytest.mark.parametrize("path", NOWHERE)
def test_paths_that_lead_nowhere(client, path):
    response = client.get(path)
    assert response.status_code in (404, 410)
    assert said(response)
    assert "set-cookie" not in response.headers
    assert "def create_app" not in response.text
    assert "{%" not in response.text


def test_there_are_many_hostile_uploads_and_paths():
    uploads = set(REFUSED.values()) | set(FORMS.values())
    paths = {*TRAPS, *IDS, *NOWHERE, *(place + upwards for place in PLACES for upwards in UPWARDS)}
    assert len(uploads) == len(REFUSED) + len(FORMS) >= 150
    assert len(paths) >= 200


def test_small_and_large(client, folder):
    Image.new("RGB", (2000, 1000)).save(folder / "red" / "0.png")
    for size, expected in (("small", (256, 128)), ("large", (1024, 512))):
        response = client.get("/picture", params={"id": "red/0.png", "size": size})
        assert response.headers["content-type"] == "image/jpeg"
        assert response.headers["cache-control"] == "private, max-age=3600"
        assert Image.open(io.BytesIO(response.content)).size == expected
    picture("red").save(folder / "red" / "0.png")
    assert client.get("/picture", params={"id": "red/0.png", "size": "huge"}).status_code == 422


def test_memory_is_bounded_and_changed_files_are_read_anew(tree):
    pictures = Pictures(most_bytes=2000, max_pixels=10**6)
    root = tree / "root"
    for number in range(40):
        picture((number, 0, 0)).save(root / "sub" / "changing.png")
        os.utime(root / "sub" / "changing.png", ns=(number, number))
        shown = pictures.picture("sub/changing.png", [root], "small")
        assert abs(Image.open(io.BytesIO(shown.data)).convert("RGB").getpixel((3, 3))[0] - number) < 8
        assert 0 < pictures.held_bytes <= 2000
    (root / "sub" / "changing.png").unlink()


def test_a_picture_is_kept_for_the_next_time(tree, monkeypatch):
    pictures = Pictures(10**6, 10**6)
    first = pictures.picture("sub/good.png", [tree / "root"], "small")
    assert pictures.picture("sub/good.png", [tree / "root"], "small") is first


def test_a_picture_of_too_many_pixels_is_not_shown(folder):
    client = client_of(shown_of(folder), limits=Limits(upload_pixels=100))
    assert client.get("/picture", params={"id": "red/0.png"}).status_code == 404
