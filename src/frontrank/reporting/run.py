"""The report of a run: what is read from its folder, and the HTML page."""

import json
import math
import os
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from frontrank.checks import format_count, import_extra, printable
from frontrank.data.table import ImageTable, read_table
from frontrank.errors import FrontrankError, InputError
from frontrank.evaluation import Comparison, Report
from frontrank.evaluation.compare import Difference
from frontrank.files import PathLike, atomic_write, count_shared_files
from frontrank.losses.registry import preset_name
from frontrank.models import Embedder, storage
from frontrank.reporting.charts import HUES, NOISY, Chart, Line, Scale, chart, display_name, draw_map, finite_points
from frontrank.reporting.findings import Curve, Findings, ModelFindings, QueryExample, RankedList, measure_findings
from frontrank.reporting.pages import faults_note, fraction, make_thumbnails, render_page
from frontrank.settings import DataConfig, LossConfig, TrainConfig, read_config, read_recipe
from frontrank.training.distributed import build_device
from frontrank.training.embedding import embed_table
from frontrank.training.images import build_images
from frontrank.training.logs import read_log
from frontrank.training.run import frozen_model, frozen_title, read_facts

_LARGE, _SMALL = 128, 96  # pixels of a picture in a ranked row; small where there are many
_MANY = 250
_ON_MAP = 40  # pixels of a picture that only the map shows: 1,500 of them are some 1.3 MB

_GROUPS = {
    "most improved": "Queries whose average precision rose most.",
    "best": "Queries whose right images all come early.",
    "typical": "Queries around the median average precision.",
    "worst": "Queries with the lowest average precision. Below a wrong image: its share of the points of AP that are "
    "lost; the shares of all wrong images add up to what is missing to 100.",
}
_MEANINGS = {  # of metrics; a number at the end of the name is in the braces
    "R@1": "the first result is right",
    "R@": "a right image is among the first {}",
    "P@": "right images among the first {}",
    "mAP": "mean average precision: 100 % if all right images come first",
    "mAP@R": "average precision within the first R, R being the number of right images",
    "R-precision": "right images among the first R, R being their number",
    "MRR": "1 divided by the place of the first right image",
    "nDCG": "gain of the images by how many levels they share with the query, divided by the best possible",
    "H-AP": "hierarchical average precision: images that share more levels should come first",
    "NMI": "how well clusters of the embeddings match the classes",
    "dists@intra": "cosine distance of two images of a class",
    "dists@inter": "cosine distance of two classes",
}


