"""What every request passes before it is answered: who asks, from where, how much it sends, and what is written down.

It is the outermost layer of the application and speaks ASGI itself, so that nothing is read or computed for who is
turned away.
"""

import asyncio
import hmac
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TypeVar
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frontrank.checks import check_number
from frontrank.errors import InputError, InputTypeError

# ==== How much the page takes on: sizes, times, and how much is done at once.


T = TypeVar("T")

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_FRACTIONS = {"seconds", "body_seconds"}


@dataclass(frozen=True)
class Limits:
    """Bounds of what one server does; each is a number above 0.

    upload_bytes:  of an uploaded file; enforced while it is read
    upload_pixels: of its picture; looked up before it is decoded
    uploads:       files that are read and decoded at once
    kept_uploads:  how many of the last uploads can be asked for again by their URL
    kept_bytes:    memory for these
    picture_bytes: memory for pictures that were made small
    results:       that one search may show
    depth:         places over which the average precision of a query is computed
    hardest:       queries that are tried for the list of the hardest ones
    requests:      answered at once, of any kind
    workers:       searches, and pictures, that are computed at once
    waiting:       of each that may wait for a worker
    seconds:       for a step of the work of a request: a page and an upload have two
    body_seconds:  for the arrival of what a request sends
    """

    upload_bytes: int = 10_000_000
    upload_pixels: int = 50_000_000
    uploads: int = 4
    kept_uploads: int = 64
    kept_bytes: int = 32_000_000
    picture_bytes: int = 64_000_000
    results: int = 200
    depth: int = 1000
    hardest: int = 300
    requests: int = 128
    workers: int = 2
    waiting: int = 64
    seconds: float = 30.0
    body_seconds: float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in _FRACTIONS and (isinstance(value, bool) or not isinstance(value, int)):
                raise InputTypeError(f"limits.{field.name} must be a whole number, got {value!r}")
            check_number(f"limits.{field.name}", value, above=0)
        if self.depth < self.results:
            raise InputError(f"limits.depth must be at least limits.results, got {self.depth} and {self.results}")


class BusyError(Exception):
    """All workers are busy and as many wait as may."""


class LateError(Exception):
    """The work took longer than it may; its worker is free again when it ends."""


class Gate:
    """Some threads and a queue of bounded length before them.

    What has been begun cannot be stopped: who asked is told after `seconds`, but the place is taken until the work
    ends, so that no more than `workers` are ever at work.
    """

    def __init__(self, workers: int, waiting: int, seconds: float) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="gallery")
        self._room, self._seconds = workers + waiting, seconds
        self._inside, self._lock = 0, threading.Lock()

    @property
    def inside(self) -> int:
        """How many are at work or wait."""
        return self._inside

    async def run(self, work: Callable[[], T]) -> T:
        """What the work returns; BusyError if there is no room, LateError if it takes too long."""
        with self._lock:
            if self._inside >= self._room:
                raise BusyError
            self._inside += 1
        try:
            job = self._pool.submit(work)
        except RuntimeError:  # the server is going down
            self._leave()
            raise BusyError from None
        job.add_done_callback(self._leave)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(job), self._seconds)
        except TimeoutError:
            if job.done() and not job.cancelled() and isinstance(job.exception(), TimeoutError):
                raise
            raise LateError from None

    def close(self) -> None:
        """Drop what waits."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _leave(self, _: "Future[T] | None" = None) -> None:
        with self._lock:
            self._inside -= 1


class Turnstile:
    """A bounded number of something at once: a context manager that raises BusyError when it is full."""

    def __init__(self, room: int) -> None:
        self._room, self._inside, self._lock = room, 0, threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside >= self._room:
                raise BusyError
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1


# ==== What every request passes before it is answered: who asks, from where, how much it sends, and what is written


POLICY = (
    "default-src 'none'; img-src 'self'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # "no-referrer" would make browsers hide the origin of a form, by which foreign forms are told apart
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
OPEN = ("/login", "/api/v1/health")
_UPLOADS = ("/upload", "/api/v1/search")
_QUERY_STRING, _SMALL_BODY = 8192, 16_384  # bytes
_DRAINED = 100_000_000  # bytes of what is refused anyway
_FORM = 4096  # bytes around a file in a form
_log = logging.getLogger("frontrank.gallery")

Answer = Callable[[Scope, int, str], Response]


class Refusal(Exception):  # noqa: N818
    """A request that is turned away."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        self.status, self.detail, self.headers = status, detail, headers or {}


