"""The web page over one or two indexes, and the JSON API beside it.

`serve` is what a command calls; `create_app` makes the application for a server of one's own.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from frontrank.errors import InputError
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
    """The application: pages, pictures and the JSON API.

    indexes: one or two, shown side by side on the same query
    token:   who does not know it is let in nowhere but to the page that asks for it
    limits:  of uploads, time and concurrency; None for the defaults
    hosts:   names under which the page may be asked for, against pages of others that take such a name for their own;
             None for any, which needs a token
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
    from frontrank.gallery.app import run

    run(indexes, host=host, port=port, token=token, limits=limits)


def require_libraries() -> None:
    """Refuse to go on without the libraries of the page."""
    try:
        import fastapi  # noqa: F401
        import jinja2  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise InputError(f"the page needs {error.name}; pip install 'frontrank[serve]'") from None