@dataclass(frozen=True, eq=False)
class RunFacts:
    """Facts about a run that its report shows beside the findings.

    command, settings: to repeat the run; settings as YAML
    curves:   of the log, by name: "loss", "validation R@1", "learning rate", ...; x is the step
    facts:    short pairs for the head of the page, such as "images" -> "5,770 of 912 unseen classes"
    versions: of the packages, the commit and the machine
    licences, designs, credits: of the pictures: images of each licence; design, licence and images; their makers
    searched: what was searched, for the headline, such as "912 unseen classes"; "" counts the table's classes
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


class MetricRow(NamedTuple):
    """A line of the headline table; values and intervals per side."""

    name: str
    meaning: str
    values: tuple[float, ...]
    intervals: tuple[tuple[float, float] | None, ...]
    change: Difference | None


def render_run_page(findings: Findings, facts: RunFacts) -> str:
    """Render the page of a run: a whole HTML file, to be written as UTF-8.

    Parts for which there is nothing to show are left out.
    """
    if not findings.sides:
        raise InputError("findings.sides is empty; give at least one side")
    map = draw_map(findings)
    groups = dict.fromkeys((*_GROUPS, *findings.queries))
    queries = {name: findings.queries[name] for name in groups if findings.queries.get(name)}
    sizes = _picture_sizes(queries, map.points["rows"] if map else [])
    pictures, faults = make_thumbnails(findings.table, sizes)
    metrics, (recall, precision) = metric_rows(findings), rank_charts(findings.sides)
    reports = [side.report for side in findings.sides]
    notes = [note for each in (findings, *reports, findings.change) if each is not None for note in each.notes]
    return render_page(
        "run.html.j2",
        title=facts.title,
        facts=facts,
        findings=findings,
        sides=_looks(findings.sides),
        searched=facts.searched or count_classes(findings.table),
        metrics=metrics,
        headline=next((row for row in metrics if row.name == "R@1"), metrics[0]),
        training=training_charts(facts.curves),
        recall=recall,
        precision=precision,
        scores=score_charts(findings.sides),
        queries=queries,
        teaser=next(iter(queries.get("most improved", ())), None),
        name=partial(display_name, findings.table),
        end_of_search=end_of_search,
        intros=_GROUPS,
        map=map,
        pictures=pictures,
        categories=sorted(findings.categories, key=lambda of: (-np.nan_to_num(of.recall_at_1[-1], nan=-1.0), of.name)),
        notes=tuple(dict.fromkeys((*notes, *faults_note(faults)))),
    )


def end_of_search(query: QueryExample, ranked: RankedList) -> int:
    """Return the place among the first images of a list from which on nothing right is left to find."""
    right = [image.place for image in ranked.first if image.right]
    places = [0, *(image.place for image in ranked.first)]
    return 1 + (right[query.positives - 1] if 0 < query.positives <= len(right) else max(places))


def metric_rows(findings: Findings) -> list[MetricRow]:
    """Return the rows of the headline table: each metric of the last side, with the value of the other one."""
    sides, change = findings.sides, dict(findings.change or {})
    values = {name: tuple(side.report.get(name, math.nan) for side in sides) for name in sides[-1].report}
    intervals = {name: tuple(side.intervals.get(name) for side in sides) for name in values}
    return [MetricRow(name, meaning(name), values[name], intervals[name], change.get(name)) for name in values]


def meaning(name: str) -> str:
    """Return the meaning of a metric in a few words, "" for an unknown one.

    >>> meaning("R@10")
    'a right image is among the first 10'
    """
    name, _, level = name.partition(" (")
    if level:
        return f"{meaning(name)}, right being the same at {level.removesuffix(')')}"
    text = _MEANINGS.get(name) or _MEANINGS.get(name.rstrip("0123456789"), "")
    return text.format(name[2:])


def training_charts(curves: Mapping[str, Curve], held_out: str = "classes") -> list[Chart]:
    """Return charts of the log: all curves of validation in one, every other curve in its own.

    held_out: what validation uses
    """
    charts: list[Chart | None] = []
    metrics: dict[str, Curve] = {}
    for name, curve in curves.items():
        points = finite_points(curve)
        if name.startswith("validation "):
            metrics |= {name.removeprefix("validation "): points} if len(points.x) else {}
            continue
        smooth = name == "loss" and len(points.x) >= NOISY
        note = "The strong line is a running mean, the faint one what was logged." if smooth else ""
        charts.append(chart(name, [Line("", curve, smooth=smooth)], Scale("step"), Scale(name), note=note))
    if metrics:
        percents = all(of.y.min() >= 0 and of.y.max() <= 1 for of in metrics.values())
        shown = enumerate(metrics.items())
        lines = [Line(name, of, f"hue{i % HUES}", dotted=len(of.x) <= 30) for i, (name, of) in shown]
        what, title = ("metrics", "validation") if len(metrics) > 1 else (lines[0].name, f"validation {lines[0].name}")
        charts.insert(1, chart(title, lines, Scale("step"), Scale(f"{what} on held-out {held_out}", percent=percents)))
    return [one for one in charts if one is not None]


def rank_charts(sides: Sequence[ModelFindings]) -> tuple[Chart | None, Chart | None]:
    """Return the charts of R@k over k, and of precision over recall."""
    recalls = [Line(side.name, side.recall, look, dotted=len(side.recall.x) <= 12) for side, look in _looks(sides)]
    precisions = [Line(side.name, side.precision_recall, look) for side, look in _looks(sides)]
    scales = [Scale(label, percent=True, span=(0.0, 1.0)) for label in ("recall", "precision")]
    recall = chart("R@k", recalls, Scale("k", log=True), Scale("R@k", percent=True))
    return recall, chart("precision over recall", precisions, *scales)


def score_charts(sides: Sequence[ModelFindings]) -> list[Chart]:
    """Return charts of the densities of the scores of right and wrong pairs, one per side on the same axes."""
    curves = [finite_points(of) for side in sides for of in (side.negative_scores, side.positive_scores)]
    xs, ys = (np.concatenate([getattr(of, axis) for of in curves]) for axis in "xy")
    if not len(xs) or xs.min() == xs.max() or ys.max() <= 0:
        return []
    spans = {"score": (float(xs.min()), float(xs.max())), "density": (0.0, float(ys.max()) * 1.05)}
    scales = [Scale(label, span=span) for label, span in spans.items()]
    charts = []
    for side in sides:
        lines = [Line("wrong", side.negative_scores, "wrong", True), Line("right", side.positive_scores, "right", True)]
        right, wrong = finite_points(side.positive_scores), finite_points(side.negative_scores)
        common = overlap(right, wrong)
        note = f"The two overlap in {fraction(common)} of their area." if common is not None else ""
        peaks = "; ".join(filter(None, [_describe_peak("right", right), _describe_peak("wrong", wrong)]))
        summary = f"Scores {side.name}: {peaks}. {note}".strip()
        charts.append(chart(f"scores {side.name}", lines, *scales, note=note, summary=summary))
    return [one for one in charts if one is not None]


def _describe_peak(name: str, of: Curve) -> str:
    """Write where a density is highest, and between which scores its middle half lies."""
    if not len(of.x) or of.y.sum() <= 0:
        return ""
    below = np.cumsum(of.y) / of.y.sum()
    most, low, high = (float(of.x[i]) for i in (of.y.argmax(), *np.searchsorted(below, (0.25, 0.75))))
    return f"{name} images score {most:.2f} most often, the middle half of them {low:.2f} to {high:.2f}"


def overlap(a: Curve, b: Curve) -> float | None:
    """Return the area that two densities have in common, as a fraction of either; None if one has no area.

    >>> overlap(Curve(np.array([0.0, 2.0]), np.array([1.0, 1.0])), Curve(np.array([1.0, 3.0]), np.array([1.0, 1.0])))
    0.5
    """
    if min(len(a.x), len(b.x)) < 2:
        return None
    grid = np.linspace(min(a.x[0], b.x[0]), max(a.x[-1], b.x[-1]), 3001)
    heights = [np.interp(grid, of.x, of.y, left=0.0, right=0.0) for of in (a, b)]
    areas = [float(height.sum()) for height in heights]
    if min(areas) <= 0:
        return None
    return round(float(np.minimum(heights[0] / areas[0], heights[1] / areas[1]).sum()), 3)


def _picture_sizes(queries: Mapping[str, tuple[QueryExample, ...]], on_map: Sequence[int]) -> dict[int, int]:
    """Return the rows whose pictures the page shows, each with its number of pixels."""
    rows = {query.row for of in queries.values() for query in of}
    for name, of in queries.items():
        for ranked in (ranked for query in of for ranked in query.ranked):
            costly = ranked.costly if name == "worst" else ()
            rows |= {image.row for image in (*ranked.first, *costly, ranked.late) if image is not None}
    side = _LARGE if len(rows) <= _MANY else _SMALL
    return dict.fromkeys(on_map, _ON_MAP) | dict.fromkeys(rows, side)


def _looks(sides: Sequence[ModelFindings]) -> list[tuple[ModelFindings, str]]:
    """Return each side with its look; the last side has the strong one."""
    return [(side, "after" if side is sides[-1] else "before") for side in sides]


# Embeddings kept beside a run, so that a second report is quick

_SHORT = 16  # of a digest, in a file's name


def read_or_make_embeddings(
    folder: Path, name: str, model: str, table: ImageTable, make: Callable[[], np.ndarray]
) -> np.ndarray:
    """Return the embeddings of a table by a model: those in `folder`, or new ones, which are saved there if possible.

    name:  start of the file's name; digests of the model and of the images as they are now follow
    model: a text that differs for another model, such as its fingerprint
    """
    images = images_digest(table)[:_SHORT]
    path = folder / f"{name}-{images}-{sha256(model.encode()).hexdigest()[:_SHORT]}.npy"
    with suppress(OSError, ValueError, EOFError):  # none, or a damaged one
        array = np.load(path, allow_pickle=False)
        if array.ndim == 2 and len(array) == len(table) and array.dtype == np.float32 and np.isfinite(array).all():
            return np.asarray(array)
    embeddings = make()
    with suppress(OSError, FrontrankError):  # a folder that may not be written to, or a full disk
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{name}-{images}-*.npy"):
            old.unlink()
        atomic_write(path, partial(np.save, arr=embeddings, allow_pickle=False))
    return embeddings


def images_digest(table: ImageTable) -> str:
    """Return a digest of the pictures of a table: their paths, boxes, sizes on disk and times of change."""
    digest = sha256(os.fsencode(table.root.resolve()) + b"\0")
    boxes = table.extra["box"].tolist() if "box" in table.extra else [""] * len(table)
    for path, file, box in zip(table.paths.tolist(), table.files(), boxes, strict=True):
        digest.update(f"{path}\0{box}\0{file_stamp(file)}\1".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def file_stamp(file: PathLike) -> str:
    """Return the size and the time of change of a file as text; "" for a missing one."""
    with suppress(OSError):
        stat = os.stat(file)
        return f"{stat.st_size} {stat.st_mtime_ns}"
    return ""


# Facts about a run, from its folder

_CURVES = ("loss", "AP error", "learning rate")  # and all of validation
_LICENCES = ("licence", "license")
_WEIGHTS = {"none": "random", "pretrained": "pretrained, of timm", "package": "ImageNet, from a registry package"}
_CREDITS = "LICENCES.md"  # beside a table: who made its pictures
_TABLES = (".csv", ".parquet", ".tsv", ".txt", ".json")  # endings that are not part of a data set's name


def read_run_facts(
    folder: Path, config: TrainConfig, images: ImageTable, table: ImageTable, searched: str, data: str = ""
) -> RunFacts:
    """Read the facts about a run from its folder.

    images:   all of the run; table: those of the report
    searched: what the latter are, such as "912 unseen classes"
    data:     where the latter come from, if not from the run's own data set
    """
    run, log = read_facts(folder), read_run_log(folder)
    model, training = config.model, images.of("train")
    reported, own = (path_name(path) for path in (data or config.data.path, config.data.path))
    head = f"{model.dim} dimensions" if model.dim else "no head"
    facts = {
        "images": f"{len(table):,} of {searched}{f' of {reported}' if data else ''}",
        "trained on": f"{len(training):,} images of {count_classes(training)}{f' of {own}' if data else ''}",
        "model": f"{model.backbone}, {model.pooling} pooling, {head}; images of {config.data.size} px",
        "first weights": _WEIGHTS.get(model.weights) or Path(model.weights).name,
        "loss": _describe_loss(config.loss),
        "training": _describe_training(config, run),
        "checkpoint": _describe_checkpoint(run, count_classes(images.of("validation"), "held-out ")),
        "time": _describe_time(log, run),
    }
    again = f"frontrank train --recipe {shlex.quote(str(folder / 'config.yaml'))} --out NEW"
    return RunFacts(
        title=f"{loss_name(config.loss)} on {reported}",
        command=command_of_run(run) or again,
        settings=(folder / "config.yaml").read_text(encoding="utf-8"),
        curves=log_curves(log),
        facts={name: text for name, text in facts.items() if text},
        versions=run_versions(run),
        licences=count_licences(table),
        searched=searched,
        designs=count_designs(table),
        credits=read_credits(data or config.data.path),
    )


def path_name(data: str) -> str:
    """Return the name of the images at a path: of the folder, or of the table.

    >>> path_name("/data/emoji-1.2"), path_name("/data/emoji/images.csv"), path_name("birds.parquet")
    ('emoji-1.2', 'emoji', 'birds')
    """
    path = Path(data)
    name = path.stem if path.suffix.lower() in _TABLES else path.name
    return (path.resolve().parent.name if name == "images" and path.suffix else name) or "images"


def loss_name(loss: LossConfig) -> str:
    """Return the name of a loss in one word.

    >>> loss_name(LossConfig("PNP", variant="D_q")), loss_name(LossConfig("pml.TripletMarginLoss"))
    ('PNP-D_q', 'TripletMarginLoss')
    """
    return preset_name(loss.name, loss.all_settings())


def count_licences(table: ImageTable) -> dict[str, int]:
    """Count the images under each licence, the most frequent first; nothing where the table has no licences."""
    counts = Counter(_column(table, *_LICENCES))
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))


def count_designs(table: ImageTable) -> tuple[tuple[str, str, int], ...]:
    """Count the images of each design and licence; nothing where the table lacks one of these columns."""
    counts = Counter(zip(_column(table, "design"), _column(table, *_LICENCES), strict=False))
    return tuple((*pair, count) for pair, count in sorted(counts.items()))


def read_credits(data: str) -> str:
    """Read LICENCES.md beside a data set's table, "" where there is none."""
    path = Path(data)
    with suppress(OSError):
        return ((path if path.is_dir() else path.parent) / _CREDITS).read_text(encoding="utf-8", errors="replace")
    return ""


