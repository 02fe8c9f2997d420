"""What a run's folder says of the run, beside its checkpoints: settings, images, versions, results."""

import json
import os
import platform
import shlex
import subprocess
import sys
import warnings
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from frontrank.data.image_check import write_report
from frontrank.errors import FrontrankWarning, InputError
from frontrank.models.weights import WORDS
from frontrank.settings import Config, as_yaml, read_config, read_recipe
from frontrank.training import distributed
from frontrank.training.checkpoints import atomic_write
from frontrank.training.loop import Run, Standing

_PACKAGES = ("frontrank", "torch", "torchvision", "timm", "numpy", "pillow", "pytorch-metric-learning")


def require_new(folder: Path) -> None:
    """Refuse a folder that has something in it already."""
    if folder.is_file():
        raise InputError(f"--out {folder} is a file; choose another name")
    if folder.is_dir() and any(not name.startswith(".") for name in os.listdir(folder)):
        what = "holds a run" if (folder / "config.yaml").exists() else "is not empty"
        remedy = f"go on with --resume {folder}, or " if (folder / "config.yaml").exists() else ""
        raise InputError(f"--out {folder} {what}; {remedy}choose another name")


def write_beginning(run: Run) -> None:
    """Write what a run is, before it begins; its settings first, as a folder with them is a run that can go on."""
    make_folder(run.folder)
    write_config(run.folder, run.config)
    try:
        run.images.readable().save(run.folder / "images.csv")
    except InputError:
        (run.folder / "config.yaml").unlink()  # no run, then
        raise
    if run.images.broken:
        report = write_report(run.folder / "broken.csv", run.images.broken)
        note = f"{run.images.note()}; left out, and listed in {report}"
        warnings.warn(note, FrontrankWarning, stacklevel=2)
    write_facts(run.folder, _facts(run))


def write_resumption(run: Run) -> None:
    """Write that a run goes on, with the settings it goes on with."""
    write_config(run.folder, run.config)
    add_resumption(run.folder, _facts(run))


def write_end(run: Run, standing: Standing) -> None:
    """Write how it went."""
    found = {"metric": run.config.metric, "steps": standing.step, "before": standing.before, "best": standing.best}
    write_facts(run.folder, read_facts(run.folder, _facts(run)) | found | {"best_step": standing.best_step})


def make_folder(folder: Path) -> None:
    """Make the folder of a run, with those above it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {folder} cannot be written to ({error.strerror}); choose another folder") from error


def write_config(folder: Path, config: Any) -> None:
    """The settings as a recipe, with whole paths: a run may go on from another folder."""
    config = replace(config, data=replace(config.data, path=str(Path(config.data.path).resolve())))
    if config.model.weights not in WORDS and Path(config.model.weights).exists():
        config = replace(config, model=replace(config.model, weights=str(Path(config.model.weights).resolve())))
    atomic_write(folder / "config.yaml", as_yaml(config).encode())


def resumed_config(
    folder: Path, overrides: Mapping[str, str], kind: type[Config], changeable: Collection[str]
) -> Config:
    """The settings that the run of a folder goes on with; of them only some can change."""
    if not (folder / "config.yaml").is_file():
        raise InputError(f"--resume {folder} holds no run (there is no config.yaml); give the folder of --out")
    for name in overrides:
        if name not in changeable:
            raise InputError(
                f"--{name} cannot change in a run that goes on; leave it out, or start a new run with --out"
            )
    recipe = read_recipe(folder / "config.yaml", kind)
    unit, other = ("iterations", "epochs") if recipe.get("iterations") else ("epochs", "iterations")
    if other in overrides:  # milestones are counted in the same unit
        raise InputError(f"--{other} cannot be given to a run that counts {unit}; give --{unit}")
    return read_config(recipe, overrides, kind)


def read_facts(folder: Path, otherwise: dict[str, Any]) -> dict[str, Any]:
    """What the run.json of a folder says, or what it should."""
    with suppress(OSError, ValueError):
        facts = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        if isinstance(facts, dict):
            return facts
    return otherwise


def write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Make them the run.json of a folder."""
    atomic_write(folder / "run.json", (json.dumps(facts, indent=1, ensure_ascii=False) + "\n").encode())


def add_resumption(folder: Path, facts: dict[str, Any]) -> None:
    """Add to run.json that the run goes on."""
    said = read_facts(folder, facts)
    write_facts(folder, {**said, "resumed": [*said.get("resumed", []), facts]})


def run_facts(device: object, seed: int) -> dict[str, Any]:
    """What is needed to make a run again, beside its settings and its images."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "command": shlex.join(sys.argv),
        "commit": _commit(),
        "versions": versions,
        "machine": platform.platform(),
        "device": str(device),
        "processes": distributed.world_size(),
        "seed": seed,
    }


def _facts(run: Run) -> dict[str, Any]:
    return {**run_facts(run.device, run.config.seed), "broken_images": len(run.images.broken)}


def _commit() -> str | None:
    """The commit of the package's own checkout, if it has one."""
    with suppress(OSError, subprocess.SubprocessError):
        where = Path(__file__).parent
        known = subprocess.run(
            ["git", "ls-files", "--error-unmatch", __file__], cwd=where, capture_output=True, timeout=5
        )
        said = subprocess.run(["git", "rev-parse", "HEAD"], cwd=where, capture_output=True, text=True, timeout=5)
        return said.stdout.strip() or None if known.returncode == 0 else None
    return None
