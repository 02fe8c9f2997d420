"""A real server in a process of its own, asked for more than it allows: it answers or says when to ask again."""

import logging
import multiprocessing
import os
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest

from frontrank import gallery
from frontrank.gallery import Limits
from frontrank.gallery import app as server
from tests.gallery.samples import COLOURS, embed, items_of, picture, shown_of, soon, written

pytestmark = pytest.mark.processes
THREADS, ROUNDS = 12, 3
LIMITS = Limits(uploads=2, workers=1, waiting=3, requests=8, kept_uploads=4)
CONNECTIONS = 4 * LIMITS.requests  # as many as the server takes
IDLE = 3.0  # seconds that a connection may hang
PICTURES = {name: written(picture(name)) for name in COLOURS}


def slow(image):
    """An embedding that takes a while, as that of a network does."""
    time.sleep(0.01)
    return embed(image)


def serve(folder, port, log, idle):
    """Serve, with all that is written down or printed in one file."""
    with open(log, "wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    server._IDLE_SECONDS = idle
    gallery.serve([shown_of(folder, embed=slow)], port=port, limits=LIMITS)


@contextmanager
def process_of(folder, log, idle):
    """The process and the address of a server, and the file of its log."""
    items_of(folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = probe.getsockname()
    process = multiprocessing.get_context("spawn").Process(
        target=serve, args=(folder, address[1], log, idle), daemon=True
    )
    process.start()
    deadline = time.monotonic() + 60
    while process.is_alive() and time.monotonic() < deadline:
        try:
            connected(address).close()
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    yield process, address, log
    process.terminate()
    process.join(20)
    assert process.exitcode is not None


@pytest.fixture(scope="module")
def served(folder, tmp_path_factory):
    with process_of(folder, tmp_path_factory.mktemp("log") / "log.txt", IDLE) as found:
        yield found


@pytest.fixture(scope="module")
def patient(folder, tmp_path_factory):
    """The address of a server that ends no connection."""
    with process_of(folder, tmp_path_factory.mktemp("log") / "log.txt", 3600.0) as (_, address, _):
        yield address


@pytest.fixture
def client(served):
    with asking(served[1]) as found:
        yield found


@contextmanager
def asking(address):
    base = "http://{}:{}".format(*address)
    fresh = httpx2.Limits(keepalive_expiry=IDLE / 2)  # else it could ask on a connection that is being ended
    with httpx2.Client(base_url=base, limits=fresh, timeout=20) as found:  # a hang is a failure
        yield found


def connected(address):
    return socket.create_connection(address, timeout=20)


@contextmanager
def holding(address, count):
    """So many connections."""
    with ExitStack() as stack:
        yield [stack.enter_context(connected(address)) for _ in range(count)]


def searched(client, colour):
    return client.get("/api/v1/search", params={"item": f"{colour}/0.png", "k": 5})


def uploaded(client, colour):
    return client.post("/api/v1/search", params={"k": 3}, files={"image": ("a.png", PICTURES[colour], "image/png")})


def shown(client, colour):
    return client.get("/picture", params={"id": f"{colour}/1.png"})


def answer_of(response):
    """What an answer holds, without what differs from one time to the next."""
    if response.headers["content-type"] != "application/json":
        return response.content
    return {name: value for name, value in response.json().items() if name not in ("upload", "milliseconds")}


def test_more_requests_at_once_than_allowed(client):
    asked = [(ask, colour) for ask in (searched, uploaded, shown) for colour in COLOURS]
    alone = {each: answer_of(each[0](client, each[1])) for each in asked}
    start = threading.Barrier(THREADS)

    def load(number):
        start.wait(20)
        mine = asked[number:] + asked[:number]
        return [(each, each[0](client, each[1])) for _ in range(ROUNDS) for each in mine]

    with ThreadPoolExecutor(THREADS) as pool:
        answers = [pair for some in pool.map(load, range(THREADS)) for pair in some]
    assert len(answers) == THREADS * ROUNDS * len(asked)
    assert {response.status_code for _, response in answers} == {200, 429}
    for each, response in answers:
        if response.status_code == 200:
            assert answer_of(response) == alone[each]
        else:
            assert int(response.headers["retry-after"]) > 0

    assert {each: answer_of(each[0](client, each[1])) for each in asked} == alone
    assert client.get("/api/v1/stats").json()["searches"] == 0
    assert client.get("/api/v1/stats").json()["uploads"] == LIMITS.kept_uploads


def test_more_connections_than_allowed(patient):
    with asking(patient) as client:
        with holding(patient, CONNECTIONS):
            response = client.get("/api/v1/health")
        assert (response.status_code, response.headers["retry-after"]) == (429, "2")
        # the server has yet to see that they are closed
        soon(lambda: client.get("/api/v1/health"), lambda response: response.status_code == 200)


HEAD = b"POST /api/v1/search HTTP/1.1\r\nHost: localhost\r\n"
HANGING = (b"", b"GET", HEAD, HEAD + b"X-Slow: ")


def test_connections_that_hang_block_nobody(patient):
    with asking(patient) as client, holding(patient, CONNECTIONS // 2) as held:
        for number, each in enumerate(held):
            each.sendall(HANGING[number % 4])
        assert searched(client, "red").status_code == 200
        for each in held:
            each.setblocking(False)
            with pytest.raises(BlockingIOError):  # it is still open
                each.recv(1)


def test_connections_that_hang_are_ended(served):
    with holding(served[1], 8) as held:
        for number, each in enumerate(held):
            each.sendall(HANGING[number % 4])
        for each in held:
            each.settimeout(60)
            while each.recv(1000):  # to the end that the server puts to it
                pass


def test_what_is_too_large_is_not_read_for_ever(served):
    with connected(served[1]) as endless:
        endless.settimeout(60)
        endless.sendall(HEAD + b"Content-Length: 99999999999999\r\n\r\n")
        assert endless.recv(12) == b"HTTP/1.1 413"
        with pytest.raises(OSError, match=r"reset|pipe"):
            soon(lambda: endless.sendall(bytes(10_000)), lambda _: False)


def memory(process):
    """The bytes of memory that a process holds."""
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="tells the memory of processes on Linux only")
def test_memory_does_not_grow_with_requests(served, client):
    process = served[0]

    def load(times):
        for number in range(times):
            colour = list(COLOURS)[number % len(COLOURS)]
            assert searched(client, colour).status_code == 200
            assert shown(client, colour).status_code == 200
            assert client.get("/api/v1/item", params={"id": f"nothing-{number}"}).status_code == 404
            assert client.get("/nowhere", params={"a": "b" * 1000}).status_code == 404
            if number % 10 == 0:
                assert uploaded(client, colour).status_code == 200

    def grown():
        before = memory(process)
        load(190)  # 779 requests
        return memory(process) - before

    load(50)
    # what is loaded or set up once, at whatever time, is there after one load: a leak grows in each of them
    assert any(grown() < 2_000_000 for _ in range(3))


LINE = re.compile(r"[A-Z]+ (/[a-z0-9/{}]*|\(no such page\)) \d{3} \d+ ms")
FORGED = "forged\r\nGET /forged 200 1 ms\n\x1b[31m"


def test_the_log_tells_nothing_of_what_was_sent(served, client):
    _, address, log = served
    assert searched(client, "red").status_code == 200
    before = len(log.read_text())  # what libraries say when they are loaded
    for params in ({"item": FORGED}, {"upload": FORGED}, {"filter": FORGED}, {"label": FORGED}, {"index": FORGED}):
        assert client.get("/api/v1/search", params={"item": "red/0.png"} | params).status_code in (404, 422)
        assert client.get("/", params={"side": FORGED} | params).status_code == 422
    image = written(picture("red"), "jpeg", comment=FORGED.encode())
    for data, status in ((image, 200), (image[:300], 422), (FORGED.encode(), 422)):
        files = {"image": (FORGED, data, "image/forged")}
        assert client.post("/api/v1/search", files=files).status_code == status
    kind = {"Content-Type": "multipart/form-data; boundary=forged"}
    assert client.post("/api/v1/search", content=FORGED, headers=kind).status_code == 400
    assert client.get(f"/{quote(FORGED)}", headers={"User-Agent": "forged", "Referer": "forged"}).status_code == 404
    assert asked_raw(address, b"FORGED / HTTP/1.1\r\nHost: localhost\r\n\r\n") == b"HTTP/1.1 405"
    assert asked_raw(address, b"GET /forged\x1b[31m HTTP/forged\r\n\r\n") == b"HTTP/1.1 400"  # is not written down

    soon(log.read_text, lambda text: "FORGED" in text)  # a line may come after its answer
    lines = log.read_text()[before:].splitlines()
    assert len(lines) >= 16
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    assert "forged" not in "".join(lines)


def asked_raw(address, request):
    """The beginning of the answer to some bytes."""
    with connected(address) as raw:
        raw.sendall(request)
        return raw.recv(12)