def _column(table: ImageTable, *names: str) -> list[str]:
    """Return the first of these extra columns that a table has; nothing where it has none."""
    column = next((table.extra[name] for name in names if name in table.extra), np.array([]))
    return [str(entry).strip() or "not said" for entry in column.tolist()]


def read_run_log(folder: Path) -> list[dict[str, Any]]:
    """Read the log of a run; nothing where it cannot be read, as a report can do without it."""
    with suppress(FrontrankError):
        return read_log(folder / "log.jsonl")
    return []


def log_curves(log: list[dict[str, Any]], names: Sequence[str] = _CURVES) -> dict[str, Curve]:
    """Return the curves of a run's log that have these names, after those of validation."""
    points: dict[str, list[tuple[int, float]]] = {}
    for step, name, value in ((line["step"], *item) for line in log for item in line.items()):
        known = name in names or name.startswith("validation ")
        if known and isinstance(value, int | float) and np.isfinite(value):
            points.setdefault(name, []).append((step, float(value)))
    order = sorted(points, key=lambda name: names.index(name) if name in names else -1)
    return {name: Curve(*np.array(points[name], dtype=np.float64).T) for name in order}


def count_classes(table: ImageTable, kind: str = "") -> str:
    """Write the number of classes of a table; kind: such as "unseen ", before the word."""
    return format_count(len(set(table.labels.tolist()) - {""}), f"{kind}class", f"{kind}classes")


