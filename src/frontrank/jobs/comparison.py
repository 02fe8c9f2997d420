"""`compare`: train in several ways on the same images, run by run, and say which ranks unseen classes best.

A comparison's folder:

    comparison.json   what is compared; images.csv the images with the splits that all runs share
    runs/WAY/         a folder per run, as of `frontrank train`, without checkpoints once it is done; beside it its
                      recipe (.yaml), what it said (.txt) and, if it failed, why (.failed); lr.json is what was chosen
    frozen.json       the test images by the backbone before training
    results.json, results.csv, results.md, report.html
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from frontrank.config import TrainConfig
from frontrank.data.folders import read_table
from frontrank.errors import InputError, InterruptedRunError
from frontrank.jobs.comparison_checks import has_frozen, pictures_digest, prepare
from frontrank.jobs.comparison_jobs import (
    FACTS,
    FROZEN,
    IMAGES,
    PLAN,
    Job,
    choose_lr,
    chosen_lr,
    command_to_go_on,
    read_stored,
    searches,
    write_plan,
)
from frontrank.jobs.comparison_plan import Plan, Way
from frontrank.jobs.comparison_process import Task, done_apart
from frontrank.jobs.comparison_results import read_comparison
from frontrank.jobs.comparison_run import COST
from frontrank.jobs.comparison_tables import write_results
from frontrank.reporting.compared import Compared
from frontrank.training.run_folder import require_new
from frontrank.training.signals import StopRequest

_OTHER_PICTURES = "files of the pictures changed while they were compared: runs before and after may not be alike"
_WAIT = 12.0  # seconds that the processes of a comparison that was killed have to end


def compare(plan: Plan, out: str | os.PathLike[str], *, command: str = "", quiet: bool = False) -> Compared:
    """Train all ways of a plan into the folder `out`, or go on with what is there of the same plan."""
    folder = Path(out)
    if not (folder / PLAN).is_file():
        require_new(folder)
        _require_one_process()
        with _made(folder), _alone(folder):
            if not (folder / PLAN).is_file():  # another process may have written it while this one waited
                found = prepare(plan, show=False if quiet else None)
                found.table.save(folder / IMAGES, overwrite=True)
                facts = {"command": command, "notes": list(found.notes), "steps": found.steps}
                write_plan(folder, plan, facts | {"pictures": pictures_digest(found.table)})
    _require_same(folder, plan)
    return resume_comparison(folder, seeds=plan.seeds, reference=plan.reference, quiet=quiet)


def resume_comparison(
    out: str | os.PathLike[str], *, seeds: int | None = None, reference: str = "", quiet: bool = False
) -> Compared:
    """Go on with the comparison in a folder, run by run; what is done is never done again.

    seeds: more of them than before; reference: another way that the others are set against
    """
    folder = Path(out)
    _require_one_process()
    read_stored(folder)
    with _alone(folder) as held:
        plan, facts = read_stored(folder)
        changed, kept = _changed(plan, folder, seeds, reference), {key: facts[key] for key in FACTS}
        now = pictures_digest(read_table(folder / IMAGES))
        if now != facts["pictures"]:
            kept["notes"] = list(dict.fromkeys([*facts["notes"], _OTHER_PICTURES]))
            kept["pictures"] = now
        if changed != plan or kept != {key: facts[key] for key in FACTS}:
            write_plan(folder, changed, kept)
        return _Work(folder, changed, facts["steps"], quiet, held).to_the_end()


def run_count(plan: Plan) -> int:
    """Runs in all: those of the search count as those of the first seed, where the budget is the same."""
    first = 0 if plan.search_steps else sum(len(way.lrs) > 1 for way in plan.ways)
    return len(searches(plan)) + len(plan.ways) * plan.seeds - first


class _Work:
    """Goes through the runs of a comparison."""

    def __init__(self, out: Path, plan: Plan, steps: dict[str, int], quiet: bool, held: tuple[int, ...]) -> None:
        self.out, self.plan, self.steps, self.quiet, self.held = out.resolve(), plan, steps, quiet, held
        self.total = run_count(plan)
        self.failed: list[Job] = []  # in this session
        self.per_step = [_seconds_per_step(path) for path in self.out.glob(f"runs/*/*/{COST}")]

    def to_the_end(self) -> Compared:
        with StopRequest() as stop:
            self.stop = stop
            try:
                self._all_runs()
            except InterruptedRunError:
                self._results()
                raise
            return self._results()

    def _all_runs(self) -> None:
        self._frozen()
        for job in searches(self.plan):
            if chosen_lr(job.way, self.out) is None:
                self._run(job, tested=False)
        for seed in range(self.plan.seeds):
            for way in self.plan.ways:
                lr = choose_lr(self.plan, way, self.out)
                if lr is not None:
                    self._run(Job(way, lr, seed), tested=True)

    def _frozen(self) -> None:
        if (self.out / FROZEN).is_file() or not has_frozen(self.plan):
            return
        self._say("the backbone before training, on the test images")
        config = self.plan.on(self.out / IMAGES)
        said = self._apart("frozen", config, self.out / FROZEN, self.out / "frozen", "frozen backbone")
        if said:
            raise InputError(f"the backbone cannot be evaluated: {said}")

    def _run(self, job: Job, *, tested: bool) -> None:
        """A run that is not done yet; a failure is kept beside it, and the others go on."""
        if job.is_done(self.out, tested=tested):
            return
        config = self.plan.config(job.way, job.lr, job.seed, self.out / IMAGES, search=job.short)
        purpose = f"seed {config.seed}" if tested else "to choose the learning rate"
        what = f"{job.way.name}, learning rate {job.lr:g}, {purpose}"
        trained = job.is_done(self.out, tested=False)  # in the search, and to be tested now
        if not trained:
            left = self._left()
            self._say(f"run {self.total - len(left) + 1} of {self.total}: {what}{self._expected(sum(left))}")
        started = time.monotonic()
        said = self._apart("test" if tested else "train", config, job.folder(self.out), job.folder(self.out), what)
        failed = job.beside(self.out, ".failed")
        if said:
            with failed.open("a", encoding="utf-8") as file:
                file.write(said + "\n")
            self.failed.append(job)
            self._say(f"  failed: {said}")
            return
        failed.unlink(missing_ok=True)
        if not trained:
            self.per_step.append((time.monotonic() - started) / self._steps(job))

    def _steps(self, job: Job) -> int:
        return self.plan.search_steps if job.short else self.steps[job.way.name]

    def _left(self) -> list[int]:
        """The steps of each run that is not done yet."""
        plan, short = self.plan, bool(self.plan.search_steps)
        chosen = {way.name: chosen_lr(way, self.out) for way in plan.ways}
        jobs = [job for job in searches(plan) if chosen[job.way.name] is None]
        lost = [way.name for way in plan.ways if self._is_lost(way)]
        open_ones = [way for way in plan.ways if chosen[way.name] is None and way.name not in lost]
        each = plan.seeds if short else plan.seeds - 1  # one of the search is that of a seed
        unknown = [self.steps[way.name] for way in open_ones for _ in range(each)]
        jobs += [Job(way, lr, seed) for way in plan.ways for seed in range(plan.seeds) if (lr := chosen[way.name])]
        open_jobs = [job for job in jobs if not job.is_done(self.out, tested=False) and job not in self.failed]
        return [*unknown, *map(self._steps, open_jobs)]

    def _is_lost(self, way: Way) -> bool:
        """Whether no learning rate can be chosen in this session."""
        jobs = [Job(way, lr, 0, bool(self.plan.search_steps)) for lr in way.lrs]
        failed = [job for job in jobs if job in self.failed]
        return len(failed) == len(jobs) or not all(job.is_given_up(self.out) for job in failed)

    def _results(self) -> Compared:
        compared = read_comparison(self.out)
        write_results(self.out, compared)
        return compared

    def _expected(self, steps: int) -> str:
        """The time that so many steps will take, by what they took so far."""
        if not self.per_step:
            return ""
        seconds = fmean(self.per_step) * steps
        for unit, size in (("hours", 3600), ("minutes", 60)):
            if seconds >= 1.5 * size:
                return f"; about {seconds / size:.1f} {unit} left"
        return f"; about {seconds:.0f} seconds left"

    def _say(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def _apart(self, job: Task, config: TrainConfig, target: Path, beside: Path, what: str) -> str:
        """Do a job in a process of its own; gives why it failed, or nothing."""
        said = done_apart(job, config, target, beside, what, stop=self.stop, held=self.held, quiet=self.quiet)
        if said is None:
            done = f"{self.total - len(self._left())} of {self.total} runs are done"
            raise InterruptedRunError(f"stopped, {done}; go on with: {command_to_go_on(self.out)}")
        return said


def _seconds_per_step(path: Path) -> float:
    """Of a run that is done, all its time together."""
    cost, run = (json.loads(file.read_text(encoding="utf-8")) for file in (path, path.with_name("run.json")))
    return float(cost["wall"]) / max(1, run["steps"])


def _require_one_process() -> None:
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError("a comparison starts a process for each run itself; start it without torchrun")


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """The folder, made; what was made of it is taken away again where nothing comes to be in it."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".lock").touch()
    except OSError as error:
        raise InputError(f"--out {folder} cannot be written to ({error.strerror}); choose another") from error
    try:
        yield
    finally:
        if not (folder / PLAN).is_file():
            (folder / ".lock").unlink(missing_ok=True)
            with suppress(OSError):  # something is in it
                for each in missing:
                    each.rmdir()


