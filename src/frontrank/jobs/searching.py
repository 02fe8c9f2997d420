"""Pictures as queries of an index: the model it was made with, and what that makes of a picture."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from frontrank.data.stored_arrays import did_you_mean
from frontrank.data.transforms import evaluation_transform
from frontrank.errors import InputError
from frontrank.models import Embedder
from frontrank.retrieval.index import Index
from frontrank.retrieval.index_folder import is_index, names_in
from frontrank.retrieval.index_urls import scheme
from frontrank.training.embedding import model_sizes

if TYPE_CHECKING:
    from PIL.Image import Image

EmbedPicture = Callable[["Image"], np.ndarray]


def open_index(url: str) -> Index:
    """The index at a URL; where there is no such folder, the name of one beside it that is an index is suggested."""
    folder = Path(url)
    if not scheme(url) and not is_index(folder) and not names_in(folder):
        what = "is not there" if not os.path.exists(url) else "is a file" if os.path.isfile(url) else "is empty"
        remedy = did_you_mean(url, _beside(folder)) or "make it first: frontrank index MODEL IMAGES --to URL"
        raise InputError(f"{url} {what}; {remedy}")
    return Index.load(url)


def _beside(folder: Path) -> list[str]:
    """The indexes in the folder around this one, as far as it can be read."""
    with suppress(InputError):
        return [str(folder.parent / name) for name in names_in(folder.parent) if is_index(folder.parent / name)]
    return []


def index_model(index: Index, given: str | None, device: str | torch.device) -> Embedder:
    """The model that an index was made with, from where it was then, or from the folder that is given.

    Another model is refused: what it makes of a picture means nothing to this index.
    """
    settings = index.settings
    path = given or str(settings.notes.get("model", ""))
    if not path:
        raise InputError(f"{index.where} does not say where its model is; give --model")
    if given is None and os.path.isabs(path) and not os.path.isdir(path):  # else it is a name on a hub
        raise InputError(f"the model of {index.where} is no longer at {path}; give --model")
    model = Embedder.load(path, device=device)
    if settings.model is not None and model.fingerprint != settings.model:
        raise InputError(f"{path} is not the model that {index.where} was made with; give that one by --model")
    if model.dim != settings.dim:
        raise InputError(
            f"{path} makes embeddings of {model.dim} dimensions, {index.where} has {settings.dim}; "
            "give the model that it was made with by --model"
        )
    return model


def picture_embedder(model: Embedder) -> EmbedPicture:
    """What the model makes of a picture [dimension], float32, as it does of an indexed one; for several threads."""
    model.eval()
    transform = evaluation_transform(*model_sizes(model))
    device = next(model.parameters()).device

    def embed(picture: "Image") -> np.ndarray:
        with torch.no_grad():
            embedding = model(transform(picture)[None].to(device))
        return np.asarray(embedding[0].float().cpu().numpy())

    return embed
