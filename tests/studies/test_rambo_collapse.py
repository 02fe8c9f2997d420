"""rambo-collapse: a step by hand, that no slope without a margin makes scores larger, the verdict."""

from pathlib import Path

import pytest
import torch

from studies import rambo_collapse
from studies.rambo_collapse import FREE, STUDY, free_scores, measure, network_scores
from studies.study import Effort


def test_a_step_by_hand(monkeypatch):
    """A negative before the positive, and a lambda that makes them change places."""
    monkeypatch.setattr(rambo_collapse, "_ITEMS", 2)
    monkeypatch.setattr(rambo_collapse, "_POSITIVES", 1)

    def drawn(seed):
        return torch.randn(2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    seed = next(seed for seed in range(99) if drawn(seed)[0] < drawn(seed)[1])
    path, shrinks = free_scores(0.0, 1, seed)
    assert path[0].tolist() == drawn(seed).tolist()
    assert (path[1] - path[0]).tolist() == pytest.approx([FREE.lr / FREE.lam, -FREE.lr / FREE.lam])
    assert shrinks == 1


@pytest.mark.parametrize("optimise", [free_scores, network_scores])
def test_no_slope_without_a_margin_makes_scores_larger(optimise):
    assert optimise(0.0, 50, seed=1)[1] == 1
    assert optimise(0.5, 50, seed=1)[1] < 1


def result(gap, gap_with, spread, spread_with, before=None):
    """before: the spread with a margin after three quarters of the steps"""

    def of(margin, last_gap, last_spread):
        middle = [(before or last_spread) if margin else last_spread] * 3
        return {"spread": [[1.0, *middle, last_spread]], "gap": [[-2.0, last_gap]], "shrinks": [1.0]}

    free = {"without": of(0.0, gap, 0.5), "with": of(0.3, gap_with, 0.5), "steps": 9, "lambda": 1.0}
    network = {"without": of(0.0, 0.0, spread), "with": of(0.3, 0.0, spread_with), "steps": 9, "lambda": 1.0}
    return {"seeds": 1, "margin": 0.3, "free": free, "network": network}


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((0.001, 0.3, 0.1, 2.0), "**Agrees**"),
        ((0.001, 0.3, 0.9, 2.0), "**Agrees in part**"),
        ((0.001, 0.3, 0.1, 2.0, 1.95), "**Agrees**"),
        ((0.001, 0.3, 0.1, 2.0, 1.6), "**Agrees in part**"),  # it grows, and has no scale
        ((0.2, 0.1, 0.9, 0.1), "**Does not agree**"),
    ],
)
def test_verdict(values, verdict):
    assert verdict in STUDY.told(result(*values))


def test_that_a_network_grows_with_a_margin_is_told_in_figures():
    told = STUDY.told(result(0.001, 0.3, 0.1, 2.0, 1.6))
    assert "with one they do not collapse (their spread grows from 1.00 to 1.60 to 1.60 to 1.60 to 2.00, at" in told
    assert "; but that does not come to rest at a scale: in the last quarter it changes by +25%." in told
    assert "; and that comes to rest at a scale: " in STUDY.told(result(0.001, 0.3, 0.1, 2.0))
    assert "with one they do (their spread goes from" in STUDY.told(result(0.001, 0.3, 0.1, 0.1))


@pytest.mark.parametrize(("quick", "seeds", "runs"), [(False, 1, [5]), (False, 4, [5, 6, 7, 8]), (True, 4, [5])])
def test_it_has_as_many_seeds_as_are_asked_for(monkeypatch, quick, seeds, runs):
    seen = []

    def optimised(margin, steps, seed):
        seen.append(seed)
        return torch.zeros(steps + 1, rambo_collapse._ITEMS), 1.0

    monkeypatch.setattr(rambo_collapse, "free_scores", optimised)
    monkeypatch.setattr(rambo_collapse, "network_scores", optimised)
    assert measure(Effort(Path("unused"), quick=quick, seed=5, seeds=seeds))["seeds"] == len(runs)
    assert seen == runs * 4  # two problems, with and without a margin


def test_figure_of_what_was_measured():
    found = measure(Effort(Path("unused"), quick=True))
    assert len(found["free"]["without"]["positives"]) == 6
    assert STUDY.figures(found)["scores"]
