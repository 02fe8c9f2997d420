import io
import json
import os
import struct
import sys
import time
import warnings
import zlib
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageCms

from frontrank.data import images
from frontrank.data.images import check_images, map_images
from frontrank.data.table import ImageTable
from frontrank.errors import FrontrankWarning, InputError, InputTypeError
from frontrank.pictures import decode
from frontrank.pictures.decode import box_faults, image_fault, read_image
from tests.errors import refusal

ORIENTATION = 0x0112
NOISE = np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)
DOWN, RIGHT = np.mgrid[:48, :64]
SMOOTH = np.stack([2 * DOWN + RIGHT, DOWN + 2 * RIGHT, np.full((48, 64), 90)], -1).astype(np.uint8)


def pixels(path, **settings):
    picture = read_image(path, **settings)
    assert type(picture) is Image.Image
    assert picture.mode == "RGB"
    assert picture.info == {}
    return np.asarray(picture)


def save(path, array, **settings):
    image = array if isinstance(array, Image.Image) else Image.fromarray(array)
    image.save(path, **settings)
    return path


def content(form, array=NOISE):
    file = io.BytesIO()
    Image.fromarray(array).save(file, form)
    return file.getvalue()


# Pixels


def test_the_ending_does_not_matter_and_a_jpeg_is_about_what_it_was(tmp_path):
    path = tmp_path / "a.jpg"
    path.write_bytes(content("PNG"))
    assert (pixels(str(path)) == NOISE).all()
    read = pixels(save(path, SMOOTH, quality=95))
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
EDGES = {  # a box: whether it has something of a picture of 64 x 48
    (60, 40, 63.6, 60): True,
    (63, 47, 70, 70): True,
    (0, 48, 9, 50): False,
    (9, 0, 3, 9): False,
    (-9, -9, 0, 0): False,
    (63.6, 0, 70, 9): False,
    (-9, 47.4, 1, 60): True,
}


@pytest.mark.parametrize("number", STORED)
def test_the_orientation_is_applied_to_pixels_and_boxes(tmp_path, number):
    for ending in ("png", "webp", "tif", "jpg"):
        array = SMOOTH if ending == "jpg" else NOISE
        settings = {"webp": {"lossless": True}, "jpg": {"quality": 95}}.get(ending, {})
        stored = np.ascontiguousarray(STORED[number](array))
        path = save(tmp_path / f"a.{ending}", stored, exif=upright_tag(number), **settings)
        read = pixels(path)
        assert read.shape == array.shape
        assert np.abs(read.astype(int) - array).max() <= (12 if ending == "jpg" else 0)
        faults = box_faults(path, list(EDGES))
        assert [fault is None for fault in faults] == list(EDGES.values())
        for box, fault in zip(EDGES, faults, strict=True):
            if fault is None:
                assert read_image(path, box=box).width > 0
            else:
                refusal(lambda path=path, box=box: read_image(path, box=box), fault)


def test_unknown_orientations_and_damaged_exif_do_not_matter(tmp_path):
    for number in (0, 9, 77):
        assert (pixels(save(tmp_path / "a.png", NOISE, exif=upright_tag(number))) == NOISE).all()
    for exif in (b"Exif\0\0garbage", b"Exif\0\0MM\0*\0\0\0\x08\0\x09\x01\x12", b"Exif\0\0", b"\xff" * 40):
        path = save(tmp_path / "a.jpg", SMOOTH, exif=exif, icc_profile=b"no profile at all")
        assert pixels(path).shape == SMOOTH.shape
        assert image_fault(path) is None


