"""The style of all figures: colours for any kind of colour vision, and SVG that follows a light or dark page."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frontrank.checks import import_extra
from frontrank.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    return import_extra("matplotlib", "report", "a study").rc_context(_STYLE)


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
