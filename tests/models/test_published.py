"""Networks of every family give exactly what timm gives, in all that is done with a model."""

import json
from functools import partial

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.functional import normalize

import frontrank as fr
from frontrank.models import Embedder
from frontrank.training import distributed, step_gradient
from tests.errors import refusal
from tests.models.small import images
from tests.training.processes import run
from tests.training.steps import largest_difference

SHORT = {"depth": 2, "embed_dim": 64, "num_heads": 2}
FAMILIES = {  # name: options that make it small, size of images
    "vit_small_patch16_224": (SHORT, 64),
    "vit_small_patch14_reg4_dinov2": (SHORT, 56),
    "vit_small_patch16_dinov3": (SHORT, 64),
    "eva02_tiny_patch14_224": (SHORT, 56),
    "vit_base_patch16_siglip_224": (SHORT, 64),
    "vit_base_patch32_clip_224": (SHORT, 64),
    "vit_base_patch16_reg4_gap_256": (SHORT, 64),
    "test_convnext": ({}, 64),
    "swin_tiny_patch4_window7_224": ({"embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 1, 1]}, 64),
    "test_resnet": ({}, 64),
    "test_efficientnet": ({}, 64),
    "mobilenetv3_small_050": ({}, 64),
}
TOKENS = [name for name in FAMILIES if name.startswith(("vit_small", "eva", "vit_base_patch32_clip"))]


def published(name, **more):
    options, size = FAMILIES[name]
    torch.manual_seed(0)
    return Embedder(name, **{"dim": 0, "image_size": size, **options, **more})


def timms(model):
    """A model of timm as timm alone builds it, with the same weights, and its vectors of length 1."""
    options, size = FAMILIES[model.settings.backbone]
    more = {"img_size": size} if model.backbone.pretrained_cfg.get("fixed_input_size") else {}
    own = timm.create_model(model.settings.backbone, num_classes=0, **options, **more).eval()
    own.load_state_dict(model.backbone.state_dict())
    return lambda x: normalize(own.forward_head(own.forward_features(x), pre_logits=True))


@pytest.mark.parametrize("name", FAMILIES)
def test_is_exactly_timm_and_stays_so_when_saved(name, tmp_path):
    model, x = published(name).eval(), images(2, FAMILIES[name][1])
    assert model.settings.pooling == "native"
    with torch.no_grad():
        expected = timms(model)(x)
        assert torch.equal(model(x), expected) or torch.allclose(model(x), expected, rtol=0, atol=1e-6)
        model.save(tmp_path / "m")
        assert torch.equal(Embedder.load(tmp_path / "m")(x), model(x))
    config = model.backbone.pretrained_cfg
    assert (model.mean, model.std, model.interpolation) == (config["mean"], config["std"], config["interpolation"])


@pytest.mark.parametrize("name", TOKENS)
def test_class_token_and_mean_of_patches(name):
    x, size = images(2, FAMILIES[name][1]), FAMILIES[name][1]
    for pooling in ("cls", "cls+average"):
        model = published(name, pooling=pooling).eval()
        tokens = model.backbone.forward_features(x)
        patches = (size // model.backbone.patch_embed.patch_size[0]) ** 2
        parts = [tokens[:, 0], tokens[:, -patches:].mean(1)]
        expected = parts[0] if pooling == "cls" else torch.cat(parts, 1)
        assert tokens.shape[1] == patches + 1 + (4 if "reg4" in name or "dinov3" in name else 0)
        torch.testing.assert_close(model(x), normalize(expected))


def test_other_sizes_where_the_model_can():
    x = torch.randn(1, 3, 32, 96)
    for name in ("vit_small_patch16_224", "vit_small_patch16_dinov3", "test_resnet"):
        assert published(name).eval()(x).shape[0] == 1
    refusal(lambda: published("swin_tiny_patch4_window7_224")(x), "64 x 64")
    refusal(lambda: published("test_resnet", pooling="flat")(x), "flat")
    refusal(lambda: published("vit_small_patch16_224")(torch.zeros(1, 3, 32, 40)), "32 or 48")


OFTEN = "vit_small_patch14_reg4_dinov2", "vit_base_patch16_siglip_224", "test_efficientnet"  # an export takes seconds


@pytest.mark.training
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in OFTEN else pytest.mark.slow) for n in FAMILIES])
def test_onnx(name, tmp_path):
    published(name, dim=4).export_onnx(tmp_path / "m.onnx")  # compares it with the model
    assert (tmp_path / "m.onnx").stat().st_size > 0


