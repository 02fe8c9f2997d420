"""Pictures of items: only indexed ones, only below the roots, never the file itself; and uploaded pictures."""

import io
import os
import re
import tempfile
from itertools import product

import numpy as np
import pytest
from PIL import Image

from frontrank.gallery import GalleryIndex, Limits
from frontrank.gallery import pictures as files
from frontrank.gallery.pictures import Pictures, RecentValues, find_file
from frontrank.pictures.processes import DecodePool
from frontrank.retrieval.index import Index
from frontrank.retrieval.items import Item
from tests.errors import refusal
from tests.gallery.hostile import FORMS, REFUSED, UNCERTAIN
from tests.gallery.samples import BASE, TOKEN, client_of, picture, sent, shown_of, written

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


def message_of(response):
    """The one line of a refusal, in JSON or on a page."""
    if response.headers["content-type"] == "application/json":
        line = response.json()["detail"]
    else:
        (line,) = re.findall(r'<p class="lead">(.*)</p>', response.text)
    assert "\n" not in line
    return line


TRAPS = (
    "", "..", "sub", "text.png", "drawing.svg", "empty.png", "link.png", "link-of-link.png", "link-folder/other.png",
    "sub/link-out/other.png", "dangling.png", "loop.png", "circle-a/a.png", "pipe.png", "device.png", "nowhere.png",
    "../outside/other.png", "sub/../../outside/other.png", "../root-2.png", "/etc/passwd", "/proc/self/environ",
    "file:///etc/passwd", "http://127.0.0.1:1/a.png", "~/.ssh/id_rsa", "sub/good.png/x", "%2e%2e/outside/other.png",
    "..\\outside\\other.png", "\uff0e\uff0e/outside/other.png", "x" * 300, "a/" * 3000, "{outside}/other.png",
)  # fmt: skip


@pytest.fixture(scope="module")
def tree_client(tree):
    """A page of one good picture, and of items that the traps are the paths of."""
    items = [Item("good", "sub/good.png")]
    items += [Item(f"trap {i}", path.replace("{outside}", str(tree / "outside"))) for i, path in enumerate(TRAPS)]
    index = Index(dim=2)
    index.add(np.ones((len(items), 2), np.float32), items)
    with client_of(GalleryIndex("traps", index, roots=(tree / "root",))) as found:
        assert found.get("/picture", params={"id": "good"}).status_code == 200
        yield found


@pytest.mark.parametrize("path", TRAPS, ids=lambda path: repr(path)[:40])
def test_no_file_beyond_the_root_and_none_that_is_no_picture(tree, tree_client, path):
    response = tree_client.get("/picture", params={"id": f"trap {TRAPS.index(path)}"})
    assert response.status_code == 404
    assert "picture" in message_of(response)
    assert SECRET not in response.text
    assert str(tree) not in response.text


@pytest.mark.parametrize("path", ["sub/../sub/good.png", "near.png", "{root}/sub/good.png"])
def test_a_good_picture_is_found_by_any_of_its_paths(tree, tmp_path, path):
    path, top = path.replace("{root}", str(tree / "root")), (tree / "root").resolve()
    (tmp_path / "link").symlink_to(top)
    for root in (tree / "root", tmp_path / "link"):
        assert find_file(path, [tree / "nowhere", root]) == (top, top / "sub" / "good.png")
    refusal(lambda: find_file(path, []), "picture")


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
    refusal(lambda: Pictures(10**6, 10**6, POOL).get("sub/a.png", [root], "small"), "picture")


POOL = DecodePool(1, 10.0)
IDS = (
    "../../etc/passwd", "red/0.png/../../../etc/passwd", "red/0.png\x00.html", "RED/0.PNG", "*", "' OR '1'='1",
    'id == "a" || true', "{{7*7}}", "<script>alert(1)</script>", "\x1b[31mred", "\u202e", "x" * 513,
)  # fmt: skip


@pytest.mark.parametrize("name", IDS, ids=lambda name: repr(name)[:30])
def test_ids_that_do_not_exist(client, name):
    for path, key in (("/picture", "id"), ("/api/v1/item", "id"), ("/api/v1/search", "item"), ("/", "item")):
        response = client.get(path, params={key: name})
        assert response.status_code in (404, 422)
        assert message_of(response)
        assert "root:" not in response.text
        assert "<script>alert" not in response.text


