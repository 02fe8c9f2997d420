"""Measure how well embeddings rank: each metric over the full ranking by cosine similarity, with its 95 % interval.
Without --gallery every row is a query and searches all the others. Rows with the same label are relevant to each other.
If a model is given in place of the embeddings, it embeds the images of --data.

files:
  embeddings  .npy, .npz, .parquet or .safetensors: a row per image, any float
              type. FILE:NAME picks one of several arrays. Only .npy and
              .safetensors may be larger than memory.
  labels      the name of an array beside the embeddings, or a file: .txt (one
              per line), .json, .npy, or .csv, .npz, .parquet, .safetensors as
              FILE:COLUMN. Not needed where the embeddings' file has "labels".

examples:
  frontrank evaluate test.npy --labels labels.txt
  frontrank evaluate runs/first/model --data my_photos --split test
  frontrank evaluate test.npz --metrics R@1,R@10,mAP --table markdown
  frontrank evaluate test.npy --labels table.csv:product --json new.json
  frontrank evaluate test.npy --labels labels.txt --compare old.json
  frontrank evaluate test.npz --protocol sop
  frontrank evaluate test.npz --adapter adapter.safetensors
  frontrank evaluate test.npz --whiten train.npy --dim 16 --rerank
  frontrank evaluate queries.npy --labels queries.txt \\
      --gallery gallery.npy --gallery-labels gallery.txt
  frontrank evaluate queries.parquet --gallery gallery.parquet --expand 5
  frontrank evaluate faces.npz --protocol ijb-c --templates template
  frontrank evaluate q.npy --gallery g.npy --protocol revisited \\
      --ground-truth gnd_roxford5k.pkl --setup all
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import frontrank as fr
from frontrank.checks import check_choice
from frontrank.cli.inputs import (
    NEIGHBOURS,
    EmbeddingRows,
    PrintNames,
    add_labels,
    add_reading_arguments,
    check_output,
    number_type,
    option_flags,
    read_adapter,
    read_images,
    read_rows,
    reading_settings,
    refuse_options,
    say,
    split_source,
)
from frontrank.errors import FrontrankWarning, InputError
from frontrank.files import count_shared_files

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from frontrank.data import ImageTable
    from frontrank.data.embedding_files import Array
    from frontrank.evaluation import Comparison
    from frontrank.evaluation.protocols import Protocol

PROTOCOLS = "sop, cub, inaturalist, in-shop, vehicleid-small, -medium, -large, vggface2, ijb-c, revisited"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.usage = "frontrank evaluate EMBEDDINGS|MODEL [--labels LABELS|--data PATH] ..."
    parser.add_argument("embeddings", metavar="EMBEDDINGS", help="file of embeddings: the queries; or a model's folder")
    parser.add_argument("--key", metavar="NAME", help='the array in EMBEDDINGS; "embeddings" by default')
    parser.add_argument("--labels", metavar="LABELS", help="a label per row; see files")

    images = parser.add_argument_group("images, if a model is given")
    images.add_argument("--data", metavar="PATH", help="folder, table or data set of images")
    add_reading_arguments(images)

    gallery = parser.add_argument_group("what is searched")
    gallery.add_argument("--gallery", metavar="FILE", help="embeddings to search, instead of the queries themselves")
    gallery.add_argument("--gallery-key", metavar="NAME", help="the array in the gallery's file")
    gallery.add_argument("--gallery-labels", metavar="LABELS", help="a label per row of the gallery")
    levels = "coarser columns, finest first, or none; without --protocol level2, level3, ..., subcategory, category"
    gallery.add_argument("--levels", metavar="LIST", type=_names, help=levels)

    metrics = parser.add_argument_group("what is measured")
    metrics.add_argument("--metrics", metavar="LIST", type=_names, help="such as R@1,R@10,P@5,mAP,mAP@R,NMI")
    metrics.add_argument("--protocol", metavar="NAME", help=f"that of a data set: {PROTOCOLS}")
    metrics.add_argument("--protocols", action=PrintNames, nargs=0, const=_protocols, help="explain them and exit")
    metrics.add_argument("--templates", metavar="LABELS", help="for vggface2 and ijb-c: a template (video) per row")
    metrics.add_argument("--ground-truth", metavar="PKL", help="for revisited: gnd_roxford5k.pkl or gnd_rparis6k.pkl")
    setups = ("easy", "medium", "hard", "all")
    metrics.add_argument("--setup", choices=setups, help="for revisited: easy, medium (default), hard or all three")
    metrics.add_argument("--distractors", metavar="FILE", help="for revisited: more embeddings to search, such as R1M")

    before = parser.add_argument_group("what is done to the embeddings first, in this order")
    before.add_argument("--adapter", metavar="FILE", help="change them by this, which frontrank adapt wrote")
    before.add_argument("--whiten", metavar="FILE", help="PCA whitening: training embeddings, or a saved whitening")
    power, alpha = number_type(float, at_least=0, at_most=1), number_type(float, at_least=0)
    before.add_argument("--power", metavar="P", type=power, help="of the variances; 0.25 by default, 0.5 is full")
    before.add_argument("--dim", metavar="N", type=number_type(int, at_least=1), help="dimensions kept; all by default")
    before.add_argument("--augment", **NEIGHBOURS, help="move every gallery item to its K nearest; 10 by default")
    before.add_argument("--expand", **NEIGHBOURS, help="move each query to its K nearest in the gallery; 10 by default")
    before.add_argument("--alpha", metavar="A", type=alpha, help="score^A weighs the K nearest; 2 by default")
    before.add_argument("--rerank", action="store_true", help="k-reciprocal re-ranking; holds all scores in memory")

    output = parser.add_argument_group("output and running")
    output.add_argument("--table", choices=("text", "markdown", "latex"), default="text", help="format of tables")
    output.add_argument("--json", metavar="OUT", help="save the report, with values per query, as OUT.json")
    output.add_argument("--force", action="store_true", help="let --json replace a file")
    output.add_argument("--compare", metavar="OTHER", help="a saved report (.json), or embeddings of the same rows")
    output.add_argument("--name", metavar="TEXT", help="name of these embeddings in tables")
    output.add_argument("--device", metavar="NAME", help="where scores are computed, such as cuda or cuda:1")
    seed = number_type(int, at_least=0, at_most=2**31 - 1)
    output.add_argument("--seed", metavar="N", type=seed, default=0, help="of the k-means of NMI, and of --compare")
    output.add_argument("--quiet", action="store_true", help="print nothing but tables and errors")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _protocols() -> dict[str, str]:
    from frontrank.evaluation.protocols import PROTOCOLS

    return {name: protocol.help for name, protocol in PROTOCOLS.items()}


def run(options: argparse.Namespace) -> None:
    """Evaluate, print, save, compare; processes that torchrun started share the work, and the first prints."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        _evaluate(options)
        return
    from frontrank.training import distributed
    from frontrank.training.run import processes

    device = options.device or ("auto" if os.path.isdir(options.embeddings) else "cpu")
    with processes(device), distributed.share_queries(), warnings.catch_warnings():
        if not distributed.is_main():
            options.quiet = True
            warnings.simplefilter("ignore", FrontrankWarning)
        _evaluate(options, distributed.is_main())


