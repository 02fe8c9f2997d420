"""What `frontrank evaluate` does with what it has read: evaluate, print, save and compare."""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import frontrank as fr
from frontrank.cli.descriptors import Sides, Steps, facts, moved, read_steps
from frontrank.cli.evaluation_inputs import Inputs, read_inputs, setups_of
from frontrank.cli.rows import Rows, about, say
from frontrank.errors import InputError
from frontrank.evaluation.measures import DEFAULT

_RERANK: dict[str, Any] = {"k1": 20, "k2": 6, "lam": 0.3}


def run(options: argparse.Namespace) -> None:
    """Evaluate, print, save, compare."""
    inputs = read_inputs(options)
    steps = read_steps(options, inputs.whitening)
    sides = moved(steps, inputs.queries, inputs.gallery, inputs.distractors)
    reports = {setup: _report(options, inputs, steps, inputs.queries, sides, setup) for setup in setups_of(options)}
    try:
        print("\n\n".join(report.table(options.table) for report in reports.values()), flush=True)
    finally:  # the work is done: keep it even where nobody reads the table
        for setup, target in inputs.targets.items():
            reports[setup].save(target, overwrite=options.force)
            say(options.quiet, f"wrote {target}")
    if inputs.other is not None:
        (report,) = reports.values()
        other = inputs.other
        if isinstance(other, Rows):
            rows = replace(other, labels=inputs.queries.labels)
            with about(rows):
                other = _report(options, inputs, steps, rows, moved(steps, rows, None, None), *reports)
        print("\n" + _comparison(options, inputs, other, report).table(options.table), flush=True)


def _report(
    options: argparse.Namespace, inputs: Inputs, steps: Steps, queries: Rows, sides: Sides, setup: str
) -> fr.Report:
    """The report of some queries: those of the command, or others to compare them with."""
    settings: dict[str, Any] = {"device": options.device, "progress": False if options.quiet else None}
    found = facts(steps, options.whiten)
    if inputs.ground_truth is not None:
        name = options.name or queries.name
        settings |= {"distractors": sides.distractors, "name": f"{name} ({setup})" if options.setup == "all" else name}
        report = fr.evaluate_revisited(sides.queries, sides.gallery, inputs.ground_truth, setup, **settings)  # type: ignore[arg-type]
    elif options.rerank:
        report = _of_scores(options, inputs, sides, queries)
        found["re-ranking"] = ", ".join(f"{name} {value}" for name, value in _RERANK.items())
    else:
        report = _of_labels(options, inputs, sides, queries, settings)
    return replace(report, settings={**report.settings, **found}) if found else report


def _of_labels(
    options: argparse.Namespace, inputs: Inputs, sides: Sides, queries: Rows, settings: dict[str, Any]
) -> fr.Report:
    settings |= {"seed": options.seed, "name": options.name or ("" if inputs.protocol else queries.name)}
    settings["metrics"] = options.metrics or (None if inputs.protocol else DEFAULT)
    call: Callable[..., fr.Report] = inputs.protocol or fr.evaluate
    if inputs.protocol is not None and inputs.protocol.kind == "query-gallery":
        return call(sides.queries, queries.labels, sides.gallery, _gallery_labels(inputs), **settings)
    if inputs.templates is not None:
        settings["templates"] = inputs.templates
    elif sides.own:
        itself = list(np.arange(len(sides.queries))[:, None])
        settings |= {"gallery": sides.gallery, "gallery_labels": queries.labels, "ignored": itself}
    elif sides.gallery is not None:
        settings |= {"gallery": sides.gallery, "gallery_labels": _gallery_labels(inputs)}
    return call(sides.queries, queries.labels, **settings)


def _of_scores(options: argparse.Namespace, inputs: Inputs, sides: Sides, queries: Rows) -> fr.Report:
    scores = fr.rerank(sides.queries, sides.gallery, **_RERANK, progress=False if options.quiet else None)
    return fr.evaluate_scores(
        scores,
        queries.labels,
        gallery_labels=_gallery_labels(inputs),
        metrics=options.metrics or DEFAULT,
        name=options.name or queries.name,
    )


def _gallery_labels(inputs: Inputs) -> "np.ndarray | None":
    return None if inputs.gallery is None else inputs.gallery.labels


def _comparison(
    options: argparse.Namespace, inputs: Inputs, other: fr.Report, report: fr.Report
) -> fr.evaluation.Comparison:
    ours = options.name or inputs.queries.name
    if isinstance(inputs.other, Rows):
        theirs = inputs.other.name
    else:  # a report named after a data set says nothing here
        theirs = Path(options.compare).stem if other.name in ("", report.name) else other.name
    if theirs == ours:
        theirs, ours = options.compare, options.embeddings if options.data is None else f"{ours} (new)"
    try:
        return fr.compare(other, report, seed=options.seed, names=(theirs, ours))
    except InputError as error:
        said = f"report_a is {options.compare}, report_b is {options.embeddings}"
        raise InputError(f"--compare: {error} ({said})") from error
