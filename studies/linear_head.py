"""Losses on ranks, pairs and proxies train the same linear head on frozen features, each with a search of one size."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, pairwise, product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from frontrank.comparison.plan import parse_loss
from frontrank.data.samplers import BalancedBatches
from frontrank.data.splits import hold_out_classes
from frontrank.data.table import ImageTable
from frontrank.evaluation import evaluate
from frontrank.files import atomic_write
from frontrank.models import Embedder
from frontrank.progress import progress
from frontrank.retrieval import Whitening
from frontrank.settings import read_config
from frontrank.training.embedding import embed_table
from frontrank.training.run import build_loss
from studies.study import COLOURS, INK, Effort, Results, Study, panels, verdict
from studies.trained import emoji_folder, gap, mean_and_spread, split_images, work_folder

_METRICS = ("R@1", "mAP")
_LENGTHS, _QUICK_LENGTHS = (200, 600, 1800), (2, 4, 6)  # steps; settings and rates are chosen after _CHOICE, the second
_CHOICE = 1
_LRS = (1e-2, 3e-3, 3e-2)  # settings are compared with the first
_WIDER = (1e-3, 3e-4), (1e-1, 3e-1)  # tried in turn while the lowest or the highest rate is the best
_BATCH, _PER_CLASS, _DIM, _WARMUP = 112, 4, 256, 10
_POWER = 0.5  # of the whitening: the best of 0, 0.25 and 0.5 on held-out classes, before training
_HELD_OUT = 0.2
_NEAR = 1.0  # points, within which RaMBO's AP should be of Smooth-AP


class Candidate(NamedTuple):
    """A loss as --losses of frontrank compare takes it, and the rate of its proxies, as a multiple of the head's."""

    loss: str
    loss_lr: float = 1.0

    def __str__(self) -> str:
        return self.loss + (f", proxies x {self.loss_lr:g}" if self.loss_lr != 1 else "")


def _grid(text: str, *values: Sequence[float], loss_lrs: Sequence[float] = (1.0,)) -> tuple[Candidate, ...]:
    """Return a candidate for each combination of values, which fill the places {} of the text."""
    return tuple(Candidate(text.format(*each), lr) for lr in loss_lrs for each in product(*values))


_TEMPERATURES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
RANKS: dict[str, tuple[Candidate, ...]] = {  # six candidates for each loss
    "PNP-O": _grid("PNP-O(temperature={})", _TEMPERATURES),
    "PNP-I_u": _grid("PNP-I_u(temperature={})", _TEMPERATURES),
    "PNP-I_b": _grid("PNP-I_b(b={},temperature={})", (2, 4), (0.05, 0.1, 0.2)),
    "PNP-D_s": _grid("PNP-D_s(temperature={})", _TEMPERATURES),
    "PNP-D_q": _grid("PNP-D_q(alpha={},temperature={})", (1, 4), (0.05, 0.1, 0.2)),
    "SmoothAP": _grid("SmoothAP(temperature={})", _TEMPERATURES),
    "FastAP": _grid("FastAP(bins={})", (3, 5, 10, 15, 20, 30)),
    "QuantizedAP": _grid("QuantizedAP(bins={})", (5, 10, 15, 20, 30, 50)),
    "BlackboxRecall-log": _grid("BlackboxRecall-log(lam={},margin={})", (1, 4), (0.2, 0.4, 0.6)),
    "BlackboxRecall-loglog": _grid("BlackboxRecall-loglog(lam={},margin={})", (1, 4), (0.2, 0.4, 0.6)),
    "BlackboxAP": _grid("BlackboxAP(lam={},margin={})", (1, 4), (0.1, 0.2, 0.4)),
}
PEERS: dict[str, tuple[Candidate, ...]] = {  # of pytorch-metric-learning
    "contrastive": _grid("contrastive(pos_margin={},neg_margin={})", (0, 0.4), (0.6, 0.8, 1)),
    "triplet": _grid("triplet(margin={})", (0.05, 0.1, 0.2, 0.4, 0.8, 1.2)),
    "SupCon": _grid("pml.SupConLoss(temperature={})", _TEMPERATURES),
    "multi-similarity": _grid("multi-similarity(beta={},base={})", (5, 10, 25), (0.5, 0.7)),
    "ProxyAnchor": _grid("pml.ProxyAnchorLoss(alpha={})", (4, 8, 16), loss_lrs=(1, 10)),
    "NormalizedSoftmax": _grid("pml.NormalizedSoftmaxLoss(temperature={})", (0.1, 0.2, 0.4), loss_lrs=(1, 10)),
}
_QUICK = ("SmoothAP", "BlackboxRecall-log", "BlackboxRecall-loglog", "BlackboxAP", "ProxyAnchor")


