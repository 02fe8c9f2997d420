"""Archives in the user's cache: each is fetched once, and is what it should be or is not used."""

import errno
import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

from frontrank.errors import FrontrankWarning, InputError
from frontrank.packages.clients import Clients, Package
from frontrank.progress import progress

_AT_ONCE = 3  # clients that run at a time
_ABANDONED = 86_400.0  # seconds after which what a killed call left is swept away


def cache_folder() -> Path:
    """Where archives are kept: $FRONTRANK_CACHE, else frontrank in $XDG_CACHE_HOME, else in ~/.cache."""
    own, home = os.environ.get("FRONTRANK_CACHE"), os.environ.get("XDG_CACHE_HOME")
    try:
        if own:
            return Path(own).expanduser().absolute()  # clients work in other folders
        return (Path(home) if home and os.path.isabs(home) else Path("~/.cache").expanduser()) / "frontrank"
    except RuntimeError as error:
        raise InputError("there is no home folder to keep packages in; set FRONTRANK_CACHE to a folder") from error


def remedy(error: OSError, otherwise: str = "mend that, or give another folder") -> str:
    """What to do about a folder that cannot be written.

    >>> remedy(OSError(28, "No space left on device"))
    'make room there'
    """
    return "make room there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else otherwise


def as_found(package: Package, archive: Path) -> Package:
    """The package that `fetch` really gave, where another version than the pinned one was accepted."""
    if archive.name == package.file_name():
        return package
    parts = unquote(str(_stamp(archive).get("archive", ""))).split("_")  # as name_1%3a2-3_all.deb
    return replace(package, version=parts[1] if len(parts) > 2 else "another", sha256=_sha256(archive))


def is_cached(package: Package) -> bool:
    """Whether `fetch` has the archive already."""
    return _intact(cache_folder() / "packages" / package.file_name(), package.sha256)


def fetch(packages: Sequence[Package], *, any_version: bool = False, show: bool | None = None) -> list[Path]:
    """The archives of the packages, in their order; those that are not in the cache yet are fetched with their clients.

    any_version: take whatever version apt has where it does not have the pinned one, with a warning
    show:        progress, as in `frontrank.progress`
    """
    folder = cache_folder() / "packages"
    missing = [each for each in dict.fromkeys(packages) if _cached(folder, each, any_version) is None]
    if missing:
        with _errors_of_the_folder(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _require_room(folder, missing)
            _sweep(folder)
            _fetch_all(folder, missing, any_version, show)
    found = []
    for each in packages:
        path = _cached(folder, each, any_version)
        if path is None:
            raise InputError(f"{each} went away from {folder} while it was used; run this again")
        if path.name != each.file_name():
            message = f"{each} is another version here, {_stamp(path).get('archive')}; pictures and counts may differ"
            warnings.warn(message, FrontrankWarning, stacklevel=2)
        found.append(path)
    return found


def _cached(folder: Path, package: Package, any_version: bool) -> Path | None:
    path = folder / package.file_name()
    if _intact(path, package.sha256):
        return path
    other = folder / package.file_name("any")
    return (
        other if any_version and package.client == "apt" and _intact(other, str(_stamp(other).get("sha256"))) else None
    )


def _intact(path: Path, sha256: str) -> bool:
    """Whether a file has this checksum; it is read again only when its size or time has changed."""
    try:
        state = path.stat()
    except OSError:
        return False
    stamp = _stamp(path)
    if [stamp.get("size"), stamp.get("time")] == [state.st_size, state.st_mtime_ns]:
        return stamp.get("sha256") == sha256
    if _sha256(path) != sha256:
        return False
    with suppress(OSError):  # a cache that cannot be written is read each time
        _write_stamp(path, sha256, str(stamp.get("archive", "")))
    return True


def _stamp(path: Path) -> Mapping[str, object]:
    try:
        found = json.loads(path.with_name(f"{path.name}.json").read_text())
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def _write_stamp(path: Path, sha256: str, archive: str) -> None:
    state = path.stat()
    text = json.dumps({"size": state.st_size, "time": state.st_mtime_ns, "sha256": sha256, "archive": archive})
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    unfinished.write_text(text)
    unfinished.replace(path.with_name(f"{path.name}.json"))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _errors_of_the_folder(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        how = remedy(error, "mend that")
        raise InputError(
            f"the cache {folder} cannot be written ({error.strerror}); {how}, or set FRONTRANK_CACHE to another folder"
        ) from error


def _require_room(folder: Path, packages: Iterable[Package]) -> None:
    """Twice the size of the archives, as a client may hold a second copy while it works."""
    need, free = 2 * sum(each.megabytes for each in packages), shutil.disk_usage(folder).free / 1e6
    if free < need:
        raise InputError(
            f"the cache {folder} has {free:,.0f} MB of room and {need:,.0f} MB are needed; "
            "make room there, or set FRONTRANK_CACHE to another folder"
        )


def _sweep(folder: Path) -> None:
    for left in folder.glob(".fetch-*"):
        with suppress(OSError):  # another process may sweep too
            if time.time() - left.stat().st_mtime > _ABANDONED:
                shutil.rmtree(left)


def _fetch_all(folder: Path, packages: Sequence[Package], any_version: bool, show: bool | None) -> None:
    """Run a few clients at a time; whatever ends this early ends them too."""
    clients = Clients(folder.parent / "apt", any_version)
    places: dict[Path, float] = {}  # where clients work now, and how many megabytes they will bring
    arrived: list[float] = []

    def bring(package: Package) -> None:
        place = Path(tempfile.mkdtemp(prefix=".fetch-", dir=folder))
        places[place] = package.megabytes
        try:
            _keep(folder, package, clients.download(package, place), any_version)
        finally:
            del places[place]
            arrived.append(package.megabytes)
            shutil.rmtree(place, ignore_errors=True)

    names = ", ".join(sorted({each.client for each in packages}))
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        with progress(f"fetching packages with {names}", sum(each.megabytes for each in packages), show) as advance:
            waiting: set[Future[None]] = {pool.submit(bring, each) for each in packages}
            done = 0.0
            while waiting:
                finished, waiting = wait(waiting, timeout=0.2)
                for future in finished:
                    future.result()
                now = sum(arrived) + sum(min(_megabytes(place), most) for place, most in list(places.items()))
                advance(max(now - done, 0.0))
                done = max(now, done)
    finally:
        clients.stop()
        pool.shutdown(wait=True, cancel_futures=True)


def _megabytes(place: Path) -> float:
    total = 0
    for folder, _, names in os.walk(place):  # which passes over folders that have gone since they were listed
        for name in names:
            with suppress(OSError):
                total += os.stat(os.path.join(folder, name)).st_size
    return total / 1e6


def _keep(folder: Path, package: Package, archive: Path, any_version: bool) -> None:
    sha256, name = _sha256(archive), package.file_name()
    if sha256 != package.sha256:
        if package.client != "apt":
            raise InputError(
                f"{package} is not the archive it was (sha256 {sha256[:12]}..., not {package.sha256[:12]}...); "
                "a mirror or proxy may have changed it: use another, or a newer frontrank"
            )
        if not any_version:
            raise InputError(
                f"{package} is another archive here (sha256 {sha256[:12]}..., not {package.sha256[:12]}...); "
                "accept it with --any-version (any_version=True)"
            )
        name = package.file_name("any")
    target = folder / name
    target.with_name(f"{name}.json").unlink(missing_ok=True)
    archive.replace(target)
    _write_stamp(target, sha256, archive.name)
