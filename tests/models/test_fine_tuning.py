import sys

import pytest
import torch

from frontrank.models import Embedder
from frontrank.models.fine_tuning import block_depths, count_parameters, plain_state, prepare_training
from frontrank.settings import OptimizerConfig
from frontrank.training.optimizers import build_optimizer
from tests.errors import refusal
from tests.models.small import images, small


def trained(model):
    return {name for name, p in model.named_parameters() if p.requires_grad}


def parts(model):
    return {".".join(name.split(".")[1:3]) for name in trained(model) if name.startswith("backbone.")}


@pytest.mark.parametrize(
    ("backbone", "train", "expected"),
    [
        ("test_vit", "head", set()),
        ("test_vit", "last:1", {"blocks.5", "norm.weight", "norm.bias"}),
        ("test_resnet", "last:1", {"layer4.0"}),
        ("test_convnext", "last:1", {"stages.3", "head.norm"}),
    ],
)
def test_what_is_trained(backbone, train, expected):
    model = small(backbone)
    prepare_training(model, train)
    assert parts(model) == expected
    assert {"head.linear.weight", "head.linear.bias"} <= trained(model)
    model(images()).sum().backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == trained(model)


def test_all_is_as_before_and_last_of_all_blocks_leaves_out_the_stem():
    model = small("test_vit")
    before = trained(model)
    prepare_training(model, "all")
    assert trained(model) == before
    early = small(stage=2, pooling="average")
    assert "layer3.0" not in parts(early)
    used = sum(p.numel() for p in early.parameters() if p.requires_grad)
    assert count_parameters(early) == (used, used)
    prepare_training(model, "last:6")
    assert before - trained(model) == {f"backbone.{n}" for n in ("cls_token", "pos_embed")} | {
        name for name in before if "patch_embed" in name
    }


def test_batch_norm_of_frozen_parts_keeps_its_statistics():
    model = small(batch_norm="train")
    prepare_training(model, "last:1")
    model.train()(images())
    moved = {name for name, x in model.named_buffers() if name.endswith("num_batches_tracked") and int(x)}
    assert moved
    assert all(".layer4." in name for name in moved)


@pytest.mark.parametrize(
    ("model", "settings", "name"),
    [
        ({}, {"train": "last:0"}, "train"),
        ({}, {"train": "some"}, "train"),
        ({}, {"train": "last:99"}, "to last:4"),
        ({}, {"train": "head", "lora": 4}, "lora"),
        ({"dim": 0}, {"train": "head"}, "dim"),
        ({"stage": 1}, {"lora": 4}, "lora"),
        ({"backbone": "levit_128s"}, {"train": "last:2"}, "to last:1"),  # timm's names of its blocks are wrong
        ({"backbone": "pit_ti_224"}, {"train": "last:2"}, "to last:1"),  # it has none
        ({"backbone": "pit_ti_224"}, {"checkpointing": True}, "checkpointing"),
    ],
)
def test_settings_that_are_not_valid(model, settings, name):
    refusal(lambda: prepare_training(small(**model), **settings), name)


@pytest.mark.training
@pytest.mark.parametrize("backbone", ["test_vit", "test_resnet"])
def test_lora_is_merged_into_plain_weights(backbone, tmp_path):
    pytest.importorskip("peft")
    model = small(backbone).eval()
    x = images()
    before, total = model(x).detach(), count_parameters(model).total
    prepare_training(model, "all", lora=2)
    torch.testing.assert_close(model(x), before)  # updates begin at 0
    counts = count_parameters(model)
    assert 0 < counts.trained < total / 4
    assert all("lora_" in name for name in trained(model) if name.startswith("backbone."))
    model(x)[:, 0].sum().backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_(std=0.1)
    assert not torch.allclose(model(x), before, atol=1e-3)
    model.save(tmp_path / "m")
    loaded = Embedder.load(tmp_path / "m")
    torch.testing.assert_close(loaded(x), model(x), rtol=0, atol=1e-5)
    assert loaded.fingerprint == model.fingerprint
    assert plain_state(model).keys() == loaded.state_dict().keys()


@pytest.mark.training
def test_lora_of_the_last_block_without_peft(monkeypatch):
    model = small("test_vit")
    prepare_training(model, "last:1", lora=2)
    assert {name.split(".")[2] for name in trained(model) if name.startswith("backbone.")} == {"5"}
    monkeypatch.setitem(sys.modules, "peft", None)
    refusal(lambda: prepare_training(small("test_vit"), lora=2), "lora")


@pytest.mark.parametrize("backbone", ["test_vit", "test_resnet"])
def test_checkpointing_gives_the_same_gradient(backbone):
    torch.manual_seed(0)
    model, x = small(backbone, batch_norm="frozen"), images()
    saved = []
    gradients = []
    for checkpointing in (False, True):
        prepare_training(model, checkpointing=checkpointing)
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=sizes: s.append(t.numel()) or t, lambda t: t):
            result = model(x)[:, 0].sum()
        saved.append(sum(sizes))
        model.zero_grad()
        result.backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.requires_grad])
    torch.testing.assert_close(*gradients)
    assert saved[1] < saved[0]


def test_learning_rates_by_depth():
    model = small("test_vit")
    depths = block_depths(model)
    assert (depths["backbone.blocks.5.attn.qkv.weight"], depths["backbone.norm.weight"]) == (0, 0)
    assert (depths["backbone.blocks.0.attn.qkv.weight"], depths["backbone.pos_embed"]) == (5, 6)
    config = OptimizerConfig(lr=1.0, head_lr=2.0, layer_decay=0.5)
    optimizer = build_optimizer(config, model.backbone_parameters(), model.head_parameters(), depths=depths)
    assert {group["lr"] for group in optimizer.param_groups} == {2.0, *(0.5**n for n in range(7))}
