"""What `frontrank evaluate` is given, read, and checked as far as can be done before the work."""

import argparse
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import frontrank as fr
from frontrank.checks import suggestion
from frontrank.cli.descriptors import whitening_source
from frontrank.cli.rows import (
    Rows,
    described,
    read_rows,
    require_one_dimension,
    require_same_rows,
    say,
    shared_ids,
    split,
    with_labels,
)
from frontrank.data import read_labels
from frontrank.data.embedding_files import ENDINGS, check_file
from frontrank.errors import InputError
from frontrank.evaluation.evaluate import coded
from frontrank.evaluation.measures import read_metrics
from frontrank.evaluation.protocols import PROTOCOLS, Protocol
from frontrank.evaluation.revisited import read_ground_truth


@dataclass(frozen=True, eq=False)
class Inputs:
    """All that the command was given, read and checked."""

    protocol: Protocol | None
    queries: Rows
    gallery: Rows | None
    distractors: Rows | None
    templates: "np.ndarray | None"
    ground_truth: list[dict[str, Any]] | None
    whitening: fr.Whitening | Rows | None
    other: fr.Report | Rows | None
    targets: dict[str, Path]  # setup, or "" -> where its report is saved


def read_inputs(options: argparse.Namespace) -> Inputs:
    """Read and check all that can be checked before the work; says what was read."""
    protocol, targets = check_options(options)
    _require_files(options.embeddings, options.gallery, options.distractors)
    revisited = protocol is not None and protocol.kind == "revisited"
    other: fr.Report | Rows | None = None
    if (options.compare or "").lower().endswith(".json"):
        other = fr.Report.load(options.compare)
    truth = read_ground_truth(options.ground_truth).lists if revisited else None
    queries = read_rows(options.embeddings, options.key)
    gallery = None if options.gallery is None else read_rows(options.gallery, options.gallery_key)
    if not revisited:
        queries = with_labels(queries, options.labels, "--labels")
        gallery = None if gallery is None else with_labels(gallery, options.gallery_labels, "--gallery-labels")
        coded(queries.labels, None if gallery is None else gallery.labels)  # type: ignore[arg-type]
    templates = options.templates
    if templates is not None:
        templates = read_labels(templates, queries.file, len(queries.embeddings), "templates")
    distractors = None if options.distractors is None else read_rows(options.distractors)
    whitening = whitening_source(options)
    if options.compare is not None and other is None:
        other = read_rows(options.compare)
    inputs = Inputs(protocol, queries, gallery, distractors, templates, truth, whitening, other, targets)
    _say_what_was_read(options, inputs)
    _require_fit(options, inputs)
    return inputs


def check_options(options: argparse.Namespace) -> tuple[Protocol | None, dict[str, Path]]:
    """The protocol, and where reports are saved; refuses what can be refused before embeddings are there."""
    protocol = _protocol(options)
    _require_metrics(options)
    _require_device(options.device)
    targets = _json_targets(options)
    _require_files(options.whiten, options.compare)
    return protocol, targets


def setups_of(options: argparse.Namespace) -> tuple[str, ...]:
    """The setups of the protocol revisited that are asked for; "" with any other."""
    if options.setup == "all":
        return "easy", "medium", "hard"
    return (options.setup or "medium",) if options.protocol == "revisited" else ("",)


def _protocol(options: argparse.Namespace) -> Protocol | None:
    """The protocol asked for; refuses options it has no use for."""
    name = options.protocol
    if name is None:
        if options.templates is not None:
            raise InputError("--templates is of the protocols vggface2 and ijb-c; add --protocol")
        return None
    if name not in PROTOCOLS:
        remedy = suggestion(name, PROTOCOLS) or f"; there are {', '.join(PROTOCOLS)}"
        raise InputError(f"--protocol {name!r} is not known{remedy}")
    protocol = PROTOCOLS[name]
    if protocol.kind == "query-gallery" and options.gallery is None:
        raise InputError(f"--protocol {name} needs --gallery; add it")
    if protocol.kind in ("self", "templates") and options.gallery is not None:
        raise InputError(f"--protocol {name} searches the embeddings among themselves; leave out --gallery")
    if protocol.kind != "templates" and options.templates is not None:
        raise InputError(f"--templates is of the protocols vggface2 and ijb-c, not of {name}; leave it out")
    for option in ("augment", "expand"):
        if protocol.kind == "templates" and getattr(options, option) is not None:
            raise InputError(f"--{option} does not go with --protocol {name}, which averages rows; leave it out")
    return protocol


def _require_metrics(options: argparse.Namespace) -> None:
    if options.metrics is None:
        return
    _, of_groups = read_metrics(options.metrics)
    for option in ("expand", "rerank"):
        if of_groups and getattr(options, option):
            raise InputError(f"--metrics: {of_groups[0]} is of embeddings, not of a search; leave it or --{option} out")


def _require_device(name: str | None) -> None:
    if name is None:
        return
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = re.split(r"[.\n]", str(error))[0][:120]
        raise InputError(
            f"--device {name!r} cannot be used ({reason}); use cpu, or a device of this machine"
        ) from error


