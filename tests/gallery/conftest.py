import pytest

from tests.browser import browser
from tests.gallery.live import one, pictures, two
from tests.gallery.samples import client_of, shown_of

__all__ = ["browser", "client", "folder", "one", "pictures", "two"]


@pytest.fixture(scope="package")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pictures")


@pytest.fixture(scope="package")
def client(folder):
    """A page of one index that takes uploads."""
    with client_of(shown_of(folder)) as found:
        yield found