def gradient(name, chunk=None):
    """The gradient of six images, or of the share of them that this process has.

    In float64: embeddings of random weights are so alike that in float32 rounding decides.
    """
    model, labels = published(name, dim=4).double(), torch.tensor([0, 0, 1, 1, 2, 2])
    size, generator = FAMILIES[name][1], torch.Generator().manual_seed(1)
    x = torch.randn(6, 3, size, size, generator=generator, dtype=torch.float64)
    model.eval()
    own = slice(distributed.rank(), None, distributed.world_size())
    step_gradient(distributed.wrap_model(model), fr.SmoothAP(temperature=0.1), x[own], labels[own], chunk=chunk)
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None and p.grad.any()}


@pytest.mark.parametrize("name", FAMILIES)
def test_multistage_gradient(name):
    assert largest_difference(gradient(name, chunk=4), gradient(name)) < 1e-6


def all_gradients(rank, world):
    return {name: gradient(name, chunk=2) for name in FAMILIES}


@pytest.mark.processes
def test_gradient_of_two_processes(tmp_path):
    results = run(all_gradients, 2, tmp_path)[0][0]
    assert not isinstance(results, str), results
    for name, values in results.items():
        assert largest_difference(values, gradient(name)) < 1e-6, name


class TestWeights:
    """Files as publishers have them."""

    name = "vit_small_patch16_224"

    def publish(self, path, wrap=dict, prefix=""):
        source = timm.create_model(self.name, img_size=96, **SHORT)
        nn.init.normal_(source.pos_embed)
        state = {prefix + n: x for n, x in source.state_dict().items()}
        (save_file if path.suffix == ".safetensors" else torch.save)(wrap(state), path)
        same = timm.create_model(self.name, img_size=64, num_classes=0, **SHORT).eval()
        filtered = timm.models.vision_transformer.checkpoint_filter_fn(source.state_dict(), same)
        same.load_state_dict(filtered, strict=False)
        return lambda x: normalize(same.forward_head(same.forward_features(x), pre_logits=True))

    @pytest.mark.parametrize(
        ("file", "wrap", "prefix"),
        [
            ("w.safetensors", dict, ""),
            ("w.pth", lambda s: {"teacher": s, "student": {}, "epoch": 3}, "backbone."),
            ("w.pth", lambda s: {"model": s | {"mask_token": torch.zeros(1)}}, "module."),
            ("w.bin", lambda s: s, "visual.trunk."),
        ],
    )
    def test_of_another_image_size(self, tmp_path, file, wrap, prefix):
        expected = self.publish(tmp_path / file, wrap, prefix)
        model = published(self.name, weights=tmp_path / file).eval()
        torch.testing.assert_close(model(x := images()), expected(x))

    @pytest.mark.parametrize(
        ("name", "kind", "more"),
        [
            ("vit_small_patch16_224", "ViT", {"layer_norm_eps": 1e-6}),
            ("vit_small_patch14_reg4_dinov2", "Dinov2WithRegisters", {"num_register_tokens": 4}),
            ("vit_base_patch16_siglip_224", "SiglipVision", {}),
            ("vit_base_patch32_clip_quickgelu_224", "CLIPVision", {}),
        ],
    )
    def test_of_transformers(self, name, kind, more, tmp_path):
        """A folder of a network of transformers gives the same embeddings as transformers does."""
        transformers = pytest.importorskip("transformers")
        size, patch = (56, 14) if "dinov2" in name else (64, 32 if "patch32" in name else 16)
        numbers = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 256}
        config = getattr(transformers, f"{kind}Config")(image_size=size, patch_size=patch, **numbers, **more)
        source = getattr(transformers, f"{kind}Model")(config).eval()
        source.save_pretrained(tmp_path)
        colours = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], "resample": 1}
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(colours))
        model = Embedder(name, weights=tmp_path, dim=0, **SHORT).eval()
        assert (model.image_size, model.mean, model.interpolation) == (size, (0.1, 0.2, 0.3), "lanczos")
        with torch.no_grad():
            result = source(x := images(2, size))
            pooled = result.last_hidden_state[:, 0] if kind == "ViT" else result.pooler_output
            torch.testing.assert_close(model(x), normalize(pooled), rtol=0, atol=1e-4)
        if kind == "CLIPVision":
            refusal(lambda: Embedder(name.replace("quickgelu_", ""), weights=tmp_path, **SHORT), "quick_gelu")
            (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
            refusal(lambda: Embedder(name, weights=tmp_path, **SHORT), "bert")

    @pytest.mark.filterwarnings("ignore::FutureWarning")  # TorchScript is deprecated
    def test_of_openai(self, tmp_path):
        """An archive of TorchScript, with the names and the layout of CLIP."""
        name, script = "vit_base_patch32_clip_quickgelu_224", nn.Module()
        build = partial(Embedder, name, dim=0, image_size=64, **SHORT)
        torch.manual_seed(0)
        source = build().eval()
        openai = (
            ("patch_embed.proj", "conv1"),
            ("norm_pre", "ln_pre"),
            ("norm1", "ln_1"),
            ("norm2", "ln_2"),
            ("norm.", "ln_post."),
            ("blocks.", "transformer.resblocks."),
            ("qkv.", "in_proj_"),
            ("attn.proj", "attn.out_proj"),
            ("fc1", "c_fc"),
            ("fc2", "c_proj"),
            ("cls_token", "class_embedding"),
            ("pos_embed", "positional_embedding"),
        )
        for key, tensor in source.backbone.state_dict().items():
            for own, other in openai:
                key = key.replace(own, other)
            *path, last = f"visual.{key}".split(".")
            module = script
            for part in path:
                if part not in dict(module.named_children()):
                    module.add_module(part, nn.Module())
                module = module.get_submodule(part)
            module.register_buffer(last, tensor.reshape(tensor.shape[1:] if "embedding" in last else tensor.shape))
        script.visual.class_embedding = script.visual.class_embedding.reshape(-1)
        torch.jit.script(script).save(tmp_path / "ViT-B-32.pt")
        model = build(weights=tmp_path / "ViT-B-32.pt").eval()
        torch.testing.assert_close(model(x := images()), source(x))

        class Writer(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x

            @torch.jit.export
            def __getstate__(self) -> tuple[int, bool]:
                return 3, self.training

            @torch.jit.export
            def __setstate__(self, state: tuple[int, bool]) -> None:
                self.training = state[1]

        torch.jit.script(Writer()).save(tmp_path / "code.pt")
        refusal(lambda: build(weights=tmp_path / "code.pt"), "code.pt")

    def test_of_big_vision(self, tmp_path):
        """Of another image size; timm reads it."""
        name, rng, width = "vit_base_patch16_siglip_224", np.random.default_rng(0), SHORT["embed_dim"]
        shapes = {
            "embedding/kernel": (16, 16, 3, width),
            "embedding/bias": (width,),
            "pos_embedding": (1, 36, width),
            "MAPHead_0/probe": (1, 1, width),
        }

        def block(path, *norms):
            shapes.update({f"{path}{norm}/{part}": (width,) for norm in norms for part in ("scale", "bias")})
            for part in ("query", "key", "value"):
                shapes[f"{path}MultiHeadDotProductAttention_0/{part}/kernel"] = (width, 2, width // 2)
                shapes[f"{path}MultiHeadDotProductAttention_0/{part}/bias"] = (2, width // 2)
            shapes[f"{path}MultiHeadDotProductAttention_0/out/kernel"] = (2, width // 2, width)
            shapes[f"{path}MultiHeadDotProductAttention_0/out/bias"] = (width,)
            for number, (one, two) in enumerate([(width, 4 * width), (4 * width, width)]):
                shapes[f"{path}MlpBlock_0/Dense_{number}/kernel"] = (one, two)
                shapes[f"{path}MlpBlock_0/Dense_{number}/bias"] = (two,)

        for number in range(SHORT["depth"]):
            block(f"Transformer/encoderblock_{number}/", "LayerNorm_0", "LayerNorm_1")
        block("MAPHead_0/", "LayerNorm_0")
        shapes |= {f"Transformer/encoder_norm/{part}": (width,) for part in ("scale", "bias")}
        arrays = {f"params/img/{key}": rng.normal(size=shape).astype(np.float32) for key, shape in shapes.items()}
        np.savez(tmp_path / "w.npz", **arrays)
        same = timm.create_model(name, img_size=64, num_classes=0, **SHORT).eval()
        same.load_pretrained(str(tmp_path / "w.npz"))
        model = published(name, weights=tmp_path / "w.npz").eval()
        torch.testing.assert_close(model(x := images()), normalize(same(x)))
        refusal(lambda: published("test_resnet", weights=tmp_path / "w.npz"), "w.npz")
        arrays["params/img/MAPHead_0/probe"] *= np.nan
        for count in (len(arrays), 5):
            np.savez(tmp_path / "w.npz", **{key: arrays[key] for key in list(arrays)[:count]})
            refusal(lambda: published(name, weights=tmp_path / "w.npz"), "w.npz")

    def test_of_the_hub(self, tmp_path, monkeypatch):
        expected = self.publish(tmp_path / "model.safetensors")
        colours = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}
        own = {"input_size": [3, 64, 64], "interpolation": "bicubic", **colours}
        config = {"architecture": self.name, "model_args": SHORT, "pretrained_cfg": own}
        (tmp_path / "config.json").write_text(json.dumps(config))
        monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, **_: {"me/vit": tmp_path}[name])
        whole = Embedder("hf-hub:me/vit", weights="pretrained", dim=0).eval()
        of_folder = published(self.name, weights=tmp_path).eval()
        of_name = published(self.name, weights="hf_hub:me/vit@main").eval()
        for model in (whole, of_folder, of_name):
            torch.testing.assert_close(model(x := images()), expected(x))
            assert (model.mean, model.interpolation, model.image_size) == ((0.1, 0.2, 0.3), "bicubic", 64)
        assert (whole.settings.backbone, whole.settings.backbone_options) == (self.name, SHORT)
        assert Embedder("timm/test_resnet.r160_in1k").settings.backbone == "test_resnet.r160_in1k"
        refusal(lambda: Embedder("hf-hub:me/other"), "me/other")
        (tmp_path / "model.safetensors").rename(tmp_path / "w.index.json")
        refusal(lambda: published(self.name, weights=tmp_path), "model.safetensors")
        (tmp_path / "config.json").write_text('{"model_type": "vit"}')  # of transformers
        refusal(lambda: Embedder("hf-hub:me/vit"), "me/vit")
        (tmp_path / "config.json").write_text("{}")
        refusal(lambda: published(self.name, weights="hf-hub:me/vit"), "me/vit")

    def test_a_saved_model_brings_its_pooling_and_its_images(self, tmp_path):
        saved = Embedder("test_resnet", pooling="gem", stage=2, dim=4, image_size=48, resize=50)
        saved.save(tmp_path / "m")
        model = Embedder("test_resnet", weights=tmp_path / "m", dim=4)
        assert model.origin.startswith("backbone and head")
        assert (model.settings.pooling, model.settings.stage, model.image_size, model.resize) == ("gem", 2, 48, 50)

    def test_a_model_saved_before_there_were_interpolations_and_stages(self, tmp_path):
        model = Embedder("test_resnet", pooling="average", dim=4, image_size=64, interpolation="bilinear")
        model.save(tmp_path / "m")
        path = tmp_path / "m" / "config.json"
        config = json.loads(path.read_text())
        del config["settings"]["interpolation"]
        path.write_text(json.dumps(config))
        old = Embedder.load(tmp_path / "m")
        assert (old.settings, old.fingerprint) == (model.settings, model.fingerprint)
        del config["settings"]["stage"]
        assert Embedder.from_settings(config["settings"]).settings == model.settings
