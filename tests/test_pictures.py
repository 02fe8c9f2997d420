import numpy as np
from PIL import Image

from tests.pictures import TYPEFACES, glyph_pictures


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
