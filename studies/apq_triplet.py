"""AP_Q against triplets with hard negatives, all else being equal (AP_Q, Table 1)."""

from typing import Any, NamedTuple

from studies.study import MARKS, Effort, Results, Study, line_style, panels, verdict
from studies.trained import Gap, emoji_folder, gap, mean_and_spread, rate_search, run_comparison

_LRS = "1e-4,3e-4,1e-3"
_LOSSES = {"QuantizedAP": "AP_Q", "pml.TripletMarginLoss": "triplet"}


class Budget(NamedTuple):
    """Images of a batch, number of batches, and images held at once; chunk 0 is a whole batch."""

    size: int
    updates: int
    chunk: int
    losses: str


_AP, _TRIPLET = "QuantizedAP", "triplet-hard"
_BOTH = f"{_AP},{_TRIPLET}"
BUDGETS = (  # 17,920 images, and twice as many
    Budget(448, 40, 112, _BOTH),
    Budget(448, 80, 112, _AP),
    Budget(112, 160, 0, _TRIPLET),
    Budget(112, 320, 0, _TRIPLET),
)
_QUICK = (Budget(32, 4, 16, _BOTH), Budget(16, 4, 0, _TRIPLET))

# What a training step takes beside model, optimizer and batches, with any loss and with each of these
PLAIN = """
loss = Loss()
loss(model(images), labels).backward()
"""
SNIPPETS = {
    "AP_Q": """
loss = QuantizedAP(bins=20)
multistage_backward(model, loss, images, labels, chunk=112)
""",
    "triplet": """
loss = TripletMarginLoss(margin=0.2)
miner = BatchHardMiner()
embeddings = model(images)
triplets = miner(embeddings, labels)
loss(embeddings, labels, triplets).backward()
""",
}


_EFFORT = (  # claim, where it is looked up, and how many times as much AP_Q may take at most
    ("half of the backward passes (at most 0.6 times as many)", "backwards", 0.6),
    ("fewer forward passes", "forwards", 1.0),
    ("far fewer updates (at most half)", "updates", 0.5),
    ("a third of the time (at most 0.4 times the minutes)", "minutes", 0.4),
    ("fewer lines", "lines", 1.0),
)


def measure(effort: Effort) -> dict[str, Any]:
    data = emoji_folder(effort)
    rows: list[dict[str, Any]] = []
    for budget in _QUICK if effort.quick else BUDGETS:
        results = run_comparison(
            effort,
            f"{budget.size}-images-{budget.updates}-updates",
            data=data,
            losses=budget.losses,
            axes=[f"batches.size={budget.size}", f"batches.chunk={budget.chunk}"],
            settings={"metric": "mAP", "iterations": str(budget.updates), "optimizer.warmup": "5"},
            lrs=_LRS,
        )
        rows += [
            {
                "loss": _LOSSES[entry["settings"]["loss.name"]],
                **{name: entry[name] for name in ("lr", "values", "seconds", "megabytes")},
                **passes(budget),
            }
            for entry in results["entries"]
        ]
    return {"rows": rows, "lines": {name: extra_lines(code) for name, code in SNIPPETS.items()}}


def passes(budget: Budget) -> dict[str, int]:
    """Count images that go through the network forwards and backwards, and steps of the optimizer.

    Multistage backprop embeds a batch twice: once for the loss, once more, in chunks, for the gradient.
    """
    images = budget.size * budget.updates
    twice = 0 < budget.chunk < budget.size
    counted = {"backwards": images, "forwards": images * (2 if twice else 1), "updates": budget.updates}
    return {"size": budget.size, **counted}


def extra_lines(code: str) -> int:
    """Count lines of code beyond the two that any loss takes."""
    return len(_lines(code)) - len(_lines(PLAIN))


def _lines(code: str) -> list[str]:
    return [line for line in code.splitlines() if line.strip() and not line.strip().startswith("#")]


