"""Han characters as Unicode knows them: the radical, the other strokes, and what they mean."""

import bz2
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

from frontrank.errors import InputError
from frontrank.packages import members

_FILES = ("Unihan_IRGSources.txt", "Unihan_RadicalStrokeCounts.txt", "Unihan_Readings.txt")
_FIELDS = re.compile(r"^U\+(\w+)\t(kRSUnicode|kDefinition)\t(.*)$", re.MULTILINE)
_ASIDE = re.compile(r"\([^)]*\)")  # such as (same as U+7360)


@dataclass(frozen=True)
class Character:
    """A Han character: its Kangxi radical (1 to 214), the strokes beside that, and the first of its meanings, if any.

    >>> ocean = Character(85, 6, "ocean")
    >>> ocean.category, ocean.subcategory
    ('085 water', '085 water +6')
    """

    radical: int
    strokes: int
    meaning: str

    @property
    def category(self) -> str:
        name = unicodedata.name(chr(0x2EFF + self.radical)).removeprefix("KANGXI RADICAL ")
        return f"{self.radical:03d} {name.lower()}"

    @property
    def subcategory(self) -> str:
        return f"{self.category} {self.strokes:+d}"


def read_characters(archive: Path) -> dict[int, Character]:
    """All Han characters by code point, from the fields kRSUnicode and kDefinition of the package unicode-data.

    Left out is what is only another code for one of them (compatibility ideographs, which Unicode normalises away).
    """
    radicals: dict[int, tuple[int, int]] = {}
    meanings: dict[int, str] = {}
    for name, content in members(archive, [f"*/{file}{ending}" for file in _FILES for ending in ("", ".bz2")]):
        try:
            _read(bz2.decompress(content) if name.endswith(".bz2") else content, radicals, meanings)
        except (ValueError, OSError) as error:
            raise InputError(f"{archive}: {name} cannot be read ({error}); delete it, and run this again") from error
    if not radicals:
        raise InputError(f"{archive} has no radicals of Han characters (kRSUnicode in Unihan_*.txt); fetch it again")
    return {
        code: Character(radical, strokes, meanings.get(code, ""))
        for code, (radical, strokes) in radicals.items()
        if unicodedata.is_normalized("NFC", chr(code))
    }


def _read(content: bytes, radicals: dict[int, tuple[int, int]], meanings: dict[int, str]) -> None:
    for code, field, value in _FIELDS.findall(content.decode("utf-8")):
        if field == "kRSUnicode":  # such as "120'.3": an apostrophe marks a simplified form of the radical
            radical, strokes = value.split()[0].replace("'", "").split(".")
            radicals[int(code, 16)] = int(radical), int(strokes)
        else:
            meanings[int(code, 16)] = _ASIDE.sub("", value).replace(";", ",").split(",")[0].strip()