class Rows(NamedTuple):
    """Features of length 1 [row, dimension], and classes of the rows, from 0 on."""

    features: Tensor
    classes: Tensor

    def measure(self, head: Tensor | None = None) -> dict[str, float]:
        features = self.features if head is None else self.features @ head.T
        report = evaluate(features, self.classes, metrics=_METRICS, progress=False)
        return {metric: report[metric] for metric in _METRICS}


def split_rows(table: ImageTable, features: Tensor, seed: int) -> dict[str, Rows]:
    """Return the rows of train, validation and test, whitened by the PCA of the first."""
    table = hold_out_classes(table, _HELD_OUT, seed)
    masks = {split: torch.from_numpy(table.splits == split) for split in ("train", "validation", "test")}
    rows = features[masks["train"]]
    pca = Whitening.fit(rows, _POWER, min(_DIM, rows.shape[1], len(rows) - 1), progress=False)
    codes = torch.from_numpy(table.codes())
    return {
        split: Rows(pca.apply(features[mask]), torch.unique(codes[mask], return_inverse=True)[1])
        for split, mask in masks.items()
    }


def train_head(rows: Rows, candidate: Candidate, lr: float, steps: int, seed: int, batch: int = _BATCH) -> Tensor:
    """Return a matrix that was the identity before training: Adam, whose rate rises and then falls as a cosine."""
    torch.manual_seed(seed)  # of the proxies
    head = torch.eye(rows.features.shape[1]).requires_grad_()
    config = read_config(None, parse_loss(candidate.loss))
    loss = build_loss(config.loss, int(rows.classes.max()) + 1, len(head))
    groups = [{"params": [head], "scale": 1.0}, {"params": list(loss.parameters()), "scale": candidate.loss_lr}]
    optimizer = torch.optim.Adam([group for group in groups if group["params"]], lr=lr, fused=True)
    for step, some in zip(range(steps), _batches(rows.classes, batch, seed), strict=False):
        factor = min(1.0, (step + 1) / _WARMUP) * (1 + math.cos(math.pi * step / steps)) / 2
        for group in optimizer.param_groups:
            group["lr"] = lr * group["scale"] * factor
        optimizer.zero_grad()
        loss(nn.functional.normalize(rows.features[some] @ head.T), rows.classes[some]).backward()
        optimizer.step()
    return head.detach()


def _batches(classes: Tensor, size: int, seed: int) -> Iterator[list[int]]:
    sampler = BalancedBatches(classes, size, _PER_CLASS, seed=seed)
    while True:
        yield from sampler


class Trials:
    """Runs of every loss, whose values are in files, so that a study that was stopped goes on."""

    def __init__(self, effort: Effort, table: ImageTable, features: Tensor) -> None:
        self._folder = work_folder(effort, "heads")
        self._table, self._features = table, features
        self._batch = 16 if effort.quick else _BATCH
        self._splits: dict[int, dict[str, Rows]] = {}

    def split(self, seed: int) -> dict[str, Rows]:
        """Return the rows of a seed; each holds out classes of its own."""
        if seed not in self._splits:
            self._splits[seed] = split_rows(self._table, self._features, seed)
        return self._splits[seed]

    def run(self, name: str, candidate: Candidate, lr: float, steps: int, seed: int, split: str) -> dict[str, float]:
        """Return the metrics of a split after training."""
        path = self._folder / f"{name}.json"
        values = json.loads(path.read_text()) if path.exists() else {}
        key = f"{candidate}, lr {lr:g}, {steps} steps, seed {seed}, {split}"
        if key not in values:
            rows = self.split(seed)
            values[key] = rows[split].measure(train_head(rows["train"], candidate, lr, steps, seed, self._batch))
            atomic_write(path, json.dumps(values, indent=1).encode(), overwrite=True)
        metrics: dict[str, float] = values[key]
        return metrics


