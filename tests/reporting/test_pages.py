import base64
import io

import numpy as np
import pytest
from PIL import Image, features

from frontrank.reporting.pages import make_thumbnails
from tests.reporting import samples


def table_of(folder, *paths, **extra):
    return samples.table_of("a" * len(paths), root=folder, paths=list(paths), **extra)


def picture_of(thumbnail):
    head, data = thumbnail.uri.split(",")
    picture = Image.open(io.BytesIO(base64.b64decode(data)))
    assert head == f"data:image/{picture.format.lower()};base64"
    return picture.convert("RGB")


@pytest.mark.parametrize(
    ("size", "side", "expected"),
    [((200, 100), 50, (50, 25)), ((100, 200), 50, (25, 50)), ((20, 10), 50, (20, 10)), ((1000, 20), 50, (50, 1))],
)
def test_the_longer_side_is_cut_to_the_pixels_given(tmp_path, size, side, expected):
    Image.new("RGB", size, (10, 200, 30)).save(tmp_path / "a.png")
    found, faults = make_thumbnails(table_of(tmp_path, "a.png"), {0: side})
    assert (found[0].width, found[0].height) == expected
    small = picture_of(found[0])
    assert small.size == expected
    assert np.abs(np.subtract(small.getpixel((0, 0)), (10, 200, 30))).max() < 12
    assert faults == []


def test_each_row_has_its_own_picture_and_pixels(tmp_path):
    for name, colour in (("a.png", (250, 0, 0)), ("b.png", (0, 250, 0)), ("c.png", (0, 0, 250))):
        Image.new("RGB", (64, 64), colour).save(tmp_path / name)
    found, _ = make_thumbnails(table_of(tmp_path, "a.png", "b.png", "c.png"), {2: 16, 0: 32})
    assert sorted(found) == [0, 2]
    assert [picture_of(found[row]).size for row in (0, 2)] == [(32, 32), (16, 16)]
    assert [int(np.argmax(picture_of(found[row]).getpixel((5, 5)))) for row in (0, 2)] == [0, 2]


def test_a_box_is_all_that_is_shown(tmp_path):
    picture = Image.new("RGB", (40, 40), (0, 0, 0))
    picture.paste((255, 255, 255), (20, 0, 40, 20))
    picture.save(tmp_path / "a.png")
    found, _ = make_thumbnails(table_of(tmp_path, "a.png", box=["20 0 40 20"]), {0: 16})
    assert min(picture_of(found[0]).getpixel((8, 8))) > 240


def test_a_file_that_has_gone_is_an_empty_frame_and_said(tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "c.png").write_bytes(b"")
    found, faults = make_thumbnails(table_of(tmp_path, "a.png", "b.png", "c.png"), {0: 16, 1: 16, 2: 16})
    assert [bool(found[row].uri) for row in range(3)] == [True, False, False]
    assert (found[1].width, found[1].height) == (16, 16)
    assert [fault.split()[0] for fault in faults] == ["b.png", "c.png"]


def test_without_webp_pictures_are_jpegs(tmp_path, monkeypatch):
    monkeypatch.setattr(features, "check", lambda name: False)
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    found, _ = make_thumbnails(table_of(tmp_path, "a.png"), {0: 16})
    assert found[0].uri.startswith("data:image/jpeg;base64,")
