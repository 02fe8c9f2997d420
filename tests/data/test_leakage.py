import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from frontrank.data import leakage
from frontrank.data.leakage import conflicting_labels, near_duplicates, picture_hash
from frontrank.data.table import ImageTable
from tests.errors import refusal


def scene(seed, size=(120, 90)):
    """A picture of large soft patches of colour."""
    rng = np.random.default_rng(seed)
    patches = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
    return patches.resize(size, Image.Resampling.BICUBIC)


def table_of(folder, pictures, labels=None):
    """A table of {split/name: picture}; the label is the name without its ending."""
    for path, picture in pictures.items():
        (folder / path).parent.mkdir(exist_ok=True)
        if isinstance(picture, bytes):
            (folder / path).write_bytes(picture)
        else:
            picture.save(folder / path)
    paths = list(pictures)
    labels = labels or [path.split("/")[1].split(".")[0] for path in paths]
    nothing = np.full(len(paths), "")
    splits = np.array([path.split("/")[0] for path in paths])
    return ImageTable(folder, np.array(paths), np.array(labels), nothing, splits, nothing, name="pets")


def test_copies_are_found_and_others_are_not(tmp_path):
    pictures = {f"train/{seed}.png": scene(seed) for seed in range(12)}
    pictures |= {
        "test/compressed.jpg": scene(3),
        "test/small.png": scene(5).resize((60, 45), Image.Resampling.BILINEAR),
        "test/wide.webp": scene(7).resize((300, 100), Image.Resampling.BILINEAR),
        "test/same.png": scene(9),
        "test/other.png": scene(100),
        "test/mirrored.png": scene(1).transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    }
    found = near_duplicates(table_of(tmp_path, pictures))
    assert [(first, second) for first, second, _ in found.pairs] == [
        ("train/3.png", "test/compressed.jpg"),
        ("train/5.png", "test/small.png"),
        ("train/7.png", "test/wide.webp"),
        ("train/9.png", "test/same.png"),
    ]
    assert found.pairs[-1][2] == 0
    assert all(distance <= 10 for *_, distance in found.pairs)
    assert found.count == 4
    assert found.blank == []


def test_the_threshold_and_the_other_splits(tmp_path):
    pictures = {"train/a.png": scene(1), "test/a.png": scene(1), "validation/b.png": scene(2), "test/c.png": scene(3)}
    table = table_of(tmp_path, pictures)
    assert near_duplicates(table, threshold=0).pairs == [("train/a.png", "test/a.png", 0)]
    assert near_duplicates(table, between=("test", "train")).pairs == [("test/a.png", "train/a.png", 0)]
    assert near_duplicates(table, between=("train", "validation")).pairs == []
    everything = near_duplicates(table, threshold=128)
    assert [(first, second) for first, second, _ in everything.pairs] == [
        ("train/a.png", "test/a.png"),
        ("train/a.png", "test/c.png"),
    ]
    far = everything.pairs[1][2]
    assert far > 20
    assert near_duplicates(table, threshold=far).count == 2
    assert near_duplicates(table, threshold=far - 1).count == 1


def test_within_one_split_each_pair_comes_once(tmp_path):
    table = table_of(
        tmp_path, {"train/a.png": scene(1), "train/b.png": scene(2), "train/c.png": scene(1), "train/d.png": scene(1)}
    )
    found = near_duplicates(table, between=("train", "train"))
    assert found.pairs == [(f"train/{one}.png", f"train/{other}.png", 0) for one, other in ("ac", "ad", "cd")]


def test_blank_pictures_are_not_compared(tmp_path):
    faint = Image.fromarray(np.linspace(100, 110, 100).reshape(10, 10).astype(np.uint8))
    pictures = {
        "train/white.png": Image.new("RGB", (30, 30), "white"),
        "test/white.png": Image.new("RGB", (40, 30), "white"),
        "test/black.png": Image.new("L", (40, 30), 0),
        "test/clear.png": Image.new("RGBA", (40, 30), (0, 0, 0, 0)),
        "test/faint.png": faint,
        "train/a.png": scene(1),
        "test/a.png": scene(1),
    }
    found = near_duplicates(table_of(tmp_path, pictures))
    assert found.blank == ["train/white.png", "test/white.png", "test/black.png", "test/clear.png", "test/faint.png"]
    assert found.pairs == [("train/a.png", "test/a.png", 0)]


