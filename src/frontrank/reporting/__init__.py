"""Plots of what was measured."""

from frontrank.reporting.plots import plot_ap_error, plot_minibatch_map

__all__ = ["plot_ap_error", "plot_minibatch_map"]
