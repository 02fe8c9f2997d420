"""The server that runs the application."""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Sequence

import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from frontrank.errors import InputError, require_number
from frontrank.gallery.app import answer, create_app
from frontrank.gallery.guard import HEADERS
from frontrank.gallery.limits import LOOPBACK, Limits
from frontrank.gallery.search import Shown

_IDLE = 10.0  # seconds that a connection may go without a whole request
_TAKEN = 60.0  # seconds that an answer may take to be fetched
_GRACE = 5  # seconds that answers under way get at the end


def run(
    indexes: Sequence[Shown], *, host: str, port: int, token: str | None = None, limits: Limits | None = None
) -> None:
    """Serve until Ctrl-C. Its own access log is off, as it would write down what people search for."""
    require_number("port", port, at_least=1, at_most=65535)
    local = is_loopback(host)
    if not local and token is None:
        raise InputError(f"host {host} can be reached by others; give a token, or serve on 127.0.0.1")
    limits = limits or Limits()
    app = create_app(indexes, token=token, limits=limits, hosts=(*LOOPBACK, host) if local else None)
    _check_free(host, port)
    # a warning per request that is none would let anybody fill the log
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    uvicorn.run(
        app,
        host=host,
        port=port,
        http=Connection,
        ws="none",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        log_level="error",
        timeout_keep_alive=int(_IDLE),
        timeout_graceful_shutdown=_GRACE,
        limit_concurrency=4 * limits.requests,
    )


class Connection(H11Protocol):
    """A connection that cannot be held open: it ends where no whole request comes in time, or no answer is fetched.

    uvicorn itself waits for ever for the first request, and for one of which a byte comes now and then. Of connections
    beyond its limit_concurrency, requests are answered by 429.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        most, self.limit_concurrency = self.limit_concurrency, None  # else uvicorn answers by 503
        if most is not None and len(self.connections) > most:
            self.app = _full
        self._since = self.loop.time()
        self._watch = self.loop.call_later(_IDLE, self._look)

    def data_received(self, data: bytes) -> None:
        if self.timeout_keep_alive_task is not None:  # the first bytes after a rest
            self._since = self.loop.time()
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        """End the connection if it waits for too long, else look again later; what is at work has its own limits."""
        at_work = self.cycle is not None and not self.cycle.response_complete and not self.transport.is_closing()
        at_work = at_work and not self.flow.write_paused  # else it waits for an answer before to be fetched
        waited = 0.0 if at_work else self.loop.time() - self._since
        if waited >= _TAKEN:
            self.transport.abort()  # close() would wait until all is fetched
            return
        if waited >= _IDLE and self.transport.get_write_buffer_size() == 0:
            self.transport.close()
        self._watch = self.loop.call_later(max(1.0, _IDLE - waited), self._look)


async def _full(scope: Scope, receive: Receive, send: Send) -> None:
    response = answer(scope, 429, "the server has too many connections; ask again in a moment")
    response.headers.update({**HEADERS, "Retry-After": "2", "Connection": "close"})
    await response(scope, receive, send)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("::1")
    (True, True, False, True)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _check_free(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise InputError(f"port {port} of {host} cannot be used ({error.strerror}); give another port") from None
