"""Who is let in: hosts, origins, tokens, sizes, and what the answers and the log say."""

import asyncio
import logging
import threading

import pytest
from fastapi.testclient import TestClient
from starlette.datastructures import Headers

from frontrank.errors import InputError
from frontrank.gallery import Limits, create_app
from frontrank.gallery.guard import HEADERS, Guard, same_origin
from tests.gallery.samples import BASE, TOKEN, client_of, embed, picture, sent, shown_of, written

IMAGE = written(picture("red"))


@pytest.fixture(scope="module")
def locked(folder):
    """A page with a token that anybody can reach."""
    return client_of(shown_of(folder), token=TOKEN, hosts=None, base="http://pictures.example")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8000", "localhost", "LOCALHOST:80", "[::1]", "[::1]:8000"])
def test_hosts_of_this_machine(client, host):
    assert client.get("/api/v1/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil.example@127.0.0.1",
        "127.0.0.1@evil.example",
        "127.0.0.1, evil.example",
        "127.0.0.1/evil.example",
        "127.0.0.1#evil.example",
        "127.0.0.2",
        "0.0.0.0",
        "2130706433",
        "[::ffff:127.0.0.1]",
        "[::1",
        "",
        " ",
        ":8000",
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/v1/health", "/static/icon.svg", "/nothing"])
def test_hosts_that_others_took_for_this_machine(client, host, path):
    assert client.get(path, headers={"Host": host}).status_code == 421


@pytest.mark.parametrize(
    "path", ["/", "/hardest", "/api", "/nothing", "/api/v1/stats", "/api/v1/item?id=x", "/static/gallery.js"]
)
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
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "cross-site", "origin": BASE}, False),
        ({"origin": BASE}, True),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "http://127.0.0.1:9000"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"origin": "http://[bad"}, False),
    ],
)
@pytest.mark.parametrize("path", ["/api/v1/search", "/upload"])
def test_forms_of_other_sites_are_refused(client, headers, passes, path):
    response = client.post(path, files={"image": ("a", IMAGE)}, headers=headers)
    assert response.status_code == ((303 if path == "/upload" else 200) if passes else 403)


def test_without_a_host_no_origin_is_ours():
    assert not same_origin(Headers({"origin": "http://"}))


PATHS = (
    "/",
    "/?item=red/0.png",
    "/hardest",
    "/api",
    "/picture?id=red/0.png",
    "/uploaded/x",
    "/nothing",
    "/api/v1/stats",
    "/api/v1/search?item=red/0.png",
    "/api/v1/item?id=red/0.png",
    "/api/v1/values",
    "/api/v1/hardest",
    "/api/v1/openapi.json",
    "/api/v1/healthy",
    "/loginx",
    "/static",
)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Bearer {TOKEN[:-1]}"},
        {"Authorization": TOKEN},
        {"Cookie": f"frontrank-80={TOKEN}"},
        {"Cookie": "frontrank-80="},
        {"Cookie": "\x01=;;="},
    ],
    ids=range(10),
)
def test_nobody_gets_in_without_the_token(locked, path, headers):
    response = locked.get(path, headers=headers)
    if path.startswith("/api/"):
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
    else:
        assert response.status_code == 303
        assert response.headers["location"].startswith("/login?next=/")


@pytest.mark.parametrize("path", ["/api/v1/search", "/upload", "/logout"])
def test_nothing_is_sent_without_the_token(locked, path):
    assert locked.post(path, files={"image": ("a", IMAGE)}).status_code == 401


@pytest.mark.parametrize("path", ["/api/v1/health", "/login", "/static/gallery.css"])
def test_what_is_open_to_all(locked, path):
    assert locked.get(path).status_code == 200


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_with_the_token(locked, scheme):
    headers = {"Authorization": f"{scheme} {TOKEN}"}
    assert locked.get("/api/v1/stats", headers=headers).status_code == 200
    assert locked.get("/", headers=headers).status_code == 200
    foreign = headers | {"Sec-Fetch-Site": "cross-site"}  # no page of others can know the token
    assert locked.post("/api/v1/search", files={"image": ("a", IMAGE)}, headers=foreign).status_code == 200


def test_signing_in_and_out(folder):
    client = client_of(shown_of(folder), token=TOKEN, hosts=None)
    assert client.post("/login", data={"token": "wrong"}).status_code == 401
    assert "not the token" in client.post("/login", data={"token": "wrong"}).text
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


def test_the_cookie_is_for_safe_connections_where_there_is_one(folder):
    client = client_of(shown_of(folder), token=TOKEN, hosts=None, base="https://pictures.example")
    assert "Secure" in client.post("/login", data={"token": TOKEN}).headers["set-cookie"]


def test_behind_a_proxy_that_encrypts_the_cookie_is_for_safe_connections_too(locked):
    response = locked.post("/login", data={"token": TOKEN}, headers={"X-Forwarded-Proto": "https"})
    locked.cookies.clear()
    assert "Secure" in response.headers["set-cookie"]


