"""Nothing but fake clients on the PATH, and a cache of one's own."""

import pytest


@pytest.fixture
def clients(tmp_path, monkeypatch):
    """The folder of clients, which is the whole PATH."""
    folder = tmp_path / "clients"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FRONTRANK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "packages"
