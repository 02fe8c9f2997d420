"""How many images fit, counted from what a forward pass keeps for its backward pass; and what steps took at most."""

import os
import sys
from contextlib import suppress
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


class StepMemory:
    """The most memory that training steps took beyond what was held before the first of them, in megabytes.

    On a GPU that is what torch holds there, else the machine's own memory that this process has. What happens between
    `rest` and `go_on`, an evaluation for instance, does not count. Where the system cannot forget a peak (all but Linux
    and GPUs), it does, and so does what came before the first step, if it held more at a time.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.before = _held_megabytes(device)
        self.most = 0.0
        self.resting = False
        _forget_peak(device)

    def so_far(self) -> float:
        """What it is up to now."""
        if not self.resting:
            self.most = max(self.most, _peak_megabytes(self.device) - self.before)
        return self.most

    def rest(self) -> None:
        """What comes now is no step."""
        self.so_far()
        self.resting = True

    def go_on(self) -> None:
        """Steps come again."""
        self.resting = False
        _forget_peak(self.device)


def _forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # not Linux, or not allowed
        Path("/proc/self/clear_refs").write_text("5")


def _held_megabytes(device: torch.device) -> float:
    """What is held now; where the system does not tell, what was held at most."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device) / 1e6
    return _told_by_linux("VmRSS") or _peak_megabytes(device)


def _peak_megabytes(device: torch.device) -> float:
    """The most that this process has held, or since it was forgotten.

    Linux tells it of the program alone; `ru_maxrss`, which others have, begins with that of the program it came from.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    if told := _told_by_linux("VmHWM"):
        return told
    try:
        import resource
    except ImportError:  # a system that does not tell
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def _told_by_linux(name: str) -> float:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(name))
    return 0.0
