"""Which engine a URL means: the one place where a new engine is made known."""

import os
import re
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import unquote, urlsplit

from frontrank.errors import InputError, InputTypeError
from frontrank.retrieval.engines import Engine
from frontrank.retrieval.faiss_engine import FaissEngine

_SERVERS = ("milvus", "postgresql", "postgres")


def open_engine(url: str, progress: bool | None) -> Engine | None:
    """The engine of what is at a URL, None if nothing is there."""
    if scheme(url) == "milvus":
        from frontrank.retrieval.milvus_engine import MilvusEngine

        return MilvusEngine.open(url)
    if scheme(url):
        from frontrank.retrieval.pgvector_engine import PgvectorEngine

        return PgvectorEngine.open(url)
    return FaissEngine.open(Path(url), progress)


def create_engine(url: str | None, dim: int, settings: bytes, progress: bool | None) -> Engine:
    """The engine of a new index, for vectors of these dimensions."""
    if url is None:
        return FaissEngine.in_memory(dim, settings, progress)
    if scheme(url) == "milvus":
        from frontrank.retrieval.milvus_engine import MilvusEngine

        return MilvusEngine.create(url, dim, settings)
    if scheme(url):
        from frontrank.retrieval.pgvector_engine import PgvectorEngine

        return PgvectorEngine.create(url, dim, settings)
    return FaissEngine.create(Path(url), dim, settings, progress)


def hidden_password(url: str) -> str:
    """A URL as an error message may show it.

    >>> hidden_password("postgresql://me:secret@host/db?password=secret&table=a&sslpassword=secret")
    'postgresql://me:...@host/db?password=...&table=a&sslpassword=...'
    """
    shown = re.sub(r"(://[^/:@]*):[^/@]*@", r"\1:...@", url)
    return re.sub(r"([?&]\w*(?:password|token)=)[^&]*", r"\1...", shown)


def scheme(url: str) -> str:
    """What stands before :// in a URL, "" if it is a plain path."""
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", url)
    return found[1].lower() if found else ""


def read_url(url: object) -> str:
    """A URL as text, the path of a file URL; refuses a scheme that nothing here speaks."""
    if not isinstance(url, str | os.PathLike) or not str(url):
        raise InputTypeError(f"url must be a folder or a URL, got {url!r:.80}")
    text = os.fspath(url)
    if not isinstance(text, str):
        raise InputTypeError(f"url must be text, got {text!r:.80}")
    found = scheme(text)
    if found == "file":
        parts = urlsplit(text)
        if parts.netloc not in ("", "localhost"):
            raise InputError(f"url {text} names another machine; write file:///folder")
        return unquote(parts.path)
    if found and found not in _SERVERS:
        near = get_close_matches(found, _SERVERS, 1)
        remedy = f"did you mean {near[0]}://?" if near else "give a folder, milvus://... or postgresql://..."
        raise InputError(f"url {hidden_password(text)} begins with {found}://; {remedy}")
    return text
