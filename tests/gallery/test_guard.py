"""The guard (hosts, origins, tokens, sizes, headers, the log) and the limits of work."""

import asyncio
import logging
import threading

import pytest
from starlette.datastructures import Headers

from frontrank.errors import InputError, InputTypeError
from frontrank.gallery import Limits, create_app
from frontrank.gallery.guard import HEADERS, BusyError, LateError, WorkerPool, same_origin
from tests.gallery.samples import BASE, TOKEN, client_of, embed, picture, sent, shown_of, written

IMAGE = written(picture("red"))


@pytest.fixture(scope="module")
def locked(folder):
    """A page with a token that anybody can reach."""
    return client_of(shown_of(folder), token=TOKEN, hosts=None, base="http://pictures.example")


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "LOCALHOST", "[::1]:8000"])
def test_hosts_of_this_machine(client, host):
    assert client.get("/api/v1/health", headers={"Host": host}).status_code == 200


HOSTS = (
    "evil.example:8000", "127.0.0.1.evil.example", "evil.example@127.0.0.1", "127.0.0.1@evil.example",
    "127.0.0.1, evil.example", "127.0.0.1#evil.example", "127.0.0.2", "2130706433", "[::ffff:127.0.0.1]", "[::1", "",
    ":8000",
)  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
def test_other_hosts_are_refused(client, host):
    for path in ("/", "/api/v1/health", "/static/icon.svg", "/nothing"):
        assert client.get(path, headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("path", ["/", "/nothing", "/api/v1/item?id=x", "/static/gallery.js"])
def test_every_answer_has_the_headers(client, path):
    headers = client.get(path).headers
    assert {name: headers[name] for name in HEADERS} == HEADERS
    assert headers["cache-control"] == ("private, max-age=31536000, immutable" if "static" in path else "no-store")


def test_the_policy_lets_nothing_in_from_outside():
    policy = dict(part.strip().split(" ", 1) for part in HEADERS["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["img-src"] == "'self'"
    assert "unsafe" not in str(policy)
    assert "http" not in str(policy)


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "none"}, True),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site", "origin": BASE}, False),
        ({"host": "127.0.0.1:8000", "origin": BASE}, True),
        ({"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:9000"}, False),
        ({"host": "127.0.0.1:8000", "origin": "null"}, False),
        ({"host": "127.0.0.1:8000", "origin": "http://[bad"}, False),
        ({"origin": "http://"}, False),
    ],
)
def test_which_origins_are_ours(headers, passes):
    assert same_origin(Headers(headers)) is passes


@pytest.mark.parametrize("path", ["/api/v1/search", "/upload"])
def test_forms_of_other_sites_are_refused(client, path):
    foreign = {"origin": "http://evil.example"}
    assert client.post(path, files={"image": ("a", IMAGE)}, headers=foreign).status_code == 403


def assert_locked(response, path):
    if path.startswith("/api/"):
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
    else:
        assert response.status_code == 303
        assert response.headers["location"].startswith("/login?next=/")


