"""How npm, pip and apt are called, and what is said when they fail."""

import hashlib
import os
import sys

import pytest

from frontrank.errors import FrontrankWarning, InputError
from frontrank.packages import _Clients, actual_package, fetch, is_cached
from tests.errors import refusal
from tests.packages import fakes
from tests.packages.fakes import calls, client, package, saying, stored, tgz, whl

CONTENT = {"npm": tgz({"package/a": b"1"}), "pip": whl({"a": b"1"}), "apt": fakes.deb(fakes.tar({"a": b"1"}, "w:xz"))}
ENDINGS = {"npm": "thing-1.0.tgz", "pip": "thing-1.0-py3-none-any.whl", "apt": "thing_1.0_all.deb"}
THING = {kind: package(content, kind) for kind, content in CONTENT.items()}


@pytest.fixture
def copy(tmp_path):
    """Lines of a client that brings a content."""

    def lines(kind, content=None, name=None):
        name = name or ENDINGS[kind]
        archive = stored(tmp_path / "registry", name, CONTENT[kind] if content is None else content)
        return [f'cp "{archive}" "{name}"']

    return lines


@pytest.fixture
def python(clients, monkeypatch):
    """`sys.executable` is a fake, too: pip is a module of it."""
    monkeypatch.setattr(sys, "executable", str(clients / "python"))
    return clients


def refused(kind, **options):
    with pytest.raises(InputError) as error:
        fetch([THING[kind]], **options)
    assert "\n" not in str(error.value)
    assert not is_cached(THING[kind])
    return str(error.value)


NAMES = {"npm": "npm", "pip": "python", "apt": "apt-get"}
CALLS = {
    "npm": ("npm pack thing@1.0 --ignore-scripts ", " --fetch-timeout=60000 "),
    "pip": ("python -m pip download --no-deps --only-binary :all: ", " thing==1.0"),
    "apt": ("apt-get download -q thing=1.0", ""),
}


@pytest.mark.parametrize("kind", CALLS)
def test_calls(python, cache, copy, kind):
    if kind != "pip":  # which is a module of Python
        assert NAMES[kind] in refused(kind)
    client(python, NAMES[kind], *copy(kind))
    (path,) = fetch([THING[kind]], any_version=True)
    (call,) = calls(python)
    start, option = CALLS[kind]
    assert call.startswith(start)
    assert option in call
    assert "://" not in call
    assert path.name.startswith(f"{kind}-thing-1.0.")
    assert actual_package(THING[kind], path) == THING[kind]


def test_pip_of_another_python(python, cache, copy):
    client(python, "python", *saying(f"{python}/python: No module named pip\n"))
    assert "ensurepip" in refused("pip")
    client(python, "pip", *copy("pip"))
    fetch([THING["pip"]])
    assert calls(python)[-1].startswith("pip download --no-deps --only-binary :all: ")


