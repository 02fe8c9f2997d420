"""Attacks that once worked: each must fail quickly, and others must be served meanwhile."""

import io
import socket
import struct
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from frontrank.gallery import Limits, create_app
from frontrank.pictures import limits
from frontrank.pictures.decode import image_fault
from frontrank.pictures.limits import FaultError
from frontrank.pictures.processes import DecodePool
from tests.data.files import many_scans
from tests.gallery.live import running
from tests.gallery.samples import TOKEN, chunk, client_of, picture, png, sent, shown_of, written


def jpeg_with(padding):
    data = written(picture("red"), "jpeg")
    return data[:2] + padding + data[2:]


def gif_with_comment(size):
    data = written(picture("red").convert("P"), "gif")
    place = 13 + (3 << ((data[10] & 7) + 1))
    return data[:place] + b"!\xfe" + (b"\xff" + b"a" * 255) * (size // 256) + b"\0" + data[place:]


def tiff_of_shared_values(entries, size):
    """A TIFF whose entries all name the same bytes, which Pillow would read once for each."""
    values = b"".join(struct.pack("<HHII", 40_000 + n, 1, size, 8) for n in range(entries))
    head = b"II*\0" + struct.pack("<I", 8 + size)
    return head + bytes(size) + struct.pack("<H", entries) + values + bytes(4)


def tiff_of_tiles(count):
    entry = struct.pack("<HHII", 324, 3, count, 8)  # all of them at one place
    return b"II*\0" + struct.pack("<I", 8 + 2 * count) + b"\x08\0" * count + struct.pack("<H", 1) + entry + bytes(4)


def bmp_of_runs(side, runs=b"\x01\x05\0\0"):
    head = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, 0, 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 0, 0, 0, 54 + 1024) + head + bytes(1024) + runs * side + b"\0\1"


def line(width, height):
    return png(width, height, chunk(b"IDAT", zlib.compress(bytes((width + 1) * height), 1)), colour=0)


HOSTILE = {
    "900 scans": many_scans,
    "fill bytes": lambda: jpeg_with(b"\xff" * 9_000_000),
    "empty comments": lambda: jpeg_with(b"\xff\xfe\0\2" * 2_000_000),
    "junk": lambda: jpeg_with(b"\xff\xfe\0\2" + b"a" * 9_000_000),
    "a wide line": lambda: line(49_000_000, 1),
    "a high line": lambda: line(1, 4_900_000),
    "a thin line within the sides": lambda: line(60_000, 2),
    "a comment of 9 MB": lambda: gif_with_comment(9_000_000),
    "empty chunks": lambda: png(1, 1, chunk(b"teXt", b"") * 700_000),
    "EXIF in 5,000 pieces": lambda: jpeg_with(b"\xff\xe1\0\x0aExif\0\0MM" * 5_000),
    "4,000,000 tiles": lambda: tiff_of_tiles(4_000_000),
    "177 million pixels of run lengths": lambda: bmp_of_runs(13_300),
    "2,000,000 steps of no length": lambda: bmp_of_runs(4_000, b"\0\2\0\0" * 500),
    "values of 20 GB": lambda: tiff_of_shared_values(20_000, 1_000_000),
}


@pytest.mark.processes
@pytest.mark.parametrize("name", HOSTILE)
def test_files_that_keep_a_decoder_busy(client, tmp_path, name):
    data = HOSTILE[name]()
    (tmp_path / "a.jpg").write_bytes(data)
    start = time.process_time()
    assert image_fault(tmp_path / "a.jpg")  # what index, embed, train and data check call
    assert sent(client, data).status_code == 422
    assert time.process_time() - start < 5


def test_ordinary_files_stay_within_the_limits(tmp_path):
    path = tmp_path / "a.jpg"
    video = bytes(range(256)) * 40 + b"\xff\xda" * 200  # behind the picture, as telephones store it
    for data in (written(picture("red", size=(300, 200)), "jpeg", progressive=True) + video, jpeg_with(b"\xff" * 100)):
        path.write_bytes(data)
        assert image_fault(path) is None


UNCHECKED = [
    "-c",
    """from frontrank.pictures import limits, processes
limits.MAX_SCANS = limits.MAX_SCAN_PIXELS = 10**15; processes.main()""",
]  # as if the check of scans were not there


@pytest.mark.processes
def test_a_process_that_takes_too_long_is_ended_and_replaced(tmp_path, monkeypatch):
    slow, good = tmp_path / "slow.jpg", tmp_path / "good.png"
    picture("red").save(good)
    slow.write_bytes(many_scans(5000))
    monkeypatch.setattr("frontrank.pictures.processes.PROGRAM", UNCHECKED)
    pool = DecodePool(1, 1.0)
    start = time.monotonic()
    with pytest.raises(FaultError, match="1 seconds"):
        pool.read(slow, limits.MAX_PIXELS)
    assert time.monotonic() - start < 20
    assert pool.read(good, limits.MAX_PIXELS).size == (24, 20)
    pool.close()


