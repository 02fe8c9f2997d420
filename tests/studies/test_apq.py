"""The studies of AP_Q: what they count."""

import numpy as np
import pytest
import torch
from torch import nn

from frontrank.data.table import ImageTable, read_table
from studies import apq_ablation, apq_triplet
from studies.apq_triplet import SNIPPETS, Budget, passes
from studies.study import Effort


def test_every_second_training_class_is_cut_to_two_images(tmp_path):
    nothing, labels = np.full(16, ""), np.repeat(list("abcd"), 4)
    paths, splits = np.array([f"{place}.png" for place in range(16)]), np.repeat(["train", "test"], [12, 4])
    (tmp_path / "emoji").mkdir()
    ImageTable(tmp_path / "emoji", paths, labels, nothing, splits, nothing).save(tmp_path / "emoji" / "images.csv")
    uneven = read_table(apq_ablation._uneven(str(tmp_path / "emoji"), Effort(tmp_path / "work")))
    assert dict(zip(*np.unique(uneven.labels, return_counts=True), strict=True)) == {"a": 4, "b": 2, "c": 4, "d": 4}


def test_passes_are_those_of_the_paper():
    """Table 1: AP_Q with 200 batches of 4,096 takes 819K backwards and, by multistage backprop, 1638K forwards."""
    counts = {"backwards": 819_200, "forwards": 1_638_400, "updates": 200}
    assert passes(Budget(4096, 200, 1, "")) == {"size": 4096, **counts}
    assert passes(Budget(112, 160, 0, ""))["forwards"] == passes(Budget(112, 160, 112, ""))["forwards"] == 17_920
    assert [passes(each)["backwards"] for each in apq_triplet.BUDGETS] == [17_920, 35_840, 17_920, 35_840]


@pytest.mark.parametrize("name", SNIPPETS)
def test_the_lines_that_are_counted_run(name):
    from pytorch_metric_learning.losses import TripletMarginLoss
    from pytorch_metric_learning.miners import BatchHardMiner

    from frontrank import QuantizedAP, multistage_backward

    model = nn.Linear(4, 3)
    known = {each.__name__: each for each in (TripletMarginLoss, BatchHardMiner, QuantizedAP, multistage_backward)}
    batch = {"images": torch.randn(8, 4), "labels": torch.arange(8) // 2}
    exec(SNIPPETS[name], {"model": model, **known, **batch})
    assert model.weight.grad.abs().sum() > 0
