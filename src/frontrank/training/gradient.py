"""The exact gradient of a loss on a batch of any size, with the activations of one chunk in memory at a time.

A ranking loss needs the embeddings of all images of the batch, but only the activations are large. By the chain rule
the gradient is computed in three stages (AP_Q, Sec. 3.3 and Fig. 2; FastAP, Sec. 4.1):

    1. embed:  all chunks, without activations
    2. loss:   of all embeddings, and its slopes: d loss / d embeddings
    3. push:   embed each chunk again, with activations, and push its slopes through the model

Stage 3 repeats stage 1: each chunk draws the same random numbers (dropout, drop path) under the same autocast. So this
is the gradient of the plain pass over the chunks, not an approximation. Afterwards the random numbers go on as after
one pass.

Frozen BatchNorm (in eval mode) changes nothing. Live BatchNorm normalises each chunk by itself, so it is not the
BatchNorm of the whole batch; its running statistics see each chunk once.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parallel import DistributedDataParallel

from frontrank.checks import check_integer, check_number
from frontrank.errors import DivergenceError, FrontrankWarning, InputError, InputTypeError
from frontrank.losses.batch import read_labels_of_rows
from frontrank.losses.rank_loss import is_sum_over_queries
from frontrank.training.checkpoints import random_state, seed_everything, set_random_state
from frontrank.training.distributed import add, from_main, gather, gather_rows, is_main, share_queries, world_size
from frontrank.training.memory import EmbeddingMemory

_TOLERANCE = 0.05  # of stage 3 against stage 1, as a share of the largest number: more than any rounding
_FEW_POSITIVES = 0.5  # share of queries with a positive in a full memory, below which it is of doubtful use


@dataclass(frozen=True)
class Step:
    """The loss of a step, and the embeddings [image, dim] and labels of all processes, detached."""

    loss: Tensor
    embeddings: Tensor
    labels: Tensor


def multistage_backward(
    model: nn.Module,
    loss: Callable[..., Tensor],
    images: Tensor | Sequence[Tensor],
    labels: Tensor,
    *,
    chunk: int | None = None,
    memory: EmbeddingMemory | None = None,
    memory_weight: float = 0.2,
    mix: bool = False,
    autocast: torch.dtype | None = None,
    scaler: torch.amp.GradScaler | None = None,
    weight: float = 1.0,
) -> Tensor:
    """Add the gradient of the loss of a batch to the `.grad` of the parameters, and return the loss.

    images:   [image, ...], or a list of chunks of it, each of its own height and width; on any device
    labels:   [image], whole numbers, or [image, level] with the finest level first
    chunk:    images whose activations are held at once; None, or as many as there are, is the plain pass
    memory:   past embeddings, a gallery of their own; the batch is then added to them
    memory_weight: of the loss of the batch against the memory; that of the batch against itself has the rest. A memory
              without a positive of any query is not used
    mix:      add virtual images, mixed from each two of a class, which need no pass through the model: see `mix_pairs`
    autocast: torch.bfloat16 or torch.float16 for the model; the loss is computed in float32
    scaler:   of float16; the gradients are then scaled, as after scaler.scale(loss).backward()
    weight:   factor of the gradient, such as 1 / n if the gradients of n batches are added up

    Under several processes each passes its share of the batch, `model` is a DistributedDataParallel, and the loss is
    that of all shares together. Parameters of the loss (proxies) get the whole gradient on each process.

    >>> import frontrank as fr
    >>> images, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]]), torch.tensor([0, 0, 1, 1])
    >>> model = torch.nn.Linear(2, 2, bias=False)
    >>> model.weight.data = torch.eye(2)
    >>> multistage_backward(model, fr.SmoothAP(temperature=0.1), images, labels, chunk=1)
    tensor(0.4146)
    >>> model.weight.grad[0, 1]
    tensor(0.1059)
    """
    step = step_gradient(
        model,
        loss,
        images,
        labels,
        chunk=chunk,
        memory=memory,
        memory_weight=memory_weight,
        mix=mix,
        autocast=autocast,
        scaler=scaler,
        weight=weight,
    )
    if memory is not None:
        memory.add(step.embeddings, step.labels)
    return step.loss


def step_gradient(
    model: nn.Module,
    loss: Callable[..., Tensor],
    images: Tensor | Sequence[Tensor],
    labels: Tensor,
    *,
    chunk: int | None = None,
    memory: EmbeddingMemory | None = None,
    memory_weight: float = 0.2,
    mix: bool = False,
    autocast: torch.dtype | None = None,
    scaler: torch.amp.GradScaler | None = None,
    weight: float = 1.0,
) -> Step:
    """Do the same as `multistage_backward` for a training loop: return the whole Step, add nothing to the memory."""
    check_number("weight", weight)
    check_number("memory_weight", memory_weight, at_least=0, at_most=1)
    chunks = _chunks(images, chunk)
    sizes = [len(each) for each in chunks]
    device = _device(model)
    labels = read_labels_of_rows("labels", labels, sum(sizes), "images", device)
    one_pass = _is_one_pass(sizes, device)
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    with torch.enable_grad():
        if one_pass:
            embeddings = _embed(model, chunks[0], autocast)
        else:
            embeddings, states = _embed_all(inner, chunks, autocast)
        step, slopes = _loss_and_slopes(embeddings.detach(), labels, loss, memory, memory_weight, mix, scaler, weight)
        if one_pass:
            _push(embeddings, slopes)
        else:
            _push_all(model, inner, chunks, autocast, states, embeddings.split(sizes), slopes.split(sizes))
    return step


def _embed_all(
    model: nn.Module, chunks: Sequence[Tensor], autocast: torch.dtype | None
) -> tuple[Tensor, list[dict[str, Any]]]:
    """Stage 1: return the embeddings of all chunks, without activations, and the random state before each."""
    embeddings, states = [], []
    with torch.no_grad():
        for images in chunks:
            states.append(random_state())
            embeddings.append(_embed(model, images, autocast))
    return torch.cat(embeddings), states


def _loss_and_slopes(
    embeddings: Tensor,
    labels: Tensor,
    loss: Callable[..., Tensor],
    memory: EmbeddingMemory | None,
    memory_weight: float,
    mix: bool,
    scaler: torch.amp.GradScaler | None,
    weight: float,
) -> tuple[Step, Tensor]:
    """Stage 2: return the loss of the embeddings of all processes, and its slopes in those of this process, for DDP.

    Each process computes its share of the queries, and the slopes are added, if the loss is a sum over queries;
    otherwise each computes all of it.
    """
    own = embeddings.requires_grad_()
    gathered, all_labels = gather(own), gather_rows(labels)
    everyone = gathered.detach().requires_grad_()
    is_shared = world_size() > 1 and is_sum_over_queries(loss)
    share = share_queries() if is_shared else nullcontext()
    with _same_randomness(), torch.autocast(embeddings.device.type, enabled=False), share:
        mixed = mix_pairs(everyone, all_labels) if mix else (everyone, all_labels)
        value = _loss_value(loss, *mixed, memory, memory_weight)
        total = add(value.detach()) if is_shared else value.detach()
        _check_finite("loss", total)
        if value.requires_grad:
            weighted = value * weight
            (weighted if scaler is None else scaler.scale(weighted)).backward()
    slopes = torch.zeros_like(everyone) if everyone.grad is None else everyone.grad
    slopes = add(slopes) if is_shared else slopes
    if scaler is None:  # which looks for infinite gradients itself
        _check_finite("gradient of the loss", slopes)
    return Step(total, everyone.detach(), all_labels), torch.autograd.grad(gathered, own, slopes)[0]


def _loss_value(
    loss: Callable[..., Tensor], queries: Tensor, labels: Tensor, memory: EmbeddingMemory | None, memory_weight: float
) -> Tensor:
    """Return the loss of the queries against themselves, averaged with that against the memory if that has positives.

    The batch comes last, so that `loss.last` tells of it.
    """
    of_memory = None
    if memory is not None and memory_weight and len(memory):
        share = memory.share_with_positive(labels, getattr(loss, "graded", False))
        if len(memory) == memory.size and share < _FEW_POSITIVES and not memory.has_warned:
            memory.has_warned = True
            _warn_few_positives(memory.size, share)
        if share:
            ref_emb, ref_labels = memory.gallery(queries)
            of_memory = _one_number(loss(queries, labels, ref_emb=ref_emb, ref_labels=ref_labels))
    of_batch = _one_number(loss(queries, labels))
    return of_batch if of_memory is None else (1 - memory_weight) * of_batch + memory_weight * of_memory


def mix_pairs(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return a batch with virtual images added, a e_i + (1 - a) e_j for each two of a class, a drawn from 0 to 1.

    Similarity mixup (SiMix): 4 images of a class become 10. Embeddings are brought to length 1 before. Y. Patel,
    G. Tolias, J. Matas: Recall@k Surrogate Loss with Large Batches and Similarity Mixup. CVPR 2022, Sec. 3.3.

    >>> embeddings, labels = mix_pairs(torch.eye(4), torch.tensor([0, 0, 0, 1]))
    >>> labels
    tensor([0, 0, 0, 1, 0, 0, 0])
    """
    classes = labels if labels.dim() == 1 else labels[:, 0]
    order = classes.argsort(stable=True)
    pairs = []
    for distance in range(1, int(classes.unique(return_counts=True)[1].max())):
        first, second = order[:-distance], order[distance:]
        same = classes[first] == classes[second]
        pairs.append(torch.stack([first[same], second[same]]))
    if not pairs:
        return embeddings, labels
    i, j = torch.cat(pairs, 1)
    unit = nn.functional.normalize(embeddings)
    share = torch.rand(len(i), 1, device=unit.device).to(unit.dtype)
    return torch.cat([unit, share * unit[i] + (1 - share) * unit[j]]), torch.cat([labels, labels[i]])


