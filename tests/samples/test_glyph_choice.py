import hashlib
from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontrank.samples import glyphs as glyph_choice
from frontrank.samples.glyphs import LIKE_SOP, MISSING, choose, first_by_lot, label_of, split_of
from tests.data.files import refusal

WATER, FIRE, EARTH, GOLD, MOON = map(ord, "水火土金月")  # train, train, train, test, test


def chosen(pictures, **options):
    """The pictures (code, design, fingerprint) that are chosen, in their order."""
    codes, designs, prints = zip(*pictures, strict=True) if pictures else ((), (), ())
    rows = choose(
        np.array(codes, dtype=np.int64), np.array(designs, dtype=str), np.array(prints, dtype=np.uint64), **options
    )
    return [pictures[row] for row in rows.tolist()]


def many(classes, designs=8, start=0x4E00):
    """Characters in many typefaces, all pictures different."""
    codes = range(start, start + classes)
    return [(code, f"d{design}", 100 * code + design) for code in codes for design in range(designs)]


@pytest.mark.parametrize(
    ("pictures", "left"),
    [
        pytest.param([], "", id="nothing"),
        pytest.param([(WATER, "a", 1), (WATER, "b", 2)], "水a 水b", id="a class of two"),
        pytest.param([(WATER, "a", 1), (FIRE, "a", 2)], "", id="classes of one"),
        pytest.param([(WATER, "a", 0), (WATER, "b", 2), (WATER, "c", 3)], "水b 水c", id="a blank one"),
        pytest.param([(WATER, "a", 0), (WATER, "b", 2)], "", id="one beside a blank one"),
        pytest.param([(WATER, "a", 1), (WATER, "b", 1), (WATER, "c", 2)], "水a 水c", id="one drawing in two typefaces"),
        pytest.param(
            [(WATER, "a", 1), (WATER, "b", 2), (WATER, "c", 3), (FIRE, "a", 1), (FIRE, "b", 5), (FIRE, "c", 6)],
            "水b 水c 火b 火c",
            id="a picture of two classes is dropped in both",
        ),
        pytest.param(
            [(WATER, "a", 9), (WATER, "b", 2), (WATER, "c", 3), (FIRE, "b", 9), (FIRE, "c", 6)],
            "水b 水c",
            id="in different typefaces too",
        ),
        pytest.param(
            [(WATER, "a", 7), (WATER, "b", 2), (WATER, "c", 3), (MISSING, "a", 7)], "水b 水c", id="a missing glyph"
        ),
        pytest.param([(MISSING, "a", 7), (MISSING, "b", 8)], "", id="missing glyphs are no class"),
        pytest.param(
            [(FIRE, "b", 4), (WATER, "c", 1), (FIRE, "a", 3), (WATER, "a", 2)], "水a 水c 火a 火b", id="sorted by code"
        ),
    ],
)
def test_which_pictures_are_left(pictures, left):
    assert [f"{chr(code)}{design}" for code, design, _ in chosen(pictures)] == left.split()


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from("abcd"), st.integers(0, 9)), max_size=20))
def test_all_that_is_left_is_distinct(pictures):
    pictures = list({(code, design): (code, design, number) for code, design, number in pictures}.values())
    classes = defaultdict(set)
    for code, _, number in pictures:
        classes[number].add(code)
    kept, seen = [], set()
    for picture in sorted(pictures):
        number = picture[2]
        if number and len(classes[number]) == 1 and number not in seen:
            seen.add(number)
            kept.append(picture)
    sizes = Counter(code for code, _, _ in kept)
    assert chosen(pictures) == [picture for picture in kept if sizes[picture[0]] > 1]


def test_the_split_is_the_first_bit_of_a_hash():
    for code in (WATER, GOLD, 0x20000, 0x3400):
        first = hashlib.sha256(f"U+{code:04X}".encode()).digest()[0]
        assert split_of(code) == ("train" if first < 128 else "test")
    halves = Counter(split_of(code) for code in range(0x4E00, 0x9FFF))
    assert abs(halves["train"] - halves["test"]) < 5 * 145  # standard deviations of their difference
    assert label_of(0x20000) == "U+20000"


