"""One small model of every family that an image search is likely to be built on."""

import pytest
import torch

from tests.models.small import images, small

FAMILIES = {  # name: pooling
    "test_resnet": "average",
    "efficientnet_lite0": "gem",
    "mobilenetv3_small_050": "gem",  # its last convolution belongs to the head
    "test_convnext": "gem",
    "test_mambaout": "rmac",
    "efficientvit_b0": "gem",  # cannot be built without its own pooling
    "test_vit3": "max",
    "deit_tiny_distilled_patch16_224": "gem",  # two class tokens
    "xcit_nano_12_p16_224": "gem",  # a class token, but no count of them
    "swin_tiny_patch4_window7_224": "gem",  # channels last
}


@pytest.mark.parametrize("backbone", FAMILIES)
def test_embeds_and_trains(backbone):
    model = small(backbone, pooling=FAMILIES[backbone], layer_norm=True, dropout=0.1)
    embeddings = model(images())
    assert embeddings.shape == (2, 8)
    assert embeddings.dtype == torch.float32
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(2))
    (embeddings * torch.randn(2, 8)).sum().backward()
    trained = model.backbone_parameters() + model.head_parameters()
    assert all(p.grad is not None and p.grad.isfinite().all() for _, p in trained)
    assert sum(float(p.grad.abs().sum()) > 0 for _, p in trained) > len(trained) / 2


@pytest.mark.parametrize("backbone", ["test_vit", "xcit_nano_12_p16_224", "deit_tiny_distilled_patch16_224"])
def test_class_tokens_do_not_count(backbone):
    model = small(backbone, pooling="average", dim=0).eval()
    x = images()
    places = model.backbone.forward_features(x)[:, -16:]
    torch.testing.assert_close(model(x), torch.nn.functional.normalize(places.mean(1)))
