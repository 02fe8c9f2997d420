"""A model as one ONNX file, in float32 or int8, compared with the model itself."""

import contextlib
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from frontrank.checks import check_number, import_extra
from frontrank.errors import FrontrankError, InputError
from frontrank.files import PathLike, as_path, atomic_write, write_errors
from frontrank.models.backbone import first_line
from frontrank.models.fine_tuning import plain_state

if TYPE_CHECKING:
    from frontrank.models.embedder import Embedder

_LARGEST = 2**31 - 2**20  # bytes that a single file of this format may have, and some room


def export_onnx(model: "Embedder", path: PathLike, overwrite: bool, tolerance: float) -> None:
    """Write one ONNX file that computes the model's embeddings within the tolerance, for any number of images.

    Its input `images` is float [image, 3, image_size, image_size], normalised; its output is `embeddings`. Its metadata
    has mean, std, image_size, resize, interpolation and the model's fingerprint.
    """
    target = as_path("path", path)
    check_number("tolerance", tolerance, above=0)
    if target.is_dir():
        raise InputError(f"{target} is a folder; give the path of a file, e.g. {target / 'model.onnx'}")
    if target.exists() and not overwrite:
        raise InputError(f"{target} exists already; give another path, or overwrite=True")
    onnx, *_ = (import_extra(name, "export", "exporting") for name in ("onnx", "onnxruntime", "onnxscript"))
    size = sum(x.numel() * x.element_size() for x in model.state_dict().values())
    if size > _LARGEST:
        raise InputError(f"model has {size / 2**30:.1f} GB of weights, an ONNX file holds 2; export a smaller one")
    plain = type(model).from_settings(asdict(model.settings)).cpu().float().eval()
    plain.load_state_dict(plain_state(model))
    program = _onnx_model(plain)
    names = ("mean", "std", "image_size", "resize", "interpolation")
    values = {name: getattr(model, name) for name in names}
    source = {"fingerprint": model.fingerprint, "backbone": model.settings.backbone, "library": "frontrank"}
    onnx.helper.set_model_props(program, {name: json.dumps(value) for name, value in values.items()} | source)
    data = program.SerializeToString()
    for difference in _differences(data, plain):
        if not difference <= tolerance:
            text = f"the exported {model.settings.backbone} differs from the model by {difference:.1e}"
            raise FrontrankError(f"{text}, more than the tolerance {tolerance:g}; nothing was written")
    with write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(target, data)


def _onnx_model(model: "Embedder") -> Any:
    side = model.image_size
    try:
        with _silence():
            program: Any = torch.onnx.export(
                model,
                (torch.zeros(2, 3, side, side),),
                dynamo=True,
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                input_names=["images"],
                output_names=["embeddings"],
                verbose=False,
            )
        return program.model_proto
    except Exception as error:  # torch raises many kinds for what it cannot export
        text = f"torch cannot export {model.settings.backbone} to ONNX ({first_line(error)})"
        raise FrontrankError(f"{text}; export another backbone") from error


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Suppress the exporter's own warnings and lines: the comparison is what counts."""
    level = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def _differences(data: bytes, model: "Embedder", counts: tuple[int, ...] = (1, 3)) -> list[float]:
    """Return the largest difference between the file's embeddings and the model's, for each number of images."""
    import onnxruntime  # type: ignore[import-untyped, unused-ignore]

    differences = []
    for count in counts:
        generator = torch.Generator().manual_seed(count)
        images = torch.randn(count, 3, model.image_size, model.image_size, generator=generator)
        with torch.no_grad():
            expected: Tensor = model(images)
        try:
            session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
            (embeddings,) = session.run(None, {"images": images.numpy()})
        except Exception as error:  # the runtime's errors share no class
            text = f"onnxruntime cannot run the exported {model.settings.backbone} on {count} images"
            raise FrontrankError(f"{text} ({first_line(error)}); nothing was written") from error
        same_shape = embeddings.shape == tuple(expected.shape)
        differences.append(float((torch.from_numpy(embeddings) - expected).abs().max()) if same_shape else float("inf"))
    return differences


class OnnxModel(nn.Module):
    """An exported file as a model: images that are normalised [image, 3, side, side] to embeddings, on the CPU."""

    def __init__(self, path: PathLike) -> None:
        super().__init__()
        file = as_path("path", path)
        runtime = import_extra("onnxruntime", "export", "running an ONNX file")
        try:
            self.session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
            values = self.session.get_modelmeta().custom_metadata_map
            self.mean, self.std = (tuple(json.loads(values[name])) for name in ("mean", "std"))
            self.image_size, self.resize = (json.loads(values[name]) for name in ("image_size", "resize"))
            self.interpolation: str = json.loads(values["interpolation"])
        except Exception as error:  # the runtime's errors share no class
            raise InputError(f"{file} is not a model that frontrank exported ({first_line(error)})") from error

    def forward(self, images: Tensor) -> Tensor:
        """Return embeddings [image, dim]."""
        (embeddings,) = self.session.run(None, {"images": images.cpu().float().numpy()})
        return torch.from_numpy(embeddings)


def quantize_onnx(source: PathLike, path: PathLike, images: Iterable[Tensor], overwrite: bool = False) -> None:
    """Write an exported file with its weights and activations as 8-bit integers.

    Weights use 7 of the 8 bits: with all of them, processors without VNNI cut off sums of two products.

    images: batches as the model takes them, a hundred images or so: the ranges of activations are measured on them
    """
    target = as_path("path", path)
    if target.exists() and not overwrite:
        raise InputError(f"{target} exists already; give another path, or overwrite=True")
    import_extra("onnxruntime", "export", "quantizing")
    from onnxruntime import quantization  # type: ignore[import-untyped, unused-ignore]

    batches = iter(images)

    class Batches(quantization.CalibrationDataReader):  # type: ignore[misc, unused-ignore]
        def get_next(self) -> dict[str, Any] | None:
            return next(({"images": batch.cpu().float().numpy()} for batch in batches), None)

    with tempfile.TemporaryDirectory() as folder, _silence():
        result = Path(folder) / "int8.onnx"
        try:
            quantization.quantize_static(
                str(as_path("source", source)),
                str(result),
                Batches(),
                per_channel=True,
                reduce_range=True,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
            )
        except Exception as error:  # the library raises many kinds
            raise FrontrankError(f"onnxruntime cannot quantize {source} ({first_line(error)})") from error
        atomic_write(target, result.read_bytes())
