"""The memory of the machine: how much there is, how much is free, and how much a piece of work takes."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch


def total_memory() -> int | None:
    """Return the bytes of memory of this machine, or None if the system does not say."""
    return _read_pages("SC_PHYS_PAGES")


def free_memory(device: torch.device) -> int | None:
    """Return the free bytes of memory of a device, or None if the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    if available := _read_kilobytes("/proc/meminfo", "MemAvailable"):
        return available * 1024
    return _read_pages("SC_AVPHYS_PAGES")


def _read_pages(name: str) -> int | None:
    """Return a number of pages of memory that the system knows, in bytes."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf(name)
    except (AttributeError, ValueError, OSError):  # Windows has no such call
        return None


class StepMemory:
    """The most memory that training steps took beyond what was in use before the first of them, in megabytes.

    On a GPU this is what torch allocates, elsewhere the memory of this process. What happens inside `pause`, such as
    an evaluation, does not count. Only Linux and GPUs can reset a peak; on other systems earlier work and paused work
    count too, if they took more.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._peak = device, 0.0
        self._before = _current_megabytes(device)
        _reset_peak(device)

    def peak(self) -> float:
        """Return the peak up to now."""
        self._peak = max(self._peak, _peak_megabytes(self._device) - self._before)
        return self._peak

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Do not count what happens inside."""
        self.peak()
        yield
        _reset_peak(self._device)


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # not Linux, or not allowed
        Path("/proc/self/clear_refs").write_text("5")


def _current_megabytes(device: torch.device) -> float:
    """Return the memory in use now; the peak, if the system does not say."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device) / 1e6
    return _read_kilobytes("/proc/self/status", "VmRSS") * 1024 / 1e6 or _peak_megabytes(device)


def _peak_megabytes(device: torch.device) -> float:
    """Return the most memory that was in use since the peak was reset.

    Linux knows it for this program alone; `ru_maxrss` of other systems starts with that of the program before it.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    if peak := _read_kilobytes("/proc/self/status", "VmHWM"):
        return peak * 1024 / 1e6
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def _read_kilobytes(file: str, name: str) -> int:
    """Read a number of a file of /proc; 0 if the system has no such file or number."""
    with suppress(OSError, StopIteration):
        lines = Path(file).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name))
    return 0
