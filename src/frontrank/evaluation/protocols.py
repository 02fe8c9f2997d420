"""Evaluation protocols of the data sets, by name: what is a query, what is searched, which metrics are reported.

Each returns a `Report`, with a note where the embeddings are not of the whole official test set.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from frontrank.checks import check_choice
from frontrank.errors import InputError
from frontrank.evaluation.evaluate import check_labels, evaluate
from frontrank.evaluation.report import Report
from frontrank.evaluation.revisited import evaluate_revisited
from frontrank.ranking import Vectors

Size = Literal["small", "medium", "large"]
LEAST_INSTANCES = 5  # of an identity in the face protocols

# classes, images as the papers print them, and as the released lists have them, which were changed after the papers
_VEHICLEID = {"small": (800, 7_332, 6_493), "medium": (1_600, 12_995, 13_377), "large": (2_400, 20_038, 19_777)}
_ALL_RANKS = ("mAP", "mAP@R", "R-precision")


@dataclass(frozen=True)
class _Set:
    """A test set: its name, the metrics its papers report, how many images and classes it has.

    released: how many images it has in the released files, where that differs from what the papers print
    """

    name: str
    metrics: tuple[str, ...]
    images: int
    classes: int
    gallery: int | None = None
    released: int | None = None

    def note(self, labels: "np.ndarray", gallery_labels: "np.ndarray | None" = None) -> tuple[str, ...]:
        """Return a note if these are not all of its images."""
        every = labels if gallery_labels is None else np.concatenate([labels, gallery_labels])
        classes = len(np.unique(every))
        here = (len(labels), classes, None if gallery_labels is None else len(gallery_labels))
        if here in [(images, self.classes, self.gallery) for images in (self.images, self.released)]:
            return ()
        there = (self.images, self.classes, self.gallery)
        sizes = [
            f"{images:,} images of {count:,} classes"
            if items is None
            else f"{images:,} queries and {items:,} gallery images of {count:,} classes"
            for images, count, items in (there, here)
        ]
        return (
            f"the test set of {self.name} has {sizes[0]}, these are {sizes[1]}: not comparable with published figures",
        )


def sop(embeddings: Any, labels: Any, *, metrics: Iterable[str] | None = None, **options: Any) -> Report:
    """Stanford Online Products: every test image searches all the others."""
    recalls = ("R@1", "R@10", "R@100", "R@1000", *_ALL_RANKS)
    return _among_themselves(
        _Set("Stanford Online Products", recalls, 60_502, 11_316), embeddings, labels, metrics, options
    )


def cub(embeddings: Any, labels: Any, *, metrics: Iterable[str] | None = None, **options: Any) -> Report:
    """CUB-200-2011: every image of the last 100 classes searches all the others."""
    recalls = ("R@1", "R@2", "R@4", "R@8", *_ALL_RANKS)
    return _among_themselves(_Set("CUB-200-2011", recalls, 5_924, 100), embeddings, labels, metrics, options)


def inaturalist(embeddings: Any, labels: Any, *, metrics: Iterable[str] | None = None, **options: Any) -> Report:
    """iNaturalist 2018, the split of Smooth-AP: every test image searches all the others."""
    recalls = ("R@1", "R@4", "R@16", "R@32", *_ALL_RANKS)
    return _among_themselves(_Set("iNaturalist 2018", recalls, 136_093, 2_452), embeddings, labels, metrics, options)


def in_shop(
    queries: Any,
    labels: Any,
    gallery: Any,
    gallery_labels: Any,
    *,
    metrics: Iterable[str] | None = None,
    **options: Any,
) -> Report:
    """In-Shop Clothes: the query images search the gallery images."""
    recalls = ("R@1", "R@10", "R@20", "R@30", "R@40", "R@50", *_ALL_RANKS)
    official = _Set("In-Shop Clothes", recalls, 14_218, 3_985, 12_612)
    if gallery is None or gallery_labels is None:
        raise InputError("the protocol of In-Shop Clothes searches a gallery; give gallery and gallery_labels")
    report = _evaluate(official, queries, labels, metrics, options, gallery=gallery, gallery_labels=gallery_labels)
    of_gallery = check_labels("gallery_labels", gallery_labels, report.gallery_size, "gallery")
    return report.with_notes(official.note(check_labels("labels", labels, report.queries, "embeddings"), of_gallery))


def vehicleid(
    embeddings: Any, labels: Any, size: Size = "small", *, metrics: Iterable[str] | None = None, **options: Any
) -> Report:
    """PKU VehicleID: every image of the small, medium or large test list searches all the others of the list."""
    check_choice("size", size, get_args(Size))
    classes, of_papers, of_release = _VEHICLEID[size]
    official = _Set(f"VehicleID {size}", ("R@1", "R@5", *_ALL_RANKS), of_papers, classes, released=of_release)
    return _among_themselves(official, embeddings, labels, metrics, options)


def vggface2(
    embeddings: Any, labels: Any, templates: Any = None, *, metrics: Iterable[str] | None = None, **options: Any
) -> Report:
    """VGGFace2: every test image searches all the others; mAP."""
    official = _Set("VGGFace2", ("mAP", "R@1"), 169_396, 500)
    return _faces(official, embeddings, labels, templates, metrics, options)


def ijb_c(
    embeddings: Any, labels: Any, templates: Any = None, *, metrics: Iterable[str] | None = None, **options: Any
) -> Report:
    """IJB-C: images and videos, a video being the mean of its frames; every one searches all the others; mAP.

    templates: one per row; rows with the same one are frames of one video. Identities with fewer than 5 images or
               videos are left out.
    """
    official = _Set("IJB-C", ("mAP", "R@1"), 148_824, 3_531)
    return _faces(official, embeddings, labels, templates, metrics, options)


def template_means(embeddings: Any, labels: Any, templates: Any) -> tuple[Tensor, "np.ndarray"]:
    """Return one embedding and label per template: the mean of the unit vectors of its rows (Smooth-AP Sec. 5.1)."""
    rows = Vectors("embeddings", embeddings)
    of_rows = check_labels("labels", labels, len(rows), "embeddings")
    names, first, at = np.unique(
        check_labels("templates", templates, len(rows), "embeddings"), return_index=True, return_inverse=True
    )
    if (mixed := of_rows != of_rows[first][at]).any():
        row = int(mixed.argmax())
        raise InputError(
            f"template {names[at[row]]} has rows of two labels, {of_rows[first][at[row]]} and {of_rows[row]} "
            f"(row {row}); a template is of one identity"
        )
    sums = torch.zeros(len(names), rows.dim, dtype=torch.float64)
    for some in rows.chunks():
        sums.index_add_(0, torch.from_numpy(at[some]), rows.read(some).exact_unit().cpu())
    means = (sums / torch.from_numpy(np.bincount(at))[:, None]).to(rows.device, rows.dtype)
    if (nothing := (means == 0).all(1)).any():
        raise InputError(f"template {names[int(nothing.int().argmax())]} has rows that cancel out; drop it")
    return means, of_rows[first]


def _evaluate(
    official: _Set, embeddings: Any, labels: Any, metrics: Iterable[str] | None, options: dict[str, Any], **gallery: Any
) -> Report:
    name = options.pop("name", "") or official.name
    metrics = official.metrics if metrics is None else metrics
    return evaluate(embeddings, labels, metrics=metrics, name=name, **gallery, **options)


def _among_themselves(
    official: _Set, embeddings: Any, labels: Any, metrics: Iterable[str] | None, options: dict[str, Any]
) -> Report:
    report = _evaluate(official, embeddings, labels, metrics, options)
    return report.with_notes(official.note(check_labels("labels", labels, report.queries, "embeddings")))


def _faces(
    official: _Set, embeddings: Any, labels: Any, templates: Any, metrics: Iterable[str] | None, options: dict[str, Any]
) -> Report:
    """Average templates, leave out small identities, then let every instance search the others."""
    rows = Vectors("embeddings", embeddings)
    of_rows = check_labels("labels", labels, len(rows), "embeddings")
    notes = official.note(of_rows)
    instances = embeddings
    if templates is not None:
        instances, of_rows = template_means(embeddings, labels, templates)
        notes += (f"{len(rows):,} rows averaged into {len(of_rows):,} instances",)
    _, at, counts = np.unique(of_rows, return_inverse=True, return_counts=True)
    keep = counts[at] >= LEAST_INSTANCES
    if not keep.any():
        raise InputError(
            f"labels has no identity with {LEAST_INSTANCES} instances or more, which the protocol of {official.name} "
            "needs; use evaluate"
        )
    if not keep.all():
        few = int((counts < LEAST_INSTANCES).sum())
        of_them = "1 identity" if few == 1 else f"{few:,} identities"
        notes += (f"{of_them} with fewer than {LEAST_INSTANCES} instances left out",)
        instances = Vectors("embeddings", instances).read(torch.from_numpy(np.flatnonzero(keep))).raw
    return _evaluate(official, instances, of_rows[keep], metrics, options).with_notes(notes)


Kind = Literal["self", "query-gallery", "templates", "revisited"]


@dataclass(frozen=True)
class Protocol:
    """A protocol of `PROTOCOLS`; `kind` says which arguments it takes."""

    kind: Kind
    function: Callable[..., Report]

    @property
    def help(self) -> str:
        """What it does, in one line."""
        return (self.function.__doc__ or "").split("\n")[0].rstrip(".")

    def __call__(self, *args: Any, **options: Any) -> Report:
        return self.function(*args, **options)


def _vehicleid_of(size: Size) -> Callable[..., Report]:
    def of_size(embeddings: Any, labels: Any, **options: Any) -> Report:
        return vehicleid(embeddings, labels, size, **options)

    of_size.__doc__ = f"PKU VehicleID, {size}: every image of the test list searches all the others."
    return of_size


PROTOCOLS: dict[str, Protocol] = {
    "sop": Protocol("self", sop),
    "cub": Protocol("self", cub),
    "inaturalist": Protocol("self", inaturalist),
    "in-shop": Protocol("query-gallery", in_shop),
    **{f"vehicleid-{size}": Protocol("self", _vehicleid_of(size)) for size in get_args(Size)},
    "vggface2": Protocol("templates", vggface2),
    "ijb-c": Protocol("templates", ijb_c),
    "revisited": Protocol("revisited", evaluate_revisited),
}