def _evaluate(options: argparse.Namespace, is_main: bool = True) -> None:
    if options.metrics is not None:  # a name that is wrong is an error before anything is read
        from frontrank.evaluation.measures import read_metrics

        read_metrics(options.metrics)
    if os.path.isdir(options.embeddings):
        options, rows = _embed(options)
    else:
        refuse_options(options, _OF_MODELS, f"goes with a model, and {options.embeddings} is no folder; leave it out")
        _check_options(options)
        rows = {}
    inputs = _fit_whitening(_read_inputs(options, rows))
    sides = _transform(inputs, inputs.queries)
    reports = {setup: _report(inputs, inputs.queries, sides, setup) for setup in _setups(options)}
    try:
        if is_main:
            print("\n\n".join(report.table(options.table) for report in reports.values()), flush=True)
    finally:  # the work is done: keep it even if nobody reads the table
        for setup, target in _targets(options).items() if is_main else ():
            reports[setup].save(target, overwrite=options.force)
            say(options.quiet, f"wrote {target}")
    if (other := inputs.other) is not None:
        ((setup, report),) = reports.items()
        if isinstance(other, EmbeddingRows):
            other = replace(other, labels=inputs.queries.labels)
            with other.name_in_errors():
                other = _report(inputs, other, _transform(inputs, other), setup)
        if is_main:
            print("\n" + _comparison(inputs, other, report).table(options.table), flush=True)


# Options that do not go together

_NEEDS = {  # option: those of which one must be there, too
    "gallery_key": ("gallery",),
    "gallery_labels": ("gallery",),
    "power": ("whiten",),
    "dim": ("whiten", "adapter"),
    "alpha": ("expand", "augment"),
    "force": ("json",),
}
_NEEDED = {"query-gallery": ("gallery",), "revisited": ("gallery", "ground_truth")}  # by the kind of a protocol
_OF_MODELS = ("data", "layout", "split", "allow_partial", "batch_size", "workers")
_NOT_OF_MODELS = ("key", "labels", "gallery", "gallery_key", "gallery_labels", "distractors")


