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
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontrank.errors import InputError, InterruptedRunError
from frontrank.training.checkpoints import atomic_write
from frontrank.training.run_folder import require_new

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = Mapping[str, Any]  # plain JSON
RESULTS = "results.json"


@dataclass(frozen=True)
class Effort:
    """How much is done.

    quick: a small version, for a first look and for tests
    seed:  of everything random, the first of `seeds` where there are several
    work:  folder for what long measurements keep, so that they can go on
    data:  the images of studies that train; "" builds emoji, or glyphs, in `work`
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


def run_study(study: Study, out: Path, effort: Effort, command: str) -> Path:
    """Measure, and write everything to the folder `out`; gives the page."""
    if (out / RESULTS).exists():
        raise InputError(f"{out / RESULTS} is there already; give --redraw to draw it again, or another --out")
    if not (out / "work").exists():
        require_new(out)
    try:
        found = study.measure(effort)
    except InterruptedRunError as error:  # which speaks of a comparison that the user did not start
        raise InterruptedRunError(f"{str(error).partition(';')[0]}; the same command goes on where it was") from error
    kept = {
        "study": study.name,
        "command": command,
        "quick": effort.quick,
        "seed": effort.seed,
        **_made_with(),
        "found": found,
    }
    out.mkdir(parents=True, exist_ok=True)
    atomic_write(out / RESULTS, (json.dumps(kept, indent=1) + "\n").encode())
    return draw_study(study, kept, out)


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
    from frontrank.studies.style import in_this_look, saved

    names = []
    with in_this_look():
        figures = study.figures(kept["found"])
    for name, figure in figures.items():
        saved(figure, out / name)
        names.append(name)
    for name, content in study.more(kept["found"]).items():
        atomic_write(out / name, content)
    page = out / "README.md"
    atomic_write(page, page_text(study, kept, names).encode())
    return page


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
        + (" A quick, small version of it." if kept["quick"] else ""),
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
