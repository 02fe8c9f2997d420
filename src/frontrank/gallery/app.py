"""The application: routes, errors and the guard before them, put together."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from frontrank.errors import FrontrankError, InputError
from frontrank.gallery.api import api_router
from frontrank.gallery.guard import OPEN, Guard
from frontrank.gallery.limits import LOOPBACK, BusyError, LateError, Limits
from frontrank.gallery.pages import login_router, page_router
from frontrank.gallery.rendering import page
from frontrank.gallery.search import Shown
from frontrank.gallery.service import Service

_LEAST_TOKEN = 12  # characters: fewer could be guessed by trying
_ABOUT = (
    "Search by picture. Every error is JSON with one line, detail. A token is sent as a bearer token. "
    "A path that is not described is answered by 404, another method by 405."
)


def create_app(
    indexes: Sequence[Shown],
    *,
    token: str | None = None,
    limits: Limits | None = None,
    hosts: Sequence[str] | None = LOOPBACK,
) -> FastAPI:
    """See `frontrank.gallery.create_app`."""
    _check_token(token, hosts)
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
    app.state.service = service
    routers = [api_router(service, token=token is not None), page_router(service, signed_in=token is not None)]
    if token is not None:
        routers.append(login_router())
        _describe_token(app)
    for router in routers:
        app.include_router(router)
    _add_errors(app, _ways(routers))
    app.add_middleware(Guard, limits=limits, token=token, hosts=hosts, answer=answer)
    return app


def answer(scope: Scope, status: int, detail: str) -> Response:
    """An error: JSON for the API, a page for people."""
    if scope["path"].startswith("/api/"):
        return JSONResponse({"detail": detail}, status)
    return page("error.html.j2", status, detail=detail)


def _ways(routers: Sequence[APIRouter]) -> dict[str, str]:
    """The methods that each path takes; of two routes of one path, the framework itself would tell those of one."""
    found: dict[str, set[str]] = {}
    for router in routers:
        for route in router.routes:
            if isinstance(route, APIRoute):
                found.setdefault(route.path, set()).update(route.methods or ())
    return {path: ", ".join(sorted(ways | ({"HEAD"} if "GET" in ways else set()))) for path, ways in found.items()}


def _describe_token(app: FastAPI) -> None:
    """Say in the description that a token is needed; that it is sent is seen to by the guard."""
    describe = app.openapi

    def described() -> dict[str, Any]:
        found = describe()
        found.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, ways in found["paths"].items():
            if path not in OPEN:
                for way in ways.values():
                    way["security"] = [{"token": []}]
        return found

    app.openapi = described  # type: ignore[method-assign]


def _add_errors(app: FastAPI, ways: Mapping[str, str]) -> None:
    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        detail = {404: "there is no such page", 405: "this page does not take such requests"}
        said = error.detail if error.detail[:1].islower() else detail.get(error.status_code, _line(error.detail))
        response = answer(request.scope, error.status_code, said)
        response.headers.update(error.headers or {})
        if error.status_code == 405 and request.url.path in ways:
            response.headers["Allow"] = ways[request.url.path]
        return response

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        faults = [f"{'.'.join(map(str, one['loc'][1:])) or 'request'}: {one['msg']}" for one in error.errors()]
        return answer(request.scope, 422, _line("; ".join(faults)))

    @app.exception_handler(FrontrankError)
    async def wrong_input(request: Request, error: FrontrankError) -> Response:
        return answer(request.scope, 422, _line(str(error)))

    @app.exception_handler(BusyError)
    async def busy(request: Request, error: BusyError) -> Response:
        response = answer(request.scope, 429, "the server is busy; ask again in a moment")
        response.headers["Retry-After"] = "2"
        return response

    @app.exception_handler(LateError)
    async def late(request: Request, error: LateError) -> Response:
        response = answer(request.scope, 503, "this took too long; ask for less, or again later")
        response.headers["Retry-After"] = "10"
        return response


def _line(text: str) -> str:
    return " ".join(text.split())[:500]


def _check_token(token: str | None, hosts: Sequence[str] | None) -> None:
    if token is None:
        if hosts is None:
            raise InputError("token is missing; a page that others can reach needs one")
        return
    check_token(token)


def check_token(token: str) -> None:
    """Refuse a token that could be guessed, or that no header can hold."""
    if len(token) < _LEAST_TOKEN or not (token.isascii() and token.isprintable()) or " " in token:
        raise InputError(f"token must have at least {_LEAST_TOKEN} letters, digits or signs, no blanks; take another")