def _require_same(folder: Path, plan: Plan) -> None:
    """Refuse to go on with other settings than those of the folder, by naming what differs; seeds may become more."""
    stored = read_stored(folder)[0]
    old, new = (_flat(each.as_json()) for each in (stored, plan))
    differ = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    if differ:
        there, now = (each.get(differ[0], "none") for each in (old, new))
        more = f" (and {', '.join(differ[1:4])}{' ...' if len(differ) > 4 else ''})" if len(differ) > 1 else ""
        raise InputError(
            f"--out {folder} holds another comparison: {differ[0]} is {there} there and {now} now{more}; "
            f"choose another --out, or go on with {command_to_go_on(folder)}"
        )


def _flat(plan: dict[str, Any]) -> dict[str, Any]:
    """What must be the same, by names a user knows."""
    found = dict(plan["settings"])
    for way in plan["ways"]:
        found[f"{way['name']}"] = way["settings"] or "the base"
        found[f"--lr of {way['name']}"] = way["lrs"]
    return found | {"--search-iterations": plan["search_steps"]}


def _changed(plan: Plan, folder: Path, seeds: int | None, reference: str) -> Plan:
    if seeds is not None and seeds < plan.seeds:
        raise InputError(f"--seeds {seeds} is fewer than the {plan.seeds} of {folder}; give as many, or more")
    names = [way.name for way in plan.ways]
    if reference and reference not in names:
        raise InputError(f"--reference {reference!r} is none of the ways to train; there are {', '.join(names)}")
    return replace(plan, seeds=seeds or plan.seeds, reference=reference or plan.reference)


@contextmanager
def _alone(folder: Path) -> Iterator[tuple[int, ...]]:
    """Refuse to work where another process does. The lock ends with the processes that hold the file it gives."""
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
            raise InputError(f"{folder} is being worked on by another process; wait for its end")
        yield (file.fileno(),)
