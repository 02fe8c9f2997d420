"""The losses of pytorch-metric-learning with the call of ours, so that both train in the same way."""

import inspect
import warnings
from collections.abc import Collection, Mapping
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from frontrank.checks import import_extra, suggestion
from frontrank.errors import FrontrankError, FrontrankWarning, InputError, InputTypeError

# These compute exactly the pairs of the indices they are given, so that a pair can be left out.
_BY_INDICES = ("GenericPairLoss", "TripletMarginLoss", "MarginLoss")
_BY_TRIPLETS = ("TripletMarginLoss", "MarginLoss")
_WITH_CLASSES = "WeightRegularizerMixin"  # the losses that compare with a weight per class
_NOT_OFFERED = ("GenericPairLoss", "VICRegLoss", "EmbeddingsAlreadyPackagedAsTriplets")  # without labels, or a base

Indices = tuple[Tensor, ...]


class PeerLoss(nn.Module):
    """A loss of pytorch-metric-learning with the call of ours, and `last` as ours have it.

    loss:  a BaseMetricLossFunction, such as TripletMarginLoss(); its parameters, such as proxies, are parameters here
    miner: a BaseMiner, or None for all pairs

    Pairs that `candidates` rules out are left out. A miner chooses among the whole gallery first, as in that library's
    CrossBatchMemory. Losses that cannot leave a pair out, or compare within a batch only, are refused with a gallery.
    Losses with weights per class need labels 0 .. classes - 1.

    >>> from pytorch_metric_learning.losses import ContrastiveLoss
    >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.8, 0.6]])
    >>> loss = PeerLoss(ContrastiveLoss())
    >>> loss(embeddings, torch.tensor([0, 0, 1, 1]))  # (1.4142 + 0.2828) / 2 of positives, 0.2366 of negatives
    tensor(1.0851)
    >>> loss.last
    {'queries_used': 4, 'queries_skipped': 0}
    """

    def __init__(self, loss: nn.Module, miner: nn.Module | None = None) -> None:
        super().__init__()
        library = _library()
        for name, value, kind in (
            ("loss", loss, library.losses.BaseMetricLossFunction),
            ("miner", miner, library.miners.BaseMiner | None),
        ):
            if not isinstance(value, kind):
                raise InputTypeError(f"{name} must be one of pytorch-metric-learning, got {type(value).__name__}")
        self.loss = loss
        self.miner = miner
        self.last: dict[str, int] = {"queries_used": 0, "queries_skipped": 0}

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        *,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
        relevant: Tensor | None = None,
        candidates: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of the queries `embeddings`; arguments as in frontrank.losses, but no `relevant`."""
        if relevant is not None or labels is None:
            raise InputError(f"{self._name} of pytorch-metric-learning knows labels only; give labels, not relevant")
        if (ref_emb is None) != (ref_labels is None):
            raise InputError("ref_emb and ref_labels go together; give both, or neither")
        of_classes = _is_one_of(self.loss, (_WITH_CLASSES,))
        if of_classes:
            self._check_classes(labels)
        pairs = _Pairs(labels, ref_labels, candidates)
        used = len(labels) if of_classes else int(pairs.positive.any(1).sum())
        self.last = {"queries_used": used, "queries_skipped": len(labels) - used}
        gallery = {} if ref_emb is None else {"ref_emb": ref_emb, "ref_labels": ref_labels}
        indices = None if self.miner is None else self.miner(embeddings, labels, **gallery)
        if ref_emb is not None or candidates is not None:
            indices = self._gallery_indices(pairs, indices)
        try:
            return self.loss(embeddings, labels, indices, **gallery)
        except (ValueError, AssertionError) as error:
            raise InputError(f"{self._name} of pytorch-metric-learning: {' '.join(str(error).split())}") from error

    def try_out(self, dim: int) -> None:
        """Raise an error if a small batch fails: the library may accept wrong options and fail when it is called."""
        try:
            self(torch.eye(4, max(1, dim)).requires_grad_() + 0.1, torch.tensor([0, 0, 1, 1])).backward()
        except FrontrankError:
            raise
        except Exception as error:  # whatever the library does with its options
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"loss.options of {self._name} cannot be used ({reason}); correct them") from error
        self.zero_grad(set_to_none=True)

    @property
    def _name(self) -> str:
        return type(self.loss).__name__

    def _gallery_indices(self, pairs: "_Pairs", mined: Indices | None) -> Indices:
        """Return what the loss compares in a gallery: everything, or what a miner chose and `candidates` allows."""
        if not _is_one_of(self.loss, _BY_INDICES):
            refusal = f"{self._name} of pytorch-metric-learning cannot rank a gallery beside the batch"
            raise InputError(f"{refusal}; train it without a memory (batches.memory 0)")
        if getattr(self.loss, "swap", False):
            raise InputError(f"{self._name} with swap cannot rank a gallery beside the batch; set swap to False")
        if mined is None:
            if not _is_one_of(self.loss, _BY_TRIPLETS):
                return pairs.pairs()
            each: Any = self.loss.triplets_per_anchor
            return pairs.triplets() if each == "all" else pairs.random_triplets(int(each))
        indices = pairs.among(mined)
        if len(mined[1]) and not len(indices[1]):
            miner = f"{type(self.miner).__name__} pairs every query with itself only, as its own nearest positive"
            raise InputError(f"{miner}; choose a miner of hard positives, or train without a memory")
        return indices

    def _check_classes(self, labels: Tensor) -> None:
        weights = getattr(self.loss, "W", None)
        classes = (
            getattr(self.loss, "num_classes", 0)
            or len(getattr(self.loss, "proxies", ()))
            or (0 if weights is None else weights.shape[1])
        )
        if classes and len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= classes):
            raise InputError(
                f"labels go from {int(labels.min())} to {int(labels.max())} but {self._name} has {classes} classes; "
                "number the classes from 0 and set num_classes"
            )


class _Pairs:
    """Which items of a gallery are positives and negatives of which query: two masks [query, gallery]."""

    def __init__(self, labels: Tensor, ref_labels: Tensor | None, candidates: Tensor | None) -> None:
        same = labels[:, None] == (labels if ref_labels is None else ref_labels)[None, :]
        allowed = torch.ones_like(same) if candidates is None else candidates.to(same.device)
        if ref_labels is None:
            allowed = allowed.clone().fill_diagonal_(False)
        self.positive, self.negative = same & allowed, ~same & allowed

    def pairs(self) -> Indices:
        """(query, positive, query, negative), every one there is."""
        return *self.positive.nonzero().T, *self.negative.nonzero().T

    def triplets(self) -> Indices:
        """(query, positive, negative), every one there is."""
        query, positive = self.positive.nonzero().T
        pair, negative = self.negative[query].nonzero().T
        return query[pair], positive[pair], negative

    def random_triplets(self, each: int) -> Indices:
        """(query, positive, negative), so many at random for each query that has any."""
        query = (self.positive.any(1) & self.negative.any(1)).nonzero()[:, 0]
        masks = self.positive, self.negative
        draws = [torch.multinomial(mask[query].float(), each, replacement=True).flatten() for mask in masks]
        return query.repeat_interleave(each), *draws

    def among(self, indices: Indices) -> Indices:
        """Those of a miner's pairs or triplets that are pairs here."""
        if len(indices) == 3:
            query, positive, negative = indices
            keep = self.positive[query, positive] & self.negative[query, negative]
            return query[keep], positive[keep], negative[keep]
        a, positive, b, negative = indices
        near, far = self.positive[a, positive], self.negative[b, negative]
        return a[near], positive[near], b[far], negative[far]


