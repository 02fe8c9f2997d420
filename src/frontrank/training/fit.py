"""How many images fit, counted from what a forward pass keeps for its backward pass; and what was held at most."""

import os
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

_RESERVE = 0.8  # of the free memory is ours to fill


def bytes_per_image(model: nn.Module, images: Tensor) -> int:
    """Memory that a forward pass in training holds for one of these images, in bytes.

    Tensors that are kept several times count once, and weights, which are there anyhow, not at all.
    """
    weights = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []  # else an address could be given out twice

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    was_training = model.training
    model.train()
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(images)
    finally:
        model.train(was_training)
    return sum(kept.values()) // len(images)


def free_bytes(device: torch.device) -> int | None:
    """Free memory of a device, as far as it tells."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def images_that_fit(model: nn.Module, images: Tensor, device: torch.device) -> tuple[int, int | None]:
    """Bytes per image of a training step, and how many images fit at once beside weights, gradient and optimizer.

    An estimate: the working space of single operations is not in it, which is why a fifth of the memory is left free.
    """
    each = bytes_per_image(model, images)
    free = free_bytes(device)
    if free is None:
        return each, None
    state = 3 * sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    return each, max(0, int((_RESERVE * free - state) // max(1, each)))


def peak_megabytes(device: torch.device) -> float:
    """The most memory that this process has held so far: on a GPU what torch had there, else of the machine's own.

    Linux tells it of the program alone; `ru_maxrss`, which others have, begins with that of the program it came from.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ImportError:  # a system that does not tell
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
