"""What the AP loss costs in a training step of a detector, and what its memory of scores takes.

    python benchmarks/detection.py            all of it, minutes on a CPU; writes results/detection.json
    python benchmarks/detection.py --quick    small pictures, nothing written

A step is that of the recipes of RaMBO's Table 5, ResNet-50 with a feature pyramid and 8 pictures, at a short side that
is smaller than theirs: with larger pictures the share of the loss is less. It ranks 327,680 scores (the paper's 320k):
256 proposals of 8 pictures, 20 classes, this batch and 7 remembered ones. Seconds are those of one thread's own work:
it matters little what else the machine does.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import machine, say

import frontrank as fr
from frontrank.detection import Detector, DetectorSettings, ProposalAP

PICTURES, CLASSES, MEMORY, OBJECTS = 8, 20, 7, 3


def detector_of(side: int, samples: int) -> Detector:
    torch.manual_seed(0)
    names = tuple(f"class {number}" for number in range(CLASSES))
    settings = DetectorSettings(
        names, batch_norm="frozen", short_side=side, long_side=side * 5 // 3, samples=samples, scores="logits"
    )
    return Detector(settings).train()


def batch_of(side: int) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    """Random pictures; what is in them has no effect on how long a step takes."""
    pictures = [torch.randint(0, 256, (3, side, side * 4 // 3), dtype=torch.uint8) for _ in range(PICTURES)]
    corners = torch.rand(PICTURES, OBJECTS, 2) * side * 0.5
    boxes = torch.cat([corners, corners + side * 0.2 + torch.rand(PICTURES, OBJECTS, 2) * side * 0.25], 2)
    targets = [{"boxes": each, "labels": torch.randint(1, CLASSES + 1, (OBJECTS,))} for each in boxes]
    return pictures, targets


class Timed(ProposalAP):
    """The loss, and the seconds of its forward pass, which computes its gradient too."""

    seconds: float = 0.0
    rows: int = 0

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        start = time.process_time()
        loss = super().__call__(logits, labels)
        self.seconds, self.rows = time.process_time() - start, len(labels)
        return loss


def step_of(detector: Detector, side: int) -> tuple[float, float]:
    """Seconds of a training step without the optimizer's, and of the loss in it."""
    loss: Any = detector.classifier_loss
    pictures, targets = batch_of(side)
    detector.zero_grad(set_to_none=True)
    start = time.process_time()
    torch.stack(list(detector(pictures, targets).values())).sum().backward()
    return time.process_time() - start, 0.0 if loss is None else loss.seconds


def section_share(side: int, samples: int, steps: int) -> dict[str, Any]:
    detector = detector_of(side, samples)
    loss = Timed(fr.ClassifierAP(memory=MEMORY, relative=True), "logits")
    detector.classifier_loss = loss
    fill_memory(loss, samples)
    whole, own = np.array([step_of(detector, side) for _ in range(steps)]).T
    held = loss.ap.state_dict()["_extra_state"]
    megabytes = sum(each.nbytes for part in held.values() for each in part) / 1e6
    scores = sum(each.numel() for each in held["scores"]) + loss.rows * CLASSES
    share = float(np.median(own / whole))
    say(f"step of 8 pictures, short side {side} px, {scores:,} ranked scores: {np.median(whole):.2f} s")
    say(f"  of that the AP loss {1000 * np.median(own):.0f} ms, {share:.2%}; its memory holds {megabytes:.2f} MB")
    return {
        **{"short_side": side, "scores": scores, "steps": steps, "step_seconds": float(np.median(whole))},
        **{"loss_seconds": float(np.median(own)), "share": share, "memory_megabytes": megabytes},
    }


def fill_memory(loss: ProposalAP, samples: int) -> None:
    """Scores of past batches as of a half-trained classifier: one proposal in four is an object, and mostly found."""
    for _ in range(MEMORY):
        labels = torch.randint(1, CLASSES + 1, (PICTURES * samples,)) * (torch.rand(PICTURES * samples) < 0.25)
        logits = torch.randn(PICTURES * samples, CLASSES + 1)
        logits[torch.arange(len(labels)), labels] += 2.0
        loss(logits, labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small pictures, nothing written")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "detection.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    side, steps = (64, 2) if options.quick else (256, 3)
    results = {"machine": machine(), "command": "python benchmarks/detection.py"}
    say(f"{results['machine']}")
    results["share"] = section_share(side, 256, steps)
    if not options.quick:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(results, indent=1) + "\n")
        say(f"written: {options.out}")


if __name__ == "__main__":
    main()
