"""Files that somebody could send, by name: none may pass for a picture, and none may do harm."""

import io
import random
import struct
import zipfile
import zlib

import numpy as np
from PIL import Image, PngImagePlugin

from tests.gallery.samples import chunk, picture, png, written

FORMATS = ("jpeg", "png", "webp", "gif", "bmp", "tiff")
_PIXELS = zlib.compress(b"\0" + b"\x80" * 3)  # of one pixel


def noise(size=(40, 30), seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def archive():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("a.txt", "hello")
    return file.getvalue()


def not_images():
    return {
        "nothing": b"",
        "text": b"hello",
        "svg": b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n(/etc/passwd) run\nshowpage\n",
        "avif": b"\0\0\0\x20ftypavif" + bytes(60),
        "riff that says webp": b"RIFF\x24\0\0\0WEBPVP8 " + bytes(30),
        "xbm": b"#define a_width 8\n#define a_height 8\nstatic char a_bits[] = { 0x00 };\n",
        "jpeg's first bytes only": b"\xff\xd8\xff\xe0",
        "png cut short": written(noise())[:2000],  # every format is cut in the tests of read_image
        # what Pillow can read, but nobody asked for
        **{f"{kind} file": written(picture("red"), kind) for kind in ("ico", "ppm", "eps", "jpeg2000")},
    }


def too_many_pixels():
    """Small files that say they are huge."""
    gif = bytearray(written(picture("red").convert("P"), "gif"))
    gif[6:10] = struct.pack("<HH", 65535, 65535)
    bmp = bytearray(written(picture("red"), "bmp"))
    bmp[18:26] = struct.pack("<ii", 60_000, 60_000)
    jpeg = bytearray(written(picture("red"), "jpeg"))
    start = jpeg.index(b"\xff\xc0")
    jpeg[start + 5 : start + 9] = struct.pack(">HH", 65500, 65500)
    tiff = bytearray(written(picture("red"), "tiff"))
    for tag in (256, 257):  # width and length, in a directory of 12 bytes each
        place = next(at for kind in (4, 3) if (at := tiff.find(struct.pack("<HH", tag, kind))) >= 0)
        tiff[place : place + 12] = struct.pack("<HHII", tag, 4, 1, 50_000)
    return {
        "png of 10,000 x 10,000": png(10_000, 10_000, chunk(b"IDAT", _PIXELS)),
        "png that is very wide": png(2**31 - 1, 1, chunk(b"IDAT", _PIXELS)),
        "gif of 65,535 x 65,535": bytes(gif),
        "bmp of 60,000 x 60,000": bytes(bmp),
        "jpeg of 65,500 x 65,500": bytes(jpeg),
        "tiff of 50,000 x 50,000": bytes(tiff),
    }


def bombs():
    """Small files of real pixels, far more than they take when packed: none is unpacked."""
    gif = bytearray(written(picture("red").convert("P"), "gif"))
    frame = gif.index(b",\0\0\0\0", 13 + 3 * 2 ** ((gif[10] & 7) + 1))  # after the palette
    gif[frame + 5 : frame + 9] = struct.pack("<HH", 60_000, 60_000)
    webp = bytearray(written(picture("red"), "webp", lossless=True))  # of one colour, the same bytes for any size
    place = webp.index(b"VP8L") + 9
    webp[place : place + 4] = struct.pack("<I", 16_382 | 16_382 << 14)
    animated = bytearray(written(picture("red"), "webp", save_all=True, append_images=[picture("blue")]))
    place = animated.index(b"VP8X") + 12
    animated[place : place + 6] = (16_382).to_bytes(3, "little") * 2
    wide = Image.new("1", (8000, 8000))
    bits = chunk(b"IDAT", zlib.compress(bytes(8000 * 1001)))
    return {
        "png bomb": png(8000, 8000, bits, depth=1, colour=0),
        "png bomb in two parts": png(8000, 8000, bits[:12], bits, depth=1, colour=0),
        "gif bomb in its frame": bytes(gif),
        "tiff bomb": written(wide, "tiff", compression="tiff_adobe_deflate"),
        "tiff bomb as a fax": written(wide, "tiff", compression="group4"),
        "webp bomb": bytes(webp),
        "webp bomb that moves": bytes(animated),
    }


def damaged_pngs():
    good = chunk(b"IDAT", _PIXELS)
    wrong_sum = bytearray(png(1, 1, good))
    wrong_sum[-17] ^= 1
    return {
        "png without pixels": png(1, 1),
        "png of 0 x 0": png(0, 0, good),
        "png of 7 bits": png(1, 1, good, depth=7),
        "png without a palette": png(1, 1, chunk(b"IDAT", zlib.compress(b"\0\x05")), colour=3, depth=16),
        "png with too few pixels": png(50, 50, good),
        "png with a wrong sum": bytes(wrong_sum),
        "png with a chunk of 4 GB": b"\x89PNG\r\n\x1a\n\xff\xff\xff\xffIHDR" + bytes(30),
        "png with text that swells": png(1, 1, chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(80_000_000))), good),
    }


