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
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
import torch

from frontrank.comparison.plan import Plan, Way
from frontrank.comparison.results import Compared, read_comparison, write_results
from frontrank.comparison.tasks import (
    COST,
    FACTS,
    FROZEN,
    IMAGES,
    INTERRUPTED,
    PLAN,
    Job,
    choose_lr,
    chosen_lr,
    command_to_go_on,
    read_stored,
    require_tests,
    searches,
    sides,
    write_plan,
)
from frontrank.data.images import check_images
from frontrank.data.table import ImageTable, read_table
from frontrank.errors import InputError, InterruptedRunError
from frontrank.progress import progress
from frontrank.settings import ModelConfig, TrainConfig, as_yaml
from frontrank.training.loop import StopRequest, count_steps
from frontrank.training.optimizers import check_optimizer
from frontrank.training.run import (
    build_device,
    build_images,
    build_model,
    build_sampler,
    fill_batch_size,
    image_check_cache,
    require_metric,
    require_new,
    split_images,
)

# ==== All that a comparison can be refused for, before its first run; and the images that its runs share.


_TEST_SHARE = 0.5  # of the classes, where the data set says nothing of test images
_LEAST = 8  # classes of two images: two to train with, two to choose by and, of as many again, half to test
_OF_FROZEN = ("model.backbone", "model.weights", "model.pooling", "model.stage", "data.size", "data.resize")


@dataclass(frozen=True, eq=False)
class Prepared:
    """The images with the splits that all runs share, what there is to say of them, and the steps of each way."""

    table: ImageTable
    notes: tuple[str, ...]
    steps: dict[str, int]


def prepare(plan: Plan, *, show: bool | None = None) -> Prepared:
    """Check all settings with the images, and these; what takes long comes last."""
    require_metric(plan.base.metric)
    build_device(plan.base.device)
    table = build_images(plan.base.data)
    parted, notes = _parted(table, plan)
    steps = {way.name: _steps(plan, way, parted) for way in plan.ways}
    _check_models(plan)
    data = plan.base.data
    memory = image_check_cache(table.root, 0, 1)
    found = check_images(table, data.check, data.broken, max(1, data.workers), remembered=memory, show=show)
    if found.broken:  # a split of images of which some are missing could leave a class of one
        parted, notes = _parted(found.table, plan)
        steps = {way.name: _steps(plan, way, parted) for way in plan.ways}
        notes.append(found.note)
    if not has_frozen(plan):
        notes.append("there is no line of the backbone before training, as the backbone or its images vary")
    return Prepared(parted, tuple(notes), steps)


def has_frozen(plan: Plan) -> bool:
    """Whether the backbone before training is the same for all ways."""
    return not any(axis in _OF_FROZEN for axis in plan.axes)


def pictures_digest(table: ImageTable) -> str:
    """What tells pictures from others of the same names: size and time of change of every file."""
    found = sha256()
    for file in table.files():
        try:
            told = os.stat(file)
            found.update(f"{told.st_size} {told.st_mtime_ns}\n".encode())
        except OSError:
            found.update(b"missing\n")
    return found.hexdigest()


def _parted(table: ImageTable, plan: Plan) -> tuple[ImageTable, list[str]]:
    """The table with its splits, and what was done to it."""
    config, notes = plan.base, []
    if not len(table.of("test")) and not config.data.test:
        _require_classes(table, config)
        config = replace(config, data=replace(config.data, test=_TEST_SHARE))
        notes.append(f"{_TEST_SHARE:.0%} of the classes, drawn by the seed, are test images, as there were none")
    parted = split_images(table, config)
    if not len(parted.of("validation")) and any(len(way.lrs) > 1 for way in plan.ways):
        raise InputError(
            "no classes are held out to choose learning rates by; set data.validation above 0, or give one --lr"
        )
    require_tests(parted)
    test = parted.of("test")
    left = int((test.roles == "distractor").sum())
    if left and sides(test)[1] is None:
        notes.append(f"{left:,} distractors are left out, as there is no gallery beside them")
    if config.data.merge_classes > 1:
        notes.append(f"every {config.data.merge_classes} training classes are merged into one")
    return parted, notes


def _require_classes(table: ImageTable, config: TrainConfig) -> None:
    """Refuse too few classes to draw those for test from."""
    train = table.of("train")
    sizes = np.unique(train.labels[train.labels != ""], return_counts=True)[1]
    several, chosen = int((sizes > 1).sum()), config.data.validation > 0 and not len(table.of("validation"))
    least = _LEAST if chosen else _LEAST // 2
    if several < least:
        less = f" ({_LEAST // 2} with --data.validation 0 and one --lr)" if chosen else ""
        raise InputError(
            f"--data {config.data.path} has {several} classes of two images or more; compare needs test images, or at "
            f"least {least} classes of two images{less}"
        )


