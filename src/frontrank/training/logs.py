"""The log of a run: a file of JSON lines, the trackers beside it, and short lines on stderr."""

import json
import math
import os
import re
import secrets
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TextIO

from frontrank.checks import import_extra
from frontrank.errors import FrontrankWarning, InputError
from frontrank.files import atomic_write, unwritable
from frontrank.settings import tracker_names


class Log:
    """Log that writes `log.jsonl` in the folder of a run, and the same values to trackers.

    A line is an object of step, epoch, time (seconds since 1970) and values. JSON has no NaN and no infinity: such a
    value is null, and named in the entry `not_finite`. Every line is written at once. Write the lines of a step before
    its checkpoint: then a run that goes on from the checkpoint has every line once.

    resume_step: go on with the log of the folder after this step; lines of later steps are dropped
    enabled:     False, in all processes but the first, writes nothing
    trackers:    any of tensorboard, wandb, mlflow, with commas between them, or none
    settings:    of the run, by name, for the trackers that show them

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with Log(folder) as log:
    ...     log.write(10, {"loss": 0.5}, epoch=1)
    >>> with Log(folder, resume_step=10) as log:
    ...     log.write(20, {"loss": math.inf}, epoch=2)
    >>> [(line["step"], line["loss"]) for line in read_log(Path(folder) / "log.jsonl")]
    [(10, 0.5), (20, inf)]
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        resume_step: int = -1,
        *,
        enabled: bool = True,
        trackers: str = "tensorboard",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._file: TextIO | None = None
        self._trackers: list[Any] = []
        self._path = Path(folder) / "log.jsonl"
        if not enabled:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _drop_after(self._path, resume_step)
            self._file = self._path.open("a", encoding="utf-8")
            for name in tracker_names(trackers):
                if name == "tensorboard":
                    tracker = _open_events(self._path.with_name("tensorboard"), resume_step)
                else:
                    tracker = {"wandb": _Wandb, "mlflow": _Mlflow}[name](self._path.parent, resume_step, settings or {})
                self._trackers += [tracker] if tracker is not None else []
        except OSError as error:
            self.__exit__(type(error))
            raise unwritable(self._path, error) from error
        except InputError as error:
            self.__exit__(type(error))
            raise

    def write(self, step: int, values: Mapping[str, float], epoch: float) -> None:
        """Add a line of values by name."""
        if self._file is None:
            return
        try:
            self._file.write(_line(step, epoch, values))
            self._file.flush()
            for tracker in self._trackers:
                tracker.write(step, values)
        except OSError as error:
            raise unwritable(self._path, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._file is None:
            return
        with suppress(OSError):  # every line was flushed: `write` has reported what fails here
            self._file.close()
        for tracker in self._trackers:
            with suppress(OSError, InputError):  # nor may a server that went away hide how the run ended
                tracker.close(failed=kind is not None)


def read_log(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the lines of a `log.jsonl`. A last one that was cut off is left out; any other damage raises."""
    entries = []
    for number, (_, entry) in enumerate(_lines(Path(path)), 1):
        if entry is None:
            raise InputError(f"{path} line {number} is damaged; delete that line")
        entries.append(entry)
    return entries


def line_text(step: int, steps: int, epoch: float, values: Mapping[str, float]) -> str:
    """Return a line of the log as short text; a speed (a name that ends in /s) stands before its unit.

    "validation" is said once.

    >>> line_text(120, 400, 3, {"loss": 0.43212, "queries_used": 112, "images/s": 123.4})
    'epoch 3  step 120/400  loss 0.4321  queries_used 112  123 images/s'
    >>> line_text(1, 4, 0.5, {"validation R@1": 0.5, "validation mAP": 0.25})
    'epoch 0.5  step 1/4  validation R@1 0.5  mAP 0.25'
    """
    return "  ".join([f"epoch {epoch:.4g}", f"step {step}/{steps}", *value_texts(values)])


def value_texts(values: Mapping[str, float]) -> list[str]:
    """Return values by name as short texts; those of coarser levels of labels are in the log only."""
    values = {name: value for name, value in values.items() if "(level" not in name}
    texts = []
    first = next((name for name in values if name.startswith("validation ")), "")
    for full, value in values.items():
        name = full if full == first else full.removeprefix("validation ")
        text = f"{value:.4g}" if isinstance(value, float) else f"{value}"
        texts.append(f"{value:.0f} {name}" if name.endswith("/s") else f"{name} {text}")
    return texts


def duration_text(seconds: float) -> str:
    """Return a time in its two largest units.

    >>> duration_text(7), duration_text(95), duration_text(4000), duration_text(200_000)
    ('7 s', '1 min 35 s', '1 h 6 min', '2 d 7 h')
    """
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    whole = round(seconds)
    place = next((number for number, (_, size) in enumerate(units) if whole >= size), 3)
    parts = []
    for name, size in units[place : place + 2]:
        parts.append(f"{whole // size} {name}")
        whole %= size
    return " ".join(parts)


def _line(step: int, epoch: float, values: Mapping[str, float]) -> str:
    odd = {name: repr(float(value)) for name, value in values.items() if not math.isfinite(value)}
    entry: dict[str, Any] = {"step": step, "epoch": epoch, "time": round(time.time(), 3)}
    entry |= {name: None if name in odd else value for name, value in values.items()}
    if odd:
        entry["not_finite"] = odd
    return json.dumps(entry, allow_nan=False) + "\n"


