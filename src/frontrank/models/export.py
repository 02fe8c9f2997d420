"""A model as one ONNX file, compared with the model itself."""

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

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
