"""What the tests of studies share: images, and every study done once."""

import pytest

from tests.studies.made import STUDIES, TRAINED, done, done_without_runs
from tests.training.runs import small_table


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A table of glyphs: 10 training classes, 10 for test, 8 images each."""
    return small_table(tmp_path_factory.mktemp("glyphs"))


@pytest.fixture(scope="session")
def study_done(tmp_path_factory, images):
    """A function that gives the folder of a quick study, done at the first call."""
    folders = {}

    def folder(name):
        if name not in folders:
            out = tmp_path_factory.mktemp("studies") / name
            done_without_runs(name, out, images) if name in TRAINED else done(name, out)
            folders[name] = out
        return folders[name]

    assert STUDIES
    return folder
