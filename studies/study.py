"""What a study is: a claim of a paper, what is measured for it, its figures and its page.

A study is a module of this folder with a `Study` in it, named STUDY (or several: STUDIES), and a template of the name
of the study in `pages/`.
What it measures is plain JSON: figures and page are made from that alone, so they can be made again without measuring.

    OUT/results.json    what was measured, with the command, seed, versions and machine
    OUT/*.svg, *.png    its figures (and *.gif, where something moves); an .html, where something can be tried
    OUT/README.md       the page: the claim, the command, figures, numbers, and whether they agree
"""

import io
import json
import os
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontrank.checks import import_extra
from frontrank.errors import FrontrankError, InputError, InterruptedRunError
from frontrank.files import atomic_write
from frontrank.training.run import make_folder, require_new

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Results = Mapping[str, Any]  # plain JSON
RESULTS = "results.json"
AGREES, AGREES_IN_PART = "Agrees", "Agrees in part"
DOES_NOT_AGREE, NOT_MEASURED = "Does not agree", "Not measured"


@dataclass(frozen=True)
class Effort:
    """How much work a study does.

    quick: a small version, for a first look and for tests
    seed:  of everything random, the first of `seeds` where there are several
    work:  folder in which long measurements keep intermediate results, so that they can continue
    data:  the images of studies that take some; "" builds emoji, or glyphs, in `work`
    show:  progress bars; None where there is a terminal
    derivative: f'(R), typed, of pnp-designer; "" is its default
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
    """A study; its claim and its text are in pages/NAME.md.

    name:    of the command, such as "pnp-gradients"
    paper:   PNP, Smooth-AP, AP_Q, FastAP, RaMBO, or "ours"
    shows:   which figure or table of the paper, such as "Fig. 3, 5"
    title:   one line for lists
    minutes: about how long it takes on 2 cores
    measure: does the work, returns the results
    draw:    from the results, figures by the name of their file
    values:  from the results, what the page needs beside them; "verdict" is one of the four words above
    extra_files: from the results, other files: content by name
    takes:   the options that have an effect, of "data" and "seeds"
    """

    name: str
    paper: str
    shows: str
    title: str
    minutes: float
    measure: Callable[[Effort], dict[str, Any]]
    draw: "Callable[[Results], dict[str, Figure]]"
    values: Callable[[Results], dict[str, Any]]
    extra_files: Callable[[Results], dict[str, bytes]] = lambda _: {}
    takes: tuple[str, ...] = ()


def verdict(claims: Sequence[bool]) -> str:
    """Return the verdict on several claims of equal weight, of which there must be some."""
    if not claims:
        raise ValueError("there is no claim to agree with")
    return AGREES if all(claims) else AGREES_IN_PART if any(claims) else DOES_NOT_AGREE


def run_study(study: Study, out: Path, effort: Effort, command: str) -> Path:
    """Measure, write everything to the folder `out`, and return the path of the page."""
    with _new_folder(out):
        saved = {
            "study": study.name,
            "command": command,
            "quick": effort.quick,
            "seed": effort.seed,
            **({"own_images": True} if effort.data and "data" in study.takes else {}),
            **_environment(),
            "found": _measure(study, effort),
        }
        atomic_write(out / RESULTS, (json.dumps(saved, indent=1) + "\n").encode())
        return write_study(study, saved, out)


def _measure(study: Study, effort: Effort) -> dict[str, Any]:
    try:
        return study.measure(effort)
    except InterruptedRunError as error:  # which names a comparison that the user did not start
        raise InterruptedRunError(f"{str(error).partition(';')[0]}; give the same command again to continue") from error


@contextmanager
def _new_folder(out: Path) -> Iterator[None]:
    """Make the folder, or refuse it, before anything is measured; remove empty folders afterwards.

    A study that was stopped leaves only the folder `work`, as results are written before anything is drawn: whatever
    else is in `out` belongs to the user.
    """
    work = out / "work"
    try:
        if (out / RESULTS).exists():
            raise InputError(f"{out / RESULTS} exists already; give --redraw to draw it again, or another --out")
        if not work.exists() or any(name != work.name and not name.startswith(".") for name in os.listdir(out)):
            require_new(out)
        new = [folder for folder in (work, out, *out.parents) if not folder.exists()]
        before = set(_folders_in(work))
    except OSError as error:
        raise InputError(f"--out {out} cannot be used ({error.strerror}); choose another folder") from error
    try:
        make_folder(out)
        if not os.access(out, os.W_OK | os.X_OK):
            raise InputError(f"--out {out} cannot be written to; choose another folder")
        yield
    finally:
        for folder in (*(each for each in _folders_in(work) if each not in before), *new):
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def _folders_in(folder: Path) -> list[Path]:
    """Return all folders below one, the deepest first."""
    return [Path(place) for place, _, _ in os.walk(folder, topdown=False) if Path(place) != folder]


def read_results(path: Path, study: str) -> dict[str, Any]:
    """Read the results of a study from its file."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        name, *_ = (
            saved[key] for key in ("study", "found", "command", "quick", "seed", "frontrank", "torch", "machine")
        )
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; run the study first, without --redraw") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} does not hold the results of a study; run it again into another --out") from error
    if name != study:
        raise InputError(f"{path} holds the results of {name}, not of {study}; give another --out")
    return saved


