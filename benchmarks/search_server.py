"""What the server adds to a search, and whether its memory stays as it is."""

import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import faiss
import numpy as np
import torch
from measure import MB, processor_seconds, resident, say
from search_vectors import Results, clustered, fill

import frontrank as fr
from frontrank.gallery import GalleryIndex, Limits, serve
from frontrank.gallery.pictures import decode_upload
from frontrank.picture_index import picture_embedder
from frontrank.pictures.processes import DecodePool

DIM, SIZE, RESULTS = 128, 64, 24
TARGET_MS = 5.0
_SCRIPT = str(Path(__file__).with_name("search.py"))


def case_serve(index: str, model: str, port: int) -> dict[str, Any]:
    """A server until it is ended."""
    embedder = fr.Embedder.load(model)
    source = GalleryIndex(
        "index", fr.Index.load(index, progress=False), picture_embedder(embedder), (), embedder.fingerprint
    )
    serve([source], port=port)
    return {}


class Client:
    """One connection that is kept open; broken: how often it was not."""

    def __init__(self, port: int) -> None:
        self.broken = 0
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, path: str, body: bytes | None = None, kind: str = "") -> dict[str, Any]:
        headers = {"Content-Type": kind} if body is not None else {}
        try:
            self._connection.request("GET" if body is None else "POST", f"/api/v1/{path}", body, headers)
            answer = self._connection.getresponse()
        except http.client.RemoteDisconnected:
            self.broken += 1
            self._connection.close()
            return self.ask(path, body, kind)
        said = json.loads(answer.read())
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {said}")
        return said

    def search_item(self, name: str, **settings: str) -> dict[str, Any]:
        return self.ask("search?" + urlencode({"item": name, "k": RESULTS, **settings}))

    def search_picture(self, data: bytes) -> dict[str, Any]:
        head = (
            b'--b\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\nContent-Type: image/jpeg\r\n\r\n'
        )
        return self.ask(f"search?k={RESULTS}", head + data + b"\r\n--b--\r\n", "multipart/form-data; boundary=b")


@contextmanager
def server(index: Path, model: Path) -> Iterator[tuple[Client, int]]:
    """A server in a process of its own: a client of it, and the process's number."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    case = json.dumps({"kind": "serve", "index": str(index), "model": str(model), "port": port})
    process = subprocess.Popen([sys.executable, _SCRIPT, "--case", case], env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        for _ in range(600):
            try:
                client = Client(port)
                client.ask("health")
                break
            except OSError:
                if process.poll() is not None:
                    raise RuntimeError("the server ended early") from None
                time.sleep(0.2)
        yield client, process.pid
    finally:
        process.terminate()
        process.wait(30)


@contextmanager
def one_thread() -> Iterator[None]:
    """Within, torch and faiss use one thread here, as in the server: waiting threads would take each other's cores."""
    threads = torch.get_num_threads(), faiss.omp_get_max_threads()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads[0])
        faiss.omp_set_num_threads(threads[1])


