"""A loss from a derivative that is typed or drawn: PNP's own way to its losses, with a page to try it (Eq. 5 to 13)."""

import base64
import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

import studies.pnp_circle as circle
from frontrank.checks import shorten
from frontrank.errors import InputError
from frontrank.losses import PNP
from studies.study import MARKS, Effort, Results, Study, line_style, panels, verdict
from studies.trained import mean_and_spread

Function = Callable[[Tensor], Tensor]
_ONE: dict[str, Function] = {"exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt}
_TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"min": torch.minimum, "max": torch.maximum}
_TOKEN = re.compile(r"\s*(?:((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)|([A-Za-z_]+)|(.))", re.ASCII)
_LONGEST, _DEEPEST = 2000, 50
_VALUE = "a number, R, a function or ("
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
_METRICS = ("R@1", "mAP")
_SEEDS = 5
_LAST = 10.0  # negatives before, at the right end of the figure
_PULLS = (0, 1, 2, 5, 10, 20, 40)  # R of the page's table
_KNOTS = (0, 0.5, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24)  # R of the points that can be moved
_GRID = 201  # points of the page's curves
_PAGE = Path(__file__).parent / "designer"


def derivative(text: str) -> Function:
    """Read f'(R) typed as text by a small grammar; it is never run as code. Return a function on tensors.

        sum     = product (("+" | "-") product)*
        product = signed (("*" | "/") signed)*
        signed  = ("+" | "-") signed | power
        power   = atom ("^" signed)?                    2^3^2 is 2^(3^2), -R^2 is -(R^2)
        atom    = number | "R" | name "(" sum ("," sum)* ")" | "(" sum ")"
        name    = exp, log, sqrt with one argument; min, max with two

    The page of the designer reads the same grammar, with the same messages.

    >>> derivative("1/(1+R)^2")(torch.tensor([0.0, 1.0]))
    tensor([1.0000, 0.2500])
    """
    return _Parser(text).parse()


def _constant(value: float) -> Function:
    return lambda r: torch.full_like(r, value, dtype=torch.float64).to(r.dtype)  # infinite where it is too large


def _of_two(operation: Callable[[Tensor, Tensor], Tensor], left: Function, right: Function) -> Function:
    return lambda r: operation(left(r), right(r))


def _of_one(operation: Function, inner: Function) -> Function:
    return lambda r: operation(inner(r))


class _Parser:
    """Goes through a text token by token; each method reads one rule of the grammar."""

    def __init__(self, text: str) -> None:
        self._text = text
        if len(text) > _LONGEST:
            raise self._error(_LONGEST, f"it is longer than {_LONGEST} characters")
        self._tokens: list[tuple[str, str, int]] = []  # kind, text, position from 1
        end = len(text.rstrip(" \t\n\r\f\v"))
        at = 0
        while at < end and (match := _TOKEN.match(text, at)):
            group = match.lastindex or 1
            self._tokens.append((("number", "name", "sign")[group - 1], match[group], match.start(group) + 1))
            at = match.end()
        self._tokens.append(("end", "", end + 1))
        self._place = self._depth = 0

    def parse(self) -> Function:
        function = self._sum()
        kind, word, at = self._token
        if kind != "end":
            raise self._error(
                at, "this ) closes nothing" if word == ")" else f'an operator must come here, not "{word}"'
            )
        return function

    @property
    def _token(self) -> tuple[str, str, int]:
        return self._tokens[self._place]

    def _take(self, *words: str) -> str:
        """Return the sign that stands here and go on, if it is one of these."""
        kind, word, _ = self._token
        if kind != "sign" or word not in words:
            return ""
        self._place += 1
        return word

    def _sum(self) -> Function:
        function = self._product()
        while sign := self._take("+", "-"):
            function = _of_two(torch.add if sign == "+" else torch.subtract, function, self._product())
        return function

    def _product(self) -> Function:
        function = self._factor()
        while sign := self._take("*", "/"):
            function = _of_two(torch.multiply if sign == "*" else torch.divide, function, self._factor())
        return function

    def _factor(self) -> Function:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error(self._token[2], f"more than {_DEEPEST} things are inside each other here")
        if sign := self._take("+", "-"):
            function = self._factor()
            function = _of_one(torch.negative, function) if sign == "-" else function
        else:
            function = self._atom()
            if self._take("^"):
                function = _of_two(torch.pow, function, self._factor())
        self._depth -= 1
        return function

    def _atom(self) -> Function:
        kind, word, at = self._token
        self._place += kind != "end"
        if kind == "number":
            return _constant(float(word))
        if kind == "name":
            return self._function(word, at)
        if word == "(":
            function = self._sum()
            self._close(at)
            return function
        raise self._error(at, f"{_VALUE} must come here, " + (f'not "{word}"' if word else "but the expression ends"))

    def _function(self, word: str, at: int) -> Function:
        if word == "R":
            return lambda r: r
        if word not in _ONE and word not in _TWO:
            raise self._error(at, f'there is no "{word}"; there are R, {", ".join((*_ONE, *_TWO))}')
        start = self._token[2]
        if not self._take("("):
            raise self._error(start, f"{word} needs ( ) around its argument")
        inner = [self._sum()]
        while self._take(","):
            inner.append(self._sum())
        self._close(start)
        needed = 1 if word in _ONE else 2
        if len(inner) != needed:
            raise self._error(at, f"{word} takes {needed} argument{'s' * (needed > 1)}, not {len(inner)}")
        return _of_one(_ONE[word], *inner) if needed == 1 else _of_two(_TWO[word], *inner)

    def _close(self, start: int) -> None:
        kind, word, at = self._token
        if not self._take(")"):
            if kind == "end":
                raise self._error(start, "this ( is never closed")
            raise self._error(at, f'an operator must come here, not "{word}"')

    def _error(self, at: int, what: str) -> InputError:
        text = shorten(self._text, 57)
        return InputError(f"derivative {text!r}, position {at}: {what}")


