"""Tables of scenes and detections, made here."""

from pathlib import Path

import numpy as np
from PIL import Image

from frontrank.detection.data import SceneTable
from frontrank.detection.evaluation import Detections

CLASSES = ("ant", "bee", "cat")


def table_of(scenes, classes=CLASSES, size=(100, 100), **more):
    """A table of scenes, each a list of (box, label, ignored)."""
    boxes = tuple(np.array([each[0] for each in scene], dtype=np.float32).reshape(-1, 4) for scene in scenes)
    labels = tuple(np.array([each[1] for each in scene], dtype=np.int64) for scene in scenes)
    ignored = tuple(np.array([each[2] for each in scene], dtype=bool) for scene in scenes)
    files = tuple(f"{number}.jpg" for number in range(len(scenes)))
    sizes = np.tile(np.array(size, dtype=np.int64), (len(scenes), 1))
    return SceneTable("made", tuple(classes), files, sizes, boxes, labels, ignored, **more)


def found_of(scenes):
    """Detections of scenes, each a list of (box, label, score)."""
    return [
        Detections(
            np.array([each[0] for each in scene], dtype=np.float64).reshape(-1, 4),
            np.array([each[2] for each in scene], dtype=np.float64),
            np.array([each[1] for each in scene], dtype=np.int64),
        )
        for scene in scenes
    ]


def random_scenes(rng, pictures=12, classes=3, ignored=0.2):
    """Objects that do not overlap, and detections of which none overlaps two of them by half; scores differ.

    Under these conditions the devkit of Pascal VOC and pycocotools agree.
    """
    scores = iter(rng.permutation(4000) / 4000)
    objects, found = [], []
    for _ in range(pictures):
        there, seen = [], []
        for cell in rng.permutation(9)[: rng.integers(0, 7)]:
            left, top = 33 * (cell % 3) + rng.integers(0, 6), 33 * (cell // 3) + rng.integers(0, 6)
            box = [int(left), int(top), int(left + rng.integers(14, 26)), int(top + rng.integers(14, 26))]
            label = int(rng.integers(1, classes + 1))
            there.append((box, label, bool(rng.random() < ignored)))
            for _ in range(rng.integers(0, 4)):
                own = label if rng.random() < 0.8 else int(rng.integers(1, classes + 1))
                seen.append(((np.array(box) + rng.integers(-5, 6, 4)).tolist(), own, float(next(scores))))
        for _ in range(rng.integers(0, 3)):
            left, top = rng.integers(0, 90, 2).tolist()
            label = int(rng.integers(1, classes + 1))
            seen.append(([left, top, left + 8, top + 8], label, float(next(scores))))
        objects.append(there)
        found.append(seen)
    return objects, found


def write_voc(home, pictures, lists, size=(40, 30)):
    """A folder in the layout of Pascal VOC.

    pictures: name -> objects, each (name of its class, (xmin, ymin, xmax, ymax), difficult)
    lists:    name of a list -> names
    """
    home = Path(home)
    for folder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (home / folder).mkdir(parents=True, exist_ok=True)
    for name, objects in pictures.items():
        Image.new("RGB", size, "teal").save(home / "JPEGImages" / f"{name}.jpg")
        (home / "Annotations" / f"{name}.xml").write_text(voc_xml(name, objects, size), encoding="utf-8")
    for name, of in lists.items():
        (home / "ImageSets" / "Main" / f"{name}.txt").write_text("".join(f"{each}\n" for each in of))
    return home


def voc_xml(name, objects, size):
    things = "".join(
        f"<object><name>{what}</name><difficult>{int(hard)}</difficult>"
        f"<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>"
        f"<bndbox><xmin>{box[0]}</xmin><ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox></object>\n"
        for what, box, hard in objects
    )
    sides = f"<size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>"
    return f"<annotation>\n<filename>{name}.jpg</filename>\n{sides}\n{things}</annotation>\n"