def embed_images(effort: Effort, table: ImageTable) -> Tensor:
    """Return the features that the network of the demonstration has before training, 1,008 dimensions."""
    path = work_folder(effort, "features") / "features.pt"
    if not path.exists():
        network = Embedder(
            "tf_efficientnet_lite0",
            weights="package",
            pooling="flat",
            stage=4,
            dim=0,
            image_size=48,
            resize=48,
            interpolation="bilinear",
        )
        torch.save(torch.from_numpy(embed_table(network, table, workers=0, show=effort.show)), path)
    features: Tensor = torch.load(path, weights_only=True)
    return features


def measure(effort: Effort) -> dict[str, Any]:
    table = split_images(effort, emoji_folder(effort))
    features = embed_images(effort, table)
    trials = Trials(effort, table, features)
    names = [name for name in RANKS | PEERS if not effort.quick or name in _QUICK]
    lengths, seeds = (_QUICK_LENGTHS, 1) if effort.quick else (_LENGTHS, effort.seeds)
    lrs = _LRS[:1] if effort.quick else _LRS
    with progress("training heads", 2 * len(names), effort.show) as step:
        losses = [_search(name, trials, lengths[_CHOICE], lrs, effort.seed, step) for name in names]
        for loss, length in product(losses, lengths):
            values = [_train(loss, trials, length, effort.seed + place) for place in range(seeds)]
            loss["values"][str(length)] = {metric: [each[metric] for each in values] for metric in _METRICS}
            step(1 / len(lengths))
    rows, test = trials.split(effort.seed), torch.from_numpy(table.splits == "test")
    frozen = Rows(features[test], rows["test"].classes)
    return {
        "lengths": list(lengths),
        "lrs": list(lrs),
        "images": {split: len(own.classes) for split, own in rows.items()},
        "classes": {split: int(own.classes.max()) + 1 for split, own in rows.items()},
        "frozen": frozen.measure(),
        "start": rows["test"].measure(),
        "losses": losses,
    }


def _search(
    name: str, trials: Trials, steps: int, lrs: Sequence[float], seed: int, step: Callable[[float], None]
) -> dict[str, Any]:
    """Choose on held-out classes: the setting with the first rate, then the rate."""
    candidates = (RANKS | PEERS)[name]
    results = {(each, lrs[0]): trials.run(name, each, lrs[0], steps, seed, "validation") for each in candidates}
    best, _ = max(results, key=lambda pair: results[pair]["R@1"])
    lower, higher = (list(wider) if lrs[1:] else [] for wider in _WIDER)
    more = list(lrs[1:])
    while more:
        results |= {(best, rate): trials.run(name, best, rate, steps, seed, "validation") for rate in more}
        tried = {rate: own["R@1"] for (each, rate), own in results.items() if each == best}
        lr = max(tried, key=tried.__getitem__)
        wider = lower if lr == min(tried) else higher if lr == max(tried) else []
        more = [wider.pop(0)] if wider else []
    best, lr = max(results, key=lambda pair: results[pair]["R@1"])
    step(1)
    return {
        "name": name,
        "of_ranks": name in RANKS,
        "loss": best.loss,
        "loss_lr": best.loss_lr,
        "lr": lr,
        "held_out": results[best, lr]["R@1"],
        "search": [[str(each), rate, round(own["R@1"], 4)] for (each, rate), own in results.items()],
        "values": {},
    }


def _train(loss: Results, trials: Trials, steps: int, seed: int) -> dict[str, float]:
    return trials.run(loss["name"], Candidate(loss["loss"], loss["loss_lr"]), loss["lr"], steps, seed, "test")


def _values(results: Results) -> list[dict[str, list[float]]]:
    """Return R@1 over seeds by loss, for each length."""
    losses, lengths = results["losses"], map(str, results["lengths"])
    return [{each["name"]: each["values"][length]["R@1"] for each in losses} for length in lengths]


