"""The fonts of packages as files, and which Han characters each of them draws."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from frontrank.data.glyph_pictures import written
from frontrank.data.processes import Task, run_all
from frontrank.data.typefaces import Typeface, mapped_characters
from frontrank.errors import InputError
from frontrank.packages import Package, members

_COPYRIGHT = "copyright"  # the notice of a Debian package


@dataclass(frozen=True)
class Font:
    """A font on disk, the start of the names of what is kept of it, and the characters it draws [character]."""

    typeface: Typeface
    file: Path
    kept: Path
    codes: np.ndarray


def unpack_fonts(
    pool: ProcessPoolExecutor,
    faces: Sequence[Typeface],
    archives: Mapping[Package, Path],
    characters: Iterable[int],
    work: Path,
    notices: Path,
    show: bool | None = None,
) -> list[Font]:
    """The fonts of typefaces, each with the characters that no earlier file of its typeface has.

    characters: code points that are wanted
    work:       a folder for the files
    notices:    a folder for the copyright notices of all packages
    """
    files: dict[Package, set[str]] = {package: set() for package in archives}
    for face in faces:
        files[face.package].update(face.files)
    tasks: list[Task] = [
        (_unpack, (archives[package], names, work, notices / f"{package.name}.txt"), package.megabytes)
        for package, names in files.items()
    ]
    tasks.sort(key=lambda task: -task[2])  # the longest first, or the others wait for it in the end
    run_all(pool, tasks, "unpacking typefaces", show)
    known, fonts = np.array(sorted(characters), dtype=np.int64), []
    for face in faces:
        left = known
        for name in face.files:
            file = work / archives[face.package].name / name
            try:
                codes = np.intersect1d(left, mapped_characters(file.read_bytes(), face.index))
            except ValueError as error:
                said = f"{name} of {face.package} is no font to use: {error}"
                raise InputError(f"{said}; leave {face.name} out") from error
            left = np.setdiff1d(left, codes)
            fonts.append(Font(face, file, file.with_name(f"{face.name}-{name}"), codes))
    return fonts


def _unpack(archive: Path, names: set[str], work: Path, notice: Path) -> None:
    """Bring some files of a package into a folder of its name, and its copyright notice to where it stays."""
    targets = {name: work / archive.name / name for name in names} | {_COPYRIGHT: notice}
    missing = {name for name, target in targets.items() if not target.exists()}
    if not missing:
        return
    for path, content in members(archive, lambda path: path.split("/")[-1] in missing):
        name = path.split("/")[-1]
        with written(targets[name], work) as unfinished:
            unfinished.write_bytes(content)
        missing.discard(name)
        if not missing:
            return
    if missing != {_COPYRIGHT}:
        raise InputError(f"{archive.name} has no file {min(missing - {_COPYRIGHT})}; leave that typeface out")
