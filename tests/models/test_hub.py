"""A model goes to the hub and comes back: the real client, and a stand-in for the hub on loopback."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from frontrank.errors import InputError, InputTypeError
from frontrank.evaluation import evaluate
from tests.models.small import small

COMMIT = "c" * 40
PROGRAM = """
import os, sys
from frontrank import Embedder, FrontrankError, Report
model = Embedder.load(sys.argv[1])
print(model.push_to_hub("me/shoes", report=Report.load(sys.argv[2]), data="shoes of\\na shop", licence="cc-by-4.0"))
print(model.fingerprint == Embedder.load("me/shoes").fingerprint)
os.environ["HF_TOKEN"] = "hf_wrong"
try:
    model.push_to_hub("me/shoes")
except FrontrankError as error:
    print(str(error).split()[0])
"""


class Hub(BaseHTTPRequestHandler):
    """The requests of the client that a push and a load need; keeps the files in the class."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        lines = [json.loads(line) for line in body.splitlines()]
        if self.headers.get("Authorization") != "Bearer hf_secret":
            self.answer({"error": "Unauthorized"}, status=401)
        elif self.path == "/api/repos/create":
            self.server.repos.append(lines[0])
            self.answer({"url": f"{self.server.address}/me/shoes", "name": "me/shoes", "id": "1"})
        elif "/preupload/" in self.path:
            how = {"uploadMode": "regular", "shouldIgnore": False}
            self.answer({"files": [{"path": file["path"], **how} for file in lines[0]["files"]]})
        elif "/commit/" in self.path:
            values = [line["value"] for line in lines if line["key"] == "file"]
            self.server.files.update({value["path"]: base64.b64decode(value["content"]) for value in values})
            address = f"{self.server.address}/me/shoes/commit/{COMMIT}"
            self.answer({"commitUrl": address, "commitOid": COMMIT, "success": True})
        else:  # the card is checked by the hub
            self.answer({"errors": [], "warnings": []})

    def do_GET(self):
        files = self.server.files
        name = self.path.partition("?")[0].rpartition("/")[2]
        if "/resolve/" in self.path:
            etag = hashlib.sha256(files[name]).hexdigest()
            self.answer(files[name], {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})
        elif "/tree/" in self.path:
            self.answer([{"type": "file", "path": path, "size": len(data), "oid": "0"} for path, data in files.items()])
        else:
            siblings = [{"rfilename": path} for path in files]
            self.answer({"id": "me/shoes", "sha": COMMIT, "private": False, "siblings": siblings, "tags": []})

    do_HEAD = do_GET  # noqa: N815

    def answer(self, content, headers=None, status=200):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        for name, value in ({"Content-Type": kind, "Content-Length": str(len(data))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        server.repos, server.files = [], {}
        server.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def report():
    return evaluate(np.eye(4, dtype=np.float32)[[0, 0, 1, 1]], [0, 0, 1, 1], metrics=["R@1", "mAP"])


@pytest.mark.processes
def test_a_model_goes_to_the_hub_and_comes_back(hub, report, tmp_path):
    small().save(tmp_path / "model")
    report.save(tmp_path / "report.json")
    environment = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "hf_secret"}
    command = [sys.executable, "-c", PROGRAM, tmp_path / "model", tmp_path / "report.json"]
    done = subprocess.run(
        command, env={**os.environ, "NO_PROXY": "127.0.0.1"} | environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [f"{hub.address}/me/shoes", "True", "me/shoes"], done.stderr
    assert hub.repos[0]["name"] == "shoes"
    assert sorted(hub.files) == ["README.md", "config.json", "model.safetensors"]
    card = hub.files["README.md"].decode()
    for part in ("license: cc-by-4.0\n", 'load("me/shoes")', "| mAP | 1.0000 | 1.0000 to 1.0000 |", "shoes of a shop"):
        assert part in card


@pytest.mark.parametrize(
    ("name", "options", "error", "word"),
    [
        ("shoes", {}, InputError, "name"),
        ("me/shoes", {"licence": "mine\ntags: x"}, InputError, "licence"),
        ("me/shoes", {"report": {"mAP": 0.5}}, InputTypeError, "report"),
    ],
)
def test_refusals(name, options, error, word):
    with pytest.raises(error, match=word):
        small().push_to_hub(name, **options)
