"""From annotations as files have them to a SceneTable: boxes cut to their pictures, and what was odd said once."""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from frontrank.data.image_table import Box, shown
from frontrank.data.images import image_size
from frontrank.detection.scenes import SceneTable
from frontrank.errors import FrontrankWarning, InputError


@dataclass(frozen=True)
class Thing:
    """An object as its file says it: its class by name, and its box in pixels from 0, right and bottom exclusive."""

    name: str
    box: Box
    ignored: bool


@dataclass(frozen=True)
class Scene:
    """A picture and its objects, as its file says it.

    told:  the file that says it, and where, for messages
    size:  width and height as told; None where they are not
    """

    file: str
    told: str
    size: tuple[int, int] | None
    things: tuple[Thing, ...]


def gathered(
    name: str,
    classes: Sequence[str],
    scenes: Iterable[Scene],
    *,
    crowds: bool = False,
    look: bool = True,
    allow_partial: bool = False,
) -> SceneTable:
    """The table of these scenes.

    look:          compare the size as told with that of the picture; where none is told, this is always done
    allow_partial: leave out pictures that cannot be used, and say how many

    Boxes that reach out of their picture are cut; those of which nothing is left then are left out. Both are counted in
    a warning.
    """
    labels = {each: label for label, each in enumerate(classes, start=1)}
    kept: list[tuple[Scene, tuple[int, int]]] = []
    lost: list[str] = []
    for scene in scenes:
        try:
            kept.append((scene, _size(scene, look)))
        except InputError as error:
            if not allow_partial:
                raise
            lost.append(str(error).split(";")[0])
    if not kept:
        raise InputError(f"{name} has no pictures that can be used; give at least one")
    boxes, found, ignored, oddities = [], [], [], _Oddities()
    for scene, size in kept:
        cut = [(thing, oddities.cut(scene, thing, size)) for thing in scene.things]
        whole = [(thing, box) for thing, box in cut if box is not None]
        boxes.append(np.array([box for _, box in whole], dtype=np.float32).reshape(-1, 4))
        found.append(np.array([_label(labels, scene, thing) for thing, _ in whole], dtype=np.int64))
        ignored.append(np.array([thing.ignored for thing, _ in whole], dtype=bool))
    warn_left_out(name, lost, "picture")
    _warn(name, oddities.said())
    sizes = np.array([size for _, size in kept], dtype=np.int64)
    files = tuple(scene.file for scene, _ in kept)
    return SceneTable(name, tuple(classes), files, sizes, tuple(boxes), tuple(found), tuple(ignored), crowds)


def warn_left_out(name: str, cases: Sequence[str], what: str) -> None:
    """Say how many pictures, or annotations, were left out, and why the first was."""
    _warn(name, _said(cases, "{0} cannot be used and {1} left out", what))


def box_of(told: str, edges: Sequence[object], what: str) -> Box:
    """Four finite numbers, as floats."""
    try:
        left, top, right, bottom = (float(edge) for edge in edges)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(f"{told}: {what} must be four numbers, got {list(edges)}; correct it") from None
    if not all(map(math.isfinite, (left, top, right, bottom))):
        raise InputError(f"{told}: {what} must be finite, got {[left, top, right, bottom]}; correct it")
    return left, top, right, bottom


class _Oddities:
    """What was odd about boxes, to be said once and not for each."""

    def __init__(self) -> None:
        self._reaching: list[str] = []
        self._empty: list[str] = []

    def cut(self, scene: Scene, thing: Thing, size: tuple[int, int]) -> Box | None:
        """The part of a box inside its picture; None if there is none."""
        left, top, right, bottom = thing.box
        inside = max(left, 0.0), max(top, 0.0), min(right, float(size[0])), min(bottom, float(size[1]))
        if inside[0] >= inside[2] or inside[1] >= inside[3]:
            self._empty.append(f"{thing.name} of {scene.told}")
            return None
        if inside != thing.box:
            self._reaching.append(f"{thing.name} of {scene.told}")
        return inside

    def said(self) -> list[str]:
        reaching = _said(self._reaching, "{0} reached out of the picture and {1} cut", "box")
        return [*reaching, *_said(self._empty, "{0} without area inside the picture {1} left out", "box")]


def _said(cases: Sequence[str], text: str, what: str) -> list[str]:
    if not cases:
        return []
    several = f"{what}es" if what.endswith("x") else f"{what}s"
    many = f"1 {what}" if len(cases) == 1 else f"{len(cases):,} {several}"
    was = "was" if len(cases) == 1 else "were"
    return [f"{text.format(many, was)} ({'' if len(cases) == 1 else 'first: '}{cases[0]})"]


def _warn(name: str, said: Sequence[str]) -> None:
    if said:
        warnings.warn(f"{name}: {'; '.join(said)}", FrontrankWarning, stacklevel=4)


def _label(labels: dict[str, int], scene: Scene, thing: Thing) -> int:
    if thing.name not in labels:
        known = ", ".join(labels) if len(labels) <= 20 else f"{len(labels)} others"
        raise InputError(f"{scene.told}: the class {thing.name!r} is none of {known}; correct the name")
    return labels[thing.name]


def _size(scene: Scene, look: bool) -> tuple[int, int]:
    """Width and height of the picture."""
    if scene.size is not None and not look:
        return scene.size
    found = image_size(scene.file)
    if scene.size is not None and found != scene.size:
        said = f"{scene.told} says {scene.size[0]} x {scene.size[1]} pixels, {shown(scene.file)} has"
        raise InputError(f"{said} {found[0]} x {found[1]} (upright); correct the size and the boxes, or the picture")
    return found
