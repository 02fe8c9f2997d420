import sys

import pytest
import torch
from torch import nn

from frontrank.errors import InputError, InputTypeError
from frontrank.models import Embedder, Settings
from frontrank.models.backbone import feature_maps
from tests.errors import refusal
from tests.models.small import SIZE, images, small


def test_is_backbone_pooling_head_and_length_one():
    model = small(pooling="gem", layer_norm=True).eval()
    x = images()
    maps = model.backbone.forward_features(x)
    pooled = maps.clamp(min=1e-6).pow(3).mean((2, 3)).pow(1 / 3)
    pooled = nn.functional.layer_norm(pooled, pooled.shape[1:])
    projected = pooled @ model.head.linear.weight.T + model.head.linear.bias
    torch.testing.assert_close(model(x), projected / projected.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("dim", [0, None])
def test_without_a_linear_layer(dim):
    model = small(dim=dim).eval()
    assert (model.dim, model.settings.dim) == (96, 0)
    x = images()
    pooled = model.backbone.forward_features(x).mean((2, 3))
    torch.testing.assert_close(model(x), pooled / pooled.norm(dim=1, keepdim=True))
    assert model.head_parameters() == []


def test_frozen_batch_norm_keeps_its_statistics_and_trains_its_scales():
    model = small(batch_norm="frozen").train()
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms
    before = [norm.running_mean.clone() for norm in norms]
    model(images()).sum().backward()
    assert not any(norm.training for norm in norms)
    assert all(torch.equal(norm.running_mean, old) for norm, old in zip(norms, before, strict=True))
    assert all(norm.weight.grad is not None for norm in norms)
    assert model.training
    assert model.backbone.training
    assert not any(module.training for module in model.eval().modules())


def test_batch_norm_by_itself_is_trained_only_if_weights_are_random(tmp_path):
    first = small()
    assert first.settings.batch_norm == small(weights="none").settings.batch_norm == "train"
    first.save(tmp_path / "m")
    torch.save(first.backbone.state_dict(), tmp_path / "w.pth")
    for weights in (tmp_path / "m", tmp_path / "w.pth"):
        model = small(weights=weights).train()
        assert model.settings.batch_norm == "frozen"
        assert not any(module.training for module in model.modules() if isinstance(module, nn.BatchNorm2d))
        assert small(weights=weights, batch_norm="train").settings.batch_norm == "train"
    assert small(batch_norm="frozen").settings.batch_norm == "frozen"
    assert Embedder.load(tmp_path / "m").settings.batch_norm == "train"


def test_parameters_by_name():
    model = small("test_vit", pooling="gem", layer_norm=True)
    head = [name for name, _ in model.head_parameters()]
    own = {"head.linear.bias", "head.linear.weight", "head.norm.bias", "head.norm.weight", "pooling.power"}
    assert set(head) == own
    backbone = dict(model.backbone_parameters())
    assert all(name.startswith("backbone.") for name in backbone)
    assert len(head) + len(backbone) == len(list(model.parameters()))
    without_decay = model.names_without_decay()
    assert own - {"head.linear.weight"} | {"backbone.pos_embed", "backbone.cls_token"} <= without_decay
    assert {"head.linear.weight", "backbone.patch_embed.proj.weight"} & without_decay == set()


def test_parameters_that_no_embedding_depends_on_are_not_trained(monkeypatch):
    for _ in range(2):
        model = small("test_convnext", pooling="average")
        spare = {name for name, p in model.named_parameters() if not p.requires_grad}
        assert spare == {"backbone.head.norm.weight", "backbone.head.norm.bias"}
        assert spare & {name for name, _ in model.backbone_parameters()} == set()
        monkeypatch.setattr("frontrank.models.backbone._trace_features", lambda *_: 1 / 0)  # as if it read numbers


class TestStages:
    """The map after a stage of the backbone, instead of the last one."""

    @pytest.mark.parametrize("backbone", ["test_resnet", "test_vit"])
    def test_an_embedding_is_the_head_of_the_map_after_that_stage(self, backbone):
        model, x = small(backbone, stage=2, pooling="average").eval(), images()
        maps = model.backbone.forward_intermediates(x, intermediates_only=True)[1]
        expected = torch.nn.functional.normalize(model.head.linear(maps.mean((2, 3))))
        torch.testing.assert_close(model(x), expected)

    def test_what_comes_after_the_stage_is_not_trained(self):
        model = small("test_resnet", stage=2)
        assert model.settings.pooling == "average"  # native needs the last layer
        model(images()).sum().backward()
        trained = {name.split(".")[1] for name, _ in model.backbone_parameters()}
        assert trained == {"conv1", "bn1", "layer1"}
        assert all(p.grad is not None for _, p in model.backbone_parameters())

    def test_flat_keeps_where_things_are(self):
        model = small("test_resnet", pooling="flat", stage=3, dim=0).eval()
        x = images(1)
        left = feature_maps(model.backbone, x, 3)
        assert model.dim == left[0].numel()
        torch.testing.assert_close(model(x), torch.nn.functional.normalize(left.flatten(1)))

    @pytest.mark.parametrize("stage", [-1, 1.5, 99])
    def test_a_stage_that_does_not_exist(self, stage):
        refusal(lambda: small(stage=stage), "stage")


class TestTokens:
    def test_a_grid_that_is_not_square(self):
        model = small("test_vit", dynamic_img_size=True, pooling="rmac").eval()
        x = torch.randn(1, 3, 32, 96)
        tokens = model.backbone.forward_features(x)
        maps = feature_maps(model.backbone, x)
        assert maps.shape == (1, 64, 2, 6)
        assert torch.equal(maps[:, :, 1, 3], tokens[:, 1 + 6 + 3])
        torch.testing.assert_close(model(x).norm(dim=1), torch.ones(1))

    def test_channels_last_in_the_output(self):
        model = small("test_mambaout").eval()
        x = torch.randn(1, 3, 64, 96)
        features = model.backbone.forward_features(x)
        assert torch.equal(feature_maps(model.backbone, x), features.permute(0, 3, 1, 2))
        assert feature_maps(model.backbone, x).shape == (1, 64, 2, 3)


class TestImages:
    def test_uint8_is_normalised(self):
        model = small(mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 0.2)).eval()
        raw = torch.randint(0, 256, (2, 3, SIZE, SIZE), dtype=torch.uint8)
        planes = [(raw[:, c].float() / 255 - m) / s for c, (m, s) in enumerate([(0.1, 0.5), (0.2, 0.25), (0.3, 0.2)])]
        torch.testing.assert_close(model(raw), model(torch.stack(planes, 1)))

    @pytest.mark.parametrize(("backbone", "dim"), [("test_resnet", 8), ("test_vit", 0)])
    def test_none_at_all(self, backbone, dim):
        model = small(backbone, dim=dim, pooling="gem")
        assert model(images(0)).shape == (0, model.dim)
        assert model.double()(images(0)).dtype == torch.float64
        model(images(0)).sum().backward()
        assert all(p.grad is not None and not p.grad.any() for p in model.parameters() if p.requires_grad)

    def test_images_that_are_not_valid(self):
        model, ints = small(), torch.zeros(2, 3, 64, 64, dtype=torch.int64)
        for pictures in ([1, 2], ints):
            refusal(lambda pictures=pictures: model(pictures), "images", error=InputTypeError)
        for shape in ((3, 64, 64), (2, 64, 64, 3), (2, 3, 0, 64)):
            refusal(lambda shape=shape: model(torch.zeros(shape)), "images")
        refusal(lambda: model(torch.zeros(2, 3, 64, 64, device="meta")), "meta")


