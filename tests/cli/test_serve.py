"""`frontrank serve`: a real process that is asked over HTTP and ended by signals; what is refused before it runs."""

import html
import io
import json
import os
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

import frontrank as fr
from frontrank.cli import _parser, main, serving
from frontrank.cli import serve as command
from frontrank.errors import FrontrankWarning
from frontrank.retrieval.index import Index
from tests.cli.images import EACH, TEST, small_model, tree

TOKEN = "a-long-enough-token"
SOME = len(TEST) * EACH
PATIENCE = 120  # seconds; a busy machine takes some of them


@pytest.fixture(scope="module")
def served(made, tmp_path_factory):
    """A folder with photos, their index, and another one whose model is gone."""
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(made / "my_photos" / "test", folder / "photos")
    shutil.copytree(made / "runs", folder / "runs")
    before = Path.cwd()
    os.chdir(folder)
    try:
        words = ["index", "runs/first/model", "photos", "--workers", "0", "--quiet", "--to"]
        for name in ("photos.index", "other.index"):
            assert main([*words, name]) == 0
    finally:
        os.chdir(before)
    with Index(folder / "other.index") as index:
        index.note(model=str(folder / "gone"))
    return folder


@pytest.fixture
def here(served, monkeypatch):
    monkeypatch.chdir(served)
    monkeypatch.delenv("FRONTRANK_TOKEN", raising=False)
    return served


