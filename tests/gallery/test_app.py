"""Starting the server: what is refused before it runs, and how it is run."""

import socket
import sys
import threading
from urllib.parse import urlsplit

import pytest

from frontrank import gallery
from frontrank.errors import InputError
from frontrank.gallery import app as server
from tests.errors import refusal
from tests.gallery.live import running
from tests.gallery.samples import TOKEN, shown_of
from tests.training.processes import free_port


def test_a_client_that_does_not_read_is_cut_off(folder, monkeypatch):
    monkeypatch.setattr(server, "_IDLE_SECONDS", 0.2)
    monkeypatch.setattr(server, "_FETCH_SECONDS", 0.4)
    lost, tell = threading.Event(), server.Connection.connection_lost
    monkeypatch.setattr(server.Connection, "connection_lost", lambda self, why: (tell(self, why), lost.set()))
    app = gallery.create_app([shown_of(folder)], limits=gallery.Limits(body_seconds=0.2))
    with running(app) as url, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", urlsplit(url).port))
        client.settimeout(60)
        client.sendall(b"GET /static/base.css HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        assert lost.wait(30), "it is held open"


@pytest.fixture
def ran(monkeypatch):
    """What uvicorn was called with, instead of running."""
    calls = []
    monkeypatch.setattr("uvicorn.run", lambda app, **settings: calls.append((app, settings)))
    return calls


def test_on_this_machine_no_token_is_needed(folder, ran):
    for more in ({}, {"host": "0.0.0.0", "token": TOKEN}):
        gallery.serve([shown_of(folder)], port=free_port(), **more)
    assert [settings["host"] for _, settings in ran] == ["127.0.0.1", "0.0.0.0"]
    assert not any(ran[0][1][name] for name in ("access_log", "server_header", "proxy_headers"))


@pytest.mark.parametrize("host", ["0.0.0.0", "example.org", ""])
def test_where_others_can_reach_it_a_token_is_needed(folder, ran, host):
    refusal(lambda: gallery.serve([shown_of(folder)], host=host, port=free_port()), "token")
    assert ran == []


def test_ports_that_cannot_be_used(folder, ran):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        for port in (other.getsockname()[1], 0, 70_000):
            refusal(lambda port=port: gallery.serve([shown_of(folder)], port=port), "port")


@pytest.mark.parametrize("name", ["fastapi", "python_multipart"])
def test_a_library_that_is_missing_is_named(folder, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=rf"{name}.*frontrank\[serve\]"):
        gallery.create_app([shown_of(folder)])
