"""What the report of a comparison shows: several ways to train, each over several seeds, on the same images."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from frontrank.reporting.findings import Curve

UNFINISHED = "not finished yet"


class Against(NamedTuple):
    """The difference to the reference entry: mean, interval, p-value (corrected for the number of entries)."""

    difference: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True, eq=False)
class Entry:
    """One way to train.

    name: "PNP-D_q", "triplet", or "loss.temperature=0.01"
    settings: where it differs from the base
    lr, searched: the learning rate that was chosen, and the validation metric of each one tried
    seeds, values: metric -> one value per finished seed, on the test images
    seconds: median time of a step, per seed; megabytes: peak memory, per seed
    curves: validation metric over steps, per seed
    against: metric -> difference to the reference; empty for the reference itself
    failed: why it has no values, if it has none; UNFINISHED where they are still to come
    folder: of one of its runs, whose own report shows pictures
    """

    name: str
    settings: Mapping[str, Any]
    lr: float
    searched: Mapping[float, float]
    seeds: tuple[int, ...]
    values: Mapping[str, tuple[float, ...]]
    seconds: tuple[float, ...]
    megabytes: tuple[float, ...]
    curves: tuple[Curve, ...]
    against: Mapping[str, Against] = field(default_factory=dict)
    failed: str = ""
    folder: str = ""


@dataclass(frozen=True, eq=False)
class Compared:
    """A comparison. axis: the setting that varies ("loss.temperature"), or "" where the losses do.

    metric: that chose learning rates and checkpoints, on validation classes; reference: name of the entry that the
    others are set against; frozen: metric -> value of the backbone before training, same images
    """

    title: str
    axis: str
    metric: str
    reference: str
    entries: tuple[Entry, ...]
    frozen: Mapping[str, float]
    images: str
    command: str
    settings: str
    versions: Mapping[str, str]
    licences: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
