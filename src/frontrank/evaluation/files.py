"""JSON files that say what they are: written whole or not at all, and read with a message of one line."""

import json
import os
import secrets
from pathlib import Path
from typing import Any, NoReturn

from frontrank.errors import InputError, InputTypeError

PathLike = str | os.PathLike[str]

_KINDS = {dict: "an object", list: "a list", int: "a whole number", str: "a string"}


def write_json(path: PathLike, kind: str, version: int, content: dict[str, Any], overwrite: bool) -> None:
    """Write content as JSON under a "format" and a "version"; an existing file is replaced only if asked to."""
    target = _as_path(path)
    text = json.dumps({"format": f"frontrank {kind}", "version": version, **content}, allow_nan=False)
    unfinished = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        if os.path.lexists(target) and not overwrite:
            raise InputError(f"{target} exists already; choose another name, or pass overwrite=True to replace it")
        try:
            unfinished.write_text(text + "\n", encoding="utf-8")
            unfinished.replace(target)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        remedy = "" if os.path.isdir(target.parent) else f"; make the folder {target.parent} first"
        raise InputError(f"{target} cannot be written: {error.strerror}{remedy}") from error


def read_json(path: PathLike, kind: str, version: int) -> dict[str, Any]:
    """What `write_json` wrote, for a file of this kind and of at most this version."""
    source = _as_path(path)
    try:
        content = json.loads(source.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source} is not valid JSON, or only a part of a file; save the {kind} again") from error
    if not isinstance(content, dict) or content.get("format") != f"frontrank {kind}":
        raise InputError(f"{source} is not a frontrank {kind}; give a file that a {kind} was saved to")
    found = content.get("version")
    if not isinstance(found, int) or found < 1:
        raise InputError(f"{source} does not say its version; save the {kind} again")
    if found > version:
        raise InputError(
            f"{source} has version {found} of the format, newer than the {version} read here; update frontrank"
        )
    return content


def field_of(content: dict[str, Any], name: str, kind: type) -> Any:
    """A field that must be there and of this kind."""
    if not isinstance(content.get(name), kind):
        raise InputError(f"its {name} must be {_KINDS[kind]}")
    return content[name]


def _as_path(path: PathLike) -> Path:
    try:
        found = Path(path)
    except TypeError as error:
        raise InputTypeError(f"path must be a string or a Path, got {path!r}") from error
    if "\0" in str(found) or not found.name:
        raise InputError(f"path must be the name of a file, got {str(path)!r}")
    return found


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