class Guard:
    """Lets through what may pass, and puts the headers of safety on every answer.

    answer: makes the answer to who is turned away, of a status and a line that says why
    """

    def __init__(
        self, app: ASGIApp, *, limits: Limits, token: str | None, hosts: Sequence[str] | None, answer: Answer
    ) -> None:
        self._app, self._limits, self._answer = app, limits, answer
        self._token, self._hosts = token, None if hosts is None else {host.lower().strip("[]") for host in hosts}
        self._requests, self._uploads = Turnstile(limits.requests), Turnstile(limits.uploads)
        self.session = secrets.token_urlsafe(32)  # what a browser keeps instead of the token, until the server ends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answered(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, status, method = time.perf_counter(), 0, scope["method"]
        way = method[:16] if method.isascii() and method.isalpha() else "(a method)"
        if method == "HEAD":  # answered as a GET, without what it would hold
            scope["method"] = "GET"

        async def safe_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            elif method == "HEAD":
                message = {**message, "body": b""}
            try:
                async with asyncio.timeout(self._limits.body_seconds):
                    await send(message)
            except TimeoutError:  # who does not take the answer must not keep a place for ever
                raise ClientDisconnect from None

        scope["frontrank.guard"] = self
        try:
            await self._let_in(scope, receive, safe_send)
        except ClientDisconnect:
            pass
        except Exception as error:
            # the message of an exception could hold what was sent; its kind and its place do not
            where = _place(error)
            _log.error("%s %s failed: %s at %s", way, _route(scope), type(error).__name__, where)
            if not status:
                response = self._answer(scope, 500, "this server made a mistake; its log says where")
                await response(scope, receive, safe_send)
        finally:
            milliseconds = 1000 * (time.perf_counter() - started)
            _log.info("%s %s %d %.0f ms", way, _route(scope), status, milliseconds)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        try:
            self._check(scope, headers)
            with self._requests:
                if scope["method"] != "POST":
                    await self._app(scope, receive, send)
                    return
                upload = scope["path"] in _UPLOADS
                most = self._limits.upload_bytes + _FORM if upload else _SMALL_BODY
                _check_length(headers, most)
                bounded = self._bounded(receive, most)
                if not upload:
                    await self._app(scope, bounded, send)
                    return
                with self._uploads:
                    await self._app(scope, bounded, send)
        except Refusal as refusal:
            response = self._refused(scope, refusal)
        except BusyError:
            response = self._answer(scope, 429, "the server is busy; ask again in a moment")
            response.headers["Retry-After"] = "2"
        else:
            return
        await self._drain(headers, receive)
        await response(scope, receive, send)

    async def _drain(self, headers: Headers, receive: Receive) -> None:
        """Take what is still being sent, within bounds: who is cut off while sending never sees the answer."""
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length[:15]) > _DRAINED or "expect" in headers:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.body_seconds):
                while (await receive()).get("more_body"):
                    pass

    def _refused(self, scope: Scope, refusal: Refusal) -> Response:
        if refusal.status == 401 and not scope["path"].startswith("/api/") and scope["method"] == "GET":
            here = scope["path"] + ("?" + scope["query_string"].decode("latin-1") if scope["query_string"] else "")
            onward = f"?next={quote(here, safe='/')}"
            return RedirectResponse("/login" + (onward if len(onward) <= _QUERY_STRING else ""), 303)
        response = self._answer(scope, refusal.status, refusal.detail)
        response.headers.update(refusal.headers)
        return response

    def _check(self, scope: Scope, headers: Headers) -> None:
        if len(scope["query_string"]) > _QUERY_STRING:
            raise Refusal(414, f"the URL is too long; use at most {_QUERY_STRING} bytes after the ?")
        if self._hosts is not None and _host(headers.get("host", "")) not in self._hosts:
            raise Refusal(421, "the page is not served under this host name; use the address that the server printed")
        bearer = self._token is not None and self._bears(headers)
        if scope["method"] != "GET" and not bearer and not same_origin(headers):
            raise Refusal(403, "this was sent by another site's page; open the page itself and send it from there")
        open_to_all = scope["path"] in OPEN or scope["path"].startswith("/static/")
        if self._token is not None and not (open_to_all or bearer or self._knows(scope, headers)):
            raise Refusal(401, "a token is needed; send it as Authorization: Bearer", {"WWW-Authenticate": "Bearer"})

    def _bears(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self.is_token(given.strip())

    def _knows(self, scope: Scope, headers: Headers) -> bool:
        cookies = cookie_parser(headers.get("cookie", ""))
        return equal(cookies.get(cookie_name(scope), ""), self.session)

    def is_token(self, given: str) -> bool:
        """Whether it is the token, found out in the same time whatever it is."""
        return self._token is not None and equal(given, self._token)

    def _bounded(self, receive: Receive, most: int) -> Receive:
        """What a request sends, refused as soon as it is too much or takes too long."""
        deadline, size = time.monotonic() + self._limits.body_seconds, 0

        async def bounded() -> Message:
            nonlocal size
            try:
                message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
            except TimeoutError:
                raise HTTPException(408, "what was sent took too long to arrive; try again") from None
            size += len(message.get("body", b""))
            if size > most:
                raise HTTPException(413, _too_large(most))
            return message

        return bounded


def cookie_name(scope: Scope) -> str:
    """What this server calls its cookie: browsers send a cookie to all ports of a host, so each has a name of its own.

    >>> cookie_name({"server": ("127.0.0.1", 8000)})
    'frontrank-8000'
    """
    return f"frontrank-{scope['server'][1]}" if scope.get("server") else "frontrank"


def equal(a: str, b: str) -> bool:
    """Whether two texts are the same, in a time that does not tell how far they are."""
    return hmac.compare_digest(a.encode("utf-8", "surrogatepass"), b.encode("utf-8", "surrogatepass"))


def same_origin(headers: Headers) -> bool:
    """Whether a request that changes something comes from our own page, or from a program that is no browser.

    Browsers say where a request comes from, and pages cannot change what they say.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("origin")
    if origin is None:
        return True
    try:
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""
    except ValueError:
        return False


def _host(header: str) -> str:
    """The name in a Host header, without its port.

    >>> _host("LocalHost:8000"), _host("[::1]:8000"), _host("127.0.0.1"), _host("a@b")
    ('localhost', '::1', '127.0.0.1', '')
    """
    if any(each in header for each in "@/\\?# ,"):
        return ""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _check_length(headers: Headers, most: int) -> None:
    length = headers.get("content-length")
    if length is None:
        return
    if not (length.isascii() and length.isdecimal()):
        raise Refusal(400, "Content-Length is no number; leave it to your client")
    if len(length) > 15 or int(length) > most:
        raise Refusal(413, _too_large(most))


def _too_large(most: int) -> str:
    return f"what was sent is too large; send at most {(most - _FORM if most > _SMALL_BODY else most):,} bytes"


def _route(scope: Scope) -> str:
    """The path as it was declared: no names of uploads, no text of who asks."""
    return getattr(scope.get("route"), "path", None) or "(no such page)"


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else "?"
