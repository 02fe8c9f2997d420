"""What the tests of studies share: images, and every study done once."""

from dataclasses import replace

import numpy as np
import pytest

from tests.pictures import glyph_pictures
from tests.studies.made import STUDIES, TRAINED, done, done_without_runs


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A table of glyphs: 30 training classes, 30 for test, 8 images each, of two categories."""
    folder = tmp_path_factory.mktemp("glyphs")
    table = glyph_pictures(folder)
    replace(table, categories=np.array(["even", "odd"])[table.codes() % 2]).save(folder / "images.csv")
    return str(folder / "images.csv")


@pytest.fixture(scope="session")
def study_done(tmp_path_factory, images):
    """A function that gives the folder of a quick study, done at the first call."""
    folders = {}

    def folder(name):
        if name not in folders:
            out = tmp_path_factory.mktemp("studies") / name
            done_without_runs(name, out, images) if name in TRAINED else done(name, out, images)
            folders[name] = out
        return folders[name]

    assert STUDIES
    return folder
