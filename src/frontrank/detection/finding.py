"""What a detector finds in all pictures of a table."""

import torch

from frontrank.detection.loading import all_scenes
from frontrank.detection.matching import Detections
from frontrank.detection.model import Detector
from frontrank.detection.scenes import SceneTable
from frontrank.progress import progress


def find_objects(
    detector: Detector,
    table: SceneTable,
    *,
    batch: int = 8,
    workers: int = 2,
    device: torch.device | str | None = None,
    show: bool | None = None,
) -> list[Detections]:
    """The detections of each picture, in the order of the table, by this process alone.

    show: a progress bar; None draws it on a terminal only
    """
    if device is not None:
        detector.to(device)
    found: list[Detections] = []
    with progress("detecting", len(table), show) as done:
        for pictures in all_scenes(table, batch, workers):
            found += detector.detect(pictures)
            done(len(pictures))
    return found