FAILURES = {  # client, its output, what the message quotes, and of what kind it is
    "npm, unknown version": ("npm", fakes.UNKNOWN_NPM, "notarget No matching version found", "does not have"),
    "npm, no network": ("npm", fakes.OFFLINE_NPM, "FetchError: request to http://somewhere/thing", "registry"),
    "npm, silent": ("npm", "", "exit status 1", "cannot fetch"),
    "pip, unknown version": ("pip", fakes.UNKNOWN_PIP, "No matching distribution found", "does not have"),
    "apt, no network": ("apt", fakes.OFFLINE_APT, "Temporary failure resolving", "registry"),
    "apt, other": ("apt", "E: dpkg was interrupted\n", "dpkg was interrupted", "cannot fetch"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_failures(python, cache, name):
    kind, output, line, fault = FAILURES[name]
    client(python, NAMES[kind], *saying(output))
    message = refused(kind)
    assert f"thing 1.0 ({kind})" in message
    assert f"({line}" in message
    assert fault in message
    assert not list(cache.glob(".fetch-*"))


@pytest.mark.parametrize(("left", "many"), [([], 0), (["a.tgz", "b.tgz"], 2)])
def test_another_number_of_archives(clients, cache, left, many):
    client(clients, "npm", *(f"touch {name}" for name in left))
    assert f" {many} archives" in refused("npm")


def test_clients_that_start_after_a_stop_are_ended(clients, tmp_path):
    client(clients, "npm", "exec sleep 300")
    late = _Clients(tmp_path, any_version=False)
    late.stop()
    refusal(lambda: late.download(THING["npm"], tmp_path), "npm")


def apt(folder, own, elsewhere=("exit 9",), update=("exit 0",)):
    """apt-get whose own lists do one thing, and whose private ones another, once they are updated."""
    client(folder, "apt-get", *case({'*" update "*': update, "*Dir::State::lists=*": elsewhere, "*": own}))


def case(commands):
    """Lines that run some others by the pattern that the arguments match."""
    return [
        'case "$*" in',
        *(line for pattern, lines in commands.items() for line in (f"{pattern})", *lines, ";;")),
        "esac",
    ]


def test_apt_whose_lists_are_empty(clients, cache, copy):
    """They are fetched into the cache, once; nothing of the machine is touched."""
    apt(clients, saying(fakes.UNKNOWN_APT, 100), copy("apt"))
    fetch([THING["apt"]])
    first, update, second = calls(clients)
    private = f"-o Dir::State::lists={cache.parent}/apt/lists -o Dir::Cache={cache.parent}/apt/cache "
    assert first == "apt-get download -q thing=1.0"
    assert update.startswith(f"apt-get {private}")
    assert update.endswith(" update -q")
    assert second.startswith(f"apt-get {private}")
    assert (cache.parent / "apt" / "lists" / "partial").is_dir()
    for count in (1, 2):
        (cache / "apt-thing-1.0.deb").unlink()
        fetch([THING["apt"]])
        assert sum(" update " in call for call in calls(clients)) == count
        os.utime(cache.parent / "apt" / "updated", (1, 1))


def test_apt_cannot_update(clients, cache, copy):
    """It may have the package all the same: one of several sources is out of reach, or the lists are of yesterday."""
    apt(clients, saying(fakes.UNKNOWN_APT, 100), update=saying(fakes.OFFLINE_APT, 100))
    assert "(Temporary failure" in refused("apt")
    refused("apt")
    assert sum(" update " in call for call in calls(clients)) == 2
    apt(clients, saying(fakes.UNKNOWN_APT, 100), copy("apt"), saying(fakes.OFFLINE_APT, 100))
    fetch([THING["apt"]])
    assert is_cached(THING["apt"])


def test_apt_has_another_version(clients, cache, copy):
    """It is an error, or a warning each time."""
    here = "thing_2.0_all.deb"
    content = fakes.deb(fakes.tar({"a": b"2"}, "w:xz"))
    by_name = case({"*=1.0": saying(fakes.OTHER_APT, 100), "*": copy("apt", content, here)})
    apt(clients, by_name, by_name)
    assert "--any-version" in refused("apt")
    for many in (2, 0):
        (clients / "calls").unlink(missing_ok=True)
        with pytest.warns(FrontrankWarning, match=rf"^thing 1\.0 \(apt\) .*{here}"):
            (path,) = fetch([THING["apt"]], any_version=True)
        assert path.read_bytes() == content
        found = actual_package(THING["apt"], path)
        assert (found.version, found.sha256) == ("2.0", hashlib.sha256(content).hexdigest())
        assert len(calls(clients)) == many
    assert not is_cached(THING["apt"])
    refused("apt")


def test_another_archive_of_the_same_version(clients, cache, copy):
    apt(clients, copy("apt", b"rebuilt"))
    assert "--any-version" in refused("apt")
    with pytest.warns(FrontrankWarning, match=r"thing_1\.0_all\.deb"):
        (path,) = fetch([THING["apt"]], any_version=True)
    path.write_bytes(b"damaged")
    with pytest.warns(FrontrankWarning, match="thing"):
        assert fetch([THING["apt"]], any_version=True)[0].read_bytes() == b"rebuilt"