@contextmanager
def serve(folder, *words, **environment):
    """A server as a process: (process, address, what it said so far)."""
    program = [sys.executable, "-m", "frontrank", "serve", *words, "--device", "cpu"]
    process = subprocess.Popen(
        program,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        said = _said_until(process, "Ctrl-C ends it\n")
        if "--token" in words or environment:
            said += _said_until(process, "\n")
        yield process, re.search(r"serving at (http://\S+?)/[,;]", said)[1], said
    finally:
        process.kill()
        process.communicate()


def _said_until(process, end):
    said, until = "", time.monotonic() + PATIENCE
    while not said.endswith(end):
        ready, _, _ = select.select([process.stderr], [], [], max(0.0, until - time.monotonic()))
        letter = os.read(process.stderr.fileno(), 1) if ready else b""
        assert letter, f"the server ended or took too long; it said: {said}"
        said += letter.decode(errors="replace")
    return said


def ask(url, token=None, data=None, kind=None):
    """Status, content and kind of an answer."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if kind:
        headers["Content-Type"] = kind
    request = urllib.request.Request(url, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, answer.read(), answer.headers["Content-Type"]
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers["Content-Type"]


def upload(url, file, token=None):
    """Send a picture as a form."""
    edge = "edge-of-a-part"
    head = (
        f'--{edge}\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\nContent-Type: image/png\r\n\r\n'
    )
    data = head.encode() + Path(file).read_bytes() + f"\r\n--{edge}--\r\n".encode()
    status, content, _ = ask(url, token, data, f"multipart/form-data; boundary={edge}")
    return status, json.loads(content)


# Help


def test_help(run):
    found = run("serve", "--help")
    assert (found.status, found.err) == (0, "")
    assert found.out.endswith(command.EPILOG)
    assert max(map(len, found.out.splitlines())) <= 86


def test_examples_of_the_help_parse():
    lines = command.EPILOG.split("examples:\n")[1].splitlines()
    assert len(lines) == 4
    for line in lines:
        parser, commands = _parser()
        command.add_arguments(commands["serve"])
        options = commands["serve"].read(parser, shlex.split(line)[1:])
        assert options.urls[0] == "photos.index"
        assert options.token == ("" if "--token" in line else None)


# A real process


def test_a_page_that_is_searched_over_http_and_ended_by_ctrl_c(here):
    with serve(here, "photos.index", "--port", "0") as (process, url, said):
        assert url.startswith("http://127.0.0.1:")
        assert said.startswith(f"photos: {SOME} images, exact search\nserving at http://127.0.0.1:")
        status, page, kind = ask(f"{url}/")
        assert (status, kind.partition(";")[0]) == (200, "text/html")
        assert page.lstrip().lower().startswith(b"<!doctype html>")
        status, found = upload(f"{url}/api/v1/search?k=3", "photos/cup/1.png")
        assert status == 200, found
        assert (found["results"][0]["id"], len(found["results"])) == ("photos/cup/1.png", 3)
        status, content, _ = ask(f"{url}/api/v1/search?item=photos/cup/1.png&k=5")
        assert status == 200, content
        ids = [each["id"] for each in json.loads(content)["results"]]
        assert len(ids) == 5
        assert "photos/cup/1.png" not in ids
        shown = re.search(r'<img[^>]* src="(/[^"]*)"', ask(f"{url}/?item=photos/cup/1.png")[1].decode())
        status, content, kind = ask(f"{url}{html.unescape(shown[1])}")
        assert (status, kind.partition("/")[0]) == (200, "image")
        with Image.open(io.BytesIO(content)) as picture:
            assert picture.size == (32, 32)
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(
                ("127.0.0.2", int(url.rpartition(":")[2])), timeout=5
            )  # served on one address only
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out, err) == (0, b"", b"")


def test_two_indexes_a_token_and_sigterm(here):
    words = ("photos.index", "other.index", "--names", "ours,theirs", "--port", "0", "--token", "--host", "0.0.0.0")
    with serve(here, *words) as (process, url, said):
        warning = "frontrank serve: warning: only indexed pictures can be searched from: the model of other.index is no"
        assert f"{warning} longer at {here}/gone; give --model\n" in said
        assert f"ours: {SOME} images" in said
        token = re.search(r"the page asks for the token: (\S{20,})\n", said)[1]
        assert f", to others at http://{socket.gethostname()}:" in said
        for path in ("/api/v1/stats", "/api/v1/search?item=photos/cup/1.png"):
            assert ask(f"{url}{path}")[0] == 401
            assert ask(f"{url}{path}", "another-long-token")[0] == 401
        stats = json.loads(ask(f"{url}/api/v1/stats", token)[1])
        assert [(one["name"], one["takes_uploads"]) for one in stats["indexes"]] == [("ours", True), ("theirs", False)]
        assert upload(f"{url}/api/v1/search?index=theirs", "photos/cup/1.png", token)[0] == 422
        status, content, _ = ask(f"{url}/api/v1/search?item=photos/cup/1.png&index=theirs", token)
        assert (status, len(json.loads(content)["results"]) > 0) == (200, True)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out, err) == (0, b"", b"")


# Without running


@pytest.fixture
def ran(monkeypatch):
    """What the server was called with, instead of running."""
    calls = []
    monkeypatch.setattr(serving, "serve", lambda shown, **settings: calls.append((shown, settings)))
    return calls


def test_what_the_server_gets(here, run, ran, monkeypatch):
    found = run("serve", "photos.index", "--port", "0", "--upload-mb", "0.5", "--seconds", "9", "--requests", "7")
    assert (found.status, found.out) == (0, "")
    ((shown,), settings) = ran[0]
    assert (shown.name, shown.roots, shown.index.where) == ("photos", [here / "photos"], "photos.index")
    assert shown.model == fr.Embedder.load("runs/first/model").fingerprint
    assert (settings["host"], settings["token"]) == ("127.0.0.1", None)
    assert settings["port"] > 0
    limits = settings["limits"]
    assert (limits.upload_bytes, limits.seconds, limits.requests) == (500_000, 9.0, 7)
    assert run("serve", "photos.index", "--port", "0", "--root", "runs", "--token", TOKEN).status == 0
    assert (ran[1][0][0].roots, ran[1][1]["token"]) == ([Path("runs")], TOKEN)
    monkeypatch.setenv("FRONTRANK_TOKEN", TOKEN)
    assert run("serve", "photos.index", "--port", "0", "--host", "0.0.0.0").status == 0
    assert (ran[2][1]["host"], ran[2][1]["token"]) == ("0.0.0.0", TOKEN)


@pytest.mark.parametrize(
    ("urls", "more", "names"),
    [
        (["photos.index", "other.index"], ["--model", "runs/first/model"], ["photos", "other"]),
        (["photos.index", "photos.index"], [], ["photos 1", "photos 2"]),
        (["photos.index"], ["--names", "my own"], ["my own"]),
    ],
)
def test_names_of_indexes(here, run, ran, urls, more, names):
    assert run("serve", *urls, *more, "--port", "0").status == 0
    assert [one.name for one in ran[0][0]] == names
    assert all(one.embed is not None for one in ran[0][0])


def test_an_index_that_says_nothing_of_its_pictures(here, run, ran, tmp_path):
    Index(tmp_path / "bare.index", dim=8).close()
    with warnings.catch_warnings():
        warnings.simplefilter("default", FrontrankWarning)
        found = run("serve", tmp_path / "bare.index", "--port", "0")
    assert found.status == 0
    assert (
        f"warning: {tmp_path}/bare.index does not say where its pictures are: none are shown; give --root" in found.err
    )
    assert "only indexed pictures can be searched from: " in found.err
    assert (ran[0][0][0].embed, ran[0][0][0].roots) == (None, [])


@pytest.mark.parametrize("has_browser", [True, False])
def test_the_browser_is_opened_when_the_server_answers(here, run, monkeypatch, has_browser):
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or has_browser)

    def answering(shown, host, port, **settings):
        time.sleep(0.2)
        assert opened == []
        with socket.create_server((host, port)):
            until = time.monotonic() + PATIENCE
            while not opened and time.monotonic() < until:
                time.sleep(0.01)
        time.sleep(0.1)

    monkeypatch.setattr(serving, "serve", answering)
    found = run("serve", "photos.index", "--port", "0", "--open")
    assert found.status == 0
    (url,) = opened
    assert f"serving at {url}; Ctrl-C ends it" in found.err
    assert ("there is no browser to open; go to" in found.err) != has_browser


# Refused

CASES = [
    ("", "the following arguments are required: URL; see frontrank serve --help"),
    ("photos.index other.index photos.index", "serve takes one or two indexes, got 3; leave out the others"),
    ("photos.indx", "photos.indx is not there; did you mean 'photos.index'?"),
    ("photos", "photos holds no index; make one by frontrank index"),
    ("milvs://localhost/x", "url milvs://localhost/x begins with milvs://; did you mean milvus://?"),
    ("milvus://127.0.0.1:1/x", "milvus://127.0.0.1:1 does not answer; start the server"),
    ("photos.index --host 0.0.0.0", "--host 0.0.0.0 can be reached by others; add --token, or leave --host out"),
    ("photos.index --host :: --port 0", "--host :: can be reached by others; add --token, or leave --host out"),
    (f"photos.index --host 192.0.2.1 --token {TOKEN}", "--host 192.0.2.1 is no address of this machine ("),
    (
        "photos.index --port BUSY",
        "--port BUSY cannot be used (Address already in use); give another, or 0 for any that",
    ),
    ("photos.index --port -1", "--port must be at least 0 and at most 65535, got -1"),
    ("photos.index --port 70000", "--port must be at least 0 and at most 65535, got 70000"),
    ("photos.index --port http", "argument --port: invalid int value: 'http'; see"),
    ("photos.index --token short", "token must have at least 12 letters, digits or signs, no blanks; take another"),
    ("photos.index --root nowhere", "--root nowhere is no folder; give the one that the pictures are in"),
    ("photos.index --model my/lost/one", "my/lost/one does not exist"),
    ("photos.index --model second", "second is not the model that photos.index was made with; give that one by"),
    ("photos.index --model a --model b", "--model is there 2 times; give it once for each index"),
    ("photos.index --names a,b", "--names has 2 names for 1 indexes; give one for each"),
    ("photos.index photos.index --names a,a", "--names are both 'a'; give different ones"),
    ("photos.index --names <b>", "name '<b>' must be 1 to 64 letters, digits, blanks or . _ -; choose another one"),
    ("photos.index --upload-mb 0", "--upload-mb must be greater than 0, got 0.0"),
    ("photos.index --seconds nan", "--seconds must be greater than 0, got nan"),
    ("photos.index --requests 0", "--requests must be at least 1, got 0"),
    ("photos.index --device gpu", "device 'gpu' cannot be used ("),
]


@pytest.mark.parametrize(("words", "message"), CASES)
def test_refused_in_one_line(here, run, monkeypatch, words, message):
    if "second" in words and not Path("second").exists():
        small_model(here / "second", seed=1)
    before = tree(here)
    monkeypatch.setattr("uvicorn.run", lambda *given, **settings: pytest.fail("it was served"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        busy = str(other.getsockname()[1])
        words = [word.replace("BUSY", busy) for word in words.split()]
        found = run("serve", *words, *([] if "--port" in words else ["--port", "0"]))
    (said,) = [line for line in found.err.splitlines() if not re.match(r"\S+: \d+ images, ", line)]
    assert (found.status, found.out) == (2, "")
    assert said.startswith(f"frontrank serve: {message.replace('BUSY', busy)}")
    assert tree(here) == before


@pytest.mark.parametrize("library", ["fastapi", "uvicorn"])
def test_a_library_that_is_missing_is_named(here, run, monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    found = run("serve", "photos.index")
    assert (found.status, found.err) == (
        2,
        f"frontrank serve: the page needs {library}; pip install 'frontrank[serve]'\n",
    )


def test_a_busy_port_is_found_before_anything_is_loaded(here, run, monkeypatch):
    monkeypatch.setattr(serving, "open_index", lambda url: pytest.fail("it was loaded"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert run("serve", "photos.index", "--port", other.getsockname()[1]).status == 2
    assert run("serve", "photos.index", "--host", "0.0.0.0").status == 2


@pytest.mark.parametrize(
    "words", ["--token short", "--names a,b", "--names <b>", "other.index --names a,a", "other.index --names a,"]
)
def test_what_the_page_would_refuse_is_found_before_anything_is_loaded(here, run, monkeypatch, words):
    monkeypatch.setattr(serving, "open_index", lambda url: pytest.fail("it was loaded"))
    assert run("serve", "photos.index", *words.split(), "--port", "0").status == 2
    monkeypatch.setenv("FRONTRANK_TOKEN", "short")
    assert run("serve", "photos.index", "--port", "0").status == 2