PATHS = (
    "/", "/?item=red/0.png", "/hardest", "/api", "/picture?id=red/0.png", "/uploaded/x", "/nothing", "/api/v1/stats",
    "/api/v1/search?item=red/0.png", "/api/v1/item?id=red/0.png", "/api/v1/values", "/api/v1/hardest",
    "/api/v1/openapi.json", "/api/v1/healthy", "/loginx", "/static",
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_every_path_needs_the_token(locked, path):
    assert_locked(locked.get(path), path)


@pytest.mark.parametrize(
    "header",
    [
        *("Authorization: Bearer wrong", "Authorization: Bearer", f"Authorization: Basic {TOKEN}"),
        *(f"Authorization: Bearer {TOKEN}x", f"Authorization: Bearer {TOKEN[:-1]}", f"Authorization: {TOKEN}"),
        *(f"Cookie: frontrank-80={TOKEN}", "Cookie: frontrank-80=", "Cookie: \x01=;;="),
    ],
    ids=range(9),
)
def test_nobody_gets_in_with_something_else(locked, header):
    for path in ("/", "/api/v1/stats"):
        assert_locked(locked.get(path, headers=dict([header.split(": ")])), path)


@pytest.mark.parametrize("path", ["/api/v1/search", "/upload", "/logout"])
def test_nothing_is_sent_without_the_token(locked, path):
    assert locked.post(path, files={"image": ("a", IMAGE)}).status_code == 401


@pytest.mark.parametrize("path", ["/api/v1/health", "/login", "/static/gallery.css"])
def test_what_is_open_to_all(locked, path):
    assert locked.get(path).status_code == 200


def test_with_the_token(locked):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    for path, scheme in (("/", "Bearer"), ("/api/v1/stats", "bearer")):
        assert locked.get(path, headers={"Authorization": f"{scheme} {TOKEN}"}).status_code == 200
    foreign = headers | {"Sec-Fetch-Site": "cross-site"}  # no page of others can know the token
    assert locked.post("/api/v1/search", files={"image": ("a", IMAGE)}, headers=foreign).status_code == 200


def test_signing_in_and_out(folder):
    client = client_of(shown_of(folder), token=TOKEN, hosts=None)
    assert client.post("/login", data={"token": "wrong"}).status_code == 401
    response = client.post("/login", data={"token": TOKEN, "next": "/?item=red%2F0.png"})
    assert (response.status_code, response.headers["location"]) == (303, "/?item=red%2F0.png")
    cookie = response.headers["set-cookie"]
    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert client.get("/").status_code == 200
    assert "Sign out" in client.get("/").text
    assert client.post("/logout").status_code == 303
    assert client.get("/").status_code == 303


def test_the_cookie_is_secure_where_the_connection_is(folder, locked):
    client = client_of(shown_of(folder), token=TOKEN, hosts=None, base="https://pictures.example")
    assert "Secure" in client.post("/login", data={"token": TOKEN}).headers["set-cookie"]
    response = locked.post("/login", data={"token": TOKEN}, headers={"X-Forwarded-Proto": "https"})  # of a proxy
    locked.cookies.clear()
    assert "Secure" in response.headers["set-cookie"]


@pytest.mark.parametrize("other", ['x={"a":1}', "=", "\u00e9=1"])
def test_cookies_of_others_do_not_sign_out(locked, other):
    name, value = next(iter(locked.post("/login", data={"token": TOKEN}).cookies.items()))
    locked.cookies.clear()
    for cookie in (f"{other}; {name}={value}", f"{name}={value}; {other}"):
        assert locked.get("/", headers={"Cookie": cookie.encode("latin-1")}).status_code == 200


def test_two_servers_of_one_host_do_not_sign_each_other_out(folder):
    shown, jar = shown_of(folder), {}
    first, second = (client_of(shown, token=TOKEN, base=f"http://127.0.0.1:{port}") for port in (8000, 8001))
    for client in (first, second):
        jar |= client.post("/login", data={"token": TOKEN}).cookies  # browsers keep them by host, not by port
        client.cookies.clear()
    cookies = "; ".join(f"{name}={value}" for name, value in jar.items())
    assert [client.get("/", headers={"Cookie": cookies}).status_code for client in (first, second)] == [200, 200]
    gone = second.post("/logout", headers={"Cookie": cookies}).headers["set-cookie"]
    assert gone.startswith('frontrank-8001=""')


def test_a_long_link_leads_to_the_sign_in(locked):
    for length in (1000, 8000):
        response = locked.get("/?item=" + "%2F" * (length // 3))
        assert response.status_code == 303
        assert locked.get(response.headers["location"]).status_code == 200


@pytest.mark.parametrize(
    "onward", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "/\n/evil"]
)
def test_signing_in_leads_nowhere_else(locked, onward):
    response = locked.post("/login", data={"token": TOKEN, "next": onward})
    assert response.headers["location"] == "/"
    locked.cookies.clear()
    assert "evil" not in locked.get("/login", params={"next": onward}).text


@pytest.mark.parametrize("token", ["short", "with a blank inside", "ünïcödé-tökén", None])
def test_tokens_that_cannot_be_used(folder, token):
    with pytest.raises(InputError, match="token") as caught:
        create_app([shown_of(folder)], token=token, hosts=None)
    assert str(token) not in str(caught.value)


def test_urls_and_forms_have_a_size(client, locked):
    assert client.get("/", params={"filter": "x" * 9000}).status_code == 414
    assert locked.post("/login", data={"token": "x" * 20_000}).status_code == 413


@pytest.mark.parametrize("length", ["99999999999999999999", "20000000", "-1", "1e3"])
def test_lengths_are_looked_at_before_anything_is_read(client, length):
    response = client.post("/api/v1/search", headers={"Content-Length": length, "Content-Type": "text/plain"})
    assert response.status_code == (413 if length.isdecimal() else 400)


def test_a_slow_body_is_given_up(folder):
    app = create_app([shown_of(folder)], limits=Limits(body_seconds=0.05))
    messages = []

    async def receive():
        await asyncio.sleep(3600)

    async def send(message):
        messages.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"multipart/form-data; boundary=x")]
    scope = {
        "type": "http", "method": "POST", "path": "/api/v1/search", "query_string": b"", "headers": headers,
        "scheme": "http", "root_path": "", "http_version": "1.1", "server": ("localhost", 80), "client": ("a", 1),
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    assert messages[0]["status"] == 408


def test_a_web_socket_is_refused(client):
    from starlette.websockets import WebSocketDisconnect

    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/"):
        pytest.fail("was let in")


def test_work_that_takes_too_long_is_given_up(folder):
    go_on = threading.Event()

    def slow(image):
        go_on.wait(20)
        return embed(image)

    client = client_of(shown_of(folder, embed=slow), limits=Limits(seconds=0.05))
    try:
        response = sent(client, IMAGE)
    finally:
        go_on.set()
    assert (response.status_code, response.headers["retry-after"]) == (503, "10")


def test_an_error_of_the_server_is_one_line_and_tells_nothing(folder, caplog):
    def broken(image):
        raise RuntimeError("what only the server may know")

    client = client_of(shown_of(folder, embed=broken))
    with caplog.at_level(logging.INFO, "frontrank.gallery"):
        response = sent(client, IMAGE)
        page = client.post("/upload", files={"image": ("a", IMAGE)})
    assert (response.status_code, page.status_code) == (500, 500)
    assert list(response.json()) == ["detail"]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "RuntimeError at" in caplog.text
    for text in (response.text, page.text, caplog.text):
        assert "only the server" not in text
        assert "Traceback" not in text


# Limits


@pytest.mark.parametrize("name", ["upload_bytes", "seconds", "depth"])
@pytest.mark.parametrize("value", [0, float("nan"), True, "5", None], ids=repr)
def test_limits_that_are_none(name, value):
    with pytest.raises((InputError, InputTypeError), match=f"limits.{name}"):
        Limits(**{name: value})
    with pytest.raises(InputError, match=r"limits\.depth"):
        Limits(results=2000)  # which depth must cover


def raise_time_out():
    raise TimeoutError("the work itself")


def test_work_is_done():
    pool = WorkerPool(1, 1, 5.0)
    assert asyncio.run(pool.run(lambda: 7)) == 7
    with pytest.raises(ZeroDivisionError):
        asyncio.run(pool.run(lambda: 1 // 0))
    with pytest.raises(TimeoutError, match="the work itself"):
        asyncio.run(pool.run(raise_time_out))
    assert pool.inside == 0
    pool.close()
    with pytest.raises(BusyError):
        asyncio.run(pool.run(lambda: None))
    assert pool.inside == 0


def test_when_it_is_full_the_next_is_refused_and_late_work_keeps_its_place():
    pool, begun, go_on = WorkerPool(1, 1, 0.05), threading.Event(), threading.Event()

    def work():
        begun.set()
        go_on.wait(60)

    async def ask():
        while not begun.is_set():  # on a busy machine it may be late before it begins
            with pytest.raises(LateError):
                await pool.run(work)
        assert pool.inside == 1  # what is at work cannot be stopped
        waiting = asyncio.create_task(pool.run(work))
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await pool.run(lambda: None)
        with pytest.raises(LateError):
            await waiting
        assert pool.inside == 1  # the one that waited is gone
        go_on.set()
        while pool.inside:
            await asyncio.sleep(0.01)
        pool._seconds = 60.0
        assert await pool.run(lambda: "again") == "again"

    asyncio.run(ask())
