"""Fit a ranking head to embeddings that exist already, of any model, with their labels: a linear map or a small network
that puts the right rows first. No images are needed, and no GPU. Held-out classes choose its settings, and show how
rows of classes that it has not seen rank before and after.

files: as for frontrank evaluate (embeddings, labels)

examples:
  frontrank adapt train.npz --out adapter.safetensors
  frontrank adapt train.npy --labels labels.txt --out adapter.safetensors
  frontrank adapt train.npz --dims 16,8,4 --out adapter.safetensors
  frontrank adapt train.npz --loss SmoothAP --out adapter.safetensors
  frontrank adapt train.npz --hidden 64 --out adapter.safetensors
  frontrank evaluate test.npz --adapter adapter.safetensors
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import frontrank as fr
from frontrank.checks import format_count, require_extra
from frontrank.cli.inputs import add_labels, check_output, number_type, read_rows, say
from frontrank.errors import InputError
from frontrank.losses import registry
from frontrank.settings import LossConfig
from frontrank.tables import Table

if TYPE_CHECKING:
    from frontrank.retrieval.adapter import Trial


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    whole, positive = number_type(int, at_least=1), number_type(float, above=0)
    parser.usage = "frontrank adapt EMBEDDINGS [--labels LABELS] --out FILE [options]"
    parser.add_argument("embeddings", metavar="EMBEDDINGS", help=".npy, .npz, .parquet or .safetensors, FILE:NAME")
    parser.add_argument("--labels", metavar="LABELS", help="a label per row, if the file has none")
    parser.add_argument("--out", metavar="FILE", required=True, help="the adapter, .safetensors")
    parser.add_argument("--onnx", metavar="FILE", help="write it as .onnx, too")
    parser.add_argument("--force", action="store_true", help="let --out and --onnx replace files")
    parser.add_argument("--dim", metavar="N", type=whole, help="dimensions of the result; at most 256 by default")
    parser.add_argument("--dims", metavar="LIST", type=_dims, help="nested dimensions, each useful alone: 256,128,64")
    parser.add_argument("--hidden", metavar="N", type=whole, help="units of a small network; a linear map by default")
    parser.add_argument("--loss", metavar="NAME", default="PNP", help="PNP by default; as for frontrank train")
    parser.add_argument(
        "--power", metavar="P", type=number_type(float, at_least=0, at_most=1), help="chosen by default"
    )
    parser.add_argument("--lr", metavar="R", type=positive, help="learning rate; chosen by default")
    parser.add_argument("--temperature", metavar="T", type=positive, help="of the loss; chosen by default")
    steps = number_type(int, at_least=0)
    parser.add_argument("--steps", metavar="N", type=steps, default=300, help="of training; 300 by default")
    batch = number_type(int, at_least=2)
    parser.add_argument("--batch-size", metavar="N", type=batch, default=448, help="rows in a step; 448 by default")
    share = number_type(float, at_least=0, at_most=0.9)
    parser.add_argument(
        "--held-out", metavar="S", type=share, default=0.2, help="share of classes; 0: none; 0.2 by default"
    )
    parser.add_argument("--seed", metavar="N", type=number_type(int, at_least=0), default=0, help="0 by default")
    parser.add_argument("--table", choices=("text", "markdown", "latex"), default="text", help="format of tables")
    parser.add_argument("--quiet", action="store_true", help="print nothing but tables and errors")


def _dims(text: str) -> tuple[int, ...]:
    return tuple(number_type(int, at_least=1)(part) for part in text.split(","))


def run(options: argparse.Namespace) -> None:
    """Fit, measure, save."""
    check_output("--out", Path(options.out), [".safetensors"], options.force)
    if options.onnx is not None:
        check_output("--onnx", Path(options.onnx), [".onnx"], options.force)
    require_extra(["safetensors"], "train", "saving an adapter")
    if options.onnx is not None:
        require_extra(["onnx", "onnxruntime"], "export", "--onnx")
    rows = add_labels(read_rows(options.embeddings), options.labels, "--labels")
    if rows.has_sets:
        raise InputError(f"{rows.source} has rows with several labels, and an adapter needs one per row; give one each")
    labels = rows.labels
    say(options.quiet, f"read {rows.describe()}")
    names = ("dim", "dims", "loss", "power", "lr", "temperature", "steps", "batch_size", "held_out", "seed")
    settings: dict[str, Any] = {name: getattr(options, name) for name in names}
    if (loss := LossConfig(options.loss)).name.startswith(registry.PEERS):
        settings["loss"] = _peer_loss(loss)
    progress = False if options.quiet else None
    with rows.name_in_errors():
        adapter = fr.Adapter.fit(rows.embeddings, labels, hidden=options.hidden or 0, progress=progress, **settings)
    print(_tables(adapter, rows.embeddings, labels, options.table), flush=True)
    adapter.save(options.out, overwrite=options.force)
    say(options.quiet, f"\nwrote {options.out}: {adapter}")
    if options.onnx is not None:
        adapter.export_onnx(options.onnx, overwrite=options.force)
        say(options.quiet, f"wrote {options.onnx}")


def _peer_loss(config: LossConfig) -> Any:
    """Return a loss of pytorch-metric-learning; an adapter fits no weights per class beside its own."""
    from frontrank.training.run import build_loss

    loss = build_loss(config, classes=2, dim=2)
    if list(loss.parameters()):
        raise InputError(
            f"--loss {config.name} learns weights per class, which an adapter does not have; use another loss"
        )
    return loss


def _describe_trial(trial: Trial) -> str:
    text = f"power {trial.power:g}, {format_count(trial.steps, 'step')}"
    if trial.steps:
        text += f", learning rate {trial.lr:g}"
        text += "" if trial.temperature is None else f", temperature {trial.temperature:g}"
    return text


def _tables(adapter: fr.Adapter, embeddings: Any, labels: Any, form: Any) -> str:
    """Return held-out classes before and after, by dimension if there are several, and what was chosen."""
    import numpy as np

    trial, chosen = adapter.trial, adapter.chosen
    assert chosen is not None
    if adapter.held_out_rows is None or trial is None:
        return f"no classes are held out, so nothing was chosen and nothing is measured: {_describe_trial(chosen)}"
    held = np.flatnonzero(adapter.held_out_rows)
    before, of_held = embeddings[held], labels[held]
    metrics = ("R@1", "R@10", "mAP")
    first = fr.evaluate(before, of_held, metrics=metrics, name="before", progress=False)
    after = fr.evaluate(trial.apply(before), of_held, metrics=metrics, name="after", progress=False)
    best = "the embeddings as they are: nothing ranked better" if chosen.start == "input" else _describe_trial(chosen)
    classes = format_count(len(set(of_held.tolist())), "held-out class", "held-out classes")
    text = f"{format_count(len(held), 'row')} of {classes}; chosen on them among "
    parts = [
        f"{text}{len(adapter.trials)} ways: {best}",
        fr.compare(first, after, names=("before", "after")).table(form),
    ]
    if adapter.dims is not None and chosen.start != "input":
        lines = []
        for dim in sorted(adapter.dims, reverse=True):
            report = fr.evaluate(trial.truncate(dim).apply(before), of_held, metrics=metrics, progress=False)
            lines.append([str(dim), *(f"{100 * report[name]:.2f}" for name in metrics), f"{4 * dim:,}", f"{dim:,}"])
        header = ["dimensions", *metrics, "bytes per row, float32", "int8"]
        parts.append(Table(header, lines, "r" * len(header)).render(form))
    return "\n\n".join(parts)