def _lines(path: Path) -> list[tuple[bytes, dict[str, Any] | None]]:
    """Return the bytes and the content of every line that has an end; None as the content of a damaged one."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}; give the path of a log.jsonl") from error
    return [(line + b"\n", _entry(line)) for line in content.split(b"\n")[:-1]]


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
        if type(entry["step"]) is not int:
            return None
        return entry | {name: float(value) for name, value in entry.pop("not_finite", {}).items()}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return None


def _drop_after(path: Path, step: int) -> None:
    """Rewrite a log without the lines after a step and without damaged ones."""
    if not path.exists():
        return
    lines = _lines(path)
    if damaged := [number for number, (_, entry) in enumerate(lines, 1) if entry is None]:
        note = f"{path} is damaged in {len(damaged)} of its lines (first: {damaged[0]}), which are dropped"
        warnings.warn(note, FrontrankWarning, stacklevel=3)
    atomic_write(path, b"".join(line for line, entry in lines if entry is not None and entry["step"] <= step))


# Trackers


def check_trackers(trackers: str) -> None:
    """Raise before a run starts if a tracker is not installed; TensorBoard is left out with a warning instead."""
    for name in tracker_names(trackers):
        if name != "tensorboard":
            import_extra(name, name, f"log {name}")


def _open_events(folder: Path, resume_step: int) -> Any:
    """Return a tracker of TensorBoard, or None with a warning if that is not installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        note = "tensorboard is not installed, so the log is log.jsonl only; pip install 'frontrank[train]'"
        warnings.warn(note, FrontrankWarning, stacklevel=3)
        return None
    return _TensorBoard(SummaryWriter(str(folder), purge_step=resume_step + 1))


class _TensorBoard:
    """Events in the folder `tensorboard` of a run."""

    def __init__(self, events: Any) -> None:
        self._events = events

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._events.add_scalar(name, value, step)
        self._events.flush()

    def close(self, failed: bool) -> None:
        self._events.close()


class _Wandb:
    """A run of Weights & Biases; its own variables apply, such as WANDB_MODE=offline and WANDB_PROJECT.

    Files are in the folder `wandb` of the run; a run that continues has the same id there.
    """

    def __init__(self, folder: Path, resume_step: int, settings: Mapping[str, Any]) -> None:
        wandb = import_extra("wandb", "wandb", "log wandb")
        run_id = _read_id(folder, "wandb", resume_step) or secrets.token_hex(4)
        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "frontrank"),
                name=folder.absolute().name,
                dir=str(folder),
                id=run_id,
                resume="allow",
                config=dict(settings),
                settings=wandb.Settings(silent=True),
            )
        except wandb.errors.Error as error:
            raise _tracker_error("wandb", error, "run wandb login, or set WANDB_MODE=offline") from error
        _write_id(folder, "wandb", run_id)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class _Mlflow:
    """A run of MLflow, at MLFLOW_TRACKING_URI; without that in files, in the folder `mlruns` of the run.

    MLflow has no @ and no parentheses in names: "R@1 (level 2)" is "R_at_1 level 2" there.
    """

    def __init__(self, folder: Path, resume_step: int, settings: Mapping[str, Any]) -> None:
        self._mlflow = import_extra("mlflow", "mlflow", "log mlflow")
        place = os.environ.get("MLFLOW_TRACKING_URI")
        if not place:
            place = (folder / "mlruns").absolute().as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # else MLflow 3 refuses its own file store
        entities, experiment = self._mlflow.entities, os.environ.get("MLFLOW_EXPERIMENT_NAME", "frontrank")
        with _mlflow_errors(self._mlflow):
            self._client = self._mlflow.MlflowClient(place)
            known = self._client.get_experiment_by_name(experiment)
            number = known.experiment_id if known else self._client.create_experiment(experiment)
            self._id = _read_id(folder, "mlflow", resume_step)
            if self._id is None:
                self._id = self._client.create_run(number, run_name=folder.absolute().name).info.run_id
                texts = {name: f"{value}"[:500] for name, value in settings.items()}
                self._client.log_batch(self._id, params=[entities.Param(*each) for each in texts.items()])
            self._client.set_terminated(self._id, "RUNNING")
        _write_id(folder, "mlflow", self._id)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        now, metric = int(time.time() * 1000), self._mlflow.entities.Metric
        names = {name: re.sub(r"[^\w\-. :/]", "", name.replace("@", "_at_")) for name in values}
        entries = [metric(names[name], float(value), now, step) for name, value in values.items()]
        with _mlflow_errors(self._mlflow):
            self._client.log_batch(self._id, metrics=entries)

    def close(self, failed: bool) -> None:
        with _mlflow_errors(self._mlflow):
            self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


@contextmanager
def _mlflow_errors(mlflow: Any) -> Iterator[None]:
    try:
        yield
    except mlflow.exceptions.MlflowException as error:
        raise _tracker_error("mlflow", error, "check MLFLOW_TRACKING_URI and the server") from error


def _tracker_error(name: str, error: Exception, remedy: str) -> InputError:
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    return InputError(f"log {name} does not work ({reason}); {remedy}, or leave {name} out of log")


def _read_id(folder: Path, tracker: str, resume_step: int) -> str | None:
    """Return the id that a run has in a tracker, if the run continues and was tracked there before."""
    path = folder / f"{tracker}.id"
    return path.read_text(encoding="utf-8").strip() if resume_step >= 0 and path.is_file() else None


def _write_id(folder: Path, tracker: str, run_id: str) -> None:
    atomic_write(folder / f"{tracker}.id", f"{run_id}\n".encode())