def peer_loss(
    name: str,
    options: Mapping[str, Any] | None = None,
    miner: str | None = None,
    *,
    classes: int | None = None,
    dim: int | None = None,
) -> PeerLoss:
    """Return a loss of pytorch-metric-learning by name, with its arguments, and a miner.

    options: its arguments; `distance` and `reducer` may be names too, such as "CosineSimilarity"
    classes, dim: num_classes and embedding_size of the losses that need them, if options does not have them

    >>> peer_loss("TripletMarginLoss", {"margin": 0.1}, miner="BatchHardMiner").loss.margin
    0.1
    """
    library = _library()
    kind = _find_class("loss", name, library.losses, library.losses.BaseMetricLossFunction)
    if name == "SmoothAPLoss":
        _warn_of_smooth_ap()
    sizes = {"num_classes": classes, "embedding_size": dim}
    needed = {key: value for key, value in sizes.items() if value is not None and key in _arguments(kind)[0]}
    loss = _build(library, name, kind, {**needed, **(options or {})})
    if miner is None:
        return PeerLoss(loss)
    kind = _find_class("miner", miner, library.miners, library.miners.BaseMiner)
    return PeerLoss(loss, _build(library, miner, kind, {}))


@cache
def _warn_of_smooth_ap() -> None:
    warnings.warn(
        "SmoothAPLoss of pytorch-metric-learning is wrong unless a batch has as many classes as images per class: "
        "16 perfect classes of 4 have a loss of 0.52; use SmoothAP",
        FrontrankWarning,
        stacklevel=3,
    )


