"""Uploads: what is refused and why, what is taken and what becomes of it."""

import io
import os
import re
import tempfile

import numpy as np
import pytest
from PIL import Image, ImageCms

from frontrank.errors import InputError
from frontrank.gallery import Limits
from frontrank.gallery.pictures import Upload, Uploads, also_holds, decoded
from tests.gallery.hostile import FORMS, REFUSED, UNCERTAIN
from tests.gallery.samples import TOKEN, client_of, picture, sent, shown_of, written

PROFILE = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


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


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("svg", "SVG drawing"),
        ("html", "web page"),
        ("pdf", "PDF document"),
        ("nothing", "empty"),
        ("png of 10,000 x 10,000", "10000 x 10000 pixels"),
        ("png of 100,000 x 100,000", "pixels"),
        ("jpeg with a zip behind it", "archive"),
        ("gif with a script behind it", "script"),
        ("jpeg cut to 50%", "cannot be decoded"),
        ("ppm file", "no image"),
    ],
)
def test_the_message_says_what_it_is(client, name, said):
    assert said in refused(sent(client, REFUSED[name]), 422)


def grey16():
    return Image.fromarray(np.full((20, 20), 40_000, dtype=np.uint16))


def turned(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return written(picture("red", size=(40, 20)), "jpeg", exif=exif.tobytes())


def animated(kind):
    return written(picture("red"), kind, save_all=True, append_images=[picture("blue")], duration=50)


RED = {
    "jpeg": written(picture("red"), "jpeg"),
    "progressive jpeg": written(picture("red"), "jpeg", progressive=True),
    "cmyk jpeg": written(picture("red").convert("CMYK"), "jpeg"),
    "jpeg with a profile": written(picture("red"), "jpeg", icc_profile=PROFILE),
    "jpeg with zeros behind it": written(picture("red"), "jpeg") + bytes(1000),
    "png with text behind it": written(picture("red")) + b"some camera wrote this",
    "palette png": written(picture("red").convert("P")),
    "transparent png": written(picture("red").convert("RGBA")),
    "webp": written(picture("red"), "webp"),
    "gif": written(picture("red"), "gif"),
    "bmp": written(picture("red"), "bmp"),
    "tiff": written(picture("red"), "tiff"),
    "packed tiff": written(picture("red"), "tiff", compression="tiff_lzw"),
    "cmyk tiff": written(picture("red").convert("CMYK"), "tiff"),
    "animated gif": animated("gif"),
    "animated webp": animated("webp"),
    "animated png": animated("png"),
    "tiff of two pages": animated("tiff"),
    "one pixel": written(picture("red", size=(1, 1))),
    "one pixel wide": written(picture("red", size=(1, 500))),
    **{f"turned {orientation}": turned(orientation) for orientation in range(1, 9)},
}
GREY = {
    "16-bit png": written(grey16()),
    "16-bit tiff": written(grey16(), "tiff"),
    "grey jpeg": written(picture("grey").convert("L"), "jpeg"),
    "grey and alpha": written(picture("grey").convert("LA")),
    "float tiff": written(Image.fromarray(np.full((20, 20), 0.5, dtype=np.float32)), "tiff"),
}


@pytest.mark.parametrize("name", RED | GREY)
def test_pictures_of_every_kind_are_found(client, name):
    response = sent(client, (RED | GREY)[name], k=3)
    assert response.status_code == 200, response.json()
    assert {row["label"] for row in response.json()["results"]} == {"red" if name in RED else "grey"}


@pytest.mark.parametrize("orientation", range(1, 9))
def test_what_is_shown_is_upright(client, orientation):
    name = sent(client, turned(orientation)).json()["upload"]
    shown = Image.open(io.BytesIO(client.get(f"/uploaded/{name}").content))
    assert shown.size == ((40, 20) if orientation <= 4 else (20, 40))


def test_what_is_shown_is_written_anew(client):
    data = written(picture("red"), "jpeg", comment=b"a secret") + b"and something behind it"
    answer = client.get(f"/uploaded/{sent(client, data).json()['upload']}")
    assert answer.headers["content-type"] == "image/jpeg"
    assert b"secret" not in answer.content
    assert b"something" not in answer.content


NAMES = (
    "../../etc/passwd",
    "..\\..\\windows\\win.ini",
    "/etc/passwd",
    "a.png%00.html",
    "a.svg",
    "a.html",
    "a.php",
    "",
    " ",
    ".",
    "..",
    "con",
    "a" * 3000,
    "<script>alert(1)</script>.png",
    '"; rm -rf ~; ".png',
    "\u202egnp.exe",
    "\U0001f600.png",
    "a;b=c.png",
)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name)[:30])
@pytest.mark.parametrize("kind", ["text/html", "image/svg+xml", "image/png", "application/x-msdownload"])
def test_names_and_kinds_of_files_do_not_matter(client, name, kind):
    response = sent(client, RED["webp"], name, kind)
    assert response.status_code in (200, 422)  # without a name it is no file
    assert name.strip() in ("", ".") or response.status_code == 200
    assert len(name) < 6 or name[:40] not in response.text