def _describe_loss(loss: LossConfig) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in loss.all_settings().items() if value is not None)
    return f"{loss.name.removeprefix('pml.')}{f' ({settings})' if settings else ''}"


def _describe_training(config: TrainConfig, run: Mapping[str, Any]) -> str:
    steps = run.get("steps")
    begun = f"{steps:,} steps of {config.batches.size} images, " if isinstance(steps, int) else "not finished; "
    optimizer = config.optimizer
    return f"{begun}{optimizer.name}, learning rate {optimizer.lr:g} ({optimizer.schedule}), seed {config.seed}"


def _describe_checkpoint(run: Mapping[str, Any], classes: str) -> str:
    before, best, step = (run.get(name) for name in ("before", "best", "best_step"))
    frozen = run.get("frozen")
    if run.get("frozen is the model") and isinstance(frozen, dict) and isinstance(frozen.get("value"), float):
        value = f"{run.get('metric')} {100 * frozen['value']:.1f} % on {classes}"
        return f"the frozen network: {value}, not worse than any step by more than chance"
    if not isinstance(best, float) or not isinstance(step, int):
        return ""
    begun = f", from {100 * before:.1f} %" if isinstance(before, float) else ""
    return f"step {step:,}: {run.get('metric')} {100 * best:.1f} % on {classes}{begun}"


