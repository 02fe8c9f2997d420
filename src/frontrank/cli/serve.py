"""Open a web page that searches an index by picture: drop one on it, or click any result. With two indexes, both answer
the same query side by side. A JSON API is beside it (/api).

Only this machine can reach the page, unless --host says otherwise. Then a token is needed, by --token or in the
variable FRONTRANK_TOKEN, and the page asks for it. There is no encryption: put a proxy with TLS in front of it.

examples:
  frontrank serve photos.index
  frontrank serve photos.index other.index --names ours,theirs --open
  frontrank serve photos.index --port 9000 --model runs/first/model
  frontrank serve photos.index --host 0.0.0.0 --token
"""

from __future__ import annotations

import argparse
import errno
import logging
import os
import secrets
import signal
import socket
import threading
import warnings
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from frontrank.cli.inputs import add_running_arguments, number_type, say
from frontrank.errors import FrontrankWarning, InputError

if TYPE_CHECKING:
    import torch

    import frontrank as fr
    from frontrank.gallery import GalleryIndex

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # and where this machine itself finds it
_LOOK = 0.05  # seconds between two looks at whether the server answers


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = "frontrank serve URL [URL] [options]"
    parser.add_argument("urls", metavar="URL", nargs="+", help="one index, or two to compare; as for frontrank index")
    parser.add_argument("--names", metavar="A,B", help="names of the indexes on the page")
    parser.add_argument("--model", metavar="DIR", action="append", help="where the model is now; once for each index")
    parser.add_argument("--root", metavar="DIR", action="append", help="show only pictures below this folder")
    here, port = "127.0.0.1", number_type(int, at_least=0, at_most=65535)
    parser.add_argument("--host", metavar="NAME", default=here, help=f"address to serve on; {here} by default")
    parser.add_argument("--port", metavar="N", type=port, default=8000, help="8000 by default; 0 takes a free one")
    parser.add_argument("--token", metavar="TEXT", nargs="?", const="", help="ask for it; without TEXT a random one")
    positive, count = number_type(float, above=0), number_type(int, at_least=1)
    parser.add_argument("--upload-mb", metavar="N", type=positive, default=10.0, help="largest upload; 10 by default")
    parser.add_argument("--seconds", metavar="S", type=positive, default=30.0, help="for a request; 30 by default")
    parser.add_argument("--requests", metavar="N", type=count, default=128, help="answered at once; 128 by default")
    add_running_arguments(parser)
    parser.add_argument("--open", action="store_true", help="open the page in your browser")


def run(options: argparse.Namespace) -> None:
    """Serve until Ctrl-C. Quick checks come before indexes and models, which may take long to load."""
    names = _check_options(options)
    from frontrank.gallery import Limits, require_libraries, serve
    from frontrank.picture_index import open_index
    from frontrank.training.distributed import build_device

    require_libraries()
    host = options.host.strip("[]")
    random_token = secrets.token_urlsafe(18) if options.token == "" else None
    token = random_token or options.token or os.environ.get("FRONTRANK_TOKEN") or None
    _check_page(names, host, token)
    port = _free_port(host, options.port)
    upload = max(1, round(options.upload_mb * 1e6))
    limits = Limits(upload_bytes=upload, seconds=options.seconds, requests=options.requests)
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s: %(message)s", level=logging.WARNING)
    device = build_device(options.device)
    with ExitStack() as stack:
        indexes = [stack.enter_context(open_index(url)) for url in options.urls]
        models = options.model or [None]
        models = models * len(indexes) if len(models) == 1 else models
        names = names or [_default_name(index.where) for index in indexes]
        if len(set(names)) < len(names):
            names = [f"{name} {place}" for place, name in enumerate(names, 1)]
        parts = zip(names, indexes, models, strict=True)
        pages = [_with_model(name, index, model, options.root, device) for name, index, model in parts]
        for page in pages:
            facts = page.index.prepare().facts
            say(False, f"{page.name}: {page.index.count():,} images, {facts.get('search', 'exact')} search")
        about_token = "" if token is None else "\nthe page asks for the token"
        about_token += f": {random_token}" if random_token else ""
        with _announcement(host, port, about_token, options.open), _end_on_signals():
            serve(pages, host=host, port=port, token=token, limits=limits)