def _library() -> ModuleType:
    library = import_extra("pytorch_metric_learning", "train", "a loss of pytorch-metric-learning")
    from pytorch_metric_learning import distances, losses, miners, reducers  # type: ignore[import-untyped]  # noqa: F401

    return library


def _find_class(what: str, name: str, module: ModuleType, base: type) -> Any:
    """Return a class of a module by name; not one that is only meant to be inherited from."""
    known = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, base) and value is not base and key not in _NOT_OFFERED
    }
    _check_known(f"pytorch-metric-learning has no {what}", name, known)
    return known[name]


def _check_known(refusal: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        near = suggestion(str(name), known, 0.4) or f"; it has {', '.join(sorted(known))}"
        raise InputError(f"{refusal} {name!r}{near}")


def _arguments(kind: Any) -> tuple[set[str], set[str]]:
    """Return the arguments of a class that must be given, and all of them; a class hands on those of its bases."""
    required, accepted = set(), set()
    each: Any
    for each in inspect.getmro(kind):
        if "__init__" not in vars(each) or each in (nn.Module, object):
            continue
        for name, parameter in list(inspect.signature(each.__init__).parameters.items())[1:]:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            accepted.add(name)
            if each is kind and parameter.default is parameter.empty:
                required.add(name)
    if any(each.__name__ == _WITH_CLASSES for each in inspect.getmro(kind)):
        required |= accepted & {"num_classes", "embedding_size"}
    return required, accepted


def _build(library: ModuleType, name: str, kind: Any, options: Mapping[str, Any]) -> nn.Module:
    """Return an object of a class of the library, after checks of the names of its options."""
    required, accepted = _arguments(kind)
    for option in options:
        _check_known(f"{name} has no argument", option, accepted)
    if missing := sorted(required - set(options)):
        raise InputError(f"{name} needs {', '.join(missing)}; set it in options")
    values = dict(options)
    bases = {
        "distance": (library.distances, library.distances.BaseDistance),
        "reducer": (library.reducers, library.reducers.BaseReducer),
    }
    for option, parts in bases.items():
        if isinstance(values.get(option), str):
            values[option] = _find_class(option, values[option], *parts)()
    try:
        loss: nn.Module = kind(**values)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise InputError(f"{name} cannot be built with {dict(options)}: {' '.join(str(error).split())}") from error
    return loss


def _is_one_of(loss: nn.Module, names: tuple[str, ...]) -> bool:
    return any(each.__name__ in names for each in type(loss).__mro__)