def loss_of(text: str) -> PNP:
    """Return the loss whose derivative is a typed expression."""
    typed = derivative(text)
    try:
        return PNP.from_derivative(typed, temperature=circle.TEMPERATURE)
    except InputError as error:
        message = str(error).replace("f_prime", "f'")
        raise InputError(f"derivative {text!r}: {message}") from error


def measure(effort: Effort) -> dict[str, Any]:
    text = effort.derivative or _DEFAULT
    ways = {**{name: expression for name, (expression, _) in PRESETS.items()}, "typed": text}
    losses = {name: loss_of(expression) for name, expression in ways.items()}
    seeds, steps = (2, 10) if effort.quick else (_SEEDS, circle.STEPS)
    r = torch.linspace(0, _LAST, 101, dtype=torch.float64)
    results: dict[str, Any] = {"derivative": text, "seed": effort.seed, "seeds": seeds, "steps": steps, "R": r.tolist()}
    results["curves"] = {
        name: {
            "expression": ways[name],
            "slope": loss.metric.pair_slopes(r, r)[1].tolist(),
            "f": loss.metric.pair_loss(r, r).tolist(),
        }
        for name, loss in losses.items()
    }
    results["printed"] = {
        name: _relative_gaps(loss_of(printed), PRESETS[name][1], effort.seed) for name, printed in _PRINTED.items()
    }
    results["toy"] = {}
    for layout in circle.LAYOUTS:
        data = [circle.make_toy(layout, seed) for seed in range(effort.seed, effort.seed + seeds)]
        own = results["toy"][layout] = {}
        for name, loss in losses.items():
            reports = [circle.evaluate_points(circle.train(each, loss, steps), each.test, _METRICS) for each in data]
            own[name] = {metric: [report[metric] for report in reports] for metric in _METRICS}
    return results


def _relative_gaps(typed: PNP, ours: PNP, seed: int) -> dict[str, float]:
    """Return how far two losses, and their gradients in the embeddings, are apart on a batch; shares of the second."""
    data, rows = circle.make_toy("centres", seed), circle.batch_rows(0)
    classes = circle.labels()[rows]

    def of(loss: PNP) -> tuple[Tensor, Tensor]:
        embeddings = circle.embed(data.weights, data.train[rows]).requires_grad_()
        value = loss(embeddings, classes)
        (slope,) = torch.autograd.grad(value, embeddings)
        return value.detach(), slope

    (value, slope), (other, other_slope) = of(typed), of(ours)
    return {
        "value": float((value - other).abs() / other.abs()),
        "gradient": float((slope - other_slope).abs().max() / other_slope.abs().max()),
    }


def draw(results: Results) -> dict[str, Any]:
    figure, axes = panels(1, 3, size=(12.5, 3.9), width_ratios=[1, 1, 1.15])
    for place, (name, own) in enumerate(results["curves"].items()):
        line = {**line_style(place), "lw": 2.8 if name == "typed" else 1.6}
        for axis, part in zip(axes[0], ("slope", "f"), strict=False):
            shares = [value / (max(own[part]) or 1) for value in own[part]]
            axis.plot(results["R"], shares, label=_label(name, results), **line)
        for height, layout in enumerate(circle.LAYOUTS):
            mean, spread = mean_and_spread(results["toy"][layout][name]["mAP"])
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


