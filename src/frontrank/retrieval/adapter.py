"""A ranking head for embeddings that exist already: fitted to labels in seconds, without the images."""

import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from inspect import signature
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from frontrank.checks import check_integer, check_number, format_count, import_extra, suggestion
from frontrank.errors import FrontrankError, FrontrankWarning, InputError, InputTypeError
from frontrank.files import as_path, atomic_write
from frontrank.losses import registry
from frontrank.progress import progress as progress_bar
from frontrank.ranking import LabelRelevance, Ranks, average_precision, exact_ranks, recall_at
from frontrank.ranking.vectors import Vectors, check_labels, full_precision
from frontrank.retrieval.whitening import POWERS, Whitening, read_saved, tensors_from_bytes, tensors_to_bytes

RATES, TEMPERATURES = (3e-3, 1e-3, 1e-2, 3e-2), (0.1, 0.05, 0.2)  # the first of each: where nothing is held out
_POWER = 0.25  # where nothing is held out
_DIM = 256  # at most, if no dimension is asked for
_OPTIONS: dict[str, dict[str, Any]] = {"PNP": {"alpha": 1.0}}  # better than the default where only a head is trained
_WARMUP = 10  # steps
_SEARCH = 3  # settings are compared with a third of the steps
_IN_MEMORY = 1 << 28  # numbers; larger files are read batch by batch
_PCA_ROWS, _HELD_OUT_ROWS = 1 << 16, 20_000  # at most
_FLOOR = 1e-4  # of the largest variance: what varies less is not made larger by a power
_LEAST = 2  # classes of two rows or more on each side
_LINEAR, _HIDDEN = ("weight", "bias"), ("up", "up_bias", "down")
_INNER = ("up", "up_bias")  # the others have a row for each dimension of the result


@dataclass(frozen=True)
class Trial:
    """A way to adapt, and how well it ranked the held-out classes: metrics of the largest dimension, 0 to 1.

    start:       "input", the embeddings as they are, or "pca"
    power:       of the variances, by which the coordinates of the PCA are divided
    steps:       of training; 0 is the start itself
    score:       mean average precision; over all of `dims`, if there are several
    """

    start: str
    power: float = 0.0
    lr: float = 0.0
    temperature: float | None = None
    steps: int = 0
    score: float = math.nan
    recall: float = math.nan


class _Fit:
    """`fit` of the class makes an adapter first; that of an adapter fits it: Adapter.fit(x, y), Adapter().fit(x, y).

    Arguments of the class's `fit` after the labels are those of the class.
    """

    def __get__(self, adapter: "Adapter | None", owner: "type[Adapter]") -> "Callable[..., Adapter]":
        if adapter is not None:
            return adapter._fit

        def fit(embeddings: object, labels: object, **settings: Any) -> "Adapter":
            """Return an adapter that is fitted to embeddings with labels.

            embeddings: [row, dimension], of any float type
            labels:     of each row, numbers or text; [row, level] for losses of several levels, finest first
            settings:   arguments of `Adapter`: dim, dims, hidden, loss, options, power, lr, temperature, steps,
                        batch_size, held_out, refit, seed, progress
            """
            return owner(**settings)._fit(embeddings, labels)

        return fit


