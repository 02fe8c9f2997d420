"""What the tests of studies share: a table of images."""

from dataclasses import replace

import numpy as np
import pytest

from tests.pictures import glyph_pictures


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A table of glyphs: 30 training classes, 30 for test, 8 images each, of two categories."""
    folder = tmp_path_factory.mktemp("glyphs")
    table = glyph_pictures(folder)
    replace(table, categories=np.array(["even", "odd"])[table.codes() % 2]).save(folder / "images.csv")
    return str(folder / "images.csv")
