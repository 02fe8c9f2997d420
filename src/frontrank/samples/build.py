"""The build of a sample data set: the state of its folder, its licences, and the processes that draw pictures."""

import hashlib
import json
import multiprocessing
import os
import shlex
import shutil
import signal
import sys
import threading
import time
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from frontrank.checks import printable, shorten
from frontrank.data.table import ImageTable, read_table
from frontrank.errors import FrontrankWarning, InputError
from frontrank.files import UNFINISHED, PathLike, atomic_write, file_digest, folder_lock, write_errors
from frontrank.packages import Package
from frontrank.progress import progress

TABLE = "images.csv"
PICTURES = "images"  # the folder of them
SCENES = "VOC2007"  # the folder of a data set of scenes
WORK = ".work"  # a folder for files that are deleted at the end
_FORMAT = "frontrank.data.1"
_STATE = "data.json"
_LICENCES = "LICENCES.md"
_TOLERANCE = 0.01  # of known counts; a larger difference is an error
_PATIENCE = 3.0  # seconds in which the processes of a killed build end

BuildSettings = dict[str, object]

SOURCES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("packages.toml").read_text(encoding="utf-8"))
PINNED = {key: Package(*row) for key, row in SOURCES["packages"].items()}


@dataclass(frozen=True)
class PictureSource:
    """A design of the pictures, its package and its licence."""

    name: str
    package: Package
    licence: str


# The state of the folder


def read_build_state(out: PathLike, settings: BuildSettings) -> dict[str, Any] | None:
    """Return the state of a folder whose build has ended; None if it must be built or gone on with.

    settings: all that decides what is built, as it is in JSON, with "data" for the kind; a folder built with others is
              refused, and one that holds anything else. Nothing is written
    """
    folder = Path(out)
    with write_errors(folder):
        state = _check_state(folder, settings)
    return state if state is not None and state["finished"] else None


def read_built(out: PathLike, settings: BuildSettings) -> ImageTable | None:
    """Return the table of a folder whose build has ended, with all its pictures; else None, as `read_build_state`."""
    folder, state = Path(out), read_build_state(out, settings)
    if state is None or "table" not in state or not (folder / TABLE).is_file():
        return None
    if file_digest(folder / TABLE) != state["table"]:
        raise InputError(f"{printable(folder / TABLE)} was changed; delete it, and run this again")
    table = replace(read_table(folder / TABLE), name=str(settings["data"]))
    return table if all(has_content(f"{folder}/{path}") for path in table.paths.tolist()) else None


@contextmanager
def start_build(out: PathLike, settings: BuildSettings) -> Iterator[None]:
    """Lock a folder and write down its settings; inside the with block it is built, or gone on with."""
    folder = Path(out)
    with write_errors(folder):
        _check_state(folder, settings)
        folder.mkdir(parents=True, exist_ok=True)
    with folder_lock(folder, _PATIENCE) as alone:
        if not alone:
            raise InputError(f"{printable(folder)} is being built by another process; wait for its end")
        with write_errors(folder):
            state = _check_state(folder, settings)  # again: another process may have changed it
            if state is None or state["settings"] != settings:
                shutil.rmtree(folder / WORK, ignore_errors=True)
                _write_state(folder, {"finished": False, "settings": settings})
            for unfinished in folder.rglob(f"*{UNFINISHED}"):  # of a build that was killed
                unfinished.unlink(missing_ok=True)
        yield


def resume_command(out: PathLike) -> str | None:
    """Return the command that goes on with a folder whose build did not end; None for any other folder."""
    folder = Path(out)
    state = _load_state(folder)
    if state is None or (state["finished"] and ("scenes" in state or (folder / TABLE).is_file())):
        return None
    settings = state["settings"]
    words = ["frontrank", "data", str(settings.pop("data", "")), str(out)]
    for name, value in settings.items():
        if value is not None and value is not False:
            given = [] if value is True else [",".join(map(str, value)) if isinstance(value, list) else str(value)]
            words += [f"--{name.replace('_', '-')}", *given]
    return shlex.join(words)


def has_content(path: PathLike) -> bool:
    """Return whether there is a file that is not empty."""
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


def label_split(label: str) -> str:
    """Return "train" for about half of all labels, "test" for the others, by a hash that never changes."""
    return "train" if hashlib.sha256(label.encode()).digest()[0] < 128 else "test"


def picture_table(folder: Path, rows: Iterable[tuple[str, str, str, str, PictureSource, str]]) -> ImageTable:
    """Return the table of pictures, of which rows has path, label, category, subcategory, source and name."""
    paths, labels, categories, subcategories, sources, names = zip(*rows, strict=True)
    designs, licences = zip(*((source.name, source.licence) for source in sources), strict=True)
    columns = {"subcategory": subcategories, "design": designs, "licence": licences, "name": names}
    extra = {name: np.array(column) for name, column in columns.items()}
    splits, roles = np.array(list(map(label_split, labels))), np.full(len(paths), "")
    return ImageTable(folder, np.array(paths), np.array(labels), np.array(categories), splits, roles, extra)


def check_counts(what: str, table: ImageTable, known: tuple[int, int]) -> None:
    """Compare the numbers of classes and images with the known ones; a few pictures depend on the libraries."""
    counts = len(np.unique(table.labels)), len(table)
    if counts == known:
        return
    fault = f"{what} has {counts[0]:,} classes and {counts[1]:,} images, not {known[0]:,} and {known[1]:,}"
    reason = f"{fault}: another pillow or resvg_py draws them otherwise"
    if any(abs(one / other - 1) > _TOLERANCE for one, other in zip(counts, known, strict=True)):
        raise InputError(f"{reason}; use the versions that frontrank names")
    warnings.warn(f"{reason}; compare figures of this machine only", FrontrankWarning, stacklevel=3)


