"""The packages of the extras of pyproject.toml, and those that a command needs."""

import re
import tomllib
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path

from frontrank.cli import parse
from frontrank.comparison.plan import DEFAULT_LOSSES, parse_loss, split_list
from frontrank.losses.registry import PEERS

EXTRAS: dict[str, list[str]] = tomllib.loads(
    (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
)["project"]["optional-dependencies"]

_NEEDED = {
    "demo": {"timm", "resvg_py", "scikit-learn", "pyyaml"},
    "train": {"timm", "pillow", "pyyaml", "safetensors"},
    "adapt": {"safetensors"},
    "compare": {"timm", "pillow", "jinja2"},
    "report": {"jinja2", "scikit-learn"},
    "embed": {"timm", "pillow"},
    "index": {"timm", "pillow", "faiss-cpu"},
    "search": {"timm", "pillow", "faiss-cpu"},
    "serve": {"fastapi", "uvicorn", "python-multipart", "timm", "pillow", "faiss-cpu"},
    "export": {"timm", "onnx", "onnxruntime", "onnxscript"},
    "detect": {"torchvision", "pycocotools", "pyyaml"},
    "data check": {"pillow"},
    "data emoji": {"pillow", "resvg_py"},
    "data emoji-scenes": {"pillow", "resvg_py"},
    "data glyphs": {"pillow", "fonttools"},
}


def packages(extras: Iterable[str]) -> set[str]:
    """The packages that these extras name, also through each other."""
    found = set()
    for extra in extras:
        for requirement in EXTRAS[extra]:
            name, inner = re.fullmatch(r"([\w.-]+)(?:\[([\w,]+)\])?.*", requirement).groups()
            found |= packages(inner.split(",")) if name == "frontrank" else {name}
    return found


def needed(words: list[str]) -> set[str]:
    """The packages that a command needs, beside torch and numpy; a comparison those of its losses, too."""
    command, options = parse(words)
    found = set(_NEEDED.get(" ".join(words[:2]) if command == "data" else command, ()))
    losses = _losses(options) if command == "compare" else [vars(options).get("loss.name") or ""]
    if any(name.startswith(PEERS) for name in losses):
        found.add("pytorch-metric-learning")
    return found


def _losses(options: Namespace) -> list[str]:
    names = options.losses or ("" if options.axis else DEFAULT_LOSSES)
    return [parse_loss(text)["loss.name"] for text in split_list(names)]
