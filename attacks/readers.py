"""Hostile files for each reader: each is read, or refused by one line, within a time; nothing else is raised."""

import argparse
import json
import multiprocessing
import pickle
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import frontrank as fr
from attacks.sample import Row, Sample
from frontrank.data import read_embeddings, read_table
from frontrank.data.ground_truth import read_ground_truth
from frontrank.errors import FrontrankError
from frontrank.settings import read_config, read_recipe

SLOWEST = 30.0  # seconds for one file
TEXTS: list[bytes] = [
    b"",
    b"\0" * 10_000,
    b"\xff\xfe" + "path,label\n".encode("utf-16-le"),
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"- " * 50_000,
    b"a: " * 1_000,
    b"x" * 20_000_000,
    b"\n" * 5_000_000,
    b"path,label\n" + b'"' * 100_000,
    b"path,label\n" + b"a.jpg,b\n" * 300_000,
    b",".join(b"c%d" % number for number in range(200_000)) + b"\n1\n",
    b"!!python/object/apply:os.system ['true']",
    b"&a [*a, *a]",
    b"{" + b"? " * 3_000,
    b"1e999999999: " + b"9" * 5_000,
    b"\xed\xa0\x80 \xf4\x90\x80\x80",
    b"null",
    b"NaN",
    b'{"format": "frontrank.embedder", "format_version": 1, "settings": {}, "fingerprint": ""}',
]


class _Call:
    """A pickle that would run a command."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os

        return os.system, ("touch PWNED",)


_PICKLES = [pickle.dumps(_Call()), b"cos\nsystem\n(S'true'\ntR."]


def _read_index(path: Path) -> None:
    with fr.Index.load(str(path)) as index:
        index.search(np.ones((1, index.settings.dim)), 5)
        list(index.items(limit=50))


def attack(sample: Sample, options: argparse.Namespace) -> list[Row]:
    """Give each reader files that are damaged at random, and some that were written to do harm."""
    work = sample.work / "readers"
    work.mkdir(exist_ok=True)
    np.savez(work / "good.npz", embeddings=np.eye(8, dtype=np.float32), labels=np.arange(8))
    np.save(work / "good.npy", np.eye(8, dtype=np.float32))
    (work / "good.csv").write_text("path,label,box\n" + "".join(f"{row}.jpg,cat,0 0 1 1\n" for row in range(20)))
    (work / "good.yaml").write_text("epochs: 3\nloss:\n  name: PNP\n  alpha: 4.0\nbatches: {size: 8}\n")
    truth = {"gnd": [{"easy": [0], "hard": [1], "junk": [2], "bbx": [0, 0, 1, 1]}], "imlist": ["a", "b", "c"]}
    (work / "good.pkl").write_bytes(pickle.dumps({**truth, "qimlist": ["q"]}))
    readers: dict[str, tuple[list[Path], Callable[[Path], object], list[bytes]]] = {
        "model folder": ([sample.model], fr.Embedder.load, TEXTS),
        "index": ([sample.index], _read_index, TEXTS),
        "recipe": ([work / "good.yaml"], lambda path: read_config(read_recipe(path)), TEXTS),
        "table": ([work / "good.csv"], read_table, TEXTS),
        "embeddings": ([work / "good.npz", work / "good.npy"], read_embeddings, TEXTS),
        "ground truth": (
            [work / "good.pkl"],
            read_ground_truth,
            [pickle.dumps(_Call()), b"cos\nsystem\n(S'true'\ntR.", *TEXTS],
        ),
    }
    rows: list[Row] = []
    for name, (good, read, texts) in readers.items():
        rng, faults, counts, slowest = random.Random(options.seed), list[str](), {"read": 0, "refused": 0}, 0.0
        faults += [
            f"{path.name} is refused: {answer}" for path in good if (answer := _read_apart(read, path)) != "read"
        ]
        for number in range(options.files):
            path = _hostile_copy(good[number % len(good)], work / "hostile", texts, number, rng)
            start = time.monotonic()
            answer = _read_apart(read, path)
            slowest = max(slowest, time.monotonic() - start)
            if answer in counts:
                counts[answer] += 1
            else:
                faults.append(f"{number}: {answer}")
        if Path("PWNED").exists():
            faults.append("a command was run")
        note = f"{counts['refused']} refused, {counts['read']} read; slowest {slowest:.1f} s {'; '.join(faults[:3])}"
        rows.append((name, options.files, len(faults), note))
    return rows


def _hostile_copy(good: Path, target: Path, texts: list[bytes], number: int, rng: random.Random) -> Path:
    """Copy a good file or folder, with one file replaced or damaged."""
    target = target.with_suffix(good.suffix)
    shutil.rmtree(target, ignore_errors=True)
    target.unlink(missing_ok=True)
    if good.is_dir():
        shutil.copytree(good, target)
        victim = rng.choice(sorted(path for path in target.rglob("*") if path.is_file() and path.suffix != ".md"))
    else:
        victim = Path(shutil.copy(good, target))
    if number < len(texts):
        victim.write_bytes(texts[number])
        return target
    data = bytearray(victim.read_bytes())
    way = rng.randrange(4)
    if way == 0:
        del data[rng.randrange(len(data) + 1) :]
    elif way == 1:
        for _ in range(rng.choice((1, 8, 64))):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
    elif way == 2:
        place = rng.randrange(len(data) + 1)
        data[place:place] = rng.choice((bytes(100_000), b"9" * 5_000, b"\xff" * 8, b"(" * 50_000))
    elif victim.suffix == ".json":
        content = json.loads(bytes(data))
        key = rng.choice(sorted(content))
        content[key] = rng.choice((None, -1, 10**400, "x" * 10**6, [[]] * 100, {"a": {}}))
        data = bytearray(json.dumps(content).encode())
    else:
        data = data[::-1]
    victim.write_bytes(data)
    return target


def _read_apart(read: Callable[[Path], object], path: Path) -> str:
    """Read in a process of its own: "read", "refused", or what went wrong."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def work() -> None:
        try:
            read(path)
            there.send("read")
        except FrontrankError as error:
            there.send("refused" if "\n" not in str(error) else "a message of several lines")
        except BaseException as error:
            there.send(f"{type(error).__name__}: {str(error)[:100]}")

    process = context.Process(target=work)
    process.start()
    there.close()
    try:
        return str(here.recv()) if here.poll(SLOWEST) else f"took more than {SLOWEST:g} s"
    except EOFError:
        return "the process ended"
    finally:
        process.kill()
        process.join()
        here.close()
