"""One small model of every family that an image search is likely to be built on."""

import pytest
import torch

from tests.models.small import images, small

FAMILIES = [
    "resnet18",
    "efficientnet_lite0",
    "mobilenetv3_small_050",  # its last convolution belongs to the head
    "convnext_atto",
    "test_byobnet",
    "efficientvit_b0",  # cannot be built without its own pooling
    "test_vit3",
    "deit_tiny_distilled_patch16_224",  # two class tokens
    "xcit_nano_12_p16_224",  # a class token, but no count of them
    "swin_tiny_patch4_window7_224",  # channels last
    "mvitv2_tiny",
]


@pytest.mark.parametrize("backbone", FAMILIES)
def test_embeds_and_trains(backbone):
    model = small(backbone, pooling="gem")
    embeddings = model(images())
    assert embeddings.shape == (2, 8)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(2))
    (embeddings * torch.randn(2, 8)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for _, p in model.backbone_parameters())


@pytest.mark.parametrize("backbone", ["test_vit", "xcit_nano_12_p16_224", "deit_tiny_distilled_patch16_224"])
def test_class_tokens_do_not_count(backbone):
    model = small(backbone, dim=0).eval()
    x = images()
    tokens = model.backbone.forward_features(x)
    places = {"test_vit": 16, "xcit_nano_12_p16_224": 16, "deit_tiny_distilled_patch16_224": 16}[backbone]
    expected = torch.nn.functional.normalize(tokens[:, -places:].mean(1))
    torch.testing.assert_close(model(x), expected)


def test_a_convolution_may_stand_in_the_middle_of_training_in_channels_last():
    model = small("resnet18").eval()
    x = images()
    expected = model(x)
    model.to(memory_format=torch.channels_last)
    torch.testing.assert_close(model(x.contiguous(memory_format=torch.channels_last)), expected, rtol=0, atol=1e-5)