def polyglots():
    """Whole pictures that are something else, too."""
    script = b"<ScRiPt>alert(1)</script>"
    found = {f"{kind} with a script behind it": written(picture("red"), kind) + script for kind in FORMATS}
    # a size of 0x2a2f is written as /*, the beginning of a comment
    bmp = bytearray(written(picture("red"), "bmp"))
    bmp[2:6] = b"/*\0\0"
    return found | {
        "jpeg with a zip behind it": written(picture("red"), "jpeg") + archive(),
        "gif that is a script": written(Image.new("P", (0x2A2F, 1)), "gif") + b"*/=1;alert(1)",
        "bmp that is a script": bytes(bmp) + b"*/=1;alert(1)",
    }


def hidden():
    """The same inside of metadata."""
    bad = "<script>alert(1)</script>"
    text = PngImagePlugin.PngInfo()
    text.add_text("Comment", bad)
    exif = Image.Exif()
    exif[0x010E] = bad
    image = picture("red")
    return {
        "jpeg with a script as comment": written(image, "jpeg", comment=bad.encode()),
        "gif with a script as comment": written(image.convert("P"), "gif", comment=bad.encode()),
        "png with a script as text": written(image, "png", pnginfo=text),
        "jpeg with a script as description": written(image, "jpeg", exif=exif.tobytes()),
        "webp with a script as description": written(image, "webp", exif=exif.tobytes()),
        "tiff with a script as description": written(image, "tiff", tiffinfo={270: bad}),
        "webp with php as xmp": written(image, "webp", xmp=b"<?php system('id'); ?>"),
        "jpeg with a script as profile": written(image, "jpeg", icc_profile=bad.encode()),
    }


def flipped(count=18):
    """Pictures with some bytes changed: some can still be read, some not."""
    lot = random.Random(0)
    found = {}
    for number in range(count):
        kind = FORMATS[number % len(FORMATS)]
        data = bytearray(written(noise(seed=number), kind))
        for _ in range(1 + number // 3):
            data[lot.randrange(len(data))] = lot.randrange(256)
        found[f"{kind} changed, {number}"] = bytes(data)
    return found


def part(name="image", filename="a.png", data=b"abc"):
    """A part of a form."""
    filename = "" if filename is None else f'; filename="{filename}"'
    return f'--x\r\nContent-Disposition: form-data; name="{name}"{filename}\r\n\r\n'.encode() + data + b"\r\n"


def forms():
    """Bodies and their content types that are no form of one picture."""
    form, end, good = "multipart/form-data; boundary=x", b"--x--\r\n", written(picture("red"), "jpeg")
    return {
        "nothing": (b"", form),
        "no boundary": (part(data=good) + end, "multipart/form-data"),
        "a boundary too long": (part(data=good) + end, f"multipart/form-data; boundary={'x' * 5000}"),
        "a field instead of a file": (part(filename=None) + end, form),
        "a file of another name": (part("picture", data=good) + end, form),
        "a part without a header": (b"--x\r\n\r\nabc\r\n" + end, form),
        "two pictures": (part(data=good) * 2 + end, form),
        "many fields": (part("a", None) * 100 + end, form),
        "a field that is long": (part("a", None, bytes(100_000)) + end, form),
        "a header that is long": (part("x" * 100_000) + end, form),
        "many headers": (b"--x\r\n" + b"a: b\r\n" * 5000 + b"\r\nabc\r\n" + end, form),
        "a picture alone": (good, "image/jpeg"),
        "json": (b'{"image": "abc"}', "application/json"),
        "another kind of form": (part(data=good) + end, "multipart/mixed; boundary=x"),
    }


REFUSED = not_images() | too_many_pixels() | bombs() | damaged_pngs() | polyglots() | hidden()
UNCERTAIN = flipped()
FORMS = forms()
