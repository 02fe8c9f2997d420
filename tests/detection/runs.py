"""Small runs for tests: scenes of coloured shapes in the layout of Pascal VOC, and a tiny detector."""

import numpy as np
from PIL import Image

from frontrank.detection.settings import ClassifierConfig, DetectConfig, DetectorConfig, SceneConfig
from frontrank.settings import OptimizerConfig
from tests.detection.scenes import write_voc
from tests.training import runs

CLASSES = ("blue", "green", "red")
_COLOURS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (50, 60, 220)}

SMALL = DetectConfig(
    data=SceneConfig(short_side=48, long_side=64, workers=0),
    model=DetectorConfig(
        backbone="small", weights="none", channels=16, head_dim=16, anchor_scale=4.0, proposals=40, proposals_test=30,
        samples=16,
    ),
    loss=ClassifierConfig(lam=0.5, memory=2, warmup=1),
    optimizer=OptimizerConfig("sgd", lr=0.01, head_lr=1.0, weight_decay=1e-4, schedule="constant", gamma=0.1, warmup=2),
    batch=4,
    epochs=2,
    checkpoint_every=2,
    log_every=1,
    device="cpu",
)  # fmt: skip


def draw_scenes(folder, count=12, seed=0):
    """Pictures of 64 x 48 px with up to three squares each, the first without any; as a folder in VOC's layout."""
    rng, pictures, objects = np.random.default_rng(seed), {}, {}
    for number in range(count):
        name = f"{number:04d}"
        pictures[name] = rng.integers(100, 140, (48, 64, 3)).astype(np.uint8)
        objects[name] = []
        for place in range(0 if number == 0 else int(rng.integers(1, 4))):
            label = CLASSES[int(rng.integers(3))]
            side, left, top = int(rng.integers(12, 18)), place * 20 + 1, int(rng.integers(1, 28))
            pictures[name][top : top + side, left : left + side] = _COLOURS[label]
            objects[name].append((label, (left + 1, top + 1, left + side, top + side), 0))
    root = write_voc(folder, objects, {"trainval": objects, "test": objects}, (64, 48))
    for name, pixels in pictures.items():
        Image.fromarray(pixels).save(root / "JPEGImages" / f"{name}.jpg", quality=95)
    return str(root)


def config_of(path, **groups):
    """The small settings with some changed, by group: loss={"lam": 1.0}."""
    return runs.config_of(path, SMALL, **groups)
