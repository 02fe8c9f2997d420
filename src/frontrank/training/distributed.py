"""Several processes as one: each embeds its share of a batch, and all of them see the whole.

Start with `torchrun --nproc-per-node 2 ...`. A single process runs the same code with a world size of one; every
function then returns what it is given.
"""

import gc
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.parallel import DistributedDataParallel

from frontrank.errors import FrontrankError, InputError, InputTypeError
from frontrank.ranking.shares import take_share

T = TypeVar("T")

_NUMBERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
_DTYPE_NAMES = ("float64", "float32", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
_DTYPES = [getattr(torch, name) for name in _DTYPE_NAMES]


def build_device(name: str) -> torch.device:
    """Return the device of a name; "auto" takes the best one. Each process of a machine has a GPU of its own."""
    if name in ("auto", "cuda") and torch.cuda.is_available():
        local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= count:
            raise InputError(f"process {local + 1} of this machine has no GPU: there are only {count}; start fewer")
        return torch.device("cuda", local)
    if name == "auto":
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:120]
        raise InputError(f"device {name!r} cannot be used ({reason}); use auto, cpu, or one of this machine") from error
    return device


def start(device: torch.device | str = "cpu", timeout: float = 1800.0) -> torch.device:
    """Join the other processes that torchrun started, and return the device of this one.

    device:  "cpu" (gloo) or "cuda" (nccl; each process of a machine gets a device of its own)
    timeout: seconds a process waits for another before it fails; an evaluation in the other one is part of that wait

    If torchrun started no other process, nothing is joined.
    """
    device = torch.device(device)
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return device
    local = _local_rank()
    if device.type == "cuda":
        device = torch.device("cuda", local)
        torch.cuda.set_device(device)
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device {device.type} trains in one process only; start without torchrun, or use cpu or cuda")
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    return device


def _local_rank() -> int:
    """Return the number of this process on its machine, after a check of all that torchrun sets."""
    if missing := [name for name in (*_NUMBERS, "MASTER_ADDR") if name not in os.environ]:
        raise InputError(f"WORLD_SIZE is set but {', '.join(missing)} is not; start with torchrun, or unset WORLD_SIZE")
    for name in _NUMBERS:
        if not os.environ[name].isdecimal():
            raise InputError(f"{name} must be a whole number, got {os.environ[name]!r}; start with torchrun")
    if int(os.environ["RANK"]) >= int(os.environ["WORLD_SIZE"]):
        raise InputError("RANK is not less than WORLD_SIZE; start with torchrun")
    return int(os.environ["LOCAL_RANK"])


def stop(together: bool = False) -> None:
    """Leave the other processes.

    together: wait for all of them first, so that no exchange is under way; not if one of them may have failed
    """
    if not _is_joined():
        return
    if together:
        barrier()
        gc.collect()  # a wrapped model holds the group, in a cycle: freed at the end of the process it may abort it
    dist.destroy_process_group()


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if _is_joined() else 0


def world_size() -> int:
    """Return the number of processes."""
    return dist.get_world_size() if _is_joined() else 1


def is_main() -> bool:
    """Whether this is the process that writes and prints."""
    return rank() == 0


def barrier() -> None:
    """Wait until every process is here."""
    any_rank(False)


def wrap_model(model: nn.Module) -> nn.Module:
    """Return a model whose gradients are averaged over all processes; its weights become those of rank 0."""
    if world_size() == 1:
        return model
    device = next(model.parameters()).device
    return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)


def share_buffers(model: nn.Module) -> None:
    """Give every process the buffers of rank 0, such as running statistics."""
    if world_size() == 1:
        return
    for buffer in model.buffers():
        sent = buffer.detach().to(_channel())
        dist.broadcast(sent, src=0)
        buffer.data.copy_(sent)


def any_rank(flag: bool) -> bool:
    """Return whether the flag is set on any process; all of them must call this."""
    if world_size() == 1:
        return flag
    highest = torch.tensor([int(flag)], device=_channel())
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    return bool(highest)


