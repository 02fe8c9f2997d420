"""The training loop of retrieval and detection: batches in, better weights out, and nothing lost when it stops.

The folder of a run:

    config.yaml     all settings, as a recipe
    run.json        the command, versions, commit and results
    images.csv      the images and their splits (scenes.csv of a detector); broken.csv lists images that were left out
    log.jsonl       a line for each logged step; tensorboard/, wandb/ or mlruns/ hold the same, as `log` says
    checkpoints/    the whole state; a run continues from the newest one
    model/          the best model so far on the held-out images (the last model if there are none)
"""

import math
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import nn

from frontrank.data.loading import worker_errors
from frontrank.errors import DivergenceError, FrontrankWarning, InputError, InterruptedRunError
from frontrank.machine import StepMemory
from frontrank.progress import progress
from frontrank.settings import values_of
from frontrank.training import distributed
from frontrank.training.checkpoints import (
    latest_checkpoint,
    random_state,
    read_state,
    save_checkpoint,
    start_randomness,
)
from frontrank.training.logs import Log, duration_text, line_text, read_log, value_texts
from frontrank.training.optimizers import clip_gradient, learning_rate, set_learning_rate

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PRINTED_LINES = 10  # of a run, beside one for each evaluation
_CORRECTIONS = 20  # of the number of steps, in a run with a budget
_DEVIATION = 0.05  # of the steps that are left, below which they stay


# What is trained


class Run(Protocol):
    """A training run as the loop sees it: what is trained, on what, and where it is kept.

    config:         a TrainConfig, or the settings of another kind of run
    sampler:        has the number of batches of an epoch
    validation:     the held-out images; may be none
    metric:         chooses the best model; of equal values the tie breaker decides, then the later step
    evaluate_first: also evaluate the model before the first step
    patience:       evaluations without a better model after which the run stops; 0 never stops
    accumulate:     batches of a step
    scaler:         of the loss, for fp16
    budget:         when the run must end, if it has a limit of time
    """

    config: Any
    folder: Path
    model: Any
    sampler: Any
    validation: Any
    optimizer: torch.optim.Optimizer
    device: torch.device
    quiet: bool
    metric: str
    tie_breaker: str
    evaluate_first: bool
    patience: int
    accumulate: int
    scaler: torch.amp.GradScaler | None
    budget: "Budget | None"

    def batches(self, start: int, stop: int) -> Any:
        """Iterate over the batches of this process, from the number `start` to `stop`."""

    def gradient(self, network: nn.Module, batch: Any, step: int) -> tuple[int, Callable[[], dict[str, float]]]:
        """Add the gradient of a batch to the weights.

        network: the model, wrapped where several processes train it
        Returns the number of images, over all processes, and a function that computes the values to log.
        """

    def evaluate(self) -> dict[str, float]:
        """Evaluate the model on the held-out images; every process calls it, only the result of the main one counts."""

    def save_model(self) -> None:
        """Write the model to the folder of the run."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold beside the optimizer and random numbers."""

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""

    def fingerprints(self) -> dict[str, Any]:
        """Return what must be the same when a run continues."""

    def facts(self) -> dict[str, Any]:
        """Return what run.json says about this run from its start."""

    def write_data(self) -> None:
        """Write to the folder which images the run uses."""


@dataclass(frozen=True)
class Budget:
    """When a run must end, by time.monotonic().

    evaluation:   seconds that one takes
    most_steps:   of the run, however fast it is
    change_steps: gives the run another number of steps
    """

    end: float
    evaluation: float
    most_steps: int
    change_steps: Callable[[int], None]


@dataclass
class Standing:
    """How far a run is. All of it is in its checkpoints.

    frozen: stage and pooling of the frozen network that ranks best without a head, its value and tie_breaker, and the
        margin that chance may make
    """

    step: int = 0
    before: float | None = None
    before_tie_breaker: float = 0.0
    best: float | None = None
    best_tie_breaker: float = 0.0
    best_step: int = 0
    since_best: int = 0
    stopped_early: bool = False
    frozen: dict[str, Any] | None = None
    history: list[dict[str, float]] = field(default_factory=list)

    @property
    def is_frozen_best(self) -> bool:
        """Whether no step is better than the frozen network by more than chance."""
        if self.frozen is None or self.best is None:
            return False
        least = self.frozen["value"] + self.frozen.get("margin", 0.0)
        return bool((least, self.frozen["tie_breaker"]) > (self.best, self.best_tie_breaker))


