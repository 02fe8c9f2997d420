"""Settings to objects, and a training run from its beginning to its end."""

import json
import os
import platform
import shlex
import subprocess
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from frontrank.data.images import write_report
from frontrank.data.published import PUBLISHED, detect_layout, read_published
from frontrank.data.samplers import AllClassesBatches, BalancedBatches, CategoryBatches, EpochBatches
from frontrank.data.table import ImageTable, read_folder, read_table
from frontrank.errors import FrontrankWarning, InputError
from frontrank.evaluation.measures import read_metrics
from frontrank.files import atomic_write
from frontrank.losses import registry
from frontrank.models import Embedder
from frontrank.models.weights import WORDS
from frontrank.samples.folder import TABLE as OWN_TABLE  # a folder that holds it is that table
from frontrank.samples.folder import unfinished
from frontrank.settings import (
    BatchConfig,
    Config,
    DataConfig,
    LossConfig,
    ModelConfig,
    TrainConfig,
    as_yaml,
    check_config,
    read_config,
    read_recipe,
)
from frontrank.training import distributed
from frontrank.training.loop import Run, Standing, check_run_images, split_images, steps_of
from frontrank.training.loop import train as train_run
from frontrank.training.optimizers import build_optimizer, check_optimizer
from frontrank.training.peer_losses import peer_loss

# ==== What a run's folder says of the run, beside its checkpoints: settings, images, versions, results.


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


# ==== The one place where a name in the settings becomes an object; and `train`, which does it all.


_BATCH = 112
_CHANGEABLE = (
    "epochs",
    "iterations",
    "patience",
    "checkpoint_every",
    "log_every",
    "device",
    "data.path",
    "data.workers",
)


def train(config: TrainConfig, out: str | os.PathLike[str], *, quiet: bool = False) -> Standing:
    """Train as the settings say, and leave everything in the folder `out`; gives how it went.

    The model is then `fr.Embedder.load(out + "/model")`.
    """
    folder = Path(out)
    require_new(folder)
    with processes(config.device) as device:
        run = build_run(config, folder, device, quiet=quiet)
        if distributed.is_main():
            write_beginning(run)
        distributed.barrier()
        return _trained(run)


def resume(out: str | os.PathLike[str], overrides: Mapping[str, str] | None = None, *, quiet: bool = False) -> Standing:
    """Go on with the run in `out` from its last checkpoint; of its settings only a few can change."""
    folder = Path(out)
    config = resumed_config(folder, overrides or {}, TrainConfig, _CHANGEABLE)
    with processes(config.device) as device:
        run = build_run(config, folder, device, quiet=quiet)
        if distributed.is_main():
            write_resumption(run)
        return _trained(run)


@contextmanager
def processes(device: str) -> Iterator[torch.device]:
    """Within, this process works with the others that torchrun started, if any, on the device it is given."""
    own = not torch.distributed.is_initialized()
    done = False
    try:
        yield distributed.start(build_device(device))
        done = True
    finally:
        if own:
            distributed.stop(together=done)


def build_run(
    config: TrainConfig, folder: Path, device: torch.device, *, quiet: bool = False, remember: bool = True
) -> Run:
    """All that a run works with; reads and checks the images, writes nothing to the folder.

    What takes long comes last: a misspelt name is found before a million images are decoded.
    """
    check_config(config)
    require_metric(config.metric)
    images = split_images(build_images(config.data), config)
    training = images.of("train")
    config = replace(config, batches=sized_batches(config.batches, training))
    sampler = build_sampler(config.batches, training, config.seed)
    check_optimizer(config.optimizer, steps_of(config, len(sampler)))
    build_loss(config.loss, 2, 2)
    if not quiet:
        say_fetching(config.model)
    torch.manual_seed(config.seed)  # the same first weights in every process
    model = build_model(config.model, config.data).to(device)
    frozen = model.settings.batch_norm == "frozen"
    config = replace(config, model=replace(config.model, batch_norm="frozen" if frozen else "train"))
    if config.channels_last:
        model = model.to(memory_format=torch.channels_last)
    show = None if distributed.is_main() and not quiet else False
    found = check_run_images(images, config, remember=remember, show=show)
    if found.broken:
        training = found.used.of("train")
        sampler = build_sampler(config.batches, training, config.seed)
    loss = build_loss(config.loss, len(set(training.labels)), model.dim).to(device)
    parts = model.backbone_parameters(), model.head_parameters(), list(loss.parameters())
    optimizer = build_optimizer(config.optimizer, *parts, undecayed=model.undecayed_names())
    return Run(config, folder, found, model, loss, sampler, optimizer, device, quiet)


def say_fetching(model: Any) -> None:  # ModelConfig, or that of a detector
    """Say that weights are fetched, where they may have to be."""
    if model.weights == "pretrained" and distributed.is_main():
        print(f"fetching pretrained weights of {model.backbone}, unless they are here already", file=sys.stderr)


def build_images(config: DataConfig) -> ImageTable:
    """The images a path stands for, by its layout."""
    if not config.path:
        raise InputError("there are no images; give --data, a folder of images by class, a table, or a data set's root")
    path = Path(config.path)
    if not os.path.exists(path):
        raise InputError(f"--data {path} is not there; give a folder of images, a table, or a data set's root")
    if command := unfinished(path.parent if path.name == OWN_TABLE else path):
        raise InputError(f"--data {path} is not finished yet; go on with it: {command}")
    layout = config.layout
    if layout == "auto" and path.is_dir():
        layout = detect_layout(path) or ("table" if (path / OWN_TABLE).is_file() else "folder")
    if layout == "folder":
        return read_folder(path)
    if layout in ("auto", "table"):
        return _read_table(path, guessed=config.layout == "auto" and path.is_dir())
    if layout in PUBLISHED:
        return read_published(layout, path, allow_partial=config.allow_partial)
    raise InputError(f"data.layout {layout!r} is not known{_nearest(layout, ['auto', 'folder', 'table', *PUBLISHED])}")