def _check_options(options: argparse.Namespace) -> None:
    """Raise if options do not go together or are not valid, before anything is read."""
    check_combination(options)
    options.alpha = 2.0 if options.alpha is None else options.alpha
    options.level_names = ()
    if options.device is not None:
        from frontrank.training.distributed import build_device

        options.device = build_device(options.device)
    _check_targets(options)
    _check_files(options.whiten, options.compare)


def check_combination(options: argparse.Namespace) -> None:
    """Raise if options do not go together, as far as no file has to be looked at."""
    from frontrank.evaluation.measures import read_metrics
    from frontrank.evaluation.protocols import PROTOCOLS

    name, rerank = options.protocol, options.rerank
    kind = "" if name is None else PROTOCOLS[check_choice("--protocol", name, PROTOCOLS)].kind
    for option in _NEEDED.get(kind, ()):
        if getattr(options, option) is None:
            raise InputError(f"--protocol {name} needs --{option.replace('_', '-')}; add it")
    for option, others in _NEEDS.items():
        if not option_flags(options, others):
            needed = " or ".join(f"--{other}" for other in others)
            refuse_options(options, [option], f"needs {needed}; add it, or leave both out")
    unsaved = options.compare is not None and not _is_report(options.compare)
    not_with = f"does not go with --protocol {name}, which"
    of_embeddings = ", ".join([] if options.metrics is None else read_metrics(options.metrics)[1])
    conflicts = [  # what holds, the options that it rules out, and why
        (kind == "revisited", "labels gallery_labels metrics", f"{not_with} has its own; leave it out"),
        (kind != "revisited", "ground_truth setup distractors", "needs --protocol revisited; add it"),
        (kind in ("self", "templates"), "gallery", f"{not_with} searches among the embeddings; leave it out"),
        (kind == "templates", "augment expand", f"{not_with} averages rows; leave it out"),
        (kind != "templates", "templates", "needs --protocol vggface2 or ijb-c; add it, or leave it out"),
        (rerank, "protocol", "does not go with --rerank; name the metrics by --metrics instead"),
        (rerank, "device", "does not go with --rerank, which runs on the CPU; leave it out"),
        (rerank and not options.gallery, "expand", "with --rerank needs --gallery; add it, or leave one of them out"),
        (of_embeddings, "expand rerank", f"does not go with --metrics {of_embeddings}; leave one of them out"),
        (options.adapter is not None, "whiten", "does not go with --adapter, which whitens itself; leave one out"),
        (
            unsaved,
            "gallery whiten adapter",
            f"with --compare {options.compare} needs a saved report; give what --json wrote",
        ),
    ]
    for holds, names, reason in conflicts:
        if holds:
            refuse_options(options, names.split(), reason)
    if options.compare and options.setup == "all":
        raise InputError("--compare needs one setup; give --setup easy, medium or hard")


def _is_report(source: str) -> bool:
    return source.lower().endswith(".json")


def _check_targets(options: argparse.Namespace) -> None:
    """Raise if --json could not be written after the work, or would replace what the command reads."""
    labels = (options.labels, options.gallery_labels, options.templates)
    sources = [Path(source).resolve() for source in labels if source is not None]
    for target in _targets(options).values():
        if target.resolve() in sources:
            raise InputError(f"--json {target} is read by this command; choose another name")
        check_output("--json", target, [".json"], options.force)


def _targets(options: argparse.Namespace) -> dict[str, Path]:
    """Return where the report of each setup is saved."""
    if options.json is None:
        return {}
    out, setups = Path(options.json), _setups(options)
    return {setup: out.with_name(f"{out.stem}-{setup}{out.suffix}") if len(setups) > 1 else out for setup in setups}