@pytest.mark.parametrize("classes", [2, 3, 10, 31])
def test_so_many_classes(classes):
    pictures = many(100, 3)
    kept = chosen(pictures, classes=classes)
    labels = sorted({code for code, _, _ in kept})
    assert len(kept) == 3 * classes
    assert Counter(map(split_of, labels)) == Counter(train=(classes + 1) // 2, test=classes // 2)
    more = {code for code, _, _ in chosen(pictures, classes=classes + 5)}
    assert set(labels) < more  # the same ones first


def test_the_choice_does_not_depend_on_the_order_of_rows():
    pictures = many(60, 4)
    shuffled = [pictures[place] for place in np.random.default_rng(0).permutation(len(pictures))]
    assert chosen(pictures, classes=20) == chosen(shuffled, classes=20)


def test_the_first_by_lot_are_those_that_are_chosen():
    pictures = many(300, 2)
    codes = np.array([code for code, _, _ in pictures] + list(range(0x6000, 0x6100)))  # of the others, one each
    for classes in (2, 9, 40):
        first = first_by_lot(codes, classes)
        assert len(first) == len(set(first.tolist())) == 2 * classes
        assert max(first) < 0x6000
        assert {code for code, _, _ in chosen(pictures, classes=classes)} <= set(first.tolist())
    assert sorted(first_by_lot(codes, 10_000).tolist()) == list(range(0x4E00, 0x4E00 + 300))
    assert first_by_lot(np.zeros(0, dtype=np.int64), 5).tolist() == []


def test_not_enough_classes():
    refusal(
        lambda: chosen([(WATER, "a", 1), (WATER, "b", 2)], classes=2),
        "classes=2 needs 1 of the test split, 0 can be had",
    )
    refusal(lambda: chosen([], classes=3), "classes=3 needs 2 of the train split, 0", "more typefaces")


def of_sop(monkeypatch, pictures, train, test):
    monkeypatch.setattr(glyph_choice, "LIKE_SOP", {"train": train, "test": test})
    kept = chosen(pictures, like="sop")
    sizes = {split: Counter(code for code, _, _ in kept if split_of(code) == split) for split in ("train", "test")}
    return kept, sizes


@pytest.mark.parametrize("images", [80, 113, 200, 240])
def test_exactly_so_many_classes_and_images(monkeypatch, images):
    kept, sizes = of_sop(monkeypatch, many(150, 14), (40, images), (41, 2 * 41))
    assert len(kept) == len(set(kept)) == images + 82
    assert (len(sizes["train"]), sizes["train"].total()) == (40, images)
    assert (len(sizes["test"]), sizes["test"].total()) == (41, 82)
    assert set(sizes["train"].values()) <= set(range(2, 13))
    assert set(sizes["test"].values()) == {2}
    assert kept == sorted(kept, key=lambda picture: picture[:2])


def test_the_sizes_of_classes_are_spread_from_2_to_12(monkeypatch):
    _, sizes = of_sop(monkeypatch, many(800, 20), (300, 300 * 6), (300, 300 * 6))
    assert set(sizes["train"].values()) == set(range(2, 13))
    assert Counter(sizes["train"].values())[2] > 20  # of 300


def test_no_typeface_is_preferred(monkeypatch):
    kept, _ = of_sop(monkeypatch, many(800, 10), (300, 300 * 5), (300, 300 * 5))
    assert all(abs(count - 300) < 5 * 17 for count in Counter(design for _, design, _ in kept).values())


def test_characters_of_few_typefaces_are_not_taken(monkeypatch):
    pictures = many(100, 6) + many(100, 5, start=0x6000)
    kept, _ = of_sop(monkeypatch, pictures, (30, 70), (30, 70))
    assert max(code for code, _, _ in kept) < 0x6000


def test_too_little_for_sop(monkeypatch):
    train = sum(split_of(0x4E00 + code) == "train" for code in range(100))
    pictures = many(100, 6)
    refusal(
        lambda: of_sop(monkeypatch, pictures, (train + 1, 2 * train + 2), (1, 2)),
        f"like='sop' needs {train + 1} train classes of 6 typefaces or more, {train} can be had",
    )
    refusal(
        lambda: of_sop(monkeypatch, pictures, (10, 20), (10, 61)), "10 test classes", "and 61 images, ", "can be had"
    )


def test_the_numbers_of_sop():
    assert LIKE_SOP == {"train": (11_318, 59_551), "test": (11_316, 60_502)}
    assert sum(images for _, images in LIKE_SOP.values()) == 120_053
    refusal(lambda: chosen(many(10, 6), like="sop"), "needs 11,318 train classes")


@settings(max_examples=20)
@given(st.permutations(range(90)))
def test_sop_is_the_same_whatever_the_order(order):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(glyph_choice, "LIKE_SOP", {"train": (4, 12), "test": (4, 12)})
        pictures = many(15, 6, start=0x7000)
        assert chosen([pictures[place] for place in order], like="sop") == chosen(pictures, like="sop")