class SharedLabels(nn.Module):
    """A loss for images of several labels each: two are relevant to each other if they share one.

    loss:    of this package, which takes `relevant`
    members: the labels of each class number [number, label], -1 where there are fewer; the labels of a batch are such
             numbers

    >>> import frontrank as fr
    >>> loss = SharedLabels(fr.SmoothAP(), torch.tensor([[0, 1], [1, -1], [2, -1]]))
    >>> loss(torch.eye(3), torch.tensor([0, 1, 2]))  # the first two share label 1
    tensor(0.3333)
    """

    def __init__(self, loss: nn.Module, members: Tensor) -> None:
        super().__init__()
        self.loss, self.members = loss, members

    def forward(
        self, embeddings: Tensor, labels: Tensor, *, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        """Return the loss; labels, ref_labels: class numbers [image]."""
        relevant = self._share(labels, labels if ref_labels is None else ref_labels)
        value: Tensor = self.loss(embeddings, ref_emb=ref_emb, relevant=relevant)
        return value

    def _share(self, labels: Tensor, others: Tensor) -> Tensor:
        rows, columns = self.members[labels], self.members[others]
        names = torch.cat([rows.flatten(), columns.flatten()]).unique()
        names = names[names >= 0]
        has_label = [(of[:, :, None] == names).any(1).float() for of in (rows, columns)]
        return has_label[0] @ has_label[1].T > 0


def _one_number(value: object) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise InputTypeError(f"loss must return one number as a tensor, got {_describe(value)}")
    return value.reshape(())


def _warn_few_positives(size: int, share: float) -> None:
    if is_main():
        warnings.warn(
            f"only {share:.0%} of the queries have a positive in the memory of {size}, and the others learn nothing "
            "from it; make the memory (batches.memory) larger, or train without it",
            FrontrankWarning,
            stacklevel=6,
        )


def _push_all(
    model: nn.Module,
    inner: nn.Module,
    chunks: Sequence[Tensor],
    autocast: torch.dtype | None,
    states: Sequence[dict[str, Any]],
    before: Sequence[Tensor],
    slopes: Sequence[Tensor],
) -> None:
    """Stage 3: embed each chunk again as it was, and push its slopes through the model.

    Only the last chunk goes through DistributedDataParallel, which then averages what all chunks added up: processes
    need not have the same number of chunks.
    """
    after, last = random_state(), len(chunks) - 1
    difference = torch.zeros((), device=before[0].device)
    try:
        with _fixed_statistics(inner):
            for i, images in enumerate(chunks):
                set_random_state(states[i])
                again = _embed(model if i == last else inner, images, autocast)
                difference = torch.maximum(difference, _distance(again.detach(), before[i]))
                _push(again, slopes[i])
    finally:
        set_random_state(after)
    if difference > _TOLERANCE:
        warnings.warn(
            f"model returned other embeddings for the same images ({float(difference):.0%} apart), so the gradient is "
            "wrong; it must draw random numbers from torch, numpy or random only, and keep no state between calls",
            FrontrankWarning,
            stacklevel=3,
        )


def _distance(again: Tensor, before: Tensor) -> Tensor:
    """Return the largest difference of two tensors, as a share of the largest number."""
    return (again - before).abs().max() / before.abs().max().clamp_min(torch.finfo(before.dtype).tiny)


def _push(embeddings: Tensor, slopes: Tensor) -> None:
    if embeddings.requires_grad:  # not if the whole model is frozen and only the loss learns
        embeddings.backward(slopes)


def _embed(model: nn.Module, images: Tensor, autocast: torch.dtype | None) -> Tensor:
    """Return the embeddings of some images, in float32 or wider."""
    device = _device(model)
    # without a cache: stage 3 must not use a weight that stage 1 cast without a gradient
    with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None, cache_enabled=False):
        embeddings = model(images.to(device, non_blocking=True))
    if not isinstance(embeddings, Tensor) or embeddings.dim() != 2 or len(embeddings) != len(images):
        raise InputTypeError(
            f"model must return embeddings of the shape ({len(images)}, dimensions) for {len(images)} images, "
            f"got {_describe(embeddings)}"
        )
    return embeddings if embeddings.dtype == torch.float64 else embeddings.float()


