"""Losses on a linear head: what is tried, that it learns and goes on where it stopped, and what is said of it."""

import numpy as np
import pytest
import torch

from frontrank.data.table import ImageTable
from studies import linear_head
from studies.linear_head import PEERS, RANKS, Rows, Trials, split_rows, stability, train_head
from studies.study import Effort
from tests.studies.samples import verdict

LOSSES = RANKS | PEERS


def drawn_rows(classes=12, size=4, noise=2.0):
    """Rows whose classes differ in four dimensions; four others are noise."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, 4, generator=generator).repeat_interleave(size, 0)
    features = torch.cat([centres, noise * torch.randn(classes * size, 4, generator=generator)], 1)
    return Rows(torch.nn.functional.normalize(features), torch.arange(classes).repeat_interleave(size))


def drawn_table(classes=30):
    labels = np.repeat([f"class {place:02d}" for place in range(classes)], 4)
    nothing, paths = np.full(len(labels), ""), np.array([f"{row}.png" for row in range(len(labels))])
    return ImageTable("none", paths, labels, nothing, np.repeat(["train", "test"], [80, 4 * classes - 80]), nothing)


@pytest.mark.parametrize("name", LOSSES)
def test_every_candidate_of_a_loss_learns(name):
    rows = drawn_rows()
    assert len(set(LOSSES[name])) == 6
    for candidate in LOSSES[name]:
        head = train_head(rows, candidate, 1e-2, 2, seed=0, batch=16)
        assert head.isfinite().all()
        assert not torch.equal(head, torch.eye(8))


def test_a_head_learns_which_dimensions_count():
    rows = drawn_rows()
    before, heads = rows.measure(), [train_head(rows, RANKS["SmoothAP"][3], 3e-2, 40, 1, 16) for _ in range(2)]
    assert rows.measure(heads[0])["mAP"] > before["mAP"] + 0.2
    assert torch.equal(*heads)


def test_proxies_have_a_rate_of_their_own():
    rows, (candidate, *_) = drawn_rows(), PEERS["ProxyAnchor"]
    slow, fast = (train_head(rows, candidate._replace(loss_lr=lr), 1e-2, 3, 0, 16) for lr in (1.0, 10.0))
    assert not torch.equal(slow, fast)
    assert str(candidate._replace(loss_lr=10.0)) != str(candidate)


def test_rows_are_whitened_by_those_that_train():
    table, features = drawn_table(), torch.randn(120, 8, generator=torch.Generator().manual_seed(0))
    rows = split_rows(table, features, seed=0)
    assert {split: len(own.classes) for split, own in rows.items()} == {"train": 64, "validation": 16, "test": 40}
    assert [int(own.classes.max()) + 1 for own in rows.values()] == [16, 4, 10]
    other = features.clone()
    other[80:] += 1  # test rows
    assert torch.equal(split_rows(table, other, seed=0)["train"].features, rows["train"].features)
    assert not torch.equal(split_rows(table, features, seed=1)["train"].features, rows["train"].features)


@pytest.fixture
def run_quick(tmp_path, monkeypatch):
    """A function that measures a quick version on drawn features."""
    features = torch.randn(120, 8, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(linear_head, "emoji_folder", lambda effort: "")
    monkeypatch.setattr(linear_head, "split_images", lambda effort, data: drawn_table())
    monkeypatch.setattr(linear_head, "embed_images", lambda effort, table: features)
    return lambda: linear_head.measure(Effort(tmp_path / "work", quick=True, show=False))


@pytest.mark.training
def test_a_stopped_study_goes_on(run_quick, monkeypatch):
    class StoppedError(Exception):
        pass

    runs, train = [], linear_head.train_head

    def stop(*args):
        runs.append(args)
        if len(runs) == 10:
            raise StoppedError
        return train(*args)

    monkeypatch.setattr(linear_head, "train_head", stop)
    with pytest.raises(StoppedError):
        run_quick()
    results = run_quick()
    assert len(runs) == 5 * (6 + 3) + 1  # settings of five losses, three lengths; one was stopped
    assert run_quick() == results
    assert len(runs) == 46
    verdict(linear_head.STUDY, results)


def test_the_setting_and_then_the_rate_are_chosen_on_held_out_classes(tmp_path, monkeypatch):
    def run(trials, name, candidate, lr, steps, seed, split):
        assert split == "validation"
        return {"R@1": (candidate == RANKS["FastAP"][2]) + (lr == 0.2) / 2, "mAP": 0.5}

    monkeypatch.setattr(Trials, "run", run)
    trials = Trials(Effort(tmp_path), drawn_table(), torch.zeros(120, 8))
    loss = linear_head._search("FastAP", trials, 3, (0.1, 0.2, 0.3), 0, lambda _: None)
    assert (loss["loss"], loss["lr"], loss["held_out"]) == ("FastAP(bins=10)", 0.2, 1.5)
    assert len(loss["search"]) == 8


def test_rates_beyond_the_end_are_tried_while_they_are_better(tmp_path, monkeypatch):
    monkeypatch.setattr(Trials, "run", lambda trials, name, candidate, lr, *args: {"R@1": -abs(lr - 1e-3)})
    trials = Trials(Effort(tmp_path), drawn_table(), torch.zeros(120, 8))
    loss = linear_head._search("FastAP", trials, 3, (1e-2, 3e-3, 3e-2), 0, lambda _: None)
    assert loss["lr"] == 1e-3
    assert [rate for _, rate, _ in loss["search"]][6:] == [3e-3, 3e-2, 1e-3, 3e-4]
    assert not linear_head._is_end(loss)


def test_stability_counts_pairs_that_change_sides():
    def runs(*means):
        return {name: [mean, mean + 0.001] for name, mean in zip("abc", means, strict=True)}

    assert stability(runs(0.5, 0.6, 0.7), runs(0.5, 0.6, 0.7)) == {"rho": 1.0, "pairs": 3, "both": 3, "reversed": []}
    changed = stability(runs(0.5, 0.6, 0.7), runs(0.5, 0.7, 0.6))
    assert (changed["rho"], changed["reversed"]) == (pytest.approx(0.5), [("b", "c")])
    assert stability(runs(0.5, 0.5, 0.5), runs(0.5, 0.6, 0.7))["both"] == 0
