"""Evaluation protocols of the data sets, by name: what is a query, what is searched, which metrics are reported.

Each returns a `Report`, with a note where the embeddings are not of the whole official test set. Its options, such as
`metrics`, are those of `evaluate`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from frontrank.checks import check_choice
from frontrank.errors import InputError
from frontrank.evaluation.evaluate import evaluate
from frontrank.evaluation.measures import OF_LEVELS
from frontrank.evaluation.report import Report
from frontrank.evaluation.revisited import evaluate_revisited
from frontrank.ranking import Vectors
from frontrank.ranking.vectors import check_labels

Size = Literal["small", "medium", "large"]
LEAST_INSTANCES = 5  # of an identity in the face protocols
_LIST = "every image of the test list searches all the others."


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
        here = (len(labels), len(np.unique(every)), None if gallery_labels is None else len(gallery_labels))
        if here in [(images, self.classes, self.gallery) for images in (self.images, self.released)]:
            return ()
        official, these = (
            f"{images:,} {'images' if items is None else f'queries and {items:,} gallery images'} of {count:,} classes"
            for images, count, items in ((self.images, self.classes, self.gallery), here)
        )
        return (
            f"the test set of {self.name} has {official}, these are {these}: not comparable with published figures",
        )


def _metrics(*places: int) -> tuple[str, ...]:
    return (*(f"R@{k}" for k in places), "mAP", "mAP@R", "R-precision")


_SETS = {
    "sop": _Set("Stanford Online Products", _metrics(1, 10, 100, 1000), 60_502, 11_316),
    "cub": _Set("CUB-200-2011", _metrics(1, 2, 4, 8), 5_924, 100),
    "inaturalist": _Set("iNaturalist 2018", _metrics(1, 4, 16, 32), 136_093, 2_452),
    "in-shop": _Set("In-Shop Clothes", _metrics(1, 10, 20, 30, 40, 50), 14_218, 3_985, gallery=12_612),
    "vehicleid-small": _Set("VehicleID small", _metrics(1, 5), 7_332, 800, released=6_493),
    "vehicleid-medium": _Set("VehicleID medium", _metrics(1, 5), 12_995, 1_600, released=13_377),
    "vehicleid-large": _Set("VehicleID large", _metrics(1, 5), 20_038, 2_400, released=19_777),
    "vggface2": _Set("VGGFace2", ("mAP", "R@1"), 169_396, 500),
    "ijb-c": _Set("IJB-C", ("mAP", "R@1"), 148_824, 3_531),
}


def _finest(name: str, labels: Any, length: int) -> "np.ndarray":
    """Return the labels of the finest level."""
    array = check_labels(name, labels, length, levels=True)
    return array if array.ndim == 1 else array[:, 0]


def _evaluate(key: str, embeddings: Any, labels: Any, *, metrics: Any = None, name: str = "", **options: Any) -> Report:
    official = _SETS[key]
    if metrics is None:
        metrics = (*official.metrics, *(OF_LEVELS if np.ndim(labels) == 2 else ()))
    return evaluate(embeddings, labels, metrics=metrics, name=name or official.name, **options)


def _self_protocol(key: str, text: str) -> Callable[..., Report]:
    """Return the protocol in which every image of a test set searches all the others."""

    def protocol(embeddings: Any, labels: Any, **options: Any) -> Report:
        report = _evaluate(key, embeddings, labels, **options)
        return report.with_notes(_SETS[key].note(_finest("labels", labels, report.queries)))

    protocol.__name__, protocol.__doc__ = key.replace("-", "_"), text
    return protocol


def _face_protocol(key: str, text: str) -> Callable[..., Report]:
    """Return the protocol that averages templates, leaves out small identities, and lets every other one search."""

    def protocol(embeddings: Any, labels: Any, templates: Any = None, **options: Any) -> Report:
        rows = Vectors("embeddings", embeddings)
        of_rows = check_labels("labels", labels, len(rows))
        notes = _SETS[key].note(of_rows)
        instances = embeddings
        if templates is not None:
            instances, of_rows = template_means(embeddings, labels, templates)
            notes += (f"{len(rows):,} rows averaged into {len(of_rows):,} instances",)
        _, at, counts = np.unique(of_rows, return_inverse=True, return_counts=True)
        keep = counts[at] >= LEAST_INSTANCES
        if not keep.any():
            need = f"with {LEAST_INSTANCES} instances or more, which the protocol of {_SETS[key].name} needs"
            raise InputError(f"labels has no identity {need}; use evaluate")
        if not keep.all():
            few = int((counts < LEAST_INSTANCES).sum())
            of_them = "1 identity" if few == 1 else f"{few:,} identities"
            notes += (f"{of_them} with fewer than {LEAST_INSTANCES} instances left out",)
            instances = Vectors("embeddings", instances).read(torch.from_numpy(np.flatnonzero(keep))).raw
        return _evaluate(key, instances, of_rows[keep], **options).with_notes(notes)

    protocol.__name__, protocol.__doc__ = key.replace("-", "_"), text
    return protocol


sop = _self_protocol("sop", "Stanford Online Products: every test image searches all the others.")
cub = _self_protocol("cub", "CUB-200-2011: every image of the last 100 classes searches all the others.")
inaturalist = _self_protocol(
    "inaturalist", "iNaturalist 2018, the split of Smooth-AP: every test image searches all the others."
)
vggface2 = _face_protocol("vggface2", "VGGFace2: every test image searches all the others; mAP.")
ijb_c = _face_protocol(
    "ijb-c",
    """IJB-C: images and videos, a video being the mean of its frames; every one searches all the others; mAP.

    templates: one per row; rows with the same one are frames of one video. Identities with fewer than 5 images or
               videos are left out.
    """,
)


def in_shop(queries: Any, labels: Any, gallery: Any, gallery_labels: Any, **options: Any) -> Report:
    """In-Shop Clothes: the query images search the gallery images."""
    if gallery is None or gallery_labels is None:
        raise InputError("the protocol of In-Shop Clothes searches a gallery; give gallery and gallery_labels")
    report = _evaluate("in-shop", queries, labels, gallery=gallery, gallery_labels=gallery_labels, **options)
    of_gallery = _finest("gallery_labels", gallery_labels, report.gallery_size)
    return report.with_notes(_SETS["in-shop"].note(_finest("labels", labels, report.queries), of_gallery))


def vehicleid(embeddings: Any, labels: Any, size: Size = "small", **options: Any) -> Report:
    """PKU VehicleID: every image of the small, medium or large test list searches all the others of the list."""
    check_choice("size", size, get_args(Size))
    return PROTOCOLS[f"vehicleid-{size}"](embeddings, labels, **options)


def template_means(embeddings: Any, labels: Any, templates: Any) -> tuple[Tensor, "np.ndarray"]:
    """Return one embedding and label per template: the mean of the unit vectors of its rows (Smooth-AP Sec. 5.1)."""
    rows = Vectors("embeddings", embeddings)
    of_rows = check_labels("labels", labels, len(rows))
    names, first, at = np.unique(
        check_labels("templates", templates, len(rows)), return_index=True, return_inverse=True
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


PROTOCOLS: dict[str, Protocol] = {
    "sop": Protocol("self", sop),
    "cub": Protocol("self", cub),
    "inaturalist": Protocol("self", inaturalist),
    "in-shop": Protocol("query-gallery", in_shop),
    "vehicleid-small": Protocol("self", _self_protocol("vehicleid-small", f"PKU VehicleID, small: {_LIST}")),
    "vehicleid-medium": Protocol("self", _self_protocol("vehicleid-medium", f"PKU VehicleID, medium: {_LIST}")),
    "vehicleid-large": Protocol("self", _self_protocol("vehicleid-large", f"PKU VehicleID, large: {_LIST}")),
    "vggface2": Protocol("templates", vggface2),
    "ijb-c": Protocol("templates", ijb_c),
    "revisited": Protocol("revisited", evaluate_revisited),
}