@contextmanager
def fail_together() -> Iterator[None]:
    """Make what fails on one process fail on all, so that none is left to wait for it."""
    failure = None
    try:
        yield
    except FrontrankError as error:
        failure = error
    if any_rank(failure is not None):
        raise failure or FrontrankError("another process has failed; its message says why")


def from_main(value: T) -> T:
    """Return the value of rank 0, on every process."""
    if world_size() == 1:
        return value
    values: list[Any] = [value]
    dist.broadcast_object_list(values, src=0, device=_channel())
    return values[0]


def gather_objects(value: T) -> list[T]:
    """Return the values of all processes, in the order of ranks."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def add(x: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes, the same bits on each."""
    if world_size() == 1:
        return x
    total = x.detach().to(_channel(), copy=True).contiguous()
    dist.all_reduce(total)
    return total.to(x.device)


@contextmanager
def share_queries() -> Iterator[None]:
    """Let every process compute its share of a loss, or of an evaluation, of embeddings that all of them hold.

    The losses of all processes, and their gradients, have to be added (`add`); a report is whole on each.
    """
    if world_size() == 1:
        yield
        return
    with take_share(rank(), world_size(), add):
        yield


def gather(embeddings: Tensor) -> Tensor:
    """Return the rows of all processes, in the order of ranks, differentiable.

    embeddings: [row, dim] on each process; the numbers of rows may differ, and be 0

    Every process computes the same loss L of all rows. Backward returns to each process its own rows of dL/drows, times
    the number of processes: DistributedDataParallel *averages* the gradients of the processes, but their sum is the
    gradient of L.

    >>> gather(torch.tensor([[1.0, 2.0]]))  # of one process
    tensor([[1., 2.]])
    """
    if world_size() == 1:
        return embeddings
    return _Gather.apply(embeddings)


def gather_rows(rows: Tensor) -> Tensor:
    """Return the rows of all processes like `gather`, without a gradient; for labels [row] and other numbers."""
    if not isinstance(rows, Tensor) or rows.dim() == 0:
        raise InputTypeError("rows must be a tensor with at least one dimension")
    if world_size() == 1:
        return rows
    return torch.cat(_exchange(rows.detach()))


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embeddings: Tensor) -> Tensor:
        parts = _exchange(embeddings)
        ctx.first = sum(len(part) for part in parts[: rank()])
        ctx.rows = len(embeddings)
        return torch.cat(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad[ctx.first : ctx.first + ctx.rows] * world_size()


def _exchange(rows: Tensor) -> list[Tensor]:
    """Return the rows of every process. They are sent padded to one length: unequal ones would corrupt the exchange."""
    channel = _channel()
    width = math.prod(rows.shape[1:])
    shape = torch.tensor([len(rows), width, _DTYPES.index(rows.dtype)], device=channel)
    shapes = [torch.empty_like(shape) for _ in range(world_size())]
    dist.all_gather(shapes, shape)
    counts, widths, kinds = torch.stack(shapes).T.tolist()
    if len(set(widths)) > 1 or len(set(kinds)) > 1:
        rows_of = f"{widths} numbers each, of {[str(_DTYPES[kind]) for kind in kinds]}"
        raise InputError(f"rows differ between processes: {rows_of}; give each the same model and settings")
    if max(counts) == 0:
        return [rows] * world_size()
    padded = torch.zeros((max(counts), *rows.shape[1:]), dtype=rows.dtype, device=channel)
    padded[: len(rows)] = rows.to(channel)
    # bytes, since not every backend knows every dtype
    sent = padded.contiguous().view(max(counts), -1).view(torch.uint8)
    received = [torch.empty_like(sent) for _ in counts]
    dist.all_gather(received, sent)
    return [
        part.view(rows.dtype).view(padded.shape)[:count].to(rows.device)
        for part, count in zip(received, counts, strict=True)
    ]


def _is_joined() -> bool:
    return dist.is_available() and dist.is_initialized()


def _channel() -> torch.device:
    """Return the device that tensors must be on to be sent."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
