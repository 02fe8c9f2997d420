"""What the folder of a run says of it, as a report shows it."""

import json
import shlex
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from frontrank.config import LossConfig, TrainConfig
from frontrank.data.image_table import ImageTable
from frontrank.errors import FrontrankError
from frontrank.reporting.findings import Curve, RunFacts
from frontrank.reporting.wording import counted
from frontrank.training.logs import read_log

_CURVES = ("loss", "AP error", "learning rate")  # and all of validation
_LICENCES = ("licence", "license")
_CREDITS = "LICENCES.md"  # beside a table, by whom its pictures are
_TABLES = (".csv", ".parquet", ".tsv", ".txt", ".json")  # endings that are not part of a data set's name


def run_facts(
    folder: Path, config: TrainConfig, images: ImageTable, shown: ImageTable, searched: str, data: str = ""
) -> RunFacts:
    """Where the findings of a run come from.

    images:   all of the run; shown: those of the report
    searched: what the latter are, such as "912 unseen classes"
    data:     where the latter are from, if not from the run's own data set
    """
    said = read_run(folder)
    log = _log(folder)
    training = images.of("train")
    reported, own = (path_name(path) for path in (data or config.data.path, config.data.path))
    facts = {
        "images": f"{len(shown):,} of {searched}{f' of {reported}' if data else ''}",
        "trained on": f"{len(training):,} images of {counted(_classes(training), 'class', 'classes')}"
        f"{f' of {own}' if data else ''}",
        "model": _model(config),
        "first weights": _weights(config.model.weights),
        "loss": _loss(config.loss),
        "training": _training(config, said),
        "checkpoint": _checkpoint(said, _classes(images.of("validation"))),
        "time": _time(log, said),
    }
    versions = {str(name): str(value) for name, value in _mapping(said.get("versions")).items()}
    versions |= {name: str(said[name]) for name in ("commit", "machine") if said.get(name)}
    return RunFacts(
        title=f"{loss_name(config.loss)} on {reported}",
        command=_command(folder, said),
        settings=(folder / "config.yaml").read_text(encoding="utf-8"),
        curves=_curves(log),
        facts={name: text for name, text in facts.items() if text},
        versions=versions,
        licences=licences(shown),
        searched=searched,
        designs=designs(shown),
        credits=credits_beside(data or config.data.path),
    )


def read_run(folder: Path) -> dict[str, Any]:
    """What run.json says; nothing where it is missing or damaged."""
    with suppress(OSError, ValueError):
        return _mapping(json.loads((folder / "run.json").read_text(encoding="utf-8")))
    return {}


def data_name(config: TrainConfig) -> str:
    """What to call the images: the name of their folder, or of the folder of their table."""
    return path_name(config.data.path)


def path_name(data: str) -> str:
    """What to call the images at a path: a folder, or a table.

    >>> path_name("/data/emoji-1.2"), path_name("/data/emoji/images.csv"), path_name("birds.parquet")
    ('emoji-1.2', 'emoji', 'birds')
    """
    path = Path(data)
    name = path.stem if path.suffix.lower() in _TABLES else path.name
    return (path.resolve().parent.name if name == "images" and path.suffix else name) or "images"


def loss_name(loss: LossConfig) -> str:
    """The loss in a word.

    >>> loss_name(LossConfig("PNP", variant="D_q")), loss_name(LossConfig("pml.TripletMarginLoss"))
    ('PNP-D_q', 'TripletMarginLoss')
    """
    kind = loss.variant or loss.weighting
    return loss.name.removeprefix("pml.") + (f"-{kind}" if kind else "")


def licences(table: ImageTable) -> dict[str, int]:
    """How many images are under each licence, the most frequent first; nothing where the table does not say."""
    counts = Counter(_licence_column(table))
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))


def designs(table: ImageTable) -> tuple[tuple[str, str, int], ...]:
    """Design, licence and number of images, where the table has columns of both."""
    if "design" not in table.extra:
        return ()
    names = [str(entry).strip() or "not said" for entry in table.extra["design"].tolist()]
    counts = Counter(zip(names, _licence_column(table), strict=False))  # no licences: none
    return tuple((*pair, count) for pair, count in sorted(counts.items()))


