"""A loss from a derivative that is typed or drawn: PNP's own way to its losses, with a page to try it (Eq. 5 to 13)."""

import base64
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from frontrank.errors import InputError
from frontrank.losses import PNP
from studies import circle
from studies.expression import derivative
from studies.over_seeds import verdict
from studies.study import Effort, Results, Study
from studies.style import MARKS, look, panels
from studies.trained import mean_and_spread, percent

_DEFAULT = "exp(-R/2)"  # none of the paper's: falls more slowly than D_q at first, and faster in the end
PRESETS: Mapping[str, tuple[str, PNP]] = {  # what f' is, typed; the loss as it is in the package
    "O": ("1", PNP("O", temperature=circle.TEMPERATURE)),
    "I_u": ("1+log(1+R)", PNP("I_u", temperature=circle.TEMPERATURE)),
    "I_b": ("R/(1+2*R)", PNP("I_b", b=2.0, temperature=circle.TEMPERATURE)),
    "D_s": ("1/(1+R)", PNP("D_s", temperature=circle.TEMPERATURE)),
    "D_q": ("4/(1+R)^5", PNP("D_q", alpha=4.0, temperature=circle.TEMPERATURE)),
}
_PRINTED = {
    "O": "1",
    "I_u": "log(1+R)",
    "I_b": "R/(1+2*R)",
    "D_s": "1/(1+R)",
    "D_q": "4/(1+R)^5",
}  # as the paper has it
_EQUATIONS = {"O": "none, 5", "I_u": "6, 7", "I_b": "8, 9", "D_s": "10, 12", "D_q": "11, 13"}
_SEEDS = 5
_LAST = 10.0  # negatives before, at the right end of the figure
_PULLS = (0, 1, 2, 5, 10, 20, 40)  # of the page's table
_PAGE = Path(__file__).parent / "designer"


def loss_of(text: str) -> PNP:
    """The loss whose derivative is a typed expression."""
    typed = derivative(text)
    try:
        return PNP.from_derivative(typed, temperature=circle.TEMPERATURE)
    except InputError as error:
        said = str(error).replace("f_prime", "f'")
        raise InputError(f"derivative {text!r}: {said}") from error


def measure(effort: Effort) -> dict[str, Any]:
    text = effort.derivative or _DEFAULT
    ways = {**{name: expression for name, (expression, _) in PRESETS.items()}, "typed": text}
    losses = {name: loss_of(expression) for name, expression in ways.items()}
    seeds, steps = (2, 10) if effort.quick else (_SEEDS, circle.STEPS)
    r = torch.linspace(0, _LAST, 101, dtype=torch.float64)
    found: dict[str, Any] = {"derivative": text, "seed": effort.seed, "seeds": seeds, "steps": steps, "R": r.tolist()}
    found["curves"] = {
        name: {
            "expression": ways[name],
            "slope": loss.metric.pair_slopes(r, r)[1].tolist(),
            "f": loss.metric.pair_loss(r, r).tolist(),
        }
        for name, loss in losses.items()
    }
    found["printed"] = {
        name: _gaps(loss_of(printed), PRESETS[name][1], effort.seed) for name, printed in _PRINTED.items()
    }
    found["toy"] = {}
    for layout in circle.LAYOUTS:
        data = [circle.toy(layout, seed) for seed in range(effort.seed, effort.seed + seeds)]
        own = found["toy"][layout] = {}
        for name, loss in losses.items():
            reports = [circle.judged(circle.train(each, loss, steps), each.test) for each in data]
            own[name] = {metric: [report[metric] for report in reports] for metric in ("R@1", "mAP")}
    return found


def _gaps(typed: PNP, ours: PNP, seed: int) -> dict[str, float]:
    """How far two losses, and their gradients in the embeddings, are apart on a batch; shares of the second."""
    data, rows = circle.toy("centres", seed), circle.batch_rows(0)
    classes = circle.labels()[rows]

    def of(loss: PNP) -> tuple[Tensor, Tensor]:
        embeddings = circle.embedded(data.weights, data.train[rows]).requires_grad_()
        value = loss(embeddings, classes)
        (slope,) = torch.autograd.grad(value, embeddings)
        return value.detach(), slope

    (value, slope), (other, other_slope) = of(typed), of(ours)
    return {
        "value": float((value - other).abs() / other.abs()),
        "gradient": float((slope - other_slope).abs().max() / other_slope.abs().max()),
    }


def figures(found: Results) -> dict[str, Any]:
    figure, axes = panels(1, 3, size=(12.5, 3.9), width_ratios=[1, 1, 1.15])
    for place, (name, own) in enumerate(found["curves"].items()):
        line = {**look(place), "lw": 2.8 if name == "typed" else 1.6}
        for axis, part in zip(axes[0], ("slope", "f"), strict=False):
            axis.plot(
                found["R"], [value / (max(own[part]) or 1) for value in own[part]], label=_label(name, found), **line
            )
        for height, layout in enumerate(circle.LAYOUTS):
            mean, spread = mean_and_spread(found["toy"][layout][name]["mAP"])
            at = height + 0.11 * (2.5 - place)
            axes[0, 2].errorbar(
                100 * mean, at, xerr=100 * spread, color=line["color"], marker=MARKS[place], capsize=2, ls="none"
            )
    axes[0, 0].set(title="f'(R), of its largest", xlabel="R, negatives before", ylim=(0, 1.05))
    axes[0, 1].set(title="f(R), of its largest", xlabel="R, negatives before", ylim=(0, 1.05))
    axes[0, 2].set(title="the toy", xlabel="test mAP, %", ylim=(-0.5, len(circle.LAYOUTS) - 0.5))
    axes[0, 2].set_yticks(range(len(circle.LAYOUTS)), circle.LAYOUTS)
    axes[0, 2].grid(visible=False, axis="y")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    return {"designer": figure}


