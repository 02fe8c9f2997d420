"""Files out of .tgz, .whl, .zip and .deb archives, one at a time and in memory: nothing is unpacked to disk."""

import lzma
import shutil
import stat
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import IO

from frontrank.errors import InputError

_LARGEST = 512 * 2**20  # bytes of one file
_MOST = 8 * 2**30  # bytes of all files that are read
_DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    RuntimeError,
    ValueError,
    OSError,
)


def members(archive: Path, wanted: Callable[[str], bool] | Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """The files of an archive by name and content, in its order.

    wanted: a function of the name, or patterns such as "package/color/*.svg" (* stands for any characters, / too)

    Links and names that lead out of the archive are left out; the format is told by the content, not by the name.
    """
    choose = wanted if callable(wanted) else lambda name: any(fnmatchcase(name, pattern) for pattern in wanted)
    total = 0
    try:
        for name, size, read in _entries(archive):
            if not _is_safe(name) or not choose(name):
                continue
            total += size
            if size > _LARGEST or total > _MOST:
                raise InputError(f"{archive}: {name!r} is too large to be what is meant; fetch the archive again")
            yield name, read()
    except InputError:
        raise
    except _DAMAGED as error:
        raise InputError(
            f"{archive} cannot be read ({error or type(error).__name__}); delete it, and run this again"
        ) from error


Entry = tuple[str, int, Callable[[], bytes]]


def _entries(archive: Path) -> Iterator[Entry]:
    with archive.open("rb") as file:
        start = file.read(8)
        file.seek(0)
        if start[:2] == b"\x1f\x8b":
            yield from _tar_entries(file, "r:gz")
        elif start[:4] == b"PK\x03\x04":
            yield from _zip_entries(file)
        elif start == b"!<arch>\n":
            yield from _deb_entries(archive, file)
        else:
            raise tarfile.ReadError("not a .tgz, .zip, .whl or .deb file")


def _tar_entries(file: IO[bytes], mode: str) -> Iterator[Entry]:
    with tarfile.open(fileobj=file, mode=mode) as tar:  # type: ignore[call-overload]
        for member in tar:
            if member.isreg():
                yield member.name.removeprefix("./"), member.size, partial(_read, tar, member)


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return file.read() if file else b""


def _zip_entries(file: IO[bytes]) -> Iterator[Entry]:
    with zipfile.ZipFile(file) as packed:
        for info in packed.infolist():
            if not info.is_dir() and not stat.S_ISLNK(info.external_attr >> 16):
                yield info.filename, info.file_size, partial(packed.read, info)


def _deb_entries(archive: Path, file: IO[bytes]) -> Iterator[Entry]:
    """A .deb is an ar archive, whose last part is a tar file of what would be installed."""
    file.seek(8)
    while header := file.read(60):
        name, size = header[:16].decode("ascii", "replace").strip().rstrip("/"), int(header[48:58])
        if name in ("data.tar", "data.tar.gz", "data.tar.xz", "data.tar.bz2"):
            yield from _tar_entries(file, f"r|{name.removeprefix('data.tar').removeprefix('.')}")
            return
        if name == "data.tar.zst":
            yield from _unpacked_by_dpkg(archive)
            return
        file.seek(size + size % 2, 1)
    raise tarfile.ReadError("a .deb file without data")


def _unpacked_by_dpkg(archive: Path) -> Iterator[Entry]:
    """Its compression is not in Python's library before 3.14."""
    dpkg = shutil.which("dpkg-deb")
    if dpkg is None:
        raise InputError(f"{archive} is compressed with zstd and dpkg-deb is not here; use Debian or Ubuntu")
    command = [dpkg, "--fsys-tarfile", str(archive)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        yield from _tar_entries(process.stdout, "r|")
        while process.stdout.read(2**16):  # what fills the last block, or dpkg-deb could not end
            pass
    if process.returncode:  # not where a caller had enough, and this was not read to its end
        raise tarfile.ReadError(f"dpkg-deb ended with status {process.returncode}")


def _is_safe(name: str) -> bool:
    return not name.startswith(("/", "\\")) and ".." not in name.replace("\\", "/").split("/") and ":" not in name[:2]
