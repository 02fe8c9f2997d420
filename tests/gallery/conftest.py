import pytest

from tests.gallery.samples import client_of, shown_of


@pytest.fixture(scope="package")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pictures")


@pytest.fixture(scope="package")
def client(folder):
    """A page of one index that takes uploads."""
    with client_of(shown_of(folder)) as found:
        yield found
