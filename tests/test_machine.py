"""The memory of the machine: what the system says of it, and the most that steps take."""

import contextlib
import mmap
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from frontrank import machine
from frontrank.machine import StepMemory, free_memory, total_memory

CPU = torch.device("cpu")


def meminfo(monkeypatch, text):
    """Give /proc/meminfo this content; None removes it."""
    own = Path.read_text

    def read_text(path, *args, **options):
        if str(path) != "/proc/meminfo":
            return own(path, *args, **options)
        if text is None:
            raise FileNotFoundError(2, "No such file or directory")
        return text

    monkeypatch.setattr(Path, "read_text", read_text)


def test_memory(monkeypatch):
    assert 1e8 < total_memory() < 1e16
    assert 1e7 < free_memory(CPU) < 1e15
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7 if device.index == 1 else 5, 99))
    assert free_memory(torch.device("cuda", 1)) == 7
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 20)
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 6)
    assert free_memory(torch.device("mps")) == 14
    meminfo(monkeypatch, "MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable:    8000 kB\nBuffers: 5 kB\n")
    assert free_memory(CPU) == 8000 * 1024


@pytest.mark.parametrize("text", [None, "MemTotal:       16384 kB\n"])
def test_free_memory_of_systems_without_meminfo(monkeypatch, text):
    meminfo(monkeypatch, text)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_AVPHYS_PAGES": 100}.__getitem__)
    assert free_memory(CPU) == 409_600
    monkeypatch.delattr(os, "sysconf")
    assert free_memory(CPU) is None
    assert total_memory() is None


# The most memory that steps take


def hold(megabytes):
    """Memory with every page written, which goes back when it is closed; the C library may keep that of an array."""
    pages = mmap.mmap(-1, int(megabytes * 1e6), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    np.frombuffer(pages, np.uint8)[:: mmap.PAGESIZE] = 1
    return pages


def test_only_steps_count():
    hold(300).close()
    machine._reset_peak(CPU)
    if machine._peak_megabytes(CPU) > machine._current_megabytes(CPU) + 100:
        pytest.skip("the peak of a process cannot be reset here")
    with contextlib.closing(hold(250)):
        hold(300).close()  # as an evaluation before the first step
        memory = StepMemory(CPU)
        assert memory.peak() < 50
        hold(100).close()
        assert 80 < memory.peak() < 160
        with memory.pause():
            hold(300).close()
        assert 80 < memory.peak() < 160
        with contextlib.closing(hold(200)):
            assert 180 < memory.peak() < 260


def test_steps_of_a_gpu(monkeypatch):
    peak = [50e6]
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20e6)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak[0])
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: peak.insert(0, 23e6))
    assert StepMemory(torch.device("cuda")).peak() == 3.0


def test_peaks_of_systems_without_proc(monkeypatch):
    monkeypatch.setattr(machine, "_read_kilobytes", lambda *_: 0)
    assert 10 < machine._peak_megabytes(CPU) < 1e6
    monkeypatch.setitem(sys.modules, "resource", None)
    assert machine._peak_megabytes(CPU) == 0.0