def _check_options(options: argparse.Namespace) -> list[str]:
    """Raise if options are not valid, as far as nothing heavy is needed; returns the names of --names."""
    if len(options.urls) > 2:
        raise InputError(f"serve takes one or two indexes, got {len(options.urls)}; leave out the others")
    if options.model and len(options.model) not in (1, len(options.urls)):
        raise InputError(f"--model is there {len(options.model)} times; give it once for each index")
    for root in options.root or ():
        if not os.path.isdir(root):
            raise InputError(f"--root {root} is no folder; give the one that the pictures are in")
    if options.names is None:
        return []
    names = [name.strip() for name in options.names.split(",")]
    if len(names) != len(options.urls):
        raise InputError(f"--names has {len(names)} names for {len(options.urls)} indexes; give one for each")
    if len(set(names)) < len(names):
        raise InputError(f"--names are both {names[0]!r}; give different ones")
    return names


def _check_page(names: list[str], host: str, token: str | None) -> None:
    """Raise if the page would not accept the names or the token, or would be open to others without one."""
    from frontrank.gallery.app import check_token, is_loopback
    from frontrank.gallery.search import check_name

    for name in names:
        check_name(name)
    if token is not None:
        check_token(token)
    elif not is_loopback(host):
        raise InputError(f"--host {host} can be reached by others; add --token, or leave --host out")


def _free_port(host: str, port: int) -> int:
    """Return the port, if the page can be served there; one that is free for 0."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    except OSError as error:
        reason = error.strerror or error
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise InputError(f"--host {host} is no address of this machine ({reason}); leave it out") from None
        raise InputError(f"--port {port} cannot be used ({reason}); give another, or 0 for any that is free") from None


def _with_model(
    name: str, index: fr.Index, model: str | None, roots: Sequence[str] | None, device: torch.device
) -> GalleryIndex:
    """Return an index as the page shows it; without its model only indexed pictures can be searched from."""
    from frontrank.gallery import GalleryIndex
    from frontrank.picture_index import load_index_model, picture_embedder

    noted = index.settings.notes.get("roots", ())
    folders = [Path(root) for root in roots or ([noted] if isinstance(noted, str) else noted)]
    if not folders:
        reason = "does not say where its pictures are: none are shown; give --root"
        warnings.warn(f"{index.where} {reason}", FrontrankWarning, stacklevel=2)
    try:
        embedder = load_index_model(index, model, device)
    except InputError as error:
        if model is not None:
            raise
        warnings.warn(f"only indexed pictures can be searched from: {error}", FrontrankWarning, stacklevel=2)
        return GalleryIndex(name, index, roots=folders)
    fingerprint = None if index.settings.model is None else embedder.fingerprint
    return GalleryIndex(name, index, picture_embedder(embedder), folders, fingerprint)


def _default_name(where: str) -> str:
    """Return the name of an index on the page, by its place.

    >>> _default_name("data/photos.index"), _default_name("milvus://localhost:19530/birds")
    ('photos', 'birds')
    >>> _default_name("postgresql://host/db?table=cats")
    'cats'
    """
    last = where.rstrip("/").rpartition("table=")[2].partition("&")[0].rpartition("/")[2].partition("?")[0]
    last = last.removesuffix(".index")
    return "".join(letter if letter.isalnum() or letter in " ._-" else "-" for letter in last)[:60] or "index"


@contextmanager
def _announcement(host: str, port: int, about_token: str, browser: bool) -> Iterator[None]:
    """Within, print where the page is, and open the browser, as soon as the server answers."""
    over, near = threading.Event(), _EVERYWHERE.get(host, host)
    page = _page_url(near, port)
    others = f", to others at {_page_url(socket.gethostname(), port)}" if near != host else ""

    def wait() -> None:
        while not over.wait(_LOOK):
            with suppress(OSError):
                socket.create_connection((near, port), timeout=1.0).close()
                say(False, f"serving at {page}{others}; Ctrl-C ends it{about_token}")
                if browser and not webbrowser.open(page):
                    say(False, f"there is no browser to open; go to {page} yourself")
                return

    threading.Thread(target=wait, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _page_url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


@contextmanager
def _end_on_signals() -> Iterator[None]:
    """Within, Ctrl-C and SIGTERM end the command: the server finishes its answers, and raises them again."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)