def draw(results: Results) -> dict[str, Any]:
    by_length = _values(results)
    names = sorted(by_length[_CHOICE], key=lambda name: mean_and_spread(by_length[_CHOICE][name])[0])
    of_ranks = {each["name"]: each["of_ranks"] for each in results["losses"]}
    figure, axes = panels(size=(7.2, 0.27 * len(names) + 1.2))
    axis = axes[0, 0]
    for place, name in enumerate(names):
        colour = COLOURS[0 if of_ranks[name] else 1]
        for own, mark, fill in zip(by_length, "<o>", ("none", colour, "none"), strict=True):
            mean, spread = (100 * each for each in mean_and_spread(own[name]))
            axis.errorbar(mean, place, xerr=spread, marker=mark, color=colour, markerfacecolor=fill, capsize=2)
    for colour, label in ((COLOURS[0], "on ranks"), (COLOURS[1], "on pairs or proxies")):
        axis.plot([], [], marker="o", linestyle="", color=colour, label=label)
    axis.axvline(100 * results["start"]["R@1"], color=INK, linestyle="--", linewidth=1.0, label="before training")
    axis.set_yticks(range(len(names)), names)
    axis.set(xlabel="R@1, %; < after {} steps, filled after {}, > after {}".format(*results["lengths"]))
    axis.legend()
    return {"losses": figure}


def stability(short: Mapping[str, list[float]], long: Mapping[str, list[float]]) -> dict[str, Any]:
    """Return how alike the orders at both lengths are: Spearman's rho, and the pairs that change sides."""
    from scipy.stats import spearmanr

    means = [[mean_and_spread(own[name])[0] for name in long] for own in (short, long)]
    pairs = {
        (one, other): (gap(short[one], short[other]), gap(long[one], long[other]))
        for one, other in combinations(long, 2)
    }
    both = {names: gaps for names, gaps in pairs.items() if all(each.counts for each in gaps)}
    return {
        "rho": float(spearmanr(*means).statistic) if all(len({*own}) > 1 for own in means) else 0.0,
        "pairs": len(pairs),
        "both": len(both),
        "reversed": [names for names, (before, after) in both.items() if before.is_more != after.is_more],
    }


def values(results: Results) -> dict[str, Any]:
    by_length = _values(results)
    main = by_length[_CHOICE]
    reference = max(results["losses"], key=lambda each: each["held_out"])["name"]
    rows = [
        {
            **each,
            "runs": [each["values"][str(length)] for length in results["lengths"]],
            "chosen": str(Candidate(each["loss"], each["loss_lr"])),
            "gap": None if each["name"] == reference else gap(main[each["name"]], main[reference]),
        }
        for each in sorted(results["losses"], key=lambda each: -mean_and_spread(main[each["name"]])[0])
    ]
    best = {
        of_ranks: max((row for row in rows if row["of_ranks"] == of_ranks), key=lambda row: row["held_out"])["name"]
        for of_ranks in (True, False)
    }
    ap = gap(main["BlackboxAP"], main["SmoothAP"])
    weightings = gap(main["BlackboxRecall-loglog"], main["BlackboxRecall-log"])
    kinds = gap(main[best[True]], main[best[False]])
    lrs = ",".join(f"{lr:g}" for lr in results["lrs"])
    return {
        "verdict": verdict([ap.points > -_NEAR, not weightings.is_less, not kinds.is_less]),
        "rows": rows,
        "reference": reference,
        "seeds": len(main[reference]),
        "ap": ap,
        "near": _NEAR,
        "weightings": weightings,
        "kinds": kinds,
        "best": best,
        "stability": [stability(*pair) for pair in pairwise(by_length)],
        "lrs": lrs.replace(",", ", "),
        "trials": sorted({len(row["search"]) for row in rows}),
        "ends": [row["name"] for row in rows if _is_end(row)],
    }


def _is_end(loss: Results) -> bool:
    """Whether the chosen rate is the lowest or the highest that was tried, so that another could be better."""
    rates = [rate for _, rate, _ in loss["search"]]
    return len({*rates}) > 1 and loss["lr"] in (min(rates), max(rates))


STUDY = Study(
    name="linear-head",
    paper="ours",
    shows="",
    title="A linear head on frozen features: losses on ranks, pairs and proxies, each with a search",
    minutes=45,
    measure=measure,
    draw=draw,
    values=values,
    takes=("data", "seeds"),
)