class Adapter:
    """Linear map, or small network, that makes embeddings rank better; fitted to embeddings with labels.

        y = normalise(W x + b + V gelu(U x + c)),   x = embedding / |embedding|

    The term with V is left out if there are no hidden units. W and b begin as PCA, whitened by a power, and V as 0, so
    before training y is a whitening of the input. Settings that are not given are chosen by mAP on held-out classes,
    among a few. PCA without training is among the candidates, and so are the embeddings as they are if no dimension is
    asked for, so that the result is never worse there.

    dim:         dimensions of the result; None: at most 256
    dims:        nested dimensions, such as (256, 128, 64): the loss is summed over these prefixes, and each of them can
                 be used alone. Aditya Kusupati et al., "Matryoshka Representation Learning", NeurIPS 2022, Eq. 1
    hidden:      units of the network; 0 is a linear map
    loss:        a name of `frontrank.losses.registry`, such as "SmoothAP" or "PNP-D_s", or a loss
    options:     settings of a loss that is given by name
    power:       of the whitening at the start, 0 to 1; None: chosen
    lr:          learning rate of Adam, falling as a cosine; None: chosen
    temperature: of the loss, if it has one; None: chosen
    steps:       of training
    batch_size:  rows in a step, whole classes as far as they fit; as many as there are rows: all of them
    held_out:    share of the classes that choose the settings; 0: none, and settings have fixed values
    refit:       after the choice, fit to all classes
    seed:        of the held-out classes and the batches
    progress:    draw a progress bar; None: on a terminal

    After `fit`, `trials` has what was tried, `chosen` the best of them, `held_out_rows` [row] the rows that chose, and
    `trial` the adapter that was fitted without these, by which an unseen class can be measured.

    It works in scikit-learn's pipelines: fit, transform, get_params, set_params.

    >>> centres = torch.eye(8).repeat_interleave(4, 0)
    >>> noise = 3 * torch.randn(32, 8, generator=torch.Generator().manual_seed(0)) * torch.tensor([0.0] * 7 + [1.0])
    >>> labels = torch.arange(8).repeat_interleave(4)
    >>> adapter = Adapter.fit(centres + noise, labels, steps=20, held_out=0.5)
    >>> adapter
    Adapter(8 -> 8 dimensions, fitted)
    >>> adapter.apply(centres + noise).shape
    torch.Size([32, 8])
    """

    fit = _Fit()

    def __init__(
        self,
        dim: int | None = None,
        *,
        dims: Sequence[int] | None = None,
        hidden: int = 0,
        loss: str | nn.Module = "PNP",
        options: Mapping[str, Any] | None = None,
        power: float | None = None,
        lr: float | None = None,
        temperature: float | None = None,
        steps: int = 300,
        batch_size: int = 448,
        held_out: float = 0.2,
        refit: bool = True,
        seed: int = 0,
        progress: bool | None = None,
    ) -> None:
        self.dim, self.dims, self.hidden = dim, dims, hidden
        self.loss, self.options = loss, options
        self.power, self.lr, self.temperature = power, lr, temperature
        self.steps, self.batch_size = steps, batch_size
        self.held_out, self.refit, self.seed, self.progress = held_out, refit, seed, progress
        self.tensors: dict[str, Tensor] = {}
        self.trials: tuple[Trial, ...] = ()
        self.chosen: Trial | None = None
        self.held_out_rows: np.ndarray | None = None
        self.trial: Adapter | None = None

    def __repr__(self) -> str:
        if not self.tensors:
            given = [f"{name}={value!r}" for name, value in self.get_params().items() if value != _DEFAULTS[name]]
            return f"Adapter({', '.join(given)})"
        return f"Adapter({self.in_dim} -> {self.out_dim} dimensions, fitted)"

    # scikit-learn

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments that it was made with."""
        return {name: getattr(self, name) for name in _DEFAULTS}

    def set_params(self, **settings: Any) -> Self:
        """Change arguments; a fitted adapter stays as it is until `fit` is called again."""
        for name, value in settings.items():
            if name not in _DEFAULTS:
                raise InputError(f"an adapter has no setting {name!r}{suggestion(name, _DEFAULTS)}")
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        """Say what it is; only scikit-learn calls this."""
        sklearn = import_module("sklearn.utils")
        target = sklearn.TargetTags(required=True)
        return sklearn.Tags(estimator_type=None, target_tags=target, transformer_tags=sklearn.TransformerTags())

    def __sklearn_is_fitted__(self) -> bool:
        """Whether `transform` can be called."""
        return bool(self.tensors)

    def transform(self, embeddings: object) -> np.ndarray:
        """Return adapted embeddings at length 1 [row, dimension], as an array."""
        return np.asarray(self.apply(embeddings).cpu().numpy())

    # Use

    @property
    def in_dim(self) -> int:
        """Dimensions of the embeddings that it was fitted to."""
        return int(self._weights["weight"].shape[1])

    @property
    def out_dim(self) -> int:
        """Dimensions of the result."""
        return int(self._weights["weight"].shape[0])

    @property
    def _weights(self) -> dict[str, Tensor]:
        if not self.tensors:
            raise InputError("this adapter is not fitted; call fit with embeddings and labels, or load one")
        return self.tensors

    def truncate(self, dim: int) -> "Adapter":
        """Return the adapter that gives the first so many dimensions only, such as one of `dims`."""
        if check_integer("dim", dim, at_least=1) > self.out_dim:
            raise InputError(f"dim is {dim}, but the adapter gives {self.out_dim} dimensions; ask for at most as many")
        adapter = Adapter().set_params(**self.get_params() | {"dim": dim, "dims": None})
        adapter.tensors = {name: x if name in _INNER else x[:dim].contiguous() for name, x in self.tensors.items()}
        adapter.chosen = self.chosen
        return adapter

    def apply(self, embeddings: object, *, progress: bool | None = None) -> Tensor:
        """Return adapted embeddings at length 1 [row, dimension]."""
        rows = Vectors("embeddings", embeddings)
        self.check_dim("embeddings", rows.dim)
        tensors = {name: tensor.to(rows.device, rows.dtype) for name, tensor in self.tensors.items()}
        result = torch.empty(len(rows), self.out_dim, dtype=rows.dtype, device=rows.device)
        with torch.no_grad(), full_precision(rows.device), progress_bar("adapting", len(rows), progress) as step:
            for where in rows.chunks():
                result[where] = nn.functional.normalize(_forward(tensors, rows.unit(where)))
                step(where.stop - where.start)
        return result

    def check_dim(self, name: str, dim: int) -> None:
        """Raise if embeddings have other dimensions than those that it was fitted to."""
        if dim != self.in_dim:
            fault = f"{name} has {dim} dimensions, but the adapter was fitted to {self.in_dim}"
            raise InputError(f"{fault}; use both with the same model")

    # Files

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write a safetensors file.

        overwrite: replace a file that exists
        """
        atomic_write(as_path("path", path), self.to_bytes(), overwrite=overwrite)

    def to_bytes(self) -> bytes:
        """Return the content of its file."""
        settings = self.get_params()
        settings |= {"loss": self.loss if isinstance(self.loss, str) else type(self.loss).__name__, "progress": None}
        settings["dims"] = None if self.dims is None else list(self.dims)
        facts = {"settings": json.dumps(settings, default=str)}
        if self.chosen is not None:
            facts["chosen"] = json.dumps(asdict(self.chosen))
        return tensors_to_bytes("an adapter", self._weights, facts)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file of `save`."""
        return cls.from_bytes(*read_saved("an adapter", path))

    @classmethod
    def from_bytes(cls, content: bytes, source: str) -> Self:
        """Return the adapter of `to_bytes`; an error names where it is from."""

        adapter = cls()

        def read(tensors: dict[str, Tensor], facts: dict[str, str]) -> None:
            adapter.set_params(**json.loads(facts["settings"]))
            adapter._check_settings()
            if "chosen" in facts:
                adapter.chosen = Trial(**json.loads(facts["chosen"]))
            if not _is_consistent(tensors):
                raise ValueError("its tensors do not fit together")
            adapter.tensors = tensors

        tensors_from_bytes("an adapter", content, source, read)
        return adapter

    def is_same(self, other: object) -> bool:
        """Whether another adapter gives the same results."""
        if not isinstance(other, Adapter) or self.tensors.keys() != other.tensors.keys():
            return False
        return all(torch.equal(tensor, other.tensors[name]) for name, tensor in self.tensors.items())

    def export_onnx(self, path: str | os.PathLike[str], overwrite: bool = False, tolerance: float = 1e-4) -> None:
        """Write an ONNX file: input `embeddings`, float [row, in_dim], any number of rows; output `adapted`.

        tolerance: the largest difference from `apply`; nothing is written if it is larger
        """
        target = as_path("path", path)
        onnx, runtime = (import_extra(name, "export", "exporting") for name in ("onnx", "onnxruntime"))
        content = _onnx_program(onnx, self._weights).SerializeToString()
        rows = torch.randn(5, self.in_dim, generator=torch.Generator().manual_seed(0))
        session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
        (adapted,) = session.run(None, {"embeddings": rows.numpy()})
        difference = float((torch.from_numpy(adapted) - self.apply(rows)).abs().max())
        if not difference <= tolerance:
            fault = f"the exported adapter differs from the adapter by {difference:.1e}, more than {tolerance:g}"
            raise FrontrankError(f"{fault}; nothing was written")
        atomic_write(target, content, overwrite=overwrite)

    # Fitting

    def _fit(self, embeddings: object, labels: object) -> Self:
        """Fit to embeddings with labels, and return the adapter.

        embeddings: [row, dimension], of any float type
        labels:     of each row, numbers or text; [row, level] for losses of several levels, finest first
        """
        self._check_settings()
        rows = Vectors("embeddings", embeddings)
        codes = _encode_labels(labels, len(rows))
        task = _Task(self, rows, codes)
        self.held_out_rows, self.trial, self.trials = None, None, ()
        self.tensors = {}
        everything = torch.arange(len(rows))
        with progress_bar("fitting", task.work(), self.progress) as step:
            if self.held_out == 0:
                chosen = Trial("pca", task.powers[0], task.rates[0], task.temperatures[0], self.steps)
                tensors = task.train(everything, chosen, step)
            else:
                held_out = task.draw_held_out()
                tensors, chosen, self.trials = task.search(held_out, step)
                self._warn_if_worse(task.precision(held_out, tensors), task.precision(held_out))
                self.held_out_rows = held_out.numpy()
                self.trial = Adapter().set_params(**self.get_params())
                self.trial.tensors, self.trial.chosen = tensors, chosen
                if self.refit:
                    tensors = task.train(everything, chosen, step)
        self.tensors, self.chosen = {name: tensor.detach().cpu() for name, tensor in tensors.items()}, chosen
        return self

    def _warn_if_worse(self, after: float, before: float) -> None:
        if after < before:
            fault = "the adapter ranks held-out classes worse than the embeddings as they are"
            fault += f": mAP {after:.3f}, not {before:.3f}"
            remedy = "it is the best of what was tried with these dimensions; give more of them, or more classes"
            warnings.warn(f"{fault}; {remedy}", FrontrankWarning, stacklevel=4)

    def _check_settings(self) -> None:
        if self.dim is not None:
            check_integer("dim", self.dim, at_least=1)
        if self.dims is not None:
            if isinstance(self.dims, str) or not isinstance(self.dims, Sequence) or not self.dims:
                raise InputTypeError(f"dims must be dimensions such as (256, 128, 64), got {self.dims!r}")
            largest = max(check_integer("dims", dim, at_least=1) for dim in self.dims)
            if self.dim not in (None, largest):
                raise InputError(f"dim is {self.dim}, but the largest of dims is {largest}; leave out dim")
        check_integer("hidden", self.hidden, at_least=0)
        check_integer("steps", self.steps, at_least=0)
        check_integer("batch_size", self.batch_size, at_least=2)
        check_integer("seed", self.seed, at_least=0)
        check_number("held_out", self.held_out, at_least=0, at_most=0.9)
        if self.power is not None:
            check_number("power", self.power, at_least=0, at_most=1)
        for name in ("lr", "temperature"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), above=0)
        if not isinstance(self.loss, str | nn.Module):
            raise InputTypeError(f"loss must be a name or a loss, got {self.loss!r:.80}")
        if self.options and not isinstance(self.loss, str):
            raise InputError("options are for a loss given by name; build the loss with them")


_DEFAULTS = {name: argument.default for name, argument in signature(Adapter).parameters.items()}


class _Task:
    """Rows with labels, and what is tried on them."""

    def __init__(self, settings: Adapter, rows: Vectors, codes: Tensor) -> None:
        self.settings, self.rows, self.codes = settings, rows, codes
        self.classes = codes if codes.ndim == 1 else codes[:, 0]
        self._pcas: dict[int, Whitening] = {}
        self._unit = rows.unit() if rows.shape[0] * rows.shape[1] <= _IN_MEMORY else None
        self.dims = sorted(settings.dims or [settings.dim or min(_DIM, rows.dim)], reverse=True)
        if self.dims[0] > rows.dim:
            name = "dims" if settings.dims else "dim"
            raise InputError(f"{name} is {self.dims[0]}, but embeddings has {rows.dim}; ask for at most {rows.dim}")
        self._may_be_input = self.dims[0] == rows.dim or (settings.dims is None and settings.dim is None)
        self.options, has_temperature = dict(settings.options or {}), False
        if isinstance(settings.loss, str):
            self.loss_name, self.options = registry.read_preset(settings.loss, self.options)
            has_temperature = "temperature" in registry.arguments(self.loss_name, self.options)
        if settings.temperature is not None and not has_temperature:
            raise InputError("temperature is not a setting of this loss; leave it out")
        fixed = self.options.get("temperature", settings.temperature)
        self.temperatures: tuple[float | None, ...] = (None,)
        if has_temperature:
            self.temperatures = TEMPERATURES if fixed is None else (fixed,)
        self.rates = RATES if settings.lr is None else (settings.lr,)
        searched = POWERS if settings.held_out else (_POWER,)
        self.powers = searched if settings.power is None else (settings.power,)
        self._loss(self.temperatures[0])  # a wrong setting is refused before the work

    def work(self) -> int:
        """Return how many steps there are in all."""
        steps, searched = self.settings.steps, bool(self.settings.held_out)
        several = len(self.rates) + len(self.temperatures) - 1
        short = several * -(-steps // _SEARCH) if searched and several > 1 else 0
        return short + steps * (searched + (self.settings.refit or not searched))

    def _read(self, rows: Tensor) -> Tensor:
        """Return rows at length 1, in float32."""
        return (self.rows.unit(rows) if self._unit is None else self._unit[rows]).float()

    def _loss(self, temperature: float | None) -> nn.Module:
        if isinstance(self.settings.loss, nn.Module):
            return self.settings.loss
        name = self.loss_name
        if name.startswith(registry.PEERS):
            raise InputError(f"loss {name!r} must be given as a module: frontrank.training.PeerLoss(...)")
        options = {**_OPTIONS.get(name, {}), **self.options}
        return registry.build(name, options if temperature is None else {**options, "temperature": temperature})

    # Held-out classes

    def draw_held_out(self) -> Tensor:
        """Return which rows are of the held-out classes [row]; each has two rows or more."""
        sizes = torch.bincount(self.classes)
        several = (sizes > 1).nonzero()[:, 0]
        if len(several) < 2 * _LEAST:
            few = format_count(len(several), "class", "classes")
            fault = f"labels has {few} of two rows or more, too few to hold some out"
            raise InputError(f"{fault}; give at least {2 * _LEAST}, or set held_out to 0")
        order = several[torch.randperm(len(several), generator=self._generator())]
        number = min(max(round(self.settings.held_out * len(several)), _LEAST), len(several) - _LEAST)
        fits = max(int((sizes[order].cumsum(0) <= _HELD_OUT_ROWS).sum()), _LEAST)
        return torch.isin(self.classes, order[: min(number, fits)])

    def search(self, held_out: Tensor, step: Callable[[float], None]) -> tuple[dict[str, Tensor], Trial, Any]:
        """Return the best map that was fitted to the other rows, how it was made, and all that was tried."""
        training, held = (~held_out).nonzero()[:, 0], held_out.nonzero()[:, 0]
        x, relevance = self._read(held), LabelRelevance(self.classes[held], self.classes[held], own=True)
        results: list[tuple[Trial, dict[str, Tensor]]] = []

        def measure(trial: Trial, tensors: dict[str, Tensor]) -> None:
            with torch.no_grad():
                z = _forward(tensors, x)
            values = [_metrics(z[:, :dim], relevance) for dim in self._prefixes(z.shape[1])]
            score = sum(precision for precision, _ in values) / len(values)
            results.append((replace(trial, score=score, recall=values[0][1]), tensors))

        if self._may_be_input:
            measure(Trial("input"), self.start(training, Trial("input")))
        for power in self.powers:
            measure(trial := Trial("pca", power), self.start(training, trial))
        power = max((trial for trial, _ in results if trial.start == "pca"), key=lambda trial: trial.score).power
        steps, lr, temperature = self.settings.steps, self.rates[0], self.temperatures[0]

        def compare(settings: list[tuple[float, float | None]]) -> tuple[float, float | None]:
            for setting in settings:
                measure(trial := Trial("pca", power, *setting, -(-steps // _SEARCH)), self.train(training, trial, step))
            trials = [trial for trial, _ in results if trial.steps]
            best = max(trials, key=lambda trial: trial.score)
            return best.lr, best.temperature

        if steps and len(self.rates) + len(self.temperatures) > 2:
            lr, temperature = compare([(rate, temperature) for rate in self.rates])
            lr, temperature = compare([(lr, other) for other in self.temperatures[1:]])
        if steps:
            measure(trial := Trial("pca", power, lr, temperature, steps), self.train(training, trial, step))
        whole = [result for result in results if result[0].steps in (0, steps)]
        chosen, tensors = max(whole, key=lambda result: result[0].score)
        return tensors, chosen, tuple(trial for trial, _ in results)

    def precision(self, rows: Tensor, tensors: Mapping[str, Tensor] | None = None) -> float:
        """Return the mAP of some rows [row] as they are, or in all dimensions that a map gives."""
        held = rows.nonzero()[:, 0]
        x, labels = self._read(held), self.classes[held]
        return _metrics(x if tensors is None else _forward(tensors, x), LabelRelevance(labels, labels, own=True))[0]

    def _prefixes(self, dim: int) -> list[int]:
        return self.dims if dim == self.dims[0] else [dim]

    # One way to adapt

    def start(self, rows: Tensor, trial: Trial) -> dict[str, Tensor]:
        """Return the map before training."""
        if trial.start == "input":
            dim = self.rows.dim
            return {"weight": torch.eye(dim), "bias": torch.zeros(dim)}
        pca = self._pca(rows)
        pca = replace(pca, power=trial.power, variance=pca.variance.clamp_min(_FLOOR * float(pca.variance[0])))
        rank, dim = len(pca.components), self.dims[0]
        if rank < dim and (self.settings.dim or self.settings.dims):
            directions = format_count(rank, "direction")
            fault = f"dim is {dim}, but the {len(rows):,} rows that are fitted to vary in {directions} only"
            raise InputError(f"{fault}; ask for at most {rank}, or give more rows")
        weight, bias = (part[:dim] for part in pca.linear())
        # As long as the input on average: the trace of the covariance of what it gives.
        length = (weight * pca.components[:dim]).sum(1).square().mul(pca.variance[:dim]).sum().sqrt()
        tensors = {"weight": (weight / length).float(), "bias": (bias / length).float()}
        if hidden := self.settings.hidden:
            mix = torch.randn(hidden, len(weight), generator=self._generator()) * len(weight) ** -0.5
            tensors |= {"up": mix @ tensors["weight"], "up_bias": mix @ tensors["bias"]}
            tensors["down"] = torch.zeros(len(weight), hidden)
        return tensors

    def _pca(self, rows: Tensor) -> Whitening:
        """Return the PCA of some rows, which is the same for all trials on them."""
        key = len(rows)  # the training rows, or all of them
        if key not in self._pcas:
            some = rows[torch.randperm(len(rows), generator=self._generator())[:_PCA_ROWS].sort()[0]]
            self._pcas[key] = Whitening.fit(self._read(some), 0.0, progress=False)
        return self._pcas[key]

    def train(self, rows: Tensor, trial: Trial, step: Callable[[float], None]) -> dict[str, Tensor]:
        """Return the map after training on some rows."""
        tensors = {name: tensor.requires_grad_() for name, tensor in self.start(rows, trial).items()}
        loss, steps = self._loss(trial.temperature), trial.steps
        optimizer = torch.optim.Adam([*tensors.values(), *loss.parameters()], lr=trial.lr or 1.0)
        for number, batch in zip(range(steps), self._batches(rows), strict=False):
            for group in optimizer.param_groups:
                fall = (1 + math.cos(math.pi * number / steps)) / 2
                group["lr"] = trial.lr * fall * min(1.0, (number + 1) / _WARMUP)
            z, labels = _forward(tensors, self._read(batch)), self.codes[batch]
            optimizer.zero_grad()
            sum(loss(z[:, :dim], labels) for dim in self._prefixes(z.shape[1])).backward()
            optimizer.step()
            step(1)
        return {name: tensor.detach() for name, tensor in tensors.items()}

    def _batches(self, rows: Tensor) -> Iterator[Tensor]:
        """Yield rows of a step: classes in turn, drawn anew each round, with at most a share of the rows of each."""
        size, generator = self.settings.batch_size, self._generator()
        while size >= len(rows):
            yield rows
        order = self.classes[rows].argsort(stable=True)
        members = rows[order].split(torch.unique(self.classes[rows], return_counts=True)[1].tolist())
        share, deck = max(8, -(-size // len(members))), list[int]()
        while True:
            batch, count = [], 0
            while count < size:
                if not deck:
                    deck = torch.randperm(len(members), generator=generator).tolist()
                some = members[deck.pop()]
                if len(some) > share:
                    some = some[torch.randperm(len(some), generator=generator)[:share]]
                batch.append(some)
                count += len(some)
            yield torch.cat(batch)[:size]

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.settings.seed)


def _forward(tensors: Mapping[str, Tensor], unit: Tensor) -> Tensor:
    """Return the map of rows of length 1, before they are brought to length 1 again."""
    z = nn.functional.linear(unit, tensors["weight"], tensors["bias"])
    if "up" in tensors:
        units = nn.functional.gelu(nn.functional.linear(unit, tensors["up"], tensors["up_bias"]))
        z = z + nn.functional.linear(units, tensors["down"])
    return z


def _metrics(z: Tensor, relevance: LabelRelevance) -> tuple[float, float]:
    """Return mAP and R@1 of rows that search each other."""
    precision, recall = torch.zeros(len(z), dtype=torch.float64), torch.zeros(len(z), dtype=torch.float64)

    def take(some: Tensor, ranks: Ranks) -> None:
        precision[some], recall[some] = average_precision(ranks).double(), recall_at(ranks, 1).double()

    exact_ranks(Vectors("embeddings", z), None, relevance, None, take, False)
    return float(precision.mean()), float(recall.mean())


def _encode_labels(labels: object, length: int) -> Tensor:
    """Return labels, numbers or text, as whole numbers [row] or [row, level]."""
    array = check_labels("labels", labels, length, levels=True)
    columns = [np.unique(column, return_inverse=True)[1] for column in (array.T if array.ndim == 2 else [array])]
    codes = torch.from_numpy(np.stack(columns, 1).astype(np.int64))
    return codes if array.ndim == 2 else codes[:, 0]


def _is_consistent(tensors: Mapping[str, Tensor]) -> bool:
    names = set(tensors)
    if names not in ({*_LINEAR}, {*_LINEAR, *_HIDDEN}):
        return False
    if any(x.dtype != torch.float32 or not x.isfinite().all() or not x.numel() for x in tensors.values()):
        return False
    weight, bias = tensors["weight"], tensors["bias"]
    fits = weight.ndim == 2 and bias.shape == weight.shape[:1]
    if "up" not in names:
        return fits
    up, up_bias, down = (tensors[name] for name in _HIDDEN)
    return (
        fits
        and up.ndim == 2
        and up.shape[1] == weight.shape[1]
        and down.shape == (len(weight), len(up))
        and up_bias.shape == up.shape[:1]
    )


def _onnx_program(onnx: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the ONNX model of a map."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    constants = {name: tensor.numpy() for name, tensor in tensors.items()}
    nodes = [
        helper.make_node("LpNormalization", ["embeddings"], ["unit"], axis=1, p=2),
        helper.make_node("Gemm", ["unit", "weight", "bias"], ["linear"], transB=1),
    ]
    last = "linear"
    if "up" in tensors:
        numbers = {"half": 0.5, "one": 1.0, "scale": 0.5**0.5}
        constants |= {name: np.array(value, np.float32) for name, value in numbers.items()}
        nodes += [
            helper.make_node("Gemm", ["unit", "up", "up_bias"], ["units"], transB=1),
            helper.make_node("Mul", ["units", "scale"], ["scaled"]),
            helper.make_node("Erf", ["scaled"], ["erf"]),
            helper.make_node("Add", ["erf", "one"], ["above"]),
            helper.make_node("Mul", ["units", "above"], ["twice"]),
            helper.make_node("Mul", ["twice", "half"], ["gelu"]),
            helper.make_node("Gemm", ["gelu", "down", "linear"], ["sum"], transB=1),
        ]
        last = "sum"
    nodes.append(helper.make_node("LpNormalization", [last], ["adapted"], axis=1, p=2))
    dim, in_dim = tensors["weight"].shape
    graph = helper.make_graph(
        nodes,
        "adapter",
        [helper.make_tensor_value_info("embeddings", kind, ["row", in_dim])],
        [helper.make_tensor_value_info("adapted", kind, ["row", dim])],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    program = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="frontrank")
    program.ir_version = 8
    onnx.checker.check_model(program)
    return program
