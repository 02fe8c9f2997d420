"""The typefaces that Han glyphs are drawn with: where they come from, their licences, and what characters they have.

All are packages of Debian 12 for every architecture. Where a package has several weights or regional forms of one
design, one of them is used, so that two typefaces are two drawings.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from frontrank.packages import Package

_PINNED = (  # name, version, sha256 of the .deb file, MB
    ("fonts-aoyagi-kouzan-t", "20160404-6", "6e961f85ca7cd69e9357666db55f3409bea3619abc123cb3a168823e55a2a90d", 1.2),
    ("fonts-aoyagi-soseki", "20070207-17", "d5d32b6d26155a5731c1a766d0e66ccd63778c5eebc955cf868a63b86c269585", 3.1),
    ("fonts-arphic-ukai", "0.2.20080216.2-5", "b9db73184895b067f7911f9adbf3b137df99c2d4ec5425b4ad779a9834b7110b", 8.4),
    (
        "fonts-arphic-uming",
        "0.2.20080216.2-11",
        "2676b21b90df94f23418610291b71b43720c95cdccb420b97ab56edfd3ce4cf5",
        7.9,
    ),
    ("fonts-babelstone-han", "15.0.5-2", "c7b7f9b5b78ad14c94d7e6d2b103307a7a643844c7db856fb97611d9d8a80589", 11.3),
    ("fonts-baekmuk", "2.2-13", "19dbd99e597a35c8f63a36b3e880d8f3df61099e1cb92c5744146240fc4bee55", 8.8),
    ("fonts-cwtex-fs", "1.0-4", "94b4ce9d2fd613e04bcf2e293011ca5099b43d8a8a97c090580fe25d31845850", 5.6),
    ("fonts-cwtex-heib", "1.0-4", "ead954743ecf0069bb8a381ac17f131a69e4ccce28db92a115ae8f13e9ada925", 3.0),
    ("fonts-cwtex-kai", "1.0-4", "7b0ac26332e88a2f4fd95af076e5a7776af4cf9578042017dafc0a59dbdb8bfc", 6.1),
    ("fonts-cwtex-ming", "1.0-4", "c6641f5d8d438d4bfa912e06204211b3d81fb167a586d09424922e0de42dac6e", 6.7),
    ("fonts-cwtex-yen", "1.0-4", "c400c0c11897adc5d5846833cda6698c2e71f005f0a29f4060cb7b2e0dde8c48", 4.6),
    ("fonts-droid-fallback", "1:6.0.1r16-1.1", "d2096d4edde128fedf6749be2dd204a5810210a6201126d99b8d412344f71056", 1.8),
    ("fonts-hanazono", "20170904-2.1", "a6943366b4f5a6cec34221f8b4eb22555a628f0ee6ef4e3d3401cabe9363aeae", 22.3),
    ("fonts-ipaexfont-gothic", "00401-5", "0e3d7f1f7449ca6424fbe52788dcfe69f65636a9641be1f7cc62bd6cc20f3fd8", 3.3),
    ("fonts-ipamj-mincho", "005.01-2.1", "0dd4990be8d010f13921b1bcac2f9c684e007deae17282cd07dbbfd5b2cd08cb", 25.2),
    ("fonts-konatu", "20121218-11", "72163bf8300a59c53438d510c564eb4c35439e6ac56bda2f5cc04052c9850a98", 2.1),
    ("fonts-kouzan-mouhitsu", "20170411-3", "924536ceff9359b99996e56cd24633df67d696a343ba46f9e3106e8cee228dbe", 11.0),
    ("fonts-lxgw-wenkai", "1.250+repack-1", "6d1e4c4aac78ad32062aefa2c836ee4d6e58f9dcf8b3f4407c9eefe304615318", 51.6),
    ("fonts-motoya-l-cedar", "1.01-5", "e107f9eca4c82752feed9917311a5dee8a98d7c762ca824d85b40cbf32e53cd1", 1.1),
    ("fonts-motoya-l-maruberi", "1.01-5", "22af24c8dd84ace4709b4a8e899f81e8d290c0c36c0f43c49af2c185c9988c31", 1.5),
    ("fonts-mplus", "063+git20221017+ds-1", "d84cf5bc7ba7ff4cc95bc23177eb9354aae8d8965490059ef54b3951ba14f61b", 24.7),
    (
        "fonts-noto-cjk",
        "1:20220127+repack1-1",
        "4a2515eb6db3978b897fef9709ed0d2b1f4c6c4df4d83d6c4ef65f71f1b1f502",
        56.5,
    ),
    ("fonts-sawarabi-gothic", "20161015-4", "2fe2add38a94ba26a86f18727583821201f8f46691ebb1c01e85b9f2b236cb96", 0.9),
    ("fonts-sawarabi-mincho", "20220815-1", "a63cca0c7da5d6de86824060c79ee4628beea54f701a8f49196d73337d01d5e7", 0.8),
    ("fonts-seto", "6.20-8", "1ce0b6124d635036d64462d7f0bece68d79608713a51d0664d4aa03da882fe2c", 7.1),
    ("fonts-unifont", "1:15.0.01-2", "cd46245f1b228d1277ed2b453ce893fde1cf4bf4ec317e82b0079395bdc9c2b5", 2.0),
    ("fonts-vlgothic", "20220612-1", "81b0a42456747e7ec2f801028b254c33f8c720a99e15140c23f0861329687448", 2.2),
    ("fonts-wqy-zenhei", "0.9.45-8", "cfed2c29164ff2f133e40ed2046610b172b8618d174840936ac4ec9b6fd668e7", 7.5),
    ("unicode-data", "15.0.0-1", "5efef23bbb1c6a133ecbdd63a2cfa07159ccacf5466a49e2426101c5ecd691fc", 8.0),
)
_DRAWN = (  # typeface, package, its files, number of the font in a collection, licence of the font
    ("noto-sans", "fonts-noto-cjk", "NotoSansCJK-Regular.ttc", 2, "OFL-1.1"),
    ("noto-serif", "fonts-noto-cjk", "NotoSerifCJK-Regular.ttc", 2, "OFL-1.1"),
    ("lxgw-wenkai", "fonts-lxgw-wenkai", "LXGWWenKai-Regular.ttf", 0, "OFL-1.1"),
    (
        "babelstone-han",
        "fonts-babelstone-han",
        "BabelStoneHan.ttf",
        0,
        "Arphic-1999 AND (CC-BY-SA-3.0 OR CC-BY-SA-4.0)",
    ),
    ("hanazono", "fonts-hanazono", "HanaMinA.ttf HanaMinB.ttf", 0, "Hanazono-Font-License OR OFL-1.1"),
    ("droid-fallback", "fonts-droid-fallback", "DroidSansFallbackFull.ttf", 0, "Apache-2.0"),
    ("wqy-zenhei", "fonts-wqy-zenhei", "wqy-zenhei.ttc", 0, "GPL-2.0-only WITH Font-exception-2.0 AND mplus"),
    ("unifont", "fonts-unifont", "unifont.otf unifont_upper.otf", 0, "GPL-2.0-or-later"),
    ("arphic-ukai", "fonts-arphic-ukai", "ukai.ttc", 0, "Arphic-1999"),
    ("arphic-uming", "fonts-arphic-uming", "uming.ttc", 0, "Arphic-1999"),
    ("ipamj-mincho", "fonts-ipamj-mincho", "ipamjm.ttf", 0, "IPA"),
    ("ipaex-gothic", "fonts-ipaexfont-gothic", "ipaexg.ttf", 0, "IPA"),
    ("cwtex-fangsong", "fonts-cwtex-fs", "cwfs.ttf", 0, "GPL-2.0-or-later"),
    ("cwtex-hei", "fonts-cwtex-heib", "cwheib.ttf", 0, "GPL-2.0-or-later"),
    ("cwtex-kai", "fonts-cwtex-kai", "cwkai.ttf", 0, "GPL-2.0-or-later"),
    ("cwtex-ming", "fonts-cwtex-ming", "cwming.ttf", 0, "GPL-2.0-or-later"),
    ("cwtex-yen", "fonts-cwtex-yen", "cwyen.ttf", 0, "GPL-2.0-or-later"),
    ("seto", "fonts-seto", "setofont.ttf", 0, "OFL-1.1"),
    ("kouzan-kaisho", "fonts-kouzan-mouhitsu", "kouzan-mouhitsu.ttf", 0, "public domain"),
    ("kouzan-gyosho", "fonts-kouzan-mouhitsu", "kouzan-mouhitsu-gyosho.ttf", 0, "public domain"),
    ("kouzan-sosho", "fonts-kouzan-mouhitsu", "KouzanBrushFontSousyo.ttf", 0, "public domain"),
    ("aoyagi-kouzan", "fonts-aoyagi-kouzan-t", "AoyagiKouzanT.ttf", 0, "public domain"),
    ("aoyagi-soseki", "fonts-aoyagi-soseki", "aoyagi-soseki.ttf", 0, "public domain"),
    ("konatu", "fonts-konatu", "Konatu.ttf", 0, "MIT"),
    ("vl-gothic", "fonts-vlgothic", "VL-Gothic-Regular.ttf", 0, "mplus AND Sazanami AND BSD-3-Clause"),
    ("mplus-1", "fonts-mplus", "Mplus1-Regular.otf", 0, "OFL-1.1"),
    ("motoya-cedar", "fonts-motoya-l-cedar", "MTLc3m.ttf", 0, "Apache-2.0"),
    ("motoya-maruberi", "fonts-motoya-l-maruberi", "MTLmr3m.ttf", 0, "Apache-2.0"),
    ("sawarabi-gothic", "fonts-sawarabi-gothic", "sawarabi-gothic-medium.ttf", 0, "CC-BY-3.0"),
    ("sawarabi-mincho", "fonts-sawarabi-mincho", "sawarabi-mincho-medium.ttf", 0, "CC-BY-SA-3.0 OR OFL-1.1"),
    ("baekmuk-batang", "fonts-baekmuk", "batang.ttf", 0, "Baekmuk"),
    ("baekmuk-dotum", "fonts-baekmuk", "dotum.ttf", 0, "Baekmuk"),
    ("baekmuk-gulim", "fonts-baekmuk", "gulim.ttf", 0, "Baekmuk"),
)


@dataclass(frozen=True)
class Typeface:
    """One design: fonts of one package, of which the first that has a character draws it.

    files: their names in the package
    index: of the font in a collection (.ttc)
    """

    name: str
    package: Package
    files: tuple[str, ...]
    index: int
    licence: str


PACKAGES = {name: Package("apt", name, version, sha256, size) for name, version, sha256, size in _PINNED}
UNICODE_DATA = PACKAGES["unicode-data"]
TYPEFACES = {
    name: Typeface(name, PACKAGES[package], tuple(files.split()), index, licence)
    for name, package, files, index, licence in _DRAWN
}
SMALL = ("motoya-cedar", "motoya-maruberi", "sawarabi-gothic", "sawarabi-mincho")  # 5 MB of packages
TEST_PACKAGES = (*(TYPEFACES[name].package for name in SMALL), UNICODE_DATA)


def mapped_characters(font: bytes, index: int = 0) -> np.ndarray:
    """The code points that a font has a glyph for, sorted [character], int64; by the widest Unicode table of its cmap.

    index: of the font in a collection

    Raises ValueError for what is no such font. Tables of the formats 4 and 12 are read, one of which every font has
    that holds Han characters.
    """
    try:
        cmap = _table(font, _start(font, index), b"cmap")
        found = [
            (kind == 12, place)
            for platform, encoding, place, kind in _subtables(font, cmap)
            if kind in (4, 12) and (platform == 0 or (platform == 3 and encoding in (1, 10)))
        ]
        if not found:
            raise ValueError("it has no table of Unicode characters")
        wide, place = max(found, key=lambda each: each[0])
        return _format_12(font, place) if wide else _format_4(font, place)
    except (struct.error, IndexError) as error:
        raise ValueError(f"it is damaged ({error})") from error


def _start(font: bytes, index: int) -> int:
    if font[:4] != b"ttcf":
        if index:
            raise ValueError("it is no collection of fonts")
        return 0
    fonts = struct.unpack_from(">I", font, 8)[0]
    if index >= fonts:
        raise ValueError(f"it has {fonts} fonts, none has the number {index}")
    return int(struct.unpack_from(">I", font, 12 + 4 * index)[0])


def _table(font: bytes, start: int, wanted: bytes) -> int:
    for number in range(struct.unpack_from(">H", font, start + 4)[0]):
        name, _, place, _ = struct.unpack_from(">4sIII", font, start + 12 + 16 * number)
        if name == wanted:
            return int(place)
    raise ValueError(f"it has no table {wanted.decode()!r}")


def _subtables(font: bytes, cmap: int) -> Iterator[tuple[int, int, int, int]]:
    """Platform, encoding, place and format of each."""
    for number in range(struct.unpack_from(">H", font, cmap + 2)[0]):
        platform, encoding, offset = struct.unpack_from(">HHI", font, cmap + 4 + 8 * number)
        yield platform, encoding, cmap + offset, struct.unpack_from(">H", font, cmap + offset)[0]


def _array(font: bytes, place: int, count: int, kind: str) -> np.ndarray:
    if place + count * np.dtype(kind).itemsize > len(font):
        raise ValueError("it is cut short")
    return np.frombuffer(font, kind, count, place).astype(np.int64)


def _format_12(font: bytes, place: int) -> np.ndarray:
    """Groups of characters that follow each other, as their glyphs do; glyph 0 is none."""
    groups = _array(font, place + 16, 3 * struct.unpack_from(">I", font, place + 12)[0], ">u4").reshape(-1, 3)
    groups = groups[(groups[:, 0] <= groups[:, 1]) & (groups[:, 1] <= 0x10FFFF)]
    parts = [np.arange(first + (glyph == 0), last + 1) for first, last, glyph in groups.tolist()]
    return np.unique(np.concatenate([np.zeros(0, np.int64), *parts]))


def _format_4(font: bytes, place: int) -> np.ndarray:
    """Segments of characters; the glyph is the character plus a number, or is looked up behind the segments."""
    count = struct.unpack_from(">H", font, place + 6)[0] // 2
    ends = _array(font, place + 14, count, ">u2")
    starts = _array(font, place + 16 + 2 * count, count, ">u2")
    deltas = _array(font, place + 16 + 4 * count, count, ">u2")
    offsets = place + 16 + 6 * count
    parts = []
    for number, offset in enumerate(_array(font, offsets, count, ">u2").tolist()):
        characters = np.arange(starts[number], ends[number] + 1)
        glyphs = characters
        if offset and len(characters):
            glyphs = _array(font, offsets + 2 * number + offset, len(characters), ">u2")
            characters, glyphs = characters[glyphs > 0], glyphs[glyphs > 0]
        parts.append(characters[(glyphs + deltas[number]) % 65536 > 0])
    found = np.unique(np.concatenate([np.zeros(0, np.int64), *parts]))
    return found[found < 0xFFFF]  # which only ends the table
