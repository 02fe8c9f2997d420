"""The web page over one or two indexes, and the JSON API beside it.

`serve` is what the command calls; `create_app` makes the application for another server. Names are imported when they
are used: without the libraries of the page that is an error which names what to install.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from frontrank.checks import import_extra

if TYPE_CHECKING:
    from frontrank.gallery.app import create_app, serve
    from frontrank.gallery.guard import LOOPBACK, Limits
    from frontrank.gallery.search import GalleryIndex

__all__ = ["LOOPBACK", "GalleryIndex", "Limits", "create_app", "require_libraries", "serve"]
_MODULES = {"LOOPBACK": "guard", "Limits": "guard", "GalleryIndex": "search", "create_app": "app", "serve": "app"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_libraries()
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def require_libraries() -> None:
    """Raise an error that names what to install, if a library of the page is missing."""
    for module in ("fastapi", "jinja2", "python_multipart", "uvicorn"):
        import_extra(module, "serve", "the page")