def credits_beside(data: str) -> str:
    """What LICENCES.md beside a data set's table says, "" where there is none."""
    path = Path(data)
    with suppress(OSError):
        return ((path if path.is_dir() else path.parent) / _CREDITS).read_text(encoding="utf-8", errors="replace")
    return ""


def _licence_column(table: ImageTable) -> list[str]:
    column = next((table.extra[name] for name in _LICENCES if name in table.extra), np.array([]))
    return [str(entry).strip() or "not said" for entry in column.tolist()]


def _mapping(found: object) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _log(folder: Path) -> list[dict[str, Any]]:
    try:
        return read_log(folder / "log.jsonl")
    except FrontrankError:  # a report can do without
        return []


def _curves(log: list[dict[str, Any]]) -> dict[str, Curve]:
    points: dict[str, list[tuple[int, float]]] = {}
    for line in log:
        for name, value in line.items():
            known = name in _CURVES or name.startswith("validation ")
            if known and isinstance(value, int | float) and np.isfinite(value):
                points.setdefault(name, []).append((line["step"], float(value)))
    found = {name: np.array(of, dtype=np.float64) for name, of in points.items()}
    order = sorted(found, key=lambda name: _CURVES.index(name) if name in _CURVES else -1)
    return {name: Curve(found[name][:, 0], found[name][:, 1]) for name in order}


def _classes(table: ImageTable) -> int:
    return len(np.unique(table.labels[table.labels != ""]))


def _model(config: TrainConfig) -> str:
    model = config.model
    head = f"{model.dim} dimensions" if model.dim else "no head"
    return f"{model.backbone}, {model.pooling} pooling, {head}; images of {config.data.size} px"


def _weights(weights: str) -> str:
    known = {"none": "random", "pretrained": "pretrained, of timm", "package": "ImageNet, from a registry package"}
    return known.get(weights) or Path(weights).name


def _loss(loss: LossConfig) -> str:
    given = {name: value for name, value in vars(loss).items() if name != "name" and value is not None}
    said = ", ".join(f"{name} {value}" for name, value in given.items())
    return f"{loss.name.removeprefix('pml.')}{f' ({said})' if said else ''}"


def _training(config: TrainConfig, said: Mapping[str, Any]) -> str:
    steps = said.get("steps")
    begun = f"{steps:,} steps of {config.batches.size} images, " if isinstance(steps, int) else "not finished; "
    optimizer = config.optimizer
    return f"{begun}{optimizer.name}, learning rate {optimizer.lr:g} ({optimizer.schedule}), seed {config.seed}"


def _checkpoint(said: Mapping[str, Any], classes: int) -> str:
    before, best, step = (said.get(name) for name in ("before", "best", "best_step"))
    if not isinstance(best, float) or not isinstance(step, int):
        return ""
    held_out = counted(classes, "held-out class", "held-out classes")
    begun = f", from {100 * before:.1f} %" if isinstance(before, float) else ""
    return f"step {step:,}: {said.get('metric')} {100 * best:.1f} % on {held_out}{begun}"


def _time(log: list[dict[str, Any]], said: Mapping[str, Any]) -> str:
    """From the first line of the log to the last; unknown where the run stood still in between."""
    times = [line["time"] for line in log if isinstance(line.get("time"), int | float)]
    seconds = round(times[-1] - times[0]) if len(times) > 1 else 0
    if seconds < 1 or said.get("resumed"):
        return ""
    hours, minutes = seconds // 3600, seconds % 3600 // 60
    taken = f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds % 60} s" if minutes else f"{seconds} s"
    return f"{taken} on {said['device']}" if said.get("device") else taken


def _command(folder: Path, said: Mapping[str, Any]) -> str:
    """The command as it was typed; where the run was no command's, one that makes it again."""
    with suppress(ValueError):
        program, *words = shlex.split(str(said.get("command", ""))) or [""]
        if Path(program).name in ("frontrank", "__main__.py") and words:
            return shlex.join(["frontrank", *words])
    return f"frontrank train --recipe {shlex.quote(str(folder / 'config.yaml'))} --out NEW"