UPWARDS = (
    "../", "..%2f", "%2e%2e%2f", "%252e%252e%252f", "..%5c", "%c0%ae%c0%ae%c0%af", "%ef%bc%8e%ef%bc%8e%ef%bc%8f",
    "..;/", "....//", "..%00/", "..%0d%0a/", "//", "file:%2f%2f%2f",
)  # fmt: skip
PLACES = ("/static/", "/uploaded/", "/picture/", "/api/v1/", "/")


@pytest.mark.parametrize("upwards", UPWARDS)
def test_no_way_up_from_any_page(tree_client, upwards):
    targets = (4 * upwards + "outside/other.png", upwards + "text.png", 8 * upwards + "etc/passwd")
    for place, target in product(PLACES, targets):
        response = tree_client.get(BASE + place + target)
        assert response.status_code in (404, 410)
        assert message_of(response)
        assert SECRET not in response.text
        assert "root:" not in response.text


NOWHERE = (
    "/static/%2e%2e/app.py", "/static/..%2ftemplates%2fframe.html.j2", "/static/gallery.css%00.png", "/static/",
    "/templates/frame.html.j2", "/uploaded/nothing", "/etc/passwd", "/docs", "/openapi.json", "/%0d%0aSet-Cookie:a=b",
)  # fmt: skip


@pytest.mark.parametrize("path", NOWHERE)
def test_paths_that_lead_nowhere(client, path):
    response = client.get(path)
    assert response.status_code in (404, 410)
    assert message_of(response)
    assert "set-cookie" not in response.headers
    assert "def create_app" not in response.text
    assert "{%" not in response.text


def test_small_and_large(client, folder):
    Image.new("RGB", (2000, 1000)).save(folder / "red" / "0.png")
    for size, expected in (("small", (256, 128)), ("large", (1024, 512))):
        response = client.get("/picture", params={"id": "red/0.png", "size": size})
        assert response.headers["content-type"] == "image/jpeg"
        assert response.headers["cache-control"] == "private, max-age=3600"
        assert Image.open(io.BytesIO(response.content)).size == expected
    picture("red").save(folder / "red" / "0.png")
    assert client.get("/picture", params={"id": "red/0.png", "size": "huge"}).status_code == 422


def test_memory_is_bounded_and_changed_files_are_read_again(tree):
    pictures = Pictures(most_bytes=2000, max_pixels=10**6, pool=POOL)
    root = tree / "root"
    for number in range(0, 40, 8):
        picture((number, 0, 0)).save(root / "sub" / "changing.png")
        os.utime(root / "sub" / "changing.png", ns=(number, number))
        data = pictures.get("sub/changing.png", [root], "small")
        assert abs(Image.open(io.BytesIO(data)).convert("RGB").getpixel((3, 3))[0] - number) < 8
        assert pictures.get("sub/changing.png", [root], "small") is data  # it is kept for the next time
        assert 0 < pictures.recent.held_bytes <= 2000
    (root / "sub" / "changing.png").unlink()


# Uploads

WEBP = written(picture("red"), "webp")


def refused(response, *statuses):
    """It is one line of JSON that says why."""
    assert response.status_code in statuses
    assert set(response.json()) == {"detail"}
    detail = response.json()["detail"]
    assert detail
    assert "\n" not in detail
    assert "frontrank-upload" not in detail
    assert tempfile.gettempdir() not in detail
    return detail


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_files_are_refused(client, name):
    refused(sent(client, REFUSED[name]), 422)


@pytest.mark.parametrize("name", UNCERTAIN)
def test_damaged_files_do_no_harm(client, name):
    response = sent(client, UNCERTAIN[name])
    if response.status_code != 200:
        refused(response, 422)
    else:
        assert response.json()["results"]


