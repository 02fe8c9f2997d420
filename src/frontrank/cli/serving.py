"""What `frontrank serve` does: opens indexes and their models, and runs the page until Ctrl-C."""

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

import torch

from frontrank.checks import check_number
from frontrank.cli.rows import say
from frontrank.errors import FrontrankWarning, InputError
from frontrank.gallery import Limits, Shown, require_libraries, serve
from frontrank.gallery.search import check_name
from frontrank.picture_index import load_index_model, open_index, picture_embedder
from frontrank.retrieval.index import Index
from frontrank.training.run import build_device

_TOKEN = "FRONTRANK_TOKEN"
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # and where this machine itself finds it
_LOOK = 0.05  # seconds between two looks at whether the server answers


def run(options: argparse.Namespace) -> None:
    """Serve until Ctrl-C. What is quickly checked comes before indexes and models, which may take long to load."""
    require_libraries()
    limits = _limits(options)
    for root in options.root or ():
        if not os.path.isdir(root):
            raise InputError(f"--root {root} is no folder; give the one that the pictures are in")
    host = options.host.strip("[]")
    made_up = secrets.token_urlsafe(18) if options.token == "" else None
    token = made_up or options.token or os.environ.get(_TOKEN) or None
    _check(options, token)
    port = _free_port(host, options.port, token)
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s: %(message)s", level=logging.WARNING)
    device = build_device(options.device)
    with ExitStack() as stack:
        indexes = [stack.enter_context(open_index(url)) for url in options.urls]
        models = options.model or [None]
        models = models * len(indexes) if len(models) == 1 else models
        shown = [
            _shown(name, index, model, options.root, device)
            for name, index, model in zip(_names(options, indexes), indexes, models, strict=True)
        ]
        for one in shown:
            facts = one.index.prepare().facts
            say(False, f"{one.name}: {one.index.count():,} images, {facts.get('search', 'exact')} search")
        with _announced(host, port, token, made_up, options.open), _ended_by_signals():
            serve(shown, host=host, port=port, token=token, limits=limits)


def _check(options: argparse.Namespace, token: str | None) -> None:
    """Refuse a token or names that the page would refuse."""
    from frontrank.gallery.app import check_token

    if token is not None:
        check_token(token)
    names = _given_names(options)
    for name in names:
        check_name(name)
    if len(set(names)) < len(names):
        raise InputError(f"--names are both {names[0]!r}; give different ones")


def _free_port(host: str, port: int, token: str | None) -> int:
    """The port, if the page can be served there; one that is free for 0."""
    from frontrank.gallery.app import is_loopback

    check_number("--port", port, at_least=0, at_most=65535)
    if token is None and not is_loopback(host):
        raise InputError(f"--host {host} can be reached by others; add --token, or leave --host out")
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    except OSError as error:
        said = error.strerror or error
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise InputError(f"--host {host} is no address of this machine ({said}); leave it out") from None
        raise InputError(f"--port {port} cannot be used ({said}); give another, or 0 for any that is free") from None


@contextmanager
def _announced(host: str, port: int, token: str | None, made_up: str | None, browser: bool) -> Iterator[None]:
    """Within, where the page is is said, and the browser opened, as soon as the server answers."""
    over, near = threading.Event(), _EVERYWHERE.get(host, host)
    page = _page(near, port)
    lines = [f"serving at {page}" + (f", to others at {_page(socket.gethostname(), port)}" if near != host else "")]
    lines[0] += "; Ctrl-C ends it"
    if token is not None:
        lines.append(f"the page asks for the token{'' if made_up is None else f': {made_up}'}")

    def wait() -> None:
        while not over.wait(_LOOK):
            with suppress(OSError):
                socket.create_connection((near, port), timeout=1.0).close()
                say(False, "\n".join(lines))
                if browser and not webbrowser.open(page):
                    say(False, f"there is no browser to open; go to {page} yourself")
                return

    threading.Thread(target=wait, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _page(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Within, Ctrl-C and SIGTERM are the way to end: the server is done with its answers, and raises them again."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _shown(name: str, index: Index, model: str | None, roots: Sequence[str] | None, device: torch.device) -> Shown:
    """An index as the page shows it; without its model only indexed pictures can be searched from."""
    noted = index.settings.notes.get("roots", ())
    folders = [Path(root) for root in roots or ([noted] if isinstance(noted, str) else noted)]
    if not folders:
        warnings.warn(
            f"{index.where} does not say where its pictures are: none are shown; give --root",
            FrontrankWarning,
            stacklevel=2,
        )
    try:
        embedder = load_index_model(index, model, device)
    except InputError as error:
        if model is not None:
            raise
        warnings.warn(f"only indexed pictures can be searched from: {error}", FrontrankWarning, stacklevel=2)
        return Shown(name, index, roots=folders)
    fingerprint = None if index.settings.model is None else embedder.fingerprint
    return Shown(name, index, picture_embedder(embedder), folders, fingerprint)


def _given_names(options: argparse.Namespace) -> list[str]:
    """The names of --names, none without it."""
    if options.names is None:
        return []
    names = [name.strip() for name in options.names.split(",")]
    if len(names) != len(options.urls):
        raise InputError(f"--names has {len(names)} names for {len(options.urls)} indexes; give one for each")
    return names


def _names(options: argparse.Namespace, indexes: Sequence[Index]) -> list[str]:
    if given := _given_names(options):
        return given
    names = [_name(index.where) for index in indexes]
    return names if len(set(names)) == len(names) else [f"{name} {place}" for place, name in enumerate(names, 1)]


def _name(where: str) -> str:
    """What a page calls an index, by its place.

    >>> _name("data/photos.index"), _name("milvus://localhost:19530/birds"), _name("postgresql://host/db?table=cats")
    ('photos', 'birds', 'cats')
    """
    last = where.rstrip("/").rpartition("table=")[2].partition("&")[0].rpartition("/")[2].partition("?")[0]
    last = last.removesuffix(".index")
    return "".join(letter if letter.isalnum() or letter in " ._-" else "-" for letter in last)[:60] or "index"


def _limits(options: argparse.Namespace) -> Limits:
    for name, value in (("--upload-mb", options.upload_mb), ("--seconds", options.seconds)):
        check_number(name, value, above=0)
    check_number("--requests", options.requests, at_least=1)
    return Limits(
        upload_bytes=max(1, round(options.upload_mb * 1e6)), seconds=options.seconds, requests=options.requests
    )