def _read_table(path: Path, guessed: bool) -> ImageTable:
    """A table, or the one that a folder of images holds, as those do that `frontrank data` builds.

    guessed: nobody said that the folder's table is meant
    """
    file = path / OWN_TABLE if path.is_dir() else path
    if path.is_dir() and not file.is_file():
        raise InputError(f"{path} is a folder without {OWN_TABLE}; give a table, or leave out data.layout")
    try:
        table = read_table(file)
    except InputError as error:
        if not guessed:
            raise
        raise InputError(f"{error}; or, if {file.name} is not about these images, move it away") from error
    return replace(table, name=file.parent.resolve().name) if file.name == OWN_TABLE else table


def build_sampler(config: BatchConfig, table: ImageTable, seed: int) -> EpochBatches:
    """The batches of training images."""
    if config.kind == "categories":
        per_class = config.per_class or None
        if not any(table.categories):
            raise InputError("batches.kind categories needs images with categories; use batches.kind balanced")
        return CategoryBatches(
            table.labels,
            table.categories,
            config.size,
            per_class,
            categories_per_batch=config.categories,
            batches_per_group=config.per_group,
            groups_per_epoch=config.groups or None,
            seed=seed,
        )
    if config.kind == "all-classes":
        return AllClassesBatches(table.labels, config.size, seed=seed)
    return BalancedBatches(table.labels, config.size, config.per_class, seed=seed)


def sized_batches(config: BatchConfig, table: ImageTable) -> BatchConfig:
    """The settings with a batch size, where that was left open."""
    if config.size:
        return config
    per_class, classes = config.per_class or 4, len(set(table.labels))
    fits = len(table) if config.kind == "all-classes" else classes * per_class
    return replace(config, size=min(_BATCH, fits) // per_class * per_class)


def build_model(config: ModelConfig, data: DataConfig) -> Embedder:
    """The network, with its first weights."""
    return Embedder(
        config.backbone,
        weights=None if config.weights == "none" else config.weights,
        pooling=config.pooling,
        stage=config.stage,
        dim=config.dim,
        batch_norm=config.batch_norm,
        layer_norm=config.layer_norm,
        dropout=config.dropout,
        image_size=data.size,
        resize=data.resize,
    )


def build_loss(config: LossConfig, classes: int = 0, dim: int = 0) -> nn.Module:
    """Return the loss of the settings.

    classes, dim: of the training images and the embeddings, for losses that learn a proxy per class

    >>> build_loss(LossConfig("SmoothAP", temperature=0.1))
    SmoothAP(metric=AveragePrecision(), relaxation=Sigmoid(temperature=0.1), include_query=False)
    """
    if not config.name.startswith(registry.PEERS):
        return registry.build(config.name, config.settings)
    registry.check_arguments(config.name, config.settings)
    options, miner = config.settings.get("options"), config.settings.get("miner")
    loss = peer_loss(config.name.removeprefix(registry.PEERS), options, miner=miner, classes=classes, dim=dim)
    loss.try_out(dim)
    return loss


def build_device(name: str) -> torch.device:
    """The device by name; "auto" takes the best there is. Each process of a machine has a GPU of its own."""
    if name in ("auto", "cuda") and torch.cuda.is_available():
        local, count = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if local >= count:
            raise InputError(
                f"process {local + 1} of this machine has no GPU of its own, there are {count}; start fewer"
            )
        return torch.device("cuda", local)
    if name == "auto":
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        said = str(error).splitlines()[0][:120]
        raise InputError(
            f"device {name!r} cannot be used ({said}); use auto, cpu, or a device of this machine"
        ) from error
    return device


def require_metric(name: str) -> None:
    """Refuse what is no metric, or one of which less is better."""
    read_metrics((name,))
    if name.startswith("dists@"):
        raise InputError(f"metric {name} cannot choose a checkpoint, as more of it is not better; use R@1 or mAP")


def _nearest(word: str, words: Any) -> str:
    near = get_close_matches(word, list(words), 1)
    return f"; did you mean {near[0]}?" if near else ""


def _trained(run: Run) -> Standing:
    standing = train_run(run)
    if distributed.is_main():
        write_end(run, standing)
    return standing


# ==== The model that a run began with, as what it learnt is measured against.


def frozen_model(config: TrainConfig) -> Embedder:
    """The first weights of a run, without a head that starts anew: a random projection would only blur the features.

    A saved model whose own head goes on is taken with it. Where the weights are random, they are those of the seed.
    """
    weights = config.model.weights
    with torch.random.fork_rng(devices=[]):
        if weights not in ("none", "pretrained", "package") and not Path(weights).is_file():
            torch.manual_seed(config.seed)
            model = build_model(config.model, config.data)
            if model.origin.startswith("backbone and head"):
                return model.eval()
        torch.manual_seed(config.seed)
        bare = replace(config.model, dim=0, layer_norm=False, dropout=0.0)
        return build_model(bare, config.data).eval()


def frozen_title(config: TrainConfig) -> str:
    """What to call it.

    >>> frozen_title(TrainConfig())
    'resnet50, not trained further'
    """
    random = config.model.weights == "none"
    return f"{config.model.backbone}{' with random weights' if random else ', not trained further'}"