GREY = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
ALPHA = np.where(np.arange(64).reshape(8, 8) % 2, 255, 0).astype(np.uint8)
SIXTEEN = GREY.astype(np.uint16) * 257
MODES = {  # an image of a mode, and the greys it must be read as
    "L": (Image.fromarray(GREY), GREY),
    "LA": (Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(ALPHA)]), np.where(ALPHA, GREY, 255)),
    "RGBA": (Image.merge("RGBA", [Image.fromarray(GREY)] * 3 + [Image.fromarray(ALPHA)]), np.where(ALPHA, GREY, 255)),
    "P": (Image.fromarray(GREY).convert("P"), GREY),
    "I;16 with odd values": (Image.fromarray(SIXTEEN + np.uint16(100)), GREY),
}


@pytest.mark.parametrize("name", MODES)
def test_modes_of_grey(tmp_path, name):
    image, expected = MODES[name]
    for ending in ("png", "tif"):
        assert (pixels(save(tmp_path / f"a.{ending}", image)) == expected[..., None]).all()


def test_transparency_is_white(tmp_path):
    half = Image.new("RGBA", (3, 2), (255, 0, 100, 51))  # a fifth of it
    assert (pixels(save(tmp_path / "a.png", half)) == [255, 204, 224]).all()
    entry = Image.new("P", (2, 1), 0)
    entry.putpalette([0, 0, 0, 200, 100, 50])
    entry.putpixel((1, 0), 1)
    for ending in ("png", "gif"):
        path = save(tmp_path / f"a.{ending}", entry, transparency=0)
        assert pixels(path).tolist() == [[[255] * 3, [200, 100, 50]]]
    path = save(tmp_path / "a.png", entry, transparency=b"\x33\xff")
    assert pixels(path).tolist() == [[[204] * 3, [200, 100, 50]]]
    grey = Image.fromarray(np.array([[7, 9]], dtype=np.uint8))
    assert pixels(save(tmp_path / "b.png", grey, transparency=7)).tolist() == [[[255] * 3, [9] * 3]]
    colour = Image.fromarray(np.array([[[1, 2, 3], [3, 2, 1]]], dtype=np.uint8))
    assert pixels(save(tmp_path / "c.png", colour, transparency=(1, 2, 3))).tolist() == [[[255] * 3, [3, 2, 1]]]
    multiplied = Image.new("RGBA", (1, 1), (100, 100, 100, 51)).convert("RGBa")  # colours times their alpha
    assert np.abs(np.asarray(decode._rgb(multiplied)).astype(int) - 224).max() <= 1


def test_cmyk_and_lab(tmp_path):
    cmyk = Image.fromarray(SMOOTH).convert("CMYK")
    for path in (save(tmp_path / "a.tif", cmyk), save(tmp_path / "a.jpg", cmyk, quality=95)):
        assert np.abs(pixels(path).astype(int) - SMOOTH).max() < 14
    to_lab = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    lab = ImageCms.profileToProfile(Image.fromarray(SMOOTH), *to_lab, outputMode="LAB")
    difference = np.abs(pixels(save(tmp_path / "lab.tif", lab)).astype(int) - SMOOTH)
    assert difference.max() < 14  # 8 bits of LAB are coarse where it is dark
    assert difference.mean() < 1.5


