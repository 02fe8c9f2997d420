"""Commands that are killed again and again, and go on: at the end the result is that of one that was left alone."""

import argparse
import csv
import importlib
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import frontrank as fr
from attacks.sample import Row, Sample
from frontrank.cli import main
from frontrank.comparison import tasks
from frontrank.data import read_embeddings

_STABLE = ("loss", "name", "seed", "lr", "R@1", "mAP@R")  # columns of results.csv that no clock changes
_TRAIN = "--model.backbone test_resnet --model.dim 8 --weights none --data.size 32 --data.workers 0"
_TRAIN += " --batches.size 8 --batches.per_class 4 --iterations 6 --evaluations 3"
TRAIN = _TRAIN.split()


def attack(sample: Sample, options: argparse.Namespace) -> list[Row]:
    """Kill index, train, compare and embed so many times each, at random moments."""
    photos, model, work = str(sample.photos), str(sample.model), sample.work / "kills"
    work.mkdir(exist_ok=True)
    for name in ("timm", "frontrank.comparison.runner", "frontrank.picture_index"):
        importlib.import_module(name)  # once, and not in each process: kills hit the work, not the imports

    def index(out: Path) -> list[str]:
        return ["index", model, photos, "--to", str(out), "--batch-size", "4", "--quiet"]

    def embed(out: Path) -> list[str]:
        if Path(f"{out}.npz").exists() and not Path(f"{out}.npz.parts").exists():
            return ["embed", "--help"]  # it was killed when all was done
        return ["embed", model, "--data", photos, "--out", f"{out}.npz", "--batch-size", "4", "--quiet"]

    def train(out: Path) -> list[str]:
        if (out / "config.yaml").exists():
            return ["train", "--resume", str(out), "--quiet"]
        return ["train", "--data", photos, "--out", str(out), *TRAIN, "--quiet"]

    def compare(out: Path) -> list[str]:
        words = ["--losses", "PNP-D_q,SmoothAP", "--lr", "1e-4", "--seeds", "1", "--quiet"]
        return ["compare", "--data", photos, "--out", str(out), *words, *TRAIN]

    commands = {"index": (index, _index_content), "embed": (embed, _embed_content)}
    commands |= {"train": (train, _train_content), "compare": (compare, _compare_content)}
    return [
        _attack_command(name, words, content, work, options)
        for name, (words, content) in commands.items()
        if name in options.commands.split(",")
    ]


def _index_content(out: Path) -> object:
    with fr.Index.load(str(out)) as index:
        items = sorted(index.items(), key=lambda item: item.id)
        return [(item.id, item.label) for item in items], index.vectors([item.id for item in items])


def _embed_content(out: Path) -> object:
    file = read_embeddings(f"{out}.npz")
    return None if file.labels is None else file.labels.tolist(), np.asarray(file.embeddings)


def _train_content(out: Path) -> object:
    return fr.Embedder.load(out / "model").fingerprint, np.zeros(0)


def _compare_content(out: Path) -> object:
    with (out / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{name: row[name] for name in row if name in _STABLE} for row in rows], np.zeros(0)


def _attack_command(
    name: str,
    words: Callable[[Path], list[str]],
    content: Callable[[Path], object],
    work: Path,
    options: argparse.Namespace,
) -> Row:
    rng, alone, killed = random.Random(options.seed), work / f"{name}-alone", work / f"{name}-killed"
    output, start = work / f"{name}.log", time.monotonic()
    if status := _run_apart(words(alone), output):
        return f"kills of frontrank {name}", 0, 1, f"ended with {status}: {_last_words(output)}"
    total = time.monotonic() - start
    faults, kills, finished = list[str](), 0, 0
    is_last = False
    while not faults and not is_last:
        start, is_last = time.monotonic(), kills >= options.kills or finished >= 2 * options.kills
        status = _run_apart(words(killed), output, None if is_last else rng.uniform(0.1, 1.1) * total)
        if status is None:
            kills += 1
        elif status:
            faults.append(f"ended with {status}: {_last_words(output)}")
        else:
            total = min(total, time.monotonic() - start)  # quicker than the first one: kill earlier
            finished += 1
            faults += _difference(content, alone, killed)
            killed = work / f"{name}-killed-{finished}"  # the next kills are of a new one
    note = f"{finished} finished, each like one left alone ({total:.1f} s)" if not faults else faults[0]
    return f"kills of frontrank {name}", kills, len(faults), note


def _run_apart(words: list[str], output: Path, seconds: float | None = None) -> int | None:
    """Run a command in a process group of its own; return its status, None if it was killed after so many seconds."""

    def work() -> None:
        os.setsid()
        vars(subprocess)["Popen"] = _ForkedTask
        with output.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.exit(main(words))

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(seconds)
    if process.exitcode is None and process.pid is not None:
        with suppress(ProcessLookupError):  # it has not yet begun its group
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
        return None
    return process.exitcode


class _ForkedTask(subprocess.Popen[bytes]):
    """A task of a comparison in a fork of this process: Python and torch would take longer to start than it does."""

    def __init__(self, command: list[str], pass_fds: tuple[int, ...] = (), **settings: Any) -> None:
        def work() -> None:
            for handle in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *pass_fds}:
                with suppress(OSError):
                    os.close(handle)
            threading.Thread(target=tasks._end_with_parent, daemon=True).start()
            os._exit(tasks.do_task(*command[-3:]))

        is_task = tasks.__name__ in command
        super().__init__(command, pass_fds=pass_fds, preexec_fn=work if is_task else None, **settings)


def _last_words(output: Path) -> str:
    return output.read_text(errors="replace").strip()[-200:]


def _difference(content: Callable[[Path], object], alone: Path, killed: Path) -> list[str]:
    first, second = content(alone), content(killed)
    if not isinstance(first, tuple) or not isinstance(second, tuple):
        return ["no content"]
    same = first[0] == second[0] and first[1].shape == second[1].shape and np.allclose(first[1], second[1], atol=1e-5)
    return [] if same else ["the result differs from that of one left alone"]
