"""Does a detector that learns by AP find more? Cross-entropy against RaMBO on scenes of emoji, all else equal.

    frontrank data emoji-scenes scenes
    python benchmarks/detection_losses.py scenes --out runs/detection-losses

First the learning rate, and the weight of the classifier's loss, of each way are chosen among the same ones, by AP50 on
a fifth of the training pictures, held out, with the first seed. Then each way trains on all training pictures with each
seed, and the test pictures are looked at once. Each run is `frontrank detect train` and `detect evaluate`, with one
thread, two at a time. What is done is not done again. Writes docs/results/detection.json.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from measure import machine, say

RATES, WEIGHTS = ("3e-4", "1e-3", "3e-3"), ("1", "4", "16")
AXES = {  # what differs from the recipe's loss, as of the paper's Table 8, and its memory
    "cross-entropy": {"loss.name": "cross-entropy"},
    "RaMBO": {},
    "RaMBO, no margin": {"loss.margin": "0"},
    "RaMBO, lambda 0.1": {"loss.lam": "0.01"},  # a tenth of the paper's: docs/detect.md
    "RaMBO, lambda 2.5": {"loss.lam": "0.25"},
    "RaMBO, no memory": {"loss.memory": "0"},
    "RaMBO, neither": {"loss.margin": "0", "loss.memory": "0"},
}
SEARCHED = ("cross-entropy", "RaMBO")  # the ablations take what is chosen for RaMBO
RESULT = Path(__file__).parents[1] / "docs" / "results" / "detection.json"


def command(*words: str) -> None:
    """Run the command with one thread; what it says goes to the log beside its folder."""
    one = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "frontrank", "detect", *words], env=one, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"frontrank detect {' '.join(words)}\n{done.stderr}")


def trained(scenes: Path, folder: Path, settings: dict[str, str]) -> None:
    """A run in its folder, from where it is."""
    if (folder / "model").is_dir():
        return
    if (folder / "checkpoints").is_dir():
        return command("train", "--resume", str(folder), "--quiet")
    words = [word for name, value in settings.items() for word in (f"--{name}", value)]
    fixed = [
        "--recipe",
        "detect-emoji-rambo",
        "--data",
        str(scenes),
        "--data.workers",
        "0",
        "--device",
        "cpu",
        "--quiet",
    ]
    command("train", *fixed, "--out", str(folder), *words)


def searched(scenes: Path, folder: Path, way: str, settings: dict[str, str]) -> float:
    """AP50 on held-out training pictures at the end of a run."""
    trained(scenes, folder, {**AXES[way], **settings, "data.validation": "0.2", "evaluations": "1", "seed": "0"})
    return float(json.loads((folder / "run.json").read_text())["best"])


def tested(scenes: Path, folder: Path, way: str, seed: int, settings: dict[str, str]) -> dict[str, Any]:
    """All numbers on the test pictures, and what the steps took."""
    trained(scenes, folder, {**AXES[way], **settings, "seed": str(seed)})
    found = folder / "test.json"
    if not found.exists():
        command("evaluate", str(folder), "--json", str(found), "--workers", "0", "--device", "cpu", "--quiet")
    values = json.loads(found.read_text())["metrics"]
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    steps = [line["seconds per step"] for line in lines if "seconds per step" in line]
    return {"values": values, "seconds per step": fmean(steps)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/detection-losses"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", help="steps of a run; those of the recipe otherwise")
    options = parser.parse_args()
    more = {"iterations": options.iterations} if options.iterations else {}
    choices = {f"lr {rate}, weight {weight}": (rate, weight) for rate in RATES for weight in WEIGHTS}
    settings = {name: {**more, "optimizer.lr": rate, "loss.weight": weight} for name, (rate, weight) in choices.items()}
    with ThreadPoolExecutor(2) as both:
        asked = {
            (way, name): both.submit(searched, options.scenes, options.out / f"{way}, {name}", way, settings[name])
            for name in choices
            for way in SEARCHED
        }
        held = {way: {name: asked[way, name].result() for name in choices} for way in SEARCHED}
        best = {way: max(held[way], key=held[way].__getitem__) for way in SEARCHED}
        chosen = {way: best.get(way, best["RaMBO"]) for way in AXES}
        for way in SEARCHED:
            say(f"{way}: AP50 on held-out pictures {held[way]}, so {best[way]}")
        runs = {
            (way, seed): both.submit(
                tested, options.scenes, options.out / f"{way}-{seed}", way, seed, settings[chosen[way]]
            )
            for seed in range(options.seeds)
            for way in AXES
        }
        ways = {way: [runs[way, seed].result() for seed in range(options.seeds)] for way in AXES}
    entries = [entry_of(way, settings[chosen[way]], found) for way, found in ways.items()]
    for entry in entries:
        values = entry["values"]["AP50"]
        say(f"{entry['name']:20} AP50 {100 * fmean(values):5.1f} ± {100 * (stdev(values) if values[1:] else 0):.1f}")
    asked_for = "python benchmarks/detection_losses.py scenes"
    kept = {"command": asked_for, "machine": machine(), "held_out": held, "chosen": chosen, "entries": entries}
    RESULT.write_text(json.dumps(kept, indent=1) + "\n")


def entry_of(way: str, settings: dict[str, str], found: list[dict[str, Any]]) -> dict[str, Any]:
    """What is kept of a way: a value of each metric per seed."""
    values = {name: [each["values"][name] for each in found] for name in found[0]["values"]}
    seconds = [each["seconds per step"] for each in found]
    return {"name": way, "settings": {**AXES[way], **settings}, "values": values, "seconds per step": seconds}


if __name__ == "__main__":
    main()
