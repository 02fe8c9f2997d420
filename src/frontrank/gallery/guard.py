"""Limits of the server, and the guard that checks every request before it is answered.

The guard checks who asks, from where and how much is sent, and writes the log. It is the outermost layer of the
application and speaks ASGI itself, so that nothing is read or computed for a request that is refused.
"""

import asyncio
import dataclasses
import hmac
import logging
import math
import secrets
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields
from typing import TypeVar
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from frontrank.checks import check_integer, check_number
from frontrank.errors import InputError

T = TypeVar("T")

LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Limits:
    """Limits of one server; each is a number above 0.

    upload_bytes:  of an uploaded file; checked while it is read
    upload_pixels: of its picture; checked before it is decoded
    uploads:       files that are decoded, or wait for it, at once; the body of a request has arrived before
    kept_uploads:  how many of the last uploads can be searched from again by their URL
    kept_bytes:    memory for these
    picture_bytes: memory for small pictures
    results:       that one search may show
    depth:         places over which the average precision of a query is computed
    hardest:       queries that are tried for the list of the hardest ones
    requests:      answered at once, of any kind
    workers:       searches, and pictures, that are computed at once
    waiting:       of each, how many may wait for a worker
    seconds:       for one step of the work of a request: a page and an upload have two
    decode_seconds: of processor time to decode a picture, in a process that is ended then
    body_seconds:  for the arrival of the body of a request
    body_rate:     bytes a second at which a body must arrive, from the third second on
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
    decode_seconds: float = 10.0
    body_seconds: float = 30.0
    body_rate: int = 20_000

    def __post_init__(self) -> None:
        for field in fields(self):
            name, value = f"limits.{field.name}", getattr(self, field.name)
            check_number(name, value, above=0) if field.type is float else check_integer(name, value, at_least=1)
        if self.depth < self.results:
            raise InputError(f"limits.depth must be at least limits.results, got {self.depth} and {self.results}")


class BusyError(HTTPException):
    """All workers are busy, and no more requests may wait."""

    def __init__(self) -> None:
        super().__init__(429, "the server is busy; ask again in a moment", {"Retry-After": "2"})


class LateError(HTTPException):
    """The work took too long; its worker is free again when it ends."""

    def __init__(self) -> None:
        super().__init__(503, "this took too long; ask for less, or try again later", {"Retry-After": "10"})


class Slots:
    """Context manager that lets in a bounded number at once, and raises BusyError when it is full."""

    def __init__(self, room: int) -> None:
        self._room, self.inside, self._lock = room, 0, threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            if self.inside >= self._room:
                raise BusyError
            self.inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self.inside -= 1


class WorkerPool:
    """Some threads with a queue of bounded length.

    Work that has started cannot be stopped: the request is answered after `seconds`, but its place is taken until the
    work ends, so that no more than `workers` ever run.
    """

    def __init__(self, workers: int, waiting: int, seconds: float) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="gallery")
        self._slots, self._seconds = Slots(workers + waiting), seconds

    @property
    def inside(self) -> int:
        """How many run or wait."""
        return self._slots.inside

    async def run(self, work: Callable[[], T]) -> T:
        """Run the work and return its result; BusyError if there is no room, LateError if it takes too long."""
        self._slots.__enter__()  # and out when the work ends, not when it is late
        try:
            job = self._pool.submit(work)
        except RuntimeError:  # the server is going down
            self._slots.__exit__()
            raise BusyError from None
        job.add_done_callback(self._slots.__exit__)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(job), self._seconds)
        except TimeoutError:
            if job.done() and not job.cancelled() and isinstance(job.exception(), TimeoutError):
                raise
            raise LateError from None

    def close(self) -> None:
        """Drop the work that waits."""
        self._pool.shutdown(wait=False, cancel_futures=True)


# The guard

POLICY = (
    "default-src 'none'; img-src 'self'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # "no-referrer" would make browsers hide the origin of a form, by which foreign forms are recognised
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
OPEN = ("/login", "/api/v1/health")
_UPLOADS = ("/upload", "/api/v1/search")
_QUERY_STRING, _SMALL_BODY = 8192, 16_384  # bytes at most
_DRAIN_BYTES = 100_000_000  # read from a request that is refused
_FORM_BYTES = 4096  # around a file in a form
_FREE_GUESSES, _LONGEST_WAIT = 10, 60.0  # wrong tokens before a client must wait, twice as long each time; seconds
_MOST_CLIENTS, _MOST_SESSIONS = 10_000, 1000  # remembered
_BODY_GRACE = 3.0  # seconds before the rate of a body counts
_log = logging.getLogger("frontrank.gallery")


@dataclass(eq=False)
class _Body:
    """The body of a request while it arrives."""

    start: float = dataclasses.field(default_factory=time.monotonic)
    size: int = 0
    limit: asyncio.Timeout | None = None  # while it is waited for
    is_given_up: bool = False

    def rate(self) -> float:
        """Return its bytes a second so far."""
        return self.size / (time.monotonic() - self.start + 0.1)

    def give_up(self) -> None:
        """End it: its place is given to another one."""
        self.is_given_up = True
        if self.limit is not None:
            self.limit.reschedule(0.0)


Responder = Callable[[Scope, int, str, Mapping[str, str] | None], Response]


class Guard:
    """Check every request, and put security headers on every answer.

    answer: makes the answer to a request that is refused, from a status, a line that says why, and headers
    """

    def __init__(
        self, app: ASGIApp, *, limits: Limits, token: str | None, hosts: Sequence[str] | None, answer: Responder
    ) -> None:
        self._app, self._limits, self._answer = app, limits, answer
        self._token, self._hosts = token, None if hosts is None else {host.lower().strip("[]") for host in hosts}
        self._requests = Slots(limits.requests)  # a request with a body takes a place when its body has arrived
        self._arriving: set[_Body] = set()
        self._sessions: OrderedDict[str, None] = OrderedDict()  # in cookies in place of the token; the newest last
        self._guesses: OrderedDict[str, tuple[int, float]] = OrderedDict()  # wrong tokens of a client, and the last one

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._handle(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        started, status, method = time.perf_counter(), 0, scope["method"]
        logged_method = method[:16] if method.isascii() and method.isalpha() else "(a method)"
        if method == "HEAD":  # answered as a GET without its body
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
            except TimeoutError:  # a client that does not read the answer must not keep a place for ever
                raise ClientDisconnect from None

        scope["frontrank.guard"] = self
        try:
            await self._pass(scope, receive, safe_send)
        except ClientDisconnect:
            pass
        except Exception as error:
            # the message of an exception could quote what was sent; its type and place cannot
            name, place = type(error).__name__, traceback.extract_tb(error.__traceback__)[-1]
            _log.error("%s %s failed: %s at %s:%s", logged_method, _route(scope), name, place.filename, place.lineno)
            if not status:
                response = self._answer(scope, 500, "an error in the server; its log says where", None)
                await response(scope, receive, safe_send)
        finally:
            milliseconds = 1000 * (time.perf_counter() - started)
            _log.info("%s %s %d %.0f ms", logged_method, _route(scope), status, milliseconds)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        try:
            self._check(scope, headers)
            if scope["method"] == "POST":
                upload = scope["path"] in _UPLOADS
                most = self._limits.upload_bytes + _FORM_BYTES if upload else _SMALL_BODY
                _check_length(headers, most)
                await self._take_body(scope, receive, send, most)
            else:
                with self._requests:
                    await self._app(scope, receive, send)
        except HTTPException as refusal:
            await self._drain(headers, receive)
            await self._refuse(scope, refusal)(scope, receive, send)

    async def _drain(self, headers: Headers, receive: Receive) -> None:
        """Read what is still being sent, within bounds: a client that is cut off never sees the answer."""
        length = headers.get("content-length", "")
        if not length.isdecimal() or int(length[:15]) > _DRAIN_BYTES or "expect" in headers:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.body_seconds):
                while (await receive()).get("more_body"):
                    pass

    def _refuse(self, scope: Scope, refusal: HTTPException) -> Response:
        if refusal.status_code == 401 and not scope["path"].startswith("/api/") and scope["method"] == "GET":
            here = scope["path"] + ("?" + scope["query_string"].decode("latin-1") if scope["query_string"] else "")
            query = f"?next={quote(here, safe='/')}"
            return RedirectResponse("/login" + (query if len(query) <= _QUERY_STRING else ""), 303)
        return self._answer(scope, refusal.status_code, refusal.detail, refusal.headers)

    def _check(self, scope: Scope, headers: Headers) -> None:
        if len(scope["query_string"]) > _QUERY_STRING:
            raise HTTPException(414, f"the URL is too long; use at most {_QUERY_STRING} bytes after the ?")
        if self._hosts is not None and _host(headers.get("host", "")) not in self._hosts:
            raise HTTPException(421, "the page is not served under this name; use the address that the server printed")
        if "transfer-encoding" in headers and "content-length" in headers:  # two ends of one body: a smuggled request
            detail = "Content-Length does not go with Transfer-Encoding; let your client set one of them"
            raise HTTPException(400, detail, {"Connection": "close"})
        scheme, _, given = headers.get("authorization", "").partition(" ")
        bearer = scheme.lower() == "bearer" and self.is_token(given.strip(), scope)
        if scope["method"] != "GET" and not bearer and not same_origin(headers):
            raise HTTPException(403, "this was sent by a page of another site; open this page and send it from there")
        open_to_all = scope["path"] in OPEN or scope["path"].startswith("/static/")
        cookie = cookie_parser(headers.get("cookie", "")).get(cookie_name(scope), "")
        if self._token is not None and not (open_to_all or bearer or self._is_session(cookie)):
            detail = "a token is needed; send it as Authorization: Bearer"
            raise HTTPException(401, detail, {"WWW-Authenticate": "Bearer"})

    def is_token(self, given: str, scope: Scope) -> bool:
        """Return whether it is the token; 429 for another one, of a client that has just given too many."""
        if self._token is None or not given:
            return False
        client = scope["client"][0] if scope.get("client") else ""
        if equal_secrets(given, self._token):  # first: wrong ones of others behind the same proxy keep nobody out
            self._guesses.pop(client, None)
            return True
        wrong, last = self._guesses.get(client, (0, 0.0))
        wait = last + min(_LONGEST_WAIT, 2.0 ** (wrong - _FREE_GUESSES)) - time.monotonic()
        if wrong >= _FREE_GUESSES and wait > 0:
            detail = "too many wrong tokens; wait before you try again"
            raise HTTPException(429, detail, {"Retry-After": str(math.ceil(wait))})
        self._guesses[client] = min(wrong + 1, 64), time.monotonic()
        self._guesses.move_to_end(client)
        if len(self._guesses) > _MOST_CLIENTS:
            self._guesses.popitem(last=False)
        _log.warning("wrong token from %s (%d in a row)", client or "a client", wrong + 1)
        return False

    def start_session(self) -> str:
        """Return the secret of a new session, for a cookie; the oldest ends if there are too many."""
        session = secrets.token_urlsafe(32)
        self._sessions[session] = None
        if len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def end_session(self, scope: Scope) -> None:
        """End the session of a request: its cookie is worth nothing from now on."""
        self._sessions.pop(cookie_parser(Headers(scope=scope).get("cookie", "")).get(cookie_name(scope), ""), None)

    def _is_session(self, cookie: str) -> bool:
        return cookie in self._sessions  # 256 random bits: nothing can be learnt from the time of a lookup by hash

    async def _take_body(self, scope: Scope, receive: Receive, send: Send, most: int) -> None:
        """Answer a request with a body, which ends as soon as it is too large or too slow.

        If there are too many, the slowest one makes room: bodies at a trickle keep nobody out.
        """
        if len(self._arriving) >= max(1, self._limits.requests // 2):
            slowest = min(self._arriving, key=lambda each: (each.rate(), each.start))
            self._arriving.remove(slowest)
            slowest.give_up()
        body = _Body()
        self._arriving.add(body)
        with ExitStack() as place:
            place.callback(self._arriving.discard, body)

            async def bounded() -> Message:
                if body not in self._arriving and not body.is_given_up:
                    return await receive()  # it is all there: this waits for the end of the connection
                allowed = min(self._limits.body_seconds, _BODY_GRACE + body.size / self._limits.body_rate)
                try:
                    left = 0.0 if body.is_given_up else max(0.0, body.start + allowed - time.monotonic())
                    async with asyncio.timeout(left) as body.limit:
                        message = await receive()
                except TimeoutError:
                    raise HTTPException(408, "the body of the request took too long to arrive; try again") from None
                finally:
                    body.limit = None
                body.size += len(message.get("body", b""))
                if body.size > most:
                    raise HTTPException(413, _too_large(most))
                if not message.get("more_body") and body in self._arriving:
                    self._arriving.remove(body)
                    place.enter_context(self._requests)
                return message

            await self._app(scope, bounded, send)


def cookie_name(scope: Scope) -> str:
    """Return the name of this server's cookie: browsers send a cookie to all ports of a host, so each port has its own.

    >>> cookie_name({"server": ("127.0.0.1", 8000)})
    'frontrank-8000'
    """
    return f"frontrank-{scope['server'][1]}" if scope.get("server") else "frontrank"


def equal_secrets(a: str, b: str) -> bool:
    """Return whether two texts are the same, in a time that does not depend on how similar they are."""
    return hmac.compare_digest(a.encode("utf-8", "surrogatepass"), b.encode("utf-8", "surrogatepass"))


def same_origin(headers: Headers) -> bool:
    """Return whether a request that changes something comes from our own page, or from a program that is no browser.

    Browsers send the origin of a request, and pages cannot change it.
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
    """Return the name in a Host header, without its port.

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
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdecimal()):
        raise HTTPException(400, "Content-Length must be a number; let your client set it")
    if len(length) > 15 or int(length) > most:
        raise HTTPException(413, _too_large(most))


def _too_large(most: int) -> str:
    file = most - _FORM_BYTES if most > _SMALL_BODY else most
    return f"the body of the request is too large; send at most {file:,} bytes"


def _route(scope: Scope) -> str:
    """Return the path as it was declared: no names of uploads, no text of the user."""
    return getattr(scope.get("route"), "path", None) or "(no such page)"
