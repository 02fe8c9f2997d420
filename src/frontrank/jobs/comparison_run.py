"""One run of a comparison, as a process of its own: its memory is its own, and a crash is its own.

    python -m frontrank.jobs.comparison_run train RECIPE FOLDER      trains, or goes on; leaves FOLDER/cost.json
    python -m frontrank.jobs.comparison_run test RECIPE FOLDER       the same, and FOLDER/test.json, once
    python -m frontrank.jobs.comparison_run frozen RECIPE FILE       the test images by the backbone before training

It ends with the process that started it, whose end it sees as that of its stdin.
"""

import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from statistics import median

import numpy as np

from frontrank.build import build_device, build_images, resume, train
from frontrank.config import TrainConfig
from frontrank.data.image_table import ImageTable
from frontrank.errors import FrontrankError, InputError, InterruptedRunError
from frontrank.evaluation import evaluate
from frontrank.evaluation.measures import GROUP_METRICS
from frontrank.evaluation.report import Report
from frontrank.jobs.frozen import frozen_model
from frontrank.models import Embedder
from frontrank.settings import read_config, read_recipe
from frontrank.training.checkpoints import atomic_write, latest_checkpoint
from frontrank.training.embedding import embed_table
from frontrank.training.logs import read_log

COST, TEST = "cost.json", "test.json"
REFUSED, INTERRUPTED = 2, 130
_RECALL = (1, 10, 100)
_OF_QUERIES = ("mAP", "mAP@R", "R-precision")


def do(job: str, recipe: str, target: str) -> int:
    """Do the job, and give the exit status; what went wrong is the last line of stderr."""
    try:
        config = read_config(read_recipe(Path(recipe)))
        if job == "frozen":
            model = frozen_model(config).to(build_device(config.device))
            report_on_tests(model, config).save(target, overwrite=True)
        else:
            train_once(config, Path(target))
        if job == "test":
            evaluate_once(config, Path(target))
    except InterruptedRunError:
        return INTERRUPTED
    except (FrontrankError, MemoryError) as error:
        print(f"\n{str(error) or 'out of memory'}", file=sys.stderr)
        return REFUSED
    return 0


def train_once(config: TrainConfig, folder: Path) -> None:
    """Train, from the last checkpoint if there is one; say what it cost, and drop the checkpoints, which are big."""
    if not (folder / COST).is_file():
        started = time.monotonic()
        if latest_checkpoint(folder / "checkpoints") is None:
            shutil.rmtree(folder, ignore_errors=True)
            train(config, folder)
        else:
            resume(folder, {"data.path": config.data.path})  # which may have moved
        log = read_log(folder / "log.jsonl")
        times = [line["seconds per step"] for line in log if "seconds per step" in line]
        costs = {
            "seconds": median(times[1:] or times),  # the first line is of the first step, which warms up
            "megabytes": max(line["peak MB"] for line in log if "peak MB" in line),
            "wall": time.monotonic() - started,
        }
        atomic_write(folder / COST, (json.dumps(costs) + "\n").encode())
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def evaluate_once(config: TrainConfig, folder: Path) -> None:
    """Evaluate the trained model on the test images, and keep the values of every query."""
    if not (folder / TEST).is_file():
        model = Embedder.load(folder / "model", build_device(config.device))
        report_on_tests(model, config).save(folder / TEST, overwrite=True)


def report_on_tests(model: Embedder, config: TrainConfig) -> Report:
    """How a model ranks the test images, by their roles."""
    table = build_images(config.data).of("test")
    embeddings = embed_table(model, table, workers=config.data.workers, precision=config.precision, show=False)
    asked, searched = sides(table)
    metrics = metrics_on_tests(table, config.metric)
    if searched is None:
        return evaluate(embeddings[asked], table.labels[asked], metrics=metrics, progress=False)
    of_ranks = [name for name in metrics if name not in GROUP_METRICS]
    report = evaluate(
        embeddings[asked],
        table.labels[asked],
        gallery=embeddings[searched],
        gallery_labels=table.labels[searched],
        metrics=of_ranks,
        progress=False,
    )
    named = table.labels != ""
    groups = evaluate(embeddings[named], table.labels[named], metrics=GROUP_METRICS, progress=False)
    return Report.of(report.per_query, report.positives, report.gallery_size, dict(groups))


def sides(table: ImageTable) -> tuple[np.ndarray, np.ndarray | None]:
    """Masks of the queries and of the gallery, by their roles; no gallery where each query searches the others.

    Only images of the role gallery make one, with distractors beside them: in another an image would find itself.
    """
    asked = np.isin(table.roles, ("", "query")) & (table.labels != "")
    if not (table.roles == "gallery").any():
        return asked, None
    return asked, np.isin(table.roles, ("gallery", "distractor"))


def metrics_on_tests(table: ImageTable, chosen: str) -> list[str]:
    """The metrics of the test images, and that of the held-out classes; R@k only where a list is longer than k."""
    asked, searched = sides(table)
    longest = int(asked.sum()) - 1 if searched is None else int(searched.sum())
    recalls = [f"R@{k}" for k in _RECALL if k == 1 or k < longest]
    return list(dict.fromkeys([*recalls, *_OF_QUERIES, *([] if chosen in GROUP_METRICS else [chosen]), *GROUP_METRICS]))


def query_labels(table: ImageTable) -> np.ndarray:
    """The labels of the queries among the test images, in their order."""
    test = table.of("test")
    return np.asarray(test.labels[sides(test)[0]])


def require_tests(table: ImageTable) -> None:
    """Refuse test images that no metric can be made of."""
    test = table.of("test")
    asked, searched = sides(test)
    sizes = np.unique(test.labels[asked], return_counts=True)[1]
    classes = set(test.labels.tolist()) - {""}
    if len(classes) < 2 or (searched is None and (len(sizes) < 2 or sizes.max() < 2)):
        raise InputError(
            f"the test images are {len(test)} of {len(classes)} classes; there must be two classes at least, and one "
            "of two images or more"
        )
    if searched is not None and not set(test.labels[asked].tolist()) & set(test.labels[searched].tolist()):
        raise InputError("no query of the test images has a class of the gallery; give images of the same classes")


def _end_with_parent() -> None:
    while os.read(0, 1):  # not sys.stdin, whose lock would still be held at the end
        pass
    os._exit(REFUSED)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(do(*sys.argv[1:]))
