"""Weights in the formats of their publishers: Hugging Face transformers, OpenAI's TorchScript, Google's big_vision."""

import re
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from frontrank.checks import join_words
from frontrank.errors import InputError
from frontrank.files import load_json

PREPROCESSOR = "preprocessor_config.json"
_RESAMPLINGS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # of Pillow
_VISION = ("vit", "deit", "dinov2", "dinov2_with_registers", "siglip", "clip")  # model_type, without _vision_model
_INSIDE = re.compile(
    r"^(?:vit|deit|dinov2|dinov2_with_registers|vision_model|model\.vision_model|clip\.vision_model)\."
)
_NAMES = (  # of transformers, and timm's; what is left to timm has the names of DINOv2's authors
    (r"^embeddings\.(?:patch_embeddings\.projection|patch_embedding)\.", "patch_embed.proj."),
    (r"^embeddings\.(?:position_embeddings|position_embedding\.weight)$", "pos_embed"),
    (r"^embeddings\.(?:cls_token|class_embedding)$", "cls_token"),
    (r"^embeddings\.(distillation_token|register_tokens|mask_token)$", r"\1"),
    (r"^distillation_token$", "dist_token"),
    (r"^encoder\.layers?\.", "blocks."),
    (r"\.attention\.attention\.(q|k|v)(?:uery|ey|alue)\.", r".attn.\1."),
    (r"\.self_attn\.([qkv])_proj\.", r".attn.\1."),
    (r"\.(?:attention\.output\.dense|self_attn\.out_proj)\.", ".attn.proj."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"(blocks\.\d+)\.output\.dense\.", r"\1.mlp.fc2."),
    (r"\.mlp\.weights_in\.", ".mlp.w12."),
    (r"\.mlp\.weights_out\.", ".mlp.w3."),
    (r"\.(?:layernorm_before|layer_norm1)\.", ".norm1."),
    (r"\.(?:layernorm_after|layer_norm2)\.", ".norm2."),
    (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),
    (r"^(?:post_)?layernorm\.", "norm."),
    (r"^pre_layrnorm\.", "norm_pre."),
    (r"^head\.probe$", "attn_pool.latent"),
    (r"^head\.attention\.out_proj\.", "attn_pool.proj."),
    (r"^head\.layernorm\.", "attn_pool.norm."),
    (r"^head\.mlp\.", "attn_pool.mlp."),
)


# Hugging Face transformers


def read_transformers(folder: Path) -> dict[str, Any]:
    """Return the `config.json` of a model of transformers, its part for images; nothing if a folder has another."""
    with suppress(OSError, ValueError):
        config = load_json(folder / "config.json")
        if isinstance(config, dict) and isinstance(config.get("model_type"), str):
            vision = config.get("vision_config")
            return {**vision, "model_type": config["model_type"]} if isinstance(vision, dict) else config
    return {}


def transformers_images(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return how images are prepared for a model of transformers, by timm's names, as far as its files say it."""
    kind = config["model_type"].removesuffix("_vision_model")
    if kind not in _VISION:
        known = join_words(_VISION)
        fault = f"{folder} is a model of transformers of the type {kind}, which is not read here"
        raise InputError(f"{fault}; give {known}, or the same network in timm's format")
    values: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        values = load_json(folder / PREPROCESSOR)
    size = config.get("image_size")
    images = {"mean": values.get("image_mean"), "std": values.get("image_std")}
    images["interpolation"] = _RESAMPLINGS.get(values.get("resample", -1))
    images["input_size"] = [3, size, size] if isinstance(size, int) else None
    return {name: value for name, value in images.items() if value}


def convert_transformers(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of an image model of transformers by timm's names, or by those of DINOv2's authors."""
    if not any("embeddings.patch_embedding" in name for name in tensors):
        return dict(tensors)
    inside = {_INSIDE.sub("", name): x for name, x in tensors.items() if _INSIDE.match(name)} or tensors
    named: dict[str, Tensor] = {}
    for name, tensor in inside.items():
        for pattern, new in _NAMES:
            name = re.sub(pattern, new, name)
        named[name] = tensor
    for name in [name for name in named if ".attn.q." in name]:
        parts = [named.pop(name.replace(".attn.q.", f".attn.{letter}.")) for letter in "qkv"]
        named[name.replace(".attn.q.", ".attn.qkv.")] = torch.cat(parts)
    for kind in ("weight", "bias"):
        if (joint := named.pop(f"head.attention.in_proj_{kind}", None)) is not None:
            third = len(joint) // 3
            named[f"attn_pool.q.{kind}"], named[f"attn_pool.kv.{kind}"] = joint.split([third, 2 * third])
    for name in ("cls_token", "pos_embed"):
        if name in named:
            named[name] = named[name].reshape(1, -1, named[name].shape[-1])
    return {name: x for name, x in named.items() if not name.startswith("pooler.")}


def check_activation(backbone: Any, name: str, config: Mapping[str, Any], folder: Path) -> None:
    """Raise if weights were trained with OpenAI's quick GELU and the network has another, or the other way round."""
    quick = any("QuickGELU" in type(each).__name__ for each in backbone.modules())
    if "hidden_act" in config and (config["hidden_act"] == "quick_gelu") != quick:
        other = "another network of timm, with quickgelu in its name" if not quick else "one without quickgelu"
        raise InputError(f"{folder} was trained with {config['hidden_act']}, and {name} has another; give {other}")


# TorchScript, as of OpenAI's CLIP


def is_torchscript(path: Path) -> bool:
    """Whether a file is an archive of TorchScript."""
    with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())
    return False


def read_torchscript(path: Path) -> dict[str, Tensor]:
    """Read the tensors of an archive of TorchScript; its code is not run, and one with code for loading is refused."""
    with zipfile.ZipFile(path) as archive:
        code = (archive.read(name) for name in archive.namelist() if name.endswith(".py"))
        if any(b"__setstate__" in text for text in code):
            raise InputError(f"{path} has code that runs when it is loaded; save the state_dict() of its model")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tensors: dict[str, Tensor] = torch.jit.load(path, map_location="cpu").state_dict()
    return {name: x.detach().float() if x.is_floating_point() else x for name, x in tensors.items()}


# big_vision


def load_big_vision(backbone: Any, name: str, path: Path) -> int:
    """Load an .npz file of big_vision by timm, and return how many tensors the backbone has."""
    if not hasattr(backbone, "load_pretrained"):
        raise InputError(f"{path} is in the format of big_vision, which timm does not read for {name}; give others")
    try:
        backbone.load_pretrained(str(path))
    except Exception as error:  # another network, or a damaged file, raise many kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        fault = f"{path} does not hold weights of {name} in the format of big_vision"
        raise InputError(f"{fault} ({reason}); give the weights of this backbone") from error
    state = backbone.state_dict()
    for each, x in state.items():
        if not bool(x.isfinite().all()):
            raise InputError(f"{path} has numbers that are not finite, e.g. in {each}; give other weights")
    return len(state)