def _steps(plan: Plan, way: Way, table: ImageTable) -> int:
    """The steps of a run of a way; refuses batches and schedules that the images do not allow."""
    training = table.of("train")
    config = plan.config(way, way.lrs[0], 0, Path("images.csv"))
    try:
        config = replace(config, batches=fill_batch_size(config.batches, training))
        sampler = build_sampler(config.batches, training, config.seed)
        steps = count_steps(config, len(sampler), config.batches.accumulate)
        check_optimizer(config.optimizer, steps)
        if plan.search_steps and len(way.lrs) > 1:
            check_optimizer(config.optimizer, plan.search_steps)
    except InputError as error:
        raise InputError(f"{way.name}: {error}") from error
    return steps


def _check_models(plan: Plan) -> None:
    """Build every network of the plan once: a wrong name is found now, and weights are fetched."""
    built: list[tuple[ModelConfig, int, int]] = []
    for way in plan.ways:
        config = plan.config(way, way.lrs[0], 0, Path("images.csv"))
        wanted = (config.model, config.data.size, config.data.resize)
        if wanted in built:
            continue
        with torch.random.fork_rng(devices=[]):
            try:
                build_model(config.model, config.data)
            except InputError as error:
                raise InputError(f"{way.name}: {error}" if plan.axes else str(error)) from error
        built.append(wanted)


# ==== A process for each run of a comparison: started, watched, stopped, and its end told in a line.


Task = Literal["train", "test", "frozen"]

_LOOK = 0.3  # seconds between looks at a run
_READ = 20_000  # bytes of its output that are looked at


def done_apart(
    task: Task,
    config: TrainConfig,
    target: Path,
    beside: Path,
    what: str,
    *,
    stop: StopRequest,
    held: tuple[int, ...] = (),
    quiet: bool = False,
) -> str | None:
    """Do a task of `comparison_run` in a process of its own: gives why it failed, or nothing; None if it was stopped.

    target: where it goes; beside: what its recipe (.yaml) and its output (.txt) are named after
    stop: handed on to the process, which saves its run; held: files that stay open as long as it lives
    """
    beside.parent.mkdir(parents=True, exist_ok=True)
    recipe, said = (beside.with_name(beside.name + ending) for ending in (".yaml", ".txt"))
    recipe.write_text(as_yaml(config), encoding="utf-8")
    command = [sys.executable, "-P", "-m", "frontrank.comparison.tasks", task, str(recipe), str(target)]
    with said.open("a", encoding="utf-8") as output:
        start = output.tell()
        # Its stdin ends with this process; a signal of the terminal reaches it through here only.
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True, pass_fds=held
        )
    try:
        _watch(child, said, start, what if not quiet and sys.stderr.isatty() else "", stop)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        if child.stdin is not None:
            child.stdin.close()
    if stop.asked or child.returncode == INTERRUPTED:
        return None
    return "" if child.returncode == 0 else reason(child.returncode, _tail(said, start))


def _watch(child: "subprocess.Popen[bytes]", said: Path, start: int, shown: str, stop: StopRequest) -> None:
    """Wait for the end, and draw how far it is; a stop that is asked for is handed on once."""
    told, done = False, 0
    tick: Callable[[float], None] | None = None
    with ExitStack() as bar:
        while True:
            with suppress(subprocess.TimeoutExpired):
                child.wait(_LOOK)
                return
            if stop.asked and not told:
                told = True
                child.terminate()
            steps = re.findall(r"step (\d+)/(\d+)", _tail(said, start)) if shown else []
            if steps and tick is None:
                tick = bar.enter_context(progress(shown, int(steps[-1][1])))
            if steps and tick is not None:
                tick(int(steps[-1][0]) - done)
                done = int(steps[-1][0])


def _tail(path: Path, start: int) -> str:
    """The end of what was written to a file after a place."""
    with path.open("rb") as file:
        file.seek(max(start, path.stat().st_size - _READ))
        return file.read().decode("utf-8", "replace")


def reason(status: int, said: str) -> str:
    """Why a process failed, in a line: its signal, or the last thing it said.

    >>> reason(2, "step 1/4\\nthe gradient is not finite\\n"), reason(-9, "")
    ('the gradient is not finite', 'ended by the signal SIGKILL, perhaps for want of memory')
    """
    if status < 0:
        memory = ", perhaps for want of memory" if -status == signal.SIGKILL else ""
        return f"ended by the signal {signal.Signals(-status).name}{memory}"
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "")
    return last[:300] or f"ended with status {status}, without a word"


# ==== `compare`: train in several ways on the same images, run by run, and say which ranks unseen classes best.


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