class TestPrecision:
    @pytest.mark.parametrize("pooling", ["gem", "native"])
    def test_autocast_pools_and_projects_in_float32(self, pooling):
        model, x = small(pooling=pooling).eval(), images()
        with torch.autocast("cpu", torch.bfloat16):
            maps = feature_maps(model.backbone, x)
            embeddings = model(x)
        assert maps.dtype == torch.bfloat16
        assert embeddings.dtype == torch.float32
        pooled = model.pooling(maps) if pooling == "gem" else maps.float().mean((2, 3))
        torch.testing.assert_close(embeddings, model.head(pooled))
        torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(2))

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
    def test_a_converted_model(self, dtype):
        model = small(pooling="gem", layer_norm=True).eval()
        expected = model(x := images())
        embeddings = model.to(dtype)(x)
        assert embeddings.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        torch.testing.assert_close(embeddings.float(), expected, rtol=0, atol=0.1 if dtype == torch.bfloat16 else 1e-5)


class TestSettings:
    def test_defaults_come_from_timm(self):
        model = Embedder("resnet10t", dim=4)
        assert (model.image_size, model.resize, model.interpolation, model.dim) == (176, 201, "bicubic", 4)
        assert model.mean == (0.485, 0.456, 0.406)
        assert model.std == (0.229, 0.224, 0.225)
        assert small("test_vit").mean == (0.5, 0.5, 0.5)
        assert model.origin == "random weights"

    def test_are_recorded(self):
        model = small("test_resnet", pooling="max", resize=70, mean=[0, 0.5, 1], std=[1, 2, 3], drop_path_rate=0.1)
        colours = (0.0, 0.5, 1.0), (1.0, 2.0, 3.0)
        expected = Settings("test_resnet", "max", 8, "train", False, 0.0, 64, 70, *colours, {"drop_path_rate": 0.1})
        assert model.settings == expected
        assert (model.mean, model.std) == colours

    @pytest.mark.parametrize(
        ("settings", "name"),
        [
            ({"backbone": "resnet5O"}, "resnet50"),
            ({"backbone": "resnet10t.c3"}, r"resnet10t\.c3_in1k"),
            ({"pooling": "mean"}, "pooling"),
            ({"batch_norm": "off"}, "batch_norm"),
            ({"dim": 10**13}, "dim"),
            ({"dropout": 1.0}, "dropout"),
            ({"resize": 63}, "resize"),
            ({"std": (1.0, 0.0, 1.0)}, "std"),
            ({"mean": 0.5}, "mean"),
            ({"layer_norm": "yes"}, "layer_norm"),
            ({"poolling": "gem"}, "poolling"),
            ({"checkpoint_path": "x.pth"}, "checkpoint_path"),
            ({"block_args": {1j}}, "options"),
            ({"backbone": "efficientformer_l1"}, "efficientformer_l1"),
            ({"backbone": "test_vit", "image_size": 65}, "64 or 80"),
            ({"backbone": "vit_base_patch16_siglip_224", "depth": 1, "pooling": "cls+average"}, "siglip"),
            ({"backbone": "test_vit", "pooling": "cls", "stage": 1}, "stage"),
            ({"interpolation": "cubic"}, "interpolation"),
            ({"backbone": "pit_ti_224", "image_size": 224, "pooling": "average"}, "pit_ti_224"),
            ({"backbone": "coat_lite_mini", "pooling": "rmac"}, "pooling rmac"),
        ],
        ids=str,
    )
    def test_that_are_not_valid(self, settings, name):
        with pytest.raises((InputError, InputTypeError), match=name) as caught:
            small(**settings)
        assert "\n" not in str(caught.value)


def test_without_timm(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    refusal(small, "timm")
