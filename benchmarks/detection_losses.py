"""Does a detector that learns by AP find more? Cross-entropy against RaMBO on scenes of emoji, all else equal.

    frontrank data emoji-scenes scenes
    python benchmarks/detection_losses.py scenes --out runs/detection-losses

First settings are chosen by AP50 on a fifth of the training pictures, held out, with the first seed: of cross-entropy
the learning rate and the weight of the classifier's loss, nine pairs; of RaMBO lambda and that weight, nine pairs with
the rate 1e-3, and then the other rates with the best pair. RaMBO's ablations take what is chosen for it. Then each way
trains on all training pictures with each seed, and the test pictures are looked at once. Each run is `frontrank detect
train` and `detect evaluate`, with one thread, two at a time. What is done is not done again, nor what
docs/results/detection.json holds with the same settings; --again runs one of these, to compare. Writes that file.
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

RATES, LAMS = ("1e-3", "3e-4", "3e-3"), ("0.05", "0.25", "1.25")
WEIGHTS = {"cross-entropy": ("1", "4", "16"), "RaMBO": ("4", "16", "64")}
FACTOR = 5  # of the ablations in lambda, as in the paper's Table 8
CROSS_ENTROPY = {"loss.name": "cross-entropy"}
RESULT = Path(__file__).parents[1] / "docs" / "results" / "detection.json"
Settings = dict[str, str]


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


def name_of(settings: Settings) -> str:
    """Name a trial by what is searched."""
    words = {"loss.lam": "lambda", "optimizer.lr": "lr", "loss.weight": "weight"}
    return ", ".join(f"{word} {settings[key]}" for key, word in words.items() if key in settings)


class Experiment:
    """The runs of an experiment, each in its folder, and what an earlier result file holds."""

    def __init__(self, scenes: Path, out: Path, iterations: str | None, done: bool = False) -> None:
        self.scenes, self.out, self.done = scenes, out, done
        self.more = {"iterations": iterations} if iterations else {}
        self.stored: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() and not iterations else {}
        self.held: dict[str, dict[str, float]] = {"cross-entropy": {}, "RaMBO": {}}

    def search(self, way: str, trials: list[Settings], pool: ThreadPoolExecutor) -> None:
        """Note AP50 on held-out training pictures at the end of each run."""
        known = self.stored.get("held_out", {}).get(way, {})
        wanted = {name_of(each): each for each in trials}
        futures = {
            name: pool.submit(self._held_out, way, each)
            for name, each in wanted.items()
            if name not in known and (not self.done or (self.out / f"{way}, {name}" / "model").is_dir())
        }
        for name in wanted:
            if name in known or name in futures:
                self.held[way][name] = known[name] if name in known else futures[name].result()

    def _held_out(self, way: str, settings: Settings) -> float:
        folder = self.out / f"{way}, {name_of(settings)}"
        trained(self.scenes, folder, {**settings, **self.more, **HELD_OUT})
        value = float(json.loads((folder / "run.json").read_text())["best"])
        say(f"{folder.name}: AP50 {100 * value:.1f} on held-out pictures")
        return value

    def best(self, way: str, trials: list[Settings]) -> Settings:
        """Return the settings that are best on held-out pictures."""
        return max(trials, key=lambda each: self.held[way].get(name_of(each), 0.0))

    def entry(self, way: str, settings: Settings, seeds: int) -> dict[str, Any]:
        """Return what an earlier result file holds of these settings, if it has enough seeds."""
        for each in self.stored.get("entries", ()):
            if (each["name"], each["settings"]) == (way, settings) and len(each["values"]["AP50"]) >= seeds:
                return dict(each)
        return {}

    def folder(self, way: str, seed: int, settings: Settings) -> Path:
        """Return the folder of a run whose detector is tested."""
        return self.out / f"test of {way}, {name_of(settings)}, seed {seed}"

    def tested(self, way: str, seed: int, settings: Settings) -> dict[str, Any]:
        """Return all numbers on the test pictures, and what the steps took."""
        folder = self.folder(way, seed, settings)
        trained(self.scenes, folder, {**settings, **self.more, "seed": str(seed)})
        found = folder / "test.json"
        if not found.exists():
            command("evaluate", str(folder), "--json", str(found), "--workers", "0", "--device", "cpu", "--quiet")
        values = json.loads(found.read_text())["metrics"]
        lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        steps = [line["seconds per step"] for line in lines if "seconds per step" in line]
        say(f"{folder.name}: AP50 {100 * values['AP50']:.1f}")
        return {"values": values, "seconds per step": fmean(steps)}


HELD_OUT = {"data.validation": "0.2", "evaluations": "1", "seed": "0"}


def ways_of(rambo: Settings) -> dict[str, Settings]:
    """Return RaMBO with the chosen settings, and its ablations, as of the paper's Table 8 and of its memory."""
    lam = float(rambo["loss.lam"])
    return {
        "RaMBO": rambo,
        "RaMBO, no margin": {**rambo, "loss.margin": "0"},
        "RaMBO, no memory": {**rambo, "loss.memory": "0"},
        "RaMBO, a fifth of lambda": {**rambo, "loss.lam": f"{lam / FACTOR:g}"},
        "RaMBO, 5 times lambda": {**rambo, "loss.lam": f"{lam * FACTOR:g}"},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", type=Path)
    parser.add_argument("--out", type=Path, default=Path("runs/detection-losses"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", help="steps of a run; those of the recipe otherwise")
    parser.add_argument("--again", action="store_true", help="run the first seed of cross-entropy too if it is stored")
    parser.add_argument("--done", action="store_true", help="run nothing: write the file from the runs that are done")
    options = parser.parse_args()
    experiment = Experiment(options.scenes, options.out, options.iterations, options.done)
    plain = [
        {**CROSS_ENTROPY, "optimizer.lr": rate, "loss.weight": weight}
        for rate in RATES
        for weight in WEIGHTS["cross-entropy"]
    ]
    with ThreadPoolExecutor(2) as pool:
        experiment.search("cross-entropy", plain, pool)
        rambo = [
            {"loss.lam": lam, "optimizer.lr": RATES[0], "loss.weight": weight}
            for lam in LAMS
            for weight in WEIGHTS["RaMBO"]
        ]
        experiment.search("RaMBO", rambo, pool)
        rates = [{**experiment.best("RaMBO", rambo), "optimizer.lr": rate} for rate in RATES[1:]]
        experiment.search("RaMBO", rates, pool)
        rambo += rates
        best = experiment.best("cross-entropy", plain), experiment.best("RaMBO", rambo)
        ways = {"cross-entropy": best[0], **ways_of(best[1])}
        say(f"chosen on held-out pictures: {[name_of(each) for each in best]}")
        stored = {way: experiment.entry(way, settings, options.seeds) for way, settings in ways.items()}
        runs = {
            (way, seed): pool.submit(experiment.tested, way, seed, settings)
            for seed in range(options.seeds)
            for way, settings in ways.items()
            if not stored[way] or (options.again and way == "cross-entropy" and not seed)
            if not options.done or (experiment.folder(way, seed, settings) / "test.json").exists()
        }
        found = {key: run.result() for key, run in runs.items()}
    own = {way: [found[way, seed] for seed in range(options.seeds) if (way, seed) in found] for way in ways}
    entries = [
        stored[way] or entry_of(way, settings, own[way]) for way, settings in ways.items() if stored[way] or own[way]
    ]
    for entry in entries:
        values = entry["values"]["AP50"]
        say(f"{entry['name']:20} AP50 {100 * fmean(values):5.1f} ± {100 * (stdev(values) if values[1:] else 0):.1f}")
    kept = {
        "command": "python benchmarks/detection_losses.py scenes",
        "machine": machine(),
        "held_out": experiment.held,
        "chosen": {way: name_of(settings) for way, settings in ways.items()},
        "entries": entries,
    }
    if stored.get("cross-entropy"):
        kept["stored"] = {
            "cross-entropy": experiment.stored.get("stored", {}).get("cross-entropy", experiment.stored["machine"])
        }
    if stored.get("cross-entropy") and ("cross-entropy", 0) in found:
        kept["again"] = {"cross-entropy, seed 0": found["cross-entropy", 0]["values"]}
    elif "again" in experiment.stored:
        kept["again"] = experiment.stored["again"]
    if not options.iterations:
        RESULT.write_text(json.dumps(kept, indent=1) + "\n")


def entry_of(way: str, settings: Settings, found: list[dict[str, Any]]) -> dict[str, Any]:
    """What is kept of a way: a value of each metric per seed."""
    values = {name: [each["values"][name] for each in found] for name in found[0]["values"]}
    seconds = [each["seconds per step"] for each in found]
    return {"name": way, "settings": settings, "machine": machine(), "values": values, "seconds per step": seconds}


if __name__ == "__main__":
    main()