@pytest.mark.parametrize("other", ['x={"a":1}', "a b=c", "=", "x", 'x="', "\u00e9=1"])
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
    for length in (1000, 4000, 8000):
        response = locked.get("/?item=" + "%2F" * (length // 3))
        assert response.status_code == 303
        assert locked.get(response.headers["location"]).status_code == 200


@pytest.mark.parametrize(
    "onward", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)", "", "/\n/evil"]
)
def test_signing_in_leads_nowhere_else(locked, onward):
    response = locked.post("/login", data={"token": TOKEN, "next": onward})
    assert response.headers["location"] == "/"
    locked.cookies.clear()
    assert "evil" not in locked.get("/login", params={"next": onward}).text


@pytest.mark.parametrize("token", ["", "short", "with a blank inside", "ünïcödé-tökén", "a\nlong-enough-token"])
def test_tokens_that_cannot_be_used(folder, token):
    with pytest.raises(InputError, match="token") as caught:
        create_app([shown_of(folder)], token=token)
    assert not token or token not in str(caught.value)


def test_who_can_be_reached_needs_a_token(folder):
    with pytest.raises(InputError, match="token is missing"):
        create_app([shown_of(folder)], hosts=None)


def test_a_url_that_is_too_long(client):
    assert client.get("/", params={"filter": "x" * 9000}).status_code == 414


@pytest.mark.parametrize("length", ["99999999999999999999", "20000000", "-1", "abc", "1e3"])
def test_lengths_are_looked_at_before_anything_is_read(client, length):
    response = client.post("/api/v1/search", headers={"Content-Length": length, "Content-Type": "text/plain"})
    assert response.status_code == (413 if length.isdecimal() else 400)


def test_login_forms_are_small(locked):
    assert locked.post("/login", data={"token": "x" * 20_000}).status_code == 413


def test_a_slow_body_is_given_up(folder):
    app = create_app([shown_of(folder)], limits=Limits(body_seconds=0.05))
    said = []

    async def receive():
        await asyncio.sleep(3600)

    async def send(message):
        said.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"multipart/form-data; boundary=x")]
    scope = {
        "type": "http", "method": "POST", "path": "/api/v1/search", "query_string": b"", "headers": headers,
        "scheme": "http", "root_path": "", "http_version": "1.1", "server": ("localhost", 80), "client": ("a", 1),
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    assert said[0]["status"] == 408


def test_a_web_socket_is_refused(client):
    from starlette.websockets import WebSocketDisconnect

    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/"):
        pytest.fail("was let in")


def test_when_all_are_busy_the_next_is_asked_to_wait(folder):
    begun, go_on = threading.Event(), threading.Event()

    def slow(image):
        begun.set()
        assert go_on.wait(20)
        return embed(image)

    shown = shown_of(folder, embed=slow)
    with client_of(shown, limits=Limits(uploads=1, workers=1, waiting=1)) as client:
        answers = []
        first = threading.Thread(target=lambda: answers.append(sent(client, IMAGE)))
        first.start()
        assert begun.wait(20)
        refused = sent(client, IMAGE)
        go_on.set()
        first.join()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
        assert "busy" in refused.json()["detail"]
        assert answers[0].status_code == 200
        assert sent(client, IMAGE).status_code == 200


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


def test_a_mistake_of_the_server_is_one_line_and_tells_nothing(folder, caplog):
    def broken(image):
        raise RuntimeError("what only the server may know")

    client = client_of(shown_of(folder, embed=broken))
    with caplog.at_level(logging.INFO, "frontrank.gallery"):
        response = sent(client, IMAGE)
        page = client.post("/upload", files={"image": ("a", IMAGE)})
    assert (response.status_code, page.status_code) == (500, 500)
    assert list(response.json()) == ["detail"]
    assert "RuntimeError at" in caplog.text
    for text in (response.text, page.text, caplog.text):
        assert "only the server" not in text
        assert "Traceback" not in text


def test_the_log_has_no_names_and_no_questions(client, caplog):
    with caplog.at_level(logging.INFO, "frontrank.gallery"):
        name = sent(client, IMAGE, "holiday.png", filter="label=red").json()["upload"]
        client.get("/", params={"upload": name})
        client.get(f"/uploaded/{name}")
        client.get("/picture", params={"id": "red/0.png"})
        client.get("/secret-path")
    messages = [record.getMessage() for record in caplog.records if record.name == "frontrank.gallery"]
    assert len(messages) == 5
    assert messages[0].startswith("POST /api/v1/search 200 ")
    assert messages[-1].startswith("GET (no such page) 404 ")
    for text in (name, "holiday", "red", "secret"):
        assert text not in "".join(messages)


def test_a_page_that_cannot_be_made_is_still_an_answer(folder, monkeypatch):
    def fails(*anything):
        raise RuntimeError

    app = create_app([shown_of(folder)])
    monkeypatch.setattr(Guard, "_let_in", fails)
    response = TestClient(app, base_url=BASE, raise_server_exceptions=False).get("/api/v1/health")
    assert response.status_code == 500
    assert response.headers["x-content-type-options"] == "nosniff"
