"""What an index was made with, and how that is kept: arrays and JSON, nothing pickled."""

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from frontrank.errors import FrontrankError, InputError, InputTypeError, require_number
from frontrank.retrieval.arguments import require_count
from frontrank.retrieval.engines import Facts
from frontrank.retrieval.whitening import Whitening

_FORMAT, _VERSION = "frontrank.index.settings", 1
_ARRAYS = ("mean", "components", "variance")

Expansion = tuple[int, float]  # k and alpha of `expand_queries`
Notes = Mapping[str, str | tuple[str, ...]]


@dataclass(frozen=True)
class IndexSettings:
    """What an index was made with.

    dim:       of the embeddings that are added
    model:     the fingerprint of the model that made them, None if it was not said
    whitening: what they and the queries are whitened by
    expansion: k and alpha of the query expansion that a search does unless told otherwise
    notes:     what else is to be remembered, such as where the model is (`Index.note`)
    engine:    the name of the engine
    facts:     how the engine searches, and what it measured of that
    """

    dim: int
    model: str | None = None
    whitening: Whitening | None = None
    expansion: Expansion | None = None
    notes: Notes = field(default_factory=dict)
    engine: str = ""
    facts: Facts = field(default_factory=dict)

    @property
    def stored_dim(self) -> int:
        """The dimensions of the vectors that are kept."""
        return self.dim if self.whitening is None else len(self.whitening.components)


def checked_settings(dim: object, model: object, whitening: object, expansion: object) -> IndexSettings:
    """Settings of a user, each refused by name if it cannot be used."""
    require_count("dim", dim)
    check_given(model, whitening)
    if isinstance(whitening, Whitening) and whitening.components.shape[1] != dim:
        raise InputError(
            f"whitening is of {whitening.components.shape[1]} dimensions, but dim is {dim}; use those of one model"
        )
    assert isinstance(dim, int)
    return IndexSettings(dim, model, whitening, read_expansion(expansion))  # type: ignore[arg-type]


def check_given(model: object, whitening: object) -> None:
    """Refuse what is no fingerprint, or no whitening."""
    if model is not None and (not isinstance(model, str) or not model):
        raise InputTypeError(f"model must be the fingerprint of a model, got {model!r:.80}")
    if whitening is not None and not isinstance(whitening, Whitening):
        raise InputTypeError(
            f"whitening must be a Whitening, got {whitening!r:.80}; see Whitening.fit and Whitening.load"
        )


def read_expansion(expansion: object) -> Expansion | None:
    """k and alpha, of what can be them."""
    if expansion is None:
        return None
    if not isinstance(expansion, tuple | list) or len(expansion) != 2:
        raise InputTypeError(f"expansion must be (k, alpha), like (10, 2.0), got {expansion!r:.80}")
    k, alpha = expansion
    require_count("k of expansion", k)
    require_number("alpha of expansion", alpha, at_least=0)
    return int(k), float(alpha)


def read_notes(notes: object) -> Notes:
    """Notes of a user: texts, or several of them, under names.

    >>> read_notes({"model": "runs/first/model", "roots": ["a", "b"]})
    {'model': 'runs/first/model', 'roots': ('a', 'b')}
    """
    if not isinstance(notes, Mapping):
        raise InputTypeError(f"notes must be texts under names, got {notes!r:.80}")
    found: dict[str, str | tuple[str, ...]] = {}
    for name, value in notes.items():
        several = isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
        if not isinstance(name, str) or not (several or isinstance(value, str)):
            raise InputTypeError(f"note {name!r:.40} must be a text or several texts, got {value!r:.80}")
        found[name] = value if isinstance(value, str) else tuple(value)
    return found


def refuse_other(where: str, stored: IndexSettings, **given: Any) -> None:
    """Refuse settings that are given and are not those that are stored."""
    for name, value in given.items():
        there = getattr(stored, name)
        if value is None or (_same_whitening(value, there) if name == "whitening" else value == there):
            continue
        had = f"with {there}" if there is not None else "without one"
        raise InputError(f"{name} is {value}, but {where} was made {had}; leave {name} out, or make another index")


def pack(settings: IndexSettings) -> bytes:
    """Settings as bytes, which any engine can keep."""
    whitening = settings.whitening
    said = {
        "format": _FORMAT,
        "version": _VERSION,
        "dim": settings.dim,
        "model": settings.model,
        "expansion": settings.expansion,
        "notes": dict(settings.notes),
        "power": None if whitening is None else whitening.power,
    }
    arrays = {} if whitening is None else {name: getattr(whitening, name).numpy() for name in _ARRAYS}
    file = io.BytesIO()
    np.savez(file, settings=np.frombuffer(json.dumps(said).encode(), np.uint8), **arrays)
    return file.getvalue()


def unpack(packed: bytes, where: str) -> IndexSettings:
    """The settings of `pack`; an error names where they are from."""
    try:
        with np.load(io.BytesIO(packed), allow_pickle=False) as file:
            said = json.loads(file["settings"].tobytes())
            if (said["format"], said["version"]) != (_FORMAT, _VERSION):
                raise InputError(
                    f"{where} has {said['format']}, version {said['version']}, this reads {_FORMAT}, "
                    f"version {_VERSION}; update frontrank"
                )
            whitening = None
            if said["power"] is not None:
                arrays = {name: torch.from_numpy(file[name]) for name in _ARRAYS}
                whitening = Whitening(**arrays, power=float(said["power"]))
            settings = checked_settings(said["dim"], said["model"], whitening, said["expansion"])
            return replace(settings, notes=read_notes(said["notes"]))
    except (OSError, ValueError, LookupError, TypeError, zipfile.BadZipFile) as error:
        if isinstance(error, FrontrankError):
            raise
        raise InputError(
            f"{where} has settings that cannot be read ({error}); restore a copy, or index again"
        ) from error


def _same_whitening(first: Whitening, second: Whitening | None) -> bool:
    return (
        second is not None
        and first.power == second.power
        and all(torch.equal(getattr(first, name), getattr(second, name)) for name in _ARRAYS)
    )
