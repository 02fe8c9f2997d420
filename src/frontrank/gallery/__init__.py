"""The web page over one or two indexes, and the JSON API beside it.

`serve` is what the command calls; `create_app` makes the application for another server.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from frontrank.checks import import_extra
from frontrank.gallery.guard import LOOPBACK, Limits
from frontrank.gallery.search import Shown

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["LOOPBACK", "Limits", "Shown", "create_app", "require_libraries", "serve"]


def create_app(
    indexes: Sequence[Shown],
    *,
    token: str | None = None,
    limits: Limits | None = None,
    hosts: Sequence[str] | None = LOOPBACK,
) -> "FastAPI":
    """Return the application: pages, pictures and the JSON API.

    indexes: one or two, shown side by side on the same query
    token:   without it, only the page that asks for it is shown
    limits:  of uploads, time and concurrency; None for the defaults
    hosts:   host names under which the page is served, against DNS rebinding; None for any, which needs a token
    """
    require_libraries()
    from frontrank.gallery.app import create_app as create

    return create(indexes, token=token, limits=limits, hosts=hosts)


def serve(
    indexes: Sequence[Shown],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    limits: Limits | None = None,
) -> None:
    """Serve the page until Ctrl-C; an address that others can reach needs a token. Arguments as in `create_app`."""
    require_libraries()
    from frontrank.gallery.app import run_server

    run_server(indexes, host=host, port=port, token=token, limits=limits)


def require_libraries() -> None:
    """Raise an error that names what to install, if a library of the page is missing."""
    for module in ("fastapi", "jinja2", "python_multipart", "uvicorn"):
        import_extra(module, "serve", "the page")