def _setups(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the setups of the protocol revisited; "" for any other."""
    if options.setup == "all":
        return "easy", "medium", "hard"
    return (options.setup or "medium",) if options.protocol == "revisited" else ("",)


def _check_files(*sources: str | None) -> None:
    """Raise if a file does not exist, before another one is read, which may be large."""
    from frontrank.data.embedding_files import ENDINGS, check_file

    for source in sources:
        if source is not None and not _is_report(source):
            check_file(Path(split_source(source)[0]), ENDINGS, "embeddings")


# Labels of several levels, and several labels


def _use_sets(
    options: argparse.Namespace, queries: EmbeddingRows, gallery: EmbeddingRows | None
) -> tuple[EmbeddingRows, EmbeddingRows | None]:
    """Return rows with sets of labels on both sides; raise if an option needs one label per row."""
    import numpy as np

    if options.levels not in (None, ("none",)) or options.protocol is not None or options.templates is not None:
        flags = " and ".join(option_flags(options, ["levels", "protocol", "templates"]))
        raise InputError(f"{flags} needs one label per row, and {queries.source} has several; leave it out")

    def as_sets(rows: EmbeddingRows) -> EmbeddingRows:
        if rows.has_sets or rows.labels is None:
            return rows
        sets = np.empty(len(rows.labels), dtype=object)
        sets[:] = [frozenset([label] if label else []) for label in rows.labels.astype(str).tolist()]
        return replace(rows, labels=sets)

    return as_sets(queries), None if gallery is None else as_sets(gallery)


def _add_levels(
    options: argparse.Namespace, queries: EmbeddingRows, gallery: EmbeddingRows | None
) -> tuple[EmbeddingRows, EmbeddingRows | None]:
    """Return rows with the labels of all levels [row, level] that the columns of both files have."""
    import numpy as np

    from frontrank.data import read_labels
    from frontrank.data.table import level_faults, nested_levels, warn_of_levels
    from frontrank.evaluation.evaluate import has_small_levels
    from frontrank.evaluation.measures import OF_LEVELS
    from frontrank.evaluation.protocols import PROTOCOLS

    sides = [queries] if gallery is None else [queries, gallery]
    templates = options.protocol is not None and PROTOCOLS[options.protocol].kind == "templates"
    # A protocol has its own metrics, and a coarse level of a large data set takes long: only where it is asked for.
    if options.levels == ("none",) or (options.protocol is not None and options.levels is None):
        return queries, gallery
    if templates:
        raise InputError(f"--levels does not go with --protocol {options.protocol}; leave it out")
    levels = []
    for rows in sides:
        assert rows.labels is not None
        count = len(rows.embeddings)
        if options.levels is None:
            levels.append(nested_levels(rows.labels, rows.file.columns))
            of_levels = [name for name in options.metrics or () if name.startswith(OF_LEVELS)]
            if of_levels and level_faults(rows.labels, rows.file.columns):
                warn_of_levels(f"{of_levels[0]} of {rows.source}", rows.labels, rows.file.columns)
        else:
            named = {name: read_labels(name, rows.file, count, "levels").astype(str) for name in options.levels}
            levels.append({"label": rows.labels.astype(str), **named})
    if len(levels[0]) == 1 or any(set(each) != set(levels[0]) for each in levels):
        return queries, gallery
    both = [np.stack(list(each.values()), 1) for each in levels]
    if options.levels is None and not has_small_levels(both[0], None if gallery is None else both[1]):
        coarser = ",".join(list(levels[0])[1:])
        message = f"coarser levels are not measured, as that takes long; --levels {coarser} does it"
        warnings.warn(message, FrontrankWarning, stacklevel=2)
        return queries, gallery
    options.level_names = tuple(levels[0])
    whole = [replace(rows, labels=each) for rows, each in zip(sides, both, strict=True)]
    return whole[0], None if gallery is None else whole[1]


# The images of a model

_REVISITED = {"roxford5k": "gnd_roxford5k.pkl", "rparis6k": "gnd_rparis6k.pkl"}


def _embed(options: argparse.Namespace) -> tuple[argparse.Namespace, dict[str, EmbeddingRows]]:
    """Embed the images of --data; returns the options of their protocol, and the rows by the option they stand for."""
    from frontrank.training.defaults import load_model
    from frontrank.training.distributed import build_device

    if options.data is None:
        raise InputError(f"{options.embeddings} is a folder, as of a model, which needs --data; add it, or name a file")
    refuse_options(options, _NOT_OF_MODELS, "does not go with --data, which has its own; leave it out")
    table = read_images(options)
    folder = Path(options.embeddings)
    _warn_of_training(folder, table)
    model = load_model(folder, build_device(options.device or "auto"))
    options = argparse.Namespace(**vars(options))
    options.name = options.name or _model_name(folder)
    table = _apply_protocol(options, table)
    sides = {
        "embeddings": table.rows((table.roles == "") | (table.roles == "query")),
        "gallery": table.of(role="gallery"),
        "distractors": table.of(role="distractor"),
    }
    sides = {side: part for side, part in sides.items() if len(part)}
    if "embeddings" not in sides:
        raise InputError(f"--data {options.data} has no images that search others; give some with another role")
    if "distractors" in sides and options.protocol != "revisited":
        raise InputError(f"--data {options.data} has distractors, which need --protocol revisited; drop them")
    for side in sides:
        setattr(options, side, f"{side} of {options.data}")
    _check_options(options)
    how = reading_settings(options)
    return options, {
        side: _table_rows(getattr(options, side), part, fr.embed_table(model, part, **how))
        for side, part in sides.items()
    }


def _table_rows(source: str, table: ImageTable, embeddings: np.ndarray) -> EmbeddingRows:
    """Return embeddings as if they had been read from a file."""
    from frontrank.data import EmbeddingFile

    labels = table.labels if any(table.labels) else None  # images of the protocol revisited have none
    columns = {name: column for name, column in table.extra.items() if name == "template"}
    ids = None if columns else table.paths  # a frame may be in several templates, so its path is no id
    columns |= {"category": table.categories, **table.extra}
    return EmbeddingRows(source, embeddings, EmbeddingFile(Path(source), embeddings, labels, ids, columns))


def _apply_protocol(options: argparse.Namespace, table: ImageTable) -> ImageTable:
    """Set the protocol of a published data set, if none is given; returns the images that the protocol is about."""
    from frontrank.data.published import PUBLISHED
    from frontrank.evaluation.protocols import PROTOCOLS

    dataset = next((name for name, published in PUBLISHED.items() if published.title == table.name), "")
    if dataset == "vehicleid" and options.protocol is None:
        raise InputError("VehicleID has three test lists; add --protocol vehicleid-small, -medium or -large")
    if options.protocol is None:
        options.protocol = "revisited" if dataset in _REVISITED else dataset if dataset in PROTOCOLS else None
    if options.protocol == "revisited" and dataset in _REVISITED:
        truth = _find_ground_truth(table, _REVISITED[dataset])
        options.ground_truth = options.ground_truth or str(truth)
    if "template" in table.extra and options.protocol in ("ijb-c", "vggface2"):
        options.templates = options.templates or "template"
    if dataset == "vehicleid" and options.protocol.startswith("vehicleid-"):
        return table.rows(table.extra[options.protocol.removeprefix("vehicleid-")].astype(bool))
    return table


def _find_ground_truth(table: ImageTable, name: str) -> Path:
    """Return the file beside the images; raise if images are missing, as it names them by their places in its lists."""
    file = next((folder / name for folder in (table.root, table.root.parent) if (folder / name).exists()), None)
    if file is None:
        raise InputError(f"{table.root} has no {name}; give it by --ground-truth")
    truth = fr.evaluation.read_ground_truth(file)
    for role, names in (("query", truth.queries), ("gallery", truth.images)):
        if len(table.of(role=role)) < len(names):
            raise InputError(f"{table.name} lacks some {role} images, and its protocol needs all; unpack it again")
    return file


def _warn_of_training(model: Path, table: ImageTable) -> None:
    """Warn if the model was trained on some of the images, as far as the folder of its run shows."""
    from frontrank.data import read_table

    run = model.resolve().parent / "images.csv"
    if not run.is_file():
        return
    if count := count_shared_files(table.files(), read_table(run).of("train").files()):
        message = (
            f"{count:,} of the {len(table):,} images were trained on, which makes the figures too good; evaluate "
            f"others, such as the held-out classes: --data {run} --split validation"
        )
        warnings.warn(message, FrontrankWarning, stacklevel=2)


def _model_name(folder: Path) -> str:
    folder = folder.resolve()
    return folder.parent.name if folder.name == "model" else folder.name


# Files


@dataclass(frozen=True, eq=False)
class _Inputs:
    """All that the command was given, read and checked."""

    options: argparse.Namespace
    protocol: Protocol | None
    queries: EmbeddingRows
    gallery: EmbeddingRows | None
    distractors: EmbeddingRows | None
    templates: np.ndarray | None
    ground_truth: list[dict[str, Any]] | None
    whitening: fr.Whitening | fr.Adapter | EmbeddingRows | None
    other: fr.Report | EmbeddingRows | None

    @property
    def gallery_labels(self) -> np.ndarray | None:
        return None if self.gallery is None else self.gallery.labels

    @property
    def progress(self) -> bool | None:
        return False if self.options.quiet else None


def _read_inputs(options: argparse.Namespace, rows: dict[str, EmbeddingRows]) -> _Inputs:
    """Read and check all that can be checked before the work; rows: of a model's images, by the option for a file."""
    from frontrank.data import read_labels
    from frontrank.evaluation.evaluate import encode_labels
    from frontrank.evaluation.protocols import PROTOCOLS

    def read(option: str, key: str | None = None) -> EmbeddingRows | None:
        source = getattr(options, option)
        return rows.get(option) or (None if source is None else read_rows(source, key))

    if not rows:
        _check_files(options.embeddings, options.gallery, options.distractors)
    report = fr.Report.load(options.compare) if _is_report(options.compare or "") else None
    revisited = options.protocol == "revisited"
    truth = fr.evaluation.read_ground_truth(options.ground_truth).lists if revisited else None
    queries, gallery = read("embeddings", options.key), read("gallery", options.gallery_key)
    assert queries is not None
    if truth is None:
        queries = add_labels(queries, options.labels, "--labels")
        gallery = None if gallery is None else add_labels(gallery, options.gallery_labels, "--gallery-labels")
        if queries.has_sets or (gallery is not None and gallery.has_sets):
            queries, gallery = _use_sets(options, queries, gallery)
        else:
            encode_labels(queries.labels, None if gallery is None else gallery.labels)  # type: ignore[arg-type]
            queries, gallery = _add_levels(options, queries, gallery)
    templates = None
    if options.templates is not None:
        templates = read_labels(options.templates, queries.file, len(queries.embeddings), "templates")
    whitening, other = _read_whitening(options), read("compare") if report is None else report
    protocol, distractors = PROTOCOLS.get(options.protocol), read("distractors")
    inputs = _Inputs(options, protocol, queries, gallery, distractors, templates, truth, whitening, other)
    if options.data is None:  # else the images were named already
        _describe_inputs(inputs)
    _check_fit(inputs)
    _check_memory(inputs)
    return inputs


def _read_whitening(options: argparse.Namespace) -> fr.Whitening | fr.Adapter | EmbeddingRows | None:
    """Read the adapter, the saved whitening, or the embeddings to fit one on."""
    from frontrank.data.embedding_files import list_arrays, parsing

    if options.adapter is not None:
        return read_adapter(options)
    if options.whiten is None:
        return None
    path = Path(split_source(options.whiten)[0])
    if path.suffix.lower() == ".safetensors":
        with parsing(path):
            is_saved = set(list_arrays(path)) >= {"mean", "components", "variance"}
        if is_saved:
            reason = f"is for fitting, but {path} is a saved whitening; leave it out, or give the training embeddings"
            refuse_options(options, ["power", "dim"], reason)
            return fr.Whitening.load(path)
    return read_rows(options.whiten)


def _describe_inputs(inputs: _Inputs) -> None:
    options, queries, gallery = inputs.options, inputs.queries, inputs.gallery
    lines = [
        part.describe()
        for part in (queries, gallery, inputs.distractors, inputs.whitening, inputs.other)
        if isinstance(part, EmbeddingRows)
    ]
    if isinstance(inputs.whitening, fr.Whitening):
        lines.append(f"{options.whiten}: {inputs.whitening}")
    if isinstance(inputs.whitening, fr.Adapter):
        lines.append(f"{options.adapter}: {inputs.whitening}")
    if isinstance(inputs.other, fr.Report):
        lines.append(f"{options.compare}: a report of {inputs.other.queries:,} queries")
    for line in lines:
        say(options.quiet, f"read {line}")
    ids = [rows.file.ids for rows in (queries, gallery) if rows is not None and rows.file.ids is not None]
    texts = [set(each.tolist()) for each in ids if each.dtype.kind == "U"]  # numbers may count anything
    if len(texts) == 2 and (count := len(texts[0] & texts[1])):
        both = f"{count:,} ids are" if count > 1 else "1 id is"
        say(options.quiet, f"note: {both} in both queries and gallery; such a query finds itself")
    say(options.quiet, "")


def _check_fit(inputs: _Inputs) -> None:
    """Raise if files do not go together, before anything long is done."""
    options, queries, other, whitening = inputs.options, inputs.queries, inputs.other, inputs.whitening
    count, dim = queries.embeddings.shape
    others = [part for part in (inputs.gallery, inputs.distractors, whitening) if isinstance(part, EmbeddingRows)]
    dims = {part.source: part.embeddings.shape[1] for part in others}
    if isinstance(whitening, fr.Whitening):
        dims[f"the whitening {options.whiten}"] = whitening.components.shape[1]
    if isinstance(whitening, fr.Adapter):
        dims[f"the adapter {options.adapter}"] = whitening.in_dim
    for source, other_dim in dims.items():
        if other_dim != dim:
            remedy = "both must come from the same model"
            raise InputError(f"{queries.source} has {dim} dimensions and {source} has {other_dim}; {remedy}")
    if inputs.ground_truth is not None and len(inputs.ground_truth) != count:
        text = f"{options.ground_truth} is of {len(inputs.ground_truth)} queries, but {queries.source} has {count} rows"
        raise InputError(f"{text}; give a row per query, in the same order")
    if other is None:
        return
    rows = other.queries if isinstance(other, fr.Report) else len(other.embeddings)
    averaged = isinstance(other, fr.Report) and inputs.protocol is not None and inputs.protocol.kind == "templates"
    if rows != count and not averaged:  # else queries are fewer than rows
        text = f"--compare: {options.compare} has {rows:,} rows or queries, and {queries.source} has {count:,}"
        raise InputError(f"{text}; both must be of the same queries in the same order")
    if isinstance(other, EmbeddingRows):
        for what in ("ids", "labels") if options.labels is None else ("ids",):
            _check_same(what, queries, other)


def _check_same(what: str, first: EmbeddingRows, other: EmbeddingRows) -> None:
    """Raise if the ids or labels of rows show that they are not of the same items in the same order."""
    a, b = getattr(first.file, what), getattr(other.file, what)
    if a is None or b is None:
        return
    differ = (a.astype(str) != b.astype(str)).nonzero()[0]
    if len(differ):
        remedy = "sort both by id" if what == "ids" and set(a.tolist()) == set(b.tolist()) else "use the same rows"
        row = differ[0]
        rows = f"{len(differ):,} of {len(a):,} rows, first in row {row} ({a[row]} and {b[row]})"
        text = f"--compare: the {what} of {first.source} and {other.source} differ in {rows}"
        raise InputError(f"{text}; {remedy}, in the same order, in both")


def _check_memory(inputs: _Inputs) -> None:
    """Raise if the machine cannot hold what is asked for: the system may grant memory, and then end the process."""
    from frontrank.machine import total_memory

    options, size = inputs.options, 0
    parts = [rows.embeddings for rows in (inputs.queries, inputs.gallery, inputs.distractors) if rows is not None]
    if options.whiten or options.adapter or options.augment or (options.expand and options.distractors):
        size += sum(4 * len(part) * (options.dim or part.shape[1]) for part in parts)
    if options.rerank:
        size += 4 * len(parts[0]) * len(parts[-1])
    memory = total_memory()
    if memory is not None and size > memory:
        flags = " ".join(option_flags(options, ["adapter", "whiten", "augment", "expand", "rerank"]))
        text = f"{flags} would hold {size / 1e9:,.1f} GB, and this machine has {memory / 1e9:,.1f}"
        raise InputError(f"{text}; leave it out, or evaluate fewer rows")


# Whitening, augmentation, expansion


@dataclass(frozen=True, eq=False)
class _Sides:
    """Queries and what they search, or each other; own: query i is item i of the gallery, and not in its own list."""

    queries: Array
    gallery: Array | None = None
    distractors: Array | None = None
    own: bool = False


def _fit_whitening(inputs: _Inputs) -> _Inputs:
    source, options = inputs.whitening, inputs.options
    if not isinstance(source, EmbeddingRows):
        return inputs
    power = 0.25 if options.power is None else options.power
    with source.name_in_errors():
        fitted = fr.Whitening.fit(source.embeddings, power, options.dim, progress=inputs.progress)
    return replace(inputs, whitening=fitted)


def _transform(inputs: _Inputs, queries: EmbeddingRows) -> _Sides:
    """Whiten all rows, augment the gallery and expand the queries, as the options say."""

    def whiten(rows: EmbeddingRows | None) -> Any:
        if not isinstance(inputs.whitening, fr.Whitening | fr.Adapter) or rows is None:
            return None if rows is None else rows.embeddings
        with rows.name_in_errors():
            return inputs.whitening.apply(rows.embeddings, progress=inputs.progress)

    x, gallery, distractors = (whiten(rows) for rows in (queries, inputs.gallery, inputs.distractors))
    augment, expand = inputs.options.augment, inputs.options.expand
    settings: Any = {"alpha": inputs.options.alpha, "progress": inputs.progress}
    joined = distractors is not None and (augment or expand)
    database = _join(gallery, distractors) if joined else gallery
    if augment is not None and gallery is None:
        x = fr.augment_database(x, augment, **settings)
    elif augment is not None:
        database, items = fr.augment_database(database, augment, **settings), len(gallery)
        gallery, distractors = database[:items], None if distractors is None else database[items:]
    if expand is None:
        return _Sides(x, gallery, distractors)
    expanded = fr.expand_queries(x, database, expand, **settings)
    return _Sides(expanded, x, own=True) if gallery is None else _Sides(expanded, gallery, distractors)


def _join(*parts: Array) -> Tensor:
    """Return rows in memory, as one tensor; numpy has byte orders and read-only maps that torch has not."""
    import numpy as np
    import torch

    def as_tensor(rows: Array) -> Tensor:
        if isinstance(rows, torch.Tensor):
            return rows
        array = np.asarray(rows)
        return torch.from_numpy(array.astype(np.float64 if array.itemsize > 4 else np.float32))

    return torch.cat([as_tensor(part) for part in parts])


# Reports

_RERANK: dict[str, Any] = {"k1": 20, "k2": 6, "lam": 0.3}


def _report(inputs: _Inputs, queries: EmbeddingRows, sides: _Sides, setup: str) -> fr.Report:
    """Evaluate some queries: those of the command, or others to compare them with."""
    from frontrank.evaluation.measures import DEFAULT, OF_LEVELS

    options, name = inputs.options, inputs.options.name or queries.name
    run: dict[str, Any] = {"device": options.device, "progress": inputs.progress}
    settings: dict[str, Any] = {"metrics": options.metrics} if options.metrics else {}
    if options.level_names and inputs.protocol is None and not options.metrics:
        settings["metrics"] = (*DEFAULT, *OF_LEVELS)
    if inputs.ground_truth is not None:
        run |= {"distractors": sides.distractors, "name": f"{name} ({setup})" if options.setup == "all" else name}
        report = fr.evaluate_revisited(sides.queries, sides.gallery, inputs.ground_truth, setup, **run)  # type: ignore[arg-type]
    elif options.rerank:
        scores = fr.rerank(sides.queries, sides.gallery, **_RERANK, progress=inputs.progress)
        settings |= {"gallery_labels": inputs.gallery_labels, "name": name}
        report = fr.evaluate_scores(scores, queries.labels, **settings)
    else:
        if inputs.templates is not None:
            settings["templates"] = inputs.templates
        if sides.gallery is not None:
            labels = queries.labels if sides.own else inputs.gallery_labels
            settings |= {"gallery": sides.gallery, "gallery_labels": labels}
        if sides.own:
            settings["ignored"] = [[row] for row in range(len(sides.queries))]
        if inputs.protocol is not None:  # it has a name of its own
            name = options.name or ""
        evaluate: Callable[..., fr.Report] = inputs.protocol or fr.evaluate
        report = evaluate(sides.queries, queries.labels, seed=options.seed, name=name, **run, **settings)
    facts = _facts(inputs)
    return replace(report, settings={**report.settings, **facts}) if facts else report


def _facts(inputs: _Inputs) -> dict[str, str]:
    """Return what was done to the embeddings, for a report."""
    options, whitening, facts = inputs.options, inputs.whitening, {}
    if isinstance(whitening, fr.Whitening):
        dims = f"{len(whitening.components)} dimensions, power {whitening.power:g}"
        facts["whitening"] = f"{Path(options.whiten).name}, {dims}"
    if options.level_names:
        facts["levels"] = ", ".join(f"{place} {name}" for place, name in enumerate(options.level_names, 1))
    if isinstance(whitening, fr.Adapter):
        facts["adapter"] = f"{Path(options.adapter).name}, {whitening.out_dim} dimensions"
    for name, k in (("augmentation", options.augment), ("expansion", options.expand)):
        if k is not None:
            facts[name] = f"k {k}, alpha {options.alpha:g}"
    if options.rerank:
        facts["re-ranking"] = ", ".join(f"{name} {value}" for name, value in _RERANK.items())
    return facts


def _comparison(inputs: _Inputs, other: fr.Report, report: fr.Report) -> Comparison:
    options, ours = inputs.options, inputs.options.name or inputs.queries.name
    if isinstance(inputs.other, EmbeddingRows):
        theirs = inputs.other.name
    else:  # a report named after a data set says nothing here
        theirs = Path(options.compare).stem if other.name in ("", report.name) else other.name
    if theirs == ours:
        theirs, ours = options.compare, options.embeddings if options.data is None else f"{ours} (new)"
    try:
        return fr.compare(other, report, seed=options.seed, names=(theirs, ours))
    except InputError as error:
        sources = f"report_a is {options.compare}, report_b is {options.embeddings}"
        raise InputError(f"--compare: {error} ({sources})") from error