def finish_table(
    folder: Path,
    table: ImageTable,
    settings: BuildSettings,
    sources: Sequence[PictureSource],
    names: Package,
    notes: str,
) -> ImageTable:
    """Write the table and the licences, end the build, and read the table again.

    table: with the extra columns "design" and "licence"
    names: the package with the names and groups of the classes
    notes: a paragraph for the file of licences
    """
    packages = list(dict.fromkeys([*(source.package for source in sources), names]))
    table.save(folder / TABLE, overwrite=True)
    counts = [{key: value for key, value in row.items() if key != "role"} for row in table.counts()]
    state = {"table": file_digest(folder / TABLE), "settings": settings, "counts": counts}
    finish_build(folder, _licence_table(str(settings["data"]), table, sources, names, notes), state, packages)
    again = read_built(folder, settings)
    if again is None:
        raise InputError(f"{printable(folder)} was changed while it was built; run this again")
    return again


def finish_build(folder: Path, licences: str, state: Mapping[str, object], packages: Sequence[Package]) -> None:
    """Write the licences and, last of all, the state of a folder whose build has ended."""
    entries = [{key: getattr(each, key) for key in ("client", "name", "version", "sha256")} for each in packages]
    atomic_write(folder / _LICENCES, licences)
    _write_state(folder, {"finished": True, **state, "packages": entries})


def _check_state(folder: Path, wanted: BuildSettings) -> dict[str, Any] | None:
    """Return the state of a folder, None if it is new or empty; raise if it is of something else.

    Other settings are accepted as long as no picture is drawn.
    """
    state = _load_state(folder)
    if state is None:
        if os.path.lexists(folder) and not folder.is_dir():
            raise InputError(f"{printable(folder)} is a file; give a new folder for the data")
        if folder.is_dir() and not all(name.endswith(UNFINISHED) for name in os.listdir(folder)):
            raise InputError(f"{printable(folder)} holds something else; give a new folder for the data")
        return None
    held = state["settings"]
    if held != wanted and (state["finished"] or any((folder / name).exists() for name in (PICTURES, SCENES))):
        keys = [key for key in {**held, **wanted} if held.get(key) != wanted.get(key)]
        pairs = ", ".join(f"{key} {_as_text(held.get(key))} (not {_as_text(wanted.get(key))})" for key in keys)
        how = "is built with" if state["finished"] else "was begun with"
        raise InputError(f"{printable(folder)} {how} {pairs}; give another folder, or delete it")
    return state


def _load_state(folder: Path) -> dict[str, Any] | None:
    try:
        state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        ours = state["format"] == _FORMAT and isinstance(state["settings"], dict) and "finished" in state
        return state if ours else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write_state(folder: Path, state: Mapping[str, object]) -> None:
    atomic_write(folder / _STATE, json.dumps({"format": _FORMAT, **state}, indent=1, ensure_ascii=False) + "\n")


def _as_text(value: object) -> str:
    return shorten(value if isinstance(value, str) else json.dumps(value), 40)


def _licence_table(data: str, table: ImageTable, sources: Sequence[PictureSource], names: Package, notes: str) -> str:
    pictures = Counter(table.extra["design"].tolist())
    lines = [
        f"# Licences of the {data} pictures\n",
        "Each picture keeps the licence of the art it is made from; `licence` in images.csv says which.\n",
        f"{notes.strip()}\n",
        "| design | package | licence of the pictures | pictures |",
        "|---|---|---|---:|",
        *(
            f"| {source.name} | {source.package} | {source.licence} | {pictures[source.name]:,} |"
            for source in sorted(sources, key=lambda source: source.name)
        ),
        f"\n{names} brought the names and groups of the classes.\n",
    ]
    return "\n".join(lines)


# Processes that draw pictures

Work = tuple[Callable[..., Any], tuple[Any, ...], float]  # a function, its arguments and its amount of work
RunTasks = Callable[[Sequence[Work], str], list[Any]]

_MOST = 61  # more are not possible on Windows


@contextmanager
def start_workers(show: bool | None = None) -> Iterator[RunTasks]:
    """Start a process for each core; they end with this one, however it ends.

    Yields a function of tasks and what they do, for the progress bar. It returns their results in their order; the
    first error ends all of them.
    """
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    pool = ProcessPoolExecutor(min(cores, _MOST), context, _prepare_worker, (os.getpid(),))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(?s).*fork", DeprecationWarning)
            pool.submit(int).result()  # forks all of them, before a progress bar starts a thread
        yield partial(_run_all, pool, show)
    except BrokenProcessPool:
        raise InputError("a process that draws pictures was killed; check the memory, and run this again") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _run_all(pool: ProcessPoolExecutor, show: bool | None, tasks: Sequence[Work], what: str) -> list[Any]:
    futures: dict[Future[Any], float] = {}
    with progress(what, sum(amount for *_, amount in tasks), show) as advance:
        try:
            futures = {pool.submit(function, *arguments): amount for function, arguments, amount in tasks}
            for future in as_completed(futures):
                future.result()
                advance(futures[future])
        finally:
            for future in futures:
                future.cancel()
    return [future.result() for future in futures]


def _prepare_worker(parent: int) -> None:
    """Ignore Ctrl-C, which is for the parent, and end if the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
