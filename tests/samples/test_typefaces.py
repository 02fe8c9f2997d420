import io
import struct

import numpy as np
import pytest
from fontTools.ttLib import TTFont
from hypothesis import example, given, settings
from hypothesis import strategies as st

from frontrank.samples.glyphs import PACKAGES, SMALL, TEST_PACKAGES, TYPEFACES, UNICODE_DATA, mapped_characters
from tests.samples.fonts import collection, font

SHAPE = (0, 0, 500, 500)


def shapes_of(codes):
    return {code: (0, 0, 100 + place % 800, 500) for place, code in enumerate(sorted(codes))}


@settings(max_examples=40)
@given(st.sets(st.integers(0x20, 0xFFFE) | st.integers(0x4E00, 0x4E40), min_size=1, max_size=60))
@example({0xFFFE})
@example({0x4E00, 0x4E01, 0x4E02, 0x4E04})
def test_narrow_fonts_have_what_fonttools_says(codes):
    found = mapped_characters(font(shapes_of(codes)))
    assert found.tolist() == sorted(codes)


@settings(max_examples=20)
@given(st.sets(st.integers(0x20, 0x3FFFF) | st.integers(0x20000, 0x20010), min_size=1, max_size=40))
def test_wide_fonts_have_what_fonttools_says(codes):
    data = font(shapes_of({*codes, 0x20001}))
    assert {table.format for table in TTFont(io.BytesIO(data))["cmap"].tables} == {4, 12}
    assert mapped_characters(data).tolist() == sorted({*codes, 0x20001})


@pytest.mark.parametrize("wide", [False, True])
def test_the_missing_glyph_is_no_glyph(wide):
    data = font({0x4E00: SHAPE, 0x4E01: None, 0x4E02: (0, 0, 9, 9), 0x4E05: None}, wide=wide)
    assert mapped_characters(data).tolist() == [0x4E00, 0x4E02]


def test_a_collection_is_read_by_number():
    data = collection({0x4E00: SHAPE}, {0x4E01: SHAPE, 0x4E05: (0, 0, 7, 7)})
    assert mapped_characters(data, 0).tolist() == [0x4E00]
    assert mapped_characters(data, 1).tolist() == [0x4E01, 0x4E05]
    with pytest.raises(ValueError, match="it has 2 fonts, none has the number 2"):
        mapped_characters(data, 2)
    with pytest.raises(ValueError, match="no collection"):
        mapped_characters(font({0x4E00: SHAPE}), 1)


def made(*tables):
    """A font of nothing but a cmap: (platform, encoding, bytes of a table)."""
    records, content = b"", b""
    for platform, encoding, table in tables:
        records += struct.pack(">HHI", platform, encoding, 4 + 8 * len(tables) + len(content))
        content += table
    cmap = struct.pack(">HH", 0, len(tables)) + records + content
    return struct.pack(">IHHHH", 0x10000, 1, 0, 0, 0) + struct.pack(">4sIII", b"cmap", 0, 28, len(cmap)) + cmap


def format_4(segments, glyphs=()):
    """segments: first, last, delta, offset."""
    first, last, delta, offset = zip(*segments, (0xFFFF, 0xFFFF, 1, 0), strict=True)
    count = len(first)
    numbers = [4, 16 + 8 * count + 2 * len(glyphs), 0, 2 * count, 0, 0, 0, *last, 0, *first, *delta, *offset, *glyphs]
    return struct.pack(f">{len(numbers)}H", *numbers)


def format_12(*groups):
    return struct.pack(">HHIII", 12, 0, 16 + 12 * len(groups), 0, len(groups)) + struct.pack(
        f">{3 * len(groups)}I", *np.ravel(groups).tolist()
    )


def test_glyphs_that_are_looked_up_behind_the_segments():
    # An offset counts from its own place: 3 segments (one of them ends the table), then the glyphs 5, 0, 7, 9, 65535.
    table = format_4([(0x4E00, 0x4E02, 0, 6), (0x4F00, 0x4F01, 1, 10)], [5, 0, 7, 9, 65535])
    assert mapped_characters(made((3, 1, table))).tolist() == [0x4E00, 0x4E02, 0x4F00]  # 65535 + 1 is glyph 0 again


def test_a_delta_may_lead_to_glyph_0():
    table = format_4([(0x4E00, 0x4E02, 65536 - 0x4E01, 0)])
    assert mapped_characters(made((3, 1, table))).tolist() == [0x4E00, 0x4E02]


def test_the_widest_unicode_table_counts():
    narrow, wide = format_4([(0x4E00, 0x4E00, 1, 0)]), format_12((0x4E00, 0x4E01, 1), (0x20000, 0x20000, 3))
    assert mapped_characters(made((3, 10, wide), (3, 1, narrow))).tolist() == [0x4E00, 0x4E01, 0x20000]
    assert mapped_characters(made((0, 3, narrow), (0, 4, wide))).tolist() == [0x4E00, 0x4E01, 0x20000]
    assert mapped_characters(made((1, 0, wide), (3, 1, narrow))).tolist() == [0x4E00]


def test_groups_that_cannot_be_are_left_out():
    table = format_12((0x4E00, 0x4DFF, 1), (0x4E05, 0xFFFFFFFF, 1), (0x4E03, 0x4E04, 0))
    assert mapped_characters(made((3, 10, table))).tolist() == [0x4E04]


def test_no_unicode_table():
    with pytest.raises(ValueError, match="no table of Unicode characters"):
        mapped_characters(made((1, 0, format_4([(65, 66, 1, 0)])), (3, 2, format_4([(65, 66, 1, 0)]))))
    with pytest.raises(ValueError, match="no table 'cmap'"):
        mapped_characters(made((3, 1, b"")).replace(b"cmap", b"pamc"))


@pytest.mark.parametrize("wide", [False, True])
def test_a_font_cut_anywhere_is_damaged_not_a_crash(wide):
    table = (
        format_12((0x4E00, 0x4E01, 1), (0x20000, 0x20000, 3)) if wide else format_4([(0x4E00, 0x4E02, 0, 4)], [5, 6, 7])
    )
    data = made((3, 10 if wide else 1, table))
    whole = mapped_characters(data).tolist()
    for length in range(len(data)):
        with pytest.raises(ValueError, match="it "):
            mapped_characters(data[:length])
    assert mapped_characters(data + b"more").tolist() == whole
    with pytest.raises(ValueError, match="it "):
        mapped_characters(b"")


def test_the_table_of_typefaces():
    assert len(TYPEFACES) == 33
    assert len(PACKAGES) == 29
    assert {face.package for face in TYPEFACES.values()} | {UNICODE_DATA} == set(PACKAGES.values())
    assert len({(face.package, name) for face in TYPEFACES.values() for name in face.files}) == 35  # no file twice
    for face in TYPEFACES.values():
        assert face.licence
        assert face.name.replace("-", "").isalnum()  # it is part of file names
        assert face.index == 0 or face.files[0].endswith(".ttc")
    for package in PACKAGES.values():
        assert package.client == "apt"
        assert len(package.sha256) == 64
        assert set(package.sha256) <= set("0123456789abcdef")
    assert len({package.sha256 for package in PACKAGES.values()}) == len(PACKAGES)


def test_what_the_tests_fetch_is_small():
    assert {TYPEFACES[name].package for name in SMALL} | {UNICODE_DATA} == set(TEST_PACKAGES)
    assert sum(package.megabytes for package in TEST_PACKAGES) < 30