def _describe_time(log: list[dict[str, Any]], run: Mapping[str, Any]) -> str:
    """Write the time from the first line of the log to the last; nothing where the run was interrupted."""
    times = [line["time"] for line in log if isinstance(line.get("time"), int | float)]
    seconds = round(times[-1] - times[0]) if len(times) > 1 else 0
    if seconds < 1 or run.get("resumed"):
        return ""
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    text = f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds % 60} s" if minutes else f"{seconds} s"
    return text + (f" on {run['device']}" if run.get("device") else "")


def command_of_run(run: Mapping[str, Any]) -> str:
    """Return the command of a run as it was typed, "" for a run without one."""
    with suppress(ValueError):
        program, *words = shlex.split(str(run.get("command", ""))) or [""]
        if Path(program).name in ("frontrank", "__main__.py") and words:
            return shlex.join(["frontrank", *words])
    return ""


def run_versions(run: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of a run's packages, its commit and its machine."""
    packages = run["versions"] if isinstance(run.get("versions"), dict) else {}
    rest = {name: run[name] for name in ("commit", "machine") if run.get(name)}
    return {str(name): str(value) for name, value in (packages | rest).items()}


# Writing the report

_HEAD = 1 << 14  # bytes of a page that have the mark


@dataclass(frozen=True, eq=False)
class RunReport:
    """A report on disk. before: None where it shows the trained model only.

    numbers: the files of the metrics, for `Report.load`
    """

    path: Path
    before: Report | None
    after: Report
    change: Comparison | None
    notes: tuple[str, ...]
    numbers: tuple[Path, ...]


def write_run_report(
    run: PathLike,
    out: PathLike | None = None,
    *,
    data: PathLike | None = None,
    before: bool = True,
    overwrite: bool = False,
    device: str = "auto",
    show: bool | None = None,
) -> RunReport:
    """Write the report of a run to `out`, by default RUN/report.html, and its numbers beside it as .json.

    data:      images to report on instead of the run's own: a folder, a table or a data set's root
    before:    also show the model before training
    overwrite: replace a page that is not a report; a report is always replaced, another .json never
    show:      progress bars; None draws them on a terminal

    The images are the test images of the run; if it has none, its held-out classes, with a note.
    Embeddings are kept in RUN/report, so that the next report is quick.
    """
    import_extra("jinja2", "report", "a report")
    folder = require_run(Path(run))
    page = folder / "report.html" if out is None else Path(out)
    require_target(page, overwrite, ("before", "after") if before else ("after",))
    config = read_config(read_recipe(folder / "config.yaml"))
    images = read_table(folder / "images.csv")
    table, searched, notes = _choose_images(folder, config, images, data)
    embed = partial(_embed, folder=folder, config=config, table=table, device=build_device(device), show=show)
    sides = [("after", f"trained with {loss_name(config.loss)}", embed("after"))]
    if before:
        try:
            sides.insert(0, ("before", frozen_title(config), embed("before")))
        except InputError as error:
            notes.append(f"the model before training is not shown: {error}")
    findings = measure_findings(table, sides, seed=config.seed, show=show)
    findings = replace(findings, notes=(*notes, *findings.notes))
    facts = read_run_facts(folder, config, images, table, searched, "" if data is None else os.fspath(data))
    atomic_write(page, render_run_page(findings, facts))
    return _write_numbers(page, findings)


def require_run(folder: Path) -> Path:
    """Return the folder of a run; raise if it has no run, or a run without a model."""
    name = printable(folder)
    if not folder.is_dir():
        raise InputError(f"{name} is not a folder; give the folder of a run")
    if missing := [file for file in ("config.yaml", "images.csv") if not (folder / file).is_file()]:
        raise InputError(f"{name} is not a run (it has no {missing[0]}); give the folder of a run")
    if not storage.is_model(folder / "model"):
        raise InputError(f"{name} has no model yet; resume the run: frontrank train --resume {name}")
    return folder


def require_target(page: Path, overwrite: bool, numbers: Sequence[str] = ()) -> None:
    """Raise if the page cannot be written, or would replace something that is not a report.

    numbers: the sides whose numbers are written beside it; another file there is never replaced
    """
    if page.is_dir():
        raise InputError(f"{printable(page)} is a folder; name a file, such as {printable(page / 'report.html')}")
    if not page.parent.is_dir():
        raise InputError(f"the folder {printable(page.parent)} does not exist; make it first")
    remedies = {_numbers_path(page, side): "choose another name for the page with --out" for side in numbers}
    if not overwrite:
        remedies = {page: "choose another name, or add --overwrite"} | remedies
    for path, remedy in remedies.items():
        if path.exists() and not _is_ours(path):
            raise InputError(f"{printable(path)} is not a report of Frontrank; {remedy}")


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise InputError(f"{printable(path)} cannot be read ({error.strerror}); choose another name") from error
    return b'<meta name="generator" content="Frontrank"' in head or head.startswith(b'{"format": "frontrank report"')


def _numbers_path(page: Path, side: str) -> Path:
    return page.with_suffix(f".{side}.json")


def _write_numbers(page: Path, findings: Findings) -> RunReport:
    """Save the numbers beside the page; those of an earlier page with more sides are deleted."""
    reports = {side.name: side.report for side in findings.sides}
    numbers = {side: _numbers_path(page, side) for side in ("before", *reports)}
    for side, report in reports.items():
        report.save(numbers[side], overwrite=True)
    if "before" not in reports and (old := numbers.pop("before")).is_file() and _is_ours(old):
        old.unlink()
    change, notes = findings.change, findings.notes
    return RunReport(page, reports.get("before"), reports["after"], change, notes, tuple(numbers.values()))


def _choose_images(
    folder: Path, config: TrainConfig, images: ImageTable, data: PathLike | None
) -> tuple[ImageTable, str, list[str]]:
    """Return the images of the report, what they are in a few words, and notes.

    Classes are unseen if the run used none of them to train or to choose its checkpoint.
    """
    path = config.data.path if data is None else os.fspath(data)
    table, notes = images if data is None else build_images(DataConfig(path=path)), []
    used = images.labels[np.isin(images.splits, ("train", "validation"))]
    if (table.splits == "test").any():
        table = table.of("test")
    elif data is None:
        table = table.of("validation")
        why = "these are its held-out classes, which chose the checkpoint, so the figures may be a little too good"
        notes.append(f"the run has no test images: {why}")
        if not len(table):
            raise InputError(f"{printable(folder)} has no test images and no held-out classes; give images with --data")
    kind = "held-out " if notes else "" if np.isin(table.labels[table.labels != ""], used).any() else "unseen "
    if data is not None and (count := count_shared_files(table.files(), images.of("train").files())):
        notes.append(f"{count:,} of the {len(table):,} images were trained on: the figures are too good")
    return replace(table, name=path_name(path)), count_classes(table, kind), notes


def _embed(
    name: str, folder: Path, config: TrainConfig, table: ImageTable, device: torch.device, show: bool | None
) -> np.ndarray:
    """Return the embeddings of the report's images by the model "before" or "after" training, kept beside the run."""
    if name == "after":
        mark = storage.read_model_config(folder / "model")["fingerprint"]
        load = partial(Embedder.load, folder / "model")
    else:
        mark, load = _first_weights_mark(config), partial(frozen_model, config)
    settings: Any = {"workers": config.data.workers, "device": device, "show": show}
    return read_or_make_embeddings(folder / "report", name, mark, table, lambda: embed_table(load(), table, **settings))


def _first_weights_mark(config: TrainConfig) -> str:
    """Return a text that differs for other first weights, without reading them."""
    weights = Path(config.model.weights)
    stamp = file_stamp(weights) if weights.is_file() else ""
    if storage.is_model(weights):
        stamp = storage.read_model_config(weights)["fingerprint"]
    images = {name: getattr(config.data, name) for name in ("size", "resize", "interpolation")}
    settings = {**vars(config.model), **images, "seed": config.seed}
    return json.dumps([settings, stamp])