# The loop


def train_loop(run: Run, standing: Standing | None = None, randomness: list[dict[str, Any]] | None = None) -> Standing:
    """Train to the end and return how it went.

    standing, randomness: what `restore` returned for a run that continues

    The step whose model is best on the held-out images becomes the model of the run; test images are never used.
    """
    standing = standing or Standing()
    config, steps, main = run.config, steps_of(run), distributed.is_main()
    if not _is_over(run, standing):
        network = distributed.wrap_model(run.model)
        most = steps if run.budget is None else max(steps, run.budget.most_steps)
        batches = iter(run.batches(standing.step * run.accumulate, most * run.accumulate))
        start_randomness(config.seed, standing.step, distributed.rank(), randomness)
        shown = values_of(config) if main else {}
        resume_step = standing.step or -1
        log = Log(run.folder, resume_step, enabled=main, trackers=config.log, settings=shown)
        show = None if main and not run.quiet else False
        with StopRequest() as stop, log, worker_errors(config.data.workers):
            if run.evaluate_first and standing.before is None and len(run.validation):
                _print(run, standing, _evaluate(run, standing, log))
            memory, seconds, first, started = StepMemory(run.device), [], standing.step, time.monotonic()
            pace = _Pace(standing.step)
            with progress("training", 1, show=show) as advance:
                advance(done := standing.step / steps)
                while not _is_over(run, standing):
                    values, duration = take_step(run, standing, network, batches)
                    seconds.append(duration)
                    note: dict[str, float] = {}
                    is_tenth = ends_part(standing.step, steps, _PRINTED_LINES)
                    log_due = standing.step % config.log_every == 0 or standing.step in (1, steps)
                    evaluation_due = _is_evaluation_due(run, standing.step)
                    if main and (log_due or is_tenth or evaluation_due):
                        all_values = values()
                        note = {name: all_values[name] for name in ("loss", "images/s") if name in all_values}
                    if log_due:
                        costs = {"seconds per step": float(np.median(seconds)), "peak MB": memory.peak()}
                        _write(run, standing, log, {**(all_values if main else {}), **costs})
                        seconds.clear()
                    metrics: dict[str, float] = {}
                    if evaluation_due or standing.step % config.checkpoint_every == 0:
                        with memory.pause(), pace.pause():
                            if evaluation_due and len(run.validation):
                                metrics = _evaluate(run, standing, log)
                            save_state(run, standing)
                    if run.budget is not None and ends_part(standing.step, steps, _CORRECTIONS):
                        steps = _fit_steps(run, run.budget, standing.step, pace)
                    if is_tenth or metrics:
                        left = (time.monotonic() - started) / (standing.step - first) * (steps - standing.step)
                        _print(run, standing, metrics, note, left)
                    share = (1 - done) / (steps - standing.step + 1)
                    done += share
                    advance(share, "  ".join(value_texts(note)))
                    if distributed.any_rank(stop.asked) and not _is_over(run, standing):
                        save_state(run, standing)
                        raise InterruptedRunError(f"stopped at step {standing.step} of {steps}, and saved")
    if not len(run.validation) and main:
        run.save_model()
    standing.stopped_early = standing.step < steps
    return standing


class _Pace:
    """Seconds per step since they were last asked for, and of the last pause."""

    def __init__(self, step: int) -> None:
        self._step, self._started, self.paused = step, time.monotonic(), 0.0

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave out what is done in it."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.paused = time.monotonic() - started
            self._started += self.paused

    def per_step(self, step: int) -> float:
        """Return the seconds of each step up to this one."""
        now = time.monotonic()
        seconds = (now - self._started) / (step - self._step)
        self._step, self._started = step, now
        return seconds


