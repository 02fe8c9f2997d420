"""Packages that tests need, and errors if they are missing."""

import pytest

from frontrank.errors import InputError
from frontrank.samples.emoji import OPENMOJI
from tests import fetch


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FRONTRANK_CACHE", str(tmp_path / "cache"))


def test_tests_fail_without_their_packages(tmp_path):
    with pytest.raises(pytest.fail.Exception, match=r"openmoji 17\.0\.0 \(npm\) .*scripts/test"):
        fetch.require_packages([OPENMOJI])
    fetch.require_packages([])


def test_all_that_is_needed_is_fetched(monkeypatch, capsys, tmp_path):
    asked = []
    monkeypatch.setattr(fetch, "fetch", lambda packages: asked.extend(packages))
    assert fetch.main() == 0
    assert set(asked) == set(fetch.NEEDED)
    assert {package.client for package in asked} == {"npm", "pip", "apt"}
    assert f" MB, into {tmp_path / 'cache'}\n" in capsys.readouterr().out


@pytest.mark.parametrize(("client", "status"), [("npm", 2), ("pip", 2), ("apt", 0)])
def test_one_client_fails_and_the_others_fetch(monkeypatch, capsys, client, status):
    """Another Debian has other fonts: the tests of them fail by themselves."""
    asked = []

    def fail(packages):
        asked.extend(packages)
        if packages[0].client == client:
            raise InputError(f"{client} does not have it")

    monkeypatch.setattr(fetch, "fetch", fail)
    assert fetch.main() == status
    assert set(asked) == set(fetch.NEEDED)
    assert capsys.readouterr().err.count(client) == 1
