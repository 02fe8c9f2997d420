"""What a run chooses by itself: by the network, the device, the classes and the time."""

import pytest
import torch

from frontrank.models import Embedder
from frontrank.settings import OptimizerConfig, TrainConfig
from frontrank.training import defaults


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


def test_rates_by_family_and_batch():
    rates = [
        defaults.fill_rates(OptimizerConfig(), Embedder(name, image_size=32), batch)
        for name, batch in (("test_resnet", 448), ("test_resnet", 112), ("test_vit", 448))
    ]
    assert [each.lr for each in rates] == [3e-4, 1.5e-4, 3e-5]
    assert {each.head_lr for each in rates} == {10.0}
    given = OptimizerConfig(lr=0.5, head_lr=2.0)
    assert defaults.fill_rates(given, Embedder("test_vit", image_size=32), 112) == given


def test_batches_are_smaller_where_steps_would_be_few():
    assert defaults.largest_batch(speed=1000, minutes=0) == 448
    assert defaults.largest_batch(speed=20, minutes=0) == 300
    assert defaults.largest_batch(speed=200, minutes=1) == 150
    assert defaults.largest_batch(speed=1, minutes=1) == 112
