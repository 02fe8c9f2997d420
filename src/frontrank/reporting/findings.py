"""What the report of a run shows: one or two models on the same images, in numbers, curves and ranked pictures."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from frontrank.data.image_table import ImageTable
from frontrank.evaluation.compare import Comparison
from frontrank.evaluation.report import Report

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Curve:
    """Points of a line: y over x."""

    x: Floats
    y: Floats


@dataclass(frozen=True)
class Shown:
    """An image in a ranked list.

    row: of the table
    place: in the list, from 1
    right: it has the query's label
    cost: its share of the AP that the query lacks; 0 if it is right
    """

    row: int
    place: int
    score: float
    right: bool
    cost: float = 0.0


@dataclass(frozen=True)
class Ranked:
    """A query's list as one model ranks it: its first images, and the wrong ones that cost it most AP.

    first_right: place of its first right image; 0 if there is none
    late: that image, where it is not among the first
    """

    average_precision: float
    first: tuple[Shown, ...]
    costly: tuple[Shown, ...]
    first_right: int = 0
    late: Shown | None = None


@dataclass(frozen=True)
class Query:
    """A query, by its row in the table, with one list per side."""

    row: int
    positives: int
    ranked: tuple[Ranked, ...]


@dataclass(frozen=True, eq=False)
class Side:
    """One model on the images.

    name: "before" or "after"; title: in words, e.g. "tf_efficientnet_lite0, not trained further"
    recall: R@k over k; precision_recall: mean interpolated precision over recall
    positive_scores, negative_scores: densities over the score
    places: of the images `Findings.mapped`, on the map
    intervals: of the metrics that are means over queries, at 95 %, with classes drawn again
    """

    name: str
    title: str
    report: Report
    recall: Curve
    precision_recall: Curve
    positive_scores: Curve
    negative_scores: Curve
    places: Floats
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class CategoryResult:
    """A category's queries, and their R@1 and mAP per side."""

    name: str
    classes: int
    queries: int
    recall_at_1: tuple[float, ...]
    mean_ap: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Findings:
    """All that was found; `sides` is (before, after), or (after,) where there is nothing to compare with.

    change: of each metric, paired, with classes as the units that chance draws
    queries: "best", "typical", "worst", and "most improved" where there are two sides
    mapped: rows of the table that are on the map
    """

    table: ImageTable
    sides: tuple[Side, ...]
    change: Comparison | None
    queries: Mapping[str, tuple[Query, ...]]
    mapped: Rows
    categories: tuple[CategoryResult, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class RunFacts:
    """Where the findings come from.

    curves: of the log, by name: "loss", "validation R@1", "learning rate", ...; x is the step
    command, settings: to do it again; settings as YAML
    facts: short pairs for the head of the page, e.g. "images" -> "5,770 of 912 unseen classes"
    versions: of the packages, the commit and the machine
    licences: of the pictures: name -> how many images; empty where the table does not say
    designs: the same for each design, where the table has them: design, licence, images
    credits: who made the pictures, as the data set says it
    searched: what was searched, in the words of the headline, e.g. "912 unseen classes"; "" counts the table's classes
    """

    title: str
    command: str
    settings: str
    curves: Mapping[str, Curve]
    facts: Mapping[str, str]
    versions: Mapping[str, str]
    licences: Mapping[str, int] = field(default_factory=dict)
    searched: str = ""
    designs: tuple[tuple[str, str, int], ...] = ()
    credits: str = ""
