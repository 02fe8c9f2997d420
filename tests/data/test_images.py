import io
import os
import struct
import sys
import threading
import time
import tracemalloc
import warnings
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageCms

from frontrank.data import images
from frontrank.data.images import box_faults, image_fault, map_images, read_image
from frontrank.errors import InputError, InputTypeError
from tests.data.files import refusal

ORIENTATION = 0x0112
NOISE = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
SMOOTH = np.stack(
    [
        np.add.outer(np.arange(48) * 2, np.arange(64)),
        np.add.outer(np.arange(48), np.arange(64) * 2),
        np.full((48, 64), 90),
    ],
    -1,
).astype(np.uint8)


def pixels(path, **settings):
    picture = read_image(path, **settings)
    assert type(picture) is Image.Image
    assert picture.mode == "RGB"
    assert picture.info == {}
    return np.asarray(picture)


def saved(path, array, mode=None, **settings):
    image = array if isinstance(array, Image.Image) else Image.fromarray(array)
    (image.convert(mode) if mode else image).save(path, **settings)
    return path


def content(form, array=NOISE):
    file = io.BytesIO()
    Image.fromarray(array).save(file, form)
    return file.getvalue()


def bomb(width, height):
    """A PNG whose header claims a size; there is next to no data behind it."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("ending", ["png", "bmp", "tif", "webp", "gif", "PNG"])
def test_an_rgb_image_is_read_as_it_is(tmp_path, ending):
    few = NOISE // 86 * 86  # no more colours than a GIF holds
    settings = {"lossless": True} if ending == "webp" else {}
    assert (pixels(saved(tmp_path / f"a.{ending}", few, **settings)) == few).all()


def test_the_ending_does_not_matter(tmp_path):
    path = tmp_path / "a.jpg"
    path.write_bytes(content("PNG"))
    assert (pixels(path) == NOISE).all()
    assert (pixels(str(path)) == NOISE).all()


def test_a_jpeg_is_about_what_it_was(tmp_path):
    read = pixels(saved(tmp_path / "a.jpg", SMOOTH, quality=95))
    assert np.abs(read.astype(int) - SMOOTH).max() < 12


def upright_tag(number):
    exif = Image.Exif()
    exif[ORIENTATION] = number
    return exif


# what a camera held so stores of the upright picture: the inverse of what the tag tells a viewer to do
STORED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, 1),
    7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
    8: lambda a: np.rot90(a, -1),
}


@pytest.mark.parametrize("ending", ["png", "webp", "tif", "jpg"])
@pytest.mark.parametrize("number", STORED)
def test_the_orientation_is_applied(tmp_path, number, ending):
    array = SMOOTH if ending == "jpg" else NOISE
    settings = {"webp": {"lossless": True}, "jpg": {"quality": 95}}.get(ending, {})
    stored = np.ascontiguousarray(STORED[number](array))
    read = pixels(saved(tmp_path / f"a.{ending}", stored, exif=upright_tag(number), **settings))
    assert read.shape == array.shape
    assert np.abs(read.astype(int) - array).max() <= (12 if ending == "jpg" else 0)


@pytest.mark.parametrize("number", [0, 9, 77])
def test_an_unknown_orientation_is_upright(tmp_path, number):
    assert (pixels(saved(tmp_path / "a.png", NOISE, exif=upright_tag(number))) == NOISE).all()


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0garbage", b"Exif\0\0MM\0*\0\0\0\x08\0\x09\x01\x12", b"Exif\0\0", b"\xff" * 40]
)
def test_damaged_exif_data_and_profiles_say_nothing(tmp_path, exif):
    path = saved(tmp_path / "a.jpg", SMOOTH, exif=exif, icc_profile=b"no profile at all")
    assert pixels(path).shape == SMOOTH.shape
    assert image_fault(path) is None


GREY = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4


def grey_case(name):
    """A file of a mode and the greys it must be read as."""
    alpha = np.where(np.arange(64).reshape(8, 8) % 2, 255, 0).astype(np.uint8)
    white = np.where(alpha, GREY, 255)
    palette = Image.fromarray(GREY).convert("P")
    sixteen = GREY.astype(np.uint16) * 257
    whole = {
        "L": (Image.fromarray(GREY), GREY),
        "1": (Image.fromarray(alpha).convert("1"), alpha),
        "LA": (Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(alpha)]), white),
        "RGBA": (Image.merge("RGBA", [Image.fromarray(GREY)] * 3 + [Image.fromarray(alpha)]), white),
        "P": (palette, GREY),
        "I;16": (Image.fromarray(sixteen), GREY),
        "I;16 with odd values": (Image.fromarray(sixteen + np.uint16(100)), GREY),
    }
    return whole[name]


@pytest.mark.parametrize("name", ["L", "1", "LA", "RGBA", "P", "I;16", "I;16 with odd values"])
@pytest.mark.parametrize("ending", ["png", "tif"])
def test_modes_of_grey(tmp_path, name, ending):
    image, expected = grey_case(name)
    read = pixels(saved(tmp_path / f"a.{ending}", image))
    assert (read == expected[..., None]).all()


def test_half_transparent_pixels_are_mixed_with_white(tmp_path):
    image = Image.new("RGBA", (3, 2), (255, 0, 100, 51))  # a fifth of it
    assert (pixels(saved(tmp_path / "a.png", image)) == [255, 204, 224]).all()


@pytest.mark.parametrize("ending", ["png", "gif"])
def test_a_transparent_entry_of_a_palette_is_white(tmp_path, ending):
    image = Image.new("P", (4, 2), 0)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((1, 0), 1)
    read = pixels(saved(tmp_path / f"a.{ending}", image, transparency=0))
    assert read[0, 1].tolist() == [200, 100, 50]
    assert (np.delete(read.reshape(-1, 3), 1, 0) == 255).all()


def test_transparency_in_bytes_and_by_a_grey_or_a_colour(tmp_path):
    image = Image.new("P", (2, 1), 0)
    image.putpalette([0, 0, 0, 200, 100, 50])
    image.putpixel((1, 0), 1)
    assert pixels(saved(tmp_path / "a.png", image, transparency=b"\x33\xff")).tolist() == [[[204] * 3, [200, 100, 50]]]
    grey = Image.fromarray(np.array([[7, 9]], dtype=np.uint8))
    assert pixels(saved(tmp_path / "b.png", grey, transparency=7)).tolist() == [[[255] * 3, [9] * 3]]
    colour = Image.fromarray(np.array([[[1, 2, 3], [3, 2, 1]]], dtype=np.uint8))
    assert pixels(saved(tmp_path / "c.png", colour, transparency=(1, 2, 3))).tolist() == [[[255] * 3, [3, 2, 1]]]


def test_alpha_of_other_kinds(tmp_path):
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    image.putpixel((1, 0), (9, 8, 7, 255))
    assert pixels(saved(tmp_path / "a.tif", image)).tolist() == [[[255] * 3, [9, 8, 7]]]
    multiplied = Image.new("RGBA", (1, 1), (100, 100, 100, 51)).convert("RGBa")  # colours times their alpha
    assert np.abs(np.asarray(images._rgb(multiplied)).astype(int) - 224).max() <= 1
    with_alpha = Image.new("PA", (2, 1), (3, 0))
    with_alpha.putpalette([0] * 9 + [50, 60, 70])
    with_alpha.putpixel((1, 0), (3, 255))
    assert np.asarray(images._rgb(with_alpha)).tolist() == [[[255] * 3, [50, 60, 70]]]


def test_cmyk_and_lab(tmp_path):
    cmyk = Image.fromarray(SMOOTH).convert("CMYK")
    for path in (saved(tmp_path / "a.tif", cmyk), saved(tmp_path / "a.jpg", cmyk, quality=95)):
        assert np.abs(pixels(path).astype(int) - SMOOTH).max() < 14
    to_lab = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    lab = ImageCms.profileToProfile(Image.fromarray(SMOOTH), *to_lab, outputMode="LAB")
    assert lab.mode == "LAB"
    difference = np.abs(pixels(saved(tmp_path / "lab.tif", lab)).astype(int) - SMOOTH)
    assert difference.max() < 14  # 8 bits of LAB are coarse where it is dark
    assert difference.mean() < 1.5


FLOATS = {
    "0 to 1 is a share": ([0.0, 0.5, 1.0], [0, 128, 255]),
    "dark shares stay dark": ([0.0, 0.1, 0.2], [0, 26, 51]),
    "0 to 255 is a grey": ([0.0, 99.6, 200.0], [0, 100, 200]),
    "beyond: stretched": ([-100.0, 0.0, 100.0], [0, 128, 255]),
    "far beyond": ([0.0, 1e38, 2e38], [0, 128, 255]),
    "all alike and beyond": ([300.0, 300.0, 300.0], [0, 0, 0]),
}


@pytest.mark.parametrize("name", FLOATS)
def test_floats(tmp_path, name):
    values, expected = FLOATS[name]
    path = saved(tmp_path / "a.tif", np.array([values], dtype=np.float32))
    assert pixels(path)[0, :, 0].tolist() == expected


INTEGERS = {
    "16 bits": ([0, 257, 65535], [0, 1, 255]),
    "small ones are 16 bits too": ([0, 100, 200], [0, 0, 1]),
    "beyond: stretched": ([0, 50_000, 100_000], [0, 128, 255]),
    "negative: stretched": ([-2, 0, 2], [0, 128, 255]),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_of_32_bits(tmp_path, name):
    values, expected = INTEGERS[name]
    path = saved(tmp_path / "a.tif", np.array([values], dtype=np.int32))
    assert pixels(path)[0, :, 0].tolist() == expected


GREYS = {
    "16 bits": (np.arange(65536, dtype=np.uint16), lambda v: v / 257),
    "32 bits": (np.array([-7, 3, 99_999], dtype=np.int32), lambda v: (v + 7) / 100_006 * 255),
    "floats to 1": (np.linspace(0, 1, 999, dtype=np.float32), lambda v: v * 255),
    "floats to 255": (np.linspace(0, 255, 999, dtype=np.float32), lambda v: v),
}


@pytest.mark.parametrize("name", GREYS)
@pytest.mark.parametrize("shape", [(1, -1), (-1, 1)])
def test_greys_are_the_same_in_parts(monkeypatch, name, shape):
    values, by_hand = GREYS[name]
    monkeypatch.setattr(images, "_PART", 7)
    found = images._grey(values.reshape(shape), sixteen=name == "16 bits")
    assert found.dtype == np.uint8
    assert np.array_equal(found, np.rint(by_hand(values.astype(np.float64))).reshape(shape))


def test_greys_take_little_memory():
    values = np.zeros((4000, 4000), dtype=np.uint16)
    tracemalloc.start()
    try:
        images._grey(values, sixteen=True)
        assert tracemalloc.get_traced_memory()[1] < 3 * values.size  # 1 byte a pixel, and what is computed with
    finally:
        tracemalloc.stop()


def test_pixels_that_are_no_numbers(tmp_path):
    for value in (np.nan, np.inf):
        path = saved(tmp_path / "a.tif", np.array([[0, value]], dtype=np.float32))
        refusal(lambda path=path: read_image(path), path, "no finite numbers")


@pytest.mark.parametrize("ending", ["gif", "webp", "png", "tif"])
def test_the_first_picture_of_several(tmp_path, ending):
    frames = [Image.new("RGB", (20, 10), colour) for colour in ((200, 0, 0), (0, 200, 0), (0, 0, 200))]
    settings = {"lossless": True} if ending == "webp" else {}
    path = tmp_path / f"a.{ending}"
    frames[0].save(path, save_all=True, append_images=frames[1:], **settings)
    with Image.open(path) as image:
        assert image.n_frames == 3
    assert (pixels(path) == [200, 0, 0]).all()


def test_mpo(tmp_path):
    frames = [Image.new("RGB", (80, 60), colour) for colour in ((200, 0, 0), (0, 200, 0))]
    path = tmp_path / "a.jpg"
    frames[0].save(path, "MPO", save_all=True, append_images=frames[1:])
    assert np.abs(pixels(path).astype(int) - [200, 0, 0]).max() < 8
    assert pixels(path, at_least=15).shape == (15, 20, 3)


def test_a_box(tmp_path):
    path = saved(tmp_path / "a.png", NOISE)
    assert (pixels(path, box=(3, 5, 20, 40)) == NOISE[5:40, 3:20]).all()
    assert (pixels(path, box=[2.6, 5.4, 19.7, 39.5]) == NOISE[5:40, 3:20]).all()
    assert (pixels(path, box=np.array([-9, -1, 20, 400])) == NOISE[:, :20]).all()
    assert (pixels(path, box=(0, 0, 64, 48)) == NOISE).all()


def test_a_box_is_of_the_upright_picture_at_full_size(tmp_path):
    stored = np.ascontiguousarray(STORED[6](NOISE))
    path = saved(tmp_path / "a.png", stored, exif=upright_tag(6))
    assert (pixels(path, box=(60, 0, 64, 10)) == NOISE[:10, 60:]).all()
    large = saved(tmp_path / "a.jpg", np.kron(SMOOTH, np.ones((8, 8, 1), dtype=np.uint8)))
    assert pixels(large, box=(0, 0, 300, 200), at_least=20).shape == (200, 300, 3)


@pytest.mark.parametrize("box", [(64, 0, 70, 9), (0, 48, 9, 50), (5, 5, 5, 9), (9, 0, 3, 9), (-9, -9, 0, 0)])
def test_a_box_with_nothing_in_it(tmp_path, box):
    path = saved(tmp_path / "a.png", NOISE)
    refusal(lambda: read_image(path, box=box), path, "nothing in the box", "64 x 48")


EDGES = [
    (60, 40, 63.6, 60),
    (63, 47, 70, 70),
    (64, 0, 70, 9),
    (0, 48, 9, 50),
    (50, 0, 60, 9),
    (5, 5, 5, 9),
    (-9, -9, 0, 0),
]
EDGES += [(0, 0, 64, 48), (63.6, 0, 70, 9), (-9, 47.4, 1, 60)]


@pytest.mark.parametrize("number", STORED)
@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tif"])
def test_a_box_can_be_judged_without_reading_the_picture(tmp_path, ending, number):
    stored = np.ascontiguousarray(STORED[number](NOISE))
    path = saved(tmp_path / f"a.{ending}", stored, exif=upright_tag(number))
    faults = box_faults(path, EDGES)
    assert [fault is None for fault in faults] == [True, True, False, False, True, False, False, True, False, True]
    for box, fault in zip(EDGES, faults, strict=True):
        if fault is None:
            assert read_image(path, box=box).width > 0
        else:
            assert fault.endswith("being 64 x 48")
            refusal(lambda box=box: read_image(path, box=box), fault)


def test_boxes_of_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "empty.jpg").touch()
    assert box_faults(tmp_path / "empty.jpg", [(0, 0, 1, 1)] * 2) == ["is empty (0 bytes)"] * 2
    assert box_faults(tmp_path / "gone.jpg", []) == []
    cut = tmp_path / "cut.png"
    cut.write_bytes(content("PNG")[:200])
    assert box_faults(cut, [(0, 0, 9, 9)]) == [None]


FILLED_UP = {"JPEG": True, "PNG": True, "GIF": True, "WEBP": False, "BMP": False, "TIFF": False}


@pytest.mark.parametrize("form", FILLED_UP)
def test_cut_short_and_filled_up_with_zeros(tmp_path, form):
    whole = content(form)
    half = len(whole) // 2
    path = tmp_path / "half"
    path.write_bytes(whole[:half])
    assert image_fault(path) is not None
    path.write_bytes(whole[:half] + bytes(len(whole) - half))
    assert (image_fault(path) is not None) == FILLED_UP[form]


@pytest.mark.parametrize("box", [(1, 2, 3), (0, 0, 5, np.nan), (0, 0, 5, 5, 5)])
def test_what_is_no_box(tmp_path, box):
    path = saved(tmp_path / "a.png", NOISE)
    refusal(lambda: read_image(path, box=box), "box must be four finite numbers")


@pytest.mark.parametrize("box", ["abcd", 7, (None, 0, 1, 1)], ids=["text", "number", "none"])
def test_a_box_of_the_wrong_kind(tmp_path, box):
    with pytest.raises(InputTypeError, match="box must be four numbers"):
        read_image(saved(tmp_path / "a.png", NOISE), box=box)


@pytest.mark.parametrize(
    ("at_least", "size"),
    [(None, (384, 512)), (1, (48, 64)), (48, (48, 64)), (49, (96, 128)), (200, (384, 512)), (9999, (384, 512))],
)
def test_a_jpeg_decoded_at_a_part_of_its_size(tmp_path, at_least, size):
    array = np.kron(SMOOTH, np.ones((8, 8, 1), dtype=np.uint8))
    path = saved(tmp_path / "a.jpg", array, quality=95)
    read = pixels(path, at_least=at_least)
    assert read.shape[:2] == size
    assert (read == pixels(path, at_least=at_least)).all()
    step = 384 // size[0]
    small = array.reshape(size[0], step, size[1], step, 3).mean((1, 3))
    assert np.abs(read - small).mean() < 3


def test_at_least_leaves_other_formats_alone(tmp_path):
    assert (pixels(saved(tmp_path / "a.png", NOISE), at_least=3) == NOISE).all()


@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 100), st.sampled_from(sorted(STORED)))
def test_both_sides_have_what_was_asked_for(width, height, at_least, number):
    with TemporaryDirectory() as folder:
        path = saved(f"{folder}/a.jpg", np.zeros((height, width, 3), dtype=np.uint8), exif=upright_tag(number))
        read = read_image(path, at_least=at_least)
    upright = (height, width) if number > 4 else (width, height)
    assert min(read.size) >= min(at_least, min(upright))
    assert read.width / upright[0] == pytest.approx(read.height / upright[1], rel=1, abs=1)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9, 0.99])
def test_files_cut_short(tmp_path, form, share):
    whole = content(form)
    path = tmp_path / "cut.jpg"
    path.write_bytes(whole[: int(share * len(whole))])
    refusal(lambda: read_image(path), path, "replace it, or leave it out")
    assert image_fault(path) is not None


@pytest.mark.parametrize(
    "settings", [{}, {"progressive": True}, {"thumbnail": True}], ids=["plain", "progressive", "thumbnail"]
)
def test_a_jpeg_whose_end_was_never_written(tmp_path, settings):
    if "thumbnail" in settings:  # which is a whole JPEG within the head
        settings = {"exif": b"Exif\0\0" + content("JPEG", SMOOTH[:8, :8])}
    path = saved(tmp_path / "a.jpg", NOISE, **settings)
    whole = path.read_bytes()
    assert image_fault(path) is None
    for share in (0.75, 0.9, 0.999):
        path.write_bytes(whole[: int(share * len(whole))].ljust(len(whole), b"\0"))
        message = refusal(lambda: read_image(path), path)
        assert "truncated" in message if "progressive" in settings else "cut short and filled up" in message
    path.write_bytes(whole[:2] + b"\xff\xff" + whole[2:] + b"\0" * 99 + b"\xff\xda")  # fill bytes, and a trailer
    assert pixels(path).shape == NOISE.shape


def test_a_header_is_enough_for_a_quick_look(tmp_path):
    path = tmp_path / "cut.png"
    path.write_bytes(content("PNG")[:500])
    assert image_fault(path, decode=False) is None
    assert "cannot be decoded" in image_fault(path)


OTHER = {
    "empty": (b"", "is empty (0 bytes)"),
    "text": (b"hello, this is no picture", "is no image, not JPEG, PNG"),
    "one byte": (b"\xff", "is no image"),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "is an SVG drawing"),
    "svg with a head": (b'\xef\xbb\xbf<?xml version="1.0"?>\n<!-- x -->\n<SVG/>', "is an SVG drawing"),
    "svg with a type": (b"<!DOCTYPE svg PUBLIC ''>", "is an SVG drawing"),
    "page without a type": (b"<html>", "is a web page"),
    "xml": (b'<?xml version="1.0"?><note/>', "is no image"),
    "web page": (b"\n <!DOCTYPE html><html>not found</html>", "is a web page"),
    "pdf": (b"%PDF-1.7", "is a PDF document"),
    "heic": (b"\0\0\0\x18ftypheic\0\0\0\0", "is a HEIC or AVIF image"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a Git LFS pointer"),
    "eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "is no image"),
    "only a JPEG's start": (b"\xff\xd8\xff\xe0", "is no image"),
    "bomb": (bomb(60000, 60000), "limit of 178,956,970"),
    "header alone": (bomb(60, 60), "cannot be decoded"),
}


@pytest.mark.parametrize("name", OTHER)
@pytest.mark.parametrize("ending", ["jpg", "png"])
def test_what_is_no_image(tmp_path, name, ending):
    data, reason = OTHER[name]
    path = tmp_path / f"a.{ending}"
    path.write_bytes(data)
    message = refusal(lambda: read_image(path), path, reason)
    assert message.endswith("; replace it, or leave it out")
    assert reason in image_fault(path)


def test_large_pictures_are_refused_before_they_are_decoded(tmp_path, monkeypatch):
    path = saved(tmp_path / "a.png", NOISE)
    refusal(lambda: read_image(path, max_pixels=64 * 48 - 1), path, "has 64 x 48 pixels", "limit of 3,071")
    assert (pixels(path, max_pixels=64 * 48) == NOISE).all()
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    large = tmp_path / "b.png"
    large.write_bytes(bomb(60000, 60000))
    refusal(lambda: read_image(large), "has 60000 x 60000 pixels")


def test_a_picture_that_pillow_warns_of_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 48 - 1)
    assert (pixels(saved(tmp_path / "a.png", NOISE)) == NOISE).all()


def test_missing_files_folders_and_pipes(tmp_path):
    refusal(lambda: read_image(tmp_path / "no.jpg"), tmp_path / "no.jpg", "is not there")
    refusal(lambda: read_image(tmp_path), tmp_path, "is a folder")
    refusal(lambda: read_image("a\0b.jpg"), "cannot be opened")
    refusal(lambda: read_image(tmp_path / ("a" * 5000)), "cannot be opened")
    (tmp_path / "link.jpg").symlink_to(tmp_path / "gone.jpg")
    refusal(lambda: read_image(tmp_path / "link.jpg"), "is not there")
    os.mkfifo(tmp_path / "pipe.jpg")
    refusal(lambda: read_image(tmp_path / "pipe.jpg"), "is a pipe")


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = saved(tmp_path / "a.png", NOISE)

    def denied(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", denied)
    refusal(lambda: read_image(path), path, "cannot be opened (Permission denied)")


def test_names_of_any_kind(tmp_path):
    for name in ("with space.png", "ünï 漢字.png", "u\u0308.png", "a,b;c'\".png", "line\nbreak.png"):
        assert (pixels(saved(tmp_path / name, NOISE)) == NOISE).all()
    path = tmp_path / "line\nbreak.jpg"
    path.write_bytes(b"")
    assert "line\\nbreak.jpg" in refusal(lambda: read_image(path), "is empty")


def test_what_does_not_fit_into_memory(tmp_path, monkeypatch):
    def too_much(*args):
        raise MemoryError

    monkeypatch.setattr(images, "_rgb", too_much)
    refusal(lambda: read_image(saved(tmp_path / "a.png", NOISE)), "does not fit into memory")


def test_ctrl_c_is_no_broken_image(tmp_path, monkeypatch):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(images, "_rgb", stop)
    with pytest.raises(KeyboardInterrupt):
        read_image(saved(tmp_path / "a.png", NOISE))


def test_without_pillow(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    refusal(lambda: read_image("a.jpg"), "Pillow", "pip install 'frontrank[train]'")


@pytest.mark.parametrize("name", ["at_least", "max_pixels"])
def test_settings_out_of_bounds(name):
    refusal(lambda: read_image("a.jpg", **{name: 0}), f"{name} must be at least 1")


def test_other_warnings_are_as_before_even_after_many_threads(tmp_path, monkeypatch):
    path = saved(tmp_path / "a.png", NOISE)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 48 - 1)
    inside, decode = [], images._rgb

    def slowly(image):
        time.sleep(0.002 * (len(inside) % 3))
        inside.append(warnings.filters[0][0])
        return decode(image)

    monkeypatch.setattr(images, "_rgb", slowly)
    before = list(warnings.filters)
    threads = [threading.Thread(target=lambda: [read_image(path) for _ in range(5)]) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert inside == ["ignore"] * 30
    assert warnings.filters == before


def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent(tmp_path):
    path = saved(tmp_path / "a.png", NOISE)
    with images._quiet._lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a newer Python warns of any fork beside threads
        child = os.fork()
        if child == 0:
            free = not images._quiet._lock.locked()
            os._exit(0 if free and read_image(path).size == (64, 48) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_map_images_keeps_the_order(workers):
    files = [str(number) for number in range(200)]
    assert list(map_images(int, files, workers, "counting")) == list(range(200))
    assert list(map_images(int, [], workers, "counting")) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_map_images_stops_at_an_error(workers):
    done = []

    def function(file):
        if file == "5":
            raise InputError("five")
        time.sleep(0.001)
        done.append(file)

    with pytest.raises(InputError, match="five"):
        list(map_images(function, [str(number) for number in range(5000)], workers, "counting"))
    assert len(done) < 2500


@given(st.binary(max_size=80), st.sampled_from(["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"]), st.integers(0, 3000))
def test_damage_of_any_kind_is_an_image_or_one_line(data, form, where):
    whole = content(form, SMOOTH[:16, :16])
    where %= len(whole)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.bin"
        path.write_bytes(whole[:where] + data + whole[where + len(data) :])
        fault = image_fault(path)
        assert fault is None or "\n" not in fault
        if fault is None:
            assert read_image(path).mode == "RGB"
