"""What a run chooses by itself: by the network, the device, the classes and the time."""

import copy
import os

import pytest
import torch
from PIL import Image
from torch import nn

from frontrank.data.table import ImageTable
from frontrank.models import Embedder
from frontrank.settings import DataConfig, LossConfig, OptimizerConfig, TrainConfig
from frontrank.training import defaults
from frontrank.training.defaults import bytes_per_image, images_that_fit

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("backbone", "device", "bf16", "precision", "channels_last"),
    [
        ("test_resnet", "cpu", True, "float32", True),
        ("test_vit", "cpu", True, "float32", False),
        ("test_resnet", "cuda", True, "bf16", True),
        ("test_vit", "cuda", False, "float32", False),
        ("test_resnet", "mps", False, "float32", False),
    ],
)
def test_precision_and_layout_by_device(backbone, device, bf16, precision, channels_last, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: bf16)
    model = Embedder(backbone, image_size=32)
    config = defaults.fill_device(TrainConfig(), model, torch.device(device))
    assert (config.precision, config.channels_last) == (precision, channels_last)
    own = TrainConfig(precision="fp16", channels_last=False)
    assert defaults.fill_device(own, model, torch.device(device)) == own


def test_small_images_are_not_cropped_and_a_pipe_among_them_is_not_opened(tmp_path):
    Image.new("RGB", (60, 40)).save(tmp_path / "a.png")
    os.mkfifo(tmp_path / "b.png")
    empty = [""] * 2
    table = ImageTable(tmp_path, ["a.png", "b.png"], empty, empty, ["train"] * 2, empty)
    assert defaults.fill_resize(DataConfig(size=32), table, 0).resize == 32


@pytest.mark.parametrize("backbone", ["test_resnet", "test_vit"])
def test_a_model_is_loaded_in_the_layout_of_training(backbone, tmp_path):
    model = Embedder(backbone, image_size=32, dim=4).eval()
    model.save(tmp_path / "m")
    loaded, x = defaults.load_model(tmp_path / "m"), torch.randn(2, 3, 32, 32)
    kernels = [p for p in loaded.parameters() if p.ndim == 4 and min(p.shape[:2]) > 1 and p.shape[2] > 1]
    assert all(p.is_contiguous(memory_format=torch.channels_last) for p in kernels) == (backbone == "test_resnet")
    torch.testing.assert_close(loaded(x), model(x))


def test_rates_by_family_and_batch():
    rates = [
        defaults.fill_rates(OptimizerConfig(), Embedder(name, image_size=32), batch)
        for name, batch in (("test_resnet", 448), ("test_resnet", 112), ("test_vit", 448))
    ]
    assert [each.lr for each in rates] == [3e-4, 1.5e-4, 3e-5]
    assert {each.head_lr for each in rates} == {10.0}
    lora = defaults.fill_rates(OptimizerConfig(), Embedder("test_vit", image_size=32), 448, lora=True)
    assert (lora.lr, lora.head_lr) == (3e-4, 1.0)
    given = OptimizerConfig(lr=0.5, head_lr=2.0)
    assert defaults.fill_rates(given, Embedder("test_vit", image_size=32), 112) == given


def test_batches_are_smaller_where_steps_would_be_few():
    assert defaults.largest_batch(speed=1000, minutes=0) == 448
    assert defaults.largest_batch(speed=20, minutes=0) == 300
    assert defaults.largest_batch(speed=200, minutes=1) == 150
    assert defaults.largest_batch(speed=1, minutes=1) == 112


@pytest.mark.parametrize(
    ("loss", "each", "alpha"),
    [
        (LossConfig("PNP"), 4, 4.0),
        (LossConfig("PNP"), 7, 2.0),
        (LossConfig("PNP-D_q"), 42, 1.0),
        (LossConfig("PNP", alpha=4.0), 42, 4.0),
        (LossConfig("PNP-D_s"), 42, 4.0),
    ],
)
def test_alpha_by_the_positives_of_a_query(loss, each, alpha):
    assert defaults.fill_alpha(TrainConfig(loss=loss), each).loss.alpha == alpha


# How many images fit: against counts by hand

IMAGES = torch.zeros(2, 3, 4, 4)  # 48 numbers each


class Flat(nn.Module):
    """Two linear layers: the inputs of both are kept for their weights."""

    def __init__(self, hidden=10):
        super().__init__()
        self.first, self.second = nn.Linear(48, hidden), nn.Linear(hidden, 7)

    def forward(self, images):
        self.was_training = self.training
        return self.second(torch.relu(self.first(images.flatten(1))))


class Twice(nn.Module):
    """Both powers keep the same product; the product keeps the images."""

    factor = nn.Parameter(torch.ones(()))

    def forward(self, images):
        images = images * self.factor
        return images.flatten(1) ** 2 + images.flatten(1) ** 3


class Fixed(nn.Module):
    """Keeps only a buffer, which is there anyhow."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.ones(48, 5))

    def forward(self, images):
        return images.flatten(1).requires_grad_() @ self.table


def test_bytes_per_image_by_hand():
    assert bytes_per_image(Flat(), IMAGES) == 4 * (48 + 10)  # the ReLU keeps its own output: the same tensor
    assert bytes_per_image(Flat().double(), IMAGES.double()) == 8 * (48 + 10)
    assert bytes_per_image(Twice(), IMAGES) == 4 * (48 + 48)
    assert bytes_per_image(Fixed(), IMAGES) == 0


def test_bytes_per_image_do_not_depend_on_how_many_are_tried():
    model = Embedder("test_resnet", dim=8, image_size=32)
    one, four = (bytes_per_image(model, torch.zeros(count, 3, 32, 32)) for count in (2, 4))
    assert one == pytest.approx(four, rel=0.02)
    assert bytes_per_image(model, torch.zeros(2, 3, 64, 64)) == pytest.approx(4 * one, rel=0.1)


def test_the_model_is_as_before():
    model = Flat().eval()
    bytes_per_image(model, IMAGES)
    assert model.was_training
    assert all(weight.grad is None for weight in model.parameters())
    with pytest.raises(RuntimeError):
        bytes_per_image(model, torch.zeros(2, 3, 5, 5))
    assert not model.training


def test_images_that_fit_by_hand(monkeypatch):
    model = Flat()
    state = 3 * 4 * (48 * 10 + 10 + 10 * 7 + 7)  # weights, gradient and optimizer
    for images in (0, 5):
        free = (state + 4 * 58 * images) / 0.8
        monkeypatch.setattr(defaults, "free_memory", lambda device, free=free: free + 1)
        assert images_that_fit(model, IMAGES, CPU) == (4 * 58, images)
    monkeypatch.setattr(defaults, "free_memory", lambda device: 100)
    assert images_that_fit(nn.Flatten(), IMAGES, CPU) == (0, 80)  # it keeps nothing
    model.first.requires_grad_(False)  # without gradient, nor is the input of the first layer kept
    monkeypatch.setattr(defaults, "free_memory", lambda device: (3 * 4 * 77 + 4 * 10 * 3) / 0.8 + 1)
    assert images_that_fit(model, IMAGES, CPU) == (4 * 10, 3)


def test_a_trial_of_memory_changes_neither_running_means_nor_random_numbers():
    model = nn.Sequential(nn.BatchNorm2d(3), nn.Dropout(0.5))
    before, randomness = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    images_that_fit(model, torch.ones(2, 3, 4, 4), CPU)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), randomness)