def answer_to(url, request, timeout=20.0):
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout) as connection:
        connection.sendall(request)
        return connection.recv(65536)


def ask(url, request, timeout=20.0):
    """Send bytes, and return the status of the answer."""
    return int(answer_to(url, request, timeout).split()[1])


@pytest.mark.processes
def test_bodies_at_a_trickle_and_hostile_pictures_keep_nobody_out(folder, monkeypatch):
    monkeypatch.setattr("frontrank.pictures.processes.PROGRAM", UNCHECKED)
    app = create_app([shown_of(folder)], limits=Limits(uploads=4, body_rate=10**6, decode_seconds=2.0))
    head = b"POST /upload HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    with running(app) as url:
        slow = [threading.Thread(target=ask, args=(url, head + b"Content-Length: 100000\r\n\r\nab")) for _ in range(4)]
        for thread in slow:
            thread.start()
        time.sleep(0.2)
        form = io.BytesIO(b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n')
        body = form.getvalue() + written(picture("red")) + b"\r\n--x--\r\n"
        start = time.monotonic()
        assert ask(url, head + b"Content-Length: %d\r\n\r\n" % len(body) + body) == 303  # all four still send
        assert time.monotonic() - start < 3
        start = time.monotonic()
        for thread in slow:
            thread.join()
        assert time.monotonic() - start < 10  # too slow: given up
        double = head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        answer = answer_to(url, double)
        assert (int(answer.split()[1]), b"\r\nconnection: close\r\n" in answer.lower()) == (400, True)
        hostile = form.getvalue() + many_scans(9000) + b"\r\n--x--\r\n"
        request = head + b"Content-Length: %d\r\n\r\n" % len(hostile) + hostile
        with ThreadPoolExecutor(4) as senders:
            answers = [senders.submit(ask, url, request) for _ in range(4)]
            search = b"GET /api/v1/search?item=red/0.png HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            searches = 0
            while not all(answer.done() for answer in answers):
                assert ask(url, search, timeout=5.0) == 200
                searches += 1
        assert [answer.result() for answer in answers] == [422] * 4
        assert searches >= 2  # while the decoders were busy until they were ended


def test_places_of_slow_bodies_are_given_to_others(folder):
    app = create_app([shown_of(folder)], token=TOKEN, limits=Limits(requests=8, body_seconds=1.5))
    login = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    search = b"GET /api/v1/search?item=red/0.png HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n\r\n"
    with running(app) as url, ThreadPoolExecutor(10) as senders:
        slow = [senders.submit(ask, url, login + b"Content-Length: 900\r\n\r\nab") for _ in range(10)]
        time.sleep(0.5)
        assert ask(url, search % TOKEN.encode()) == 200
        form = b"token=" + TOKEN.encode()
        assert ask(url, login + b"Content-Length: %d\r\n\r\n" % len(form) + form) == 303
        assert sum(answer.done() for answer in slow) >= 6  # there are 4 places
        assert {answer.result() for answer in slow} == {408}


def test_other_forms_are_refused_before_they_are_parsed(client):
    start = time.perf_counter()
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert client.post("/upload", content=b"&" * 9_000_000, headers=headers).status_code == 415
    assert time.perf_counter() - start < 3


def test_a_cookie_is_worth_nothing_after_signing_out(folder):
    client = client_of(shown_of(folder), token=TOKEN)
    other = type(client)(client.app, base_url="http://127.0.0.1:8000", follow_redirects=False)
    answers = [one.post("/login", data={"token": TOKEN}) for one in (client, other)]
    cookies = [answer.headers["set-cookie"].partition(";")[0] for answer in answers]
    assert cookies[0] != cookies[1]
    assert client.post("/logout").status_code == 303
    other.cookies.clear()
    answers = [other.get("/api/v1/stats", headers={"Cookie": cookie}).status_code for cookie in cookies]
    assert answers == [401, 200]


def test_tokens_cannot_be_guessed_quickly(folder, caplog, monkeypatch):
    monkeypatch.setattr(
        "frontrank.gallery.guard.time", SimpleNamespace(monotonic=lambda: 100.0, perf_counter=lambda: 0.0)
    )
    client = client_of(shown_of(folder), token=TOKEN)
    header, valid = {"Authorization": "Bearer wrong"}, {"Authorization": f"Bearer {TOKEN}"}
    answers = [client.get("/api/v1/stats", headers=header) for _ in range(15)]
    assert [answer.status_code for answer in answers] == [401] * 10 + [429] * 5
    assert "Retry-After" in answers[-1].headers
    assert sum("wrong token" in record.getMessage() for record in caplog.records) == 10
    assert client.get("/api/v1/stats", headers=valid).status_code == 200  # of another user behind the same proxy