def _fit_steps(run: Run, budget: Budget, step: int, pace: _Pace) -> int:
    """Return the number of steps of a run with a budget, corrected by the speed of the last steps.

    The learning rate follows the new number: it is zero at the end.
    """
    steps, evaluations = steps_of(run), run.config.evaluations
    waiting = evaluations - step * evaluations // steps
    left = budget.end - time.monotonic() - waiting * max(budget.evaluation, pace.paused)
    fit = step + max(1, int(left / max(pace.per_step(step), 1e-9)))
    fit = int(distributed.from_main(min(fit, budget.most_steps)))
    if step >= steps or abs(fit - steps) <= max(1, _DEVIATION * (steps - step)):
        return steps
    budget.change_steps(fit)
    return fit


def take_step(
    run: Run, standing: Standing, network: nn.Module, batches: Iterator[Any]
) -> tuple[Callable[[], dict[str, float]], float]:
    """Take one step of the optimizer; return a function that computes the values to log, and the seconds it took."""
    started, waited, images = time.monotonic(), 0.0, 0
    config = run.config
    milestone_steps = 1 if config.iterations else len(run.sampler) / run.accumulate
    factor = learning_rate(config.optimizer, standing.step, steps_of(run), milestone_steps)
    set_learning_rate(run.optimizer, factor)
    run.optimizer.zero_grad(set_to_none=True)
    run.model.train()
    for _ in range(run.accumulate):
        asked = time.monotonic()
        batch = next(batches)
        waited += time.monotonic() - asked
        count, batch_values = run.gradient(network, batch, standing.step)
        images += count
    norm = _update(run, standing.step + 1)
    standing.step += 1
    seconds = time.monotonic() - started

    def values() -> dict[str, float]:
        return {
            **batch_values(),
            "gradient norm": norm,
            "learning rate": config.optimizer.lr * factor,
            "images/s": images / seconds,
            "waiting for images": waited / seconds,
        }

    return values, seconds


def _update(run: Run, step: int) -> float:
    """Clip the gradient, step the optimizer, and return the norm of the gradient before it was clipped."""
    if run.scaler is not None:
        run.scaler.unscale_(run.optimizer)
    norm = clip_gradient(run.optimizer, run.config.optimizer.clip)
    if run.scaler is not None:  # it leaves out a step whose gradient is not finite
        run.scaler.step(run.optimizer)
        run.scaler.update()
        return norm
    if not math.isfinite(norm):
        raise DivergenceError(f"the gradient is not finite at step {step}; lower optimizer.lr, or set optimizer.clip")
    run.optimizer.step()
    return norm


def _evaluate(run: Run, standing: Standing, log: Log) -> dict[str, float]:
    """Evaluate on the held-out images, save the model if it is the best so far, and return the values of the log.

    The model before training can be the best, too: then training did not help.
    """
    metrics = distributed.from_main(run.evaluate())
    value, tie = metrics[run.metric], metrics.get(run.tie_breaker, 0.0)
    standing.history.append({"step": standing.step, **metrics})
    values = {f"validation {name}": each for name, each in metrics.items()}
    _write(run, standing, log, values)
    if standing.step == 0:
        standing.before, standing.before_tie_breaker = value, tie
    if standing.best is None or (value, tie) >= (standing.best, standing.best_tie_breaker):
        standing.best, standing.best_tie_breaker = value, tie
        standing.best_step, standing.since_best = standing.step, 0
        if distributed.is_main():
            run.save_model()
    else:
        standing.since_best += 1
    return values


def _write(run: Run, standing: Standing, log: Log, values: dict[str, float]) -> None:
    """Write a line of the log."""
    if distributed.is_main():
        log.write(standing.step, values, epoch=standing.step * run.accumulate / len(run.sampler))


