"""The application with its routes, errors and guard, and the server that runs it."""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from frontrank.checks import check_number
from frontrank.errors import FrontrankError, InputError
from frontrank.gallery.api import api_router
from frontrank.gallery.guard import HEADERS, LOOPBACK, OPEN, Guard, Limits
from frontrank.gallery.pages import login_router, page_response, page_router
from frontrank.gallery.search import GalleryIndex
from frontrank.gallery.service import Service

_LEAST_TOKEN = 12  # characters: fewer could be guessed by trying
_ABOUT = (
    "Search by picture. Every error is JSON with one line, detail. Send a token as a bearer token. "
    "Any other path is answered by 404, any other method by 405."
)


def create_app(
    indexes: Sequence[GalleryIndex],
    *,
    token: str | None = None,
    limits: Limits | None = None,
    hosts: Sequence[str] | None = LOOPBACK,
) -> FastAPI:
    """Return the application: pages, pictures and the JSON API.

    indexes: one or two, shown side by side on the same query
    token:   without it, only the page that asks for it is shown
    limits:  of uploads, time and concurrency; None for the defaults
    hosts:   host names under which the page is served, against DNS rebinding; None for any, which needs a token
    """
    if token is not None:
        check_token(token)
    elif hosts is None:
        raise InputError("token is missing; a page that others can reach needs one")
    limits = limits or Limits()
    service = Service(indexes, limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="Frontrank",
        version="1",
        description=_ABOUT,
        docs_url=None,  # the usual page loads its scripts from elsewhere; ours is /api
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        lifespan=lifespan,
        redirect_slashes=False,
    )
    routers = [api_router(service, token=token is not None), page_router(service, signed_in=token is not None)]
    if token is not None:
        routers.append(login_router())
        _describe_token(app)
    for router in routers:
        app.include_router(router)
    _add_errors(app, [route for router in routers for route in router.routes if isinstance(route, APIRoute)])
    app.add_middleware(Guard, limits=limits, token=token, hosts=hosts, answer=answer)
    return app


def answer(scope: Scope, status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an error: JSON for the API, a page for people."""
    if scope["path"].startswith("/api/"):
        return JSONResponse({"detail": detail}, status, headers)
    response = page_response("error.html.j2", status, detail=detail)
    response.headers.update(headers or {})
    return response


def _describe_token(app: FastAPI) -> None:
    """Say in the description that a token is needed; the guard checks it."""
    describe = app.openapi

    def describe_with_token() -> dict[str, Any]:
        description = describe()
        description.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, operations in description["paths"].items():
            if path not in OPEN:
                for operation in operations.values():
                    operation["security"] = [{"token": []}]
        return description

    app.openapi = describe_with_token  # type: ignore[method-assign]


def _add_errors(app: FastAPI, routes: Sequence[APIRoute]) -> None:
    """Answer every error in our words, in one line."""
    methods: dict[str, set[str]] = {}  # if a path has two routes, the framework itself would name the methods of one
    for route in routes:
        own = route.methods or set()
        methods.setdefault(route.path, set()).update(own, {"HEAD"} if "GET" in own else ())
    texts = {404: "there is no such page", 405: "this page does not take such requests"}

    async def refuse(request: Request, error: Exception) -> Response:
        status, detail, headers = 422, str(error), {}
        if isinstance(error, HTTPException):
            status, headers = error.status_code, dict(error.headers or {})
            detail = error.detail if error.detail[:1].islower() else texts.get(status, error.detail)
            if status == 405 and request.url.path in methods:
                headers["Allow"] = ", ".join(sorted(methods[request.url.path]))
        elif isinstance(error, RequestValidationError):
            faults = [f"{'.'.join(map(str, one['loc'][1:])) or 'request'}: {one['msg']}" for one in error.errors()]
            detail = "; ".join(faults)
        return answer(request.scope, status, " ".join(detail.split())[:500], headers)

    for kind in (HTTPException, RequestValidationError, FrontrankError):
        app.add_exception_handler(kind, refuse)


def check_token(token: str) -> None:
    """Refuse a token that could be guessed, or that no header can hold."""
    if len(token) < _LEAST_TOKEN or not (token.isascii() and token.isprintable()) or " " in token:
        raise InputError(f"token must have at least {_LEAST_TOKEN} letters, digits or signs, no blanks; choose another")


# The server that runs the application

_IDLE_SECONDS = 10.0  # that a connection may be open without a whole request
_FETCH_SECONDS = 60.0  # that a client may take to read an answer
_GRACE_SECONDS = 5  # for answers that are not finished when the server stops


def serve(
    indexes: Sequence[GalleryIndex],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    limits: Limits | None = None,
) -> None:
    """Serve the page until Ctrl-C; an address that others can reach needs a token. Arguments as in `create_app`."""
    check_number("port", port, at_least=1, at_most=65535)
    local = is_loopback(host)
    if not local and token is None:
        raise InputError(f"host {host} can be reached by others; give a token, or serve on 127.0.0.1")
    limits = limits or Limits()
    app = create_app(indexes, token=token, limits=limits, hosts=(*LOOPBACK, host) if local else None)
    _check_free(host, port)
    # a warning for each malformed request would let anybody fill the log
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    uvicorn.run(
        app,
        host=host,
        port=port,
        http=Connection,
        ws="none",
        access_log=False,  # it would record what people search for
        server_header=False,
        proxy_headers=False,
        log_level="error",
        timeout_keep_alive=int(_IDLE_SECONDS),
        timeout_graceful_shutdown=_GRACE_SECONDS,
        limit_concurrency=4 * limits.requests,
    )


class Connection(H11Protocol):
    """Connection that ends if no whole request arrives in time, or if its answer is not read.

    uvicorn itself waits for ever for the first request, and for one that arrives byte by byte. Requests on connections
    beyond its limit_concurrency are answered by 429.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        most, self.limit_concurrency = self.limit_concurrency, None  # else uvicorn would answer by 503
        if most is not None and len(self.connections) > most:
            self.app = _refuse_connection
        self._since = self.loop.time()
        self._watch = self.loop.call_later(_IDLE_SECONDS, self._check_idle)

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

    def _check_idle(self) -> None:
        """End the connection if it waits for too long, else check again later; running work has its own limits."""
        busy = self.cycle is not None and not self.cycle.response_complete and not self.transport.is_closing()
        busy = busy and not self.flow.write_paused  # else it waits for the client to read an earlier answer
        waited = 0.0 if busy else self.loop.time() - self._since
        if waited >= _FETCH_SECONDS:
            self.transport.abort()  # close() would wait until all is read
            return
        if waited >= _IDLE_SECONDS and self.transport.get_write_buffer_size() == 0:
            self.transport.close()
        self._watch = self.loop.call_later(max(1.0, _IDLE_SECONDS - waited), self._check_idle)


async def _refuse_connection(scope: Scope, receive: Receive, send: Send) -> None:
    headers = {**HEADERS, "Retry-After": "2", "Connection": "close"}
    response = answer(scope, 429, "the server has too many connections; ask again in a moment", headers)
    await response(scope, receive, send)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address.

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
