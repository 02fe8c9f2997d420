import os

import numpy as np
import pytest
from PIL import Image

from frontrank.samples.glyphs import draw_glyph, fingerprints, open_font, write_pictures, written
from tests.data.files import refusal
from tests.samples.fonts import collection, font

TALL, FLAT, BLANK, HUGE, LOW = range(0x4E00, 0x4E05)
SHAPES = {
    TALL: (0, 0, 300, 600),
    FLAT: (0, 0, 600, 300),
    BLANK: (0, 0, 0, 0),
    HUGE: (-1000, -200, 2000, 1000),
    LOW: (700, -100, 1000, 500),  # the shape of TALL, elsewhere
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "boxes.ttf"
    path.write_bytes(font(SHAPES, missing=(0, 0, 600, 600)))
    return str(path)


def drawn(file, code, size=48):
    picture = draw_glyph(open_font(file, 0, size), chr(code), size)
    assert picture.mode == "L"
    assert picture.size == (size, size)
    return np.array(picture)


@pytest.mark.parametrize(
    ("code", "box"),
    [
        # 40 pixels are 1000 units: 300 x 600 units are 12 x 24 pixels
        (TALL, (12, 18, 36, 30)),
        (FLAT, (18, 12, 30, 36)),
        (LOW, (12, 18, 36, 30)),
    ],
    ids=["tall", "flat", "low"],
)
def test_ink_is_black_and_in_the_middle(file, code, box):
    top, left, bottom, right = box
    expected = np.full((48, 48), 255)
    expected[top:bottom, left:right] = 0
    np.testing.assert_array_equal(drawn(file, code), expected)


def test_other_sizes(file):
    ink = drawn(file, TALL, 24) < 128
    assert ink.any(1).sum() == 12
    assert ink.any(0).sum() == 6


def test_what_is_too_large_is_shrunk(file):
    ink = drawn(file, HUGE) < 128
    assert ink.any(0).all()
    assert 18 <= ink.any(1).sum() <= 20  # 3000 x 1200 units, 48 pixels wide
    assert ink.any(1).nonzero()[0].mean() == pytest.approx(23.5, abs=0.5)


def test_a_blank_glyph_is_no_picture(file):
    assert draw_glyph(open_font(file, 0, 48), chr(BLANK), 48) is None


def test_fonts_of_a_collection(tmp_path):
    path = tmp_path / "two.ttc"
    path.write_bytes(collection({TALL: SHAPES[TALL]}, {TALL: SHAPES[FLAT]}))
    for index, (high, wide) in enumerate([(24, 12), (12, 24)]):
        ink = np.array(draw_glyph(open_font(str(path), index, 48), chr(TALL), 48)) < 128
        assert (ink.any(1).sum(), ink.any(0).sum()) == (high, wide)


def test_fingerprints_are_of_pixels(file, tmp_path):
    codes = np.array([TALL, FLAT, BLANK, LOW, 0x5000, 0x5001])
    found = fingerprints(file, 0, 48, codes, tmp_path / "kept.npy")
    assert found.dtype == np.uint64
    tall, flat, blank, low, missing, again = found.tolist()
    assert blank == 0
    assert tall == low
    assert missing == again
    assert len({tall, flat, missing, 0}) == 4


def test_fingerprints_are_kept(file, tmp_path):
    codes, kept = np.array([TALL, FLAT]), tmp_path / "in" / "kept.npy"
    first = fingerprints(file, 0, 48, codes, kept)
    os.remove(file)
    open_font.cache_clear()
    np.testing.assert_array_equal(fingerprints(file, 0, 48, codes, kept), first)
    assert [path.name for path in kept.parent.iterdir()] == ["kept.npy"]
    refusal(lambda: fingerprints(file, 0, 48, codes, tmp_path / "other.npy"), "boxes.ttf", "leave that typeface out")


def test_pictures_are_written(file, tmp_path):
    targets = [tmp_path / "images" / "4E" / f"{name}.png" for name in ("tall", "flat")]
    write_pictures(file, 0, 48, np.array([TALL, FLAT]), [str(target) for target in targets], tmp_path / "work")
    for target, code in zip(targets, (TALL, FLAT), strict=True):
        with Image.open(target) as picture:
            assert (picture.format, picture.mode) == ("PNG", "L")
            np.testing.assert_array_equal(np.array(picture), drawn(file, code))
    assert list((tmp_path / "work").iterdir()) == []


def test_a_file_is_whole_or_not_there(tmp_path):
    target, work = tmp_path / "a" / "file", tmp_path / "work"

    def half():
        with written(target, work) as unfinished:
            unfinished.write_text("half")
            raise KeyError

    with pytest.raises(KeyError):
        half()
    assert not target.exists()
    with written(target, work) as unfinished:
        unfinished.write_text("whole")
        assert not target.exists()
    assert target.read_text() == "whole"


def test_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "a").write_text("a file where a folder should be")

    def write():
        with written(tmp_path / "a" / "file", tmp_path / "work") as unfinished:
            unfinished.write_text("x")

    refusal(write, "a/file cannot be written (File exists); mend that, or give another folder")


def test_what_is_no_font(tmp_path):
    (tmp_path / "bad.ttf").write_bytes(b"nonsense")
    refusal(lambda: open_font(str(tmp_path / "bad.ttf"), 0, 48), "bad.ttf cannot be read as a font")
