"""What steps take at most, without what was there before and what happens between them."""

import mmap

import pytest
import torch

from frontrank.training import loop as fit
from frontrank.training.loop import StepMemory

CPU = torch.device("cpu")


def held(megabytes):
    """Memory that is really there, every page being written, and goes back when it is closed.

    Not an array: what that gives back, the C library may keep.
    """
    pages = mmap.mmap(-1, int(megabytes * 1e6), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for start in range(0, len(pages), mmap.PAGESIZE):
        pages[start] = 1
    return pages


@pytest.fixture
def forgets():
    """Whether this system can forget a peak."""
    most = held(300)
    most.close()
    fit._forget_peak(CPU)
    if fit._peak_megabytes(CPU) > fit._held_megabytes(CPU) + 100:
        pytest.skip("the peak of a process cannot be forgotten here")


@pytest.mark.usefixtures("forgets")
def test_only_steps_count():
    before = held(250)
    big = held(300)  # as an evaluation before the first step
    big.close()
    taken = StepMemory(CPU)
    assert taken.so_far() < 50
    step = held(100)
    step.close()
    assert 80 < taken.so_far() < 160
    taken.rest()
    evaluation = held(300)
    evaluation.close()
    assert 80 < taken.so_far() < 160
    taken.go_on()
    assert 80 < taken.so_far() < 160
    step = held(200)
    assert 180 < taken.so_far() < 260
    step.close()
    before.close()


def test_a_system_that_forgets_nothing(monkeypatch):
    peaks = iter([500.0, 500.0, 700.0])
    monkeypatch.setattr(fit, "_told_by_linux", lambda _: 0.0)
    monkeypatch.setattr(fit, "_peak_megabytes", lambda _: next(peaks))
    monkeypatch.setattr(fit, "_forget_peak", lambda _: None)
    taken = StepMemory(CPU)
    assert (taken.so_far(), taken.so_far()) == (0.0, 200.0)
