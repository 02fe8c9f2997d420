"""Draw docs/figures with the package's own functions: python docs/make_figures.py (needs matplotlib)."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from frontrank import RankLoss
from frontrank.ranking import AveragePrecision, Blackbox, Exact, PenalizedNegatives

HERE = Path(__file__).parent / "figures"

# Okabe and Ito's colours, told apart with any kind of colour vision; line styles and labels say the same again
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip

STYLE = {
    "svg.hashsalt": "frontrank",  # the same ids in every run
    "svg.fonttype": "path",
    "figure.facecolor": "white",  # an opaque card: readable on a dark page too
    "axes.facecolor": "white",
    "font.size": 10,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "lines.linewidth": 2.0,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
}


def save(figure: Figure, name: str) -> None:
    HERE.mkdir(exist_ok=True)
    figure.savefig(HERE / f"{name}.svg", metadata={"Date": None, "Creator": "docs/make_figures.py"})
    figure.savefig(HERE / f"{name}.png", dpi=130, metadata={"Software": None})
    plt.close(figure)


def label(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def pnp_variants() -> None:
    """The five losses of PNP and their derivatives."""
    r = torch.linspace(0, 8, 401, dtype=torch.float64)
    variants = [
        ("O", "O", BLACK, "-"),
        ("I_u", "$I_u$", VERMILION, "-"),
        ("I_b", "$I_b$, b = 2", ORANGE, "--"),
        ("D_s", "$D_s$", BLUE, "-"),
        ("D_q", r"$D_q$, $\alpha$ = 4", GREEN, "--"),
    ]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for variant, name, colour, line in variants:
        metric = PenalizedNegatives(variant)
        left.plot(r, metric.f(r), line, color=colour, label=name)
        right.plot(r, metric.f_prime(r), line, color=colour, label=name)
    label(left, "Loss of one positive, f(R)", "R, negatives before the positive", "f(R)")
    label(right, "How hard it is corrected, f'(R)", "R, negatives before the positive", "f'(R)")
    left.set(ylim=(0, 10), xlim=(0, 8))
    right.set(ylim=(0, 4.2), xlim=(0, 8))
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center")
    save(figure, "pnp_variants")


def ap_and_pnp() -> None:
    """The slope of AP in R_N, which depends on R_P, beside that of PNP-D_q, which does not."""
    r = torch.linspace(0, 8, 401, dtype=torch.float64)
    figure, axes = plt.subplots(figsize=(8, 3.8), layout="constrained")
    for before_pos, colour in enumerate((BLUE, SKY, ORANGE, VERMILION)):
        slope = AveragePrecision().pair_slopes(torch.full_like(r, before_pos), r)[1]
        axes.plot(r, slope, color=colour, label=f"1 - AP, $R_P$ = {before_pos}")
    for alpha, colour, line in ((2.0, BLACK, "--"), (4.0, GREEN, "-.")):
        slope = PenalizedNegatives("D_q", alpha=alpha).f_prime(r)
        axes.plot(r, slope, line, color=colour, label=rf"PNP-$D_q$, $\alpha$ = {alpha:g}")
    label(
        axes, "How hard one positive is corrected", "$R_N$, negatives before the positive", "slope of the loss in $R_N$"
    )
    axes.set_yscale("log")
    axes.set(xlim=(0, 8), ylim=(1e-3, 6))
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    save(figure, "ap_and_pnp")


def sigmoid() -> None:
    """The relaxed indicator and its slope, the operating region, at several temperatures."""
    x = torch.linspace(-0.2, 0.2, 1601, dtype=torch.float64)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    left.step([-0.2, 0, 0.2], [0, 0, 1], where="pre", color=BLACK, linewidth=1.2, label="exact")
    for temperature, colour, line in ((0.002, VERMILION, "-"), (0.01, BLUE, "-"), (0.05, ORANGE, "--")):
        g = torch.sigmoid(x / temperature)
        left.plot(x, g, line, color=colour, label=f"temperature {temperature:g}")
        right.plot(x, g * (1 - g) / temperature, line, color=colour)
    label(left, "Does item j stand before positive i?", "$s_j - s_i$", "G")
    label(right, "Slope: pairs that are taught something", "$s_j - s_i$", "G'")
    right.set_yscale("log")
    right.set(ylim=(1e-3, 300), xlim=(-0.2, 0.2))
    left.set(xlim=(-0.2, 0.2))
    figure.legend(*left.get_legend_handles_labels(), loc="outside right center")
    save(figure, "sigmoid")


def blackbox() -> None:
    """1 - AP of a list as one positive moves, and the slope that blackbox differentiation gives it."""
    fixed = [0.8, 0.15, 0.35, 0.5, 0.68, 0.9]  # a positive, then five negatives
    relevant = torch.tensor([[True, True, False, False, False, False, False]])
    at = torch.linspace(0, 1, 1001, dtype=torch.float64)
    lists = [torch.tensor([[s, *fixed]], dtype=torch.float64) for s in at.tolist()]
    exact = RankLoss(AveragePrecision(), Exact())
    loss = torch.stack([exact.of_scores(scores, relevant) for scores in lists])

    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(8, 5.6), sharex=True, layout="constrained", height_ratios=(1.15, 1)
    )
    top.plot(at, loss, color=BLACK, linewidth=1.6, label="1 - AP, exact")
    for lam, colour, line in ((0.3, VERMILION, "-"), (1.0, BLUE, "-"), (4.0, ORANGE, "--")):
        relaxed = RankLoss(AveragePrecision(), Blackbox(lam, margin=0.0))
        slopes = torch.stack([_slope(relaxed, scores, relevant) for scores in lists])
        # summed up from the right end, where all three start at the exact loss
        climbed = torch.cumulative_trapezoid(slopes.flip(0), at.flip(0)).flip(0)
        top.plot(at[:-1], loss[-1] + climbed, line, color=colour, label=rf"slopes summed, $\lambda$ = {lam:g}")
        bottom.plot(at, slopes, line, color=colour, linewidth=1.6)
    top.plot(fixed[1:], [0.0] * 5, "x", color=BLACK, clip_on=False, markersize=7, label="a negative")
    top.plot(fixed[:1], [0.0], "o", color=GREEN, clip_on=False, markersize=7, label="the other positive")
    label(top, "1 - AP of a list as one of its two positives moves", "", "loss")
    label(bottom, "The slope given to the moving positive", "score of the moving positive", "slope")
    top.set(xlim=(0, 1), ylim=(0, None))
    handles, names = top.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center")
    save(figure, "blackbox")


def _slope(loss: RankLoss, scores: torch.Tensor, relevant: torch.Tensor) -> torch.Tensor:
    scores = scores.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss.of_scores(scores, relevant), scores)
    return gradient[0, 0]


def main() -> None:
    torch.set_num_threads(1)
    with plt.rc_context(STYLE):
        pnp_variants()
        ap_and_pnp()
        sigmoid()
        blackbox()
    for path in sorted(HERE.iterdir()):
        print(f"{path.stat().st_size / 1000:6.1f} kB  {path.name}")


if __name__ == "__main__":
    main()
