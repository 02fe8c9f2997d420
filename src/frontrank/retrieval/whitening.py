"""PCA whitening of descriptors."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from frontrank.checks import check_integer, check_number
from frontrank.errors import FrontrankError, InputError, InputTypeError
from frontrank.progress import progress as progress_bar
from frontrank.ranking.vectors import Vectors, full_precision

_FORMAT, _VERSION = "frontrank.whitening", "1"


@dataclass(frozen=True, eq=False, repr=False)
class Whitening:
    """A PCA learned on training descriptors, whose coordinates are divided by a power of their variance.

        y = normalise((x / |x| - mean) C^T / variance^power)

    Hervé Jégou, Ondřej Chum, "Negative evidences and co-occurences in image retrieval: the benefit of PCA and
    whitening", ECCV 2012. power 0.25 is the square-rooted form, used by Jerome Revaud, Jon Almazán, Rafael Sampaio
    de Rezende, César Roberto de Souza, "Learning with Average Precision: Training Image Retrieval with a Listwise
    Loss", ICCV 2019 (Sec. 4.2); 0.5 is full whitening, 0 plain PCA. Rows are brought to length 1 before, in fitting
    and in use: all scores here are cosines, so their lengths mean nothing.

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
        """The whitening of these training descriptors, read once.

        dim: how many leading components to keep; None keeps all whose variance is more than rounding, which are
            fewer than there are rows
        """
        check_number("power", power, at_least=0, at_most=1)
        if dim is not None:
            check_integer("dim", dim, at_least=1)
        rows = Vectors("embeddings", embeddings)
        mean, covariance = _moments(rows, progress)
        variance, vectors = torch.linalg.eigh(covariance)
        variance, components = variance.flip(0), _oriented(vectors.T.flip(0))
        rank = int((variance > _rounding(rows, float(variance[0]))).sum())
        if rank == 0:
            raise InputError("embeddings point in the same direction in every row; fit on rows that differ")
        if dim is not None and dim > rank:
            raise InputError(
                f"dim is {dim}, but the {len(rows)} rows of embeddings vary in {rank} directions only; "
                f"ask for at most {rank}, or fit on more rows"
            )
        kept = slice(rank if dim is None else dim)
        return cls(mean, components[kept].contiguous(), variance[kept].contiguous(), float(power))

    def apply(self, embeddings: object, *, progress: bool | None = None) -> Tensor:
        """Whitened descriptors at length 1 [row, component].

        A row that equals the mean, as far as the kept components go, has no direction left and is refused.
        """
        rows = Vectors("embeddings", embeddings)
        components, dimensions = self.components.shape
        if rows.dim != dimensions:
            raise InputError(
                f"embeddings has {rows.dim} dimensions, but the whitening was fitted on {dimensions}; "
                "use both with the same model"
            )
        mean = self.mean.to(rows.exact_device)
        turned = self.components.to(rows.dtype).to(rows.device).T
        scale = (self.variance**-self.power).to(rows.dtype).to(rows.device)
        result = torch.empty(len(rows), components, dtype=rows.dtype, device=rows.device)
        lost: list[int] = []
        with full_precision(rows.device), progress_bar("whitening", len(rows), progress) as step:
            for where in rows.chunks():
                centred = rows.read(where).exact_unit() - mean  # in float64: here two close numbers are subtracted
                projected = centred.to(rows.dtype).to(rows.device) @ turned
                nothing = torch.linalg.vector_norm(projected, dim=1) <= 16 * torch.finfo(rows.dtype).eps
                lost += (where.start + nothing.nonzero()[:, 0]).tolist()
                result[where] = torch.nn.functional.normalize(projected * scale)
                step(len(centred))
        if lost:
            named = ", ".join(map(str, lost[:5])) + (", ..." if len(lost) > 5 else "")
            raise InputError(
                f"embeddings has {len(lost)} row{'s' * (len(lost) > 1)} (number {named}) that whitening maps to zero, "
                "being no different from the mean in the directions kept; drop them, or keep more components"
            )
        return result

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write a safetensors file; refuses to replace one unless told to."""
        target = _as_path(path)
        try:
            from safetensors.torch import save
        except ImportError:
            raise _no_safetensors() from None
        if target.exists() and not overwrite:
            raise InputError(f"{target} exists already; give another path, or overwrite=True")
        kept = {"mean": self.mean, "components": self.components, "variance": self.variance}
        said = {"format": _FORMAT, "version": _VERSION, "power": repr(self.power)}
        unfinished = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            unfinished.write_bytes(save(kept, said))
            unfinished.replace(target)
        except OSError as error:
            unfinished.unlink(missing_ok=True)
            raise InputError(f"{target} cannot be written: {error.strerror}; give another path") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Whitening":
        """The whitening of a file that `save` wrote."""
        source = _as_path(path)
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError:
            raise _no_safetensors() from None
        if not source.is_file():
            raise InputError(f"{source} is not a file; give the path of a saved whitening")
        try:
            with safe_open(source, framework="pt") as file:
                said = file.metadata() or {}
                _check_format(source, said)
                mean, components, variance = (file.get_tensor(name) for name in ("mean", "components", "variance"))
            power = float(said["power"])
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            if isinstance(error, FrontrankError):
                raise
            raise InputError(f"{source} is damaged, or no whitening ({error}); save it again") from error
        found = cls(mean, components, variance, power)
        if not _is_whole(found):
            raise InputError(f"{source} is damaged: its tensors do not fit together; save it again")
        return found


def _moments(rows: Vectors, show: bool | None) -> tuple[Tensor, Tensor]:
    """Mean and covariance (over the number of rows) of unit rows in float64 on the CPU, chunk by chunk.

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


def _rounding(rows: Vectors, largest: float) -> float:
    """The variance that rounding alone can make: of the embeddings themselves, and of the sums in float64.

    A unit row is off by at most half an eps of its dtype, so no direction gains more variance than the square of that.
    """
    return (torch.finfo(rows.dtype).eps / 2) ** 2 + max(rows.shape) * torch.finfo(torch.float64).eps * largest


def _oriented(components: Tensor) -> Tensor:
    """The components with the sign that makes the largest entry positive, the first of those about as large."""
    size = components.abs()
    leading = (size >= (1 - 1e-6) * size.amax(1, keepdim=True)).int().argmax(1, keepdim=True)
    return components * components.gather(1, leading).sign()


def _as_path(path: object) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise InputTypeError(f"path must be a path, got {path!r}")
    return Path(path)


def _no_safetensors() -> FrontrankError:
    return FrontrankError("saving and loading a whitening needs safetensors; pip install 'frontrank[train]'")


def _check_format(source: Path, said: dict[str, str]) -> None:
    if said.get("format") != _FORMAT:
        raise InputError(f"{source} holds no whitening; give the path of a file that Whitening.save wrote")
    if said.get("version") != _VERSION:
        raise InputError(
            f"{source} has version {said.get('version')} of the format, this is {_VERSION}; update frontrank"
        )


def _is_whole(whitening: Whitening) -> bool:
    mean, components, variance = whitening.mean, whitening.components, whitening.variance
    return (
        components.ndim == 2
        and 0 < len(components) <= components.shape[1]
        and mean.shape == components.shape[1:]
        and variance.shape == components.shape[:1]
        and all(kept.dtype == torch.float64 and bool(kept.isfinite().all()) for kept in (mean, components, variance))
        and bool((variance > 0).all())
        and 0 <= whitening.power <= 1
    )
