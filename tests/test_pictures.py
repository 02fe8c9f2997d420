import numpy as np
from PIL import Image

from tests.pictures import SCRIPTS, TYPEFACES, drawable, glyph_pictures


def test_the_seed_decides_every_picture(tmp_path):
    first, again, other = (
        glyph_pictures(tmp_path / name, classes=9, size=24, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert first.paths.tolist() == again.paths.tolist() == sorted(first.paths)
    pixels = [np.array(Image.open(first.root / path)) for path in first.paths]
    for path, expected in zip(first.paths, pixels, strict=True):
        np.testing.assert_array_equal(np.array(Image.open(again.root / path)), expected)
    assert {image.shape for image in pixels} == {(24, 24, 3)}
    assert len({image.tobytes() for image in pixels}) == len(first) == 9 * len(TYPEFACES)
    assert other.paths.tolist() != first.paths.tolist()


def test_half_of_the_classes_of_each_script_are_unseen(tmp_path):
    table = glyph_pictures(tmp_path, classes=16)
    train, test = table.of("train"), table.of("test")
    assert not set(train.labels) & set(test.labels)
    for part in (train, test):
        assert {script: len(set(part.labels[part.categories == script])) for script in SCRIPTS} == dict.fromkeys(
            SCRIPTS, 2
        )
        assert set(np.unique(part.labels, return_counts=True)[1]) == {len(TYPEFACES)}
    assert table.check() is table


def test_characters_are_drawn_by_every_typeface_and_differ():
    found = drawable()
    assert {script: len(codes) > 50 for script, codes in found.items()} == dict.fromkeys(SCRIPTS, True)
    assert ord("A") in found["latin"]
    assert 0x391 not in found["greek"]  # looks like A
    assert 0x3A2 not in found["greek"]  # no such letter