@contextmanager
def _fixed_statistics(model: nn.Module) -> Iterator[None]:
    """Let live norm layers normalise as they do, without updating their running statistics a second time."""
    live = [each for each in model.modules() if isinstance(each, _NormBase) and each.training]
    before = [(each, each.track_running_stats, each.running_mean, each.running_var) for each in live]
    try:
        for each in live:
            each.track_running_stats = False
            if isinstance(each, _InstanceNorm):  # looks at its statistics alone, and rounds them even at momentum 0
                each.running_mean = each.running_var = None
        yield
    finally:
        for each, tracks, mean, variance in before:
            each.track_running_stats, each.running_mean, each.running_var = tracks, mean, variance


@contextmanager
def _same_randomness() -> Iterator[None]:
    """Let all processes draw the same random numbers, so that a loss of random triplets is the same on all of them."""
    if world_size() == 1:
        yield
        return
    seed = from_main(int(torch.randint(1 << 31, ())))
    own = random_state()
    try:
        seed_everything(seed)
        yield
    finally:
        set_random_state(own)


def _is_one_pass(sizes: Sequence[int], device: torch.device) -> bool:
    """Return whether every process has one chunk. They decide together: exchanges of DDP must come in one order."""
    counts = gather_rows(torch.tensor([[sum(sizes), len(sizes)]], device=device))
    if not bool((counts[:, 0] > 0).all()):
        raise InputError("images is empty on at least one process; give each at least one image")
    return bool((counts[:, 1] == 1).all())


def _chunks(images: Tensor | Sequence[Tensor], chunk: int | None) -> Sequence[Tensor]:
    if chunk is not None:
        check_integer("chunk", chunk, at_least=1)
    parts = [images] if isinstance(images, Tensor) else images
    if not isinstance(parts, Sequence) or not all(isinstance(part, Tensor) and part.dim() for part in parts):
        raise InputTypeError(
            f"images must be a tensor (images, ...) or a list of such tensors, got {_describe(images)}"
        )
    if isinstance(images, Tensor):
        return images.split(chunk or max(1, len(images)))
    if any(len(part) == 0 for part in parts):
        raise InputError("images has an empty chunk; leave it out")
    return parts


def _device(model: nn.Module) -> torch.device:
    return next((each.device for each in model.parameters()), torch.device("cpu"))


def _check_finite(what: str, value: Tensor) -> None:
    if not bool(torch.isfinite(value).all()):
        raise DivergenceError(
            f"{what} is not finite, and nothing was added to the gradients of the model; "
            "check the learning rate, mixed precision and the inputs of the model"
        )


def _describe(value: object) -> str:
    return f"the shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