def clocked(run: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    found = run()
    return 1000 * (time.perf_counter() - start), found


def of_items(client: Client, process: int, index: fr.Index, names: list[str]) -> dict[str, float]:
    """Milliseconds of searches from items by the server, and of their engine here, in turns, each with other items."""
    whole, engine, told = [], [], []
    before = processor_seconds(process), processor_seconds()
    for name in names:
        milliseconds, answer = clocked(lambda name=name: client.search_item(name))
        whole.append(milliseconds)
        told.append(answer["milliseconds"])
        label = index.get([name])[0].label

        def asked(name: str = name, label: str = label) -> None:
            vector = index.vectors([name])
            index.search(vector, k=Limits().depth + 1, stored=True)
            index.count(f"label={label}")

        engine.append(clocked(asked)[0])
    return summary(whole, {"engine": engine, "engine, as told": told}) | spent(process, before, len(names))


def of_pictures(client: Client, process: int, index: fr.Index, embed: Any, files: list[bytes]) -> dict[str, float]:
    """Milliseconds of searches from pictures by the server, and of decoding, model and engine here, in turns."""
    whole, parts = [], {"decoding": [], "model": [], "engine": []}
    before = processor_seconds(process), processor_seconds()
    limits = Limits()
    with closing(DecodePool(1, limits.decode_seconds)) as pool:
        for data in files:
            whole.append(clocked(lambda data=data: client.search_picture(data))[0])
            milliseconds, picture = clocked(lambda data=data: decode_upload(data, limits.upload_pixels, pool))
            parts["decoding"].append(milliseconds)
            milliseconds, vector = clocked(lambda picture=picture: embed(picture))
            parts["model"].append(milliseconds)
            parts["engine"].append(clocked(lambda vector=vector: index.search(vector[None], k=RESULTS))[0])
    return summary(whole, parts) | spent(process, before, len(files))


def spent(process: int, before: tuple[float, float], requests: int) -> dict[str, float]:
    """The processor's milliseconds per request, of the server and of the same work here with asking for it."""
    server, here = processor_seconds(process) - before[0], processor_seconds() - before[1]
    return {"server's processor": 1000 * server / requests, "processor here": 1000 * here / requests}


def summary(whole: list[float], parts: dict[str, list[float]]) -> dict[str, float]:
    """Medians; the server's own is the median of what is left of each request."""
    counted = [of for name, of in parts.items() if name != "engine, as told"]
    own = [request - sum(of[i] for of in counted) for i, request in enumerate(whole)]
    found = {"request": statistics.median(whole), **{name: statistics.median(of) for name, of in parts.items()}}
    found["own"], found["own_90"] = statistics.median(own), float(np.quantile(own, 0.9))
    if "engine, as told" in parts:
        told = parts["engine, as told"]
        found["own_as_told"] = statistics.median(a - b for a, b in zip(whole, told, strict=True))
    return found


def photograph(seed: int, side: int = 256) -> bytes:
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 255, (side // 16, side // 16, 3), dtype=np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).resize((side, side)).save(file, "JPEG", quality=85)
    return file.getvalue()


def section_server(results: Results, rows: int, rounds: int, requests: int, warm: int) -> None:
    """uvicorn on loopback in its own process, one client with one open connection.

    The server's own time of a request is the time until its answer is read, less that of the same work in this
    process: for an item its vector, the search for the 1,000 places that its AP is computed over, and the count of its
    label; for a picture decoding, model and search. Both work with one thread.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = fr.Embedder("resnet18", dim=DIM, image_size=SIZE).eval()
        model.save(folder / "model")
        vectors, _ = clustered(rows, DIM, 1)
        with fr.Index(folder / "index", dim=DIM, model=model.fingerprint, progress=False) as index:
            fill(index, vectors)
            names = [str(row) for row in np.random.default_rng(1).permutation(rows)]
            files = [photograph(seed) for seed in range(rounds + 10)]
            embed = picture_embedder(model)
            with one_thread(), server(folder / "index", folder / "model") as (client, process):
                of_items(client, process, index, names[:10])
                of_pictures(client, process, index, embed, files[:10])
                found: dict[str, Any] = {
                    "item": of_items(client, process, index, names[10 : 10 + rounds]),
                    "picture": of_pictures(client, process, index, embed, files[10:]),
                }
                memory = memory_over(client, process, names, files, requests, warm)
    results["server"] = {"rows": rows, "dim": DIM, "rounds": rounds, "target_ms": TARGET_MS, **found, "memory": memory}
    say(f"\nserver, {rows:,} x {DIM}, exact search, k={RESULTS}, {rounds} requests of each kind, medians")
    for kind in ("item", "picture"):
        parts = ", ".join(f"{part} {value:.2f}" for part, value in found[kind].items() if not part.startswith("own"))
        own, most = found[kind]["own"], found[kind]["own_90"]
        say(f"  {kind:8} own {own:.2f} ms (target {TARGET_MS:g}), 90 % within {most:.2f}; {parts}")
    say(f"  {'':8} by the engine's time that the answer tells: {found['item']['own_as_told']:.2f} ms")
    first, last = (memory["mb"][str(number)] for number in (warm, requests))
    say(f"  memory {first:.1f} MB after {warm:,} requests, {last:.1f} MB after {requests:,}: {last - first:+.1f} MB")
    say(f"  {memory['requests_per_second']:.0f} requests/s one after another; {client.broken} connections broke")


def memory_over(
    client: Client, process: int, names: list[str], files: list[bytes], requests: int, warm: int
) -> dict[str, Any]:
    """The server's memory along many requests, one in twenty of them an upload, one in five with a filter."""
    held, start = {}, time.perf_counter()
    for number in range(1, requests + 1):
        if number % 20 == 0:
            client.search_picture(files[number % len(files)])
        elif number % 5 == 0:
            client.search_item(names[number % len(names)], filter=f"part={number % 10}")
        else:
            client.search_item(names[number % len(names)])
        if number % warm == 0 or number == requests:
            held[str(number)] = resident(process) / MB
    rate = requests / (time.perf_counter() - start)
    growth = held[str(requests)] - held[str(warm)]
    return {"mb": held, "growth_mb": growth, "requests_per_second": rate, "requests": requests, "broken": client.broken}
