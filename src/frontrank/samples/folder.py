"""The folder of a sample data set: what it was built from, whether it is finished, its licences."""

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
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from frontrank.data.table import COLUMNS, ImageTable, read_table, shown
from frontrank.errors import InputError
from frontrank.files import folder_lock
from frontrank.packages import Package, remedy
from frontrank.progress import progress

# ==== The folder of a data set that is built here: what it was built from, whether that is finished, and its licences.


TABLE = "images.csv"
PICTURES = "images"  # the folder of them
SCENES = "VOC2007"  # the folder of a data set of scenes
WORK = ".work"  # a folder for what is needed only until the end
_FORMAT = "frontrank.data.1"
_STATE = "data.json"
_LICENCES = "LICENCES.md"
_LONG = 128  # characters of a text, beyond which it does not set the width of its whole column
_PATIENCE = 3.0  # seconds in which the processes of a killed build end

Settings = Mapping[str, object]


@dataclass(frozen=True)
class Source:
    """Where the pictures of one design come from, and on which terms."""

    design: str
    package: Package
    licence: str


def started(out: str | os.PathLike[str], settings: Settings) -> ImageTable | None:
    """The table of a folder that is finished, with all its pictures; None for one that is to be built, or gone on with.

    settings: all that decides what is built, "data" among it; a folder of pictures of others is refused, as is one that
              holds anything else

    Nothing is written.
    """
    folder, wanted = Path(out), _plain(settings)
    with _usable(folder):
        state = _checked(folder, wanted)
        if state is None or not state["finished"] or "table" not in state or not (folder / TABLE).is_file():
            return None
        content = (folder / TABLE).read_bytes()
    if hashlib.sha256(content).hexdigest() != state["table"]:
        raise InputError(f"{shown(folder / TABLE)} is not as it was written; delete it, and run this again")
    table = replace(_quickly_read(folder, content) or read_table(folder / TABLE), name=str(wanted["data"]))
    return table if all(is_there(f"{folder}/{path}") for path in table.paths.tolist()) else None


@contextmanager
def begun(out: str | os.PathLike[str], settings: Settings) -> Iterator[None]:
    """Within, a folder is built, or gone on with, and by nobody else; its settings are written down."""
    folder, wanted = Path(out), _plain(settings)
    with _usable(folder):
        _checked(folder, wanted)
        folder.mkdir(parents=True, exist_ok=True)
    with folder_lock(folder, _PATIENCE) as alone:
        if not alone:
            raise InputError(f"{shown(folder)} is being built by another process; wait for its end")
        with _usable(folder):
            state = _checked(folder, wanted)  # again: it may have become another's
            if state is None or state["settings"] != wanted:
                shutil.rmtree(folder / WORK, ignore_errors=True)
                _write_state(folder, {"finished": False, "settings": wanted})
            for left in (left for name in (_STATE, TABLE, _LICENCES) for left in folder.glob(f".{name}.*")):
                left.unlink(missing_ok=True)  # of a build that was killed
        yield


def unfinished(out: str | os.PathLike[str]) -> str | None:
    """The command that goes on with a folder whose building did not come to its end; None for any other folder."""
    folder = Path(out)
    state = _state(folder)
    if state is None or (state["finished"] and (_of_scenes(state) or (folder / TABLE).is_file())):
        return None
    settings = dict(state["settings"])
    words = ["frontrank", "data", str(settings.pop("data", "")), str(out)]
    for name, value in settings.items():
        if value is not None and value is not False:
            given = [] if value is True else [",".join(map(str, value)) if isinstance(value, list) else str(value)]
            words += [f"--{name.replace('_', '-')}", *given]
    return shlex.join(words)


def is_there(path: str | os.PathLike[str]) -> bool:
    """Whether there is a file with something in it."""
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


