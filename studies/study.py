"""What a study is: a claim of a paper, what is measured for it, and how that is drawn and told.

A study is a module of this folder with one `Study` in it, named STUDY. What it measures is plain JSON: figures and the
page are made from that alone, so that they can be made again without measuring.

    OUT/results.json    what was measured, with the command, seed, versions and machine
    OUT/*.svg, *.png    its figures (and *.gif, where something moves); an .html, where something can be tried
    OUT/README.md       the page: the claim, the command, figures, numbers, and whether they agree
"""

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontrank.errors import FrontrankError, InputError, InterruptedRunError
from frontrank.files import atomic_write
from frontrank.training.run import make_folder, require_new

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = Mapping[str, Any]  # plain JSON
RESULTS = "results.json"
_QUICK = " A quick, small version of it: sizes, steps and seeds are smaller than the text says."
_OWN_IMAGES = " The images are those of --data: what is said above of emoji or glyphs may not hold for them."


@dataclass(frozen=True)
class Effort:
    """How much is done.

    quick: a small version, for a first look and for tests
    seed:  of everything random, the first of `seeds` where there are several
    work:  folder for what long measurements keep, so that they can go on
    data:  the images of studies that take some; "" builds emoji, or glyphs, in `work`
    show:  progress bars; None where there is a terminal
    derivative: f'(R), typed, of the designer of losses; "" is its own
    """

    work: Path
    quick: bool = False
    seed: int = 0
    seeds: int = 3
    data: str = ""
    show: bool | None = None
    derivative: str = ""


@dataclass(frozen=True)
class Study:
    """A claim, and how it is looked into.

    name:    of the command, such as "pnp-gradients"
    paper:   PNP, Smooth-AP, AP_Q, FastAP, RaMBO, or "ours"
    shows:   which figure or table of the paper, such as "Fig. 3, 5"
    title:   one line for lists
    claim:   what the paper says, in our words
    minutes: about how long it takes on 2 cores
    measure: does the work
    figures: from the results, by the name of the file
    told:    from the results, the page below the figures: tables, whether they agree, limits; Markdown
    more:    other files from the results: name, and bytes
    takes:   the options that it heeds, of "data" and "seeds"
    """

    name: str
    paper: str
    shows: str
    title: str
    claim: str
    minutes: float
    measure: Callable[[Effort], dict[str, Any]]
    figures: "Callable[[Results], dict[str, Figure]]"
    told: Callable[[Results], str]
    more: Callable[[Results], dict[str, bytes]] = lambda _: {}
    takes: tuple[str, ...] = ()


def run_study(study: Study, out: Path, effort: Effort, command: str) -> Path:
    """Measure, and write everything to the folder `out`; gives the page."""
    with _folder_for(out):
        kept = {
            "study": study.name,
            "command": command,
            "quick": effort.quick,
            "seed": effort.seed,
            **({"own_images": True} if effort.data and "data" in study.takes else {}),
            **_made_with(),
            "found": _measured(study, effort),
        }
        atomic_write(out / RESULTS, (json.dumps(kept, indent=1) + "\n").encode())
        return draw_study(study, kept, out)


def _measured(study: Study, effort: Effort) -> dict[str, Any]:
    try:
        return study.measure(effort)
    except InterruptedRunError as error:  # which speaks of a comparison that the user did not start
        raise InterruptedRunError(f"{str(error).partition(';')[0]}; the same command goes on where it was") from error


@contextmanager
def _folder_for(out: Path) -> Iterator[None]:
    """Make the folder, or refuse it, before anything is measured; what is still empty after that goes again.

    A study that was stopped leaves its work alone, as results are written before anything is drawn: whatever else is
    in the folder is somebody's own.
    """
    work = out / "work"
    try:
        if (out / RESULTS).exists():
            raise InputError(f"{out / RESULTS} is there already; give --redraw to draw it again, or another --out")
        if not work.exists() or any(name != work.name and not name.startswith(".") for name in os.listdir(out)):
            require_new(out)
        made = [folder for folder in (work, out, *out.parents) if not folder.exists()]
        before = set(_folders_in(work))
    except OSError as error:
        raise InputError(f"--out {out} cannot be used ({error.strerror}); choose another folder") from error
    try:
        make_folder(out)
        if not os.access(out, os.W_OK | os.X_OK):
            raise InputError(f"--out {out} cannot be written to; choose another folder")
        yield
    finally:
        for folder in (*(each for each in _folders_in(work) if each not in before), *made):
            with suppress(OSError):  # there is something in it
                folder.rmdir()


def _folders_in(folder: Path) -> list[Path]:
    """All folders below one, the deepest first."""
    return [Path(place) for place, _, _ in os.walk(folder, topdown=False) if Path(place) != folder]


def read_results(path: Path, study: str) -> dict[str, Any]:
    """The results of a study, from its file."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        name, *_ = (
            kept[key] for key in ("study", "found", "command", "quick", "seed", "frontrank", "torch", "machine")
        )
    except FileNotFoundError:
        raise InputError(f"{path} is not there; run the study first, without --redraw") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} does not hold the results of a study; run it again into another --out") from error
    if name != study:
        raise InputError(f"{path} holds the results of {name}, not of {study}; give another --out")
    return kept


def draw_study(study: Study, kept: Results, out: Path) -> Path:
    """Write figures and page from results alone; gives the page."""
    from studies.style import in_this_look, saved

    with in_this_look():
        figures = study.figures(kept["found"])
    more, text = study.more(kept["found"]), page_text(study, kept, list(figures))
    for name, figure in figures.items():
        saved(figure, out / name)
    for name, content in more.items():
        atomic_write(out / name, content)
    page = out / "README.md"
    atomic_write(page, text.encode())
    return page


def redraw_study(study: Study, out: Path) -> Path:
    """Write figures and page from the results of a folder; gives the page."""
    path = out / RESULTS
    kept = read_results(path, study.name)
    try:
        return draw_study(study, kept, out)
    except FrontrankError:  # such as a folder that cannot be written to
        raise
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        said = f"{path} does not hold what this version of {study.name} draws"
        raise InputError(f"{said}; run it again into another --out") from error


def page_text(study: Study, kept: Results, figures: list[str], folder: str = "") -> str:
    """The page of a study; folder: where the figures are, as seen from the page."""
    source = study.paper if study.paper == "ours" else f"{study.paper}, {study.shows}"
    lines = [
        f"# {study.title}",
        "",
        f"*{'Beyond the papers' if study.paper == 'ours' else source}.* {study.claim}",
        "",
        f"    {kept['command']}",
        "",
        *(f"![{name.replace('-', ' ')}]({folder}{name}.svg)\n" for name in figures),
        study.told(kept["found"]).strip(),
        "",
        f"Seed {kept['seed']}, frontrank {kept['frontrank']}, torch {kept['torch']}, {kept['machine']}."
        + (_QUICK if kept["quick"] else "")
        + (_OWN_IMAGES if kept.get("own_images") else ""),
        "",
    ]
    return "\n".join(lines)


def _made_with() -> dict[str, str]:
    import torch

    from frontrank import __version__

    cpu = platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line for line in lines if line.startswith("model name")).partition(":")[2].strip()
    return {
        "frontrank": __version__,
        "torch": torch.__version__.partition("+")[0],
        "machine": f"{os.cpu_count()} cores of {cpu}",
    }
