"""PCA whitening of descriptors."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from frontrank.checks import check_integer, check_number, import_extra
from frontrank.errors import InputError
from frontrank.files import as_path, atomic_write, parse_errors
from frontrank.progress import progress as progress_bar
from frontrank.ranking.vectors import Vectors, full_precision

T = TypeVar("T")

ARRAYS = ("mean", "components", "variance")
POWERS = (0.0, 0.25, 0.5)  # to choose among: plain PCA, its square-rooted form, full whitening


@dataclass(frozen=True, eq=False, repr=False)
class Whitening:
    """PCA fitted to training descriptors, with coordinates divided by a power of their variance.

        y = normalise((x / |x| - mean) C^T / variance^power)

    Hervé Jégou, Ondřej Chum, "Negative evidences and co-occurences in image retrieval: the benefit of PCA and
    whitening", ECCV 2012. power 0.25 is the square-rooted form, used by Jerome Revaud, Jon Almazán, Rafael Sampaio
    de Rezende, César Roberto de Souza, "Learning with Average Precision: Training Image Retrieval with a Listwise
    Loss", ICCV 2019 (Sec. 4.2); 0.5 is full whitening, 0 plain PCA. Rows are brought to length 1 first, in fitting
    and in use: all scores here are cosines, so lengths do not matter.

    mean [dimension], components C [component, dimension] and variance [component], largest first, are in float64.

    >>> rows = torch.tensor([[0.8, 0.6, 0.0], [0.8, -0.6, 0.0], [0.96, 0.0, 0.28], [0.96, 0.0, -0.28]])
    >>> whitening = Whitening.fit(rows, power=0.5)
    >>> whitening
    Whitening(3 -> 3 dimensions, power=0.5)
    >>> whitening.apply(rows).round(decimals=2).abs()  # the small third dimension now counts as much as the second
    tensor([[0.8200, 0.0000, 0.5800],
            [0.8200, 0.0000, 0.5800],
            [0.0000, 0.8200, 0.5800],
            [0.0000, 0.8200, 0.5800]])
    """

    mean: Tensor
    components: Tensor
    variance: Tensor
    power: float

    def __repr__(self) -> str:
        components, dimensions = self.components.shape
        return f"Whitening({dimensions} -> {components} dimensions, power={self.power:g})"

    @classmethod
    def fit(
        cls, embeddings: object, power: float = 0.25, dim: int | None = None, *, progress: bool | None = None
    ) -> "Whitening":
        """Fit a whitening to training descriptors, which are read once.

        dim: how many leading components to keep; None keeps all whose variance is more than rounding, which are
             fewer than there are rows
        """
        check_number("power", power, at_least=0, at_most=1)
        if dim is not None:
            check_integer("dim", dim, at_least=1)
        rows = Vectors("embeddings", embeddings)
        mean, covariance = _moments(rows, progress)
        variance, vectors = torch.linalg.eigh(covariance)
        variance, components = variance.flip(0), _fix_signs(vectors.T.flip(0))
        # What rounding can make: a unit row is off by half an eps of its dtype, and so are sums in float64.
        of_sums = max(rows.shape) * torch.finfo(torch.float64).eps * float(variance[0])
        rank = int((variance > (torch.finfo(rows.dtype).eps / 2) ** 2 + of_sums).sum())
        if rank == 0:
            raise InputError("embeddings point in the same direction in every row; fit on rows that differ")
        if dim is not None and dim > rank:
            fault = f"dim is {dim}, but the {len(rows)} rows of embeddings vary in {rank} directions only"
            raise InputError(f"{fault}; ask for at most {rank}, or fit on more rows")
        leading = slice(rank if dim is None else dim)
        return cls(mean, components[leading].contiguous(), variance[leading].contiguous(), float(power))

    def apply(self, embeddings: object, *, progress: bool | None = None) -> Tensor:
        """Return whitened descriptors at length 1 [row, component].

        A row that equals the mean in all components has no direction left: that is an error.
        """
        rows = Vectors("embeddings", embeddings)
        components, dimensions = self.components.shape
        if rows.dim != dimensions:
            fault = f"embeddings has {rows.dim} dimensions, but the whitening was fitted on {dimensions}"
            raise InputError(f"{fault}; use both with the same model")
        mean = self.mean.to(rows.exact_device)
        projection = self.components.to(rows.dtype).to(rows.device).T
        scale = (self.variance**-self.power).to(rows.dtype).to(rows.device)
        result = torch.empty(len(rows), components, dtype=rows.dtype, device=rows.device)
        zeros: list[int] = []
        with full_precision(rows.device), progress_bar("whitening", len(rows), progress) as step:
            for where in rows.chunks():
                centred = rows.read(where).exact_unit() - mean  # in float64: here two close numbers are subtracted
                projected = centred.to(rows.dtype).to(rows.device) @ projection
                is_zero = torch.linalg.vector_norm(projected, dim=1) <= 16 * torch.finfo(rows.dtype).eps
                zeros += (where.start + is_zero.nonzero()[:, 0]).tolist()
                result[where] = torch.nn.functional.normalize(projected * scale)
                step(len(centred))
        if zeros:
            few = ", ".join(map(str, zeros[:5])) + (", ..." if len(zeros) > 5 else "")
            fault = f"embeddings has {len(zeros)} row{'s' * (len(zeros) > 1)} (number {few}) equal to the mean"
            raise InputError(f"{fault} in all components; drop them, or keep more components")
        return result

    def linear(self) -> tuple[Tensor, Tensor]:
        """Return weight [component, dimension] and bias [component] of the map of rows of length 1, in float64.

        What they give has another length than 1: `apply` is this map, normalised.
        """
        weight = self.components * (self.variance**-self.power)[:, None]
        return weight, -weight @ self.mean

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write a safetensors file.

        overwrite: replace a file that exists
        """
        content = tensors_to_bytes(
            "a whitening", {name: getattr(self, name) for name in ARRAYS}, {"power": repr(self.power)}
        )
        atomic_write(as_path("path", path), content, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Whitening":
        """Read a file of `save`."""

        def build(tensors: dict[str, Tensor], facts: dict[str, str]) -> Whitening:
            whitening = cls(**{name: tensors[name] for name in ARRAYS}, power=float(facts["power"]))
            return check_whitening(whitening)

        return tensors_from_bytes("a whitening", *read_saved("a whitening", path), build)


# Files of tensors, of a whitening or an adapter

_VERSION = "1"
_FORMATS = {"a whitening": "frontrank.whitening", "an adapter": "frontrank.adapter"}


def tensors_to_bytes(what: str, tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> bytes:
    """Return the content of a safetensors file with the format in its header; what: "a whitening" or "an adapter"."""
    safetensors = import_extra("safetensors.torch", "train", f"saving {what}")
    header = {"format": _FORMATS[what], "version": _VERSION, **facts}
    content: bytes = safetensors.save({name: tensor.contiguous() for name, tensor in tensors.items()}, header)
    return content


def read_saved(what: str, path: str | os.PathLike[str]) -> tuple[bytes, str]:
    """Return the content of a file, and its name for errors."""
    source = as_path("path", path)
    if not source.is_file():
        raise InputError(f"{source} is not a file; give the path of what was saved as {what}")
    try:
        return source.read_bytes(), str(source)
    except OSError as error:
        raise InputError(f"{source} cannot be read ({error.strerror}); check its permissions") from error


def tensors_from_bytes(
    what: str, content: bytes, source: str, build: Callable[[dict[str, Tensor], dict[str, str]], T]
) -> T:
    """Return what `build` makes of the tensors and facts of a file; whatever it raises means that the file is damaged.

    source: the name of the file, for errors
    """
    safetensors = import_extra("safetensors.torch", "train", f"loading {what}")
    with parse_errors(source, f"is it {what}? Save it again"):
        tensors = safetensors.load(content)
        facts = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__", {})
        if facts.get("format") != _FORMATS[what]:
            raise InputError(f"{source} is not {what}; give the path of what was saved as one")
        if (version := facts.get("version")) != _VERSION:
            raise InputError(f"{source} has version {version} of the format, not {_VERSION}; update frontrank")
        return build(tensors, facts)


def _moments(rows: Vectors, show: bool | None) -> tuple[Tensor, Tensor]:
    """Return mean and covariance (over the number of rows) of unit rows in float64 on the CPU, chunk by chunk.

    Each chunk is centred by its own mean and joined by the rule of Chan, Golub and LeVeque, "Algorithms for computing
    the sample variance", 1983: large numbers are never subtracted from each other.
    """
    mean = torch.zeros(rows.dim, dtype=torch.float64, device=rows.exact_device)
    products = torch.zeros(rows.dim, rows.dim, dtype=torch.float64, device=rows.exact_device)
    with full_precision(rows.device), progress_bar("whitening", len(rows), show) as step:
        for where in rows.chunks():
            chunk = rows.read(where).exact_unit()
            chunk_mean = chunk.mean(0)
            shift = chunk_mean - mean
            chunk -= chunk_mean
            products.addmm_(chunk.T, chunk)
            products.addr_(shift, shift, alpha=where.start * len(chunk) / where.stop)
            mean += shift * (len(chunk) / where.stop)
            step(len(chunk))
    return mean.cpu(), products.cpu() / len(rows)


def _fix_signs(components: Tensor) -> Tensor:
    """Return components with their largest entry positive; of several about as large, the first."""
    size = components.abs()
    leading = (size >= (1 - 1e-6) * size.amax(1, keepdim=True)).int().argmax(1, keepdim=True)
    return components * components.gather(1, leading).sign()


def check_whitening(whitening: Whitening) -> Whitening:
    """Return the whitening, or raise if its tensors do not fit together."""
    mean, components, variance = whitening.mean, whitening.components, whitening.variance
    fits = (
        components.ndim == 2
        and 0 < len(components) <= components.shape[1]
        and mean.shape == components.shape[1:]
        and variance.shape == components.shape[:1]
        and all(part.dtype == torch.float64 and bool(part.isfinite().all()) for part in (mean, components, variance))
        and bool((variance > 0).all())
        and 0 <= whitening.power <= 1
    )
    if not fits:
        raise ValueError("its tensors do not fit together")
    return whitening