def finished(
    out: str | os.PathLike[str],
    table: ImageTable,
    settings: Settings,
    sources: Sequence[Source],
    others: Sequence[Package] = (),
    notes: str = "",
) -> ImageTable:
    """Write the table, the licences and, last of all, that the folder is finished; and read the table again.

    table:   with the extra columns "design" and "licence"
    others:  packages that brought no pictures, such as the one with the names of the classes
    notes:   a paragraph for the file of licences
    """
    folder = Path(out)
    packages = list(dict.fromkeys([*(source.package for source in sources), *others]))
    try:
        table.save(folder / TABLE, overwrite=True)
        mark = hashlib.sha256((folder / TABLE).read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{shown(folder)} cannot be written ({error.strerror}); {remedy(error)}") from error
    counts = [{key: value for key, value in row.items() if key != "role"} for row in table.counts()]
    licences = _licences(str(settings["data"]), table, sources, others, notes)
    _complete(folder, licences, {"table": mark, "settings": dict(settings), "counts": counts}, packages)
    again = started(folder, settings)
    if again is None:
        raise InputError(f"{shown(folder)} has changed while it was built; run this again")
    return again


def started_scenes(out: str | os.PathLike[str], settings: Settings) -> dict[str, Any] | None:
    """What `finished_scenes` wrote down of a folder of scenes; None for one that is to be built, or gone on with.

    settings: as of `started`, with the same refusals
    """
    folder = Path(out)
    with _usable(folder):
        state = _checked(folder, _plain(settings))
    return dict(state["scenes"]) if state is not None and state["finished"] and _of_scenes(state) else None


def finished_scenes(
    out: str | os.PathLike[str],
    scenes: Mapping[str, Any],
    settings: Settings,
    packages: Sequence[Package],
    licences: str,
) -> None:
    """Write the licences and, last of all, that a folder of scenes is finished, and what there is to say of them."""
    _complete(Path(out), licences, {"scenes": dict(scenes), "settings": dict(settings)}, packages)


def _complete(folder: Path, licences: str, state: Mapping[str, object], packages: Sequence[Package]) -> None:
    named = [{key: getattr(each, key) for key in ("client", "name", "version", "sha256")} for each in packages]
    try:
        _write(folder / _LICENCES, licences)
        _write_state(folder, {"finished": True, **state, "packages": named})
    except OSError as error:
        raise InputError(f"{shown(folder)} cannot be written ({error.strerror}); {remedy(error)}") from error


def _of_scenes(state: Mapping[str, Any]) -> bool:
    return isinstance(state.get("scenes"), dict)


def _plain(settings: Settings) -> dict[str, object]:
    """Settings as they come back from a file."""
    return dict(json.loads(json.dumps(dict(settings))))


def _checked(folder: Path, wanted: Settings) -> dict[str, Any] | None:
    """What the folder says of itself; None where it is new or empty. Settings without a picture bind nobody."""
    state = _state(folder)
    if state is None:
        if os.path.lexists(folder) and not folder.is_dir():
            raise InputError(f"{shown(folder)} is a file; give a new folder for the data")
        if folder.is_dir() and not all(name.startswith(f".{_STATE}.") for name in os.listdir(folder)):
            raise InputError(f"{shown(folder)} holds something else; give a new folder for the data")
        return None
    held = state["settings"]
    if held != wanted and (state["finished"] or any((folder / name).exists() for name in (PICTURES, SCENES))):
        keys = [key for key in {**held, **wanted} if held.get(key) != wanted.get(key)]
        differing = ", ".join(f"{key} {_said(held.get(key))} (not {_said(wanted.get(key))})" for key in keys)
        how = "is built with" if state["finished"] else "was begun with"
        raise InputError(f"{shown(folder)} {how} {differing}; give another folder, or delete it")
    return state


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = remedy(error, "give another folder")
        raise InputError(f"{shown(folder)} cannot be used ({error.strerror}); {where}") from error


def _quickly_read(folder: Path, content: bytes) -> ImageTable | None:
    """What `read_table` gives for a file that is known to be good; None if it has quotes and so needs a real reader."""
    if b'"' in content:
        return None
    head, _, body = content.decode("utf-8").partition("\r\n")
    names = head.split(",")
    fields = body.removesuffix("\r\n").replace("\r\n", ",").split(",")
    parts = {name: fields[place :: len(names)] for place, name in enumerate(names)}
    columns = {
        name: np.array(part, dtype=object if max(map(len, part)) > _LONG else str) for name, part in parts.items()
    }
    known = {kept: columns.pop(name) for kept, name in COLUMNS.items()}
    return ImageTable(folder, **known, extra=columns, name="")


def _state(folder: Path) -> dict[str, Any] | None:
    try:
        state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        ours = state["format"] == _FORMAT and isinstance(state["settings"], dict) and "finished" in state
        return state if ours else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _write_state(folder: Path, state: Mapping[str, object]) -> None:
    _write(folder / _STATE, json.dumps({"format": _FORMAT, **state}, indent=1, ensure_ascii=False) + "\n")


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _said(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _licences(data: str, table: ImageTable, sources: Sequence[Source], others: Sequence[Package], notes: str) -> str:
    pictures = Counter(table.extra["design"].tolist())
    rows = [
        f"| {source.design} | {source.package} | {source.licence} | {pictures[source.design]:,} |"
        for source in sorted(sources, key=lambda source: source.design)
    ]
    also = "".join(f"\n{package} brought the names and groups of the classes.\n" for package in others)
    head = "| design | package | licence of the pictures | pictures |\n|---|---|---|---:|\n"
    said = f"\n{notes.strip()}\n" if notes else ""
    text = "Each picture keeps the licence of the art it is made from; `licence` in images.csv says which.\n"
    return f"# Licences of the {data} pictures\n\n{text}{said}\n{head}" + "\n".join(rows) + f"\n{also}"


# ==== Processes that draw pictures, as many as there are cores.


Task = tuple[Callable[..., Any], tuple[Any, ...], float]  # a function, its arguments and how much work it is

_MOST = 61  # more are not possible on Windows


@contextmanager
def workers() -> Iterator[ProcessPoolExecutor]:
    """A process for each core; they end with this one, however it ends."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    pool = ProcessPoolExecutor(min(cores, _MOST), context, _start_worker, (os.getpid(),))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "(?s).*fork", DeprecationWarning)
            pool.submit(int).result()  # forks all of them, before a bar draws itself in a thread
        yield pool
    except BrokenProcessPool:
        raise InputError("a process that draws pictures was killed; see to the memory, and run this again") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def run_all(pool: ProcessPoolExecutor, tasks: Sequence[Task], what: str, show: bool | None = None) -> list[Any]:
    """The results of the tasks, in their order; the first that fails ends it."""
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


def _start_worker(parent: int) -> None:
    """Ctrl-C is for the parent alone; and should that be killed, its workers go too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