def write_study(study: Study, saved: Results, out: Path) -> Path:
    """Write figures and page from results alone; return the path of the page."""
    with figure_style():
        figures = study.draw(saved["found"])
    extra, text = study.extra_files(saved["found"]), render_page(study, saved, list(figures))
    for name, figure in figures.items():
        save_figure(figure, out / name)
    for name, content in extra.items():
        atomic_write(out / name, content)
    page = out / "README.md"
    atomic_write(page, text.encode())
    return page


def redraw_study(study: Study, out: Path) -> Path:
    """Write figures and page again from the results in a folder; return the path of the page."""
    path = out / RESULTS
    saved = read_results(path, study.name)
    template_error = import_extra("jinja2", "report", "the page of a study").TemplateError
    try:
        return write_study(study, saved, out)
    except FrontrankError:  # such as a folder that cannot be written to
        raise
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, template_error) as error:
        message = f"{path} does not hold what this version of {study.name} draws"
        raise InputError(f"{message}; run it again into another --out") from error


def render_page(study: Study, saved: Results, figures: Sequence[str], prefix: str = "") -> str:
    """Return the page of a study; prefix: of the names of figures and other files, as seen from the page."""
    text = (
        _templates()
        .get_template(f"{study.name}.md")
        .render(
            study=study,
            saved=saved,
            results=saved["found"],
            figures=figures,
            prefix=prefix,
            **study.values(saved["found"]),
        )
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


@cache
def _templates() -> Any:
    from statistics import fmean

    from studies.trained import LEAST, percent

    jinja2 = import_extra("jinja2", "report", "the page of a study")
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "pages"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    templates.filters |= {"number": format, "percent": percent, "mean": fmean}
    templates.globals |= {"least": LEAST}
    return templates


def _environment() -> dict[str, str]:
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


# How figures look: colours for any kind of colour vision, and SVG that follows a light or dark page.

# Okabe and Ito's colours, without black and yellow, which are lost on a dark or a light page
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLES = ("-", "--", "-.", ":")  # beside the colours, for those who print in grey
MARKS = ("o", "s", "^", "D", "v", "P")
INK, FAINT = "#1b1b1b", "#dddddd"  # text and axes; the grid. Both are exchanged on a dark page
_DARK_INK, _DARK_FAINT, _PAPER = "#e8e8e8", "#444444", "#ffffff"
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same picture on every machine
    "svg.hashsalt": "frontrank",
    "svg.fonttype": "path",
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
}


def figure_style() -> Any:
    """Return a context in which everything is drawn in this style; legends and texts take it when they are made."""
    return import_extra("matplotlib", "dev", "a study").rc_context(_STYLE)


def panels(rows: int = 1, columns: int = 1, *, size: tuple[float, float] | None = None, **more: Any) -> Any:
    """Return a figure and its axes, an array [row, column]; size: of the whole figure, in inches."""
    with figure_style():
        from matplotlib.figure import Figure

        figure = Figure(figsize=size or (4.6 * columns, 3.4 * rows), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False, **more)


def line_style(place: int) -> dict[str, Any]:
    """Return colour and dashes of the nth of several lines of equal rank."""
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": STYLES[place // len(COLOURS) % len(STYLES)]}


def save_figure(figure: "Figure", path: Path) -> None:
    """Write path.svg, for light and dark pages, and path.png, on white."""
    path.parent.mkdir(parents=True, exist_ok=True)
    vector, pixels = render_svg(figure), io.BytesIO()
    with figure_style():
        figure.savefig(pixels, format="png", dpi=130, facecolor=_PAPER, metadata={"Software": None})
    atomic_write(path.with_name(path.name + ".svg"), vector.encode())
    atomic_write(path.with_name(path.name + ".png"), pixels.getvalue())


def render_svg(figure: "Figure") -> str:
    """Return the figure as SVG, for light and dark pages."""
    vector = io.StringIO()
    with figure_style():
        figure.savefig(vector, format="svg", metadata={"Date": None}, transparent=True)
    return add_dark_colours(vector.getvalue())


def add_dark_colours(svg: str) -> str:
    """Return the SVG with ink and grid that turn light where the page is dark."""
    rules = "".join(
        f'[style*="{what}: {before}"]{{{what}:{after} !important}}'
        for what in ("fill", "stroke")
        for before, after in ((INK, _DARK_INK), (FAINT, _DARK_FAINT))
    )
    head, end, rest = svg.partition("<defs>")
    return f"{head}<style>@media (prefers-color-scheme: dark){{{rules}}}</style>\n {end}{rest}"