def test_nothing_is_left_on_disk(client, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    sent(client, RED["jpeg"])
    sent(client, REFUSED["svg"])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("size", [100_001, 104_096, 200_000, 5_000_000])
@pytest.mark.parametrize("said", [True, False], ids=["with its length", "in pieces"])
def test_more_bytes_than_allowed(folder, size, said):
    client = client_of(shown_of(folder), limits=Limits(upload_bytes=100_000))
    body = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n' + bytes(size) + b"\r\n--x--\r\n"
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    content = body if said else (body[at : at + 50_000] for at in range(0, len(body), 50_000))
    assert "100,000 bytes" in refused(client.post("/api/v1/search", content=content, headers=headers), 413)


def test_pixels_are_counted_before_they_are_decoded(folder):
    client = client_of(shown_of(folder), limits=Limits(upload_pixels=1000))
    assert sent(client, written(picture("red", size=(50, 20)))).status_code == 200
    assert "1,000" in refused(sent(client, written(picture("red", size=(50, 21)))), 422)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("path", ["/api/v1/search", "/upload"])
def test_forms_that_are_none(client, name, path):
    content, kind = FORMS[name]
    response = client.post(path, content=content, headers={"Content-Type": kind})
    assert response.status_code in (400, 422)
    if path.startswith("/api"):
        assert refused(response, 400, 422).endswith("; send multipart/form-data with one file, image")
    else:
        assert re.search("(there is no image|The form cannot be read).*; choose ", response.text, re.IGNORECASE)


@pytest.fixture(scope="module")
def locked(folder):
    return client_of(shown_of(folder), token=TOKEN)


@pytest.mark.parametrize("name", FORMS)
def test_forms_that_are_no_token(locked, name):
    content, kind = FORMS[name]
    response = locked.post("/login", content=content, headers={"Content-Type": kind})
    assert response.status_code in (400, 401, 413)
    assert "set-cookie" not in response.headers


def test_the_oldest_upload_goes_first():
    kept = Uploads(2, 1000)
    names = [kept.keep(Upload(b"", "image/webp")) for _ in range(2)]
    assert kept.get(names[0]) is not None  # now the other one is the oldest
    kept.keep(Upload(b"", "image/webp"))
    assert len(kept) == 2
    assert kept.get(names[1]) is None
    assert kept.get(names[0]) is not None
    assert len(set(names)) == 2


def test_bytes_that_are_only_a_picture():
    assert also_holds(written(picture("red"), "jpeg")) is None
    assert decoded(written(picture("red")), 10**6).size == (24, 20)
    with pytest.raises(InputError, match=r"^the file is empty"):
        decoded(b"", 10**6)
