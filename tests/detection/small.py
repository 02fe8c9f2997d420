"""Small heads, proposals and scenes for tests."""

import torch
from torch import nn
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.roi_heads import RoIHeads
from torchvision.ops import MultiScaleRoIAlign

CLASSES, CHANNELS, SIDE = 4, 3, 64


def torchvision_heads(samples=64, **changed):
    """torchvision's own heads, in float64, with weights that depend on nothing but the seed."""
    torch.manual_seed(1)
    settings = {"score_thresh": 0.05, "nms_thresh": 0.5, "detections_per_img": 20} | changed
    heads = RoIHeads(
        MultiScaleRoIAlign(["0"], output_size=3, sampling_ratio=2),
        TwoMLPHead(CHANNELS * 9, 16),
        FastRCNNPredictor(16, CLASSES + 1),
        0.5,
        0.5,
        samples,
        0.25,
        None,
        **settings,
    ).double()
    nn.init.normal_(heads.box_predictor.cls_score.weight, std=0.8)
    return heads


def pictures(count=3, objects=(2, 1, 3), proposals=9, seed=3):
    """What RoI heads are called with: features, proposals, shapes, targets; some proposals lie on objects."""
    rng = torch.Generator().manual_seed(seed)
    features = {"0": torch.rand(count, CHANNELS, 16, 16, generator=rng, dtype=torch.float64)}
    found, targets = [], []
    for number in range(count):
        boxes = random_boxes(objects[number], rng)
        labels = torch.randint(1, CLASSES + 1, (objects[number],), generator=rng)
        near = boxes.repeat(2, 1) + torch.rand(2 * len(boxes), 4, generator=rng, dtype=torch.float64) * 2
        found.append(torch.cat([near, random_boxes(proposals, rng)]))
        targets.append({"boxes": boxes, "labels": labels})
    return features, found, [(SIDE, SIDE)] * count, targets


def random_boxes(count, rng):
    corner = torch.rand(count, 2, generator=rng, dtype=torch.float64) * 30
    return torch.cat([corner, corner + 10 + torch.rand(count, 2, generator=rng, dtype=torch.float64) * 20], 1)
