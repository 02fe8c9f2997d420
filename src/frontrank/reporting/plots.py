"""Plots as matplotlib figures; save one with `figure.savefig(path)`. Needs frontrank[report]."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from frontrank.checks import import_extra
from frontrank.errors import InputError
from frontrank.evaluation.diagnostics import BatchMAP

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which can be distinguished with any kind of colour vision
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":")


def plot_ap_error(errors: Mapping[str, Sequence[float]], *, x: Sequence[float] | None = None) -> "Figure":
    """Plot the AP approximation error over training, a line per approximation (smooth_ap Fig. 4).

    errors: name ─► one error per batch, such as `ap_error(batch, labels, Sigmoid(0.01)).mean`
    x:      the iterations they were taken at; 1, 2, ... by default
    """
    if not errors or not all(len(of) for of in errors.values()):
        raise InputError("errors has nothing to draw; give a series of errors for each name")
    if x is not None and any(len(x) != len(of) for of in errors.values()):
        raise InputError(f"x has {len(x)} entries, but not every series of errors has; give one per error")
    figure, axes = _figure("AP approximation error", "iteration", "|AP predicted - AP|")
    for i, (name, of) in enumerate(errors.items()):
        at = range(1, len(of) + 1) if x is None else x
        style = {"color": _COLOURS[i % len(_COLOURS)], "linestyle": _STYLES[i % len(_STYLES)]}
        axes.plot(at, of, label=name, marker="o" if len(of) < 20 else "", **style)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    return figure


def plot_minibatch_map(batches: BatchMAP) -> "Figure":
    """Plot mAP inside mini-batches by batch size, mean and spread, and mAP of the data set (rambo Fig. 2)."""
    figure, axes = _figure("What a mini-batch says about mAP", "batch size", "mAP")
    mean, std = np.asarray(batches.mean), np.asarray(batches.std)
    axes.axhline(batches.dataset, color="#000000", linestyle="--", label=f"data set, {batches.dataset:.3f}")
    axes.fill_between(batches.batch_sizes, mean - std, mean + std, color=_COLOURS[0], alpha=0.2, linewidth=0)
    label = "mini-batches, mean and standard deviation"
    axes.plot(batches.batch_sizes, mean, color=_COLOURS[0], marker="o", label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches.batch_sizes, [f"{size:,}" for size in batches.batch_sizes])
    axes.minorticks_off()
    axes.set_ylim(0, 1.02)
    axes.legend(frameon=False, loc="lower left")
    return figure


def _figure(title: str, x: str, y: str) -> "tuple[Figure, Any]":
    figure = import_extra("matplotlib.figure", "report", "a plot").Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left")
    axes.set(xlabel=x, ylabel=y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#DDDDDD", linewidth=0.6)
    return figure, axes
