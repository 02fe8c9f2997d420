import pytest

from frontrank.samples.glyphs import Character, read_characters
from tests.data.files import refusal
from tests.samples.fonts import UNIHAN, archive, unicode_archive


def test_radicals_strokes_and_meanings(tmp_path):
    found = read_characters(unicode_archive(tmp_path / "unicode.deb"))
    assert found[ord("水")] == Character(85, 0, "water")
    assert found[ord("火")] == Character(86, 0, "fire")
    assert found[ord("土")] == Character(32, 0, "")
    assert found[ord("金")] == Character(167, 0, "")  # the first of two places
    assert found[ord("钅")] == Character(167, 2, "")  # a simplified radical
    assert found[ord("王")] == Character(96, -1, "")
    assert found[0x20000] == Character(1, 4, "")


def test_another_code_of_the_same_character_is_left_out(tmp_path):
    found = read_characters(unicode_archive(tmp_path / "unicode.deb"))
    assert ord("海") in found
    assert 0xFA45 not in found  # 海 again, for the sake of an older standard
    assert len(found) == UNIHAN.count("kRSUnicode") - 1


def test_plain_files_and_older_places(tmp_path):
    files = {"Unihan_RadicalStrokeCounts.txt": "U+6C34\tkRSUnicode\t85.0\n", "Unihan_Readings.txt": ""}
    assert read_characters(archive(tmp_path / "u.deb", files)) == {ord("水"): Character(85, 0, "")}


@pytest.mark.parametrize(
    ("radical", "strokes", "category", "subcategory"),
    [(1, 0, "001 one", "001 one +0"), (96, -1, "096 jade", "096 jade -1"), (214, 11, "214 flute", "214 flute +11")],
)
def test_categories(radical, strokes, category, subcategory):
    character = Character(radical, strokes, "")
    assert (character.category, character.subcategory) == (category, subcategory)


def test_all_radicals_have_names_of_their_own():
    assert len({Character(radical, 0, "").category[4:] for radical in range(1, 215)}) == 214


def test_a_package_without_radicals(tmp_path):
    refusal(lambda: read_characters(archive(tmp_path / "u.deb", {"x.txt": "U+6C34"})), "u.deb", "kRSUnicode")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("Unihan_IRGSources.txt.bz2", b"not compressed"),
        ("Unihan_IRGSources.txt", b"U+6C34\tkRSUnicode\t85\n"),
        ("Unihan_IRGSources.txt", b"U+6C34\tkRSUnicode\tx.y\n"),
        ("Unihan_IRGSources.txt", b"\xff\xfe"),
    ],
    ids=["bz2", "strokes", "number", "text"],
)
def test_a_damaged_file(tmp_path, name, content):
    path = archive(tmp_path / "u.deb", {name: content})
    refusal(lambda: read_characters(path), "u.deb", "Unihan_IRGSources", "cannot be read")
