"""Small runs for tests: scenes of coloured shapes in the layout of Pascal VOC, and a tiny detector."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from frontrank.detection.settings import (
    ClassifierConfig,
    DetectConfig,
    DetectorConfig,
    SceneConfig,
)
from frontrank.settings import OptimizerConfig

CLASSES = ("blue", "green", "red")
_COLOURS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (50, 60, 220)}

SMALL = DetectConfig(
    data=SceneConfig(short_side=48, long_side=64, workers=0),
    model=DetectorConfig(
        backbone="small", weights="none", channels=16, head_dim=16, anchor_scale=4.0, proposals=40, proposals_test=30,
        samples=16,
    ),
    loss=ClassifierConfig(lam=0.5, memory=2, warmup=1),
    optimizer=OptimizerConfig("sgd", lr=0.01, weight_decay=1e-4, gamma=0.1, warmup=2),
    batch=4,
    epochs=2,
    checkpoint_every=2,
    log_every=1,
    device="cpu",
)  # fmt: skip


def draw_scenes(folder, count=12, seed=0):
    """Pictures of 64 x 48 px with up to three squares each, the first without any; as a folder in VOC's layout."""
    rng, root = np.random.default_rng(seed), Path(folder)
    for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / name).mkdir(parents=True, exist_ok=True)
    names = [f"{number:04d}" for number in range(count)]
    for number, name in enumerate(names):
        picture = rng.integers(100, 140, (48, 64, 3)).astype(np.uint8)
        objects = ""
        for place in range(0 if number == 0 else int(rng.integers(1, 4))):
            label = CLASSES[int(rng.integers(3))]
            side, left, top = int(rng.integers(12, 18)), place * 20 + 1, int(rng.integers(1, 28))
            picture[top : top + side, left : left + side] = _COLOURS[label]
            objects += (
                f"<object><name>{label}</name><difficult>0</difficult><bndbox><xmin>{left + 1}</xmin>"
                f"<ymin>{top + 1}</ymin><xmax>{left + side}</xmax><ymax>{top + side}</ymax></bndbox></object>"
            )
        Image.fromarray(picture).save(root / "JPEGImages" / f"{name}.jpg", quality=95)
        (root / "Annotations" / f"{name}.xml").write_text(
            f"<annotation><filename>{name}.jpg</filename><size><width>64</width><height>48</height><depth>3</depth>"
            f"</size>{objects}</annotation>"
        )
    for split in ("trainval", "test"):
        (root / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(names) + "\n")
    return str(root)


def config_of(path, **groups):
    """The small settings with some changed, by group: loss={"lam": 1.0}."""
    changed = {
        name: replace(getattr(SMALL, name), **value) if isinstance(value, dict) else value
        for name, value in groups.items()
    }
    config = replace(SMALL, **changed)
    return replace(config, data=replace(config.data, path=path))