def _print(
    run: Run, standing: Standing, metrics: dict[str, float], note: dict[str, float] | None = None, left: float = 0.0
) -> None:
    """Print a line: metrics, if there are any, the values of the last step, and the seconds left.

    On a terminal a bar shows all but the metrics, of which the line has as many as fit.
    """
    bar = sys.stderr.isatty()
    if run.quiet or not distributed.is_main() or (bar and not metrics):
        return
    epoch = standing.step * run.accumulate / len(run.sampler)
    text = line_text(standing.step, steps_of(run), epoch, {**metrics, **({} if bar else note or {})})
    metrics, rest = dict(metrics), [name for name in metrics if name != f"validation {run.metric}"]
    while bar and rest and len(text) >= shutil.get_terminal_size().columns:  # the log has all of them
        del metrics[rest.pop()]
        text = line_text(standing.step, steps_of(run), epoch, metrics)
    print(f"{text}  {duration_text(left)} left" if left and not bar else text, file=sys.stderr, flush=True)


def steps_of(run: Run) -> int:
    """Return the optimizer steps of a run."""
    return count_steps(run.config, len(run.sampler), run.accumulate)


def count_steps(config: Any, batches_per_epoch: int, accumulate: int = 1) -> int:
    """Return the optimizer steps of a run of these settings."""
    return config.iterations or math.ceil(config.epochs * batches_per_epoch / accumulate)


def _is_over(run: Run, standing: Standing) -> bool:
    out_of_patience = run.patience > 0 and standing.since_best >= run.patience
    return standing.step >= steps_of(run) or out_of_patience


def _is_evaluation_due(run: Run, step: int) -> bool:
    """Whether an epoch ends here; in a run counted in iterations, whether one of the even parts does."""
    config = run.config
    if step >= steps_of(run):
        return True
    if config.iterations:
        return ends_part(step, config.iterations, config.evaluations)
    return ends_part(step, len(run.sampler) * config.evaluate_every, run.accumulate)


def ends_part(step: int, size: int, parts: int) -> bool:
    """Whether one of the even parts ends at a step, when every `size` steps are cut into that many.

    >>> [step for step in range(1, 13) if ends_part(step, 5, 2)]
    [3, 5, 8, 10]
    """
    return step * parts // size > (step - 1) * parts // size


# Checkpoints


def save_state(run: Run, standing: Standing) -> None:
    """Write a checkpoint of the whole run."""
    randomness = distributed.gather_objects(random_state())
    if not distributed.is_main():
        return
    state = {
        "standing": asdict(standing),
        **run.state(),
        "optimizer": run.optimizer.state_dict(),
        "random": randomness,
        **run.fingerprints(),
    }
    save_checkpoint(run.folder / "checkpoints", standing.step, state)


def restore(run: Run) -> tuple[Standing, list[dict[str, Any]] | None]:
    """Load the newest checkpoint of a run, if there is one; return its standing and the states of random numbers."""
    path = latest_checkpoint(run.folder / "checkpoints")
    if path is None:
        _warn_of_lost_steps(run)
        return Standing(), None
    state = read_state(path)
    if any(state.get(name) != value for name, value in run.fingerprints().items()):
        raise InputError(f"{path} was made with other data or batches; put them back, or start a new run")
    try:
        run.load_state(state)
        run.optimizer.load_state_dict(state["optimizer"])
        return Standing(**state["standing"]), state["random"]
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} does not fit the settings of the run; undo what changed in config.yaml") from error


def _warn_of_lost_steps(run: Run) -> None:
    """Warn if the log of a run without checkpoints goes on after a step at which there was one."""
    try:
        lines = read_log(run.folder / "log.jsonl")
    except InputError:
        return
    last = max((line.get("step", 0) for line in lines), default=0)
    if any(step % run.config.checkpoint_every == 0 or _is_evaluation_due(run, step) for step in range(1, last)):
        note = f"{run.folder / 'checkpoints'} has none, but the log has step {last}; the run begins again at step 0"
        warnings.warn(note, FrontrankWarning, stacklevel=2)


# Requests to stop


class StopRequest:
    """While it is open, the first Ctrl-C or SIGTERM only sets `asked`, so that a run can be saved; a second interrupts.

    Only the main thread handles signals; in another thread this changes nothing.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {each: signal.signal(each, self._ask) for each in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("\nstopping after this step, to save the run (again: stop at once) ...", file=sys.stderr, flush=True)
