"""Hostile files for each reader: each is read, or refused by one line, within a time; nothing else is raised."""

import argparse
import importlib
import json
import multiprocessing
import pickle
import random
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from safetensors.torch import save_file

import frontrank as fr
from attacks.sample import Row, Sample
from frontrank.data import read_embeddings, read_labels, read_table
from frontrank.data.ground_truth import read_ground_truth
from frontrank.detection import Detector, DetectorSettings
from frontrank.errors import FrontrankError
from frontrank.models import storage
from frontrank.retrieval.journal import Journal, write_journal
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
_VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    10**30,
    "",
    "x",
    "x" * 100_000,
    "hf-hub:a/b",
    [],
    [[1]],
    [1],
    {},
    {"a": 1},
]
_OPTIONS = (
    "act_layer",
    "norm_layer",
    "block",
    "layers",
    "channels",
    "stem_width",
    "block_args",
    "output_stride",
    "new",
)
_JSON = [b"{}", b"[]", b"5", b"null", b"x", b"[[1]]", b"[" * 100_000, b"9" * 5_000, b'{"dim":0,"number":1}', b'["0"]']

Craft = Callable[[Path, random.Random], None]  # changes what a reader checks least, and makes the checksums right
Reader = tuple[list[Path], Callable[[Path], object], list[bytes], Craft | None]


def _read_index(path: Path) -> None:
    with fr.Index.load(str(path)) as index:
        index.search(np.ones((1, index.settings.dim)), 5)
        list(index.items(limit=50))


def _read_labels(path: Path) -> object:
    return read_labels(str(path), None, 8)


def _read_published(path: Path) -> object:
    return fr.Embedder("test_resnet", weights=path)


def _craft_model(folder: Path, rng: random.Random) -> None:
    file = folder / "config.json"
    content = json.loads(file.read_text())
    settings, name = content["settings"], rng.choice(sorted(content["settings"]))
    settings[name] = {rng.choice(_OPTIONS): rng.choice(_VALUES)} if name == "backbone_options" else rng.choice(_VALUES)
    content["fingerprint"] = storage.fingerprint(settings, storage.read_safetensors(folder / "model.safetensors"))
    file.write_text(json.dumps(content))


def _craft_published(folder: Path, rng: random.Random) -> None:
    file = folder / "config.json"
    content = json.loads(file.read_text())
    inner = rng.choice((content, content["pretrained_cfg"], content["pretrained_cfg"]))
    inner[rng.choice(sorted(inner))] = rng.choice([*_VALUES, [3, 10**6, 10**6], 1e20])
    file.write_text(json.dumps(content))


def _craft_index(folder: Path, rng: random.Random) -> None:
    with closing(Journal(folder / "journal")) as file:
        records = list(file.read())
    place = rng.randrange(len(records) + 1)
    kind, payload = records[place] if place < len(records) else (3, b"")
    start = payload[:16] if kind == 2 else b""  # rows and their checksum
    new = rng.choice(_JSON)
    if kind == 2 and rng.random() < 0.7:
        items = json.loads(payload[16:])
        items[rng.randrange(len(items))][rng.randrange(5)] = rng.choice(_VALUES)
        new = json.dumps(items[rng.randrange(2) :]).encode()
    records[place : place + 1] = [(kind, start + new)]
    write_journal(folder / "journal", records)


def _craft_safetensors(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    inner = header[rng.choice(sorted(header))]
    name = rng.choice(sorted(inner))
    if name == "settings":
        settings = json.loads(inner[name])
        settings[rng.choice(sorted(settings))] = rng.choice(_VALUES)
        inner[name] = json.dumps(settings)
    else:
        inner[name] = rng.choice(_VALUES if "shape" in inner else ["", "x", "-1", "nan", "1e400", "[" * 100_000])
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])