def draw(results: Results) -> dict[str, Any]:
    figure, axes = panels(1, 3, sharey=True)
    shown = (("backwards", "images backwards"), ("forwards", "images forwards"), ("minutes", "minutes of training"))
    for place, (name, rows) in enumerate(_by_name(results).items()):
        means = [mean_and_spread(row["values"]["mAP"]) for row in rows]
        for ax, (key, label) in zip(axes[0], shown, strict=True):
            xs = [_minutes(row) if key == "minutes" else row[key] / 1000 for row in rows]
            spreads = [100 * spread for _, spread in means]
            ys = [100 * mean for mean, _ in means]
            ax.errorbar(xs, ys, spreads, label=name, marker=MARKS[place], capsize=3, **line_style(place))
            ax.set(xlabel=label + (", thousands" if key != "minutes" else ""))
    for ax in axes[0]:
        ax.set_xlim(left=0)
    axes[0, 0].set_ylabel("mAP, %")
    axes[0, 0].legend(loc="center left")
    return {"triplet": figure}


def _by_name(results: Results) -> dict[str, list[Any]]:
    names: dict[str, list[Any]] = {}
    for row in results["rows"]:
        names.setdefault(f"{row['loss']}, batches of {row['size']}", []).append(row)
    return names


def _minutes(row: Results) -> float:
    """Return the minutes of all steps, without evaluations."""
    return mean_and_spread(row["seconds"])[0] * row["updates"] / 60


def values(results: Results) -> dict[str, Any]:
    rows = [
        {**row, "minutes": _minutes(row), "megabytes": mean_and_spread(row["megabytes"])[0]}
        | {"lines": results["lines"][row["loss"]]}
        for row in results["rows"]
    ]
    ap, triplets = ([row for row in rows if row["loss"] == loss] for loss in ("AP_Q", "triplet"))
    first, best = min(ap, key=lambda row: row["backwards"]), max(triplets, key=_mean)
    above = _gap(first, best)
    larger = larger_batches(triplets)
    as_many = [row for row in ap if row["backwards"] == best["backwards"] and row is not first]
    chosen = {f"{row['loss']}, {row['size']}, {row['updates']:,} updates": row["lr"] for row in rows}
    triplets_gain = any(each.is_more for each in larger)
    return {
        "verdict": verdict([above.is_more, not triplets_gain]),
        "rows": rows,
        "first": first,
        "best": best,
        "above": above,
        "as_many": _gap(as_many[0], best) if as_many else None,
        "larger": larger,
        "triplets_gain": triplets_gain,
        "effort": _effort(ap, best),
        "search": rate_search(chosen, _LRS),
    }


def _mean(row: Results) -> float:
    return mean_and_spread(row["values"]["mAP"])[0]


def _gap(one: Results, other: Results) -> Gap:
    return gap(one["values"]["mAP"], other["values"]["mAP"])


def _effort(ap: list[Any], best: Results) -> dict[str, Any]:
    """Return whether the paper's claims on effort hold, where AP_Q is better than the best triplets."""
    better = sorted((row for row in ap if _gap(row, best).is_more), key=lambda row: row["backwards"])
    row = better[0] if better else max(ap, key=_mean)
    claims = [
        {
            "text": text,
            "ours": _format_number(row[key]),
            "theirs": _format_number(best[key]),
            "holds": row[key] < best[key] and row[key] <= most * best[key],
        }
        for text, key, most in _EFFORT
    ]
    return {"row": row, "gap": _gap(row, best), "is_better": bool(better), "claims": claims}


def _format_number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.1f}"


def larger_batches(rows: list[Any]) -> list[Gap]:
    """Return the difference of the largest batch and the smallest, at each number of images."""
    gaps = []
    for images in sorted({row["backwards"] for row in rows}):
        same = sorted((row for row in rows if row["backwards"] == images), key=lambda row: row["size"])
        if same[0]["size"] < same[-1]["size"]:
            gaps.append(_gap(same[-1], same[0]))
    return gaps


STUDY = Study(
    name="apq-triplet",
    paper="AP_Q",
    shows="Table 1",
    title="AP_Q against triplets with hard negatives, all else being equal",
    minutes=22,
    measure=measure,
    draw=draw,
    values=values,
    takes=("data", "seeds"),
)