NUMBERS = {
    "0 to 1 is a share": (np.float32, [0.0, 0.5, 1.0], [0, 128, 255]),
    "0 to 255 is a grey": (np.float32, [0.0, 99.6, 200.0], [0, 100, 200]),
    "beyond: stretched": (np.float32, [-100.0, 0.0, 100.0], [0, 128, 255]),
    "all alike and beyond": (np.float32, [300.0, 300.0, 300.0], [0, 0, 0]),
    "16 bits": (np.int32, [0, 257, 65535], [0, 1, 255]),
    "large integers: stretched": (np.int32, [0, 50_000, 100_000], [0, 128, 255]),
    "negative: stretched": (np.int32, [-2, 0, 2], [0, 128, 255]),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_32_bits(tmp_path, name):
    dtype, values, expected = NUMBERS[name]
    path = save(tmp_path / "a.tif", np.array([values], dtype=dtype))
    assert pixels(path)[0, :, 0].tolist() == expected


def test_a_box(tmp_path):
    path = save(tmp_path / "a.png", NOISE)
    assert (pixels(path, box=(3, 5, 20, 40)) == NOISE[5:40, 3:20]).all()
    assert (pixels(path, box=[2.6, 5.4, 19.7, 39.5]) == NOISE[5:40, 3:20]).all()
    assert (pixels(path, box=np.array([-9, -1, 20, 400])) == NOISE[:, :20]).all()
    large = save(tmp_path / "a.jpg", np.kron(SMOOTH, np.ones((8, 8, 1), dtype=np.uint8)))
    assert pixels(large, box=(0, 0, 300, 200), at_least=20).shape == (200, 300, 3)  # of the picture at full size
    turned = save(tmp_path / "b.png", np.ascontiguousarray(STORED[6](NOISE)), exif=upright_tag(6))
    assert (pixels(turned, box=(60, 0, 64, 10)) == NOISE[:10, 60:]).all()
    for box in ((1, 2, 3), (0, 0, 5, np.nan), (0, 0, 5, 5, 5)):
        refusal(lambda box=box: read_image(path, box=box), "box")
    for box in ("abcd", 7, (None, 0, 1, 1)):
        refusal(lambda box=box: read_image(path, box=box), "box", error=InputTypeError)


@pytest.mark.parametrize(
    ("at_least", "size"), [(None, (384, 512)), (48, (48, 64)), (49, (96, 128)), (9999, (384, 512))]
)
def test_a_jpeg_decoded_at_a_part_of_its_size(tmp_path, at_least, size):
    array = np.kron(SMOOTH, np.ones((8, 8, 1), dtype=np.uint8))
    read = pixels(save(tmp_path / "a.jpg", array, quality=95), at_least=at_least)
    assert read.shape[:2] == size
    step = 384 // size[0]
    small = array.reshape(size[0], step, size[1], step, 3).mean((1, 3))
    assert np.abs(read - small).mean() < 3
    assert (pixels(save(tmp_path / "a.png", NOISE), at_least=at_least) == NOISE).all()
    turned = pixels(save(tmp_path / "b.jpg", array[:, :100], exif=upright_tag(6)), at_least=at_least)
    assert min(turned.shape[:2]) >= min(at_least or 100, 100)


# Faults

FILLED_UP = {"JPEG": True, "PNG": True, "GIF": True, "WEBP": False, "BMP": False, "TIFF": False}


@pytest.mark.parametrize("form", FILLED_UP)
def test_files_cut_short(tmp_path, form):
    whole, path = content(form), tmp_path / "cut.jpg"
    for share in (0.3, 0.6, 0.99):
        path.write_bytes(whole[: int(share * len(whole))])
        refusal(lambda: read_image(path), path, image_fault(path))
    half = len(whole) // 2
    path.write_bytes(whole[:half] + bytes(len(whole) - half))  # and filled up with zeros
    assert (image_fault(path) is not None) == FILLED_UP[form]


@pytest.mark.parametrize("kind", ["plain", "progressive", "thumbnail"])
def test_a_jpeg_whose_end_was_never_written(tmp_path, kind):
    settings = {"progressive": True} if kind == "progressive" else {}
    if kind == "thumbnail":  # which is a whole JPEG within the head
        settings = {"exif": b"Exif\0\0" + content("JPEG", SMOOTH[:8, :8])}
    path = save(tmp_path / "a.jpg", NOISE, **settings)
    whole = path.read_bytes()
    assert image_fault(path) is None
    for share in (0.75, 0.9, 0.999):
        path.write_bytes(whole[: int(share * len(whole))].ljust(len(whole), b"\0"))
        refusal(lambda: read_image(path), path)
    path.write_bytes(whole[:2] + b"\xff\xff" + whole[2:] + b"\0" * 99 + b"\xff\xda")  # fill bytes, and a trailer
    assert pixels(path).shape == NOISE.shape


def bomb(width, height):
    """A PNG whose header claims a size; there is next to no data behind it."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


OTHER = {  # content, what the message names
    "empty": (b"", "empty"),
    "svg with a head": (b'\xef\xbb\xbf<?xml version="1.0"?>\n<!-- x -->\n<SVG/>', "SVG"),
    "web page": (b"\n <!DOCTYPE html><html>not found</html>", "web page"),
    "pdf": (b"%PDF-1.7", "PDF"),
    "heic": (b"\0\0\0\x18ftypheic\0\0\0\0", "HEIC"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Git LFS"),
    "bomb": (bomb(60000, 60000), "178,956,970"),
    "header alone": (bomb(60, 60), "decoded"),
}


@pytest.mark.parametrize("name", OTHER)
def test_what_is_no_image(tmp_path, name):
    data, reason = OTHER[name]
    path = tmp_path / "a.jpg"
    path.write_bytes(data)
    refusal(lambda: read_image(path), path, reason)
    assert reason in image_fault(path)


def test_large_pictures_are_refused_before_they_are_decoded(tmp_path, monkeypatch):
    path = save(tmp_path / "a.png", NOISE)
    refusal(lambda: read_image(path, max_pixels=64 * 48 - 1), path, "64 x 48", "3,071")
    assert (pixels(path, max_pixels=64 * 48) == NOISE).all()
    with monkeypatch.context() as patch:
        patch.setattr(Image, "MAX_IMAGE_PIXELS", None)
        large = tmp_path / "b.png"
        large.write_bytes(bomb(60000, 60000))
        refusal(lambda: read_image(large), "60000 x 60000")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 64 * 48 - 1)  # Pillow warns of it
    assert (pixels(path) == NOISE).all()


def test_other_faults(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "link.jpg").symlink_to(tmp_path / "gone.jpg")
    for name in ("no.jpg", "link.jpg", "pipe.jpg", ".", "a\0b.jpg", "a" * 5000):
        refusal(lambda name=name: read_image(tmp_path / name))
    for value in (np.nan, np.inf):
        path = save(tmp_path / "a.tif", np.array([[0, value]], dtype=np.float32))
        refusal(lambda path=path: read_image(path), path, "finite")
    for name in ("at_least", "max_pixels"):
        refusal(lambda name=name: read_image(path, **{name: 0}), name)
    path = save(tmp_path / "a.png", NOISE)
    for error, message in ((MemoryError(), "memory"), (PermissionError(13, "Permission denied"), "Permission denied")):

        def fail(*args, error=error, **kwargs):
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(*((decode, "_rgb") if isinstance(error, MemoryError) else ("builtins.open",)), fail)
            refusal(lambda: read_image(path), path, message)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    refusal(lambda: read_image("a.jpg"), "PIL", "frontrank[train]")


@pytest.mark.processes
def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent(tmp_path):
    path = save(tmp_path / "a.png", NOISE)
    with decode._quiet._lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a newer Python warns of any fork beside threads
        child = os.fork()
        if child == 0:
            free = not decode._quiet._lock.locked()
            os._exit(0 if free and read_image(path).size == (64, 48) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("workers", [1, 3])
def test_map_images_keeps_the_order_and_stops_at_an_error(workers):
    files, done = [str(number) for number in range(2000)], []
    assert list(map_images(int, files, workers, "counting")) == list(range(2000))
    assert list(map_images(int, [], workers, "counting")) == []

    def function(file):
        if file == "5":
            raise InputError("five")
        time.sleep(0.001)
        done.append(file)

    refusal(lambda: list(map_images(function, files, workers, "counting")), "five")
    assert len(done) < 1500


@given(st.binary(max_size=80), st.sampled_from(sorted(FILLED_UP)), st.integers(0, 3000))
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


# The check of all images

BROKEN = ["cut.png", "empty.jpg", "gone.jpg", "text.jpg"]
GOOD = [f"good{number}.png" for number in range(5)]


@pytest.fixture
def table(tmp_path):
    """Five good images and four that are broken, in sorted order."""
    folder = tmp_path / "images"
    folder.mkdir()
    for name in GOOD:
        save(folder / name, NOISE[:20, :20])
    (folder / "cut.png").write_bytes((folder / GOOD[0]).read_bytes()[:600])
    (folder / "empty.jpg").touch()
    (folder / "text.jpg").write_text("no picture")
    return table_of(folder, sorted([*GOOD, *BROKEN]))


def table_of(folder, paths, boxes=None):
    rows = len(paths)
    columns = (np.full(rows, text) for text in ("a", "", "train", ""))
    extra = {"number": np.arange(rows)} if boxes is None else {"box": np.array(boxes)}
    return ImageTable(folder, np.array(paths), *columns, extra=extra)


def good_rows(table):
    return table.rows(np.char.startswith(table.paths, "good"))


def paths_of(check):
    return [path for path, _ in check.broken]


@pytest.fixture
def looked_at(monkeypatch):
    """The names of the files that are looked at."""
    names, look = [], images.image_fault

    def spy(file, decode=True):
        names.append(os.path.basename(file))
        return look(file, decode)

    monkeypatch.setattr(images, "image_fault", spy)
    return names


@pytest.mark.parametrize("workers", [0, 3])
def test_a_full_check_that_leaves_out_and_its_report(table, tmp_path, workers):
    check = check_images(table, broken="skip", workers=workers)
    assert paths_of(check) == BROKEN
    assert check.table.paths.tolist() == GOOD
    assert check.table.extra["number"].tolist() == [3, 4, 5, 6, 7]
    assert "4 of 9" in check.note
    assert "cut.png" in check.note
    broken = check.broken
    lines = images.write_report(tmp_path / "broken.csv", [*broken, ("\udc80.jpg", "is empty")]).read_text().splitlines()
    assert lines[0] == "path,reason"
    assert [line.partition(",")[0] for line in lines[1:]] == [*BROKEN, "\\udc80.jpg"]


def test_a_check_that_fails(table):
    for setting in ({"how": "fast"}, {"broken": "ignore"}, {"workers": -1}):
        refusal(lambda setting=setting: check_images(table, **setting), next(iter(setting)))
    message = refusal(lambda: check_images(table), "4 of 9", *BROKEN[:3], "broken: skip")
    assert "text.jpg" not in message
    bad = table.rows(~np.char.startswith(table.paths, "good"))
    refusal(lambda: check_images(bad, broken="skip"), "4 of 4", table.root)
    check = check_images(bad, broken="list")
    assert paths_of(check) == BROKEN
    assert len(check.table) == 0


def test_quick_and_no_checks_and_files_of_several_rows(table, looked_at):
    assert check_images(table, how="none").table is table
    assert looked_at == []
    assert paths_of(check_images(table, how="quick", broken="skip")) == BROKEN[1:]
    good = good_rows(table)
    for how in ("full", "quick"):
        assert check_images(good, how=how).table is good
    looked_at.clear()
    twice = table_of(table.root, ["good0.png", "gone.jpg", "good0.png", "gone.jpg", "./good0.png"])
    check = check_images(twice, broken="skip")
    assert sorted(looked_at) == ["gone.jpg", "good0.png"]
    assert check.table.extra["number"].tolist() == [0, 2, 4]
    assert "1 of 2" in check.note


def test_good_images_are_remembered(table, tmp_path, monkeypatch, looked_at):
    memory = tmp_path / "good.json"
    check_images(good_rows(table), how="quick", remembered=memory)
    assert not memory.exists()
    monkeypatch.chdir(tmp_path)  # the memory does not depend on the working folder
    check_images(replace(good_rows(table), root=Path("images")).rows(np.arange(2)), remembered=memory)
    looked_at.clear()
    check_images(table, broken="skip", remembered=memory)
    assert looked_at == sorted([*GOOD[2:], *BROKEN])
    looked_at.clear()
    assert paths_of(check_images(table, broken="skip", remembered=memory)) == BROKEN
    assert looked_at == BROKEN
    looked_at.clear()
    for how in ("full", "quick"):
        assert "5 remembered" in check_images(good_rows(table), how=how, remembered=memory).note
    assert looked_at == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good.json", "images"]


def test_a_file_that_has_changed_is_looked_at_again(table, tmp_path, looked_at):
    memory, good = tmp_path / "good.json", good_rows(table)
    check_images(good, remembered=memory)
    looked_at.clear()
    file = table.root / "good1.png"
    before = file.stat()
    file.write_bytes(b"x" * before.st_size)  # of the same size
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    os.utime(table.root / "good2.png", ns=(1, 1))
    (table.root / "good3.png").unlink()
    assert paths_of(check_images(good, broken="skip", remembered=memory)) == ["good1.png", "good3.png"]
    assert looked_at == ["good1.png", "good2.png", "good3.png"]
    file.write_bytes(b"x" * (before.st_size - 1))  # of the same time
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "good1.png" in paths_of(check_images(good, broken="skip", remembered=memory))


def test_a_check_that_fails_or_is_interrupted_is_remembered(table, tmp_path, monkeypatch):
    memory = tmp_path / "good.json"
    refusal(lambda: check_images(table, remembered=memory))
    assert len(json.loads(memory.read_text())["good"]) == 5
    memory.unlink()

    def interrupted(function, files, *others):
        yield function(files[0])
        raise KeyboardInterrupt

    monkeypatch.setattr(images, "map_images", interrupted)
    with pytest.raises(KeyboardInterrupt):
        check_images(good_rows(table), remembered=memory)
    assert len(json.loads(memory.read_text())["good"]) == 1


HEAD = b'{"format": "frontrank.good-images.1", "good": '


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"good": {}}', b'{"format": "x", "good": {}}', b"\xff\xfe", HEAD + b'{"a": [1, null]}}']
)
def test_a_damaged_memory_is_made_anew(table, tmp_path, content):
    memory = tmp_path / "good.json"
    memory.write_bytes(content)
    with pytest.warns(FrontrankWarning, match=r"good\.json") as caught:
        assert check_images(good_rows(table), remembered=memory).broken == []
    assert caught[0].filename == __file__
    assert len(json.loads(memory.read_text())["good"]) == 5


@pytest.mark.parametrize("how", ["full", "quick"])
def test_boxes_with_nothing_of_the_picture(table, how):
    paths = ["good0.png", "good0.png", "good1.png", "good2.png", "gone.jpg", "good3.png", "good0.png"]
    boxes = ["0 0 9 9", "20 0 30 9", "", "9 5 3 9", "0 0 5 5", "-5 -5 30 30", "20 0 30 9"]
    check = check_images(table_of(table.root, paths, boxes), how=how, broken="skip")
    assert paths_of(check) == ["gone.jpg", "good0.png", "good2.png"]
    assert ["(20, 0, 30, 9)" in reason for _, reason in check.broken] == [False, True, False]
    assert check.table.paths.tolist() == ["good0.png", "good1.png", "good3.png"]
    assert check.table.extra["box"].tolist() == ["0 0 9 9", "", "-5 -5 30 30"]
    assert "3 of 6" in check.note


def test_sizes_boxes_and_memories_of_files_that_cannot_be_used(table, tmp_path):
    assert decode.image_size(table.root / "good0.png") == (20, 20)
    refusal(lambda: decode.image_size(table.root / "empty.jpg"), "empty.jpg")
    assert box_faults(table.root / "empty.jpg", [(0, 0, 1, 1)] * 2) == ["is empty (0 bytes)"] * 2
    with pytest.warns(FrontrankWarning, match=r"good\.json") as caught:
        assert check_images(good_rows(table), remembered=tmp_path / "no" / "good.json").broken == []
    assert caught[0].filename == __file__