def _require_files(*sources: str | None) -> None:
    """Refuse a file that is not there before another one is read, which may be large."""
    for source in sources:
        if source is not None and not source.lower().endswith(".json"):
            check_file(Path(split(source)[0]), ENDINGS, "embeddings")


def _json_targets(options: argparse.Namespace) -> dict[str, Path]:
    """Where the report of each setup is saved; refuses what would fail, or replace something, after the work."""
    if options.json is None:
        return {}
    out = Path(options.json)
    if out.suffix.lower() != ".json":
        raise InputError(f"--json {out} must end in .json; choose such a name")
    setups = setups_of(options)
    targets = {setup: out.with_name(f"{out.stem}-{setup}{out.suffix}") if len(setups) > 1 else out for setup in setups}
    read = [Path(of).resolve() for of in (options.labels, options.gallery_labels, options.templates) if of is not None]
    for target in targets.values():
        if target.resolve() in read:
            raise InputError(f"--json {target} is read by this command; choose another name")
        if os.path.isdir(target):
            raise InputError(f"--json {target} is a folder; choose another name")
        if os.path.lexists(target) and not options.force:
            raise InputError(f"--json {target} exists already; choose another name, or add --force to replace it")
        if not os.path.isdir(target.parent):
            raise InputError(f"--json: the folder {target.parent} is not there; make it first")
        if not os.access(target.parent, os.W_OK):
            raise InputError(f"--json: nothing can be written to {target.parent}; choose another folder")
    return targets


def _say_what_was_read(options: argparse.Namespace, inputs: Inputs) -> None:
    if options.data is not None:  # the images were named, and the files of their embeddings are not the user's
        return
    parts = (inputs.queries, inputs.gallery, inputs.distractors, inputs.whitening, inputs.other)
    for rows in parts:
        if isinstance(rows, Rows):
            say(options.quiet, f"read {described(rows)}")
    if isinstance(inputs.whitening, fr.Whitening):
        say(options.quiet, f"read {options.whiten}: {inputs.whitening}")
    if isinstance(inputs.other, fr.Report):
        say(options.quiet, f"read {options.compare}: a report of {inputs.other.queries:,} queries")
    if inputs.gallery is not None and (count := shared_ids(inputs.queries, inputs.gallery)):
        ids = f"{count:,} ids are" if count > 1 else "1 id is"
        say(options.quiet, f"note: {ids} in both queries and gallery; such a query finds itself")
    say(options.quiet, "")


def _require_fit(options: argparse.Namespace, inputs: Inputs) -> None:
    """Refuse files that do not go together, before anything long is done."""
    queries, other, whitening = inputs.queries, inputs.other, inputs.whitening
    rows = [part for part in (inputs.gallery, inputs.distractors, whitening) if isinstance(part, Rows)]
    require_one_dimension(queries, *rows)
    count = len(queries.embeddings)
    if isinstance(whitening, fr.Whitening) and whitening.components.shape[1] != queries.embeddings.shape[1]:
        raise InputError(
            f"{queries.source} has {queries.embeddings.shape[1]} dimensions, but the whitening of {options.whiten} was "
            f"fitted on {whitening.components.shape[1]}; use both with the same model"
        )
    if inputs.ground_truth is not None and len(inputs.ground_truth) != count:
        raise InputError(
            f"{options.ground_truth} is of {len(inputs.ground_truth)} queries, but {queries.source} has {count} rows; "
            "give a row per query, in the same order"
        )
    if isinstance(other, Rows):
        require_same_rows(queries, other, labels=options.labels is None)
    averaged = inputs.protocol is not None and inputs.protocol.kind == "templates"  # queries are fewer than rows
    if isinstance(other, fr.Report) and other.queries != count and not averaged:
        raise InputError(
            f"--compare: {options.compare} is of {other.queries:,} queries, but {queries.source} has {count:,} rows; "
            "both must be of the same queries in the same order"
        )
    _require_memory(options, inputs)


def _require_memory(options: argparse.Namespace, inputs: Inputs) -> None:
    """Refuse what the machine cannot hold: the system may promise the memory, and then end the process."""
    parts = [rows for rows in (inputs.queries, inputs.gallery, inputs.distractors) if rows is not None]
    size = 0
    if options.whiten or options.augment or (options.expand and options.distractors):
        size += sum(4 * len(rows.embeddings) * (options.dim or rows.embeddings.shape[1]) for rows in parts)
    if options.rerank:
        size += 4 * len(parts[0].embeddings) * len(parts[-1].embeddings)
    there = _memory()
    if size > there:
        blamed = [f"--{name}" for name in ("whiten", "augment", "expand", "rerank") if getattr(options, name)]
        raise InputError(
            f"{' '.join(blamed)} would hold {size / 1e9:,.1f} GB, and this machine has {there / 1e9:,.1f}; "
            "leave it out, or evaluate fewer rows"
        )


def _memory() -> float:
    """Bytes of memory of this machine, as far as it tells."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return math.inf