def _label(name: str, results: Results) -> str:
    if name == "typed":
        return _shorten_label(results["derivative"])
    return f"{name[0]}$_{name[2]}$" if "_" in name else name


def _shorten_label(text: str) -> str:
    return text if len(text) <= 30 else f"{text[:27]}..."


def values(results: Results) -> dict[str, Any]:
    rows = [
        {
            "name": name,
            "equations": _EQUATIONS[name],
            "printed": _PRINTED[name],
            "agrees": max(gaps.values()) <= 1e-6,
            **gaps,
        }
        for name, gaps in results["printed"].items()
    ]
    places = {}
    for layout in circle.LAYOUTS:
        means = {name: fmean(own["mAP"]) for name, own in results["toy"][layout].items()}
        above = [name for name, mean in means.items() if mean > means["typed"]]
        places[layout] = {"place": len(above) + 1, "of": len(means), "behind": above}
    return {
        "verdict": verdict([row["agrees"] for row in rows]),
        "rows": rows,
        "layouts": circle.LAYOUTS,
        "places": places,
    }


def extra_files(results: Results) -> dict[str, bytes]:
    """Return the page, with the toy of the first seed and all figures that it shows at first."""
    loss = loss_of(results["derivative"]).metric

    def slopes(r: Tensor) -> list[float]:
        return _short_numbers(loss.pair_slopes(r, r)[1])

    layouts = {}
    for layout in circle.LAYOUTS:
        data = circle.make_toy(layout, results["seed"])
        angles = [torch.atan2(*circle.embed(data.weights, part).T.flip(0)) for part in (data.train, data.test)]
        layouts[layout] = {
            "train": circle.to_text(data.train, 4),
            "test": circle.to_text(data.test, 4),
            "weights": circle.to_text(torch.cat([weight.flatten() for weight in data.weights]), 4),
            "angles": [circle.to_text(each, 3) for each in angles],  # before training
            "untrained": circle.evaluate_points(data.weights, data.test, _METRICS),
            "results": {
                name: {"first": {metric: over[0] for metric, over in own.items()}, "mean": fmean(own["mAP"])}
                for name, own in results["toy"][layout].items()
            },
        }
    last = circle.CLASSES * circle.PER_CLASS - circle.PER_CLASS  # negatives in a batch: R is never more
    grid = torch.expm1(torch.linspace(0, math.log1p(last), _GRID, dtype=torch.float64))
    given = {
        "expression": results["derivative"],
        "last": last,
        "grid": _short_numbers(grid),
        "knots": [*_KNOTS, last],
        "pulls": _PULLS,
        "curves": {
            "slope": slopes(grid),
            "loss": _short_numbers(loss.pair_loss(grid, grid)),
            "knots": slopes(torch.tensor([*_KNOTS, last], dtype=torch.float64)),
            "pulls": slopes(torch.tensor(_PULLS, dtype=torch.float64)),
        },
        "classes": circle.CLASSES,
        "points": circle.POINTS,
        "neurons": circle.NEURONS,
        "perClass": circle.PER_CLASS,
        "strides": circle.STRIDES,
        "steps": results["steps"],
        "rate": circle.RATE,
        "temperature": circle.TEMPERATURE,
        "layouts": layouts,
    }
    return {"designer.html": _page(given, results["seeds"]).encode()}


def _short_numbers(values: Tensor) -> list[float]:
    return [float(f"{value:.7g}") for value in values.tolist()]


def _page(given: Mapping[str, Any], seeds: int) -> str:
    """Return the page as one file; its policy lets a browser run this script, known by its hash, and load nothing."""
    html, style, script = ((_PAGE / f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    data = json.dumps(given).replace("<", "\\u003c")  # an expression cannot end the script that holds it
    parts = {"@HASH@": digest, "@SEEDS@": str(seeds), "@STYLE@": style, "@TOY@": data, "@SCRIPT@": script}
    for mark, text in parts.items():
        html = html.replace(mark, text, 1)
    return html


STUDY = Study(
    name="pnp-designer",
    paper="PNP",
    shows="Eq. 5 to 13",
    title="Design a loss by its derivative",
    minutes=1,
    measure=measure,
    draw=draw,
    values=values,
    extra_files=extra_files,
)
