"""The report of a run: its model on images it has not seen, beside the model it began with, as one HTML file."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from frontrank.build import build_device, build_images
from frontrank.config import DataConfig, TrainConfig
from frontrank.data.folders import read_table
from frontrank.data.image_table import ImageTable, shown
from frontrank.errors import InputError
from frontrank.evaluation import Comparison, Report
from frontrank.jobs.frozen import frozen_model, frozen_title
from frontrank.jobs.kept_embeddings import kept_embeddings
from frontrank.jobs.run_facts import data_name, loss_name, path_name, run_facts
from frontrank.models import Embedder, storage
from frontrank.reporting.find import find
from frontrank.reporting.findings import Findings
from frontrank.reporting.wording import counted
from frontrank.settings import read_config, read_recipe
from frontrank.training.checkpoints import atomic_write
from frontrank.training.embedding import embed_table

_MARK = b'<meta name="generator" content="Frontrank"'
_HEAD = 1 << 14  # bytes of a page in which it says who made it

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, eq=False)
class RunReport:
    """A report that was written. before: None where it shows the trained model only.

    numbers: the files of the metrics, `Report.load` reads them
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
    before:    show the model that the run began with, too
    overwrite: replace a page that is no report; a report is replaced in any case, a .json of something else in none
    show:      progress bars; None draws them on a terminal

    The images are the test images of the run; if it has none, its held-out classes, with a note that says so.
    Embeddings are kept in RUN/report, so that the next report is quick.
    """
    if find_spec("jinja2") is None:
        raise InputError("a report needs jinja2; pip install 'frontrank[report]'")
    folder = require_run(Path(run))
    page = folder / "report.html" if out is None else Path(out)
    require_target(page, overwrite, ("before", "after") if before else ("after",))
    config = read_config(read_recipe(folder / "config.yaml"))
    images = read_table(folder / "images.csv")
    table, searched, notes = _images(folder, config, images, data)
    embed = _Embedding(folder, config, table, device, show)
    sides = [("after", f"trained with {loss_name(config.loss)}", embed.after())]
    if before:
        try:
            sides.insert(0, ("before", frozen_title(config), embed.before()))
        except InputError as error:
            notes.append(f"the model before training is not shown: {error}")
    findings = find(table, sides, seed=config.seed, show=show)
    findings = replace(findings, notes=(*notes, *findings.notes))
    facts = run_facts(folder, config, images, table, searched, "" if data is None else os.fspath(data))
    from frontrank.reporting.page import run_page

    atomic_write(page, run_page(findings, facts).encode())
    return _written(page, findings)


def require_run(folder: Path) -> Path:
    """Refuse a folder that holds no run, or one without a model."""
    if not folder.is_dir():
        raise InputError(f"{shown(folder)} is not there, or no folder; give the folder of a run, as of --out")
    for name in ("config.yaml", "images.csv"):
        if not (folder / name).is_file():
            raise InputError(f"{shown(folder)} holds no run (there is no {name}); give the folder of --out of a run")
    if not storage.is_model(folder / "model"):
        raise InputError(
            f"{shown(folder)} has no model yet; go on with the run: frontrank train --resume {shown(folder)}"
        )
    return folder


def require_target(page: Path, overwrite: bool, numbers: Sequence[str] = ()) -> None:
    """Refuse a page that would replace something else than a report, or be in no folder.

    numbers: the sides whose numbers are written beside it; what is not ours there is never replaced
    """
    if page.is_dir():
        raise InputError(f"{shown(page)} is a folder; name a file, such as {shown(page / 'report.html')}")
    if not page.parent.is_dir():
        raise InputError(f"the folder {shown(page.parent)} is not there; make it first")
    if page.exists() and not overwrite and not _is_ours(page):
        raise InputError(f"{shown(page)} is no report of Frontrank; choose another name, or add --overwrite")
    for path in (_numbers(page, side) for side in numbers):
        if path.exists() and not _is_ours(path):
            raise InputError(f"{shown(path)} is no report of Frontrank; choose another name for the page by --out")


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise InputError(f"{shown(path)} cannot be read ({error.strerror}); choose another name") from error
    return _MARK in head or head.startswith(b'{"format": "frontrank report"')


def _numbers(page: Path, side: str) -> Path:
    return page.with_suffix(f".{side}.json")


def _written(page: Path, findings: Findings) -> RunReport:
    """Save the numbers beside the page; those of an earlier page that has more sides go."""
    reports = {side.name: side.report for side in findings.sides}
    for side in ("before", "after"):
        if side in reports:
            reports[side].save(_numbers(page, side), overwrite=True)
        elif _numbers(page, side).is_file() and _is_ours(_numbers(page, side)):
            _numbers(page, side).unlink()
    numbers = tuple(_numbers(page, side) for side in reports)
    return RunReport(page, reports.get("before"), reports["after"], findings.change, findings.notes, numbers)


def _images(
    folder: Path, config: TrainConfig, images: ImageTable, data: PathLike | None
) -> tuple[ImageTable, str, list[str]]:
    """The images of the report, what they are in a few words, and what is to be said of them."""
    if data is not None:
        table = build_images(DataConfig(path=os.fspath(data)))
        table = table.of("test") if (table.splits == "test").any() else table
        table = replace(table, name=path_name(os.fspath(data)))
        return table, _searched(table, images), _trained_note(table, images)
    table, notes = replace(images.of("test"), name=data_name(config)), []
    if not len(table):
        table = replace(images.of("validation"), name=data_name(config))
        notes.append(
            "the run has no test images: these are its held-out classes, which chose the checkpoint, so the figures "
            "may be a little too good"
        )
        if not len(table):
            raise InputError(f"{shown(folder)} has neither test images nor held-out classes; give images by --data")
        return table, counted(_classes(table), "held-out class", "held-out classes"), notes
    return table, _searched(table, images), notes


def _searched(table: ImageTable, images: ImageTable) -> str:
    """So many classes; unseen if the run has neither trained on one nor chosen its checkpoint by one."""
    classes = np.unique(table.labels[table.labels != ""])
    known = np.isin(classes, images.labels[np.isin(images.splits, ("train", "validation"))]).any()
    kind = "" if known else "unseen "
    return counted(len(classes), f"{kind}class", f"{kind}classes")


def _trained_note(table: ImageTable, images: ImageTable) -> list[str]:
    trained = {os.path.realpath(file) for file in images.of("train").files()}
    count = sum(os.path.realpath(file) in trained for file in table.files())
    return [f"{count:,} of the {len(table):,} images were trained on: the figures are too good"] if count else []


def _classes(table: ImageTable) -> int:
    return len(np.unique(table.labels))


class _Embedding:
    """Embeddings of the report's images by the two models, kept beside the run."""

    def __init__(self, folder: Path, config: TrainConfig, table: ImageTable, device: str, show: bool | None) -> None:
        self._folder, self._config, self._table, self._show = folder, config, table, show
        self._device = build_device(device)

    def after(self) -> np.ndarray:
        model = self._folder / "model"
        mark = storage.read_config(model)["fingerprint"]
        return self._kept("after", mark, lambda: Embedder.load(model))

    def before(self) -> np.ndarray:
        return self._kept("before", self._mark(), lambda: frozen_model(self._config))

    def _mark(self) -> str:
        """What tells the first weights from others, without reading them."""
        config = self._config
        weights = Path(config.model.weights)
        if storage.is_model(weights):
            stamp = storage.read_config(weights)["fingerprint"]
        elif weights.is_file():
            stamp = f"{weights.stat().st_size} {weights.stat().st_mtime_ns}"
        else:
            stamp = ""
        settings = {**vars(config.model), "size": config.data.size, "resize": config.data.resize, "seed": config.seed}
        return json.dumps([settings, stamp])

    def _kept(self, name: str, mark: str, load: Callable[[], Embedder]) -> np.ndarray:
        def make() -> np.ndarray:
            workers = self._config.data.workers
            return embed_table(load(), self._table, workers=workers, device=self._device, show=self._show)

        return kept_embeddings(self._folder / "report", name, mark, self._table, make)
