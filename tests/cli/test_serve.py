"""`frontrank serve`: a real process that answers over HTTP and is ended by a signal; what is refused before it runs."""

import html
import io
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from PIL import Image

import frontrank as fr
from frontrank.cli import main
from frontrank.retrieval.index import Index
from tests.cli.images import EACH, TEST, small_model

TOKEN = "a-long-enough-token"
SOME = len(TEST) * EACH
PATIENCE = 120  # seconds; a busy machine takes some of them


@pytest.fixture(scope="module")
def served(originals, tmp_path_factory):
    """A folder with photos, their index, and another one whose model is gone."""
    folder = tmp_path_factory.mktemp("served")
    shutil.copytree(originals / "my_photos" / "test", folder / "photos")
    shutil.copytree(originals / "runs", folder / "runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("photos.index", "other.index"):
            words = ["index", "runs/first/model", "photos", "--workers", "0", "--quiet", "--to", name]
            assert main(words) == 0
    with Index(folder / "other.index") as index:
        index.note(model=str(folder / "gone"))
    return folder


@pytest.fixture
def here(served, monkeypatch):
    monkeypatch.chdir(served)
    monkeypatch.delenv("FRONTRANK_TOKEN", raising=False)
    return served


@contextmanager
def serve(folder, *words):
    """A server as a process, with its address and what it has printed; it ends with the line of the token."""
    program = [sys.executable, "-m", "frontrank", "serve", *words, "--device", "cpu"]
    with subprocess.Popen(program, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        watch = threading.Timer(PATIENCE, process.kill)
        watch.start()
        try:
            lines = []
            while "token: " not in "".join(lines):
                lines.append(process.stderr.readline())
                assert lines[-1], f"the server ended: {lines}"
            yield process, re.search(r"serving at (http://\S+?)/[,;]", "".join(lines))[1], "".join(lines)
        finally:
            watch.cancel()
            process.kill()


@pytest.mark.processes
def test_a_real_process_with_two_indexes_and_a_token(here):
    words = ("photos.index", "other.index", "--names", "ours,theirs", "--port", "0", "--token", "--host", "0.0.0.0")
    with serve(here, *words) as (process, url, text):
        assert f"{here}/gone" in text  # a warning: the model of other.index is not there
        assert f"ours: {SOME} images" in text
        token = re.search(r"token: (\S{20,})\n", text)[1]
        assert f"http://{socket.gethostname()}:" in text
        with httpx2.Client(base_url=url, timeout=PATIENCE) as client:
            client.headers["Authorization"] = "Bearer another-long-token"
            assert client.get("/api/v1/stats").status_code == 401
            client.headers["Authorization"] = f"Bearer {token}"
            names = [(one["name"], one["takes_uploads"]) for one in client.get("/api/v1/stats").json()["indexes"]]
            assert names == [("ours", True), ("theirs", False)]
            picture = {"image": ("a.png", Path("photos/cup/1.png").read_bytes(), "image/png")}
            answer = client.post("/api/v1/search", params={"k": 3, "index": "ours"}, files=picture)
            assert [answer.json()["results"][0]["id"], answer.json()["results"][2]["place"]] == ["photos/cup/1.png", 3]
            assert client.post("/api/v1/search", params={"index": "theirs"}, files=picture).status_code == 422
            answer = client.get("/api/v1/search", params={"item": "photos/cup/1.png", "index": "theirs", "k": 5})
            ids = [each["id"] for each in answer.json()["results"]]
            assert (len(ids), "photos/cup/1.png" in ids) == (5, False)
            page = client.get("/", params={"item": "photos/cup/1.png"})
            image = client.get(html.unescape(re.search(r'<img[^>]* src="(/[^"]*)"', page.text)[1]))
            with Image.open(io.BytesIO(image.content)) as picture:
                assert picture.size == (32, 32)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out, err.count("\n"), "token" in err) == (0, "", 1, True)  # the wrong one, once


# Without running


@pytest.fixture
def ran(monkeypatch):
    """What the server was called with, instead of running."""
    calls = []
    monkeypatch.setattr("frontrank.gallery.serve", lambda shown, **settings: calls.append((shown, settings)))
    return calls


def test_what_the_server_gets(here, run, ran, refused, monkeypatch):
    result = run("serve", "photos.index", "--port", "0", "--upload-mb", "0.5", "--seconds", "9", "--requests", "7")
    assert (result.status, result.out) == (0, "")
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
    monkeypatch.setenv("FRONTRANK_TOKEN", "short")
    refused(["serve", "photos.index", "--port", "0"], "token")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("photos.index other.index --model runs/first/model", ["photos", "other"]),
        ("photos.index photos.index", ["photos 1", "photos 2"]),
        ("photos.index --names mine", ["mine"]),
    ],
)
def test_names_of_indexes(here, run, ran, words, names):
    assert run("serve", *words.split(), "--port", "0").status == 0
    assert [one.name for one in ran[0][0]] == names
    assert all(one.embed is not None for one in ran[0][0])


def test_an_index_that_says_nothing_of_its_pictures(here, run, ran, tmp_path):
    Index(tmp_path / "bare.index", dim=8).close()
    result = run("serve", tmp_path / "bare.index", "--port", "0", status=0)
    assert [f"{tmp_path}/bare.index" in line for line in result.err.splitlines()[:2]] == [True, True]
    assert "--root" in result.err
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

    monkeypatch.setattr("frontrank.gallery.serve", answering)
    result = run("serve", "photos.index", "--port", "0", "--open", status=0)
    (url,) = opened
    assert url in result.err
    assert ("no browser" in result.err) != has_browser


def test_ctrl_c_is_the_way_to_end(here, run, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("frontrank.gallery.serve", interrupt)
    assert run("serve", "photos.index", "--port", "0").status == 0
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


# Refusals

BEFORE_LOADING = [
    ("", "URL"),
    ("photos.index other.index photos.index", "3"),
    ("photos.index --host 0.0.0.0", "--host 0.0.0.0"),
    (f"photos.index --host 192.0.2.1 --token {TOKEN}", "--host 192.0.2.1"),
    ("photos.index --port BUSY", "--port BUSY"),
    ("photos.index --token short", "token"),
    ("photos.index --root nowhere", "--root nowhere"),
    ("photos.index --model a --model b", "--model"),
    ("photos.index --names a,b", "--names"),
    ("photos.index photos.index --names a,a", "--names"),
    ("photos.index --names <b>", "<b>"),
    ("photos.index --device gpu", "gpu"),
]


@pytest.mark.parametrize(("words", "name"), BEFORE_LOADING)
def test_refusals_before_anything_is_loaded(here, refused, monkeypatch, words, name):
    monkeypatch.setattr("frontrank.picture_index.open_index", lambda url: pytest.fail("it loads before it refuses"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        busy = str(other.getsockname()[1])
        words = words.replace("BUSY", busy).split()
        refused(["serve", *words, *([] if "--port" in words else ["--port", "0"])], name.replace("BUSY", busy))


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("photos.indx", "photos.index?"),
        ("milvus://127.0.0.1:1/x", "milvus://127.0.0.1:1"),
        ("photos.index --model second", "second"),
    ],
)
def test_refusals(here, refused, monkeypatch, words, name):
    if not Path("second").exists():
        small_model(here / "second", seed=1)
    monkeypatch.setattr("frontrank.gallery.serve", lambda *_, **__: pytest.fail("it serves"))
    refused(["serve", *words.split(), "--port", "0"], name)
