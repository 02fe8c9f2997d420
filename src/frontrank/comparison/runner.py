"""The runner of a comparison: trains in several ways on the same images, run by run, and resumes where it stopped.

A comparison's folder:

    comparison.json   the plan; images.csv the images with the splits that all runs share
    runs/WAY/         a folder per run, as of `frontrank train`, without checkpoints once it is done; beside it its
                      recipe (.yaml), its output (.txt) and, if it failed, why (.failed); lr.json is the rate chosen
    frozen.json       metrics of the backbone before training on the test images
    results.json, results.csv, results.md, report.html
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch

from frontrank.checks import check_choice, format_count
from frontrank.comparison import tasks
from frontrank.comparison.plan import Plan, Way, errors_of_way
from frontrank.comparison.results import ComparisonResults, read_results, write_results
from frontrank.comparison.tasks import PLAN, Job, Task, read_lr, read_stored, run_task, search_jobs, seed_jobs
from frontrank.data.images import check_images
from frontrank.data.table import ImageTable, read_table
from frontrank.errors import InputError, InterruptedRunError
from frontrank.files import PathLike, unwritable
from frontrank.reporting.findings import search_roles
from frontrank.reporting.run import file_stamp
from frontrank.settings import TrainConfig
from frontrank.training.defaults import fill_batches
from frontrank.training.distributed import build_device
from frontrank.training.images import build_images, image_check_cache, split_images
from frontrank.training.loop import StopRequest, count_steps
from frontrank.training.optimizers import check_warmup
from frontrank.training.run import build_model, build_sampler, require_metric, require_new

_TEST_SHARE = 0.5  # of the classes, where the data set has no test images
_LEAST = 8  # classes of two images: two to train with, two to choose by and, of as many again, half to test
_OF_FROZEN = (
    *("model.backbone", "model.weights", "model.pooling", "model.stage"),
    *("data.size", "data.resize", "data.interpolation"),
)
_OTHER_PICTURES = "files of the pictures changed while they were compared: runs before and after may not be alike"
_WAIT = 12.0  # seconds that the processes of a killed comparison have to end


class Preparation(NamedTuple):
    """The images with the splits that all runs share, notes on them, and the steps of each way."""

    table: ImageTable
    notes: list[str]
    steps: dict[str, int]


def prepare(plan: Plan, *, show: bool | None = None) -> Preparation:
    """Check all settings and the images, before the first run; what takes long comes last."""
    require_metric(plan.base.metric)
    build_device(plan.base.device)
    images, data = build_images(plan.base.data), plan.base.data
    result = _prepare_images(plan, images)
    _check_models(plan)
    memory = image_check_cache(images.root, 0, 1)
    check = check_images(images, data.check, data.broken, max(1, data.workers), remembered=memory, show=show)
    if check.broken:  # a split of images of which some are missing could leave a class of one
        result = _prepare_images(plan, check.table)
        result.notes.append(check.note)
    if not has_frozen(plan):
        result.notes.append("there is no line of the backbone before training, as the backbone or its images vary")
    return result


def _prepare_images(plan: Plan, images: ImageTable) -> Preparation:
    table, notes = split_table(images, plan)
    return Preparation(table, notes, {way.name: steps_of_way(plan, way, table) for way in plan.ways})


def has_frozen(plan: Plan) -> bool:
    """Tell whether the backbone before training is the same for all ways."""
    return not any(axis in _OF_FROZEN for axis in plan.axes)


def pictures_digest(table: ImageTable) -> str:
    """Return a digest of the pictures: size and time of change of every file."""
    stamps = [f"{file_stamp(file) or 'missing'}\n" for file in table.files()]
    return sha256("".join(stamps).encode()).hexdigest()


def split_table(table: ImageTable, plan: Plan) -> tuple[ImageTable, list[str]]:
    """Return the table with its splits, and notes on them."""
    config, notes = plan.base, []
    if not len(table.of("test")) and not config.data.test:
        _require_classes(table, config)
        config = replace(config, data=replace(config.data, test=_TEST_SHARE))
        notes.append(f"{_TEST_SHARE:.0%} of the classes, drawn by the seed, are test images, as there were none")
    table = split_images(table, config)
    if not len(table.of("validation")) and any(len(way.lrs) > 1 for way in plan.ways):
        raise InputError("no class is held out to choose a learning rate; raise data.validation, or give one --lr")
    tasks.require_tests(table)
    notes += search_roles(table.of("test"))[2]
    if config.data.merge_classes > 1:
        notes.append(f"every {config.data.merge_classes} training classes are merged into one")
    return table, notes


def _require_classes(table: ImageTable, config: TrainConfig) -> None:
    """Raise if there are too few classes to draw test classes from."""
    train = table.of("train")
    sizes = np.unique(train.labels[train.labels != ""], return_counts=True)[1]
    several, chosen = int((sizes > 1).sum()), config.data.validation > 0 and not len(table.of("validation"))
    least = _LEAST if chosen else _LEAST // 2
    if several < least:
        less = f" ({_LEAST // 2} with --data.validation 0 and one --lr)" if chosen else ""
        needs = f"compare needs test images, or at least {least} classes of two images{less}"
        number = format_count(several, "class", "classes")
        raise InputError(f"--data {config.data.path} has {number} of two images or more; {needs}")


def steps_of_way(plan: Plan, way: Way, table: ImageTable) -> int:
    """Return the steps of a run of a way; raise if the images do not allow its batches or schedule."""
    training = table.of("train")
    config = plan.first_config(way)
    with errors_of_way(way.name):
        config = replace(config, batches=fill_batches(config.batches, training))
        sampler = build_sampler(config.batches, training, config.seed)
        steps = count_steps(config, len(sampler), config.batches.accumulate)
        check_warmup(config.optimizer, steps)
        if plan.search_steps and len(way.lrs) > 1:
            check_warmup(config.optimizer, plan.search_steps)
    return steps


def _check_models(plan: Plan) -> None:
    """Build every network of the plan once, to find a wrong name now, and to fetch weights."""
    built: list[object] = []
    for way in plan.ways:
        config = plan.first_config(way)
        if (network := (config.model, config.data.size, config.data.resize, config.data.interpolation)) not in built:
            built.append(network)
            with torch.random.fork_rng(devices=[]), errors_of_way(way.name if plan.axes else ""):
                build_model(config.model, config.data)


def run_comparison(plan: Plan, out: PathLike, *, command: str = "", quiet: bool = False) -> ComparisonResults:
    """Train all ways of a plan into the folder `out`, or continue the same plan there."""
    folder = Path(out)
    if not (folder / PLAN).is_file():
        require_new(folder)
        _require_one_process()
        with _new_folder(folder), _lock(folder):
            if not (folder / PLAN).is_file():  # another process may have written it while this one waited
                ready = prepare(plan, show=False if quiet else None)
                ready.table.save(folder / tasks.IMAGES, overwrite=True)
                facts = {"command": command, "notes": ready.notes, "steps": ready.steps}
                tasks.write_plan(folder, plan, facts | {"pictures": pictures_digest(ready.table)})
    _check_same_plan(folder, plan)
    return resume_comparison(folder, seeds=plan.seeds, reference=plan.reference, quiet=quiet)


def resume_comparison(
    out: PathLike, *, seeds: int | None = None, reference: str = "", quiet: bool = False
) -> ComparisonResults:
    """Continue the comparison in a folder, run by run; no run is done twice.

    seeds: more than before; reference: another way to compare the others with
    """
    folder = Path(out)
    _require_one_process()
    read_stored(folder)
    with _lock(folder) as held:
        old_plan, facts = read_stored(folder)
        plan = _update_plan(old_plan, folder, seeds, reference)
        digest = pictures_digest(read_table(folder / tasks.IMAGES))
        is_same = (plan, digest) == (old_plan, facts["pictures"])
        if digest != facts["pictures"]:
            facts |= {"notes": list(dict.fromkeys([*facts["notes"], _OTHER_PICTURES])), "pictures": digest}
        if not is_same:
            tasks.write_plan(folder, plan, facts)
        return _Runner(folder, plan, facts["steps"], quiet, held).run_all()


def run_count(plan: Plan) -> int:
    """Count all runs: those of the search are also those of the first seed, where the budget is the same."""
    searches = [len(search_jobs(plan, way)) for way in plan.ways]
    first = 0 if plan.search_steps else sum(map(bool, searches))
    return sum(searches) + len(plan.ways) * plan.seeds - first


class _Runner:
    """Goes through the runs of a comparison, in one session."""

    def __init__(self, out: Path, plan: Plan, steps: dict[str, int], quiet: bool, held: tuple[int, ...]) -> None:
        self.out, self.plan, self.steps, self.quiet, self.held = out.resolve(), plan, steps, quiet, held
        self.total = run_count(plan)
        self.failed: list[Job] = []  # in this session
        self.per_step = [_seconds_per_step(path) for path in self.out.glob(f"runs/*/*/{tasks.COST}")]

    def run_all(self) -> ComparisonResults:
        with StopRequest() as self.stop:
            stopped = None
            try:
                self._run_all()
            except InterruptedRunError as error:
                stopped = error
            results = read_results(self.out)
            write_results(self.out, results)
            if stopped is not None:
                raise stopped
            return results

    def _run_all(self) -> None:
        self._run_frozen()
        for job in (job for way in self.plan.ways for job in search_jobs(self.plan, way)):
            if read_lr(job.way, self.out) is None:
                self._run(job, tested=False)
        for seed, way in itertools.product(range(self.plan.seeds), self.plan.ways):
            if (lr := tasks.choose_lr(self.plan, way, self.out)) is not None:
                self._run(Job(way, lr, seed), tested=True)

    def _run_frozen(self) -> None:
        if (self.out / tasks.FROZEN).is_file() or not has_frozen(self.plan):
            return
        self._say("the backbone before training, on the test images")
        config = self.plan.config_on(self.out / tasks.IMAGES)
        failure = self._run_task("frozen", config, self.out / tasks.FROZEN, self.out / "frozen", "frozen backbone")
        if failure:
            raise InputError(f"the backbone cannot be evaluated: {failure}")

    def _run(self, job: Job, *, tested: bool) -> None:
        """Do a run that is not done yet; a failure is stored beside it, and the other runs follow."""
        if job.is_done(self.out, tested=tested):
            return
        config = self.plan.config(job.way, job.lr, job.seed, self.out / tasks.IMAGES, search=job.short)
        purpose = f"seed {config.seed}" if tested else "to choose the learning rate"
        title = f"{job.way.name}, learning rate {job.lr:g}, {purpose}"
        trained = job.is_done(self.out, tested=False)  # in the search, and to be tested now
        if not trained:
            left = self._steps_left()
            self._say(f"run {self.total - len(left) + 1} of {self.total}: {title}{self._time_left(sum(left))}")
        started, folder = time.monotonic(), job.folder(self.out)
        failure = self._run_task("test" if tested else "train", config, folder, folder, title)
        failed = job.beside(self.out, ".failed")
        if failure:
            with failed.open("a", encoding="utf-8") as file:
                file.write(failure + "\n")
            self.failed.append(job)
            self._say(f"  failed: {failure}")
            return
        failed.unlink(missing_ok=True)
        if not trained:
            self.per_step.append((time.monotonic() - started) / self._steps(job))

    def _steps(self, job: Job) -> int:
        return self.plan.search_steps if job.short else self.steps[job.way.name]

    def _steps_left(self) -> list[int]:
        """Return the steps of each run that is not done yet."""
        plan = self.plan
        open_ways = [way for way in plan.ways if read_lr(way, self.out) is None]
        each = plan.seeds if plan.search_steps else plan.seeds - 1  # one of the search is that of a seed
        unknown = [self.steps[way.name] for way in open_ways if not self._is_lost(way) for _ in range(each)]
        jobs = [job for way in open_ways for job in search_jobs(plan, way)]
        jobs += [job for way in plan.ways for job in seed_jobs(plan, way, self.out)]
        open_jobs = [job for job in jobs if not job.is_done(self.out, tested=False) and job not in self.failed]
        return [*unknown, *map(self._steps, open_jobs)]

    def _is_lost(self, way: Way) -> bool:
        """Tell whether no learning rate can be chosen in this session."""
        jobs = search_jobs(self.plan, way)
        failed = [job for job in jobs if job in self.failed]
        return len(failed) == len(jobs) or not all(job.is_given_up(self.out) for job in failed)

    def _time_left(self, steps: int) -> str:
        """Write the time that so many steps will take, by the time of those so far."""
        if not self.per_step:
            return ""
        seconds = fmean(self.per_step) * steps
        hours, minutes = seconds / 3600, seconds / 60
        text = f"{hours:.1f} hours" if hours >= 1.5 else f"{minutes:.1f} minutes" if minutes >= 1.5 else ""
        return f"; about {text or f'{seconds:.0f} seconds'} left"

    def _say(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def _run_task(self, task: Task, config: TrainConfig, target: Path, beside: Path, title: str) -> str:
        """Run a task in a process of its own; return why it failed, or "" if it did not."""
        failure = run_task(task, config, target, beside, "" if self.quiet else title, stop=self.stop, held=self.held)
        if failure is None:
            done = f"{self.total - len(self._steps_left())} of {self.total} runs are done"
            raise InterruptedRunError(f"stopped, {done}; go on with: {tasks.command_to_resume(self.out)}")
        return failure


def _seconds_per_step(path: Path) -> float:
    """Return the seconds per step of a run that is done, with all its work."""
    cost, run = (json.loads(file.read_text(encoding="utf-8")) for file in (path, path.with_name("run.json")))
    return float(cost["wall"]) / max(1, run["steps"])


def _require_one_process() -> None:
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError("a comparison starts a process for each run itself; start it without torchrun")


@contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Make the folder; delete it again, with new parents, if no plan was written to it."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".lock").touch()
    except OSError as error:
        raise unwritable(folder / PLAN, error) from error
    try:
        yield
    finally:
        if not (folder / PLAN).is_file():
            (folder / ".lock").unlink(missing_ok=True)
            with suppress(OSError):  # something is in it
                for each in missing:
                    each.rmdir()


def _check_same_plan(folder: Path, plan: Plan) -> None:
    """Raise if settings differ from those of the folder, and name one; there may be more seeds."""
    stored = read_stored(folder)[0]
    old, new = (_flat(each.as_json()) for each in (stored, plan))
    differ = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    if differ:
        there, now = (each.get(differ[0], "none") for each in (old, new))
        more = f" (and {', '.join(differ[1:4])}{' ...' if len(differ) > 4 else ''})" if len(differ) > 1 else ""
        why = f"--out {folder} holds another comparison: {differ[0]} is {there} there and {now} now{more}"
        raise InputError(f"{why}; choose another --out, or go on with {tasks.command_to_resume(folder)}")


def _flat(plan: dict[str, Any]) -> dict[str, Any]:
    """Return what must be the same, by names that a user knows."""
    settings = dict(plan["settings"])
    for way in plan["ways"]:
        settings[way["name"]] = way["settings"] or "the base"
        settings[f"--lr of {way['name']}"] = way["lrs"]
    return settings | {"--search-iterations": plan["search_steps"]}


def _update_plan(plan: Plan, folder: Path, seeds: int | None, reference: str) -> Plan:
    if seeds is not None and seeds < plan.seeds:
        raise InputError(f"--seeds {seeds} is fewer than the {plan.seeds} of {folder}; give as many, or more")
    if reference:
        check_choice("--reference", reference, [way.name for way in plan.ways])
    return replace(plan, seeds=seeds or plan.seeds, reference=reference or plan.reference)


@contextmanager
def _lock(folder: Path) -> Iterator[tuple[int, ...]]:
    """Lock the folder, or raise if another process works there; yield the file to hand to processes started here.

    Unlike `folder_lock` it ends only when those processes have ended too, also if this one is killed.
    """
    try:
        import fcntl
    except ImportError:  # not on this system
        yield ()
        return
    with (folder / ".lock").open("w") as file:
        for _ in range(int(5 * _WAIT)):
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(0.2)
        else:
            raise InputError(f"{folder} is in use by another process; wait until it ends")
        yield (file.fileno(),)