def test_the_hash_by_hand(tmp_path):
    grey = np.full((9, 9), 100, dtype=np.uint8)
    grey[0, 1] = 200  # brighter than its left neighbour: the second highest... bit of the first row, first step
    grey[8, 8] = 250  # in no comparison to the right of the rows used, nor downward of the columns used
    Image.fromarray(grey).save(tmp_path / "a.png")
    assert picture_hash(str(tmp_path / "a.png")) == (1 << 63, 0)
    Image.fromarray(grey.T).save(tmp_path / "b.png")
    assert picture_hash(str(tmp_path / "b.png")) == (0, 1 << 63)
    grey[4, 4] = 102  # a step of noise
    Image.fromarray(grey).save(tmp_path / "c.png")
    assert picture_hash(str(tmp_path / "c.png")) == (1 << 63, 0)
    grey[4, 4] = 103
    Image.fromarray(grey).save(tmp_path / "d.png")
    right, down = 1 << (63 - (4 * 8 + 3)), 1 << (63 - (3 * 8 + 4))
    assert picture_hash(str(tmp_path / "d.png")) == (1 << 63 | right, down)


WORDS = st.integers(0, 2**64 - 1)
HASHES = st.lists(st.tuples(WORDS, WORDS), max_size=12)


@given(HASHES, HASHES, st.integers(0, 128), st.sampled_from([1, 5, 100]), st.booleans())
def test_near_pairs_equal_a_loop(first, second, threshold, tile, same):
    if same:
        second = first
    expected = [
        (one, two, sum((a ^ b).bit_count() for a, b in zip(first[one], second[two], strict=True)))
        for one in range(len(first))
        for two in range(one + 1 if same else 0, len(second))
    ]
    expected = [pair for pair in expected if pair[2] <= threshold]
    arrays = (np.array(words, dtype=np.uint64).reshape(-1, 2) for words in (first, second))
    before, leakage._TILE = leakage._TILE, tile
    try:
        count, pairs = leakage._near_pairs(*arrays, same, threshold, 1000)
    finally:
        leakage._TILE = before
    assert count == len(expected)
    assert pairs == expected


@given(st.lists(WORDS, max_size=20))
def test_bits_with_an_older_numpy(words):
    array = np.array(words, dtype=np.uint64).reshape(1, -1)
    expected = [[word.bit_count() for word in words]]
    assert leakage._bits(array).tolist() == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(np, "bitwise_count", raising=False)
        assert leakage._bits(array).tolist() == expected


def test_what_cannot_be_compared(tmp_path, monkeypatch):
    table = table_of(tmp_path, {"train/a.png": scene(1), "test/b.png": b"no picture"})
    refusal(lambda: near_duplicates(table), "b.png")
    refusal(lambda: near_duplicates(table, between=("train", "validation")), "pets", "'validation'")
    refusal(lambda: near_duplicates(table, between=("train", "tset")), "between", "'tset'")
    refusal(lambda: near_duplicates(table, between=("train",)), "between")
    refusal(lambda: near_duplicates(table, threshold=129), "threshold", "128")
    refusal(lambda: near_duplicates(table, most=-1), "most")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    refusal(lambda: near_duplicates(table), "PIL", "frontrank[train]")


def test_files_with_two_labels(tmp_path):
    pictures = {
        "train/1.png": b"same", "train/2.png": b"same", "train/3.png": b"same", "train/4.png": b"sand",
        "train/5.png": b"alike", "train/6.png": b"alike", "test/7.png": b"alike", "train/0.png": b"again",
        "train/9.png": b"again",
    }  # fmt: skip
    table = table_of(tmp_path, pictures, labels=["a", "b", "a", "c", "a", "a", "b", "x", "y"])
    assert conflicting_labels(table) == [("train/0.png", "train/9.png"), ("train/1.png", "train/2.png", "train/3.png")]
    assert conflicting_labels(table, split="test") == []
    (tmp_path / "train/1.png").unlink()
    refusal(lambda: conflicting_labels(table), "1.png")