def _label(name: str, found: Results) -> str:
    if name == "typed":
        return _shortened(found["derivative"])
    return f"{name[0]}$_{name[2]}$" if "_" in name else name


def _shortened(text: str) -> str:
    return text if len(text) <= 30 else f"{text[:27]}..."


def told(found: Results) -> str:
    close = {name: max(gaps.values()) <= 1e-6 for name, gaps in found["printed"].items()}
    printed = [
        f"| {name} | {_EQUATIONS[name]} | `{_PRINTED[name]}` | {gaps['value']:.0e} | {gaps['gradient']:.0e} |"
        for name, gaps in found["printed"].items()
    ]
    shown = [
        f"| {'**yours**' if name == 'typed' else name} | `{own['expression']}` | "
        + " | ".join(
            percent(found["toy"][layout][name][metric]) for layout in circle.LAYOUTS for metric in ("R@1", "mAP")
        )
        + " |"
        for name, own in found["curves"].items()
    ]
    apart = ", ".join(f"{name} (Eq. {_EQUATIONS[name]})" for name in close if not close[name]) or "none"
    places = []
    for layout in circle.LAYOUTS:
        means = {name: fmean(own["mAP"]) for name, own in found["toy"][layout].items()}
        above = [name for name, mean in means.items() if mean > means["typed"]]
        places.append(f"{len(above) + 1} of {len(means)} on *{layout}*" + f" (behind {', '.join(above)})" * bool(above))
    return "\n".join(
        [
            "**[Open the designer](designer.html)**: draw f'(R) or type it, see the loss and the gradient, and train "
            "the toy with it in the browser. One file, no network. "
            'From the command line: `python -m studies pnp-designer --derivative "1/(1+R)^2"`.',
            "",
            "| PNP | Eq. of derivative, loss | the paper's derivative, typed | value, off by | gradient, off by |",
            "|---|---|---|---:|---:|",
            *printed,
            "",
            "Each derivative as the paper prints it is made into a loss by `PNP.from_derivative`, and set beside the "
            "loss that the paper prints, on a batch of the toy; shares of the "
            "latter. It agrees if both are equal to 1e-6 for all five: a check of formulas, the paper's and ours.",
            "",
            f"{verdict([*close.values()])}: {sum(close.values())} of {len(close)} derivatives make the loss that is "
            f"printed beside them; not so: {apart}.",
            "",
            "| | f'(R) | R@1, lines | mAP, lines | R@1, centres | mAP, centres |",
            "|---|---|---:|---:|---:|---:|",
            *shown,
            "",
            "Test classes of the toy of `pnp-circle`, all trained by their typed derivatives; mean ± standard "
            f"deviation over {found['seeds']} seeds, {found['steps']} steps. By mean mAP "
            f"`{found['derivative']}` is {' and '.join(places)}. The toy is small and its spread wide: what is best "
            "here need not be best on images.",
        ]
    )


def more(found: Results) -> dict[str, bytes]:
    """The page, with the toy of the first seed and what the presets came to on it."""
    layouts = {}
    for layout in circle.LAYOUTS:
        data = circle.toy(layout, found["seed"])
        layouts[layout] = {
            "train": circle.as_text(data.train, 4),
            "test": circle.as_text(data.test, 4),
            "weights": circle.as_text(torch.cat([weight.flatten() for weight in data.weights]), 4),
            "results": {
                name: {"first": {metric: over[0] for metric, over in own.items()}, "mean": fmean(own["mAP"])}
                for name, own in found["toy"][layout].items()
                if name != "typed"
            },
        }
    given = {
        "expression": found["derivative"],
        "classes": circle.CLASSES,
        "points": circle.POINTS,
        "neurons": circle.NEURONS,
        "perClass": circle.PER_CLASS,
        "strides": circle.STRIDES,
        "steps": found["steps"],
        "rate": circle.RATE,
        "temperature": circle.TEMPERATURE,
        "pulls": _PULLS,
        "layouts": layouts,
    }
    return {"designer.html": _page(given, found["seeds"]).encode()}


def _page(given: Mapping[str, Any], seeds: int) -> str:
    """The page as one file, whose policy lets a browser run its one script, known by its hash, and load nothing."""
    html, style, script = ((_PAGE / f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    held = json.dumps(given).replace("<", "\\u003c")  # an expression cannot end the script that holds it
    parts = {"@HASH@": digest, "@SEEDS@": str(seeds), "@STYLE@": style, "@TOY@": held, "@SCRIPT@": script}
    for mark, text in parts.items():
        html = html.replace(mark, text, 1)
    return html


STUDY = Study(
    name="pnp-designer",
    paper="PNP",
    shows="Eq. 5 to 13",
    title="Design a loss by its derivative",
    claim="A loss can be made by choosing its derivative f'(R) and integrating. The paper makes four in this way, and "
    "says that more can be found.",
    minutes=1,
    measure=measure,
    figures=figures,
    told=told,
    more=more,
)
