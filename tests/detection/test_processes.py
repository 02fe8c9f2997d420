"""Two processes rank one global batch: the same loss, the same gradients, the same memory as one process has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import frontrank as fr
from frontrank.detection.model import ProposalAP, RankedRoIHeads
from frontrank.detection.run import resume_detector, train_detector
from frontrank.settings import as_yaml
from frontrank.training import distributed
from tests.detection.runs import config_of, draw_scenes
from tests.detection.small import pictures, torchvision_heads
from tests.training.processes import run
from tests.training.runs import differences, last_state

OBJECTS = (2, 0, 3, 1)  # of the pictures of a batch
SHARES = {"even": [(0, 1), (2, 3)], "uneven": [(0,), (1, 2, 3)], "one without objects": [(1,), (0, 2, 3)]}


class Whole(torch.nn.Module):
    """Heads that are called as DistributedDataParallel calls a model, and give the classifier's loss alone."""

    def __init__(self, scores):
        super().__init__()
        self.heads = RankedRoIHeads(torchvision_heads(), scores).train()
        self.heads.classifier_loss = ProposalAP(fr.ClassifierAP(relative=True), scores)

    def forward(self, *batch):
        losses = self.heads(*batch)[1]
        return losses["loss_classifier"] + 0.0 * losses["loss_box_reg"]


def two_steps(scores, share):
    """Losses, changes of the weights, and remembered scores of two steps with these pictures of each batch."""
    model = Whole(scores)
    network = distributed.wrap_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    before = torch.cat([each.detach().flatten() for each in model.parameters()])
    found = []
    for number in range(2):
        features, proposals, shapes, targets = pictures(4, OBJECTS, seed=10 + number)
        rows = list(share)
        own = [[part[row] for row in rows] for part in (proposals, shapes, targets)]
        optimizer.zero_grad()
        loss = network({"0": features["0"][rows]}, *own)
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    changes = torch.cat([each.detach().flatten() for each in model.parameters()]) - before
    memory = model.heads.classifier_loss.state_dict()["_extra_state"]["scores"]
    return {"losses": torch.stack(found), "changes": changes, "memory": torch.cat(memory)}


def all_steps(rank, world):
    return {
        (scores, name): two_steps(scores, SHARES[name][rank]) for scores in ("softmax", "logits") for name in SHARES
    }


def all_runs(rank, world):
    """A run, and one that is stopped and goes on, of both processes together."""
    folder = Path(os.environ["FOLDER"])
    scenes = str(folder / "scenes")
    train_detector(config_of(scenes, data={"validation": 0.3}, iterations=4), folder / "whole", quiet=True)
    train_detector(config_of(scenes, data={"validation": 0.3}, iterations=2), folder / "parts", quiet=True)
    resume_detector(folder / "parts", {"iterations": "4"}, quiet=True)
    return True


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What two processes found, and their folder; starting them is what takes the time."""
    folder = tmp_path_factory.mktemp("both")
    draw_scenes(folder / "scenes")
    found = run(all_steps, 2, folder, then=all_runs)
    assert not [each for pair in found for each in pair if isinstance(each, str)], found
    return [steps for steps, _ in found], folder


def test_the_ranked_lists_span_the_global_batch(both):
    found, _ = both
    for scores in ("softmax", "logits"):
        for name, shares in SHARES.items():
            expected = two_steps(scores, [row for share in shares for row in share])
            assert expected["changes"].norm() > 1e-3
            for each in found:
                for part in ("losses", "changes", "memory"):
                    torch.testing.assert_close(
                        each[scores, name][part],
                        expected[part],
                        rtol=1e-10,
                        atol=1e-12,
                        msg=f"{scores}, {name}, {part}",
                    )
            assert torch.equal(found[0][scores, name]["changes"], found[1][scores, name]["changes"])


def test_a_share_alone_is_another_list():
    """The comparison above can fail."""
    whole, half = (two_steps("logits", share) for share in ((0, 1, 2, 3), (0, 1)))
    assert not torch.allclose(whole["losses"], half["losses"])


def test_two_processes_stop_and_go_on_with_the_same_bits(both):
    one, other = (last_state(both[1] / name) for name in ("whole", "parts"))
    assert one["standing"]["step"] == 4
    assert len(one["random"]) == 2
    # where a run is over it is evaluated: that of the first part is in its history too
    assert [each for each in differences(one, other) if ".standing" not in each] == []
    assert one["loss"]["_extra_state"]["scores"][0].shape[0] > 4 * 8  # proposals of all four pictures of a batch


@pytest.mark.slow
def test_torchrun(tmp_path):
    scenes = draw_scenes(tmp_path / "scenes")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(as_yaml(config_of(scenes, iterations=2), changed_only=True))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = ["detect", "train", "--recipe", str(recipe), "--out", str(tmp_path / "run"), "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, "-m", "frontrank", *words], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained 2 steps") == 1  # one process speaks
    assert last_state(tmp_path / "run")["standing"]["step"] == 2


@pytest.mark.parametrize("batch", [3])
def test_a_batch_that_cannot_be_shared_is_refused(batch, tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    scenes = draw_scenes(tmp_path / "scenes")
    with pytest.raises(fr.FrontrankError, match="batch 3 cannot be shared by 2 processes; make it a multiple of that"):
        train_detector(config_of(scenes, batch=batch), tmp_path / "run", quiet=True)
