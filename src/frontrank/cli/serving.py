"""What `frontrank serve` does: opens indexes and their models, and runs the page until Ctrl-C."""

import argparse
import logging
import os
import secrets
import threading
import warnings
import webbrowser
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import torch

from frontrank.build import build_device
from frontrank.cli.rows import say
from frontrank.errors import FrontrankWarning, InputError, require_number
from frontrank.gallery import Limits, Shown, require_libraries, serve
from frontrank.jobs.searching import index_model, picture_embedder
from frontrank.retrieval.index import Index

_TOKEN = "FRONTRANK_TOKEN"


def run(options: argparse.Namespace) -> None:
    """Serve until Ctrl-C."""
    require_libraries()
    token, limits = _token(options.token), _limits(options)
    for root in options.root or ():
        if not os.path.isdir(root):
            raise InputError(f"--root {root} is no folder; give the one that the pictures are in")
    logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s: %(message)s", level=logging.WARNING)
    device = build_device(options.device)
    with ExitStack() as stack:
        indexes = [stack.enter_context(Index.load(url)) for url in options.urls]
        models = options.model or [None]
        models = models * len(indexes) if len(models) == 1 else models
        shown = [
            _shown(name, index, model, options.root, device)
            for name, index, model in zip(_names(options, indexes), indexes, models, strict=True)
        ]
        for one in shown:
            facts = one.index.prepare().facts
            say(False, f"{one.name}: {one.index.count():,} images, {facts.get('search', 'exact')} search")
        _announce(options, token)
        with suppress(KeyboardInterrupt):  # the way to end a server
            serve(shown, host=options.host, port=options.port, token=token, limits=limits)


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
        embedder = index_model(index, model, device)
    except InputError as error:
        if model is not None:
            raise
        warnings.warn(f"only indexed pictures can be searched from: {error}", FrontrankWarning, stacklevel=2)
        return Shown(name, index, roots=folders)
    fingerprint = None if index.settings.model is None else embedder.fingerprint
    return Shown(name, index, picture_embedder(embedder), folders, fingerprint)


def _names(options: argparse.Namespace, indexes: Sequence[Index]) -> list[str]:
    if options.names is not None:
        names = [name.strip() for name in options.names.split(",")]
        if len(names) != len(indexes):
            raise InputError(f"--names has {len(names)} names for {len(indexes)} indexes; give one for each")
        return names
    names = [_name(index.where) for index in indexes]
    return names if len(set(names)) == len(names) else [f"{name} {place}" for place, name in enumerate(names, 1)]


def _name(where: str) -> str:
    """What a page calls an index, by its place.

    >>> _name("data/photos.index"), _name("milvus://localhost:19530/photos"), _name("postgresql://me@host/db?table=cats")
    ('photos', 'photos', 'cats')
    """
    last = where.rstrip("/").rpartition("table=")[2].partition("&")[0].rpartition("/")[2].partition("?")[0]
    last = last.removesuffix(".index")
    return "".join(letter if letter.isalnum() or letter in " ._-" else "-" for letter in last)[:60] or "index"


def _token(given: str | None) -> str | None:
    if given is None:
        return os.environ.get(_TOKEN) or None
    if given:
        return given
    made = secrets.token_urlsafe(18)
    say(False, f"token: {made}")
    return made


def _limits(options: argparse.Namespace) -> Limits:
    for name, value in (("--upload-mb", options.upload_mb), ("--seconds", options.seconds)):
        require_number(name, value, above=0)
    require_number("--requests", options.requests, at_least=1)
    return Limits(
        upload_bytes=max(1, round(options.upload_mb * 1e6)), seconds=options.seconds, requests=options.requests
    )


def _announce(options: argparse.Namespace, token: str | None) -> None:
    host = f"[{options.host}]" if ":" in options.host else options.host
    url = f"http://{host}:{options.port}/"
    say(False, f"serving at {url}" + (" (with the token)" if token else "") + "; Ctrl-C ends it")
    if options.open:
        opener = threading.Timer(1.0, webbrowser.open, [url])
        opener.daemon = True
        opener.start()
