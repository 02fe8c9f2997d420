"""How many images fit: against counts by hand."""

import os
from pathlib import Path

import pytest
import torch
from torch import nn

import frontrank as fr
from frontrank.training import loop as fit
from frontrank.training.loop import bytes_per_image, free_bytes, images_that_fit

CPU = torch.device("cpu")
IMAGES = torch.zeros(2, 3, 4, 4)  # 48 numbers each


class Flat(nn.Module):
    """Two linear layers: what the first gets is kept for its weights, and so is what the second gets."""

    def __init__(self, hidden=10):
        super().__init__()
        self.first, self.second = nn.Linear(48, hidden), nn.Linear(hidden, 7)

    def forward(self, images):
        return self.second(torch.relu(self.first(images.flatten(1))))


def test_two_linear_layers_by_hand():
    """48 inputs and 10 after the ReLU, which keeps its own output: the same tensor. No weights, and no output."""
    assert bytes_per_image(Flat(), IMAGES) == 4 * (48 + 10)
    assert bytes_per_image(Flat().double(), IMAGES.double()) == 8 * (48 + 10)


def test_what_is_kept_twice_counts_once():
    class Twice(nn.Module):
        def forward(self, images):
            images = images * self.factor
            return images.flatten(1) ** 2 + images.flatten(1) ** 3

        factor = nn.Parameter(torch.ones(()))

    # the images (of the product with factor) and the product, which both powers keep
    assert bytes_per_image(Twice(), IMAGES) == 4 * (48 + 48)


def test_buffers_are_there_anyhow():
    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.ones(48, 5))

        def forward(self, images):
            return images.flatten(1).requires_grad_() @ self.table

    assert bytes_per_image(Fixed(), IMAGES) == 0


def test_the_model_is_as_before():
    """In training mode, where dropout keeps a mask; afterwards in the mode it had, without gradients."""

    class Dropping(Flat):
        def forward(self, images):
            self.seen = self.training
            return nn.functional.dropout(super().forward(images), 0.5, self.training)

    for mode in (True, False):
        model = Dropping().train(mode)
        bytes_per_image(model, IMAGES)
        assert model.seen
        assert model.training == mode
        assert all(weight.grad is None for weight in model.parameters())


def test_the_mode_comes_back_after_an_error():
    model = Flat().eval()
    with pytest.raises(RuntimeError):
        bytes_per_image(model, torch.zeros(2, 3, 5, 5))
    assert not model.training


def test_it_does_not_depend_on_how_many_images_are_tried():
    model = fr.Embedder("test_resnet", dim=8, image_size=32)
    one, four = (bytes_per_image(model, torch.zeros(count, 3, 32, 32)) for count in (2, 8))
    assert one == pytest.approx(four, rel=0.02)
    assert bytes_per_image(model, torch.zeros(2, 3, 64, 64)) == pytest.approx(4 * one, rel=0.1)


def test_images_that_fit_by_hand(monkeypatch):
    model = Flat()
    state = 3 * 4 * (48 * 10 + 10 + 10 * 7 + 7)  # weights, gradient and optimizer
    for images in (0, 1, 5, 1000):
        free = (state + 4 * 58 * images) / 0.8
        monkeypatch.setattr(fit, "free_bytes", lambda device, free=free: free + 1)
        assert images_that_fit(model, IMAGES, CPU) == (4 * 58, images)


def test_frozen_weights_need_no_gradient(monkeypatch):
    model = Flat()
    model.first.requires_grad_(False)
    monkeypatch.setattr(fit, "free_bytes", lambda device: (3 * 4 * 77 + 4 * 10 * 3) / 0.8 + 1)
    assert images_that_fit(model, IMAGES, CPU) == (4 * 10, 3)  # nor is the input of the first layer kept


@pytest.mark.parametrize(("smaller", "larger"), [(0, 1000), (1000, 10**6), (10**6, 10**9)])
def test_more_memory_never_fits_fewer(monkeypatch, smaller, larger):
    found = []
    for free in (smaller, larger):
        monkeypatch.setattr(fit, "free_bytes", lambda device, free=free: free)
        found.append(images_that_fit(Flat(), IMAGES, CPU)[1])
    assert 0 <= found[0] <= found[1]


def test_larger_models_fit_fewer(monkeypatch):
    monkeypatch.setattr(fit, "free_bytes", lambda device: 10**6)
    fits = [images_that_fit(Flat(hidden), IMAGES, CPU)[1] for hidden in (1, 10, 100, 1000, 10_000)]
    assert fits == sorted(fits, reverse=True)
    assert (fits[-1], fits[0] > 1000) == (0, True)


def test_a_model_that_keeps_nothing(monkeypatch):
    monkeypatch.setattr(fit, "free_bytes", lambda device: 100)
    assert images_that_fit(nn.Flatten(), IMAGES, CPU) == (0, 80)


# Free memory


def meminfo(monkeypatch, text):
    """What /proc/meminfo says; None where there is none."""
    own = Path.read_text

    def read_text(path, *args, **options):
        if str(path) != "/proc/meminfo":
            return own(path, *args, **options)
        if text is None:
            raise FileNotFoundError(2, "No such file or directory")
        return text

    monkeypatch.setattr(Path, "read_text", read_text)


def test_of_this_machine():
    assert 1e7 < free_bytes(CPU) < 1e15


def test_of_linux(monkeypatch):
    meminfo(monkeypatch, "MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable:    8000 kB\nBuffers: 5 kB\n")
    assert free_bytes(CPU) == 8000 * 1024


@pytest.mark.parametrize("text", [None, "MemTotal:       16384 kB\n"])
def test_of_systems_without_it(monkeypatch, text):
    meminfo(monkeypatch, text)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_AVPHYS_PAGES": 100}.__getitem__)
    assert free_bytes(CPU) == 409_600


@pytest.mark.parametrize("error", [ValueError("unrecognized configuration name"), OSError(22, "Invalid"), None])
def test_of_systems_that_do_not_tell(monkeypatch, error):
    meminfo(monkeypatch, None)

    def sysconf(name):
        raise error

    if error is None:
        monkeypatch.delattr(os, "sysconf")
    else:
        monkeypatch.setattr(os, "sysconf", sysconf)
    assert free_bytes(CPU) is None
    assert images_that_fit(Flat(), IMAGES, CPU) == (4 * 58, None)


def test_of_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7 if device.index == 1 else 5, 99))
    assert free_bytes(torch.device("cuda", 1)) == 7
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 20)
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 6)
    assert free_bytes(torch.device("mps")) == 14
