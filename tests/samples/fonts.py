"""Small fonts whose glyphs are rectangles, and packages of them as an archive has them."""

import bz2
import io
import zipfile

from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from fontTools.ttLib import TTCollection

UNIHAN = """\
# the first line
U+6C34\tkRSUnicode\t85.0
U+706B\tkRSUnicode\t86.0
U+571F\tkRSUnicode\t32.0
U+91D1\tkRSUnicode\t167.0 167.5
U+9485\tkRSUnicode\t167'.2
U+738B\tkRSUnicode\t96.-1
U+6D77\tkRSUnicode\t85.7
U+FA45\tkRSUnicode\t85.7
U+20000\tkRSUnicode\t1.4
U+6C34\tkTotalStrokes\t4
"""
READINGS = """\
U+6C34\tkDefinition\twater, liquid
U+706B\tkDefinition\t(same as U+1, x) fire (y); flame
U+6C34\tkMandarin\tshuǐ
"""


def box(left, bottom, right, top):
    """A rectangle as a glyph; the em is 1000."""
    pen = TTGlyphPen(None)
    if right > left:
        pen.moveTo((left, bottom))
        for point in ((left, top), (right, top), (right, bottom)):
            pen.lineTo(point)
        pen.closePath()
    return pen.glyph()


def font(shapes, missing=(100, 0, 400, 700), wide=False):
    """The bytes of a TrueType font.

    shapes:  a rectangle per code point; code points of one rectangle have one glyph; None is the missing glyph itself
    missing: the glyph of all other code points
    """
    return _saved(_builder(shapes, missing, wide).font)


def collection(*all_shapes):
    """The bytes of a collection of fonts."""
    fonts = TTCollection()
    fonts.fonts = [_builder(shapes, (0, 0, 90, 90), False).font for shapes in all_shapes]
    return _saved(fonts)


def _saved(what):
    stream = io.BytesIO()
    what.save(stream)
    return stream.getvalue()


def _builder(shapes, missing, wide):
    distinct = list(dict.fromkeys(shape for shape in shapes.values() if shape is not None))
    names = {shape: f"g{place}" for place, shape in enumerate(distinct)}
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", *names.values()])
    mapped = {code: ".notdef" if shape is None else names[shape] for code, shape in shapes.items()}
    builder.setupCharacterMap({**mapped, **({0x1F600: ".notdef"} if wide else {})})
    glyphs = {".notdef": box(*missing), **{name: box(*shape) for shape, name in names.items()}}
    builder.setupGlyf(glyphs)
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (1000, 0)))
    builder.setupHorizontalHeader(ascent=900, descent=-100)
    builder.setupNameTable({"familyName": "Boxes", "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    return builder


def archive(path, files, notice="Copyright: somebody"):
    """A package with these files by name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in files.items():
            packed.writestr(f"usr/share/fonts/deep/{name}", content)
        packed.writestr("usr/share/doc/a-package/copyright", notice)
    return path


def unicode_archive(path, unihan=UNIHAN, readings=READINGS):
    """What the package unicode-data has that matters here."""
    files = {"Unihan_IRGSources.txt": unihan, "Unihan_Readings.txt": readings, "Unihan_Variants.txt": "U+6C34\tkX\ty\n"}
    return archive(path, {f"{name}.bz2": bz2.compress(text.encode()) for name, text in files.items()})