def turned(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return written(picture("red", size=(40, 20)), "jpeg", exif=exif.tobytes())


GOOD = {  # all kinds of images are tested with read_image
    "jpeg with zeros behind it": ("red", written(picture("red"), "jpeg") + bytes(1000)),
    "png with text behind it": ("red", written(picture("red")) + b"some camera wrote this"),
    "animated webp": ("red", written(picture("red"), "webp", save_all=True, append_images=[picture("blue")])),
    "tiff": ("red", written(picture("red"), "tiff")),
    "turned": ("red", turned(6)),
    "16-bit png": ("grey", written(Image.fromarray(np.full((20, 20), 40_000, dtype=np.uint16)))),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_pictures_are_found(client, name):
    label, data = GOOD[name]
    response = sent(client, data, k=3)
    assert response.status_code == 200, response.json()
    assert {row["label"] for row in response.json()["results"]} == {label}


def test_the_preview_is_upright_and_encoded_again(client):
    for orientation, size in ((3, (40, 20)), (6, (20, 40))):
        name = sent(client, turned(orientation)).json()["upload"]
        assert Image.open(io.BytesIO(client.get(f"/uploaded/{name}").content)).size == size
    data = written(picture("red"), "jpeg", comment=b"a secret") + b"and something behind it"
    answer = client.get(f"/uploaded/{sent(client, data).json()['upload']}")
    assert answer.headers["content-type"] == "image/jpeg"
    assert b"secret" not in answer.content
    assert b"something" not in answer.content


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd", "a.png%00.html", "a.svg", "", "..", "a" * 3000, "<script>alert(1)</script>.png", "a;b=c.png"],
    ids=lambda name: repr(name)[:30],
)
def test_names_and_types_of_files_do_not_matter(client, name):
    for kind in ("text/html", "image/svg+xml"):
        response = sent(client, WEBP, name, kind)
        assert response.status_code == (200 if name else 422)  # without a name it is no file
        assert len(name) < 6 or name[:40] not in response.text


def test_nothing_is_left_on_disk(client, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sent(client, WEBP)
    sent(client, REFUSED["svg"])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("size", [100_001, 200_000])
@pytest.mark.parametrize("with_length", [True, False])
def test_more_bytes_than_allowed(folder, size, with_length):
    client = client_of(shown_of(folder), limits=Limits(upload_bytes=100_000))
    body = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n' + bytes(size) + b"\r\n--x--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    content = body if with_length else (body[at : at + 50_000] for at in range(0, len(body), 50_000))
    assert "100,000 bytes" in refused(client.post("/api/v1/search", content=content, headers=headers), 413)


def test_pixels_are_counted_before_they_are_decoded(folder):
    assert client_of(shown_of(folder), limits=Limits(upload_pixels=100)).get("/picture?id=red/0.png").status_code == 404
    client = client_of(shown_of(folder), limits=Limits(upload_pixels=1000))
    assert sent(client, written(picture("red", size=(50, 20)))).status_code == 200
    assert "1,000" in refused(sent(client, written(picture("red", size=(50, 21)))), 422)


@pytest.mark.parametrize("name", FORMS)
def test_forms_without_one_picture(client, locked, name):
    content, kind = FORMS[name]
    headers = {"Content-Type": kind}
    assert "multipart/form-data" in refused(
        client.post("/api/v1/search", content=content, headers=headers), 400, 415, 422
    )
    assert client.post("/upload", content=content, headers=headers).status_code in (400, 415, 422)
    response = locked.post("/login", content=content, headers=headers)
    assert response.status_code in (400, 401, 413, 415)
    assert "set-cookie" not in response.headers


@pytest.fixture(scope="module")
def locked(folder):
    return client_of(shown_of(folder), token=TOKEN)


def test_the_value_unused_for_longest_goes_first():
    recent = RecentValues(1000, 2)
    for name in "ab":
        recent.add(name, name.upper(), 10)
    assert recent.get("a") == "A"  # now the other one is the oldest
    recent.add("c", "C", 10)
    assert (len(recent), recent.held_bytes, recent.get("b"), recent.get("a")) == (2, 20, None, "A")
    recent.add("large", "L", 5000)  # the last one is kept in any case
    assert (len(recent), recent.held_bytes, recent.get("large")) == (1, 5000, "L")