def _write_good_files(work: Path) -> None:
    """Write a file of each kind that is not in the sample."""
    vectors, labels = np.eye(8, dtype=np.float32), np.arange(8)
    np.savez(work / "good.npz", embeddings=vectors, labels=labels)
    np.save(work / "good.npy", vectors)
    save_file({"embeddings": torch.eye(8), "labels": torch.arange(8)}, work / "good.safetensors")
    (work / "good.txt").write_text("".join(f"{label}\n" for label in labels))
    (work / "good.json").write_text(json.dumps(labels.tolist()))
    (work / "good.csv").write_text("path,label,box\n" + "".join(f"{row}.jpg,cat,0 0 1 1\n" for row in range(20)))
    columns = {"path": [f"{row}.jpg" for row in range(20)], "label": ["cat"] * 20}
    arrow, parquet = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.parquet"))
    parquet.write_table(arrow.table(columns), work / "good.parquet")
    (work / "good.yaml").write_text("epochs: 3\nloss:\n  name: PNP\n  alpha: 4.0\nbatches: {size: 8}\n")
    truth = {"gnd": [{"easy": [0], "hard": [1], "junk": [2], "bbx": [0, 0, 1, 1]}], "imlist": ["a", "b", "c"]}
    (work / "good.pkl").write_bytes(pickle.dumps({**truth, "qimlist": ["q"]}))
    rows = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
    fr.Whitening.fit(rows).save(work / "whitening.safetensors")
    fr.Adapter.fit(rows, np.arange(64) % 8, steps=2, held_out=0, progress=False).save(work / "adapter.safetensors")
    Detector(DetectorSettings(("a", "b"), "small", channels=16, head_dim=16)).save(work / "detector")
    (work / "published").mkdir()
    save_file(timm.create_model("test_resnet", num_classes=0).state_dict(), work / "published" / "model.safetensors")
    images = {
        "input_size": [3, 64, 64],
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
        "interpolation": "bicubic",
        "crop_pct": 0.9,
    }
    content = {"architecture": "test_resnet", "pretrained_cfg": images}
    (work / "published" / "config.json").write_text(json.dumps(content))


def attack(sample: Sample, options: argparse.Namespace) -> list[Row]:
    """Give each reader files that are damaged at random, and some that were written to do harm."""
    work = sample.work / "readers"
    work.mkdir(exist_ok=True)
    _write_good_files(work)

    def files(*kinds: str) -> list[Path]:
        return [work / f"good.{kind}" for kind in kinds]

    readers: dict[str, Reader] = {
        "model folder": ([sample.model], fr.Embedder.load, TEXTS, _craft_model),
        "detector": ([work / "detector"], Detector.load, TEXTS, _craft_model),
        "folder in timm's format": ([work / "published"], _read_published, TEXTS, _craft_published),
        "index": ([sample.index], _read_index, TEXTS, _craft_index),
        "recipe": (files("yaml"), lambda path: read_config(read_recipe(path)), TEXTS, None),
        "table": (files("csv", "parquet"), read_table, TEXTS, None),
        "embeddings": (files("npz", "npy", "safetensors"), read_embeddings, TEXTS, None),
        "labels": (files("txt", "json", "npz"), _read_labels, TEXTS, None),
        "adapter": ([work / "adapter.safetensors"], fr.Adapter.load, TEXTS, _craft_safetensors),
        "whitening": ([work / "whitening.safetensors"], fr.Whitening.load, TEXTS, _craft_safetensors),
        "ground truth": (files("pkl"), read_ground_truth, [*_PICKLES, *TEXTS], None),
    }
    rows: list[Row] = []
    for name, (good, read, texts, craft) in readers.items():
        if options.readers and name not in options.readers.split(","):
            continue
        rng, faults, counts, slowest = random.Random(options.seed), list[str](), {"read": 0, "refused": 0}, 0.0
        faults += [
            f"{path.name} is refused: {answer}" for path in good if (answer := _read_apart(read, path)) != "read"
        ]
        for number in range(options.files):
            path = _hostile_copy(good[number % len(good)], work / "hostile", texts, craft, number, rng)
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
        print(*rows[-1], file=sys.stderr, flush=True)  # the whole takes minutes
    return rows


def _hostile_copy(
    good: Path, target: Path, texts: list[bytes], craft: Craft | None, number: int, rng: random.Random
) -> Path:
    """Copy a good file or folder, with one file replaced or damaged, or with content whose checksums are right."""
    target = target.with_suffix(good.suffix)
    shutil.rmtree(target, ignore_errors=True)
    target.unlink(missing_ok=True)
    if good.is_dir():
        shutil.copytree(good, target)
        victim = rng.choice(sorted(path for path in target.rglob("*") if path.is_file() and path.suffix != ".md"))
    else:
        victim = Path(shutil.copy(good, target))
    if craft is not None and number % 2:
        craft(target, rng)
        return target
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
