"""The embeddings of all images of a table, by one process or several."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from frontrank.data.batches import shard_bounds
from frontrank.data.image_table import ImageTable, shown
from frontrank.data.loading import evaluation_loader
from frontrank.data.transforms import Transform, evaluation_transform
from frontrank.errors import FrontrankError, InputError, InputTypeError
from frontrank.progress import progress
from frontrank.training import distributed

PRECISIONS = {"float32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def embed_table(
    model: nn.Module,
    table: ImageTable,
    *,
    batch_size: int = 64,
    workers: int = 2,
    device: str | torch.device | None = None,
    precision: str = "float32",
    transform: Transform | None = None,
    show: bool | None = None,
) -> np.ndarray:
    """The embedding of every image, in the order of the table [row, dimension], float32.

    Under several processes each embeds its share of the rows, and all get the whole.

    device: where to embed, and where the model then is; None leaves it where it is
    precision: of the forward pass, by autocast: float32, bf16 or fp16
    transform: None takes resize, image_size, mean and std of the model, as in evaluation
    show: the progress bar; None draws it on a terminal
    """
    alone = len(table) < distributed.world_size()  # too few for every process to have one: each embeds them all
    start, stop = (0, len(table)) if alone else shard_bounds(len(table), distributed.rank(), distributed.world_size())
    embed = partial(embedded_batches, transform=transform, device=device, precision=precision, show=show)
    with on_all_ranks():
        share = np.concatenate(
            list(embed(model, table.rows(np.arange(start, stop)), batch_size=batch_size, workers=workers))
        )
    return share if alone else distributed.gather_rows(torch.from_numpy(share)).cpu().numpy()


def embedded_batches(
    model: nn.Module,
    table: ImageTable,
    *,
    batch_size: int = 64,
    workers: int = 2,
    device: str | torch.device | None = None,
    precision: str = "float32",
    transform: Transform | None = None,
    show: bool | None = None,
) -> Iterator[np.ndarray]:
    """The embeddings of one batch of rows after another [row, dimension], float32, by this process alone."""
    if precision not in PRECISIONS:
        raise InputError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    transform = evaluation_transform(*model_sizes(model)) if transform is None else transform
    if device is not None:
        model.to(device)
    target, done = _device(model), 0
    with _evaluating(model), progress("embedding", len(table), show) as step:
        for images, _ in evaluation_loader(table, transform, batch_size, workers):
            embeddings = _embedded(model, images.to(target, non_blocking=True), PRECISIONS[precision])
            _check(embeddings, table, done, len(images))
            done += len(images)
            step(len(images))
            yield embeddings.numpy()


@contextmanager
def on_all_ranks() -> Iterator[None]:
    """What fails on one process fails on all: none is left to wait for it."""
    failed = None
    try:
        yield
    except FrontrankError as error:
        failed = error
    if distributed.any_rank(failed is not None):
        raise failed or FrontrankError("another process could not embed its images; its message says why")


def _embedded(model: nn.Module, images: Tensor, precision: torch.dtype | None) -> Tensor:
    # Not inference_mode: what a model keeps for later calls, such as position tables, could then not be trained with.
    with torch.no_grad(), torch.autocast(images.device.type, precision, enabled=precision is not None):
        return model(images).float().cpu()


def _check(embeddings: Tensor, table: ImageTable, start: int, rows: int) -> None:
    if embeddings.ndim != 2 or len(embeddings) != rows:
        shape = tuple(embeddings.shape)
        raise InputError(f"model gave the shape {shape} for {rows} images; it must give (images, dimensions)")
    bad = (~embeddings.isfinite()).any(1).nonzero()[:, 0].tolist()
    if bad:
        raise InputError(
            f"the embedding of {shown(table.root / str(table.paths[start + bad[0]]))} is not finite; "
            "embed with precision float32, or check the model's weights"
        )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode within, and in the mode it had afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _device(model: nn.Module) -> torch.device:
    held = next(model.parameters(), None)
    return torch.device("cpu") if held is None else held.device


def model_sizes(model: Any) -> tuple[int, int, Any, Any]:
    """How large a model wants its images before and after the crop, and the mean and std it wants them to have."""
    try:
        return model.resize, model.image_size, model.mean, model.std
    except AttributeError as error:
        raise InputTypeError(
            f"model is a {type(model).__name__} that does not say its resize, image_size, mean and std; "
            "give an Embedder, or a transform"
        ) from error
